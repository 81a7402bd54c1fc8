"""Kernels: the compiled forms of ops, for the core on a CPU and for a GPU."""
