"""The JAX bridge: arrays that share the loader's memory, and nothing cut to 32 bits behind one's
back."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

os.environ.setdefault(
    "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
)  # or JAX takes most of a GPU when it first sees it
jax = pytest.importorskip("jax")

import gpuload as gl  # noqa: E402
from gpuload.bridges import jax as gljax  # noqa: E402
from gpuload.errors import DeviceError, SpecError  # noqa: E402
from gpuload.ragged import Ragged  # noqa: E402
from gpuload.spec import Field, Spec  # noqa: E402
from gpuload.testing.bridges import TensorsContract  # noqa: E402
from tests.bridges.test_common import loader_of  # noqa: E402

ROOT = Path(__file__).parents[2]


class TestTensors(TensorsContract):
    module, package, extra = "gpuload.bridges.jax", "jax", "jax"
    align_bytes = 64

    def batches(self, loader: gl.Loader) -> Any:
        return gljax.tensors(loader)

    def address(self, tensor: Any) -> int:
        return int(tensor.unsafe_buffer_pointer())


def loader_of_batch(values: Any, **arguments: Any) -> gl.Loader:
    """A loader of all values in one batch."""
    return gl.Loader(
        gl.arrays(x=values),
        **{"batch_size": len(values), "output": "x", "device": "cpu", **arguments},
    )


@pytest.mark.parametrize("code", "?bBhHiIefF")
def test_every_numeric_dtype_of_up_to_32_bits_is_shared(code: str) -> None:
    values = np.array([0, 1, 1, 0, 1]).astype(code)
    loader = loader_of_batch(values)

    [(array,)] = gljax.tensors(loader)

    assert array.dtype == values.dtype
    np.testing.assert_array_equal(np.asarray(array), values)
    assert loader.stats()["tensors_shared"] == 1


@contextlib.contextmanager
def wide() -> Iterator[None]:
    """Have JAX take 64 bits."""
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


WIDE = {"l": "int32", "L": "uint32", "d": "float32", "D": "complex64"}


@pytest.mark.parametrize("code", WIDE)
def test_64_bits_are_refused_with_the_op_that_narrows_them_unless_jax_takes_them(code: str) -> None:
    values = np.array([1, 2**40 + 1]).astype(code)

    with pytest.raises(
        SpecError,
        match=rf"field 'x'[\s\S]*gl\.ops\.Cast\(\"{WIDE[code]}\", on='x'\)[\s\S]*enable_x64",
    ):
        gljax.tensors(loader_of_batch(values))

    with wide():
        [(array,)] = gljax.tensors(loader_of_batch(values))
        assert array.dtype == values.dtype
        np.testing.assert_array_equal(np.asarray(array), values)


def test_64_bits_are_refused_also_where_jax_takes_them_no_longer() -> None:
    with wide():
        batches = gljax.tensors(loader_of_batch(np.arange(3)))

    with pytest.raises(SpecError, match=r"an array of int64 cannot be a jax\.Array"):
        next(iter(batches))


def test_the_op_that_an_error_names_is_the_remedy() -> None:
    loader = loader_of_batch(np.arange(3), ops=[gl.ops.Cast("int32", on="x")])

    [(array,)] = gljax.tensors(loader)

    assert array.tolist() == [0, 1, 2]


def test_a_field_of_which_the_first_axis_varies_is_ragged_over_a_jax_array(tmp_path: Path) -> None:
    for number in range(7):
        np.save(
            tmp_path / f"{number}.npy", np.arange(number * 2, dtype=np.float32).reshape(number, 2)
        )
    loader = gl.Loader(
        gl.npy(tmp_path / "*.npy", record="file"), batch_size=3, output="x", device="cpu"
    )

    batches = [values for (values,) in gljax.tensors(loader)]

    assert all(
        isinstance(values, Ragged) and isinstance(values.payload, jax.Array) for values in batches
    )
    results = [[item.tolist() for item in values] for values in batches]
    expected = [np.arange(n * 2, dtype=np.float32).reshape(n, 2).tolist() for n in range(7)]
    assert results == [expected[:3], expected[3:6], expected[6:]]


def test_a_jitted_function_takes_the_parts_of_a_batch() -> None:
    add = jax.jit(lambda nest: nest["a"][0].sum() + nest["b"].sum())

    sums = [
        float(add(batch.output))
        for batch in gljax.tensors(loader_of({"a": ["image"], "b": "label"}))
    ]

    expected = [float(batch["image"].sum() + batch["label"].sum()) for batch in loader_of()]
    assert sums == expected


def test_what_jax_still_computes_is_not_written_over() -> None:
    batches, expected = (
        gljax.tensors(loader_of(batch_size=2, shuffle=True)),
        loader_of(batch_size=2, shuffle=True),
    )
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 2000, lambda _, y: y + x - x, x))

    results = [
        slow(image) for _ in range(20) for image, _ in batches
    ]  # runs behind, on arrays that were let go of

    for item, batch in zip(results, [batch for _ in range(20) for batch in expected], strict=True):
        np.testing.assert_array_equal(np.asarray(item), batch["image"])


def test_an_array_that_is_donated_spoils_no_later_batch() -> None:
    batches, expected = gljax.tensors(loader_of("image")), loader_of("image")
    spoil = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)

    for (image,) in batches:
        spoil(image).block_until_ready()

    for (image,), batch in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(image), batch["image"])


def test_a_gpu_that_jax_does_not_see_is_an_error() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("JAX sees a GPU")
    loader = SimpleNamespace(
        output="x", spec_out=Spec((Field("x", np.dtype("f4"), ()),)), device="gpu:0"
    )

    with pytest.raises(DeviceError, match="JAX sees 0 GPUs"):
        gljax.tensors(loader)


# several processes


def test_auto_is_the_index_of_the_process_and_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gljax.tensors(loader_of(), shard="auto").loader.num_shards == 1  # one process

    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    batches = gljax.tensors(loader_of(), shard="auto")

    assert [batch.records.tolist() for batch in batches] == [
        batch.records.tolist() for batch in loader_of(shard_id=1, num_shards=2)
    ]


def test_before_processes_know_each_other_nothing_is_asked_that_starts_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_devices() -> int:
        raise AssertionError("JAX would start its devices")

    monkeypatch.delenv("TPU_WORKER_HOSTNAMES", raising=False)
    monkeypatch.setattr(jax, "process_count", start_devices)

    assert gljax.process_rank() is None


def test_the_only_process_that_jax_knows_of_is_the_first_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gljax.process_rank() is None

    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)

    assert gljax.process_rank() == (0, 1)


PROCESSES = """
import sys
import jax
import numpy as np
from gpuload.bridges import jax as gljax
from tests.bridges.test_common import loader_of

