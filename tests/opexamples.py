"""The examples of ops, which stand in their docstrings: an op is tested and listed by its example.

``python -m tests.opexamples`` writes the table of `docs/ops.md`.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from inspect import Parameter
from types import SimpleNamespace
from typing import Any

import numpy as np

import gpuload as gl
from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops.base import Op
from gpuload.spec import Field, Spec
from tests.codeblocks import ROOT

PAGE = ROOT / "docs" / "ops.md"
TABLE = re.compile(r"\| op \| does \|.*\n(?:\|.*\|\n)+")
NAMES = [
    name for name in gl.ops.__all__ if name != "Op" and isinstance(getattr(gl.ops, name), type)
]

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
)
ELSE = {  # ops that take no images of pixels
    "CleanBoxes": "marked boxes, and what goes with them",
    "Copy": "any field",
    "Dali": "those of the operator",
    "Decode": "encoded images",
    "OneHot": "whole numbers",
    "PadTo": "numbers or text",
    "Python": "any field",
    "RandomIoUCrop": "all",  # beside marked boxes
}


@cache
def example_text(name: str) -> str:
    """Return the example of an op as it stands in its docstring, ``gl.ops.RandomFlip(p=0.5)``."""
    match = re.search(r"Example:\n\s+``(.*)``", inspect.getdoc(getattr(gl.ops, name)) or "")
    assert match, f'the docstring of gl.ops.{name} has no "Example:" with a call of it'
    return match[1]


def example(name: str) -> Op:
    """Return the op that its example makes."""
    op = eval(example_text(name), {"gl": gl, "np": np})
    assert type(op) is getattr(gl.ops, name)
    return op


@cache
def example_arguments(name: str) -> dict[str, Any]:
    """Return the arguments of the example of an op by name, without those for ``**settings``."""
    signature = inspect.signature(getattr(gl.ops, name))
    calls = SimpleNamespace(ops=SimpleNamespace(**{**vars(gl.ops), name: signature.bind}))
    arguments = eval(example_text(name), {"gl": calls, "np": np}).arguments
    return {
        key: arguments[key]
        for key in arguments
        if signature.parameters[key].kind is not Parameter.VAR_KEYWORD
    }


def beside_boxes(images: gl.Source) -> gl.Source:
    """Return a source of images of 32 x 32 pixels with boxes beside them, 0 to 3 each."""
    source = gl.records(len(images), read_boxes, fields={"boxes": ("float32", (None, 4))})
    return gl.zip(images, source).mark(boxes="xyxy")


def read_boxes(numbers: Any) -> dict[str, Any]:
    """Return the boxes of some records."""
    boxes = [[[4, 6, 20 + i, 24] for i in range(number % 4)] for number in numbers]
    return {"boxes": [np.array(rows, np.float32).reshape(-1, 4) for rows in boxes]}


def dtypes_taken(name: str) -> str:
    """Return which of `DTYPES` an op takes as images of three channels, as text; of others what
    they take."""
    if name in ELSE:
        return ELSE[name]
    dtypes = []
    for dtype in DTYPES:
        field = Field("image", np.dtype(dtype), (32, 32, 3))
        try:
            compile_ops(Spec((field,)), [example(name)])
            dtypes.append(dtype)
        except SpecError:
            continue
    if len(DTYPES) - len(dtypes) <= 1:
        return " but ".join(["all", *(dtype for dtype in DTYPES if dtype not in dtypes)])
    return ", ".join(dtypes)


def table() -> str:
    """Return the table of all ops in Markdown: the example, the first sentence of each docstring,
    and dtypes."""
    lines = ["| op | does | dtypes |", "|---|---|---|"]
    for name in NAMES:
        text = (
            (inspect.getdoc(getattr(gl.ops, name)) or "")
            .split("\n\n")[0]
            .replace("\n", " ")
            .replace("``", "`")
        )
        lines.append(
            f"| `{example_text(name).removeprefix('gl.ops.')}` | {text} | {dtypes_taken(name)} |"
        )
    return "\n".join(lines) + "\n"


def images_of(dtype: str, count: int, channels: int = 3, *, are_alike: bool) -> list[Any]:
    """Return noise of about 40 x 36 pixels, of one size or of many."""
    random, sides = np.random.default_rng(3), [(40, 36)] * count
    if not are_alike:
        sides = [(40 + row % 3, 36 - row) for row in range(count)]
    return [as_dtype(random.integers(0, 256, (*side, channels)), dtype) for side in sides]


def as_dtype(levels: Any, dtype: str) -> Any:
    """Return levels of 0 to 255 in a dtype; those of floating-point numbers are 0 to 1."""
    if dtype.startswith("f"):
        levels = levels / 255
    return levels.astype(dtype)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    assert TABLE.search(page), f"{PAGE} has no table of ops"
    PAGE.write_text(TABLE.sub(lambda _: table(), page), encoding="utf-8")
