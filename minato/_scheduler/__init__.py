"""Decisions, as pure code: numbers in, numbers out. No clock, thread, process or torch inside.

window.py     how many batches to keep in flight within the memory budget
error_policy.py  whether a failed sample is tried again, left out or raised
"""
