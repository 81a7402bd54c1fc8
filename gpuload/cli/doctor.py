"""``gpuload doctor``: packages and devices of this machine, whether they fit together, and the
remedy to type if not.

Packages  their versions, and whether they load: each is imported in a process of its own, so that
          one that crashes is a line here and not the end.
Fits      packages for CUDA 12 beside those for CUDA 13, and other pairs that are known not to work.
GPU       driver, cards, memory, the compiler of kernels.
Machine   cores, memory, open files, shared memory: the part that this process may use.
Images    each format is decoded, whole and by region, by each executor, in a process of its own. Of
          each GPU's decoder whole batches are compared with the CPU; the verdict is kept for card,
          driver and versions.
Decoding  where images can be decoded here, and where ``executor="auto"`` has them decoded for a
          GPU.

Exit status 0 if all that is there works, 1 if a part does not: its line names the remedy. It is no
fault if a package is not installed.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

import gpuload as gl
from gpuload import core, device, driver, signalsafe, threads
from gpuload.cli import parity_images
from gpuload.cli.base import Output, verb
from gpuload.errors import FileError, install_command
from gpuload.executors import decoding, trials
from gpuload.images import decode, native
from gpuload.ops.value.decode import REGIONS_ON_GPU, decoder_on_gpu
from gpuload.progress import Progress
from gpuload.storage import direct, memory

OK, ABSENT, PROBLEM = "ok", "-", "PROBLEM"
STYLES = {OK: "green", ABSENT: "dim", PROBLEM: "bold red"}
INDENT = 10
CHILD_S = 120  # that a process may take: TensorFlow needs seconds on a cold disk
FEW_FILES, SMALL_SHARED_BYTES, SMALL_MEMORY_BYTES = 1024, 1 << 27, 1 << 30  # less is a problem
HARDWARE_DECODERS = (
    (8, 0),
    (9, 0),
    (10, 0),
    (10, 3),
)  # compute capabilities of A100, H100, B200, B300
DRIVER = "/proc/driver/nvidia/version"
ON_HOST, ON_DEVICE = ("array", "cpu"), ("dali", "gpu")  # the executors that decode, and where
IMPORT = "import importlib, sys; importlib.import_module(sys.argv[1])"
TRY_IMAGES = (
    "import sys; from gpuload.cli.doctor import try_images; "
    "try_images(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
)
TRY_DECODER = "import sys; from gpuload.cli.doctor import try_decoder; try_decoder(sys.argv[1])"
NUM_JPEGS, JPEG_BATCH, JPEG_SIDES = 96, 32, (48, 640)  # of a trial of a decoder; pixels
# Of the extra cpu; those of cuda12 lie in the same folders.
CPU_BUILDS = (
    "nvidia-dali-cuda130",
    "nvidia-nvimgcodec-cu13",
    "nvidia-dali-tf-plugin-cuda130",
    "tensorflow-cpu",
)


class Package(NamedTuple):
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
    Package(
        "Pillow", "PIL.Image", ("pillow",), "images without nvImageCodec; GIF, AVIF",
        install_command("images"),
    ),
    Package("PyArrow", "pyarrow.csv", ("pyarrow",), "CSV, Parquet and Arrow", install_command("csv")),
    Package("h5py", "h5py", ("h5py",), "HDF5", install_command("hdf5")),
    Package("Zarr", "zarr", ("zarr",), "Zarr", install_command("zarr")),
    Package(
        "ISA-L", "isal.isal_zlib", ("isal",), "compressed NPZ and HDF5, in half of the time",
        install_command("npz"),
    ),
    Package("obstore", "obstore", ("obstore",), "s3://, gs://, az:// and https://", install_command("remote")),
    Package(
        "DALI", "nvidia.dali", ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "images, also on a GPU", "",
    ),
    Package(
        "nvImageCodec", "nvidia.nvimgcodec", ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"), "decoding images",
        "it comes with DALI",
    ),
    Package("CuPy", "cupy", ("cupy-cuda12x", "cupy-cuda13x", "cupy"), "records on a GPU", ""),
    Package("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu"), "gpuload.bridges.tensorflow", ""),
    Package(
        "DALI's plugin", "nvidia.dali.plugin.tf", ("nvidia-dali-tf-plugin-cuda120", "nvidia-dali-tf-plugin-cuda130"),
        "DALI in tf.data", "make tf-plugin, in a checkout",
    ),
    Package("PyTorch", "torch", ("torch",), "gpuload.bridges.torch", install_command("torch")),
    Package("JAX", "jax", ("jax",), "gpuload.bridges.jax", install_command("jax")),
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        section: of the report.
        subject: the part that was checked.
        state: "ok"; "-" where it is not there, which is no fault; "PROBLEM".
        about: the result of the check.
        remedy: the command to type, or the step to take; "" if none is needed.
    """

    section: str
    subject: str
    state: str
    about: str
    remedy: str = ""


