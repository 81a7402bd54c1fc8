"""What an audit sees: planted faults in images behind the examples of all ops, and what sound
executors do.

A sound executor is the array forms with the differences that its kind has: nvJPEG's inverse
transform behind Decode, half of all sums rounded to the other level behind a resize. They go
through the ops behind them, as on a card.
"""

from __future__ import annotations

import functools
import io
import itertools
import sys

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload.executors import differences
from gpuload.executors.differences import Oracle, axes_of, bounds_of, difference
from gpuload.graph.graph import compile_ops
from gpuload.ops.bounds import HALVES, STRETCHING
from gpuload.spec import Field, Spec
from tests import gallery

FILES = Field("image", np.dtype(np.uint8), (None,), encoded=True)
HEAD = (gl.ops.Decode(), gl.ops.RandomResizedCrop(96, 128, scale=(0.3, 1)))
END = (gl.ops.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 157.4)), gl.ops.Transpose("CHW"))
LEFT_OUT = ("Copy", "CleanBoxes", "RandomIoUCrop")  # have other fields
STRETCHING_CHAINS = STRETCHING | {"Python", "OneOf", "Sometimes", "Shuffle"}
RESIZES = (
    "RandomResize",
    "RandomResizedCrop",
    "Resize",
    "ScaleJitter",
)  # behind that of all chains
CLIPPING = (
    "Brightness",
    "Contrast",
    "Shuffle",
)  # many values are white, and are shifted by nothing
NUM_EPOCHS = 3
WAYS = {
    "nvJPEG": "dali on gpu",
    "DALI, decode host": "dali on gpu",
    "array": "array on gpu",
    "core": "array on gpu",
}


@functools.cache
def files():
    encoded = []
    for photo in gallery.PHOTOS:
        stream = io.BytesIO()
        Image.open(gallery.GOLDEN / photo).convert("RGB").resize((200, 150)).save(stream, "png")
        encoded.append(np.frombuffer(stream.getvalue(), np.uint8))
    return encoded


def party(way, place):
    """Return the executor and device of an op: the core on the host is the meaning of ops."""
    on_host = {"nvJPEG": 0, "DALI, decode host": 1, "array": 1, "core": 2}[way]
    return "array on cpu" if place < on_host else WAYS[way]


def sound(way, op, image, rng):
    """Return an image behind an op as a sound executor has it."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
        return image
    numbers = image.astype(np.int16)
    if isinstance(op, gl.ops.Decode) and way == "nvJPEG":
        noise = np.rint(rng.laplace(0, 1.5, image.shape))
        few = rng.random(image.shape) < 0.0005
        numbers = numbers + np.where(few, rng.integers(-50, 50, image.shape), noise).astype(
            np.int16
        )
    elif HALVES in op.traits.bounds.values() and way != "core":
        numbers = numbers + (rng.random(image.shape) < 0.5)
    return numbers.clip(0, 255).astype(np.uint8)


def images_behind(graph, epoch, way=None):
    """Return the images of all records behind the ops: as they should be, or as a sound way has
    them."""
    oracle, records = Oracle(graph, ["image"]), np.arange(len(files()))
    partners = [(records ^ number) - records for number in range(1, max(graph.group, 2))]
    draws = oracle.graph.draw(
        seed=1, epoch=epoch, records=records, sizes={"image": images_sizes(len(records))},
        partners=np.stack(partners, axis=1).astype(np.int32), values={"image": files()},
    )  # fmt: skip
    rng, make = np.random.default_rng(epoch), differences._make
    with pytest.MonkeyPatch.context() as patch:
        if way is not None:
            patch.setattr(
                differences, "_make", lambda op, *words: sound(way, op, make(op, *words), rng)
            )
        return oracle.run({"image": files()}, draws)["image"]


def images_sizes(count):
    return np.full((count, 2), (150, 200), np.int32)


def chains():
    """Return lists of ops by name: the examples of the gallery of ops, which take images of any
    size."""
    lists = {"nothing": (), "ColorJitter 0.4": (gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1),)}
    return lists | {
        name: gallery.program(name)[1] for name in gallery.names() if name not in LEFT_OUT
    }


def with_fault(fault, images, row, axes, levels, unit):
    """Return an image as it is behind a fault; None where the fault changes nothing."""
    image, place = images[row], axes.index("C")
    if fault == "another record":
        return images[row ^ 1] if images[row ^ 1].shape == image.shape else None
    if fault == "zeros":
        return np.zeros_like(image)
    if fault == "pattern":
        return np.full(image.nbytes, 0xA5, np.uint8).view(image.dtype).reshape(image.shape)
    if image.shape[place] == 1:
        return None
    channels = np.moveaxis(image, place, 0)
    if fault == "channels swapped":
        is_gray = (
            min(np.abs(channels[0] - channels[2].astype(float)).mean() for image in images)
            < 16 * unit
        )
        return None if is_gray else np.flip(image, axis=place)
    result = channels.astype(np.float64)
    result[1] += levels * unit
    limit = 255 if image.dtype == np.uint8 else np.inf
    return np.moveaxis(result.clip(-limit, limit).astype(image.dtype), 0, place)


FAULTS = ("another record", "zeros", "pattern", "channels swapped", "channel shifted")


def least_shift(way, name):
    """Return by how many levels a channel must be shifted to be seen; see docs/audit.md."""
    if way == "core":
        return 1
    if name in STRETCHING_CHAINS:
        return 16 if way == "nvJPEG" else 8
    if name in RESIZES:
        return 5 if way == "nvJPEG" else 3
    if name in CLIPPING:
        return 8 if way == "nvJPEG" else 3
    if way == "nvJPEG":
        return 5
    return 1 if name == "nothing" else 2


def audit(way, name, end):
    """Return the false alarms and the faults that were missed of a chain in a way of a GPU."""
    wrong, ops = [], [*HEAD, *chains()[name], *end]
    unit = 1 / 57.1 if end else 1
    graph = compile_ops(Spec((FILES,)), ops)
    bound = bounds_of(graph, ["image"], lambda place: party(way, place))["image"]
    axes = axes_of(graph.spec_out["image"])
    for epoch in range(NUM_EPOCHS):
        expected, actual = images_behind(graph, epoch), images_behind(graph, epoch, way)
        wrong += [
            f"{name} in {way}, sound: {text}"
            for x, y in zip(actual, expected, strict=True)
            if (text := difference(x, y, bound, axes))
        ]
        for row, fault in itertools.product(range(len(expected)), FAULTS):
            planted = with_fault(fault, expected, row, axes, least_shift(way, name), unit)
            with np.errstate(all="ignore"):
                if planted is not None and not difference(planted, expected[row], bound, axes):
                    wrong.append(
                        f"{name} in {way}: {fault} of image {row}, epoch {epoch}, is not seen"
                    )
    return wrong


@pytest.mark.parametrize("end", [(), END], ids=["bytes", "normalised"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["nothing", "ColorJitter 0.4"])
def test_faults_are_seen_and_sound_batches_are_not(name, way, end, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "NUM_EPOCHS", 1)
    assert audit(way, name, end) == []


@pytest.mark.slow  # four ways of some 50 chains
@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", [(), END], ids=["bytes", "normalised"])
@pytest.mark.every_case
@pytest.mark.parametrize("way", WAYS)
def test_faults_behind_all_ops_are_seen_and_sound_batches_are_not(way, end):
    assert [text for name in chains() for text in audit(way, name, end)] == []


if __name__ == "__main__":
    for way in WAYS:
        for end in ((), END):
            for name in chains():
                print(*audit(way, name, end), sep="\n", end="", flush=True)
