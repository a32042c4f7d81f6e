"""The engine: where decisions meet mechanism. Main process only.

      sampler ─► feed ─► board ─────────────┐ (control block and arena, shared memory)
                   ▲       ▲                ▼
       top_up ─────┘       │        workers pull, fetch, write rows, collate
          ▲                │                │
       engine ◄── ledger   └── recovery     ▼
          │                          board: batch ready
          ▼                                 │
       delivery ◄───────────────────────────┘   slot lent to the user under the batch's tensors
          │
          ▼
       iterator ─► user's loop

engine.py    the loop: take a ready batch, deliver it, post the next ones; close
waiting.py   until a batch is ready: deaths, hangs, failures and the number of workers are seen to meanwhile
parts.py     what an engine is made of, put together
epochs.py    which epochs are under way, and how many of their batches are posted
feeds.py     what to post next: tickets of the sampler's batches, or turns of the workers' streams
delivery.py  a ready batch becomes the user's object
iterator.py  what `iter(loader)` returns, with and without workers
resume.py    states: taken, checked, gone on from; progress.py: how far an epoch has come
courses.py   an epoch's order and how to have it again; remainder.py: what is left of it
mending.py   failed samples are fetched again, replaced or left out
casualties.py, hangs.py   workers that died or are stuck; verdicts.py: errors handed in in their name
inline.py    num_workers=0: the same samples, in this process; inline_mending.py: with failures treated alike

Contract, whatever happens:
 1. `next` returns a batch, raises StopIteration after the last one, or raises an error; it never waits for something
    that cannot come (a dead worker's work is given to others, or named in an error).
 2. Each position of the sampler is delivered once. The ledger raises InternalError rather than deliver twice.
 3. An error of the user's code is raised by the `next` that would have returned its batch; the following `next` goes on
    with the following batch, as with torch.
 4. `close` ends workers within a second and is idempotent; it runs when the iterator is garbage, at interpreter exit,
    and when starting fails half-way. A forked copy of the process never closes its parent's pool.
 5. Batches the user holds stay valid and unchanged, also after `close`.
"""
