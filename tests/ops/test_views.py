"""Several views of one image: one read, one decode, ops and draws of each view its own."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError
from gpuload.executors.array import imagestage
from gpuload.graph.graph import compile_ops
from gpuload.images import decode as image_decode
from gpuload.images import native
from gpuload.spec import Field, Spec
from tests import simdevice

PHOTOS = sorted((Path(__file__).parents[1] / "golden" / "images" / "Pillow").glob("hopper*.jpg"))
VIEWS = ("view_0", "view_1")
AUGMENT = [gl.ops.RandomResizedCrop(24, 20), gl.ops.RandomFlip(), gl.ops.Brightness(0.5, 1.5)]
PIXELS = np.random.default_rng(2).integers(0, 256, (8, 12, 10, 3), np.uint8)


def batches(source, ops, output, **arguments):
    with gl.Loader(source, 3, ops=ops, output=output, seed=4, device="cpu", **arguments) as loader:
        return [dict(batch.items()) for batch in loader.epoch(1)]


def photos():
    return gl.images(PHOTOS, labels=None)


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for fields, others in zip(actual, expected, strict=True):
        assert fields.keys() == others.keys()
        for name, values in fields.items():
            assert len(values) == len(others[name])
            for value, other in zip(values, others[name], strict=True):
                np.testing.assert_array_equal(value, other)


def two_reads():
    """Return what the views are by definition: each file is read and decoded twice, with the same
    two lists of ops."""
    both = gl.zip(photos().rename(image="view_0"), photos().rename(image="view_1"))
    return batches(both, [gl.ops.Decode(on=VIEWS), *gl.ops.repeat(AUGMENT, on=VIEWS)], VIEWS)


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_views_are_what_two_reads_of_the_file_are(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    ops = [gl.ops.Decode(), gl.ops.Copy("image", to=VIEWS), *gl.ops.repeat(AUGMENT, on=VIEWS)]

    result = batches(photos(), ops, VIEWS, executor=executor)

    if executor == "array":
        assert_same(result, two_reads())
        assert any((batch["view_0"] != batch["view_1"]).any() for batch in result)
    else:  # resizing: see `tests/ops/test_resize.py`
        for batch, expected in zip(result, two_reads(), strict=True):
            for name in VIEWS:
                assert np.abs(batch[name].astype(int) - expected[name]).max() <= 2


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_encoded_files_are_copied_too(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    augment = [gl.ops.Decode(), gl.ops.RandomCrop(16, 16), gl.ops.RandomFlip()]
    both = gl.zip(photos().rename(image="view_0"), photos().rename(image="view_1"))

    result = batches(
        photos(),
        [gl.ops.Copy(to=VIEWS), *gl.ops.repeat(augment, on=VIEWS)],
        VIEWS,
        executor=executor,
    )

    assert_same(result, batches(both, gl.ops.repeat(augment, on=VIEWS), VIEWS))


def test_a_file_is_decoded_once_whatever_the_number_of_views(monkeypatch):
    calls, real, run = (
        [],
        image_decode.decode,
        imagestage.ImageStage.run,
    )  # by Python or by the core
    monkeypatch.setattr(
        image_decode, "decode", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs)
    )
    if native.codec() is not None:

        def note(stage, x, *arguments):
            calls.extend([len(x)] * stage.calls_codec)
            return run(stage, x, *arguments)

        monkeypatch.setattr(imagestage.ImageStage, "run", note)
    crops = tuple(f"crop_{number}" for number in range(10))
    ops = [gl.ops.Decode(), gl.ops.Copy("image", to=crops),
           *gl.ops.repeat([gl.ops.RandomResizedCrop(24, 24)], on=crops[:2]),
           *gl.ops.repeat([gl.ops.RandomResizedCrop(12, 12, scale=(0.05, 0.4))], on=crops[2:])]  # fmt: skip

    with gl.Loader(photos(), len(PHOTOS), ops=ops, output=crops, device="cpu") as loader:
        batch = loader.batch_at(0)

    assert sum(calls) == len(PHOTOS)
    assert [batch[name].shape[1:] for name in crops] == [(24, 24, 3)] * 2 + [(12, 12, 3)] * 8


@pytest.mark.parametrize("decode", [[], [gl.ops.Decode()]])
def test_the_image_itself_stays_and_shares_no_memory_with_its_copies(decode):
    source = photos() if decode else gl.arrays(image=PIXELS)
    (before, *_) = batches(source, decode, None)

    (batch, *_) = batches(
        source, [*decode, gl.ops.Copy("image", to=("a", "b")), gl.ops.RandomFlip(1.0, on="b")], None
    )

    assert set(batch) == {"image", "a", "b"}
    for row in range(3):
        np.testing.assert_array_equal(batch["image"][row], before["image"][row])
        np.testing.assert_array_equal(batch["a"][row], before["image"][row])
        np.testing.assert_array_equal(batch["b"][row], before["image"][row][:, ::-1])
        assert not np.shares_memory(batch["image"][row], batch["a"][row])
        assert not np.shares_memory(batch["image"][row], source[row]["image"])
        assert not np.shares_memory(batch["b"][row], batch["a"][row])


def test_copies_of_copies_and_of_text():
    texts = gl.arrays(text=np.array(["a", "bcd", "ef", "g"]))
    (batch, _) = batches(
        texts, [gl.ops.Copy("text", to="again"), gl.ops.Copy("again", to="more")], None
    )
    assert list(batch["more"]) == list(batch["again"]) == list(batch["text"]) == ["a", "bcd", "ef"]


def test_views_on_a_gpu_equal_those_on_the_cpu(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    ops = [
        gl.ops.Copy("image", to=VIEWS),
        *gl.ops.repeat([gl.ops.RandomCrop(8, 8), gl.ops.RandomFlip()], on=VIEWS),
    ]
    expected = batches(gl.arrays(image=PIXELS), ops, (*VIEWS, "image"))

    with gl.Loader(
        gl.arrays(image=PIXELS), 3, ops=ops, output=(*VIEWS, "image"), seed=4, device="gpu"
    ) as loader:
        result = [
            {name: values.get() for name, values in batch.items()} for batch in loader.epoch(1)
        ]

    assert_same(result, expected)
    gc.collect()
    sim.finish()


def test_draws_of_each_view_are_its_own():
    graph = compile_ops(
        Spec((Field("image", np.dtype(np.uint8), (32, 32, 3)),)),
        [gl.ops.Copy("image", to=VIEWS), *gl.ops.repeat([gl.ops.RandomFlip()], on=VIEWS)],
    )
    assert len(set(graph.streams)) == 3


def test_repeat_makes_ops_of_each_field():
    ops = gl.ops.repeat(
        [gl.ops.RandomFlip(p=0.2), gl.ops.Dali("gaussian_blur", sigma=1.5)], on=["a", "b"]
    )
    assert [(type(op).__name__, op.on) for op in ops] == [
        ("RandomFlip", "a"), ("Dali", "a"), ("RandomFlip", "b"), ("Dali", "b")
    ]  # fmt: skip
    assert ops[0] == gl.ops.RandomFlip(p=0.2, on="a")
    assert ops[3] == gl.ops.Dali("gaussian_blur", sigma=1.5, on="b")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gl.ops.Copy(("image", "mask"), to="a"), "on must be one field"),
        (lambda: gl.ops.Copy("image", to=()), "to must be a field name"),
        (lambda: gl.ops.Copy("image", to=None), "to must be the name of a new field"),
        (lambda: gl.ops.repeat([gl.ops.RandomFlip()], on="view"), "a tuple of field names"),
        (lambda: gl.ops.repeat([gl.ops.RandomFlip()], on=()), "a tuple of field names"),
        (lambda: gl.ops.repeat([gl.ops.RandomFlip(on="image")], on=VIEWS), "without on="),
        (lambda: gl.ops.repeat(gl.ops.RandomFlip(), on=VIEWS), "a list of ops"),
        (
            lambda: compile_ops(gl.arrays(image=PIXELS).spec, [gl.ops.Copy("image", to="image")]),
            "already",
        ),
        (
            lambda: compile_ops(gl.arrays(image=PIXELS).spec, [gl.ops.Copy("photo", to="view")]),
            "no field 'photo'",
        ),
    ],
)
def test_what_is_wrong_is_told(call, words):
    with pytest.raises(GpuloadError, match=words) as caught:
        call()
    assert caught.value.cause
    assert caught.value.remedy


def test_a_copy_is_told_by_its_arguments():
    op = gl.ops.Copy("image", to="view")
    assert [field.name for field in dataclasses.fields(op)] == ["on", "to"]
    assert repr(op) == "Copy(on='image', to=('view',))"


def test_a_damaged_file_among_many_views_is_named(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.jpg").write_bytes(
            PHOTOS[0].read_bytes()[: 700 if number == 6 else None]
        )
    ops = [gl.ops.Decode(), gl.ops.Copy("image", to=VIEWS), *gl.ops.repeat(AUGMENT, on=VIEWS)]

    with (
        gl.Loader(
            gl.images(tmp_path, labels=None), 9, ops=ops, output=VIEWS, device="cpu"
        ) as loader,
        pytest.raises(gl.GpuloadError, match=r"6\.jpg"),
    ):
        loader.batch_at(0)
