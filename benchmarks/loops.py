"""The loops of `compare` and `training`: one work by one peer, in a process of its own.

passes   whole passes after a warm-up pass, as in `measure`: records/s
steps    a loop with a step of 2 ms, as in training: batches/s, and the share of the time that
         next() takes. The step sleeps, or keeps a core busy without the interpreter's lock, as a
         framework's step does
fresh    a new process, nothing compiled before: seconds from before `import gpuload` to batch 1, 10
         and 100, and to the end of the first pass, and how many batches came in the first 2 s. All
         other packages, NumPy, TensorFlow and those of a peer too, are imported before
cold     the same with cold files: the caller has dropped them from the page cache

The code of the works is always today's; in `compare` only gpuload is the tree's, so that both trees
do the same. Where the task names no peer, gpuload is the peer.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from benchmarks.measure import one_pass, records_per_s, timed_passes
from benchmarks.question import Batch, Epoch, Peer, Work, find, touch

PEER = "gpuload"  # of each question: the form that its users begin with
STEP_S = 0.002
MIN_STEPS = 10
BATCHES = (1, 10, 100)
FIRST_S = 2.0
BUSY_ITEMS = (
    1 << 16
)  # of float32: they stay in the core's own cache, and the clock is looked at every 20 us

BETTER: dict[str, dict[str, Literal["more", "less", ""]]] = {
    "passes": {"records/s": "more"},
    "steps": {
        "batches/s beside a sleeping step": "more",
        "batches/s beside a busy step": "more",
        "share of next() beside a sleeping step": "",  # of a part that is nearly nothing a ratio says nothing
        "share of next() beside a busy step": "",
    },
    **{
        loop: {
            **dict.fromkeys(
                (*(f"{loop}, s to batch {number}" for number in BATCHES), f"{loop}, s a pass"),
                "less",
            ),
            f"{loop}, batches in {FIRST_S:g} s": "more",
        }
        for loop in ("fresh", "cold")
    },
}
"""The figures of each loop, and whether more or less of it is better."""

MARK = "figures: "


def main(arguments: list[str] | None = None) -> None:
    """Run a loop, which JSON describes, and print a marked line of JSON with its figures."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.loops", description="used by benchmarks.compare"
    )
    parser.add_argument("task", type=json.loads)
    task = parser.parse_args(arguments).task
    sys.path.insert(
        0, task["folder"]
    )  # before any import of gpuload; `benchmarks` stays what is imported already
    question = find(task["question"])
    peer = question.peer(task.get("peer", PEER))
    work = Work(task["variant"], Path(task["path"]), task["num_records"], question.batch_size)
    for name in question.needs(work.variant, peer):
        if name != PEER:
            importlib.import_module(name)
    figures = run(task["loop"], peer, work, task["seconds"])
    package = (
        Path(sys.modules["gpuload"].__file__ or "").resolve().parent
        if "gpuload" in sys.modules
        else None
    )
    if package is not None and package.parent != Path(task["folder"]).resolve():
        raise RuntimeError(f"gpuload was imported from {package}, not from {task['folder']}")
    print(MARK + json.dumps(figures), flush=True)
    os._exit(0)  # the end of a process is not measured


def run(loop: str, peer: Peer, work: Work, seconds: float) -> dict[str, float]:
    """Return the figures of a loop."""
    if loop in ("fresh", "cold"):
        return {
            f"{loop}, {figure}": value for figure, value in first_batches(peer.build, work).items()
        }
    with compiled_first():
        epoch = peer.build(work)
        one_pass(epoch, work)
        if loop == "passes":
            return {"records/s": records_per_s(timed_passes(epoch, work, seconds))}
        figures: dict[str, float] = {}
        for name, step in (("sleeping", lambda: time.sleep(STEP_S)), ("busy", busy_step())):
            rate, share = steps(epoch, step, seconds)
            figures |= {
                f"batches/s beside a {name} step": rate,
                f"share of next() beside a {name} step": share,
            }
        return figures


def compiled_first() -> contextlib.AbstractContextManager[Any]:
    """Let a revision that compiles while it runs finish this first; its steady rate is meant."""
    try:
        kernels = importlib.import_module("gpuload.kernels")
    except ImportError:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = getattr(
        kernels, "patient", contextlib.nullcontext
    )()
    return context


def first_batches(build: Callable[[Work], Epoch], work: Work) -> dict[str, float]:
    """Return the seconds to some of the first batches and to the end of the first pass, and the
    batches at first."""
    begin = perf_counter()
    figures: dict[str, float] = {}
    at_first = 0
    for count, batch in zip(itertools.count(1), endless(build(work)), strict=False):
        touch(batch)
        now = perf_counter() - begin
        if now <= FIRST_S:
            at_first = count
        if count in BATCHES:
            figures[f"s to batch {count}"] = now
        if count == work.num_batches:
            figures["s a pass"] = now
        if count >= max(*BATCHES, work.num_batches) and now > FIRST_S:
            break
    return figures | {f"batches in {FIRST_S:g} s": at_first}


def steps(epoch: Epoch, step: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return batches/s of a loop with a step, and the share of its time that next() took."""
    batches, count, wait_s = endless(epoch), 0, 0.0
    touch(next(batches))
    begin = now = perf_counter()
    while count < MIN_STEPS or now - begin < seconds:
        batch = next(batches)
        wait_s += perf_counter() - now
        touch(batch)
        step()
        count, now = count + 1, perf_counter()
    return count / (now - begin), wait_s / (now - begin)


def busy_step() -> Callable[[], None]:
    """Return a step that computes in NumPy, which gives the interpreter's lock away, on one
    core."""
    items = np.ones(BUSY_ITEMS, np.float32)

    def step() -> None:
        end = perf_counter() + STEP_S
        while perf_counter() < end:
            np.sqrt(items, out=items)

    return step


def endless(epoch: Epoch) -> Iterator[Batch]:
    """Return the batches of one pass after the other."""
    return itertools.chain.from_iterable(epoch() for _ in itertools.count())


if __name__ == "__main__":
    main()
