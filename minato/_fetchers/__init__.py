"""How samples come out of a dataset, inside one process. Knows nothing of shared memory or schedules.

sequential.py   map-style datasets, one sample (or one `__getitems__` call) after the other
threaded.py     threads of this process that fetch, where there are no workers
asynchronous.py datasets that can be awaited
loop_thread.py  an event loop in a thread of this process, where there are no workers
chunking.py     how many samples to take at once, from what samples cost
stream.py       iterable datasets: the stream of one worker, cut into batches
"""
