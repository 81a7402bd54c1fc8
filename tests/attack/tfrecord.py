"""TFRecord files, sound and damaged: the values of protobuf, what has another checksum refused,
nothing else lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload.errors import GpuloadError, RecordError
from tests.attack import messages
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated

FEATURES = {"i": ("i8", (None,)), "f": ("f4", (None,)), "b": "bytes"}


def attack(seconds: float, seed: int) -> Report:
    """Read TFRecord files."""
    if messages.google_crc32c is None:
        return Report(without=messages.MISSING)
    return hunt(seconds, seed, trial, more_bytes=1 << 27)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a file, damage it or the messages in it, and read it."""
    payloads = [messages.example(rng) for _ in range(rng.integers(1, 30))]
    for number in range(len(payloads)):
        if (
            rng.random() < 0.2
        ):  # a message that is damaged before it is written, so that its checksum is right
            payloads[number] = mutated(payloads[number], rng, most=2)
    data = b"".join(map(messages.framed, payloads))
    if rng.random() < 0.5:
        data = mutated(data, rng, most=2)
    path = folder / "a.tfrecord"
    path.write_bytes(data)
    expected, is_whole = messages.walk(data)
    status, result = outcome(gl.tfrecord, path, FEATURES)
    if status == "refused":
        firsts = [payload and messages.fields_of(payload) for payload in expected[:8]]
        assert not is_whole or not any(firsts), f"a whole file is refused: {result}"
        _check_listed(path, data, expected, is_whole)
        return status
    with result as source:
        assert is_whole, "a damaged file is opened"
        assert len(source) == len(expected), f"{len(source)} records, of {len(expected)}"
        for number in range(len(source)):
            _check_record(source, number, expected[number])
        _check_loader(source, rng)
        _check_listed(source, data, expected, is_whole)
    _check_listed(path, data, expected, is_whole)
    return status


def _check_record(source: Any, number: int, payload: bytes | None) -> None:
    status, result = outcome(lambda: source[number])
    expected = None if payload is None else messages.fields_of(payload)
    if status == "refused":
        assert isinstance(result, RecordError), f"record {number}: {result!r}"
        is_one = expected is not None and len(expected["b"]) == 1  # "bytes" is one value
        is_cut = (
            "a number of more than 64 bits" in result.what
            or "a number that does not end" in result.what
        )
        # Of a number of ten bytes and more than 64 bits protobuf takes 64; here it is refused.
        assert not is_one or is_cut, f"record {number} is refused: {result}"
        return
    assert payload is not None, f"record {number} is damaged, and read"
    if expected is None:  # protobuf refuses keys that are no UTF-8, which are not ours to read
        return
    assert result["i"].tolist() == expected["i"], (
        f"record {number}: {result}, by protobuf {expected}"
    )
    assert np.array_equal(result["f"], np.array(expected["f"], np.float32), equal_nan=True), (
        f"record {number}: {result}"
    )
    assert [result["b"].tobytes()] == expected["b"], (
        f"record {number}: {result}, by protobuf {expected}"
    )


def _check_loader(source: Any, rng: np.random.Generator) -> None:
    """Check that a loader replaces just what cannot be read."""
    broken = {
        number
        for number in range(len(source))
        if outcome(lambda n=number: source[n])[0] == "refused"
    }
    if len(broken) * 2 > len(source):
        return
    size = int(rng.integers(1, 9))
    with gl.Loader(
        source, size, on_error="replace", max_bad=1, device="cpu", num_threads=2
    ) as load:
        rows = []
        for batch in load:
            rows += [
                (int(record), fields)
                for record, *fields in zip(batch.records, *batch.values(), strict=True)
            ]
        assert {bad.record for bad in load.bad_records()} == broken
    assert len(rows) == len(source)
    for plan, (record, fields) in enumerate(rows):
        assert record not in broken
        assert record == plan or plan in broken
        for value, name in zip(fields, source.spec.names, strict=True):
            assert np.array_equal(value, source[record][name], equal_nan=name == "f")


def _check_listed(value: Any, data: bytes, expected: list[bytes | None], is_whole: bool) -> None:
    """Check that ``gpuload.check`` lists each record with another checksum, and where the file
    breaks off."""
    try:
        entries = list(gl.check(value, num_threads=1))
    except GpuloadError as error:
        raise AssertionError(f"check raised {error!r}") from error
    offsets = {finding.offset_bytes for finding in entries}
    wrong, place = set(), 0
    if expected or is_whole:
        for payload in expected:
            if payload is None:
                wrong.add(place)
            place += 16 + int.from_bytes(data[place : place + 8], "little")
        assert wrong <= offsets, f"damaged at {sorted(wrong)}, listed {entries}"
    assert is_whole or entries, "a file that breaks off is not listed"
