"""The array executor: the array forms of the ops, on NumPy or CuPy.

rows.py       on the host, on any rows of a step, in many threads at once; in the core where it is
              there
batches.py    on a GPU, on whole batches, behind what rows.py has done for them on the host
stages.py     the ops of one field, cut into passes over a few rows at a time
scratch.py    memory of a thread
"""

from gpuload.executors.array.batches import ArrayBatchExecutor
from gpuload.executors.array.rows import ArrayRowExecutor

__all__ = ["ArrayBatchExecutor", "ArrayRowExecutor"]