@verb
def command(output: Output) -> int:
    """Check packages, GPUs and limits of this machine, and give a remedy to type for each problem.

    Processes of their own import each package, and decode an image of each format by each executor.
    The exit status is 1 if a part does not work.
    """
    section, num_problems, lines = "", 0, []
    for finding in findings():
        num_problems += finding.state == PROBLEM
        lines.append(asdict(finding))
        if not output.is_json:
            _draw(output, finding, is_first=finding.section != section)
        section = finding.section
    if num_problems:
        count = f"{num_problems} problem{'s' * (num_problems > 1)}"
    else:
        count = "all that is here works"
    output.say(f"\n{count}")
    output.result(num_problems=num_problems, findings=lines)
    return 1 if num_problems else 0


def findings() -> Iterator[Finding]:
    """Give the findings, section by section."""
    yield from _environment()
    yield from _packages()
    yield from _fits()
    yield from _gpu()
    yield from _machine()
    yield from _images()
    yield from _decoding()


def _draw(output: Output, finding: Finding, *, is_first: bool) -> None:
    """Print a finding, and above the first of a section its title; a long word stays whole, to be
    copied."""
    from rich.text import Text

    wrap = functools.partial(
        textwrap.wrap, width=output.console.width, break_long_words=False, break_on_hyphens=False
    )
    lines = []
    if is_first:
        lines.append(
            Text(
                finding.section if finding.section == "gpuload" else f"\n{finding.section}", "bold"
            )
        )
    head = f"  {finding.state:<8}"
    for number, line in enumerate(
        wrap(f"{head}{finding.subject}: {finding.about}", subsequent_indent=" " * INDENT)
    ):
        lines.append(Text(line))
        if number == 0:
            lines[-1].stylize(STYLES[finding.state], 0, len(head))
    arrow = " " * INDENT + "-> "
    if finding.remedy:
        remedy = wrap(finding.remedy, initial_indent=arrow, subsequent_indent=" " * len(arrow))
        lines += [Text(line, "cyan") for line in remedy]
    for text in lines:
        output.draw(text, is_wrapped=False)


def _environment() -> Iterator[Finding]:
    yield Finding("gpuload", "gpuload", OK, gl.__version__)
    yield Finding(
        "gpuload", "Python", OK, f"{platform.python_version()}, {platform.platform(terse=True)}"
    )
    yield Finding("gpuload", "NumPy", OK, np.__version__)
    if core.native is not None:
        yield Finding("gpuload", "core", OK, core.how())
    else:
        remedy = "install a C++ compiler (apt install g++), then: pip install --force-reinstall --no-deps gpuload"
        if os.environ.get(core.SWITCH) == "0":
            remedy = f"unset {core.SWITCH}"
        yield Finding("gpuload", "core", PROBLEM, core.how(), remedy)


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    present = {}
    for name in distributions:
        try:
            present[name] = version(name)
        except PackageNotFoundError:
            continue
    return present


