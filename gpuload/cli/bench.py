"""``gpuload bench PATH``: how fast files come as batches, which stage takes the time, and which
change helps most.

    gpuload bench train.npy                                     rows, shuffled, for five seconds
    gpuload bench photos --ops augment:train_ops --step-ms 40   beside training steps of 40 ms
    gpuload bench photos --against tfdata,torch                 beside plain loaders of these on the same files

Images on a machine with a GPU have ways: who decodes them, and where. These are measured beside one
another, and it says which one to write.

First the limits of the machine are measured on these files: reading from storage in order and in
random order (the system is asked to forget a part of the files before that), copying memory,
decoding images alone, copying to a GPU. Then a loop takes batches, and the time of each stage
stands beside these limits.

Exit status 0, or 2 if the files cannot be read.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import click
from gpuload_peers.loaders import PEERS, measure_peer

import gpuload as gl
from gpuload import device as devices
from gpuload.cli.base import COLUMNS, COMMAND, PATH, Number, Output, WholeNumber, as_paths, verb
from gpuload.cli.bench_limits import measure_limits
from gpuload.cli.bench_ways import MEANINGS, WayTable, compare_ways
from gpuload.cli.userops import find_ops, words_of
from gpuload.errors import WITHOUT_RECORD, RecordError, SpecError
from gpuload.ops.base import Op
from gpuload.pipeline.damage import BadRecord
from gpuload.progress import Progress
from gpuload.sources.base import Source
from gpuload.stats import Limits, StageLimit, Stats

WARM_UP = 0.2  # of the seconds: the first batches start threads, fill caches, compile
SIDE = 224  # pixels of images, where no ops are given
EXPLANATIONS = {
    "copy_bytes": "memory copy, images/s: of one thread, beside what one thread does with nothing else",
    "random_bytes": "reads: of all threads, beside these files from storage, not from the page cache",
    "pinned_bytes": "link to the GPU: on the clock of the GPU, beside copies from page-locked memory",
}
REST = {
    "random_bytes": ("random reads of storage", 1e6, "MB/s"),
    "sequential_bytes": ("reads of storage, in order", 1e6, "MB/s"),
    "copy_bytes": ("memory copy", 1e6, "MB/s"),
    "decode_images": ("decoding alone, one thread", 1, "images/s"),
    "pinned_bytes": ("page-locked memory to GPU", 1e6, "MB/s"),
    "pageable_bytes": ("other memory to GPU", 1e6, "MB/s"),
}


@dataclass(frozen=True)
class Run:
    """A loop over batches.

    Attributes:
        stats: of the loader, without the warm-up.
        seconds: of the loop, without the warm-up.
        first_batch_s: until the first batch was there.
        core_s: processor time of all threads in these seconds.
    """

    stats: Stats
    seconds: float
    first_batch_s: float
    core_s: float

    def rate(self, name: str) -> float:
        """Return a counter for each second."""
        return self.stats[name] / self.seconds

    @property
    def core_ms(self) -> float:
        """Processor time of all threads for a record, milliseconds."""
        return self.core_s / max(1.0, self.stats["records"]) * 1e3


@verb
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
@click.option(
    "--ops",
    "ops_name",
    metavar="MODULE:NAME",
    help="A list of ops in a Python module: augment:train_ops.",
)
@click.option(
    "--batch-size",
    type=WholeNumber(1),
    default=64,
    show_default=True,
    metavar="N",
    help="Records of a batch.",
)
@click.option(
    "--step-ms",
    type=Number(0),
    default=0.0,
    show_default=True,
    metavar="MS",
    help="Duration of a training step; bench sleeps instead.",
)
@click.option(
    "--seconds",
    type=Number(0.1),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Duration of the measurement.",
)
@click.option(
    "--num-threads",
    type=WholeNumber(1),
    metavar="N",
    help="Threads.  [default: the cores, then as measured]",
)
@click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, gpu or gpu:N."
)
@click.option(
    "--in-order", is_flag=True, help="Read records in the order of the files, not shuffled."
)
@click.option(
    "--on-error",
    default="raise",
    show_default=True,
    metavar="WHAT",
    type=click.Choice(["raise", "replace", "skip"]),
    help="The action for a damaged record: raise, replace or skip.",
)
@click.option(
    "--against", default="", metavar="PEERS", help=f"Measure these loaders, too: {','.join(PEERS)}."
)
def command(
    output: Output, paths: tuple[str, ...], ops_name: str | None, batch_size: int, step_ms: float, seconds: float,
    num_threads: int | None, device: str, in_order: bool, on_error: str, against: str,
) -> int:  # fmt: skip
    """Measure how fast files come as batches. Name the slowest stage, and the change that helps
    most.

    PATH: files of one format, wildcards in quotes, or a folder of them. Without --ops records are
    only read; images are decoded and resized to 224 x 224.
    """
    peers = _peers(against)
    ops = find_ops(ops_name) if ops_name else None
    source = gl.open(as_paths(paths))
    plain = plain_ops(source)
    if ops is None:
        ops = plain
    options: dict[str, Any] = {
        "shuffle": not in_order, "num_threads": num_threads, "device": device, "on_error": on_error, "max_bad": 1.0,
    }  # fmt: skip
    progress = Progress("measuring the machine, then loops")
    with progress, _own_option(), gl.Loader(source, batch_size, ops=ops, **options) as loader:
        progress.show()
        # The limits come first: of files that a loader has mapped the system keeps the pages in its
        # cache, whatever it is advised, and storage would look fast.
        limits = measure_limits(
            source, on_gpu=loader.device != "cpu", seconds=min(1.0, seconds / 5)
        )
        run = measure_loop(loader, seconds, step_ms / 1e3, progress.show)
        bad_records = loader.bad_records()

        def figures(way: gl.Loader, way_s: float) -> tuple[float, float]:
            way_run = measure_loop(way, way_s, step_ms / 1e3, progress.show)
            return way_run.rate("records"), way_run.core_ms

        ways = compare_ways(
            partial(gl.Loader, source, batch_size, ops=ops, **options), loader, figures, seconds
        )
    rates: dict[str, float | str] = {}
    if peers:
        with gl.Loader(source, batch_size, ops=plain, **options) as loader:
            # With the plain ops and no pause, as the peers do it: a user's ops are not part of the
            # comparison.
            rates["gpuload"] = measure_loop(loader, seconds, 0.0).rate("records")
        for peer in peers:
            rates[peer] = measure_peer(peer, source, batch_size, not in_order, seconds)
    bottleneck = run.stats.bottleneck(limits)
    # The loader may have chosen other numbers than those that were given.
    threads, prefetch = int(run.stats["num_threads"]), int(run.stats["prefetch"])
    columns = min(COLUMNS, output.console.width)
    output.say(repr(source))
    output.say(f"batches of {batch_size}, {_count(len(ops), 'op')}, on {loader.device}")
    output.say(f"{_count(threads, 'thread')}, {_count(prefetch, 'step')} ahead\n")
    _say_run(output, run, limits, bad_records, columns)
    if rates:
        _say_rates(output, rates, "only decoded and resized" if plain else "read only")
    line = ""
    if ways is not None and ways.best is not None:
        line = loader_line(
            as_paths(paths),
            batch_size,
            words_of(ops_name) if ops_name else plain_words(source),
            ways.best.words,
            in_order=in_order,
            device=device,
        )
    if ways is not None:
        _say_ways(output, ways, line, columns)
    output.say("\n" + _wrap(str(bottleneck), columns))
    if tuning := run.stats.tuning:
        output.say(_wrap(f"Tuning: {tuning}.", columns))
    figures_of_ways = dict[str, Any]()
    if ways is not None:
        figures_of_ways = {**ways.as_dict(), "loader_line": line}
    output.result(
        num_records=len(source), batch_size=batch_size, device=loader.device, num_threads=threads,
        prefetch=prefetch, records_per_s=run.rate("records"), batches_per_s=run.rate("batches"),
        bytes_per_s=run.rate("bytes"), first_batch_s=run.first_batch_s, limits=asdict(limits), against=rates,
        num_bad_records=len(bad_records), **figures_of_ways, **run.stats.as_dict(limits),
    )  # fmt: skip
    return 0


def _say_run(
    output: Output, run: Run, limits: Limits, bad_records: Sequence[BadRecord], columns: int
) -> None:
    """Print the rates of a loop, its first damaged record, and the table of its stages."""
    output.say(
        f"{run.rate('records'):,.0f} records/s, {run.rate('batches'):,.1f} batches/s, "
        f"{run.rate('bytes') / 1e6:,.1f} MB/s of batches;\n"
        f"first batch after {run.first_batch_s:.3f} s\n"
    )
    if bad_records:
        first = f"{bad_records[0].where}: {bad_records[0].cause}"
        text = f"{_count(len(bad_records), 'damaged record')}, the first: {first}"
        output.say(_wrap(text, columns) + "\n")
    output.say(run.stats.table(limits, columns), is_wrapped=False)
    for line in limit_lines(limits, run.stats.stage_limits(limits).values()):
        output.say(_wrap(line, columns, indent="  "))


def _say_rates(output: Output, rates: Mapping[str, float | str], title: str) -> None:
    """Print the records per second of gpuload and its peers; a text says why a peer has none."""
    output.say(f"\n{title}")
    for name, rate in rates.items():
        if isinstance(rate, float):
            rate = f"{rate:>12,.0f} records/s"
        output.say(f"{name:<14} {rate}")


def _say_ways(output: Output, ways: WayTable, line: str, columns: int) -> None:
    """Print the ways beside one another, and the lines of Python that take the best one."""
    if ways.why_not:
        text = f"Not measured: the ways of images to a GPU, for {ways.why_not}"
        output.say("\n" + _wrap(text, columns))
        return
    output.say(f"\n{'ways to the GPU':<32} {'records/s':>10} {'core ms each':>12}")
    for way in ways.ways:
        line = way.line()
        if way.why_not:
            line = _wrap(line, columns, indent=" " * 33)
        output.say(line)
    if ways.auto:
        output.say(_wrap(f"Without these arguments images are decoded {ways.auto}.", columns))
    output.say(_wrap(ways.reason(), columns))
    if ways.best is not None:
        output.say("Write:")
        output.say(textwrap.indent(line, COMMAND), is_wrapped=False)
    rated = [way for way in ways.ways if not way.why_not]
    if len(rated) > 1 and rated[-1] == ways.ways[-1]:  # images are decoded here and there
        output.say(_wrap(MEANINGS, columns))


def loader_line(
    files: str | list[str],
    batch_size: int,
    ops: tuple[str, str],
    way: str,
    *,
    in_order: bool,
    device: str,
) -> str:
    """Return the lines of Python that make a loader as it was measured, in a way.

    Args:
        files: the paths, as `gl.open` takes them.
        batch_size: records.
        ops: the line that imports them, and the list of them in Python.
        way: the arguments that name the way.
        in_order: whether records are read in the order of the files.
        device: as it was asked for.
    """
    import_line, ops_list = ops
    words = [f"gl.open({files!r})", str(batch_size), f"ops={ops_list}"]
    if not in_order:
        words.append("shuffle=True")
    if device == "auto":
        words += []
    else:
        words += [f'device="{device}"']
    return f"{import_line}loader = gl.Loader({', '.join([*words, way])})"


def plain_words(source: Source) -> tuple[str, str]:
    """Return ``plain_ops`` in Python, behind the line that imports them, which they do not need."""
    names = [field.name for field in source.spec if field.encoded]
    ops = [
        f"gl.ops.Decode(on={name!r}), gl.ops.Resize({SIDE}, {SIDE}, on={name!r})" for name in names
    ]
    return "", f"[{', '.join(ops)}]"


@contextmanager
def _own_option() -> Iterator[None]:
    """Name the option of this verb, in place of the argument of a loader, in the remedy for a
    damaged record."""
    try:
        yield
    except RecordError as error:
        error.remedy = error.remedy.replace(WITHOUT_RECORD, "--on-error replace")
        raise


def plain_ops(source: Source) -> list[Op]:
    """Return the ops where none are given: images are decoded and resized, as batches need them."""
    names = [field.name for field in source.spec if field.encoded]
    return [
        op for name in names for op in (gl.ops.Decode(on=name), gl.ops.Resize(SIDE, SIDE, on=name))
    ]


def measure_loop(
    loader: gl.Loader, seconds: float, step_s: float, show: Callable[[], None] = lambda: None
) -> Run:
    """Return the measurement of a loop over batches that sleeps, and calls ``show``, between two of
    them.

    Where the batches lie on the host of a machine with a GPU, each is copied there, as a training
    would copy it.
    """
    training_device = devices.choose("auto")[0]
    uploads = loader.device == "cpu" and training_device != "cpu"
    begin, first_batch_s, before = time.perf_counter(), 0.0, Stats({})
    start, epoch, core_start = begin, 0, 0.0
    # An epoch may be shorter than the measurement; and without a record this would never end.
    while len(loader):
        for batch in loader.epoch(epoch):
            now = time.perf_counter()
            first_batch_s = first_batch_s or now - begin
            # A counter keeps the sum since the loader began: the sum of the warm-up is taken off
            # again.
            if not before and now - begin > WARM_UP * seconds:
                before, start, core_start = loader.stats(), now, time.process_time()
            if before and now - start > seconds:
                core_s = time.process_time() - core_start
                return Run(loader.stats() - before, now - start, first_batch_s, core_s)
            if uploads:
                _upload(loader, batch, training_device)
            show()
            if step_s:
                time.sleep(step_s)
        epoch += 1
    raise SpecError(
        "a source without records",
        cause="there is nothing to be measured",
        remedy="check the paths",
    )


def _upload(loader: gl.Loader, batch: gl.Batch, device: str) -> None:
    """Copy a batch from ordinary memory to the GPU, and count the time."""
    begin = time.perf_counter()
    for values in batch.values():
        if getattr(values, "dtype", None) is not None and values.dtype.kind in "iufb":
            devices.upload(values, device)
    # The copy itself goes on behind the call; without this only the call would be timed.
    devices.synchronize(device)
    loader.port.count("pageable_upload_s", time.perf_counter() - begin)


def _wrap(text: str, columns: int, indent: str = "") -> str:
    """Return lines of at most so many columns; a path stays whole."""
    lines = textwrap.wrap(
        text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def limit_lines(limits: Limits, beside: Iterable[Sequence[StageLimit]]) -> list[str]:
    """Return lines that explain limits beside stages, and the limits that stand beside none, a line
    each."""
    names = {limit.name for stage in beside for limit in stage}
    lines = [text for name, text in EXPLANATIONS.items() if name in names]
    for name, (text, scale, unit) in REST.items():
        if name not in names and (rate := getattr(limits, name)):
            lines.append(f"{text:<26} {rate / scale:>10,.0f} {unit}")
    return lines


def _peers(text: str) -> list[str]:
    """Return the names of peers in a text."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise SpecError(
                f"--against {text}",
                cause=f"{name} is no peer that it knows",
                remedy=f"use {', '.join(PEERS)}",
            )
    return names
