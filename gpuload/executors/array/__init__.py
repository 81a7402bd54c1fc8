"""The array executor: the array forms of the ops, on NumPy or CuPy.

rows.py       on the host, on any rows of a step, in many threads at once
batches.py    on a GPU, on whole batches, behind the ops that rows.py runs on the host
runs.py       a field's rows through its stages, a tile at a time; ops on several fields
groups.py     ops on a field that are done together
assembly.py   the stages of a field
stage.py      ops that are one pass over a tile of rows, or one step of a visit of an image
stages.py     stages by the form of their ops; imagestage.py those that are one visit of an image
folding.py    ops as one walk
values.py     values of fields; sharing.py results in memory of their own
scratch.py    memory of a thread
"""

from gpuload.executors.array.batches import ArrayBatchExecutor
from gpuload.executors.array.rows import ArrayRowExecutor

__all__ = ["ArrayBatchExecutor", "ArrayRowExecutor"]
