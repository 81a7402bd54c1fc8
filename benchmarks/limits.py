"""The physical limits' way of using all cores: one process each, which waits for the word and does
its part."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.machine import cores
from benchmarks.question import Epoch, Work

Part = Callable[[int, int], Callable[[], None]]


def on_all_cores(work: Work, part: Part) -> Epoch:
    """Return a pass in which each core does its part, `part(core, num_cores)()`, once.

    Processes, not threads: in chunks that stay in a cache, threads would spend their time on the
    interpreter's lock. A limit hands nothing over: it gives one stand-in for all records when all
    parts are done.
    """
    context = multiprocessing.get_context("fork")  # nothing with threads of its own is loaded here
    pipes = [context.Pipe() for _ in range(cores())]
    for core, (_, far) in enumerate(pipes):
        context.Process(target=_serve, args=(part, core, len(pipes), far), daemon=True).start()

    def epoch() -> Iterator[Any]:
        for near, _ in pipes:
            near.send(True)
        for near, _ in pipes:
            near.recv()
        yield np.broadcast_to(np.float32(0), (work.num_records, 1))

    return epoch


def _serve(part: Part, core: int, num_cores: int, pipe: Any) -> None:
    once = part(core, num_cores)
    while pipe.recv():
        once()
        pipe.send(True)


def share(count: int, core: int, num_cores: int) -> range:
    """Return the records of a core: neighbours, as many as the others' to one."""
    return range(count * core // num_cores, count * (core + 1) // num_cores)
