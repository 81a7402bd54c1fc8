"""Executors run a list of ops on a batch: ``array`` (NumPy, CuPy) or ``dali`` (NVIDIA DALI, on the
CPU or a GPU)."""
