"""Measure: every (peer, round) in a fresh process, peers interleaved in each round, all samples in
one JSON.

One process   import the peer's packages; from here on anonymous memory is watched; build the loader
              and take its first batch (cold first batch: build to batch); finish that pass
              (warm-up); then whole passes until ``seconds`` are over: records/s, and in each pass
              the time from making an iterator of the now warm loader to its first batch.
A round       every (variant, peer) once, beginning at another place in each round.
Cold cache    a few batches instead of the warm-up pass, then the files' pages are dropped
              (posix_fadvise), and building a new loader and one pass are timed together: what is
              read when a source is opened counts.
Large         the same with a file larger than memory; a pass ends after LARGE_SECONDS if it is not
              done by then.
Smoke         little data, one pass; one process does all the work of the same packages.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import machine
from benchmarks.question import Cache, Epoch, Peer, Question, Work, find, missing, touch

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120  # for the jobs of one process; the slowest takes a quarter of it
COLD_WARM_UP_BATCHES = 3
TIMES_MEMORY = 1.5  # how large the data is that is larger than memory
LARGE_SECONDS = 20.0

# glibc's malloc keeps what is freed: an expert's setting, which makes the peers that allocate each
# batch up to twice as fast. gpuload runs without it.
PEERS_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(128 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}

Job = tuple[str, str]
Sample = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How a run is made."""

    data: Path = Path(os.environ.get("GPULOAD_BENCH_DATA", ROOT / "build" / "bench-data"))
    rounds: int = 5
    seconds: float = 1.0
    smoke: bool = False
    cache: Cache = "warm"
    peers: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    def records(self, question: Question) -> int:
        """Return how many records the data has."""
        if self.cache == "large" and not self.smoke:
            return int(machine.memory_bytes() * TIMES_MEMORY) // question.record_bytes
        return question.num_records[self.smoke]


def measure(
    question: Question,
    settings: Settings,
    tell: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], None] = lambda results: None,
) -> dict[str, Any]:
    """Run all rounds of a question and return its results, ready for JSON.

    `tell` hears of each sample, and `save` takes the results as they are behind it: a run that is
    ended loses none.
    """
    jobs = [
        (variant, peer)
        for variant, peer in question.jobs(settings.cache)
        if (not settings.peers or peer.name in settings.peers)
        and (not settings.variants or variant in settings.variants)
    ]
    path = question.prepare(settings.data, settings.records(question))
    head = _head(question, settings, path)
    if settings.cache == "warm":
        machine.read_once(machine.files_of(path))
    entries = {(variant, peer.name): _entry(question, variant, peer) for variant, peer in jobs}
    present = [job for job, entry in entries.items() if not entry["absent"]]
    for number in range(settings.rounds):
        start = number * len(present) // settings.rounds
        for group in _groups(question, present[start:] + present[:start], settings):
            for variant, name, sample in _process(question, group, settings):
                entries[variant, name]["samples"].append({"round": number, **sample})
                summary = sample.get("failed") or f"{sample['records_per_s']:,.0f}/s"
                tell(
                    f"{question.name} round {number + 1} of {settings.rounds}: {variant} {name} {summary}"
                )
                save({**head, "entries": list(entries.values())})
    return {**head, "entries": list(entries.values())}


def _head(question: Question, settings: Settings, path: Path) -> dict[str, Any]:
    return {
        "workload": question.name,
        "asks": question.asks,
        "limit": question.limit,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "settings": {
            "records": settings.records(question),
            "batch_size": question.batch_size,
            "rounds": settings.rounds,
            "seconds": settings.seconds,
            "cache": settings.cache,
            "smoke": settings.smoke,
        },
        "machine": machine.machine(path),
        "versions": machine.versions(ROOT),
    }


def _entry(question: Question, variant: str, peer: Peer) -> dict[str, Any]:
    return {
        "variant": variant,
        "peer": peer.name,
        "role": peer.role,
        "about": peer.about,
        "absent": missing(question.needs(variant, peer)),
        "samples": [],
    }


def _groups(question: Question, jobs: list[Job], settings: Settings) -> Iterable[list[Job]]:
    """Return the jobs of each process: one, or in a smoke run all that need the same packages."""
    if not settings.smoke:
        return [[job] for job in jobs]

    def packages(job: Job) -> tuple[str, ...]:
        peer = question.peer(job[1])
        return (
            peer.role,
            *peer.needs,
        )  # limits by themselves: they fork, which TensorFlow does not stand

    return [list(group) for _, group in itertools.groupby(sorted(jobs, key=packages), key=packages)]


def _process(
    question: Question, jobs: list[Job], settings: Settings
) -> Iterator[tuple[str, str, Sample]]:
    """Measure jobs, (variant, peer), in one fresh process; a job that fails gives a sample that
    says why."""
    task = {
        "question": question.name,
        "jobs": jobs,
        "settings": {**asdict(settings), "data": str(settings.data)},
    }
    is_gpuload = jobs[0][1].startswith("gpuload") or question.peer(jobs[0][1]).role == "ours"
    out, problem = run_process(
        [sys.executable, "-m", "benchmarks.measure", json.dumps(task)],
        {} if is_gpuload else PEERS_MALLOC,
    )
    samples = [
        json.loads(line.removeprefix(_MARK)) for line in out.splitlines() if line.startswith(_MARK)
    ]
    samples += [problem] * (len(jobs) - len(samples))
    yield from (
        (variant, name, sample) for (variant, name), sample in zip(jobs, samples, strict=True)
    )


