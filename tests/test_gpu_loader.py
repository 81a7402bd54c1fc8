"""On a GPU a loader gives the batches of the CPU, on the device, and they stay what they were."""

from __future__ import annotations

import io

import numpy as np
import pytest

import gpuload as gl
from gpuload import device
from gpuload.errors import RecordError

pytestmark = pytest.mark.gpu

OPS = [
    gl.ops.Transpose("HWC"), gl.ops.RandomCrop(6, 6, pad=2), gl.ops.RandomFlip(),
    gl.ops.Normalize((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), gl.ops.OneHot(61, on="label"), gl.ops.Cast("float16", on="a"),
]  # fmt: skip


def source(folder):
    """Images, labels and text in memory beside big-endian records in a file."""
    random = np.random.default_rng(0)
    random.random((61, 5)).astype(">f4").tofile(folder / "x.bin")
    images = random.integers(0, 256, (61, 3, 6, 6), np.uint8)
    memory = gl.arrays(
        image=images, label=np.arange(61), name=np.array([f"n{i}" for i in range(61)])
    )
    return gl.zip(memory, gl.fixed(folder / "x.bin", [("a", ">f4", (3,)), ("b", ">f4", (2,))]))


def on_host(values):
    return values if isinstance(values, np.ndarray) else device.cupy().asnumpy(values)


def loaders(folder, ops, **changes):
    arguments, records = (
        {"batch_size": 7, "ops": ops, "shuffle": True, "seed": 5, **changes},
        source(folder),
    )
    return [gl.Loader(records, device=name, **arguments) for name in ("cpu", "gpu")]


@pytest.mark.parametrize("ops", [[], OPS], ids=["raw", "ops"])
@pytest.mark.parametrize("executor", ["array", "dali"])
def test_the_batches_are_those_of_the_cpu(tmp_path, ops, executor):
    cpu, gpu = loaders(tmp_path, ops, executor=executor)
    batches = list(gpu)
    for result, reference in zip(batches, cpu, strict=True):
        assert np.array_equal(result.records, reference.records)
        for name in reference.keys():  # noqa: SIM118  a batch is iterated as its output says
            assert result[name].dtype == reference[name].dtype
            if reference[name].dtype.kind == "U":
                assert np.array_equal(result[name], reference[name])
                continue
            assert np.allclose(
                on_host(result[name]), reference[name], rtol=0, atol=1e-6
            )  # fused multiply-add in normalise


def test_numbers_are_on_the_device_and_text_is_on_the_host(tmp_path):
    batch = next(iter(loaders(tmp_path, OPS)[1]))
    assert isinstance(batch["name"], np.ndarray)
    assert all(
        isinstance(batch[name], device.cupy().ndarray) for name in ("image", "label", "a", "b")
    )


def test_an_array_made_by_dlpack_stays_right_while_the_next_batches_are_made(tmp_path):
    cpu, gpu = loaders(tmp_path, OPS, output="image")
    arrays = [device.cupy().from_dlpack(batch["image"]) for _ in range(20) for batch in gpu]
    expected = [batch["image"] for _ in range(20) for batch in cpu]
    for result, reference in zip(arrays, expected, strict=True):
        assert np.allclose(on_host(result), reference, rtol=0, atol=1e-6)


def test_any_batch_is_made_again(tmp_path):
    gpu = loaders(tmp_path, OPS)[1]
    batches = list(gpu)
    again = gpu.batch_at(3)
    assert np.array_equal(on_host(again["image"]), on_host(batches[3]["image"]))


def test_a_row_that_an_op_cannot_take_is_named():
    load = gl.Loader(
        gl.arrays(label=np.array([0, 5])),
        batch_size=1,
        ops=[gl.ops.OneHot(3, on="label")],
        device="gpu",
    )
    with pytest.raises(RecordError, match="record 1"):
        list(load)


def test_images_are_decoded_on_the_gpu_alike_for_every_batch_size(tmp_path):
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for number in range(24):
        buffer = io.BytesIO()
        pixels = image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize(
            (120 + number, 90)
        )
        pixels.save(buffer, "JPEG", quality=90)
        (tmp_path / f"{number:02}.jpg").write_bytes(buffer.getvalue())
    ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(32, 32), gl.ops.RandomFlip()]
    results, on_device = [], {"device": "gpu", "decode": "device"}
    for batch_size in (1, 7, 24):
        load = gl.Loader(
            gl.images(tmp_path, labels=None), batch_size=batch_size, ops=ops, **on_device
        )
        results.append(np.concatenate([on_host(batch["image"]) for batch in load]))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