if __name__ == "__main__":
    address, number = sys.argv[1], int(sys.argv[2])
    jax.distributed.initialize(address, num_processes=2, process_id=number)
    print([record for batch in gljax.tensors(loader_of(), shard="auto") for record in batch.records.tolist()])
    jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_processes_of_jax_each_take_their_share(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROCESSES, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [
        [sys.executable, "-W", "ignore", str(tmp_path / "program.py"), address, str(number)]
        for number in range(2)
    ]
    start = [
        subprocess.Popen(
            item, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for item in command
    ]
    try:
        ending = [item.communicate(timeout=100) for item in start]
    finally:
        for item in start:
            item.kill()

    assert [item.returncode for item in start] == [0, 0], ending
    shares = [json.loads(text.splitlines()[-1]) for text, _ in ending]
    assert sorted(shares[0] + shares[1]) == list(range(10))
    assert len(shares[0]) == len(shares[1]) == 5


# on a GPU


@pytest.mark.gpu
def test_arrays_on_a_gpu_hold_what_they_were_while_further_batches_come() -> None:
    loader = loader_of(device="gpu", batch_size=1, shuffle=True)
    batches = gljax.tensors(loader)
    add = jax.jit(lambda x: x.sum())
    sums, held_batches = [], []
    for _ in range(20):
        for image, label in batches:
            assert {device.platform for device in image.devices()} == {"gpu"}
            sums.append(add(image))  # queued, while the array is given back
            held_batches.append((image, label))

    expected = loader_of(batch_size=1, shuffle=True)
    for total, (image, label), batch in zip(
        sums, held_batches, [b for _ in range(20) for b in expected], strict=True
    ):
        np.testing.assert_array_equal(np.asarray(image), batch["image"])
        np.testing.assert_array_equal(np.asarray(label), batch["label"])
        assert float(total) == batch["image"].sum()
    assert loader.stats()["tensors_copied"] == 0


@pytest.mark.gpu
def test_arrays_on_a_gpu_that_are_let_go_of_are_read_before_their_memory_is_used_again() -> None:
    batches, slow = (
        gljax.tensors(loader_of(device="gpu", shuffle=True)),
        jax.jit(lambda x: jax.lax.fori_loop(0, 20_000, lambda _, y: y + x - x, x)),
    )

    results = [slow(image) for _ in range(20) for image, _ in batches]

    expected = loader_of(shuffle=True)
    for item, batch in zip(results, [batch for _ in range(20) for batch in expected], strict=True):
        np.testing.assert_array_equal(np.asarray(item), batch["image"])


GLOBAL = """
import json, os
import numpy as np
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import gpuload as gl
from gpuload.bridges import jax as gljax

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
fields = dict(x=np.arange(176, dtype=np.float32).reshape(44, 4), y=np.arange(44, dtype=np.int32))
loader = gl.Loader(gl.arrays(**fields), 8, shuffle=True, seed=3, last_batch="drop", output=("x", "y"), device="cpu")
data = gljax.tensors(loader, sharding=NamedSharding(mesh, PartitionSpec("data")))
arrays, right = [], []
for batch, expected in zip(data, loader.epoch(0), strict=True):
    x, y = batch
    arrays.append((x, np.array(expected["x"])))
    right.append(x.shape == (8, 4) and {part.data.shape for part in x.addressable_shards} == {(4, 4)})
    right.append({part.device for part in x.addressable_shards} == {part.device for part in y.addressable_shards})
    right.append(int(jax.jit(lambda values: values.sum())(y)) == int(expected["y"].sum()))
right += [bool((np.asarray(x) == values).all()) for x, values in arrays]  # memory is not used again
refusals = []
for batch_size, arguments, layout in [
    (8, {}, PartitionSpec("data")),
    (5, dict(last_batch="drop"), PartitionSpec("data")),
    (8, dict(last_batch="drop"), None),
]:
    part = gl.Loader(gl.arrays(**fields), batch_size, output="x", device="cpu", **arguments)
    try:
        gljax.tensors(part, sharding="data" if layout is None else NamedSharding(mesh, layout))
    except gl.GpuloadError as error:
        refusals.append(str(error))
print(json.dumps([right, refusals]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_global_arrays_lie_on_all_devices_and_hold_the_batch() -> None:
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GLOBAL],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )

    assert process.returncode == 0, process.stderr[-3000:]
    right, refusals = json.loads(process.stdout)
    assert right == [True] * 20
    assert [
        'last_batch="drop" or "pad"' in refusals[0],
        "5, 4" in refusals[1],
        "NamedSharding(mesh" in refusals[2],
    ] == [True] * 3


def test_a_last_step_of_all_processes_that_is_smaller_is_refused_by_each() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    source = gl.arrays(
        x=np.arange(12, dtype=np.float32)
    )  # three batches of one process, but not of two

    gljax.tensors(gl.Loader(source, 4, output="x", device="cpu"), sharding=sharding)
    with pytest.raises(SpecError, match="last step is smaller than 8 records"):
        gljax.tensors(
            gl.Loader(source, 4, output="x", num_shards=2, device="cpu"), sharding=sharding
        )


def test_a_global_array_on_one_device_is_the_batch() -> None:
    loader = loader_of(last_batch="drop")
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    for batch, expected in zip(
        gljax.tensors(loader, sharding=sharding), loader.epoch(0), strict=True
    ):
        for name, values in expected.items():
            np.testing.assert_array_equal(np.asarray(batch[name]), values)
            assert batch[name].sharding == sharding
