"""``gpuload demo``: the main job on real data: write records, train, stop and resume, compare
executors, measure.

Exit status 0 only if all of it held: the accuracy, the resumed batches and the executors'
agreement.
"""

from __future__ import annotations

import importlib
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuload.cli.base import Output, WholeNumber, verb
from gpuload.errors import DirectoryError, MissingFileError, missing_package
from gpuload.signalsafe import is_installed

if TYPE_CHECKING:
    from gpuload_demo.report import Report
    from gpuload_demo.train import Worth

PACKAGES = {
    "sklearn": "demo", "PIL": "demo",
    "tensorflow": "cpu", "nvidia.dali": "cpu",
}  # fmt: skip


def check_seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Return a number of seconds, which is above 0."""
    if not 0 < value < math.inf:
        raise click.BadParameter(f"{value} is no number of seconds above 0", context, parameter)
    return value


@verb
@click.option(
    "--output",
    "sheet",
    type=click.Path(readable=False, path_type=Path),
    default="gpuload-demo.png",
    show_default=True,
    metavar="FILE.png",
    help="The contact sheet, a PNG.",
)
@click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, gpu or gpu:N."
)
@click.option(
    "--seed",
    type=WholeNumber(0, 2**64 - 1),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of order, augmentation and network.",
)
@click.option(
    "--seconds",
    type=float,
    callback=check_seconds,
    default=1.5,
    show_default=True,
    metavar="S",
    help="Seconds for each measured rate.",
)
@click.option(
    "--epochs",
    type=WholeNumber(1),
    default=12,
    show_default=True,
    metavar="N",
    help="Epochs of model.fit.",
)
def command(
    output: Output, sheet: Path, device: str, seed: int, seconds: float, epochs: int
) -> int:
    """Write records, train, stop and resume, compare executors and measure rates.

    On real data, in about a minute. The exit status is 1 if the accuracy is too low, if resumed
    batches differ, or if executors disagree.
    """
    missing = [package for package in PACKAGES if not is_installed(package)]
    if missing:
        extras = ",".join(dict.fromkeys(PACKAGES[package] for package in missing))
        raise missing_package(missing[0], needed_for="gpuload demo", extra=extras)
    if not sheet.absolute().parent.is_dir():
        raise MissingFileError(
            f"--output {sheet}", cause="there is no such folder", remedy="make it, or name another"
        )
    if sheet.is_dir():
        raise DirectoryError(
            f"--output {sheet}", cause="it is a folder", remedy="name the file: --output sheet.png"
        )
    from rich.console import Console

    from gpuload_demo.report import Report

    os.environ.setdefault("GPULOAD_PROGRESS", "0")  # the report has a status of its own
    report, start_s = Report(Console(highlight=False, quiet=output.is_json)), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="gpuload-demo-") as folder:
        _all_parts(
            report, Path(folder), sheet, device=device, seed=seed, seconds=seconds, epochs=epochs
        )
    status = report.end(time.perf_counter() - start_s)
    output.result(**report.document())
    return status


def _all_parts(
    report: Report,
    folder: Path,
    sheet: Path,
    *,
    device: str,
    seed: int,
    seconds: float,
    epochs: int,
) -> None:
    from gpuload import device as devices

    device, reason = devices.choose(device)
    report.title("gpuload demo", f"device {device}: {reason}")
    _write(report, folder)
    _train(report, folder, device, seed, epochs)
    _augment(report, folder, device, seed, sheet)
    _resume(report, folder, device)
    _compare(report, folder, device, seed)
    _measure(report, folder, device, seconds)


def _write(report: Report, folder: Path) -> None:
    from gpuload_demo import data as demo_data

    with report.part("1  Real records, in the formats that data comes in"):
        demo_data.write(folder, demo_data.load_digits())
    for number, shard in enumerate(demo_data.SHARDS):
        report.fact(f"images-{number}.npy  {shard}")
    with demo_data.npy(folder) as npy, demo_data.fixed(folder) as fixed:
        report.fact(f"all shards as one source: {len(npy):,} records of {npy.spec}")
        report.fact(f"fixed-length records: {len(fixed):,} of {fixed.spec}")
    with demo_data.digit_jpegs(folder) as digit_jpegs, demo_data.photos(folder) as photos:
        report.fact(
            f"JPEG files: {len(digit_jpegs):,} digits, two photographs, {len(photos)} pieces of them"
        )


def _train(report: Report, folder: Path, device: str, seed: int, epochs: int) -> None:
    from gpuload_demo import train as demo_train

    with report.part("2  A network, trained through gpuload") as say:
        say("starting TensorFlow")
        start_s = time.perf_counter()
        with _without_greetings():
            importlib.import_module("tensorflow").constant(0)
        result = demo_train.train(folder, seed=seed, device=device, num_epochs=epochs, say=say)
        took = time.perf_counter() - start_s
    report.fact(
        f"model.fit over dataset(loader), NPY shards: {result.after_fit} of {result.num_held_out} held-out digits right"
    )
    report.fact(
        f"a loop over tensors(loader), fixed records: {result.num_shared:,} tensors shared, {result.num_copied} copied"
    )
    report.check(
        result.accuracy >= demo_train.TARGET,
        f"{result.right} of {result.num_held_out} held-out digits right ({result.accuracy:.1%}): "
        f"{result.num_epochs} epochs in {took:.0f} s",
        otherwise=f"accuracy on held-out digits is {result.accuracy:.1%}, below {demo_train.TARGET:.0%}",
    )


def _augment(report: Report, folder: Path, device: str, seed: int, sheet: Path) -> None:
    from gpuload_demo import sheet as demo_sheet
    from gpuload_demo import train as demo_train

    with report.part("3  What augmentation does") as say:
        say("drawing the contact sheet")
        width, height = demo_sheet.save(folder, sheet, seed=seed)
        worth = demo_train.worth(folder, seed=seed, device=device, say=say)
    report.fact(
        f"to see: two photographs as stored, and cut, mirrored, brighter and darker in {demo_sheet.NUM_EPOCHS} epochs: "
        f"{sheet} ({width} x {height} pixels)"
    )
    report.fact(
        f"to count: a network that learns from {demo_train.NUM_FEWER} digits alone is wrong about "
        f"{_of(worth.wrong_without, worth)} of {worth.num_held_out:,} others; with RandomCrop about "
        f"{_of(worth.wrong_with, worth)}"
    )


def _of(wrong: int, worth: Worth) -> str:
    return f"{wrong} ({wrong / worth.num_held_out:.1%})"


def _resume(report: Report, folder: Path, device: str) -> None:
    from gpuload_demo import resume as demo_resume

    with report.part("4  Stopped in mid-epoch, resumed in a new process") as say:
        say("a new process resumes")
        result = demo_resume.resume(folder, device=device)
    report.fact(
        f"stopped after step {demo_resume.STOP_AFTER}; the state is {result.state_bytes} bytes of JSON"
    )
    for line, expected_line in zip(result.resumed_lines[:2], result.uninterrupted[:2], strict=True):
        if line == expected_line:
            verdict = "the records and pixels"
        else:
            verdict = "NOT the records and pixels"
        report.fact(f"resumed: {line.rpartition(' ')[0]}, {verdict} of the run that never stopped")
    report.check(
        result.equal,
        f"all {len(result.resumed_lines)} following batches are those of a run that never stopped",
        otherwise=f"the resumed batches differ: {_first_difference(result.uninterrupted, result.resumed_lines)}",
    )


def _compare(report: Report, folder: Path, device: str, seed: int) -> None:
    from gpuload_demo import parity as demo_parity

    with report.part("5  The same pixels from DALI as from arrays") as say:
        say("decoding and augmenting twice")
        for name in ("cpu", device) if device != "cpu" else ("cpu",):
            for parity in demo_parity.compare(folder, seed=seed, device=name):
                summary = f"{'' if name == 'cpu' else f'DALI on {name}: '}{parity}; the tolerance is {parity.bound}"
                failure = f"DALI and the array executor are apart: {summary}"
                report.check(parity.holds, summary, otherwise=failure)


def _measure(report: Report, folder: Path, device: str, seconds: float) -> None:
    from gpuload_demo import rates as demo_rates

    with report.part("6  Records per second, beside tf.data on the same work") as say:
        rates = demo_rates.measure(folder, device=device, seconds=seconds, say=say)
    report.rates(rates, demo_rates.notes(device))


@contextmanager
def _without_greetings() -> Iterator[None]:
    """Hide the lines that TensorFlow 2.21 writes to stderr before its log level is in force; show
    them if it fails."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault(
        "TF_FORCE_GPU_ALLOW_GROWTH", "true"
    )  # the GPU's memory is for the loader, too
    # The descriptor, not sys.stderr: these lines come from C++, which knows nothing of Python's
    # streams.
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as stderr_file:
        os.dup2(stderr_file.fileno(), 2)
        try:
            yield
        except BaseException:
            stderr_file.seek(0)
            os.write(stderr, stderr_file.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _first_difference(expected: list[str], actual: list[str]) -> str:
    for expected_line, actual_line in zip(expected, actual, strict=False):
        if expected_line != actual_line:
            return f"{expected_line!r} became {actual_line!r}"
    return f"{len(expected)} batches became {len(actual)}"
