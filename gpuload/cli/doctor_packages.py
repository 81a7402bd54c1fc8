"""The packages that gpuload can use: their versions, whether they load, and whether they fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import numpy as np

from gpuload import driver, signalsafe, threads
from gpuload.cli.doctor_base import (
    ABSENT,
    OK,
    PROBLEM,
    Diagnosis,
    has_driver,
    read_fault,
    run_child,
)
from gpuload.errors import install_command

IMPORT = "import importlib, sys; importlib.import_module(sys.argv[1])"
# Of the extra cpu; those of cuda12 lie in the same folders.
CPU_BUILDS = (
    "nvidia-dali-cuda130",
    "nvidia-nvimgcodec-cu13",
    "nvidia-dali-tf-plugin-cuda130",
    "tensorflow-cpu",
)


class PackageUse(NamedTuple):
    """A package that gpuload can use: name, module to import, distributions, its use, the command
    that installs it.

    The command is "" where it depends on the machine: `driver.install_packages`.
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    use: str
    install: str


PACKAGES = (
    PackageUse(
        "Pillow", "PIL.Image", ("pillow",), "images without nvImageCodec; GIF, AVIF",
        install_command("images"),
    ),
    PackageUse("PyArrow", "pyarrow.csv", ("pyarrow",), "CSV, Parquet and Arrow", install_command("csv")),
    PackageUse("h5py", "h5py", ("h5py",), "HDF5", install_command("hdf5")),
    PackageUse("Zarr", "zarr", ("zarr",), "Zarr", install_command("zarr")),
    PackageUse(
        "ISA-L", "isal.isal_zlib", ("isal",), "compressed NPZ and HDF5, in half of the time",
        install_command("npz"),
    ),
    PackageUse("obstore", "obstore", ("obstore",), "s3://, gs://, az:// and https://", install_command("remote")),
    PackageUse(
        "DALI", "nvidia.dali", ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "images, also on a GPU", "",
    ),
    PackageUse(
        "nvImageCodec", "nvidia.nvimgcodec", ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"), "decoding images",
        "it comes with DALI",
    ),
    PackageUse("CuPy", "cupy", ("cupy-cuda12x", "cupy-cuda13x", "cupy"), "records on a GPU", ""),
    PackageUse("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu"), "gpuload.bridges.tensorflow", ""),
    PackageUse(
        "DALI's plugin", "nvidia.dali.plugin.tf", ("nvidia-dali-tf-plugin-cuda120", "nvidia-dali-tf-plugin-cuda130"),
        "DALI in tf.data", "make tf-plugin, in a checkout",
    ),
    PackageUse("PyTorch", "torch", ("torch",), "gpuload.bridges.torch", install_command("torch")),
    PackageUse("JAX", "jax", ("jax",), "gpuload.bridges.jax", install_command("jax")),
)  # fmt: skip  # fmt: skip


def diagnose_packages() -> Iterator[Diagnosis]:
    """Give a finding for each package; they are imported side by side, each in a process of its
    own."""
    installed = [package for package in PACKAGES if _is_installed(package)]
    results = threads.parallel_map(import_fault, installed, threads.num_cores())
    faults = dict(zip(installed, results, strict=True))
    for package in PACKAGES:
        if package not in faults:
            yield _absent(package)
            continue
        numbers = versions(package.distributions)
        about = ", ".join(f"{name} {number}" for name, number in numbers.items())
        fault = faults[package]
        if not fault:
            yield Diagnosis("packages", package.name, OK, about or "installed")
            continue
        again = ", ".join(numbers) or package.module
        yield Diagnosis(
            "packages",
            package.name,
            PROBLEM,
            f"{about}, does not load: {fault}".lstrip(", "),
            f"pip install --force-reinstall {again}, or pip uninstall it if nothing here needs it",
        )


def _absent(package: PackageUse) -> Diagnosis:
    """Return the finding for a package that is not installed."""
    about = f"not installed; for {package.use}"
    remedy = package.install or driver.install_packages("gpu" if has_driver() else "cpu")
    if package.name == "CuPy" and not has_driver():
        about, remedy = f"{about}, and there is no NVIDIA driver here", ""
    elif package.name == "CuPy" and (present := versions(CPU_BUILDS)):
        # Beside these, pip would put a second DALI and a second TensorFlow into the same folders.
        remedy = f"pip uninstall {' '.join(present)}, then {remedy}"
    return Diagnosis("packages", package.name, ABSENT, about, remedy)


def _is_installed(package: PackageUse) -> bool:
    """Return True if a package is there: its top module, and its distribution if other
    distributions have modules in the same folder."""
    if not signalsafe.is_installed(package.module.partition(".")[0]):
        return False
    return not package.module.startswith("nvidia.") or bool(versions(package.distributions))


def import_fault(package: PackageUse) -> str:
    """Return why a package cannot be imported, "" if it can."""
    return read_fault(*run_child(IMPORT, package.module)[::2])


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    present = {}
    for name in distributions:
        try:
            present[name] = version(name)
        except PackageNotFoundError:
            continue
    return present


def diagnose_fits() -> Iterator[Diagnosis]:
    """Give the packages that do not fit together, or say that there are none."""
    problems = [
        Diagnosis("fits", subject, PROBLEM, about, remedy) for subject, about, remedy in misfits()
    ]
    yield from problems or [
        Diagnosis("fits", "versions", OK, "no two packages that are known not to fit")
    ]


def misfits() -> Iterator[tuple[str, str, str]]:
    """Yield the packages that do not fit together: subject, description, remedy."""
    names = [name for package in PACKAGES for name in versions(package.distributions)]
    of_cuda = {
        name: match[1] for name in names if (match := re.search(r"(?:cuda|cu)(1[0-9])", name))
    }
    if not versions(("cupy-cuda12x", "cupy-cuda13x", "cupy")):
        of_cuda = {}  # nothing runs on a GPU: DALI's CPU half and its plugin may be of any
    if len(set(of_cuda.values())) > 1:
        kinds = "; ".join(
            f"CUDA {kind}: {', '.join(name for name in of_cuda if of_cuda[name] == kind)}"
            for kind in sorted(set(of_cuda.values()))
        )
        remedy = f"pip uninstall {' '.join(of_cuda)}, then {driver.install_packages()}"
        yield "CUDA", f"packages for different versions of CUDA: {kinds}", remedy
    for package in PACKAGES:
        distributions = versions(package.distributions)
        if len(distributions) > 1:
            distribution_names = " ".join(distributions)
            remedy = f"pip uninstall {distribution_names}, then install one of them"
            yield (
                package.name,
                f"{' and '.join(distributions)} lie in one folder, and one spoils the other",
                remedy,
            )
    arrow = versions(("pyarrow",)).get("pyarrow", "0")
    if int(np.__version__.partition(".")[0]) < 2 and int(arrow.partition(".")[0]) >= 26:
        yield (
            "PyArrow",
            f"PyArrow {arrow} needs NumPy 2, and NumPy is {np.__version__}",
            "pip install 'pyarrow<26'",
        )
    dali = next(iter(versions(("nvidia-dali-cuda120", "nvidia-dali-cuda130")).values()), "2.4")
    if not dali.startswith("2.4"):
        remedy = "pip install the 2.4 of it, with -c constraints.txt of gpuload"
        yield "DALI", f"gpuload was tested with DALI 2.4, and this is {dali}", remedy
