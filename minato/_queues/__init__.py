"""Shared memory and everything that lives in it. Knows nothing of datasets, schedules or processes' lives.

arena.py     the sparse file behind batches; maps pieces of it into this process (mapping.py)
control.py   the control block and the lock over it; fields.py: the names of its words
board.py     what may be done with those words; posting.py: by the main process; taking.py: by workers;
             hands.py: what workers do under the lock
recovery.py  what a dead worker had in hand is posted again
reopening.py failed rows are opened again, or left out
keys.py      the keys of tickets
rows.py      the row table, fixed rows and heap of one slot
layout.py    the fixed layout of a sample: learning it, writing columns of it, building batches over it
layout_book.py  the layouts a pool knows; texts.py: the strings beside fixed rows
codec.py     anything else: pickle with buffers out of band; messages.py: single objects at known places
leases.py    which slots are free, in flight, or under tensors the user holds
ledger.py    which positions of an epoch are out, and which were delivered

Who writes what: the main process publishes batches and reads ready ones; workers pull tickets, claim rows, write rows
and commit them; the worker that commits a batch's last row collates it if that is needed and makes it ready.
"""