def run_process(
    command: list[str], variables: dict[str, str], timeout_s: float | None = TIMEOUT_S
) -> tuple[str, Sample]:
    """Run a command; return its output and what to say where it is missing. Nothing that it started
    outlives it."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=errors, start_new_session=True
        )
        try:
            problem = f"exit status {process.wait(timeout_s)}"
        except subprocess.TimeoutExpired:
            problem = f"took longer than {timeout_s} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        errors.seek(0)
        return out.read(), {"failed": problem, "errors": errors.read().splitlines()[-40:]}


_MARK = "sample: "


def main(arguments: list[str] | None = None) -> None:
    """Be one such process: measure the jobs told in JSON, print one marked line of JSON for
    each."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.measure", description="used by benchmarks.run"
    )
    parser.add_argument("task", type=json.loads)
    task = parser.parse_args(arguments).task
    question = find(task["question"])
    settings = Settings(**{**task["settings"], "data": Path(task["settings"]["data"])})
    faulthandler.dump_traceback_later(TIMEOUT_S - 10)  # who hangs says where
    for variant, name in task["jobs"]:
        try:
            sample = _measure_peer(question, variant, question.peer(name), settings)
        except Exception as error:  # whatever a peer raises is its result; the run goes on
            traceback.print_exc()
            sample = {
                "failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            }
        print(_MARK + json.dumps(sample), flush=True)
    os._exit(
        0
    )  # no peer's threads or workers may hold up the run; all that is wanted has been printed


def _measure_peer(question: Question, variant: str, peer: Peer, settings: Settings) -> Sample:
    num_records = settings.records(question)
    work = Work(
        variant,
        question.prepare(settings.data, num_records),
        num_records,
        question.batch_size,
        settings.cache,
    )
    for name in question.needs(variant, peer):
        importlib.import_module(name)
    for name in peer.uses:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    with machine.Memory() as memory:
        passes, cold_first_ms = (_warm if settings.cache == "warm" else _cold)(
            peer, work, settings.seconds
        )
    return {
        "records_per_s": records_per_s(passes),
        "first_ms": round(median(pass_.first_ms for pass_ in passes), 3),
        "cold_first_ms": round(cold_first_ms, 3),
        "added_mb": memory.added_mb,
        "base_mb": round(memory.start_kib * 1024 / 1e6, 1),
        "passes_s": [round(pass_.took_s, 5) for pass_ in passes],
    }


@dataclass(frozen=True)
class Pass:
    """What was seen of a pass."""

    num_records: int
    took_s: float
    first_ms: float


def _warm(peer: Peer, work: Work, seconds: float) -> tuple[list[Pass], float]:
    start = perf_counter()
    epoch = peer.build(work)
    built_ms = (perf_counter() - start) * 1e3
    cold_first_ms = built_ms + one_pass(epoch, work).first_ms
    return timed_passes(epoch, work, seconds), cold_first_ms


def timed_passes(epoch: Epoch, work: Work, seconds: float) -> list[Pass]:
    """Make whole passes until they took so many seconds together, at least one."""
    passes = [one_pass(epoch, work)]
    while sum(pass_.took_s for pass_ in passes) < seconds:
        passes.append(one_pass(epoch, work))
    return passes


def records_per_s(passes: list[Pass]) -> float:
    """Return the rate of passes together."""
    return round(
        sum(pass_.num_records for pass_ in passes) / sum(pass_.took_s for pass_ in passes), 1
    )


def _cold(peer: Peer, work: Work, seconds: float) -> tuple[list[Pass], float]:
    del seconds  # one pass: the second one would find a warm cache
    for batch in itertools.islice(peer.build(work)(), COLD_WARM_UP_BATCHES):
        touch(batch)
    del batch
    gc.collect()
    for worker in (
        multiprocessing.active_children()
    ):  # pages that a living process has mapped cannot be dropped
        worker.kill()
        worker.join()
    machine.drop(machine.files_of(work.path))
    start = perf_counter()
    epoch = peer.build(work)
    built_s = perf_counter() - start
    timed = one_pass(epoch, work, LARGE_SECONDS if work.cache == "large" else math.inf)
    return [replace(timed, took_s=built_s + timed.took_s)], built_s * 1e3 + timed.first_ms


def one_pass(epoch: Epoch, work: Work, most_s: float = math.inf) -> Pass:
    """Make an iterator and take every batch, or all that come in so many seconds."""
    start = perf_counter()
    batches = epoch()  # within the time: a loader may begin to read here
    count = touch(next(batches))
    first = perf_counter()
    for batch in batches:
        count += touch(batch)
        if perf_counter() - start > most_s:
            return Pass(count, perf_counter() - start, (first - start) * 1e3)
    end = perf_counter()
    if count != work.num_records:
        raise RuntimeError(f"a pass gave {count} records, the data has {work.num_records}")
    return Pass(count, end - start, (first - start) * 1e3)


if __name__ == "__main__":
    main()
