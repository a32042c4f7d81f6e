"""What a map-style dataset's pipeline is made of: its stages, whether they are random, how large their results are; and
the cache that keeps the results of a deterministic beginning of it.

    marks.py       @minato.deterministic, @minato.stochastic
    reading.py     what code can do, from a look at it, without running it
    known.py       what is known of libraries
    judging.py     whether a stage is random: its code, and what it does when it is run
    continuing.py  a pipeline entered in the middle
    store.py       entries in shared memory or on disk, for all workers
    cached.py      the dataset that workers fetch from when there is a cache
    planning.py    where to cache
    aside.py       the user's code run in a process of its own, as a worker would
"""
