"""Results of each op on each executor of this machine, beside the op's meaning: its array form,
record by record.

Meaning  the op's array form in NumPy. Executors run the same draws on the same values, by a loader.
Images   are of bytes, half of them noise and half smooth: rounding differs at exact halves, of
         which noise has few.
Others   are boxes, labels and rows of varying number, for the ops that act on these.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload.cli.parity_bounds import bound_of_executor
from gpuload.cli.parity_rows import Comparison, failure, measure
from gpuload.graph.graph import Graph, compile_ops, image_sizes
from gpuload.ops.base import Draw, Op, has_dali_form
from gpuload.ragged import Ragged
from gpuload.sources.base import Source

NUM_IMAGES, SIDE = 64, 32
SEED, EPOCH = 3, 1
Fields = dict[str, Any]

# More calls than the examples of docstrings: images become larger, or pixels are taken by nearest.
EXTRA_CALLS = (
    "gl.ops.Resize(24, 20)",
    "gl.ops.Resize(16, 16)",
    'gl.ops.Resize(24, 20, antialias="pil")',
    'gl.ops.Resize(24, 20, interpolation="cubic")',
    'gl.ops.Resize(24, 20, interpolation="nearest")',
    "gl.ops.RandomResizedCrop(24, 20)",
    "gl.ops.ScaleJitter(24, scale=(0.5, 1.5))",
    'gl.ops.Rotate(15, interpolation="linear")',
    'gl.ops.Affine(degrees=10, shear=5, interpolation="linear")',
)
ELSEWHERE = {  # the examples of these ops are not compared here
    "Dali": "it has no array form",
    "Decode": "it is compared with files",
    "Python": "it calls a function of the user's",
    "ScaleJitter": "its example makes images of megapixels; a smaller one is compared",
}


def calls() -> Iterator[str]:
    """Give the calls that are compared, as text: the example in each op's docstring, and some
    more."""
    for name in gl.ops.__all__:
        match = re.search(r"Example:\n\s+``(.*)``", inspect.getdoc(getattr(gl.ops, name)) or "")
        if match is not None and name not in ELSEWHERE:
            yield match[1]
    yield from EXTRA_CALLS


def op_of(call: str) -> Op:
    """Return the op of a text, which may have calls of gl.ops, names of NumPy, and Python's plain
    values."""
    value = _value(ast.parse(call, mode="eval").body)
    if not isinstance(value, Op):
        raise TypeError(f"{call} is no op")
    return value


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        function: Any = _value(node.func)
        words = {str(word.arg): _value(word.value) for word in node.keywords}
        return function(*map(_value, node.args), **words)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value), node.attr)
    if isinstance(node, ast.Name):
        # Nothing else can be named: the text of a docstring is data here, and `eval` would run any
        # of it.
        return {"gl": gl, "np": np}[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_value(element) for element in node.elts]
        if isinstance(node, ast.List):
            return values
        return tuple(values)
    return ast.literal_eval(node)


def images() -> NDArray[np.uint8]:
    """Return noise and smooth images, uint8 ``[NUM_IMAGES, SIDE, SIDE, 3]``."""
    rng, (y, x) = np.random.default_rng(1), np.mgrid[:SIDE, :SIDE].astype(float)
    noise = rng.integers(0, 256, (NUM_IMAGES // 2, SIDE, SIDE, 3), np.uint8)
    gradient = np.stack([x * 255 / SIDE, y * 255 / SIDE, (x + y) * 255 / (2 * SIDE)], axis=2)
    smooth = gradient * np.linspace(0.4, 1, NUM_IMAGES - len(noise))[:, None, None, None]
    return np.concatenate([noise, smooth.astype(np.uint8)])


def source_for(op: Op) -> Source:
    """Return records that an op acts on."""
    name = type(op).__name__
    if name == "OneHot":
        return gl.arrays(label=np.arange(NUM_IMAGES) % 10)
    if name == "PadTo":
        return gl.records(NUM_IMAGES, _read_rows, fields={"rows": ("float32", (None, 3))})
    photos = gl.arrays(image=images())
    if name in ("CleanBoxes", "RandomIoUCrop"):
        boxes = gl.records(NUM_IMAGES, _read_boxes, fields={"boxes": ("float32", (None, 4))})
        return gl.zip(photos, boxes).mark(boxes="xyxy")
    return photos


def _read_rows(numbers: Any) -> Fields:
    return {"rows": [np.full((number % 50, 3), number, np.float32) for number in numbers]}


def _read_boxes(numbers: Any) -> Fields:
    boxes = [[[4, 6, 20 + i, 24 - 8 * i] for i in range(number % 3)] for number in numbers]
    return {"boxes": [np.array(rows, np.float32).reshape(-1, 4) for rows in boxes]}


def draw_for(op: Op, source: Source) -> tuple[Graph, list[Draw], Fields]:
    """Return an op on a source as a graph, its draws for all records, and the values of the
    records."""
    graph, records = compile_ops(source.spec, [op]), np.arange(len(source))
    partners = [
        (records ^ number) - records for number in range(1, max(graph.group, 2))
    ]  # of p: p xor 1, 2, 3
    values = source.read(records)
    sizes = {
        name: image_sizes(source.spec[name], values[name], len(source)) for name in graph.touched
    }
    draws = graph.draw(
        seed=SEED, epoch=EPOCH, records=records, sizes=sizes,
        partners=np.stack(partners, axis=1).astype(np.int32),
        values={name: values[name] for name in graph.fields_to_draw},
    )  # fmt: skip
    return graph, draws, values


def array_form(graph: Graph, draws: Sequence[Draw], values: Fields) -> Fields:
    """Return the fields behind the array forms of the ops of a graph, record by record: the meaning
    of the ops."""
    fields = dict(values)
    for place, (op, on, draw) in enumerate(zip(graph.ops, graph.targets, draws, strict=True)):
        if op.traits.joint:
            fields |= op.traits.joint.array_fields(
                np, {name: fields[name] for name in on}, draw, graph.specs[place]
            )
            continue
        for name in on:
            fields[name] = [
                np.asarray(
                    graph.op_on(place, name).array(
                        np, value, {key: rows[row] for key, rows in draw.items()}
                    )
                )
                for row, value in enumerate(fields[name])
            ]
    return {name: fields[name] for name in sorted(graph.results)}


def compare_executors(call: str, executors: Sequence[tuple[str, str]]) -> Iterator[Comparison]:
    """Give the comparisons of each executor's results with an op's array form.

    Args:
        call: the op as text.
        executors: names and devices.
    """
    op, subject = op_of(call), call.removeprefix("gl.ops.")
    source = source_for(op)
    expected = _flat(array_form(*draw_for(op, source)))
    for name, place in executors:
        if name == "dali" and not has_dali_form(op):
            continue
        party = f"{name} on {place.partition(':')[0]}"
        bound = bound_of_executor(op, party)
        try:
            with gl.Loader(
                source, len(source), ops=[op], seed=SEED, executor=name, device=place
            ) as loader:
                batch = loader.batch_at(0, EPOCH)
                results = {
                    field: to_host(batch[field]) for field in sorted(loader.port.graph.results)
                }
            yield measure(subject, party, "array form", bound, _flat(results), expected)
        except Exception as error:  # the line names it, and the other ops are compared all the same
            yield failure(subject, party, "array form", bound, error)


def _flat(fields: Fields) -> list[NDArray[Any]]:
    """Return the values of all records of some fields, one after the other."""
    return [np.asarray(value) for values in fields.values() for value in values]


def to_host(values: Any) -> Any:
    """Return the values of a field in NumPy."""
    if isinstance(values, Ragged):
        return values.with_payload(to_host(values.payload))
    if isinstance(values, list):
        return [to_host(value) for value in values]
    if isinstance(values, np.ndarray):
        return values
    return values.get()
