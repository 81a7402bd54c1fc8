"""What each op costs on a GPU: kernels and uploads of a batch of 64 images, by the op's array form
for a batch.

Each op is that of its docstring's example. Crops, flips and normalisations that follow one another
are one kernel in an executor; here each is by itself. Ops that run on the host, or in DALI alone,
and the user's own are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gpuload as gl
from gpuload import device as devices
from gpuload.executors.checks import Checks
from gpuload.ops.base import PARTNER, Op
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from tests import emulated_gpu, opexamples

BATCH_SIZE, SIDE = 64, 32
ROOM_BYTES = 1 << 20  # for what kernels read beside the images
LEFT_OUT = ("Dali", "Python", "Copy")  # what the user gives; Copy copies nothing
MOST_LAUNCHES, MOST_UPLOADS = 3, 1  # of an op and batch
# These draw ops for each record. All records go through their first op together, then through their
# second: each time there are 3 launches at most, whatever was drawn. Ops that `kernels.edits` does
# not know are launched one by one.
DRAW_OPS = (
    "OneOf", "Sometimes", "Shuffle", "AugMix", "AutoAugment", "RandAugment", "TimmAugment", "TrivialAugmentWide",
)  # fmt: skip
ABOUT = f"""\
One batch of {BATCH_SIZE} images of {SIDE} x {SIDE} pixels, or a little smaller, by each op of `gl.ops` in its form
for a batch: the op of its docstring's example. Crops, flips and normalisations that follow one another are one kernel
in a loader. An op may have {MOST_LAUNCHES} launches, and what they read is one upload. Those that draw ops for
each record ({", ".join(DRAW_OPS)})
may have as many for the first ops of all records together, for the second ones, and so on."""

# CuPy makes these of CUB on a card, which takes NVRTC 1.3 s to compile, at the first batch.
REDUCTIONS = tuple(
    f"cupy_{name}"
    for name in (
        "all", "any", "argmax", "argmin", "count_non_nan", "max", "mean", "min", "nanmax", "nanmin", "nanprod",
        "nansum", "prod", "prod_with_dtype", "sum", "sum_with_dtype", "var_core", "var_core_out",
    )
)  # fmt: skip

FORMS = ("images of one size", "images of different sizes")
COUNTS = {"launches": "cuLaunchKernel", "uploads": "uploads"}


def count(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the counts of ops by their names: ``{"launches, images of one size": 1, ...}``."""
    return {name: row for name in names if (row := count_op(opexamples.example(name)))}


def runs_on_a_gpu(op: Op) -> bool:
    """Return True if an op has an array form that a GPU runs, of which something is to be
    counted."""
    return (
        not (op.traits.codec or op.traits.execution.needs_numpy or op.traits.execution.needs_dali)
        and type(op).__name__ not in LEFT_OUT
    )


def count_op(op: Op) -> dict[str, float]:
    """Return the counts of an op; empty if it runs elsewhere."""
    if not runs_on_a_gpu(op):
        return {}
    row: dict[str, float] = {}
    for form, values in zip(FORMS, _values(op), strict=False):
        run = _prepare(op, values)
        run()  # kernels are compiled, tables uploaded
        before = emulated_gpu.calls()
        run()
        since = emulated_gpu.since(before)
        row |= {f"{column}, {form}": since.get(name, 0) for column, name in COUNTS.items()}
    return row


def _values(op: Op) -> list[Any]:
    """Return batches that an op acts on, on the host: of one size, and of different sizes if it
    takes such."""
    random = np.random.default_rng(0)
    if isinstance(op, gl.ops.OneHot):
        return [np.arange(BATCH_SIZE) % op.num_classes]
    if isinstance(op, gl.ops.PadTo):
        return [
            Ragged.of(
                [np.arange(1 + row % op.length) for row in range(BATCH_SIZE)], np.dtype(np.int64)
            )
        ]
    images = random.integers(0, 256, (BATCH_SIZE, SIDE, SIDE, 3), np.uint8)
    if isinstance(op, (gl.ops.Reshape, gl.ops.MixUp, gl.ops.CutMix)):
        return [images]
    return [images, [image[: SIDE - row % 4, : SIDE - row % 3] for row, image in enumerate(images)]]


def _prepare(op: Op, values: Any) -> Callable[[], Any]:
    """Return a call that runs an op on a batch on the GPU."""
    xp = devices.cupy()
    if isinstance(values, Ragged):
        on_device: Any = values.with_payload(xp.asarray(values.flat))
    else:
        on_device = (
            [xp.asarray(value) for value in values]
            if isinstance(values, list)
            else xp.asarray(values)
        )
    sizes = np.array([value.shape[:2] if value.ndim > 1 else (0, 0) for value in values], np.int32)
    u = np.random.default_rng(1).random((BATCH_SIZE, op.num_uniforms))
    if isinstance(op, gl.ops.RandomIoUCrop):
        draw = op.draw_by_boxes(u, sizes, [np.array([[4.0, 6.0, 20.0, 24.0]])] * BATCH_SIZE)
    else:
        draw = op.draw(u, sizes)
    if not op.traits.joint:
        of_image = op.of("image")
        return lambda: _bundled(of_image.array_batch, lambda: _run(of_image, xp, on_device, draw))
    places = np.arange(BATCH_SIZE, dtype=np.int32)[:, None]
    partners = (places ^ np.arange(1, op.traits.mixes.group, dtype=np.int32)) - places
    draw[PARTNER] = partners[:, 0] if op.traits.mixes.group == 2 else partners
    shape = (None, None, 3) if isinstance(values, list) else values.shape[1:]
    after = op.spec_after(Spec((Field("image", np.dtype(np.uint8), shape, axes="HWC"),)))
    return lambda: _bundled(
        op.traits.joint.array_fields,
        lambda: op.traits.joint.array_fields(xp, {"image": on_device}, draw, after),
    )


def _bundled(form: Callable[..., Any], run: Callable[[], Any]) -> None:
    """Run the form of an op as an executor does: what its kernels read beside the images is one
    upload, if it waits."""
    lane = devices.Lane("gpu:0")
    with lane, devices.Bundle(lane) as bundle:
        bundle.hold(devices.pinned(ROOM_BYTES), 0)
        devices.begin(form)
        run()
        devices.settle()
    lane.close()


def _run(op: Op, xp: Any, values: Any, draw: Any) -> Any:
    checks = Checks(xp)
    if op.traits.check:
        checks.ask(op, values)
    result = op.array_batch(xp, values, draw)
    checks.send()
    return result


def above(counts: dict[str, dict[str, float]]) -> list[str]:
    """Return a line for each op that needs more launches or uploads than it may."""
    most = {"launches": MOST_LAUNCHES, "uploads": MOST_UPLOADS}
    return [
        f"{name}: {row[column]:g} {column}, at most {most[kind]}"
        for name, row in counts.items()
        for column in row
        if row[column] > most[kind := column.partition(",")[0]]
        and (kind, name in DRAW_OPS) != ("launches", True)
    ]


def reductions() -> list[str]:
    """Return a line for each reduction of CuPy that this process has launched."""
    names = sorted(set(REDUCTIONS).intersection(emulated_gpu.launches()))
    return [
        f"{name}: CuPy makes it of CUB, which is compiled for 1.3 s at the first batch"
        for name in names
    ]
