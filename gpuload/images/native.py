"""The image codec as the core calls it, many files in one call without the interpreter's lock.

It is nvImageCodec's C interface, in the library of the installed package. Pixels and errors are of
`decode`, which decodes every file that the core declines.
Process   Each has a codec of its own: a child of fork opens it again, for a thread of the parent
          may be in the old one.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path

from gpuload import core
from gpuload.core.face import Codec
from gpuload.images import decode

LIBRARY, EXTENSIONS = "libnvimgcodec.so.0", "extensions"

log = logging.getLogger("gpuload")


def codec() -> Codec | None:
    """Return the codec of this process; None where images are decoded through Python, and ``how``
    says why."""
    return _open(os.getpid(), decode.library_folder())[0]


def how(*, takes_files: bool = True) -> str:
    """Return which codec decodes images, and why through Python where the core does not call it.

    Args:
        takes_files: False if the ops are such that the core does not decode for them.
    """
    native, problem = _open(os.getpid(), decode.library_folder())
    if native is not None and not takes_files:
        native, problem = (
            None,
            "the core decodes to 8 bits, RGB, GRAY or RGBA, and does all ops up to one size",
        )
    name = decode.codec() or "none"
    if native is not None:
        return f"{name}, called by the core"
    return f"{name}, called by Python: {problem}"


@cache
def _open(process: int, folder: str | None) -> tuple[Codec | None, str]:
    """Return the codec of a process, from the folder of the package; or None and the reason.

    ``process`` is the number of this process, and part of the cache's key: so a child of fork opens
    a codec of its own.
    """
    if core.native is None:
        return None, core.problem
    if folder is None:
        return None, "nvImageCodec is not installed (it comes with DALI), or does not work"
    try:
        return core.native.Codec(str(Path(folder, LIBRARY)), str(Path(folder, EXTENSIONS))), ""
    except RuntimeError as error:
        log.warning(
            "images are decoded through Python, more slowly; cause: the core cannot use "
            "nvImageCodec: %s; remedy: "
            "install the DALI that gpuload asks for, by its extra cpu or cuda12",
            error,
        )
        return None, f"the core cannot use nvImageCodec: {error}"
