"""What `minato bench` runs: minato's loader against torch's, on data made on the spot or on the user's own.

datasets.py    datasets whose samples know their index, and the check that each came once
realistic.py   heavier ones: image decoding, volumes, remote objects, uneven costs
workloads.py   a dataset with its batch size, its kind of cost and the appetite of a simulated accelerator
arms.py        the ways of making a loader that are compared
measuring.py   one arm measured: rates, waits, CPU and memory of the process tree
running.py     all arms of all workloads in turn
verdict.py     where minato is faster, even or slower
showing.py     the table and the page
"""
