"""Peers: other loaders and libraries on the same files and draws, for ``gpuload bench --against`` and
``gpuload parity``."""
