"""The DALI executor: a graph as one DALI pipeline, on the CPU or on a GPU.

executor.py    batches in flight, errors, the end
program.py     the graph in terms of DALI: inputs, operators, outputs
chain.py       DALI, and behind it array code for ops that have no form in DALI
feed.py        the same for a pipeline that runs elsewhere, in TensorFlow's plugin
"""

from gpuload.executors.dali.chain import Chain
from gpuload.executors.dali.executor import DaliExecutor
from gpuload.executors.dali.feed import Feed

__all__ = ["Chain", "DaliExecutor", "Feed"]
