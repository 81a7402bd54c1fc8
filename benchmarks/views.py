"""What several views of an image cost beside their parts, as DINO has them:
`python -m benchmarks.views`.

Works    `decoded`: each JPEG is decoded as a whole, and a corner of it is handed out. `views`: two
         global and eight local ones are made of images of 500 x 375 in memory. `both`: the views of
         JPEGs, each of which is decoded once. The views are the crops and flips of
         ``gl.recipes.dino()`` alone, or all that it has
Figures  milliseconds an image, of the clock and of the processor (all threads), medians of
         `--rounds`; in each round the works take turns in one process, each with a loader that has
         done an epoch before. Share is (decoded + views) / both: 1 where making views behind a
         decoder costs no more than its parts
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

import gpuload as gl
from benchmarks import data, machine
from benchmarks.measure import Settings

NUM_JPEGS, NUM_FILES, BATCH_SIZE, SIZE = 2000, 512, 64, (500, 375)
VIEWS = ("global_0", "global_1", *(f"local_{n}" for n in range(8)))
CROPS = (gl.ops.RandomResizedCrop, gl.ops.RandomFlip)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Settings().data)
    options = parser.parse_args()
    files = sorted(data.jpegs(options.data, NUM_JPEGS).glob("*.jpg"))[:NUM_FILES]
    pixels = np.stack([np.asarray(Image.open(path).resize(SIZE)) for path in files])
    jpegs, images = gl.images(files, labels=None), gl.arrays(image=pixels)
    decode, copy, *changes = gl.recipes.dino()
    corner = [gl.ops.Copy("image", to="corner"), gl.ops.CenterCrop(8, on="corner")]
    loaders = {"decoded": loader_of(jpegs, [decode, *corner], "corner")}
    for name, ops in (
        ("crops", [op for op in changes if isinstance(op, CROPS)]),
        ("recipe", changes),
    ):
        loaders[f"{name}: views"] = loader_of(images, [copy, *ops], VIEWS)
        loaders[f"{name}: both"] = loader_of(jpegs, [decode, copy, *ops], VIEWS)
    for loader in loaders.values():
        epoch_ms(loader)
    rounds = [
        {name: epoch_ms(loader) for name, loader in loaders.items()} for _ in range(options.rounds)
    ]
    print("\n".join(lines_of(options.data, rounds)))


def loader_of(source: gl.Source, ops: list[Any], output: Any) -> gl.Loader:
    """Return a loader with a thread for each core."""
    return gl.Loader(
        source, BATCH_SIZE, ops=ops, shuffle=True, seed=1, output=output, device="cpu",
        num_threads=machine.cores(), prefetch=2,
    )  # fmt: skip


def epoch_ms(loader: gl.Loader) -> tuple[float, float]:
    """Return the milliseconds an image of an epoch, by the clock and of the processor."""
    clock_s, processor_s = time.perf_counter(), time.process_time()
    num_images = sum(len(batch.records) for batch in loader)
    return (
        1e3 * (time.perf_counter() - clock_s) / num_images,
        1e3 * (time.process_time() - processor_s) / num_images,
    )


def lines_of(folder: Path, rounds: list[dict[str, tuple[float, float]]]) -> list[str]:
    """Return the lines of the results."""
    about = machine.machine(folder)
    lines = [
        f"- {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, load {about['load_at_start'][0]}",
        f"- {NUM_FILES} JPEGs of about {SIZE[0]} x {SIZE[1]}, batches of {BATCH_SIZE}, {about['cores']} threads, "
        f"{len(rounds)} rounds",
        "",
        "| views | ms of | decoded | views | both | share, median (least to greatest) |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for views in ("crops", "recipe"):
        for number, kind in enumerate(("the clock", "the processor")):
            columns = [
                [values[name][number] for values in rounds]
                for name in ("decoded", f"{views}: views", f"{views}: both")
            ]
            shares = [
                (decoding + changing) / both
                for decoding, changing, both in zip(*columns, strict=True)
            ]
            figures = " | ".join(f"{median(column):.2f}" for column in columns)
            lines.append(
                f"| {views} | {kind} | {figures} | {median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) |"
            )
    return lines


if __name__ == "__main__":
    main()
