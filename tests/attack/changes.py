"""Files that another process changes while they are read: what they held when they were opened, or
an error.

Truth       each file says in all its rows which version it is. All that a source reads of a file is
            of one version, and each row is whole.
Left out    a writer that changes a file in place without another size or time of modification,
            which nothing notices that does not read the file anew. So each change here ends with a
            time that no version had before; and what is written in place is not written while the
            file is being opened, when its time may be that of the moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload.errors import FileError, GpuloadError, RecordError
from tests.attack.hunt import Report, hunt

ROOT = Path(__file__).parents[2]
NUM_FILES, ROWS, COLUMNS = 4, 300, 96
KINDS = ("C", "F", "file", "fixed")
SHORT_S, TRIAL_S = 0.01, 1.0
RENAME_EXCHANGE, AT_FDCWD = 2, -100


def attack(seconds: float, seed: int) -> Report:
    """Read files that change."""
    return hunt(seconds, seed, trial, hang_s=60)


def trial(rng: np.random.Generator, folder: Path, reader: Any = None) -> Counter[str]:
    """Open and read files again and again while a process changes them."""
    kind = str(rng.choice(KINDS))
    if rng.random() < 0.3 and os.access("/dev/shm", os.W_OK):  # another file system
        memory = Path("/dev/shm") / f"gpuload-attack-{os.getpid()}"
        memory.mkdir(exist_ok=True)
        (folder / "files").symlink_to(memory)
    else:
        (folder / "files").mkdir()
    files = folder / "files"
    for number in range(NUM_FILES):
        write(files, kind, number, version=number + 1)
    changer = subprocess.Popen(
        [sys.executable, "-m", "tests.attack.changes", str(files), kind, str(rng.integers(2**32))],
        cwd=ROOT,
    )
    try:
        outcomes, end = Counter[str](), time.monotonic() + TRIAL_S
        while time.monotonic() < end:
            outcomes += _read_all(rng, files, kind, reader or _values)
            assert changer.poll() is None, "the changer has ended"
    finally:
        changer.kill()
        changer.wait()
        if files.is_symlink():
            for path in files.iterdir():
                path.unlink()
            files.resolve().rmdir()
    return outcomes


def _read_all(rng: np.random.Generator, files: Path, kind: str, reader: Any) -> Counter[str]:
    """Open the files once and read them for a while."""
    outcomes = Counter[str]()
    paths = [files / f"{number}" for number in range(NUM_FILES)]
    try:
        with _locked(files):
            source = _open(kind, paths)
    except GpuloadError as error:
        return Counter([f"opening: {type(error).__name__}"])
    with (
        source,
        gl.Loader(
            source, batch_size=int(rng.choice([1, 7, 64])), shuffle=True, device="cpu"
        ) as load,
    ):
        versions: dict[int, int] = {}
        for _ in range(rng.integers(1, 4)):
            run = iter(load)
            while True:
                try:
                    batch = next(run)
                except StopIteration:
                    break
                except (FileError, RecordError) as error:
                    outcomes[type(error).__name__] += 1
                    if outcomes.total() > 50:
                        return outcomes
                    continue
                _check(batch, reader(batch), versions, kind)
                outcomes["as opened"] += 1
    return outcomes


def _check(batch: gl.batch.Batch, values: list[Any], versions: dict[int, int], kind: str) -> None:
    for record, value in zip(batch.records.tolist(), values, strict=True):
        number, first = (record, 0) if kind == "file" else divmod(record, ROWS)
        rows = np.atleast_2d(value)
        version = versions.setdefault(number, int(rows[0, 1]))
        expected = table(number, version)[first : first + len(rows)]
        # Two files that changed places are what they are: the number in a file is that of the place
        # it was made for.
        expected[:, 0] = rows[0, 0]
        assert np.array_equal(rows, expected), (
            f"{kind}, file {number}, version {version}: {rows}, not {expected}"
        )


def _values(batch: gl.batch.Batch) -> list[Any]:
    return list(batch["x"])


def _open(kind: str, paths: list[Path]) -> Any:
    if kind == "fixed":
        return gl.fixed(paths, ("<i4", (COLUMNS,)))
    return gl.npy(paths, record="file" if kind == "file" else "row")


def table(number: int, version: int) -> Any:
    """Return what a version of a file holds: in each row the file, the version, the row, and
    numbers made of these."""
    rows = (
        np.arange(ROWS, dtype=np.int32)[:, None] * 7
        + np.arange(COLUMNS, dtype=np.int32) * 1000
        + version
    )
    rows[:, 0], rows[:, 1], rows[:, 2] = number, version, np.arange(ROWS)
    return rows


def content(kind: str, number: int, version: int) -> bytes:
    """Return the bytes of a version of a file."""
    array = table(number, version)
    if kind == "fixed":
        return array.tobytes()
    header = {"descr": "<i4", "fortran_order": kind == "F", "shape": array.shape}
    text = f"{header!r:<117}\n".encode()
    return (
        b"\x93NUMPY\x01\x00"
        + len(text).to_bytes(2, "little")
        + text
        + array.tobytes("F" if kind == "F" else "C")
    )


def write(folder: Path, kind: str, number: int, version: int) -> None:
    """Put a version of a file in the place of the one before, at once."""
    new = folder / f".new-{number}"
    new.write_bytes(content(kind, number, version))
    stamp(new, version)
    os.replace(new, folder / f"{number}")


def stamp(path: Path, version: int) -> None:
    """Give a file a time of modification that no version had before."""
    os.utime(path, ns=(10**18 + version, 10**18 + version))


@contextlib.contextmanager
def _locked(folder: Path) -> Any:
    """Keep the changer from writing in place, or the reader from opening."""
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def change(folder: Path, kind: str, seed: int) -> None:
    """Change files, one after the other, for ever."""
    rng, version = np.random.default_rng(seed), NUM_FILES
    while os.getppid() != 1:
        version += 1
        way, number = WAYS[rng.integers(len(WAYS))], int(rng.integers(NUM_FILES))
        with (
            contextlib.suppress(FileNotFoundError),
            _locked(folder) if way in IN_PLACE else contextlib.nullcontext(),
        ):
            way(folder, kind, number, version, rng)
        for broken in range(NUM_FILES):  # or nothing could be opened soon
            if rng.random() < 0.5:
                version += 1
                path = folder / f"{broken}"
                if not path.exists() or path.stat().st_size != len(content(kind, 0, 1)):
                    write(folder, kind, broken, version)
        time.sleep(float(rng.random()) * SHORT_S * (1 if rng.random() < 0.9 else 10))


def _replace(folder: Path, kind: str, number: int, version: int, rng: np.random.Generator) -> None:
    write(folder, kind, number, version)


def _truncate(folder: Path, kind: str, number: int, version: int, rng: np.random.Generator) -> None:
    os.truncate(
        folder / f"{number}", int(rng.integers(len(content(kind, number, version)))) | 1
    )  # no whole number of rows
    stamp(folder / f"{number}", version)


def _extend(folder: Path, kind: str, number: int, version: int, rng: np.random.Generator) -> None:
    with open(folder / f"{number}", "ab") as file:
        file.write(bytes(int(rng.integers(1, 5000)) | 1))  # the same
    stamp(folder / f"{number}", version)


def _overwrite(
    folder: Path, kind: str, number: int, version: int, rng: np.random.Generator
) -> None:
    with open(folder / f"{number}", "r+b", buffering=0) as file:
        file.write(content(kind, number, version))
    stamp(folder / f"{number}", version)


def _cut_and_restore(
    folder: Path, kind: str, number: int, version: int, rng: np.random.Generator
) -> None:
    path = folder / f"{number}"
    os.truncate(path, int(rng.integers(1000)) | 1)
    time.sleep(float(rng.random()) * 0.001)
    path.write_bytes(content(kind, number, version))
    stamp(path, version)


def _swap(folder: Path, kind: str, number: int, version: int, rng: np.random.Generator) -> None:
    second = folder / f"{(number + 1) % NUM_FILES}"
    names = os.fsencode(folder / f"{number}"), os.fsencode(second)
    ctypes.CDLL(None).renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)


def _delete(folder: Path, kind: str, number: int, version: int, rng: np.random.Generator) -> None:
    (folder / f"{number}").unlink()


def _chmod(folder: Path, kind: str, number: int, version: int, rng: np.random.Generator) -> None:
    (folder / f"{number}").chmod(0)
    time.sleep(float(rng.random()) * SHORT_S)
    (folder / f"{number}").chmod(0o600)


def _touch(folder: Path, kind: str, number: int, version: int, rng: np.random.Generator) -> None:
    stamp(folder / f"{number}", version)


IN_PLACE = (_overwrite, _cut_and_restore)  # that leave a file of the same size
WAYS = (
    _replace,
    _truncate,
    _extend,
    _overwrite,
    _overwrite,
    _cut_and_restore,
    _swap,
    _delete,
    _chmod,
    _touch,
)


if __name__ == "__main__":
    change(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
