"""Decisions, as pure code: numbers in, numbers out. No clock, thread, process or torch inside.

window.py      how many batches to keep in flight within the memory budget
profile.py     what samples cost, and from when on one counts as slow (threshold.py, quantiles.py)
policy.py      how many workers: common records, and the policy of the MinatoLoader paper
climbing.py    how many workers: the default policy
"""
