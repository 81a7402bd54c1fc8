"""Covers on a GPU: the pixels of `ops.colour.erasing`, bit for bit, for the kernels of
`kernels.pixels`."""

from __future__ import annotations

from gpuload.kernels import cuda

COVERS = '#include "covers.cuh"\n'
GRID = cuda.constants(BOXES=0, NOISE=0) + COVERS


def boxes(count: int) -> str:
    """Return the text for ``count`` boxes, four words each, and a colour."""
    return cuda.constants(BOXES=count, NOISE=0) + COVERS


def noise(count: int, *, of_pixels: bool) -> str:
    """Return the text for ``count`` boxes of noise: behind them are the deviation, and a mean for
    each channel.

    Args:
        count: boxes.
        of_pixels: whether each pixel has numbers of its own, else each box.
    """
    return cuda.constants(BOXES=count, NOISE=1, OF_PIXELS=of_pixels) + COVERS
