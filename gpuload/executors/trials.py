"""Trials: findings of `gpuload doctor`, or of an audit, about the decoding of images on this
machine.

Failures of formats, in one file:
File     One in the cache folder for each machine and set of versions (``stamp``): with another
         version of a codec, or after another driver was installed, nothing is known. It is there
         only where something failed; the next run of `gpuload doctor` replaces or removes it. It is
         private to its user, as all kept files.
Use      ``executor="auto"`` does not choose an executor that failed on the CPU where the other one
         did not. Where it failed at regions alone, whole images are decoded and cut, with the same
         pixels. ``Loader.describe`` and a warning in the log name the failures.
         ``GPULOAD_DOCTOR=0`` switches this off.

Verdicts on the decoders of GPUs, a file each, of the same form:
File     One for each machine, set of versions, driver, card and decoder. A decoder without one is
         not known.
Use      The first batches of a place with a decoder that is not known are audited whole: that gives
         its verdict. Where it is bad, a loader with that decoder is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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


@dataclass(frozen=True)
class Verdict:
    """The findings about a decoder of images on a GPU.

    Attributes:
        is_good: True if all images had the pixels of the CPU, within the bound of
            ``gl.ops.Decode``.
        about: how many images were compared, or how one differs.
    """

    is_good: bool
    about: str


def save(failures: Sequence[Failure]) -> str:
    """Store the failures on this machine, in place of those before; return the path of the
    file.

    Raises:
        FileError: the cache folder cannot be written.
    """
    place = _place()
    try:
        if not failures:
            with signalsafe.suppress(FileNotFoundError):
                os.unlink(place[0])
            return place[0]
        _write(place, [asdict(failure) for failure in failures])
    except OSError as error:
        raise _write_error(place[0], error) from None
    return place[0]


def save_verdict(decoder: str, card: str, verdict: Verdict) -> str:
    """Store the verdict on a decoder, in place of the one before; return the path of the file.

    Args:
        decoder: its name, in words.
        card: the name of the GPU.
        verdict: on it.

    Raises:
        FileError: the cache folder cannot be written.
    """
    place = _place(decoder=decoder, card=card)
    try:
        _write(place, [asdict(verdict)])
    except OSError as error:
        raise _write_error(place[0], error) from None
    return place[0]


def load_verdict(decoder: str, card: str) -> Verdict | None:
    """Return the verdict on a decoder on a card, with the driver and the versions of now; None if
    there is none."""
    content = _read(decoder=decoder, card=card)
    if not content:
        return None
    return Verdict(**content[0])


def is_off() -> bool:
    """Return True if the environment says that nothing of this is used."""
    return os.environ.get(SWITCH, "").strip() == "0"


def _write(place: tuple[str, dict[str, str]], content: list[dict[str, Any]]) -> None:
    """Write a file whole, or not at all."""
    path, origin = place
    privatefiles.make_folder(os.path.dirname(path))
    # Several ranks of a machine may write the same file at once: the last whole one stays.
    with (
        derivedfiles.whole(path, is_alone=False) as part,
        keptfile.KeptWriter(part, origin) as writer,
    ):
        writer.write(json.dumps(content).encode("ascii"))
        writer.end()


def _write_error(path: str, error: OSError) -> FileError:
    return FileError(
        f"{path} is not written",
        cause=error.strerror or str(error),
        remedy=f"set {derivedfiles.FOLDER} to a folder that can be written",
    )


def load(executor: str, device: str) -> tuple[Failure, ...]:
    """Return the failures of an executor on this machine, with the versions that are installed now.

    Args:
        executor: its name.
        device: ``"cpu"``, ``"gpu"`` or ``"gpu:N"``.
    """
    failures = [Failure(**fields) for fields in _read() or ()]
    return tuple(
        f for f in failures if (f.executor, f.device) == (executor, device.partition(":")[0])
    )


def whole_failure(executor: str, device: str) -> Failure | None:
    """Return the first format of which an executor decodes no whole images on a device; see
    `load`."""
    return next((failure for failure in load(executor, device) if not failure.is_region), None)


def _read(**words: str) -> list[dict[str, Any]] | None:
    """Return the content of a file; None if there is none that can be believed."""
    if is_off():
        return None
    try:
        # Usually nothing has failed, and ``stamp`` asks for the versions of seven packages: that is
        # spared.
        if not os.path.isdir(os.path.join(derivedfiles.folder(), FOLDER)):
            return None
        path, origin = _place(**words)
    except FileError:  # there is no cache folder
        return None
    content = keptfile.read_kept_file(path, origin)
    if content is None:
        entries: list[dict[str, Any]] | None = None
    else:
        entries = json.loads(content)
    return entries


def stamp() -> dict[str, str]:
    """Return the facts that failures depend on: the machine, its driver, and the versions of
    packages."""
    about = {
        "machine": platform.node(),
        "system": platform.platform(),
        "Python": platform.python_version(),
    }
    with signalsafe.suppress(OSError), open(DRIVER, encoding="utf-8") as file:
        about["driver"] = file.readline().strip()
    metadata = signalsafe.import_package(
        "importlib.metadata"
    )  # it takes a fifth of the time of gpuload
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            about[name] = metadata.version(name)
    return about


def _place(**words: str) -> tuple[str, dict[str, str]]:
    """Return the path of a file, and the facts that it is about: these, and those that ``words``
    say."""
    origin = stamp() | words
    digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:16]
    return os.path.join(derivedfiles.folder(), FOLDER, digest), origin
