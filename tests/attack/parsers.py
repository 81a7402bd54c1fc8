"""Our own parsers under atheris, which looks for inputs that reach new lines: headers, heads of
images, messages.

Each target runs in a process of its own: libFuzzer ends the process that it runs in.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import re
import struct
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.errors import GpuloadError
from tests.attack import corpus, messages, npy
from tests.attack.hunt import FINDINGS_FOLDER, Report

ROOT = Path(__file__).parents[2]
MOST_BYTES, MOST_S, SHOWN = 4096, 10, 4000
MOST_MB = 8192  # the fuzzer itself grows by 1 GB in a million inputs; the readers do not (`heads`, `npy` look for that)
HEADS = [
    "scans",
    *(
        f"heads.{name}"
        for name in ("jpeg", "png", "webp", "tiff", "bmp", "pnm", "jp2", "gif", "avif")
    ),
]
UNCAUGHT = b"Uncaught Python exception"
EXECUTED = re.compile(rb"stat::number_of_executed_units: +(\d+)")


def attack(seconds: float, seed: int) -> Report:
    """Run each target for its part of the time."""
    report = Report()
    if find_spec("atheris") is None:
        report.without = 'all of it: atheris is not installed, pip install "gpuload[attack]"'
        return report
    for target in TARGETS:
        report.add(_run(target, seconds / len(TARGETS), seed))
    return report


def _run(target: str, seconds: float, seed: int) -> Report:
    report, start_s = Report(), Path(tempfile.mkdtemp(prefix="corpus-"))
    FINDINGS_FOLDER.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(TARGETS[target][1]()):
        (start_s / f"{number}").write_bytes(data)
    options = {
        "max_total_time": max(1, round(seconds)), "seed": seed % 2**32 or 1, "timeout": MOST_S, "max_len": MOST_BYTES,
        "rss_limit_mb": MOST_MB, "print_final_stats": 1, "artifact_prefix": f"{FINDINGS_FOLDER}/{target}-",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.attack.parsers", target, str(start_s)]
    command += [f"-{name}={value}" for name, value in options.items()]
    process = subprocess.run(
        command, cwd=ROOT, capture_output=True, timeout=seconds + 120, check=False
    )
    message = process.stdout + process.stderr
    executed = EXECUTED.search(message)
    report.outcomes = Counter({f"inputs to {target}": int(executed[1]) if executed else 0})
    if process.returncode or not executed:
        place = max(message.find(UNCAUGHT), 0) or len(message) - SHOWN
        lines = message[max(place, 0) :][:SHOWN].decode(errors="replace")
        report.findings.append(
            f"SEED={seed}, {target}, status {process.returncode}, input in {FINDINGS_FOLDER}\n{lines}"
        )
    return report


def _npy_files() -> list[bytes]:
    """Return an NPY file of each dtype and version."""
    results = []
    for dtype in npy.DTYPES:
        file = io.BytesIO()
        np.lib.format.write_array(file, np.zeros((2, 3), np.dtype(dtype)), version=(3, 0))
        results.append(file.getvalue())
    return results


def _check_npy(data: bytes) -> None:
    """Check one header: what NumPy reads of it, or an error of ours."""
    from gpuload.formats.npy import npyheader

    try:
        header = npyheader.read_header("a.npy", 1 << 50, data)
    except GpuloadError:  # FormatError, or that there is no file in which a longer header goes on
        return
    if data[6] == 3 and not data[12 : header.offset_bytes].isascii():
        return
    try:
        shape, fortran, dtype = _by_numpy(data)
    except ValueError:  # NumPy does not take all that Python 2 wrote
        return
    group = sum(length != 1 for length in shape) > 1
    assert (header.shape, header.fortran, header.dtype) == (shape, fortran and group, dtype), header


def _by_numpy(data: bytes) -> Any:
    """Return shape, order and dtype; version 3 is version 2 with another encoding, for which NumPy
    offers no reader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = io.BytesIO(data[8:])
        read = (
            np.lib.format.read_array_header_1_0
            if data[6] == 1
            else np.lib.format.read_array_header_2_0
        )
        return read(file, max_header_size=1 << 20)


def _check_head(data: bytes) -> None:
    """Check one head: a size, or a HeadError."""
    from gpuload.images import head as heads

    try:
        head = heads.read(data)
    except heads.HeadError:
        return
    assert 0 < head.height * head.width <= heads.MAX_PIXELS, head


