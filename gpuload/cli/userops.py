"""The option --ops of verbs: a list of ops in the user's own Python, which is imported; no text is
evaluated."""

from __future__ import annotations

import os
import pkgutil
import sys

import gpuload as gl
from gpuload.errors import SpecError
from gpuload.storage.fileerrors import open_error


def words_of(text: str) -> tuple[str, str]:
    """Return the line of Python that imports what a text names, and the list of ops in Python.

    augment:train_ops         from augment import train_ops    train_ops
    lib/augment.py:make_ops   from augment import make_ops     make_ops(), as it is a function
    """
    module_name, _, name = text.partition(":")
    if module_name.endswith(".py"):
        module_name = os.path.splitext(os.path.basename(module_name))[0]
    first, *rest = name.split(".")
    value = pkgutil.resolve_name(f"{module_name}:{name}")
    if callable(value) and not isinstance(value, gl.ops.Op):
        call = "()"
    else:
        call = ""
    ops = ".".join([first, *rest]) + call
    if isinstance(value, gl.ops.Op):
        ops = f"[{ops}]"
    return f"from {module_name} import {first}\n", ops


def find_ops(text: str) -> list[gl.ops.Op]:
    """Return the list of ops that a text names, or that the function that it names returns.

    Raises:
        SpecError: there is no such module or name, or it is something else.
    """
    module_name, is_split, name = text.partition(":")
    remedy = "write --ops augment:train_ops for the list train_ops in augment.py of this folder"
    if not is_split or not module_name or not name:
        raise SpecError(
            f"--ops {text}",
            cause="it is a module and a name in it, with a colon between",
            remedy=remedy,
        )
    folder = ""  # the working folder, as `python -m` has it
    if module_name.endswith(".py"):
        try:
            # `import` would only say that there is no such module; this says whether the file is
            # missing or may not be read.
            open(module_name, "rb").close()
        except OSError as error:
            raise open_error(os.path.abspath(module_name), error) from None
        folder, module_name = os.path.split(os.path.abspath(module_name[: -len(".py")]))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        # This runs the module, as `python augment.py` would: --ops is meant to do that.
        value = pkgutil.resolve_name(f"{module_name}:{name}")
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"--ops {text}", cause=str(error), remedy=remedy) from None
    if callable(value) and not isinstance(value, gl.ops.Op):
        ops = value()
    else:
        ops = value
    ops = [ops] if isinstance(ops, gl.ops.Op) else ops
    if not isinstance(ops, (list, tuple)):
        raise SpecError(
            f"--ops {text}", cause=f"it is {type(ops).__name__}, and no list of ops", remedy=remedy
        )
    return list(ops)
