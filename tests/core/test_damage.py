"""Of damaged bytes the core says what the forms in Python say, to the letter."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import core
from gpuload.errors import RowError
from gpuload.formats.tfrecord import framing, parsing
from gpuload.formats.tfrecord.features import columns_of
from gpuload.images import head as heads
from gpuload.images import scans
from tests import imagefiles
from tests.attack import messages
from tests.attack.corpus import corpus
from tests.attack.mutate import mutated

if core.native is None:
    pytest.skip(core.problem, allow_module_level=True)

NUM_ROUNDS = 40
JPEGS = [
    *(data for data in corpus() if data.startswith(b"\xff\xd8")),
    imagefiles.jpeg(120, 90, restart_marker_blocks=3),
    imagefiles.jpeg(120, 90, progressive=True),
]


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except (ValueError, RowError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("seed", range(len(JPEGS)))
def test_heads_and_scans_of_jpegs(seed, monkeypatch):
    rng, data = np.random.default_rng(seed), JPEGS[seed]
    files = [
        data,
        *(mutated(data, rng, most=int(rng.integers(1, 5))) for _ in range(NUM_ROUNDS)),
        *lost(data, rng),
    ]

    by_core = [outcome(heads.read, file) for file in files]
    monkeypatch.setattr(core, "native", None)

    assert by_core == [outcome(heads.read, file) for file in files]
    assert len(set(map(str, by_core))) > 1


def lost(data, rng):
    """Yield a file whose blocks were lost, whose end was cut off, and with markers where none may
    stand."""
    begin = min(data.find(b"\xff\xda") + 12, len(data) - 1)
    for length in (100, 255, 256, 257, 400):
        place = int(rng.integers(begin, max(begin + 1, len(data) - length)))
        yield data[:place] + bytes(length) + data[place + length :]
        yield data[:place] + bytes(length) + data[place:]
    for marker in (0xD0, 0xD7, 0xD8, 0xD9, 0xDA, 0xC4, 0xDD, 0xE0, 0xFF, 0x01, 0x00):
        place = int(rng.integers(begin, len(data)))
        yield data[:place] + bytes([0xFF, marker]) + data[place:]
        yield data[:-2] + bytes([0xFF, marker]) + data[-2:]
    for length in range(1, 40):
        yield data[:-length]


def test_what_the_core_takes_for_damaged_is_read_again_in_python(monkeypatch):
    read, plain = [], scans.read_plain
    monkeypatch.setattr(scans, "read_plain", lambda *more: read.append(1) or plain(*more))

    heads.read(imagefiles.jpeg())
    assert read == []
    with pytest.raises(heads.HeadError):
        heads.read(imagefiles.jpeg()[:-2])
    assert read == [1]


@pytest.mark.parametrize("seed", range(8))
def test_frames_of_tfrecords(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    whole = b"".join(messages.framed(rng.bytes(int(size))) for size in rng.integers(0, 50, 12))
    files = [
        whole,
        *(mutated(whole, rng, most=3) for _ in range(NUM_ROUNDS)),
        *(whole[:-n] for n in range(1, 30)),
    ]

    def walk(data):
        room = np.zeros(len(data), np.int64)
        count, place = framing._walk(
            np.frombuffer(data, np.uint8), len(data) + seed, room, verify=bool(seed % 2)
        )
        return count, place, room[:count].tolist()

    by_core = [walk(data) for data in files if data]
    monkeypatch.setattr(core, "native", None)

    assert by_core == [walk(data) for data in files if data]


@pytest.mark.parametrize("seed", range(8))
def test_messages_of_examples(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    whole = messages.example(rng)
    columns = columns_of(
        {"b": "bytes", "f": ("f4", (None,)), "i": ("i8", (None,)), "missing": "i8"}, None
    )

    def parse(data):
        raw = np.frombuffer(data, np.uint8)
        values = parsing.parse_features(raw, np.zeros(1, np.int64), np.array([raw.size]), columns)
        return [
            (column.counts.tolist(), column.values.tobytes(), column.lengths.tolist())
            for column in values
        ]

    files = [
        whole,
        *(mutated(whole, rng, most=3) for _ in range(NUM_ROUNDS)),
        *(whole[:-n] for n in range(1, 30)),
    ]
    by_core = [outcome(parse, data) for data in files]
    monkeypatch.setattr(core, "native", None)

    assert by_core == [outcome(parse, data) for data in files]
