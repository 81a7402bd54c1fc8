"""Trainings that DLIO emulates, fed by gpuload and by DLIO's own loaders: `make dlio`,
`python -m benchmarks.dlio`.

`workloads.py` says what is trained and by which loaders; `loader.py` is gpuload as a data loader of
DLIO; `train.py` lets DLIO train; `search.py` finds how many accelerators a loader feeds; `page.py`
writes the table; `__main__.py` is the program.
"""
