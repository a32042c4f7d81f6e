"""The way to an accelerator.

pinning.py     page-locked memory for batches
prefetch.py    batches copied to a device ahead of use
runtime.py     the calls to an accelerator that prefetching needs
structure.py   changing the tensors inside a batch
"""
