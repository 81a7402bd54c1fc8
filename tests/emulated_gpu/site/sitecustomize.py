"""Puts the emulated GPU behind CuPy in each Python that finds this folder in PYTHONPATH, also in
those it starts."""

from tests import emulated_gpu

emulated_gpu.install_from_environment()
