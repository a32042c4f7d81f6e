"""Shared memory and everything that lives in it. Knows nothing of datasets, schedules or processes' lives.

arena.py     the sparse file behind batches; maps pieces of it into this process
control.py   the words of the control block and the lock over them
board.py     what may be done with those words: publish, pull, claim, commit, recover; the four queues of a sample
rows.py      the row table, fixed rows and heap of one slot
layout.py    the fixed layout of a sample: learning it, writing columns of it, building batches over it
codec.py     anything else: pickle with buffers out of band
leases.py    which slots are free, in flight, or under tensors the user holds
ledger.py    which positions of an epoch are out, and which were delivered

Who writes what: the main process publishes batches and reads ready ones; workers pull tickets, claim rows, write rows
and commit them; the worker that commits a batch's last row collates it if that is needed and puts it on the ready ring.
"""
