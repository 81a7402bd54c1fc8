"""Crossings: how many functions of the package a batch passes, counted while loaders run.

Two loaders, one of NPY rows and one of JPEG files, run two epochs. During the second each function
of the package that any thread calls is noted once; comprehensions and lambdas are not counted. While
a loader is made, calls to which its source is handed are followed: stays in modules, the modules, and
steps back up to a room of a higher line of the house. The answer is one line of JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from PIL import Image

import gpuload as gl
from tests import house

PACKAGE = Path(gl.__file__).parent
NO_FUNCTIONS = ("<lambda>", "<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>", "<module>")
HEIGHTS = {room: -number for number, line in enumerate(house.LINES) for room in line}


def functions_of_second_epoch(loader: gl.Loader) -> int:
    """Return how many functions of the package run in a loader's second epoch, in all threads."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(note)  # of the threads that start from now on: all of the loader's
    first = [batch.step for batch in loader]
    codes.clear()
    sys.setprofile(note)
    second = [batch.step for batch in loader]
    sys.setprofile(None)
    threading.setprofile(None)
    assert first == second
    files = {code: Path(code.co_filename) for code in codes if code.co_name not in NO_FUNCTIONS}
    return sum(path.is_relative_to(PACKAGE) for path in files.values())


def way_of_source(source: gl.Source, **arguments: Any) -> tuple[int, int, int]:
    """Return stays, modules and climbs of a source on its way through ``Loader(...)``."""
    stays: list[str] = []

    def follow(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(PACKAGE):
            return
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if any(frame.f_locals.get(name) is source for name in names):
            stays.append(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(follow)
    loader = gl.Loader(source, **arguments)
    sys.setprofile(None)
    loader.close()
    moves = [path for last, path in zip([None, *stays], stays, strict=False) if path != last]
    heights = [HEIGHTS[path.partition("/")[0].removesuffix(".py")] for path in moves]
    climbs = sum(later > height for height, later in itertools.pairwise(heights))
    return len(moves), len(set(moves)), climbs


def main() -> None:
    """Print the counts, each with its goal."""
    with tempfile.TemporaryDirectory() as folder:
        rows, images = Path(folder, "rows.npy"), Path(folder, "images")
        np.save(rows, np.arange(4096 * 16, dtype=np.float32).reshape(4096, 16))
        images.mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (96, 128, 3), np.uint8)
        for number in range(64):
            Image.fromarray(np.roll(pixels, number, 0)).save(images / f"{number}.jpg")
        cpu: dict[str, Any] = {"shuffle": True, "seed": 1, "device": "cpu"}
        size = {"height": 64, "width": 64}
        ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(**size), gl.ops.RandomFlip()]
        ops.append(gl.ops.Normalize(mean=127.0, std=64.0))
        with gl.Loader(gl.npy(str(rows)), batch_size=256, **cpu) as loader:
            num_rows = functions_of_second_epoch(loader)
        source = gl.images(str(images), labels=None)
        with gl.Loader(source, batch_size=16, ops=ops, executor="array", **cpu) as loader:
            num_images = functions_of_second_epoch(loader)
        stays, rooms, climbs = way_of_source(gl.npy(str(rows)), batch_size=256, **cpu)
    answer = {
        "functions that a batch of rows crosses": (num_rows, 90),
        "functions that a batch of images crosses": (num_images, 150),
        "stays of source in Loader(...), as it runs": (stays, 20),
        "modules of source in Loader(...), as it runs": (rooms, 8),
        "climbs of source in Loader(...), as it runs": (climbs, 3),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
