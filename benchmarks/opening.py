"""Opening many files: `python -m benchmarks.opening`, by wildcards and folders, and by manifests.

NPY      `--shards` files of one row; opened by a wildcard, and by the manifest that this wrote
Images   `--images` files of a folder for each class of 1,000, hard links to a few files; opened as
         a folder, and by the manifest; then a manifest of `--listed` files that are not there,
         since opening touches none of them. What more files take is a straight line through these
         two figures
Figures  seconds of wall clock in a process of its own, best and median of `--rounds`; memory is
         what the process holds more behind the opening than before (VmRSS), a file. Files are in
         the cache of the system
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import machine

ROOT = Path(__file__).resolve().parents[1]
FOLDER_FILES = 1000
OPEN = """
import json, sys, time
import gpuload as gl

def rss():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) * 1024

gl.open(sys.argv[2]).close()
before, begin = rss(), time.perf_counter()
source = getattr(gl, sys.argv[1])(sys.argv[3])
seconds, memory = time.perf_counter() - begin, rss() - before
begin = time.perf_counter()
fingerprint = source.fingerprint()
state_s = time.perf_counter() - begin
print(json.dumps({"s": seconds, "memory": memory, "records": len(source), "state_s": state_s, "is": fingerprint}))
"""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--listed", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="where the files are made  [default: a temporary one]"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        make_shards(folder / "rows", options.shards)
        make_images(folder / "photos", options.images)
        works = [
            ("npy", "rows/*.npy", options.shards),
            ("npy", "rows.manifest", options.shards),
            ("images", "photos", options.images),
            ("images", "photos.manifest", options.images),
            ("images", "listed.manifest", options.listed),
        ]
        index(folder, "npy", "rows/*.npy", "rows.manifest")
        index(folder, "images", "photos", "photos.manifest")
        list_images(folder / "photos", folder / "listed.manifest", options.listed)
        samples = [[measure(folder, *work[:2]) for work in works] for _ in range(options.rounds)]
        print("\n".join(lines_of(folder, works, samples)))


def make_shards(folder: Path, count: int) -> None:
    """Write NPY files of one row."""
    folder.mkdir()
    row = np.zeros((1, 64), np.float32)
    for number in range(count):
        np.save(folder / f"{number:07d}.npy", row)


def make_images(folder: Path, count: int) -> None:
    """Write folders of image files; the files of a folder are links to one, which opening does not
    notice."""
    for first in range(0, count, FOLDER_FILES):
        home = folder / f"class {first // FOLDER_FILES:05d}"
        home.mkdir(parents=True)
        (home / "0000000.jpg").write_bytes(b"\xff\xd8\xff" + bytes(1000))
        for number in range(1, min(FOLDER_FILES, count - first)):
            os.link(home / "0000000.jpg", home / f"{first + number:07d}.jpg")


def index(folder: Path, name: str, paths: str, to: str) -> None:
    """Write a manifest, in a process of its own."""
    code = "import sys, gpuload as gl; getattr(gl, sys.argv[1])(sys.argv[2]).index(sys.argv[3])"
    subprocess.run(
        [sys.executable, "-c", code, name, str(folder / paths), str(folder / to)], check=True
    )


def list_images(photos: Path, to: Path, count: int) -> None:
    """Write the manifest of a folder as if it held so many files."""
    import gpuload as gl
    from gpuload.storage import manifest
    from gpuload.storage.files import Files
    from gpuload.storage.paths import PackedPaths, Texts

    with gl.images(photos) as source:
        opening, entries = source._opening, source._entries()  # type: ignore[attr-defined]
    num_folders = -(-count // FOLDER_FILES)
    names = Texts(
        np.frombuffer(b"n01440764_10026.JPEG" * count, np.uint8), np.arange(count + 1) * 20
    )
    folders = Texts.of([f"{photos}/class {number:05d}/" for number in range(num_folders)])
    folder_of = np.arange(count, dtype=np.uint32) // FOLDER_FILES
    stamps = np.full((count, 3), (100_000, 1_700_000_000_000_000_000, 0), np.int64)
    about = {**entries.about, "classes": [f"class {number:05d}" for number in range(num_folders)]}
    values = {name: value for name, value in opening.arguments.items() if name != opening.paths}
    manifest.write(
        str(to), "images", Files(PackedPaths(folders, folder_of, names), stamps, names=("",)),
        options={"paths": opening.paths, "values": values, "rest": []}, about=about, arrays={},
        fingerprints={opening.identity: "0123456789abcdef"},
    )  # fmt: skip


def measure(folder: Path, name: str, paths: str) -> dict[str, Any]:
    """Return the figures of one opening."""
    small = next((folder / "rows").iterdir())
    command = [sys.executable, "-c", OPEN, name, str(small), str(folder / paths)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
    sample: dict[str, Any] = json.loads(output)
    return sample


def lines_of(
    folder: Path, works: list[tuple[str, str, int]], samples: list[list[dict[str, Any]]]
) -> list[str]:
    """Return the lines of the results."""
    about = machine.machine(folder)
    lines = [
        f"- {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, load {about['load_at_start'][0]}",
        "- warm: files and manifests are in the cache of the system; a process of its own for each figure",
        "",
        "| opened by | files | s, best | s, median | s, fingerprint | bytes of memory a file | bytes on disk a file |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for number, (name, paths, count) in enumerate(works):
        column = [round_samples[number] for round_samples in samples]
        assert all(sample["records"] == count for sample in column)
        seconds, memory = (
            [sample["s"] for sample in column],
            median(sample["memory"] for sample in column),
        )
        size = (
            f"{os.path.getsize(folder / paths) / count:.1f}" if paths.endswith(".manifest") else ""
        )
        state_s = median(sample["state_s"] for sample in column)
        lines.append(
            f"| gl.{name}({paths!r}) | {count:,} | {min(seconds):.3f} | {median(seconds):.3f} | {state_s:.3f} "
            f"| {memory / count:.0f} | {size} |"
        )
    for first in (0, 2):
        same = {
            round_samples[number]["is"]
            for round_samples in samples
            for number in (first, first + 1)
        }
        assert len(same) == 1, "the fingerprint is that of the files"
    return lines


if __name__ == "__main__":
    main()
