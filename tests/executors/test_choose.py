"""Which executor runs a graph, why, and of which kind it is."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from gpuload import ops
from gpuload.errors import DeviceError, MissingPackageError, SpecError
from gpuload.executors import choose, trials
from gpuload.executors.choose import ExecutorRequest
from gpuload.graph.graph import compile_ops
from gpuload.spec import Field, Spec
from gpuload.testing.ops import uniform

IMAGES = compile_ops(
    Spec((Field("image", np.dtype(np.uint8), (None,), encoded=True),)), [ops.Decode()]
)
ROWS = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [ops.RandomFlip()])
PYTHON = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [ops.Python(np.flipud)])
DALI = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [ops.Dali("gaussian_blur", sigma=1.5)])
BOTH = compile_ops(PYTHON.spec_in, [*PYTHON.ops, *DALI.ops])
DECODED_IN_PYTHON = compile_ops(
    IMAGES.spec_in, [ops.Decode(), ops.Python(np.flipud, out={"dtype": "uint8"})]
)
NOTHING = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [])


@pytest.mark.parametrize(
    ("wanted", "graph", "device", "name"),
    [
        ("auto", ROWS, "cpu", "array"),
        ("auto", IMAGES, "cpu", "array"),
        ("auto", ROWS, "gpu:0", "array"),
        ("dali", ROWS, "cpu", "dali"),
        ("dali", NOTHING, "cpu", "array"),
    ],
)
def test_it_is_chosen_by_what_the_ops_need(wanted, graph, device, name):
    choice = choose.choose(graph, device, ExecutorRequest(wanted))

    assert choice.executor == name
    assert choice.reason


def test_without_a_codec_dali_decodes(monkeypatch):
    monkeypatch.setattr(choose, "codec", lambda: None)

    choice = choose.choose(IMAGES, "cpu")

    assert (choice.executor, choice.decode) == ("dali", "device")
    assert "nvImageCodec nor Pillow" in choice.decode_reason
    assert choose.choose(ROWS, "cpu").executor == "array"


def nothing_installed(monkeypatch):
    monkeypatch.setattr(choose, "codec", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("graph", "device", "wanted", "text"),
    [
        (IMAGES, "cpu", "auto", "gl.ops.Decode on the host needs the package 'pillow'"),
        (IMAGES, "gpu:0", "auto", "gl.ops.Decode on gpu:0 needs the package 'nvidia-dali'"),
        (DALI, "cpu", "auto", "gl.ops.Dali needs the package 'nvidia-dali'"),
        (DALI, "cpu", "dali", "gl.ops.Dali needs the package 'nvidia-dali'"),
        (DECODED_IN_PYTHON, "cpu", "auto", "gl.ops.Decode on the host needs the package 'pillow'"),
    ],
)
def test_what_is_not_installed_is_told_by_the_op_that_needs_it(
    graph, device, wanted, text, monkeypatch
):
    nothing_installed(monkeypatch)

    with pytest.raises(MissingPackageError) as caught:
        choose.choose(graph, device, ExecutorRequest(wanted))

    assert text in caught.value.what
    assert "executor=" not in str(caught.value)
    assert caught.value.remedy.startswith('pip install "gpuload[')


@pytest.mark.parametrize(
    ("graph", "device", "wanted"),
    [(DALI, "cpu", "array"), (BOTH, "cpu", "array"), (BOTH, "gpu:0", "array")],
)
def test_an_op_of_dali_is_refused_by_the_array_executor(graph, device, wanted):
    with pytest.raises(DeviceError) as caught:
        choose.choose(graph, device, ExecutorRequest(wanted))

    assert caught.value.remedy


def test_what_one_op_needs_is_chosen_for_all():
    assert choose.choose(PYTHON, "cpu").executor == "array"
    assert choose.choose(DECODED_IN_PYTHON, "cpu").executor == "array"
    if choose._has_dali():
        assert choose.choose(DALI, "cpu").executor == "dali"


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
def test_a_function_runs_on_the_host_whatever_runs_the_ops_behind_it(device):
    graph = compile_ops(PYTHON.spec_in, [ops.RandomFlip(), *PYTHON.ops, ops.RandomCrop(4)])

    choice = choose.choose(graph, device, ExecutorRequest("array"))

    assert choice.executor == "array"
    assert choose.split_ops(graph, choice, device) == (
        ((0, 1, 2), ()) if device == "cpu" else ((0, 1), (2,))
    )


@pytest.mark.parametrize("device", ["cpu", "gpu:0"])
def test_a_function_stands_before_an_operator_of_dali_and_behind_it_on_a_cpu_alone(device):
    if choose._has_dali():
        choice = choose.choose(BOTH, device)
        assert choice.executor == "dali"
        assert choose.split_ops(BOTH, choice, device) == ((0,), (1,))
    behind = compile_ops(PYTHON.spec_in, [*DALI.ops, *PYTHON.ops])

    if device == "cpu":
        if choose._has_dali():
            choice = choose.choose(behind, device)
            assert choice.executor == "dali"
            assert choose.split_ops(behind, choice, device) == ((), (0, 1))
        return
    with pytest.raises(SpecError, match=r"Python.* behind Dali") as caught:
        choose.choose(behind, device)

    assert "put Python before Dali" in caught.value.remedy


def test_an_unknown_name_is_refused():
    with pytest.raises(SpecError, match="executor = 'numpy'"):
        choose.choose(ROWS, "cpu", ExecutorRequest("numpy"))


def test_an_unknown_place_is_refused():
    with pytest.raises(SpecError, match="decode = 'gpu'") as caught:
        choose.choose(IMAGES, "cpu", ExecutorRequest(decode="gpu"))

    assert caught.value.remedy == "use one of ('auto', 'host', 'device')"


SIZED = compile_ops(
    IMAGES.spec_in,
    [ops.Decode(), ops.RandomResizedCrop(8, 8), ops.RandomFlip(), ops.Normalize(9, 3)],
)
LATE_DALI = compile_ops(IMAGES.spec_in, [*SIZED.ops[:3], ops.Dali("gaussian_blur", sigma=1.5)])


@pytest.mark.parametrize(
    ("device", "executor", "decode", "graph", "expected"),
    [
        # device, executor=, decode=: the executor, where images are decoded, and the places of the
        # ops on the host
        ("cpu", "auto", "auto", SIZED, ("array", "host", 4)),
        ("cpu", "auto", "host", SIZED, ("array", "host", 4)),
        ("cpu", "array", "host", SIZED, ("array", "host", 4)),
        ("cpu", "dali", "auto", SIZED, ("dali", "device", 0)),
        ("cpu", "dali", "host", SIZED, ("dali", "host", 3)),
        ("cpu", "auto", "auto", LATE_DALI, ("dali", "device", 0)),
        ("cpu", "auto", "host", LATE_DALI, ("dali", "host", 3)),
        ("cpu", "dali", "host", LATE_DALI, ("dali", "host", 3)),
        ("cpu", "auto", "device", SIZED, "decode='device' on cpu"),
        ("cpu", "dali", "device", SIZED, "decode='device' on cpu"),
        ("cpu", "array", "device", SIZED, "decode='device' on cpu"),
        ("gpu:0", "array", "auto", SIZED, ("array", "host", 3)),
        ("gpu:0", "array", "host", SIZED, ("array", "host", 3)),
        ("gpu:0", "array", "auto", IMAGES, ("array", "host", 1)),
        ("gpu:0", "array", "device", SIZED, "decode='device' on gpu:0 with executor='array'"),
        ("gpu:0", "dali", "auto", SIZED, ("dali", "device", 0)),
        ("gpu:0", "dali", "device", SIZED, ("dali", "device", 0)),
        ("gpu:0", "dali", "host", SIZED, ("dali", "host", 3)),
        ("gpu:0", "dali", "host", IMAGES, ("array", "host", 1)),
        ("gpu:0", "auto", "device", SIZED, ("dali", "device", 0)),
        ("gpu:0", "auto", "host", SIZED, ("array", "host", 3)),
        ("gpu:0", "auto", "host", LATE_DALI, ("dali", "host", 3)),
        ("gpu:0", "array", "host", LATE_DALI, "with executor='array'"),
        ("gpu:0", "auto", "device", DECODED_IN_PYTHON, "with Python behind Decode"),
        ("gpu:0", "dali", "host", ROWS, ("dali", "", 0)),
        ("gpu:0", "array", "device", ROWS, ("array", "", 0)),
    ],
)
def test_each_combination_is_right_or_refused(
    device, executor, decode, graph, expected, monkeypatch
):
    monkeypatch.setattr(choose, "_has_dali", lambda: True)
    monkeypatch.setattr(choose, "codec", lambda: "nvimgcodec")
    request = ExecutorRequest(executor, decode)

    if isinstance(expected, str):
        with pytest.raises(DeviceError) as caught:
            choose.choose(graph, device, request)
        assert expected in caught.value.what
        assert "leave " in caught.value.remedy
        return
    choice = choose.choose(graph, device, request)

    on_host, behind = choose.split_ops(graph, choice, device)
    assert (choice.executor, choice.decode, len(on_host)) == expected
    assert (*on_host, *behind) == tuple(range(len(graph.ops)))


@pytest.mark.parametrize("decode", choose.PLACES)
@pytest.mark.parametrize(
    ("chain", "remedy"),
    [
        ([ops.Cast("bfloat16")], "leave the op out, and cast in the training step"),
        (
            [ops.Dali("flip"), ops.Python(np.flipud, out={"dtype": "uint8"})],
            "put Python before Dali",
        ),
    ],
    ids=["a dtype", "a function behind DALI"],
)
def test_no_place_to_decode_is_the_remedy_for_an_op_that_no_place_helps(
    chain, remedy, decode, monkeypatch
):
    monkeypatch.setattr(choose, "_has_dali", lambda: True)
    graph = compile_ops(IMAGES.spec_in, [*SIZED.ops[:2], *chain])

    with pytest.raises((DeviceError, SpecError)) as caught:
        choose.choose(graph, "gpu:0", ExecutorRequest(decode=decode))

    assert remedy in caught.value.remedy


def test_dali_behind_the_host_is_refused_by_the_op_that_leaves_it_nothing(monkeypatch):
    monkeypatch.setattr(choose, "_has_dali", lambda: True)
    graph = compile_ops(IMAGES.spec_in, [*SIZED.ops[:3], ops.ColorJitter(0.4), ops.Normalize(9, 3)])

    with pytest.raises(
        SpecError, match=r"executor='dali' for ColorJitter[\s\S]*Normalize"
    ) as caught:
        choose.choose(graph, "gpu:0", ExecutorRequest("dali", "host"))

    assert caught.value.cause.startswith("ColorJitter(")
    assert (
        choose.choose(graph, "gpu:0", ExecutorRequest(decode="host")).executor == "array"
    )  # as its remedy says


@pytest.mark.parametrize(
    ("num_cores", "endings", "place"), [(2, "", "device"), (16, "", "host"), (2, ".png", "host")]
)
def test_auto_on_a_gpu_decodes_by_the_rule_and_says_why(num_cores, endings, place, monkeypatch):
    monkeypatch.setattr(choose, "_has_dali", lambda: True)
    monkeypatch.setattr(choose, "codec", lambda: "nvimgcodec")
    monkeypatch.setattr(choose.ArrayRowExecutor, "decoder", "core")
    request = ExecutorRequest(num_cores=num_cores, endings=frozenset(filter(None, [endings])))

    choice = choose.choose(SIZED, "gpu:0", request)

    assert (choice.executor, choice.decode) == ("array" if place == "host" else "dali", place)
    assert str(num_cores) in choice.decode_reason or endings in choice.decode_reason


def test_without_dali_auto_on_a_gpu_decodes_on_the_host(monkeypatch):
    monkeypatch.setattr(choose, "_has_dali", lambda: False)

    choice = choose.choose(IMAGES, "gpu:0")

    assert (choice.executor, choice.decode) == ("array", "host")
    assert choice.decode_reason == "DALI is not installed"


def test_a_decoder_of_the_gpu_that_doctor_found_bad_is_left(monkeypatch):
    failure = trials.Failure("dali", "gpu", "JPEG", False, "other pixels")
    monkeypatch.setattr(
        trials,
        "load",
        lambda name, device: (failure,) if (name, device) == ("dali", "gpu:0") else (),
    )
    monkeypatch.setattr(choose, "_has_dali", lambda: True)
    monkeypatch.setattr(choose, "codec", lambda: "nvimgcodec")

    choice = choose.choose(IMAGES, "gpu:0")

    assert (choice.executor, choice.decode, choice.decode_reason) == ("array", "host", str(failure))


@pytest.mark.parametrize("name", ["array", "dali"])
def test_what_kind_an_executor_is_is_known_before_it_is_made(name):
    if name == "dali":
        pytest.importorskip("nvidia.dali")

    executor = choose.make(name, ROWS, device="cpu", batch_size=4, num_threads=1)

    assert (executor.name, executor.kind) == (
        name,
        "rows" if choose.runs_on_rows(name, "cpu") else "batches",
    )
    executor.close()
    assert not choose.runs_on_rows(name, "gpu:0")
