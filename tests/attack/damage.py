"""Damaged images in a loader that replaces or skips them: the same rows, whatever may make no
difference is changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack.corpus import corpus, damaged
from tests.attack.hunt import Report, hunt

OPS = (gl.ops.Decode(), gl.ops.RandomResizedCrop(10, 12), gl.ops.RandomFlip())
MOST_PIXELS = 1 << 22  # of the images that are decoded; a damaged head may promise more


def attack(seconds: float, seed: int) -> Report:
    """Replace damaged images."""
    return hunt(seconds, seed, trial)


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Write images, some of them damaged, and read them in several ways."""
    count, whole = (
        int(rng.integers(8, 40)),
        [data for data in corpus() if data[:2] in (b"\xff\xd8", b"\x89P")],
    )
    images = folder / "images"
    images.mkdir()
    for number in range(count):
        data = damaged(rng) if rng.random() < 0.3 else whole[rng.integers(len(whole))]
        (images / f"{number:02}.jpg").write_bytes(data or b"\xff")
    source = gl.images(images, labels=None)
    entries = {finding.record for finding in gl.check(source, num_threads=1)}
    if 2 * len(entries) > count:  # 64 others in the place of one may be damaged, too
        return Counter({"not tried: mostly damaged": 1})
    about: dict[str, Any] = {
        "shuffle": bool(rng.random() < 0.8),
        "seed": int(rng.integers(9)),
        "on_error": "replace",
    }
    about |= {
        "ops": [gl.ops.Decode(max_pixels=MOST_PIXELS), *OPS[1:]],
        "max_bad": 1,
        "device": "cpu",
    }
    about["executor"] = "array"
    with gl.Loader(source, int(rng.integers(1, 9)), num_threads=2, **about) as load:
        rows = [_rows(load), _rows(load)]
        bad = {item.record for item in load.bad_records()}
    skipping = {**about, "on_error": "skip"}
    with gl.Loader(
        source, int(rng.integers(1, 9)), num_threads=int(rng.integers(1, 5)), **skipping
    ) as load:
        assert [row[::2] for row in _rows(load)] == [row[::2] for row in rows[0]], (
            "another batch size, other rows"
        )
        step = int(rng.integers(len(load)))
        load.load_state_dict(load.state_dict(1, step))
        result = _rows(load)
        assert [row[::2] for row in result] == [row[::2] for row in rows[1][-len(result) :]], (
            "resumed, other rows"
        )
    assert bad <= entries, (
        f"the loader replaced {sorted(bad - entries)}, which the check takes for sound"
    )
    return Counter({"replaced": len(bad), "sound": count - len(bad)})


def _rows(load: gl.Loader) -> list[tuple[int, bool, bytes]]:
    """Return record, validity and pixels of each row of the rest of an epoch."""
    return [
        (int(record), bool(valid), image.tobytes())
        for batch in load
        for record, valid, image in zip(batch.records, batch.valid, batch["image"], strict=True)
    ]
