"""Trials: which formats of images an executor fails at on this machine, as `gpuload doctor` found out.

File     One in the cache folder for each machine and set of versions (``stamp``): with another version of a codec, or
         after another driver was installed, nothing is known. It is there only where something failed; the next run
         of `gpuload doctor` replaces or removes it. It is private to its user, as all kept files.
Use      ``executor="auto"`` does not choose an executor that failed on the CPU where the other one did not. Where it
         failed at regions alone, whole images are decoded and cut, with the same pixels. ``Loader.describe`` and a
         warning in the log name what failed. ``GPULOAD_DOCTOR=0`` switches this off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gpuload import signalsafe
from gpuload.errors import FileError
from gpuload.storage import derivedfiles, keptfile, privatefiles

SWITCH = "GPULOAD_DOCTOR"
FOLDER = "doctor"  # in the cache folder
DISTRIBUTIONS = (
    *("gpuload", "numpy", "pillow", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
    *("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
)
DRIVER = "/proc/driver/nvidia/version"


@dataclass(frozen=True)
class Failure:
    """A format that an executor does not decode.

    Attributes:
        executor: its name.
        device: ``"cpu"``, or ``"gpu"``.
        form: the format, ``"JPEG 4:2:0"``.
        is_region: True if whole images are decoded, and a region is not.
        about: the fault, in words.
    """

    executor: str
    device: str
    form: str
    is_region: bool
    about: str

    def __str__(self) -> str:
        region = ", a region" if self.is_region else ""
        return f"gpuload doctor found that {self.executor} on {self.device} fails at {self.form}{region}: {self.about}"


def save(failures: Sequence[Failure]) -> str:
    """Store what failed on this machine, in place of what was stored before; return the path of the file.

    Raises:
        FileError: the cache folder cannot be written.
    """
    path, origin = _place()
    try:
        if not failures:
            with signalsafe.suppress(FileNotFoundError):
                os.unlink(path)
            return path
        privatefiles.make_folder(os.path.dirname(path))
        # Several ranks of a machine may write the same file at once: the last whole one stays.
        with derivedfiles.whole(path, is_alone=False) as part, keptfile.Writer(part, origin) as writer:
            writer.write(json.dumps([asdict(failure) for failure in failures]).encode("ascii"))
            writer.end()
    except OSError as error:
        raise FileError(
            f"{path} is not written",
            cause=error.strerror or str(error),
            remedy=f"set {derivedfiles.FOLDER} to a folder that can be written",
        ) from None
    return path


def load(executor: str, device: str) -> tuple[Failure, ...]:
    """Return what failed in an executor on this machine, with the versions that are installed now.

    Args:
        executor: its name.
        device: ``"cpu"``, ``"gpu"`` or ``"gpu:N"``.
    """
    if os.environ.get(SWITCH, "").strip() == "0":
        return ()
    try:
        # Usually nothing has failed, and ``stamp`` asks for the versions of seven packages: that is spared.
        if not os.path.isdir(os.path.join(derivedfiles.folder(), FOLDER)):
            return ()
        path, origin = _place()
    except FileError:  # there is no cache folder
        return ()
    content = keptfile.read_kept_file(path, origin)
    failures = [] if content is None else [Failure(**fields) for fields in json.loads(content)]
    return tuple(f for f in failures if (f.executor, f.device) == (executor, device.partition(":")[0]))


def stamp() -> dict[str, str]:
    """Return what the failures depend on: the machine, its driver, and the versions of packages."""
    about = {"machine": platform.node(), "system": platform.platform(), "Python": platform.python_version()}
    with signalsafe.suppress(OSError), open(DRIVER, encoding="utf-8") as file:
        about["driver"] = file.readline().strip()
    metadata = signalsafe.import_package("importlib.metadata")  # it takes a fifth of what gpuload takes
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            about[name] = metadata.version(name)
    return about


def _place() -> tuple[str, dict[str, str]]:
    """Return the path of the file, and what it must have been written for."""
    origin = stamp()
    digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:16]
    return os.path.join(derivedfiles.folder(), FOLDER, digest), origin
