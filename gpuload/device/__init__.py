"""Devices: which one is used and why; the arrays, memory and streams of CuPy.

library.py      NumPy or CuPy, which it alone imports
choice.py       which device is used, or why there is no GPU
problems.py     the meaning of errors of CUDA
hostmemory.py   memory on the host that begins at a page, or is page-locked
cardmemory.py   how much memory a GPU has, and pieces of it
copies.py       small copies between the host and a GPU
lane.py         a stream of our own: uploads, events, the hand-over to the consumer's stream
tracks.py       streams that are used again, and points in their work
loans.py        memory that the consumer has, which comes back when its kernels have run
ledger.py       how much of it there is
bundle.py       all that a batch needs on a GPU in one upload
kernels.py      kernels, and arrays that they alone read; in a bundle they wait
views.py        images of different sizes in one memory
"""

from gpuload.device.bundle import Bundle, open_bundle, settle
from gpuload.device.cardmemory import CardMemory, card_bytes, empty_pool, pool_bytes
from gpuload.device.choice import choose, gpu_problem
from gpuload.device.copies import constant, fetch, upload
from gpuload.device.hostmemory import PAGE_BYTES, offer, page_aligned, pinned
from gpuload.device.kernels import (
    Kernel,
    begin,
    can_wait,
    copy,
    elementwise,
    hold,
    kernel,
    parameters,
    waits,
    zeros,
)
from gpuload.device.lane import FOREIGN_GROUP, Lane
from gpuload.device.ledger import memory_bytes
from gpuload.device.library import (
    card_name,
    compiles,
    cupy,
    num_gpus,
    number,
    nvtx_ranges,
    synchronize,
    xp,
)
from gpuload.device.loans import stream_export
from gpuload.device.problems import Problem, failure, is_out_of_memory
from gpuload.device.tracks import Event
from gpuload.device.views import Views, as_list, view_at

__all__ = [
    "FOREIGN_GROUP",
    "PAGE_BYTES",
    "Bundle",
    "CardMemory",
    "Event",
    "Kernel",
    "Lane",
    "Problem",
    "Views",
    "as_list",
    "begin",
    "can_wait",
    "card_bytes",
    "card_name",
    "choose",
    "compiles",
    "constant",
    "copy",
    "cupy",
    "elementwise",
    "empty_pool",
    "failure",
    "fetch",
    "gpu_problem",
    "hold",
    "is_out_of_memory",
    "kernel",
    "memory_bytes",
    "num_gpus",
    "number",
    "nvtx_ranges",
    "offer",
    "open_bundle",
    "page_aligned",
    "parameters",
    "pinned",
    "pool_bytes",
    "settle",
    "stream_export",
    "synchronize",
    "upload",
    "view_at",
    "waits",
    "xp",
    "zeros",
]
