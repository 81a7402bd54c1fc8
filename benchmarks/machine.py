"""The machine under the measurement: what it is, its versions, its memory, its page cache.

All of it is Linux's /proc; nothing here loads more than the standard library.
"""

from __future__ import annotations

import os
import platform
import subprocess
import threading
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

FIELDS = (
    "numpy",
    "tensorflow",
    "torch",
    "jax",
    "grain",
    "nvidia-dali",
    "opencv-python",
    "simplejpeg",
    "pillow",
    "cupy",
)
SAMPLE_S = 0.02


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def machine(data: Path) -> dict[str, Any]:
    """Return what the numbers were measured on; ``data`` is a file or folder on the disk that is
    read."""
    cpu = _fields("/proc/cpuinfo")
    return {
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "cores": cores(),
        "l3_cache": cpu.get("cache size", "unknown"),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "read_ahead_kib": read_ahead_kib(data),
        "kernel": platform.release(),
        "system": platform.platform(),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def page_head(title: str, doc: str | None, what: str, module: str, root: Path) -> list[str]:
    """Return the lines that a page of results begins with: what is asked and how, on what, and by
    which command.

    Args:
        title: the question.
        doc: docstring of the program; what stands behind its first paragraph is shown.
        what: how much was measured, ``"2 rounds"``.
        module: of the program.
        root: of the checkout.
    """
    about, packages = machine(root), versions(root)
    return [
        f"# {title}",
        "",
        "```text",
        *(doc or "").split("\n\n", 1)[1].rstrip().splitlines(),
        "```",
        "",
        f"- {what} on {about['cores']} cores of {about['cpu']}, load {about['load_at_start'][0]}",
        f"- gpuload {packages['gpuload']}, Python {packages['python']}; made by `python -m benchmarks.{module}`",
        "",
    ]


def memory_bytes() -> int:
    """Return how much memory there is."""
    return _kib("/proc/meminfo", "MemTotal") * 1024


def read_ahead_kib(path: Path) -> int | None:
    """Return how much the system reads around a page that is missing, None where it does not say;
    128 is usual."""
    device = os.stat(path).st_dev
    try:
        return int(
            Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text()
        )
    except OSError:
        return None


def versions(root: Path) -> dict[str, str]:
    """Return the versions of Python, of gpuload's checkout and of the packages that take part."""
    result = {"python": platform.python_version(), "gpuload": _checkout(root)}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith(FIELDS) and "tf-plugin" not in name:
            result[name] = distribution.version
    return dict(sorted(result.items()))


def _checkout(root: Path) -> str:
    """Return the commit the package is at, with '+changes' when files differ from it."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+changes"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return "unknown"
    return process.stdout.strip() or "unknown"


class Memory:
    """Watch this process's anonymous memory in a thread, from ``with`` to the end of it.

    ``added_mb`` is the highest sum seen above the sum at the start. The sum is this process's
    RssAnon and RssShmem (files that are mapped do not count) and what its worker processes hold for
    themselves (Private_Dirty).
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.start_kib = self.peak_kib = 0

    def __enter__(self) -> Memory:
        self.start_kib = self.peak_kib = _used_kib()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self.look()

    @property
    def added_mb(self) -> float:
        """The peak above the start, megabytes."""
        return round((self.peak_kib - self.start_kib) * 1024 / 1e6, 2)

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.look()

    def look(self) -> None:
        """Take one sample."""
        self.peak_kib = max(self.peak_kib, _used_kib())


def _used_kib() -> int:
    status = _fields("/proc/self/status")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return (
        _number(status["RssAnon"]) + _number(status["RssShmem"]) + sum(map(_private_kib, children))
    )


def _private_kib(pid: str) -> int:
    try:
        return _kib(f"/proc/{pid}/smaps_rollup", "Private_Dirty")
    except (OSError, KeyError):  # it has just ended
        return 0


def _kib(path: str, name: str) -> int:
    return _number(_fields(path)[name])


def _number(text: str) -> int:
    return int(text.split()[0])


def _fields(path: str) -> dict[str, str]:
    """Return the 'name: value' lines of a file of /proc; the first of a name counts."""
    fields: dict[str, str] = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip(), value.strip())
    return fields


def files_of(path: Path) -> list[Path]:
    """Return the data files at a path: itself, or all files under it."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def read_once(files: Iterable[Path]) -> None:
    """Read the files, so that the page cache holds them."""
    buffer = bytearray(1 << 22)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def drop(files: Iterable[Path]) -> None:
    """Drop our own files' clean pages from the page cache; no rights are needed for that."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
