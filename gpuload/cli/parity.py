"""``gpuload parity [FILES]``: what each executor of this machine makes of each op, beside what the op means.

Meaning  the op's array form in NumPy, record by record. Executors run the same draws on the same values.
Images   of bytes: half of them noise, half of them smooth, for rounding shows at exact halves, which noise has few of.
Files    are decoded by each executor that decodes, beside the array executor on the CPU.

Exit status 0 if all differences are within their bounds, 1 if one is not, 2 for an error.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload import device as devices
from gpuload import signalsafe
from gpuload.errors import SpecError
from gpuload.executors import choose
from gpuload.ops.base import Draw, Op
from gpuload.ops.graph import Graph, compile_ops, image_sizes
from gpuload.spec import Field, Spec

NUM_IMAGES, SIDE = 64, 32
SEED, EPOCH = 3, 1


@dataclass(frozen=True)
class Bound:
    """How far an executor may be from the meaning of an op: in levels of 255, and on which share of the values.

    Attributes:
        largest: the largest difference.
        share: the share of values that differ at all.
        reason: the cause of differences.
    """

    largest: float
    share: float
    reason: str


EXACT = Bound(0, 0, "pixels move, are looked up, or come of the same arithmetic")
HALVES = Bound(
    1,
    0.1,
    "sums that lie between two levels: DALI's CPU rounds exact halves away from zero, a GPU fuses products and sums. "
    "Mostly some 0.02 % of the values of smooth images; several % where sides are halved: many sums are halves then",
)
SUMS = Bound(1e-5, 1, "mean and deviation are sums of all values, which are added up in another order")
DECODED_ON_GPU = Bound(255, 1, "nvJPEG has another inverse transform than libjpeg-turbo; the mean is at most 1 level")
MEAN_ON_GPU = 1.0  # levels; DALI's own tests bound no more than this
# Of every executor but the array executor on a CPU, which is what ops mean bit for bit; the other ops are exact there.
BOUNDS = {
    "PerImageStandardization": SUMS,
    "RandomResizedCrop": HALVES,
    "Resize": HALVES,
    "ScaleJitter": HALVES,
}

SMALLER: tuple[Op, ...] = (  # than the examples in the docstrings of ops, which make images larger
    gl.ops.RandomResizedCrop(24, 20),
    gl.ops.Resize(24, 20),
    gl.ops.Resize(SIDE // 2, SIDE // 2),
    gl.ops.ScaleJitter(24, scale=(0.5, 1.5)),
)
ELSEWHERE = {
    "Decode": "of FILES",
    "OneHot": "of labels",
    "PadTo": "of sequences",
    "RandomIoUCrop": "it needs boxes",
    "ScaleJitter": "to smaller sizes, for its example makes images of megapixels",
}


@dataclass(frozen=True)
class Comparison:
    """How far an executor is from the meaning of an op, or why it does not run it.

    Attributes:
        subject: the op, or the file.
        executor: ``"array on cpu"``, say.
        bound: what is allowed.
        largest, mean: of all differences, in units of the values.
        share: of values that differ.
        error: what the executor raised; "" if nothing.
    """

    subject: str
    executor: str
    bound: Bound
    largest: float = 0.0
    mean: float = 0.0
    share: float = 0.0
    error: str = ""

    @property
    def holds(self) -> bool:
        """True if the difference is within its bound."""
        within = self.largest <= self.bound.largest and self.share <= self.bound.share
        return not self.error and within and (self.bound is not DECODED_ON_GPU or self.mean <= MEAN_ON_GPU)

    def __str__(self) -> str:
        word = "ok" if self.holds else "BROKEN"
        numbers = f"largest {self.largest:.4g}, mean {self.mean:.2g}, on {self.share:.4%}"
        return f"{word:7}{self.executor:15}{self.subject}: {self.error or numbers}"


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "parity",
        help="compare each op on each executor of this machine with what it means",
        description="Runs each op on each executor of this machine, beside its array form in NumPy, and decodes FILES "
        "by each. The exit status is 1 if a difference is out of its bound.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="image files, to be decoded by each executor")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="gpu: the executors there, too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each op and executor, and return the exit status."""
    comparisons = list(compare(arguments.files, arguments.device))
    for comparison in comparisons:
        print(comparison, flush=True)
    for bound in dict.fromkeys(comparison.bound for comparison in comparisons):
        print(f"at most {bound.largest:g} on {bound.share:.2%} of the values: {bound.reason}")
    num_broken = sum(not comparison.holds for comparison in comparisons)
    print(f"{len(comparisons)} comparisons, {num_broken or 'none'} broken")
    return 1 if num_broken else 0


def compare(files: Sequence[str] = (), device: str = "cpu") -> Iterator[Comparison]:
    """Give a comparison for each op, and for the files, on each executor of this machine.

    Raises:
        DeviceError: there is no such device.
    """
    executors = [("array", "cpu")]
    if device == "gpu":
        executors.append(("array", devices.choose("gpu")[0]))
    if signalsafe.is_installed("nvidia.dali"):
        executors += [("dali", place) for _, place in executors]
    values = images()
    for op in (*examples(), *SMALLER):
        graph, draws = _draw(op, values)
        expected = array_form(graph, values, draws)
        for name, place in executors:
            if name == "array" or op.has_dali_form:
                yield _compare_op(op, graph, values, draws, expected, name, place)
    if files:
        for name, place in executors:
            if name == "dali":
                yield _compare_files(files, name, place)


