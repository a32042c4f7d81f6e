"""Decisions, as pure code: numbers in, numbers out. No clock, thread, process or torch inside.

window.py      how many batches to keep in flight within the memory budget
profile.py     what samples cost, and from when on one counts as slow (threshold.py, quantiles.py)
"""
