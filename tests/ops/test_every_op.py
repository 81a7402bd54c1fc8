"""Every op on every executor: one loader has all of them, each on a view of its own, and makes the
same on all.

The contract of ops (`gpuload.testing.ops`) holds each to its array form, case by case. This one is
made of `gl.ops.__all__`: no op is left out, and none disturbs another one.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import core
from gpuload.cli.parity_bounds import bound_of_executor
from gpuload.cli.parity_ops import images, to_host
from gpuload.ops.bounds import EXACT, Bound
from tests import simdevice
from tests.opexamples import NAMES, beside_boxes, example

COUNT, SEED = 6, 1
PLACES = {
    "Decode": "file",
    "OneHot": "label",
    "RandomIoUCrop": "image",
    "CleanBoxes": "boxes",
    "PadTo": "boxes",
}
NO_VIEWS = ("Copy", "Dali", *PLACES)  # ops that act on no view of the image; Copy makes the views
VIEWS = tuple(name for name in NAMES if name not in NO_VIEWS)
SMALL = {
    "ScaleJitter": gl.ops.ScaleJitter(24, scale=(0.5, 1.5))
}  # its example makes images of megapixels
PHOTOS = np.concatenate([images()[: COUNT // 2], images()[-COUNT // 2 :]])  # noise and smooth ones


LIBRARIES = ("torchvision", "Keras", "DALI", "Albumentations", "timm")
PLAIN = (
    "Cast",
    "Copy",
    "Dali",
    "Decode",
    "PadTo",
    "PerImageStandardization",
    "Python",
    "Reshape",
    "Transpose",
)


def png(pixels: Any) -> Any:
    """Return the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)


def all_ops(*, decodes: bool = True) -> list[Any]:
    """Return the examples of all ops: Decode, Copy, those on views, and the others."""
    views = [dataclasses.replace(SMALL.get(name, example(name)), on=name) for name in VIEWS]
    decode, *rest = [dataclasses.replace(example(name), on=place) for name, place in PLACES.items()]
    return [*([decode] if decodes else []), gl.ops.Copy("image", to=VIEWS), *views, *rest]


def source() -> gl.Source:
    """Return images, boxes, labels and files."""
    files = [png(photo) for photo in PHOTOS]
    encoded = gl.records(
        COUNT, lambda rows: {"file": [files[n] for n in rows]}, fields={"file": ("u1", (None,))}
    )
    arrays = gl.arrays(image=PHOTOS, label=np.arange(COUNT) % 10)
    return gl.zip(beside_boxes(arrays), encoded.mark(file="encoded"))


def rows(batch_size: int, *, decodes: bool = True, **settings: Any) -> dict[tuple[str, int], Any]:
    """Return each field of each record of an epoch."""
    values = {}
    with gl.Loader(
        source(), batch_size, ops=all_ops(decodes=decodes), seed=SEED, shuffle=True, **settings
    ) as loader:
        for batch in loader.epoch(1):
            for name in loader.port.graph.results:
                column = to_host(batch[name])
                values.update(
                    {
                        (name, record): np.array(column[row])
                        for row, record in enumerate(batch.records)
                    }
                )
    return values


def bound_of_field(name: str, party: str) -> Bound:
    """Return the tolerance of a field that is called as its op; of others there is none."""
    if name not in NAMES:
        return EXACT
    return bound_of_executor(SMALL.get(name, example(name)), party)


def differing(
    values: dict[tuple[str, int], Any], expected: dict[tuple[str, int], Any], party: str
) -> list[str]:
    """Return the fields, each named as its op, that differ from those expected by more than
    `gpuload parity` allows."""
    assert values.keys() == expected.keys()
    names = set()
    for (name, record), value in values.items():
        other = expected[name, record]
        has_form = (value.dtype, value.shape) == (other.dtype, other.shape)
        distance = (
            np.abs(value.astype(np.float64) - other.astype(np.float64)).max(initial=0)
            if has_form
            else np.inf
        )
        if distance > bound_of_field(name, party).largest:
            names.add(name)
    return sorted(names)


@pytest.fixture(scope="module")
def expected():
    return rows(5, device="cpu", num_threads=2)


def test_every_op_is_among_them(expected):
    assert {name for name, _ in expected} == {*VIEWS, "label", "boxes", "image", "file"}
    assert {type(op).__name__ for op in all_ops()} | {"Dali"} == set(NAMES)
    for name in VIEWS:
        pairs = [(expected[name, record], photo) for record, photo in enumerate(PHOTOS)]
        assert any(
            value.dtype != np.uint8 or not np.array_equal(value, photo) for value, photo in pairs
        ), name


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PLAIN])
def test_the_docstring_of_an_augmentation_says_what_other_libraries_have(name):
    docstring = inspect.getdoc(getattr(gl.ops, name)) or ""

    missing = [library for library in LIBRARIES if library not in docstring]
    assert not missing, f"write in the docstring of {name} whether {missing} have such an op"


def test_batches_of_other_sizes_and_threads_have_the_same_rows(expected):
    assert differing(rows(4, device="cpu", num_threads=1), expected, "array on cpu") == []


def test_numpy_makes_what_the_core_makes(expected, monkeypatch):
    monkeypatch.setattr(core, "native", None)

    assert differing(rows(COUNT, device="cpu", num_threads=1), expected, "array on cpu") == []


def test_behind_dali_they_are_the_same(expected):
    pytest.importorskip("nvidia.dali")

    assert differing(rows(COUNT, device="cpu", executor="dali"), expected, "dali on cpu") == []


@pytest.mark.slow  # two seconds of queued work, most of it of AugMix and Elastic
def test_on_a_simulated_gpu_they_are_the_same(expected, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=1)
    on_gpu = rows(COUNT, device="gpu", decodes=False)
    gc.collect()
    sim.finish()

    assert differing(without_files(on_gpu), without_files(expected), "array on cpu") == []


def without_files(values: dict[tuple[str, int], Any]) -> dict[tuple[str, int], Any]:
    """Return the rows of all fields but the one that `Decode` makes, for which the simulated GPU
    has no codec."""
    return {(name, record): value for (name, record), value in values.items() if name != "file"}