def _check_message(data: bytes) -> None:
    """Check one tf.train.Example: what protobuf reads of it, or that it is none."""
    from gpuload.formats.tfrecord import wire

    try:
        spans = wire.entries(data, {wire.FEATURES})
        results = {key: wire.feature_of(data, span, is_entry=True) for key, span in spans.items()}
        if any(number > 2 for span in spans.values() for number, *_ in wire.fields(data, *span)):
            return  # of an entry with a field that nobody knows, protobuf's libraries make different things
    except wire.WireError:
        return
    reference = messages.fields_of(data)
    for key, values in (reference or {}).items():
        kind, result = results.get((wire.FEATURES, key.encode()), (0, []))
        if kind == wire.BYTES_LIST:
            result = [data[first:after] for first, after in result]
        elif kind == wire.FLOAT_LIST:
            result = np.array(result, np.uint32).view(np.float32).tolist()
        assert np.array_equal(np.array(result), np.array(values), equal_nan=key == "f"), (
            f"{key}: {result}, {values}"
        )


def _messages() -> list[bytes]:
    return (
        [messages.example(np.random.default_rng(seed)) for seed in range(8)]
        if messages.google_crc32c
        else []
    )


def _check_idx(data: bytes) -> None:
    """Check one header of IDX: an array of just the file's size, or an error of ours."""
    idx = importlib.import_module("gpuload.formats.idx")  # the package has a function of that name

    try:
        header = idx._read_header("a.idx", len(data), data[: idx.HEAD_BYTES], "")
    except GpuloadError:
        return
    elements = math.prod(header.shape)
    assert header.offset_bytes + elements * header.dtype.itemsize == len(data), header


def _idx_files() -> list[bytes]:
    return [
        struct.pack(">HBBII", 0, number, 2, 2, 3) + bytes(6 * size)
        for number, size in ((8, 1), (11, 2), (14, 8))
    ]


def _check_table(data: bytes) -> None:
    """Check the scan of a table: the values of Python's csv module, in one piece and in short
    ones."""
    from gpuload.formats.csv import columns, lines

    dialect = columns.dialect_of(False, ",", '"', "utf-8", 0, [""])
    whole = [(record.line, record.values) for record in lines.scan(data, dialect)]
    is_ended = all(record.open_line == 0 for record in lines.scan(data, dialect))
    block = lines.TextBlock(data, 1, lines.num_ends(data), 0, b'"' in data)
    pieces = list(lines.split_block(block, dialect, 16))
    assert b"".join(piece.data for piece in pieces) == data
    results = [
        (record.line, record.values)
        for piece in pieces
        for record in lines.scan(piece.data, dialect, piece.line)
    ]
    assert results == whole or not is_ended, f"{results} in pieces, {whole} in one"
    try:
        reference = list(csv.reader(io.StringIO(data.decode(), newline="")))
    except (
        csv.Error,
        ValueError,
    ):  # bytes that are 0, and long values; both are refused before the scan
        return
    result = [[value.decode() for value in values] for _, values in whole]
    assert result == [row for row in reference if row] or not is_ended, (
        f"{result}, by Python {reference}"
    )


def _tables() -> list[bytes]:
    return [b"a,b\r\n1,2\r\n", b'a,"b\n""c"",",d\n\n,\n', b'"a"b,c"d"\r"e\rf",']


# Each with what checks an input, what to begin with, and the modules to look into.
TARGETS = {
    "npyheader": (_check_npy, _npy_files, ["gpuload.formats.npy.npyheader"]),
    "head": (
        _check_head,
        lambda: list(corpus.corpus()),
        [f"gpuload.images.{name}" for name in ("head", *HEADS)],
    ),
    "message": (_check_message, _messages, ["gpuload.formats.tfrecord.wire"]),
    "table": (_check_table, _tables, ["gpuload.formats.csv.lines"]),
    "idx": (_check_idx, _idx_files, ["gpuload.formats.idx"]),
}


def main(target: str, arguments: list[str]) -> None:
    """Become libFuzzer for one target; does not return."""
    import atheris

    check, _, modules = TARGETS[target]
    rest = [name for name in sys.modules if name.partition(".")[0] == "gpuload"]
    for name in rest:
        del sys.modules[
            name
        ]  # they are imported anew, with atheris looking at those that are meant
    with atheris.instrument_imports(
        include=["gpuload"], exclude=[name for name in rest if name not in modules]
    ):
        for module in modules:
            __import__(module)
    globals()["GpuloadError"] = sys.modules["gpuload.errors"].GpuloadError
    atheris.Setup([sys.argv[0], *arguments], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
