"""Decisions, as pure code: numbers in, numbers out. No clock, thread, process or torch inside.

early.py         which samples are known to be slow, and how long before their turn to begin them
error_policy.py  whether a failed sample is tried again, left out or raised
policy.py        how many workers there should be (climbing.py: the default way to find out)
profile.py       what samples cost, and from when on one counts as slow (threshold.py, quantiles.py)
history.py       what was, in bounded memory
replay.py        recorded events through all of this again, without processes
window.py        how many batches to keep in flight within the memory budget
"""
