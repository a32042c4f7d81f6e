"""The way to an accelerator.

pinning.py   page-locked memory for batches
"""