def examples() -> Iterator[Op]:
    """Give the example of each op, as its docstring has it, but of those that have no array form for an image alone."""
    for name in gl.ops.__all__:
        match = re.search(r"Example:\n\s+``(.*)``", inspect.getdoc(getattr(gl.ops, name)) or "")
        if match is None or name in ELSEWHERE:
            continue
        op = _value(ast.parse(match[1], mode="eval").body)
        if not (op.joint or op.needs_numpy or op.needs_dali or op.codec):
            yield op


def _value(node: ast.expr) -> Any:
    """Return what the text of an example means: calls of gl.ops, names of NumPy, and what Python writes plainly."""
    if isinstance(node, ast.Call):
        function: Any = _value(node.func)
        words = {str(word.arg): _value(word.value) for word in node.keywords}
        return function(*map(_value, node.args), **words)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value), node.attr)
    if isinstance(node, ast.Name):
        return {"gl": gl, "np": np}[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element) for element in node.elts]
    return ast.literal_eval(node)


def images() -> NDArray[np.uint8]:
    """Return noise and smooth images, uint8 ``[NUM_IMAGES, SIDE, SIDE, 3]``."""
    rng, (y, x) = np.random.default_rng(1), np.mgrid[:SIDE, :SIDE].astype(float)
    noise = rng.integers(0, 256, (NUM_IMAGES // 2, SIDE, SIDE, 3), np.uint8)
    gradient = np.stack([x * 255 / SIDE, y * 255 / SIDE, (x + y) * 255 / (2 * SIDE)], axis=2)
    smooth = gradient * np.linspace(0.4, 1, NUM_IMAGES - len(noise))[:, None, None, None]
    return np.concatenate([noise, smooth.astype(np.uint8)])


def array_form(graph: Graph, values: Any, draws: Sequence[Draw]) -> list[NDArray[Any]]:
    """Return the images behind the array form of the op of a graph, record by record: what the op means."""
    op, draw = graph.op_on(0, "image"), draws[0]
    return [
        np.asarray(op.array(np, image, {name: numbers[row] for name, numbers in draw.items()}))
        for row, image in enumerate(values)
    ]


def _draw(op: Op, values: NDArray[np.uint8]) -> tuple[Graph, list[Draw]]:
    field = Field("image", values.dtype, values.shape[1:], axes="HWC")
    graph, records = compile_ops(Spec((field,)), [op]), np.arange(len(values))
    sizes = {"image": image_sizes(field, values, len(values))}
    return graph, graph.draw(seed=SEED, epoch=EPOCH, records=records, sizes=sizes)


def _compare_op(
    op: Op, graph: Graph, values: NDArray[np.uint8], draws: list[Draw], expected: list[NDArray[Any]], name: str,
    place: str,
) -> Comparison:  # fmt: skip
    title, executor_name = type(op).__name__, f"{name} on {place}"
    bound = EXACT if (name, place) == ("array", "cpu") else BOUNDS.get(title, EXACT)
    try:
        results = _run(graph, values, draws, name, place)
        return _measure(title, executor_name, bound, results, expected)
    except Exception as error:  # the line names it, and the other ops are compared all the same
        return Comparison(
            title, executor_name, bound, error=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        )


def _run(graph: Graph, values: NDArray[np.uint8], draws: list[Draw], name: str, place: str) -> list[NDArray[Any]]:
    executor = choose.make(name, graph, device=place, batch_size=len(values), num_threads=1)
    try:
        fields = {"image": values if place == "cpu" else devices.cupy().asarray(values)}
        if executor.kind == "rows":
            results = executor.run(fields, draws, {})["image"]
        else:
            executor.start(fields, draws)
            results = executor.finish()["image"]
        return [_to_host(result) for result in results]
    finally:
        executor.close()


def _compare_files(files: Sequence[str], name: str, place: str) -> Comparison:
    """Return the comparison of the pixels of image files with those of the array executor on the CPU."""
    subject, bound = f"Decode of {len(files)} files", EXACT if place == "cpu" else DECODED_ON_GPU
    source = gl.images(list(files), labels=None)

    def pixels(executor: str, device: str) -> list[NDArray[Any]]:
        with gl.Loader(source, 1, ops=[gl.ops.Decode()], executor=executor, device=device) as loader:
            return [_to_host(batch["image"][0]) for batch in loader]

    try:
        return _measure(subject, f"{name} on {place}", bound, pixels(name, place), pixels("array", "cpu"))
    except gl.GpuloadError as error:
        return Comparison(subject, f"{name} on {place}", bound, error=" ".join(str(error).split())[:200])


def _measure(
    subject: str, executor_name: str, bound: Bound, results: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]
) -> Comparison:
    """Return how far results are from what is expected; NaN equals NaN."""
    differences = []
    for result, value in zip(results, expected, strict=True):
        if (result.dtype, result.shape) != (value.dtype, value.shape):
            raise SpecError(
                f"{result.dtype} {result.shape}", cause=f"it should be {value.dtype} {value.shape}", remedy="report it"
            )
        is_equal = (result == value) | ((result != result) & (value != value))
        differences.append(np.where(is_equal, 0.0, np.abs(result.astype(np.float64) - value)).ravel())
    total = np.concatenate(differences)
    return Comparison(
        subject, executor_name, bound, float(total.max(initial=0)), float(total.mean()), float((total > 0).mean())
    )


def _to_host(array: Any) -> NDArray[Any]:
    return array if isinstance(array, np.ndarray) else array.get()
