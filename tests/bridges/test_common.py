"""The common parts of bridges: shards, and nothing that stays behind; `gpuload.testing.bridges` has
what every bridge promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload.bridges import common
from gpuload.errors import SpecError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault(
    "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
)  # or JAX takes most of a GPU when it first sees it
ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("tensorflow", "torch", "jax")
IMAGES = np.arange(10 * 6, dtype=np.float32).reshape(10, 3, 2)
LABELS = np.arange(10, dtype=np.int32)


def loader_of(output: Any = ("image", "label"), **arguments: Any) -> gl.Loader:
    """A loader of 10 records, 4 a batch, in order."""
    source = gl.arrays(image=IMAGES, label=LABELS)
    return gl.Loader(source, **{"batch_size": 4, "output": output, "device": "cpu", **arguments})


EPOCHS = """
import pathlib, sys
from importlib import import_module
import numpy as np
import gpuload as gl
from benchmarks import leaks

def make(folder):
    arrays = {"x": np.zeros((10, 3), np.float32), "y": np.arange(10, dtype=np.int32)}
    return gl.Loader(gl.arrays(**arrays), batch_size=4, shuffle=True, device="cpu")

if __name__ == "__main__":
    leaks.LANES["bridge"] = (make, getattr(import_module("gpuload.bridges." + sys.argv[1]), sys.argv[2]))
    growth = leaks.growth(leaks.watch("bridge", "epochs", 1000, pathlib.Path()))
    print([f"{what} grows by {by}" for what, by in growth.items() if by > leaks.MAY_GROW[what]])
"""
FACES = [(framework, "tensors") for framework in FRAMEWORKS] + [("torch", "dataset")]


@pytest.mark.slow
@pytest.mark.parametrize(("package", "face"), FACES)
def test_nothing_stays_behind_after_a_thousand_epochs(package: str, face: str) -> None:
    pytest.importorskip(package)
    command = [sys.executable, "-W", "ignore", "-c", EPOCHS, package, face]

    process = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert process.stdout.splitlines()[-1:] == ["[]"], process.stdout + process.stderr


def no_ranks() -> Any:
    raise SpecError("nobody was to be asked")


def test_without_a_shard_the_loader_is_the_loader() -> None:
    loader = loader_of()

    assert common.sharded(loader, None, no_ranks) is loader


@pytest.mark.parametrize("shard", ["auto", (1, 3)])
def test_a_shard_is_a_loader_of_that_share_of_the_records(shard: Any) -> None:
    results = [common.sharded(loader_of(shuffle=True), (i, 3), no_ranks) for i in range(3)]
    records = [batch.records.tolist() for item in results for batch in item]

    shard_loader = common.sharded(loader_of(shuffle=True), shard, lambda: (1, 3))

    assert sorted(np.concatenate(records)) == list(range(10))
    assert [batch.records.tolist() for batch in shard_loader] == [
        batch.records.tolist() for batch in results[1].epoch(0)
    ]


def test_a_shard_begins_where_the_loader_is() -> None:
    loader = loader_of(shuffle=True, batch_size=2)
    first_records = [next(iter(loader)).records.tolist() for _ in range(2)]

    shards = [common.sharded(loader, (i, 2), no_ranks) for i in range(2)]

    rest = [batch.records.tolist() for item in shards for batch in item]
    assert sorted(np.concatenate(first_records + rest)) == list(range(10))
    assert [(item.position.epoch, item.position.step) for item in shards] == [(1, 0)] * 2
    assert loader.position.step == 2


def test_a_loader_that_is_that_shard_already_is_left_as_it_is() -> None:
    loader = loader_of(shard_id=1, num_shards=2)

    assert common.sharded(loader, (1, 2), no_ranks) is loader
    assert common.sharded(loader, "auto", lambda: (1, 2)) is loader


def test_a_loader_that_is_another_shard_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"shard=\(0, 2\) of a loader that is shard 1 of 2[\s\S]*divided already"
    ):
        common.sharded(loader_of(shard_id=1, num_shards=2), (0, 2), no_ranks)


@pytest.mark.parametrize("shard", ["rank", 3, (0,), (0, 1, 2), [0, 2], {"rank": 0}])
def test_what_is_no_shard_is_refused_with_what_to_write(shard: Any) -> None:
    with pytest.raises(SpecError, match=r"shard = .*[\s\S]*shard=\(0, 2\) for the first of two"):
        common.sharded(loader_of(), shard, no_ranks)


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0.5, 2), (0, 0), (True, 2), ("0", 2)])
def test_a_rank_or_number_that_cannot_be_is_refused(shard: Any) -> None:
    with pytest.raises(SpecError, match="shard"):
        common.sharded(loader_of(), shard, no_ranks)
