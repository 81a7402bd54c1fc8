"""``share_memory``: what is refused without a GPU, and what is set on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow")

from gpuload.bridges import tensorflow as gltf
from gpuload.errors import DeviceError, SpecError

ROOT = Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("value", [0, -0.5, 1, 1000, 1.5, True, "0.5", float("nan")])
def test_what_is_neither_a_share_nor_bytes_is_refused(value):
    with pytest.raises(SpecError, match=r"share_memory\(dali=.*[\s\S]*write dali=0\.3"):
        gltf.share_memory(dali=value)


def test_shares_of_more_than_the_card_are_refused():
    with pytest.raises(SpecError, match="add up to more than 1"):
        gltf.share_memory(tensorflow=0.6, dali=0.3, cupy=0.2)


def test_a_cpu_has_no_memory_to_share():
    with pytest.raises(SpecError, match="device='gpu:0'"):
        gltf.share_memory(tensorflow=0.5, device="cpu")


def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises((DeviceError, SpecError), match="gpu:77"):
        gltf.share_memory(tensorflow=0.5, device="gpu:77")


@pytest.mark.gpu
def test_each_of_the_three_gets_its_part():
    code = """
from gpuload.bridges import tensorflow as gltf
given = gltf.share_memory(tensorflow=0.3, dali=1 << 28, cupy=1 << 29)
import cupy, tensorflow as tf
print(given["dali"] == 1 << 28, cupy.get_default_memory_pool().get_limit() == 1 << 29)
print(len(tf.config.list_logical_devices("GPU")) > 0)
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert process.stdout == "True True\nTrue\n", process.stderr[-3000:]


@pytest.mark.gpu
def test_too_late_the_error_says_who_holds_what():
    code = """
from gpuload.bridges import tensorflow as gltf
import tensorflow as tf
tf.zeros(3) + 1
try:
    gltf.share_memory(tensorflow=0.3)
except Exception as error:
    print(type(error).__name__, "TensorFlow" in str(error), "MiB" in str(error))
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert process.stdout == "DeviceError True True\n", process.stderr[-3000:]
