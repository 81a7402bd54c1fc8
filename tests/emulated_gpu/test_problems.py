"""A GPU that cannot be used: cause and remedy are named before anything runs, and `auto` says why
it takes the CPU.

Each case runs in a process of its own, as CuPy asks the driver once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import emulated_gpu

pytestmark = pytest.mark.gpu

PROGRAM = """
import sys
from tests import emulated_gpu
emulated_gpu.install({install})
{before}
import gpuload as gl
from gpuload import device
try:
    print(device.choose({name!r}))
except gl.GpuloadError as error:
    print(type(error).__name__, error)
print(device.choose("auto"))
"""

WITHOUT_NVRTC = """
from cuda import pathfinder
load = pathfinder.load_nvidia_dynamic_lib
def refuse(name, *rest):
    if name == "nvrtc":
        raise pathfinder.DynamicLibNotFoundError("no libnvrtc.so here")
    return load(name, *rest)
pathfinder.load_nvidia_dynamic_lib = refuse
"""

OF_AN_OLD_CARD = """
from cupy_backends.cuda.libs import nvrtc
import cupy
cupy.cuda.runtime.deviceGetAttribute = lambda attribute, number: {75: 7, 76: 0}[attribute]
"""


def run(install: str = "", before: str = "", name: str = "gpu") -> str:
    program = PROGRAM.format(install=install, before=before, name=name)
    environment = {**os.environ, "PYTHONPATH": str(Path(emulated_gpu.__file__).parents[2])}
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize(
    ("case", "cause", "remedy"),
    [
        ({"install": "driver=0"}, "CuPy finds no CUDA driver", "install an NVIDIA driver"),
        (
            {"install": "driver=12040"},
            "the driver supports CUDA 12.4, and CuPy is built for CUDA 13.",
            'update the NVIDIA driver, or pip install "gpuload[cuda12]"',
        ),
        (
            {"install": "driver=11080"},
            "the driver supports CUDA 11.8",
            "update the NVIDIA driver, or use device=",
        ),
        ({"install": "devices=0"}, "the CUDA driver shows no GPU", "CUDA_VISIBLE_DEVICES"),
        (
            {"before": WITHOUT_NVRTC},
            "CuPy finds no compiler, NVRTC",
            'pip install "cupy-cuda13x[ctk]>=14"',
        ),
        ({"before": OF_AN_OLD_CARD}, "and the GPU is sm_70", "take CuPy for CUDA 12"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_named_with_the_remedy_and_auto_takes_the_cpu(
    case, cause, remedy
):
    message, auto = run(**case).rsplit("\n", 2)[:2]

    assert message.startswith("DeviceError device = 'gpu'")
    assert cause in message
    assert remedy in message
    assert auto.startswith("('cpu', 'no usable GPU: ")


def test_the_eighth_gpu_of_two_is_refused_and_the_second_is_taken():
    assert (
        "the driver shows 2 GPUs, numbered from 0\n  remedy: use device='gpu:0' to 'gpu:1'"
        in run("devices=2", name="gpu:7")
    )
    assert run("devices=2", name="gpu:1").startswith("('gpu:1', 'asked for')")


def test_where_a_variable_hides_gpus_the_error_says_so(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")

    assert (
        "the driver shows 1 GPUs, numbered from 0, CUDA_VISIBLE_DEVICES=3\n  remedy: use device='gpu:0'"
        in run("devices=1", name="gpu:1")
    )


def test_a_machine_whose_gpus_are_not_ready_names_the_fabric_manager():
    not_ready = "emulated_gpu.fail(1, emulated_gpu.SYSTEM_NOT_READY, stays=True)"

    report = run(before=not_ready)

    assert "cause:  the machine's GPUs are not ready (CUDARuntimeError" in report
    assert "nvidia-fabricmanager" in report
