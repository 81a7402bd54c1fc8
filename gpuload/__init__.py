"""gpuload: records on disk to device tensors. A batch is a pure function of (source, ops, seed,
epoch, step)."""

from __future__ import annotations

import signal as _signal
import sys as _sys

# ``python -m gpuload`` imports this package before ``__main__``: from here on Ctrl-C ends it
# without a traceback. While Python looks for ``__main__``, ``sys.argv`` begins with "-m" in place
# of its file.
if (
    _sys.argv[:1] == ["-m"]
    and _sys.orig_argv[-len(_sys.argv) :][:1] in (["gpuload"], ["-mgpuload"])
    and _signal.getsignal(_signal.SIGINT)
    is _signal.default_int_handler  # not if this process ignores Ctrl-C
):
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from typing import TYPE_CHECKING

from gpuload import formats as _formats
from gpuload import ops, recipes
from gpuload.batch import Batch
from gpuload.errors import GpuloadError, PixelError
from gpuload.lazy import attach as _attach
from gpuload.loader import Loader
from gpuload.open import open as open
from gpuload.ops.value import numbers as draw
from gpuload.order import Blocks, Buckets
from gpuload.ragged import Ragged
from gpuload.sources.base import Source
from gpuload.spec import Field, Spec
from gpuload.storage.stores import Remote
from gpuload.synonyms import PACKAGE as _FORMS
from gpuload.tracebacks import publish as _publish
from gpuload.tracebacks import publish_methods as _publish_methods

if TYPE_CHECKING:
    # The calls of all formats, by the ``__all__`` of their room.
    from gpuload.bridges.ranks import shard
    from gpuload.check import check
    from gpuload.convert import convert
    from gpuload.formats import *  # noqa: F403
    from gpuload.formats.arrow.datasets import datasets
    from gpuload.formats.images.labels import Labels
    from gpuload.formats.tfrecord.features import Feature, Image, Raw, Sparse, Tensor
    from gpuload.preview import preview
    from gpuload.sources.arrays import arrays
    from gpuload.sources.compose import concat
    from gpuload.sources.compose import zip as zip
    from gpuload.sources.mix import mix
    from gpuload.sources.records import records

__all__ = [
    "Batch",
    "Blocks",
    "Buckets",
    "Feature",
    "Field",
    "GpuloadError",
    "Image",
    "Labels",
    "Loader",
    "PixelError",
    "Ragged",
    "Raw",
    "Remote",
    "Source",
    "Sparse",
    "Spec",
    "Tensor",
    "arrays",
    "check",
    "concat",
    "convert",
    "datasets",
    "draw",
    "mix",
    "open",
    "ops",
    "preview",
    "recipes",
    "records",
    "shard",
    "zip",
]
__all__ += _formats.__all__
_attach(
    __name__,
    {
        "bridges.ranks": ("shard",),
        "check": ("check",),
        "convert": ("convert",),
        "formats.arrow.datasets": ("datasets",),
        "formats.images.labels": ("Labels",),
        "formats.tfrecord.features": ("Feature", "Image", "Raw", "Sparse", "Tensor"),
        "preview": ("preview",),
        "sources.arrays": ("arrays",),
        "sources.compose": ("concat", "zip"),
        "sources.mix": ("mix",),
        "sources.records": ("records",),
        **{
            form.call.__module__.removeprefix(f"{__name__}."): (form.name,)
            for form in _formats.FORMATS
        },
    },
    _FORMS,
)
_publish(
    globals(),
    ("Batch", "Blocks", "Buckets", "Field", "Loader", "Ragged", "Remote", "Source", "Spec", "open"),
)
_publish_methods(
    Loader,
    (
        "batch_at",
        "epoch",
        "load_state_dict",
        "peek",
        "replace",
        "state_dict",
        "__iter__",
        "bad_records",
    ),
)
_publish_methods(
    Source,
    (
        "read",
        "__getitem__",
        "cache",
        "filter",
        "mark",
        "rename",
        "sample",
        "select",
        "split",
        "where",
    ),
)
__version__ = "0.1.0"
