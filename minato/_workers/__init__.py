"""Worker processes: their life, and what they do with a sample.

main.py         a worker's whole life in named steps
map_loop.py     pull tickets, fetch, hand in: map-style datasets
stream_loop.py  fill batches from this worker's stream: iterable datasets
writer.py       samples into rows, rows into batches
randomness.py   per-sample random numbers; generators.py: the three global generators
stream_account.py  what a worker tells of its stream, for states; plain.py: states as plain values
program.py      how the dataset and the user's functions reach a worker
stacks.py       the stack of a worker that is stuck
guard.py        signals, and dying with the parent; heap.py: memory that samples have freed, for the next ones
hazards.py      what a fork would share to harm; handles.py: which objects those are; copies.py: what it would copy
walk.py         a bounded look through what a dataset refers to
pool.py         main process: start, wake, watch and stop workers; processes.py: what multiprocessing does not do
stages.py       samples in stages: load, then one transform after the other (splitting.py); in_stages.py: in the loop
sync.py         attribute changes of the dataset for persistent workers
"""
