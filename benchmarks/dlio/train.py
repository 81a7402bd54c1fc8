"""A process that lets DLIO train with one loader, again and again:
`python -m benchmarks.dlio.train TASK`.

DLIO's classes do what its command does, with one configuration after the other: so the packages are
imported once. With several ranks each does the same: DLIO computes the mean utilisation on each of
them, and so all search alike.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dlio import search, workloads
from benchmarks.dlio.workloads import Size

MARK = "sample: "
MOST_ERROR_CHARACTERS = 300
ALIVE: list[
    Any
] = []  # DALI 2.4 waits for ever where a pipeline that Python processes feed is dropped in mid-epoch


@dataclass(frozen=True)
class Task:
    """What a process does: JSON of it is its argument.

    Attributes:
        workload: its name.
        size: how much of it is done.
        folder: of the files.
        loader: one of `workloads.LOADERS`, or None to write the files.
        num_threads: of the loader, in each rank.
    """

    workload: str
    size: Size
    folder: Path
    loader: str | None
    num_threads: int

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self) | {"folder": str(self.folder)})

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Return it from its text."""
        values = json.loads(text)
        return cls(**values | {"size": Size(**values["size"]), "folder": Path(values["folder"])})


def main(arguments: list[str] | None = None) -> None:
    """Do the task, and print one marked line of JSON from the first rank."""
    [text] = sys.argv[1:] if arguments is None else arguments
    task = Task.from_json(text)
    from dlio_benchmark.utils.utility import DLIOMPI

    DLIOMPI.get_instance().initialize()
    if task.loader is None:
        workload = workloads.find(task.workload)
        with tempfile.TemporaryDirectory(prefix="benchmarks-dlio-") as out:
            run(workloads.generation(workload, task.size, task.folder, Path(out)))
    else:
        sample = search_accelerators(task)
        if DLIOMPI.get_instance().rank() == 0:
            print(MARK + json.dumps(sample), flush=True)
    DLIOMPI.get_instance().finalize()
    import psutil

    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(0)  # no loader's threads may hold up the run; what is needed was printed or written


def search_accelerators(task: Task) -> dict[str, Any]:
    """Return how many accelerators a loader feeds, with all that was measured on the way, or how it
    failed."""
    from dlio_benchmark.utils.utility import DLIOMPI

    workload, ranks = workloads.find(task.workload), DLIOMPI.get_instance().size()
    full_step_s = workload.step_s(task.size)
    num_records = (
        workload.files(task.size)
        // (ranks * workload.batch(task.size))
        * ranks
        * workload.batch(task.size)
    )
    tries: list[dict[str, Any]] = []

    def train(step_s: float) -> dict[str, Any]:
        begin_s = core_s()
        with tempfile.TemporaryDirectory(prefix="benchmarks-dlio-") as out:
            metric = run(
                workloads.training(
                    workload, task.size, task.folder, Path(out),
                    loader=task.loader, step_s=step_s, num_threads=task.num_threads,
                )
            )  # fmt: skip
        return {
            "au": [round(float(share) / 100, 4) for share in metric["train_au_percentage"]],
            "au_mean": float(metric["train_au_mean_percentage"]) / 100,
            "records_per_s": [
                round(float(rate), 1) for rate in metric["train_throughput_samples_per_second"]
            ],
            "records_per_s_mean": float(metric["train_throughput_mean_samples_per_second"]),
            "core_s": round(core_s() - begin_s, 3),
            "records": len(metric["train_au_percentage"]) * num_records // ranks,
        }

    def utilisation(accelerators: float) -> float:
        step_s = full_step_s * ranks / accelerators
        tries.append({"accelerators": round(accelerators, 4), "step_s": step_s} | train(step_s))
        return float(tries[-1]["au_mean"])

    sample: dict[str, Any] = {"loader": task.loader, "tries": tries}
    try:
        free = train(0.0)
        start = search.estimate(
            free["records_per_s_mean"], workload.batch(task.size), full_step_s, workload.required
        )
        return sample | {
            "free": free,
            "accelerators": search.most_accelerators(utilisation, start, workload.required),
        }
    except Exception as error:  # whatever DLIO or a loader raises is its result; the run goes on
        import traceback

        traceback.print_exc()
        return sample | {"failed": f"{type(error).__name__}: {error}"[:MOST_ERROR_CHARACTERS]}


def core_s() -> float:
    """Return the seconds that all cores together have worked for this process, for those it
    started, and for theirs."""
    import psutil

    total = 0.0
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended: its parent has its time
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    past = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return total + sum(usage.ru_utime + usage.ru_stime for usage in past)


def descendants() -> list[Any]:
    """Return the processes that this one and its children started, which loaders leave behind."""
    import psutil

    processes: list[Any] = psutil.Process().children(recursive=True)
    return processes


def run(config: dict[str, Any]) -> dict[str, Any]:
    """Do what DLIO's command does with a configuration, and return the metrics of its summary."""
    from dlio_benchmark.main import DLIOBenchmark
    from dlio_benchmark.utils.config import ConfigArguments
    from omegaconf import OmegaConf

    if config.get("reader", {}).get("data_loader") == "dali":
        _let_labels_wrap()
    ConfigArguments.reset()
    benchmark = DLIOBenchmark(OmegaConf.create(config))
    benchmark.initialize()
    benchmark.run()
    benchmark.finalize()
    metric: dict[str, Any] = benchmark.stats.summary["metric"]
    if config.get("reader", {}).get("data_loader") == "dali":
        ALIVE.append(benchmark.framework.get_loader())
    del benchmark
    gc.collect()  # the worker processes of other loaders
    return metric


def _let_labels_wrap() -> None:
    """Let DLIO's loader for DALI make the label ``np.uint8([record])`` of any record.

    NumPy 2 refuses a number above 255 there, and so the loader fails; in NumPy 1, for which it was
    written, it wraps.
    """
    from types import SimpleNamespace

    from dlio_benchmark.data_loader import dali_data_loader

    def uint8(values: list[int]) -> Any:
        return np.asarray(values).astype(np.uint8)

    dali_data_loader.np = SimpleNamespace(uint8=uint8, random=np.random)


if __name__ == "__main__":
    main()
