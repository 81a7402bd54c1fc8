"""Damaged images through ``gl.images`` and ``Decode``: the same pixels from both executors, or an
error at its step."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload.errors import GpuloadError, RecordError
from gpuload.images import head as heads
from tests.attack.corpus import corpus, damaged
from tests.attack.hunt import Report, hunt

NUM_FILES = 16  # of a trial: a pipeline of DALI takes longer to make than an image to decode
MOST_PIXELS = 1 << 21  # of an image that is decoded: more takes long, and shows nothing more
MORE_BYTES = 1 << 30


def attack(seconds: float, seed: int) -> Report:
    """Decode images."""
    report = hunt(seconds, seed, trial, more_bytes=MORE_BYTES)
    report.without = "" if find_spec("nvidia.dali") else "DALI, which is not installed"
    return report


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Decode a folder of images with each executor."""
    outcomes: Counter[str] = Counter()
    heads_of = {}
    for number in range(NUM_FILES):
        data = corpus()[rng.integers(len(corpus()))] if rng.random() < 0.2 else damaged(rng)
        head = _head(data)
        if not data or (head is not None and head.height * head.width > MOST_PIXELS):
            outcomes["left out, too large or empty"] += 1
            continue
        path = folder / f"{number:02}.jpg"
        path.write_bytes(data)
        heads_of[len(heads_of)] = head
    if not heads_of:
        return outcomes
    ops = [gl.ops.Decode(("RGB", "GRAY")[rng.integers(2)])]
    if rng.random() < 0.3:
        ops += [gl.ops.RandomResizedCrop(20, 30)]
    changes = {
        "batch_size": int(rng.choice([1, 1, 1, 2, 5])),
        "num_threads": int(rng.integers(1, 4)),
        "ops": ops,
    }
    result = _decoded(folder, executor="array", **changes)
    reference = _decoded(folder, executor="dali", **changes) if find_spec("nvidia.dali") else result
    for record, head in heads_of.items():
        item, second = result.get(record), reference.get(record)
        if item is None or second is None:
            outcomes["refused"] += 1
            continue
        assert head is not None, f"record {record} was decoded, and its head refused"
        if len(ops) == 1:
            assert item.shape[:2] == second.shape[:2] == (head.height, head.width), (
                f"record {record}: {item.shape}, {head}"
            )
            assert np.array_equal(item, second), (
                f"record {record}: {np.count_nonzero(item != second)} values differ"
            )
        outcomes["decoded"] += 1
    return outcomes


def _decoded(folder: Path, **arguments: Any) -> dict[int, Any]:
    """Return the pixels of each record of the steps that raised no error."""
    results, source = {}, gl.images(folder, labels=None)
    with source, gl.Loader(source, device="cpu", **arguments) as load:
        run, steps = iter(load), 0
        while True:
            try:
                batch = next(run)
            except StopIteration:
                break
            except RecordError:
                steps += 1
                continue
            assert batch.step == steps, f"step {batch.step} comes in place of {steps}"
            steps += 1
            results.update(
                {
                    int(n): np.array(image)
                    for n, image in zip(batch.records, batch["image"], strict=True)
                }
            )
        assert steps == len(load), f"{steps} steps, of {len(load)}"
    return results


def _head(data: bytes) -> Any:
    try:
        return heads.read(data)
    except (heads.HeadError, GpuloadError):
        return None
