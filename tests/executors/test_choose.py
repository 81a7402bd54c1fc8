"""Which executor runs a graph, why, and of which kind it is."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import ops
from gpuload.errors import DeviceError, SpecError
from gpuload.executors import choose
from gpuload.ops.graph import compile_ops
from gpuload.spec import Field, Spec
from tests.op_contract import uniform

IMAGES = compile_ops(Spec((Field("image", np.dtype(np.uint8), (None,), encoded=True),)), [ops.Decode()])
ROWS = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [ops.RandomFlip()])
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
