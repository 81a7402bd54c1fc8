"""The packages that are named for a GPU are those that fit the machine's driver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpuload import device, driver, ops, signalsafe
from gpuload.errors import DeviceError, MissingPackageError
from gpuload.executors import choose
from gpuload.executors.dali import executor
from gpuload.graph.graph import compile_ops
from gpuload.spec import Field, Spec
from gpuload.testing.ops import uniform
from tests import simdevice


def plant(monkeypatch, version, failure=0):
    """Put a library in the place of the driver's; ``version`` None stands for a machine without
    one."""

    def ask(pointer):
        pointer._obj.value = version
        return failure

    def load(name):
        if version is None:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(cuDriverGetVersion=ask)

    monkeypatch.setattr(driver.ctypes, "CDLL", load)


@pytest.mark.parametrize(
    ("version", "failure", "number"), [(12040, 0, 12040), (13000, 3, 0), (None, 0, 0)]
)
def test_the_driver_says_its_cuda_or_is_not_there(version, failure, number, monkeypatch):
    plant(monkeypatch, version, failure)

    assert driver.cuda_version() == number


def test_a_library_of_that_name_that_is_no_driver_is_none(monkeypatch):
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: SimpleNamespace())

    assert driver.cuda_version() == 0


INSTALL = {
    11080: 'update the NVIDIA driver, which is for CUDA 11.8, then pip install "gpuload[cuda12]"',
    12040: 'pip install "gpuload[cuda12]"',
    13000: 'pip install "gpuload[cuda13]", or "gpuload[cuda12]" for TensorFlow',
    13020: 'pip install "gpuload[cuda13]", or "gpuload[cuda12]" for TensorFlow',
    None: 'pip install "gpuload[cuda12]", or "gpuload[cuda13]" if nvidia-smi shows CUDA 13 and no TensorFlow is needed',
}


@pytest.mark.parametrize("version", INSTALL)
def test_every_error_about_a_missing_package_for_a_gpu_names_the_extra_of_the_driver(
    version, monkeypatch
):
    plant(monkeypatch, version)
    monkeypatch.setattr(signalsafe, "is_installed", lambda name: False)
    monkeypatch.setattr(choose, "codec", lambda: None)
    simdevice.replace(monkeypatch, "cupy", device.cupy.__wrapped__)
    decode = compile_ops(
        Spec((Field("image", np.dtype(np.uint8), (None,), encoded=True),)), [ops.Decode()]
    )
    blur = compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [ops.Dali("gaussian_blur", sigma=1.5)])

    def fail(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(signalsafe, "import_package", fail)
    remedies = []
    for call in (
        device.cupy,
        lambda: choose.choose(decode, "gpu:0"),
        lambda: choose.choose(blur, "gpu:0"),
        lambda: executor.load("gpu:0"),
    ):
        with pytest.raises(MissingPackageError) as caught:
            call()
        remedies.append(caught.value.remedy)

    assert remedies == [INSTALL[version]] * 4
    with pytest.raises(DeviceError) as refusal:
        device.choose("gpu")
    assert refusal.value.remedy == f'{INSTALL[version]}, or use device="cpu"'


@pytest.mark.parametrize("version", [12040, 13000, None])
def test_for_a_cpu_the_extra_is_cpu_whatever_the_driver(version, monkeypatch):
    plant(monkeypatch, version)

    assert driver.install_packages("cpu") == 'pip install "gpuload[cpu]"'