def _packages() -> Iterator[Finding]:
    """Give a finding for each package; they are imported side by side, each in a process of its
    own."""
    installed = [
        package for package in PACKAGES if signalsafe.is_installed(package.module.partition(".")[0])
    ]
    installed = [
        package for package in installed if versions(package.distributions) or not _is_part(package)
    ]
    faults = dict(
        zip(
            installed,
            threads.parallel_map(import_fault, installed, threads.num_cores()),
            strict=True,
        )
    )
    for package in PACKAGES:
        if package not in faults:
            yield _absent(package)
            continue
        name = ", ".join(
            f"{name} {number}" for name, number in versions(package.distributions).items()
        )
        fault = faults[package]
        if not fault:
            yield Finding("packages", package.name, OK, name or "installed")
        else:
            again = ", ".join(versions(package.distributions)) or package.module
            remedy = f"pip install --force-reinstall {again}, or pip uninstall it if nothing here needs it"
            yield Finding(
                "packages",
                package.name,
                PROBLEM,
                f"{name}, does not load: {fault}".lstrip(", "),
                remedy,
            )


def _absent(package: Package) -> Finding:
    """Return the finding for a package that is not installed."""
    about = f"not installed; for {package.use}"
    remedy = package.install or driver.install_packages("gpu" if _has_driver() else "cpu")
    if package.name == "CuPy" and not _has_driver():
        about, remedy = f"{about}, and there is no NVIDIA driver here", ""
    elif package.name == "CuPy" and (present := versions(CPU_BUILDS)):
        # Beside these, pip would put a second DALI and a second TensorFlow into the same folders.
        remedy = f"pip uninstall {' '.join(present)}, then {remedy}"
    return Finding("packages", package.name, ABSENT, about, remedy)


def _has_driver() -> bool:
    return os.path.exists(DRIVER) or shutil.which("nvidia-smi") is not None


def _is_part(package: Package) -> bool:
    """Return True for a package that lies in the folder of another, so that its own distribution
    must be there."""
    return package.module.startswith("nvidia.")


def import_fault(package: Package) -> str:
    """Return why a package cannot be imported, "" if it can."""
    return _fault(*_child(IMPORT, package.module)[::2])


def _child(program: str, *arguments: str) -> tuple[int, str, str]:
    """Run a program in a Python of its own; return its exit status, stdout and stderr. None of them
    may hang."""
    # The last line of stderr is taken as the fault: nothing else may write there. Findings of an
    # earlier run are switched off, or an executor that failed then would not be tried now.
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONFAULTHANDLER": "",
        "GPULOAD_PROGRESS": "0",
        trials.SWITCH: "0",
    }
    command = [sys.executable, "-c", program, *arguments]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=CHILD_S, env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        out = expired.stdout or b""
        # `subprocess` has no status for that: this signal, which nothing here sends, stands for it.
        return -signal.SIGALRM, out.decode(errors="replace") if isinstance(out, bytes) else out, ""
    return process.returncode, process.stdout, process.stderr


def _fault(status: int, stderr: str) -> str:
    """Return why a process failed, "" if it did not; of what it wrote to stderr the last line."""
    if status == 0:
        return ""
    if status == -signal.SIGALRM:
        return f"it took more than {CHILD_S} s"
    if status < 0:
        return f"it ended the process ({signal.Signals(-status).name})"
    lines = [line for line in stderr.splitlines() if line.strip()]
    if lines:
        return " ".join(lines[-1].split())[:300]
    return f"exit status {status}"


