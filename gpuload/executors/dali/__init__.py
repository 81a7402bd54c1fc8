"""The DALI executor: a graph as one DALI pipeline, on the CPU or on a GPU.

executor.py    batches in flight, errors, the end
program.py     the graph in terms of DALI: inputs, operators, outputs
"""

from gpuload.executors.dali.executor import DaliExecutor

__all__ = ["DaliExecutor"]
