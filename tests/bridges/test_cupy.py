"""The CuPy bridge: a GPU's arrays and nothing else; on a GPU that is simulated, and on a real one
where there is."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload import device as devices
from gpuload.bridges import cupy as glcupy
from gpuload.errors import DeviceError, SpecError
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.bridges import TensorsContract
from tests import simdevice
from tests.bridges.test_common import loader_of
from tests.threads import none_left


@pytest.fixture(params=["sim", pytest.param("cupy", marks=pytest.mark.gpu)])
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "cupy":
        yield devices.cupy()
        return
    sim = simdevice.install(monkeypatch, seed=9)
    yield sim.cupy
    gc.collect()
    sim.finish()


class TestTensors(TensorsContract):
    device, shares = "gpu:0", False
    takes = frozenset({"long doubles"})  # refused below: such a field stays on the host

    @pytest.fixture(autouse=True)
    def gpu(self, cupy: Any) -> None:
        """The loaders are on it."""

    def batches(self, loader: gl.Loader) -> Any:
        return glcupy.tensors(loader)

    def numpy(self, tensor: Any) -> Any:
        return tensor.get()


def on_gpu(output: Any = ("image", "label"), **arguments: Any) -> gl.Loader:
    return loader_of(output, **{"device": "gpu:0", **arguments})


def test_batches_are_arrays_of_cupy_in_the_nest_of_output(cupy: Any) -> None:
    with on_gpu({"inputs": ["image"], "target": "label"}, shuffle=True) as loader:
        batches = list(glcupy.tensors(loader))
        expected = list(loader_of(shuffle=True))

        assert all(isinstance(value, cupy.ndarray) for batch in batches for value in batch.values())
        for batch, of_cpu in zip(batches, expected, strict=True):
            np.testing.assert_array_equal(batch.output["inputs"][0].get(), of_cpu["image"])
            np.testing.assert_array_equal(batch.output["target"].get(), of_cpu["label"])
            np.testing.assert_array_equal(batch.records, of_cpu.records)
        assert (loader.stats()["tensors_shared"], loader.stats()["tensors_copied"]) == (6, 0)


def test_what_a_stream_computes_of_a_batch_is_behind_what_makes_it(cupy: Any) -> None:
    sums = []
    with (
        on_gpu(batch_size=1, shuffle=True) as loader,
        cupy.cuda.Stream(non_blocking=True) as stream,
    ):
        batches = glcupy.tensors(loader)
        for _ in range(5):
            for image, _ in batches:
                sums.append(image.sum())
                del image
        stream.synchronize()
        results = [float(total.get()) for total in sums]

    with loader_of(batch_size=1, shuffle=True) as expected:
        assert results == [float(batch["image"].sum()) for _ in range(5) for batch in expected]


def test_ragged_values_keep_their_offsets_on_the_host(cupy: Any, tmp_path: Any) -> None:
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.arange(number, dtype=np.float32))
    source = gl.npy(tmp_path / "*.npy", record="file")
    with gl.Loader(source, batch_size=4, output="x", device="gpu:0") as loader:
        (values,) = next(iter(glcupy.tensors(loader)))

        assert isinstance(values, Ragged)
        assert isinstance(values.payload, cupy.ndarray)
        assert [item.get().tolist() for item in values] == [[], [0], [0, 1], [0, 1, 2]]
        del values


def test_a_shard_and_a_state_are_those_of_the_loader(cupy: Any) -> None:
    with on_gpu(shuffle=True) as loader:
        batches = glcupy.tensors(loader, shard=(1, 2))
        next(iter(batches))

        assert batches.loader.num_shards == 2
        assert batches.state_dict() == loader_of(shuffle=True, shard_id=1, num_shards=2).state_dict(
            0, 1
        )
        with pytest.raises(
            SpecError, match=r"CuPy does not know[\s\S]*shard=\(rank, number of processes\)"
        ):
            glcupy.tensors(loader, shard="auto")
        batches.loader.close()


def test_a_loop_that_is_left_leaves_no_thread(cupy: Any) -> None:
    with on_gpu(batch_size=1) as loader, none_left():
        for _ in glcupy.tensors(loader):
            break


def test_a_loader_on_the_cpu_is_refused_with_the_device_to_name() -> None:
    with pytest.raises(DeviceError, match=r'on the CPU[\s\S]*device="gpu"'):
        glcupy.tensors(loader_of())


@pytest.mark.parametrize("dtype", ["U3", "S3", "M8[D]", "g"])
def test_what_a_gpu_has_no_dtype_for_is_refused_by_name(dtype: str) -> None:
    loader = SimpleNamespace(
        output=None, spec_out=Spec((Field("x", np.dtype(dtype), ()),)), device="gpu:0"
    )

    with pytest.raises(SpecError, match=r"field 'x' .* cannot be a cupy\.ndarray"):
        glcupy.tensors(loader)


@pytest.mark.parametrize("item", [gl.arrays(x=np.arange(3)), None])
def test_what_is_no_loader_is_refused_with_what_to_write(item: Any) -> None:
    with pytest.raises(SpecError, match=r"gl\.Loader\(source, batch_size=256\)"):
        glcupy.tensors(item)
