"""The picture of the promise: eight records in one order, however they are divided. Its numbers
come from loaders.

``python -m website.promise_picture`` writes ``docs/assets/promise.svg``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gpuload as gl
from website import svg

FILE = Path(__file__).parent.parent / "docs" / "assets" / "promise.svg"
NUM_RECORDS, SEED = 8, 7
TILE, GAP, LEFT, TOP, ROW = 34, 8, 16, 76, 82  # pixels
COLOURS = ("a", "b", "c", "d")  # of the ranks

Step = list[tuple[int, int, bool]]  # rank, number of the record, whether its image is mirrored


def rank_loader(batch_size: int, rank: int = 0, num_ranks: int = 1) -> gl.Loader:
    """Return a loader of images of two pixels, 0 and 1: of a mirrored one the first pixel is 1."""
    images = np.tile(np.array([0, 1], np.uint8).reshape(1, 1, 2, 1), (NUM_RECORDS, 1, 1, 1))
    return gl.Loader(
        gl.arrays(image=images), batch_size, shuffle=True, seed=SEED, shard_id=rank, num_shards=num_ranks,
        ops=[gl.ops.RandomFlip()], device="cpu",
    )  # fmt: skip


def steps(batch_size: int, num_ranks: int = 1, first_step: int = 0) -> list[Step]:
    """Return the steps of an epoch, from one of them on, with the records of all ranks."""
    loaders = [rank_loader(batch_size, rank, num_ranks) for rank in range(num_ranks)]
    state = loaders[0].state_dict(0, first_step)
    columns = []
    for rank, loader in enumerate(loaders):
        loader.load_state_dict(state)
        batches = [
            zip(batch.records.tolist(), batch["image"][:, 0, 0, 0].tolist(), strict=True)
            for batch in loader
        ]
        columns.append(
            [[(rank, number, bool(pixel)) for number, pixel in batch] for batch in batches]
        )
    return [list(itertools.chain(*parts)) for parts in zip(*columns, strict=True)]


def draw() -> str:
    """Return the picture."""
    rows = [
        ("batch_size=4", steps(4)),
        ("batch_size=2", steps(2)),
        ("two ranks, batch_size=2", steps(2, num_ranks=2)),
        (
            "stopped after a step, four ranks go on",
            steps(4)[:1] + steps(1, num_ranks=4, first_step=1),
        ),
    ]
    parts = [
        svg.text(LEFT, 28, "batch = f(source, ops, seed, epoch, step)", "strong"),
        svg.text(LEFT, 50, "A tile is a record. Number and flip stay the same.", "small quiet"),
    ]
    for number, (name, row) in enumerate(rows):
        y = TOP + number * ROW
        parts.append(svg.text(LEFT, y + 8, name))
        parts += _row(y + 18, row)
    end = TOP + len(rows) * ROW
    parts.append(
        svg.text(
            LEFT, end + 2, "A frame is a step of all ranks, a colour is a rank.", "small quiet"
        )
    )
    width = 2 * LEFT + NUM_RECORDS * (TILE + GAP)
    return svg.picture(
        width, end + 18, parts, title="Eight records in the same order, divided in four ways"
    )


def _row(y: float, row: list[Step]) -> Iterator[str]:
    """Return the tiles of the steps, and a frame around each step."""
    x: float = LEFT + GAP / 2
    for step in row:
        yield svg.box(x - GAP / 2, y, len(step) * (TILE + GAP), TILE + GAP, "frame", radius=6)
        for rank, number, is_mirrored in step:
            yield svg.box(x, y + GAP / 2, TILE, TILE, COLOURS[rank])
            yield svg.text(x + TILE / 2, y + 21, str(number), "on strong", anchor="middle")
            tail, tip, wing = (x + 25, x + 9, 4) if is_mirrored else (x + 9, x + 25, -4)
            yield svg.path(
                f"M {tail:g} {y + 30:g} H {tip:g} m {wing} -4 l {-wing} 4 l {wing} 4", "arrow"
            )
            x += TILE + GAP


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