def _fits() -> Iterator[Finding]:
    """Give the packages that do not fit together, or say that there are none."""
    problems = [
        Finding("fits", subject, PROBLEM, about, remedy) for subject, about, remedy in misfits()
    ]
    yield from problems or [
        Finding("fits", "versions", OK, "no two packages that are known not to fit")
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


def _gpu() -> Iterator[Finding]:
    section = "GPU"
    problem = device.gpu_problem(0)
    if problem is not None:
        has_driver = _has_driver()
        state = PROBLEM if has_driver else ABSENT
        yield Finding(section, "GPU", state, problem.cause, problem.remedy if has_driver else "")
        return
    runtime = device.cupy().cuda.runtime
    of_driver, of_cupy = (
        driver.version_text(int(number))
        for number in (runtime.driverGetVersion(), runtime.runtimeGetVersion())
    )
    yield Finding(section, "driver", OK, f"for CUDA up to {of_driver}; CuPy brings CUDA {of_cupy}")
    for number in range(int(runtime.getDeviceCount())):
        properties = runtime.getDeviceProperties(number)
        problem = device.gpu_problem(number)
        about = (
            f"{properties['name'].decode()}, sm_{properties['major']}{properties['minor']}, "
            + (f"{properties['totalGlobalMem'] / 1e9:.0f} GB")
        )
        if (properties["major"], properties["minor"]) in HARDWARE_DECODERS:
            about += "; a hardware decoder for JPEG, for gl.ops.Decode(hw_decoder_load=1)"
        if problem is not None:
            yield Finding(
                section, f"gpu:{number}", PROBLEM, f"{about}: {problem.cause}", problem.remedy
            )
        else:
            yield Finding(section, f"gpu:{number}", OK, about)
    yield Finding(section, "regions of images", OK, REGIONS_ON_GPU)
    if os.path.isdir("/proc/driver/nvidia-fs"):
        gds = "its driver is loaded"
    else:
        gds = "its driver is not loaded"
    if direct.is_installed():
        kvikio = ""
    else:
        kvikio = ", which needs kvikio"
    yield Finding(
        section, "GPUDirect Storage", OK, f"{gds}; only gl.Loader(direct=True) uses it{kvikio}"
    )


def _machine() -> Iterator[Finding]:
    section, cores = "machine", threads.num_cores()
    present = os.cpu_count() or 1
    if cores < present:
        less = f" of {present}: affinity, a container's limit or OMP_NUM_THREADS leaves no more"
    else:
        less = ""
    yield Finding(section, "cores", OK, f"{cores}{less}")
    cache_bytes = memory.cache_bytes()
    if cache_bytes:
        if cache_bytes >= SMALL_MEMORY_BYTES:
            state = OK
        else:
            state = PROBLEM
        if state == OK:
            remedy = ""
        else:
            remedy = "give the container more memory (docker run --memory), or end other programs"
        about = f"{cache_bytes / 1e9:.1f} GB of files will stay in memory once read"
        yield Finding(section, "memory", state, about, remedy)
    limit_bytes, present_bytes = (
        memory.limit_bytes(),
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )
    if limit_bytes < present_bytes:
        about = f"{limit_bytes / 1e9:.1f} GB of {present_bytes / 1e9:.1f}: a container's or another control group's"
        yield Finding(section, "memory limit", OK, about)
    yield from _open_files(section)
    if os.path.isdir("/dev/shm"):
        size = shutil.disk_usage("/dev/shm").total
        if size >= SMALL_SHARED_BYTES:
            state = OK
        else:
            state = PROBLEM
        if state == OK:
            remedy = ""
        else:
            remedy = "docker run --shm-size=1g, or --ipc=host: workers of PyTorch need it"
        yield Finding(section, "shared memory", state, f"{size / 1e6:,.0f} MB in /dev/shm", remedy)


def _open_files(section: str) -> Iterator[Finding]:
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard_limit = "unlimited"
    else:
        hard_limit = f"{hard:,}"
    about = f"{'unlimited' if soft < 0 else f'{soft:,}'} at a time, {hard_limit} at most"
    if 0 <= soft < FEW_FILES:
        yield Finding(
            section, "open files", PROBLEM, about, f"ulimit -n {hard_limit.replace(',', '')}"
        )
    else:
        yield Finding(section, "open files", OK, about)


def _images() -> Iterator[Finding]:
    """Give a finding for each executor, and one for each format that it does not decode as the
    others do; store these.

    Loaders heed these stored failures: see `executors.trials`.
    """
    titles = [title for title, _ in parity_images.samples()]
    if not titles:
        yield Finding(
            "images", "formats", ABSENT, "Pillow, which makes the files to decode, is not installed"
        )
        return
    places = [("array", "cpu")]
    if versions(("nvidia-dali-cuda120", "nvidia-dali-cuda130")):
        places.append(("dali", "cpu"))
        if device.gpu_problem(0) is None:
            places.append(("dali", "gpu:0"))
    works = [(title, part) for title in titles for part in parity_images.PARTS]
    failures = []
    with Progress("decoding images") as progress:
        for number, (name, place) in enumerate(places):
            results = {}
            for work, *result in decode_samples(name, place, [", ".join(work) for work in works]):
                results[work] = result
                progress.show(
                    number * len(works) + len(results), len(places) * len(works), "images"
                )
            good = [
                t
                for t in titles
                if all(results[f"{t}, {part}"][0] == OK for part in parity_images.PARTS)
            ]
            if good:
                yield Finding(
                    "images", f"{name} on {place}", OK, f"{', '.join(good)}; whole and by region"
                )
            for title, part in works:
                state, about = results[f"{title}, {part}"]
                # A format that is not decoded at all is one line; a region of it says nothing more.
                if state == OK or (part == "region" and results[f"{title}, whole"][0] != OK):
                    continue
                subject = f"{title}{', a region' if part == 'region' else ''}, {name} on {place}"
                yield Finding("images", subject, state, about, _image_remedy(state, name))
                if state == PROBLEM:
                    kind = place.partition(":")[0]
                    failures.append(trials.Failure(name, kind, title, part == "region", about))
    yield from _store(failures)
    if ("dali", "gpu:0") in places:
        for number in range(device.num_gpus()):
            yield try_card(f"gpu:{number}")


def _decoding() -> Iterator[Finding]:
    """Give where images can be decoded, and which of these places ``executor="auto"`` takes for
    JPEGs of one size."""
    section, name = "decoding", decode.codec()
    host_fault, device_fault = (
        str(trials.whole_failure(*place) or "") for place in (ON_HOST, ON_DEVICE)
    )
    if name is None:
        about = "neither nvImageCodec nor Pillow is installed"
        yield Finding(section, "decoding on the host", ABSENT, about, install_command("images"))
    else:
        yield _place("decoding on the host", native.how(), host_fault, 'write executor="dali"')
    if device.gpu_problem(0) is not None:
        return
    has_dali = signalsafe.is_installed("nvidia.dali")
    if has_dali:
        yield _place("decoding on a GPU", "by DALI", device_fault, 'write decode="host"')
    else:
        yield Finding(
            section, "decoding on a GPU", ABSENT, "DALI is not installed", driver.install_packages()
        )
    if name is None and not has_dali:
        return
    if name is None:
        codec = ""
    elif native.codec() is None:
        codec = "Python"
    else:
        codec = "core"
    num_cores = threads.num_cores_for_gpu(device.num_gpus())
    conditions = decoding.Conditions(
        has_dali=has_dali,
        codec=codec,
        num_cores=num_cores,
        host_fault=host_fault,
        device_fault=device_fault,
    )
    place, reason = decoding.place_by_rule(conditions)
    if has_dali and codec:
        images = "JPEGs that an op gives one size"
    else:
        images = "images"
    yield Finding(
        section, 'executor="auto" on a GPU', OK, f"has {images} decoded on the {place}: {reason}"
    )


def _place(subject: str, about: str, fault: str, remedy: str) -> Finding:
    """Return the line of a place where images can be decoded; a remedy goes around its fault."""
    if fault:
        return Finding("decoding", subject, PROBLEM, f"{about}, but {fault}", remedy)
    return Finding("decoding", subject, OK, about)


def _store(failures: Sequence[trials.Failure]) -> Iterator[Finding]:
    """Store the failures, and yield a finding that names their file and their effect."""
    try:
        path = trials.save(failures)
    except FileError as error:
        if failures:
            remedy = f"{error.remedy}; until then loaders do not know of the failures"
        else:
            remedy = ""
        yield Finding(
            "images",
            "findings",
            PROBLEM if failures else ABSENT,
            f"{error.what}: {error.cause}",
            remedy,
        )
    else:
        if failures:
            about = (
                f'stored in {path}: executor="auto" and decoding of regions heed them, '
                "until gpuload doctor runs again"
            )
            yield Finding("images", "findings", OK, about)


def _image_remedy(state: str, name: str) -> str:
    if state != PROBLEM:
        return ""
    if name == "array":
        alternative = "dali"
    else:
        alternative = "array"
    return f'install the versions of constraints.txt, or use executor="{alternative}"; gpuload parity has figures'


def decode_samples(name: str, place: str, titles: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Give the title, state and description of each part of each sample, as processes of their own
    decode them.

    A process does one after the other. Where it ends, another one goes on behind the part that
    ended it.
    """
    first = 0
    while first < len(titles):
        status, out, errors = _child(TRY_IMAGES, name, place, str(first))
        # Libraries print to stdout, too. The lines before a crash are there, as each was flushed.
        results = [(*json.loads(line),) for line in out.splitlines() if line.startswith('["')]
        yield from results
        first += len(results)
        if first < len(titles):
            yield titles[first], PROBLEM, _fault(status, errors) or "it was not tried"
            first += 1


def try_card(place: str) -> Finding:
    """Return the finding on the decoder of a GPU, by batches that a process of its own compares;
    store the verdict."""
    name, decoder = device.card_name(place), decoder_on_gpu([gl.ops.Decode()])
    status, out, errors = _child(TRY_DECODER, place)
    # Libraries print to stdout, too.
    results = [json.loads(line) for line in out.splitlines() if line.startswith('["')]
    state, about = PROBLEM, _fault(status, errors) or "it was not tried"
    if results:
        state, about = results[-1]
    remedy = ""
    if state != OK:
        remedy = 'use decode="host", which decodes on the host; or install another driver or DALI'
    try:
        trials.save_verdict(decoder, name, trials.Verdict(state == OK, about))
    except FileError as error:
        remedy = f"{remedy}; {error.remedy}; until then loaders do not know of it".removeprefix(
            "; "
        )
    return Finding("images", f"batches of JPEGs, dali on {place}, {name}", state, about, remedy)


def try_decoder(place: str) -> None:
    """Audit batches of JPEGs that DALI decodes on a GPU, and print a line of JSON: state and
    description."""
    jpegs = parity_images.jpegs(NUM_JPEGS, JPEG_SIDES)

    def read(numbers: Any) -> dict[str, Any]:
        return {"image": [jpegs[number] for number in numbers]}

    source = gl.records(len(jpegs), read, fields={"image": ("uint8", (None,))}).mark(
        image="encoded"
    )
    state, about = OK, f"{len(jpegs)} JPEGs, {JPEG_BATCH} at a time, have the pixels of the CPU"
    words: dict[str, Any] = {"executor": "dali", "device": place, "shuffle": True, "audit": 1.0}
    with gl.Loader(source, JPEG_BATCH, ops=[gl.ops.Decode()], **words) as loader:
        try:
            for epoch in range(2):
                for _ in loader.epoch(epoch):
                    pass
        except gl.PixelError as error:
            state, about = PROBLEM, error.what
    print(json.dumps([state, about]), flush=True)


def try_images(name: str, place: str, first: int) -> None:
    """Decode samples by an executor, and print a line of JSON for each part that is done: title,
    state, description."""
    works = (
        (title, data, part)
        for title, data in parity_images.samples()
        for part in parity_images.PARTS
    )
    for title, data, part in itertools.islice(works, first, None):
        state, about = OK, ""
        for comparison in parity_images.compare_bytes(title, data, [(name, place)], [part]):
            # Where Pillow or OpenCV cannot read the format, nothing is said about the executor.
            is_refusal_of_library = comparison.is_refusal and comparison.against != "array on cpu"
            if (
                comparison.verdict == "ok"
                or is_refusal_of_library
                or not comparison.party.startswith(name)
            ):
                continue
            state, about = PROBLEM, comparison.numbers
            if comparison.is_refusal:
                cause = re.search(r"cause: (.*?) remedy:", about)
                state, about = ABSENT, cause[1] if cause else about
        print(json.dumps([f"{title}, {part}", state, about]), flush=True)
