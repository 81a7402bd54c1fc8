"""Which executor runs a graph, why, and of which kind it is."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from gpuload import ops
from gpuload.errors import DeviceError, MissingPackageError, SpecError
from gpuload.executors import choose
from gpuload.ops.graph import compile_ops
from gpuload.spec import Field, Spec
from gpuload.testing.ops import uniform

IMAGES = compile_ops(Spec((Field("image", np.dtype(np.uint8), (None,), encoded=True),)), [ops.Decode()])
ROWS = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [ops.RandomFlip()])
PYTHON = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [ops.Python(np.flipud)])
DALI = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [ops.Dali("gaussian_blur", sigma=1.5)])
BOTH = compile_ops(PYTHON.spec_in, [*PYTHON.ops, *DALI.ops])
DECODED_IN_PYTHON = compile_ops(IMAGES.spec_in, [ops.Decode(), ops.Python(np.flipud, out={"dtype": "uint8"})])
NOTHING = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [])


@pytest.mark.parametrize(
    ("wanted", "graph", "device", "name"),
    [
        ("auto", ROWS, "cpu", "array"),
        ("auto", IMAGES, "cpu", "array"),
        ("auto", ROWS, "gpu:0", "array"),
        ("auto", IMAGES, "gpu:0", "dali"),
        ("dali", ROWS, "cpu", "dali"),
        ("dali", NOTHING, "cpu", "array"),
    ],
)
def test_it_is_chosen_by_what_the_ops_need(wanted, graph, device, name):
    chosen, why = choose.choose(wanted, graph, device)

    assert chosen == name
    assert why


def test_without_a_codec_dali_decodes(monkeypatch):
    monkeypatch.setattr(choose, "codec", lambda: None)

    name, why = choose.choose("auto", IMAGES, "cpu")

    assert name == "dali"
    assert "nvImageCodec nor Pillow" in why
    assert choose.choose("auto", ROWS, "cpu")[0] == "array"


def nothing_installed(monkeypatch):
    monkeypatch.setattr(choose, "codec", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("graph", "device", "wanted", "text"),
    [
        (IMAGES, "cpu", "auto", "gl.ops.Decode on a CPU needs the package 'pillow'"),
        (IMAGES, "gpu:0", "auto", "gl.ops.Decode on gpu:0 needs the package 'nvidia-dali'"),
        (DALI, "cpu", "auto", "gl.ops.Dali needs the package 'nvidia-dali'"),
        (DALI, "cpu", "dali", "gl.ops.Dali needs the package 'nvidia-dali'"),
        (DECODED_IN_PYTHON, "cpu", "auto", "gl.ops.Decode on a CPU needs the package 'pillow'"),
    ],
)
def test_what_is_not_installed_is_told_by_the_op_that_needs_it(graph, device, wanted, text, monkeypatch):
    nothing_installed(monkeypatch)

    with pytest.raises(MissingPackageError) as caught:
        choose.choose(wanted, graph, device)

    assert text in caught.value.what
    assert "executor=" not in str(caught.value)
    assert caught.value.remedy.startswith('pip install "gpuload[')


@pytest.mark.parametrize(
    ("graph", "device", "wanted"),
    [(DALI, "cpu", "array"), (BOTH, "cpu", "array"), (BOTH, "gpu:0", "array")],
)
def test_an_op_of_dali_is_refused_by_the_array_executor(graph, device, wanted):
    with pytest.raises(DeviceError) as caught:
        choose.choose(wanted, graph, device)

    assert caught.value.remedy


def test_what_one_op_needs_is_chosen_for_all():
    assert choose.choose("auto", PYTHON, "cpu")[0] == "array"
    assert choose.choose("auto", DECODED_IN_PYTHON, "cpu")[0] == "array"
    if choose._has_dali():
        assert choose.choose("auto", DALI, "cpu")[0] == "dali"


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
def test_a_function_runs_on_the_host_whatever_runs_the_ops_behind_it(device):
    graph = compile_ops(PYTHON.spec_in, [ops.RandomFlip(), *PYTHON.ops, ops.RandomCrop(4)])

    name, why = choose.choose("array", graph, device)

    assert name == "array"
    assert "runs on NumPy alone" in why or "on the host" in why
    assert choose.split_ops(graph, name, device) == (((0, 1, 2), ()) if device == "cpu" else ((0, 1), (2,)))


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
def test_a_function_stands_before_an_operator_of_dali_and_behind_it_on_a_cpu_alone(device):
    if choose._has_dali():
        assert choose.choose("auto", BOTH, device)[0] == "dali"
        assert choose.split_ops(BOTH, "dali", device) == ((0,), (1,))
    behind = compile_ops(PYTHON.spec_in, [*DALI.ops, *PYTHON.ops])

    if device == "cpu":
        if choose._has_dali():
            assert choose.choose("auto", behind, device)[0] == "dali"
            assert choose.split_ops(behind, "dali", device) == ((), (0, 1))
        return
    with pytest.raises(SpecError, match=r"Python.* behind Dali") as caught:
        choose.choose("auto", behind, device)

    assert "put Python before Dali" in caught.value.remedy


def test_an_unknown_name_is_refused():
    with pytest.raises(SpecError, match="executor = 'numpy'"):
        choose.choose("numpy", ROWS, "cpu")


def test_decoding_in_arrays_on_a_gpu_is_refused():
    with pytest.raises(DeviceError, match="'array' on gpu:0"):
        choose.choose("array", IMAGES, "gpu:0")


@pytest.mark.parametrize("name", ["array", "dali"])
def test_what_kind_an_executor_is_is_known_before_it_is_made(name):
    if name == "dali":
        pytest.importorskip("nvidia.dali")

    executor = choose.make(name, ROWS, device="cpu", batch_size=4, num_threads=1)

    assert (executor.name, executor.kind) == (name, "rows" if choose.runs_on_rows(name, "cpu") else "batches")
    executor.close()
    assert not choose.runs_on_rows(name, "gpu:0")
