"""The core reads the heads of JPEGs as `images.head.read` does: the same numbers, or it leaves the
file to that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuload import core
from gpuload.errors import RowError
from gpuload.images import head as heads
from gpuload.ragged import Ragged
from tests import imagefiles
from tests.attack.corpus import corpus
from tests.attack.mutate import mutated
from tests.core.test_damage import JPEGS, lost

if core.native is None:
    pytest.skip(core.problem, allow_module_level=True)

NUM_ROUNDS = 40
GOLDEN = Path(__file__).parents[1] / "golden" / "images"
FILES = [path for path in sorted(GOLDEN.rglob("*")) if path.is_file() and path.stat().st_size]
ENTRIES = [
    *((imagefiles.entry(0x112, value.to_bytes(4, "little")),) for value in (0, 1, 3, 6, 8, 9, 300)),
    (imagefiles.entry(0x112, b"\x06\0\0\0"), imagefiles.entry(0x110, b"\xff\xff\0\0", kind=2, count=8)),
    (imagefiles.entry(0x110, b"\xff\xff\0\0", kind=2, count=8), imagefiles.entry(0x112, b"\x06\0\0\0")),
    (imagefiles.entry(0x110, b"\xff\xff\0\0", kind=2, count=4), imagefiles.entry(0x112, b"\x06\0\0\0")),
    (imagefiles.entry(0x11A, b"\x10\0\0\0", kind=5), imagefiles.entry(0x112, b"\x08\0\0\0")),
    (imagefiles.entry(0x112, b"\x05\0\0\0"), imagefiles.entry(0x214, b"\x10\0\0\0", kind=5)),
    (imagefiles.entry(0x112, b"\x05\0\0\0"), imagefiles.entry(0x112, b"\x06\0\0\0")),
]  # fmt: skip


def turned(value, order="<"):
    return imagefiles.exif(imagefiles.turned(value, order), order=order)


def by_python(file):
    """Return the row of `read_heads` that the reader in Python makes; None for a file that it
    refuses.

    None as well for stray bytes in front of a marker, which the core leaves to Python.
    """
    try:
        head = heads.read(file)
    except heads.HeadError:
        return None
    if head.form == "stray bytes":
        return None
    jpeg = [head.channels, head.orientation, head.scan_end] if head.kind == "jpeg" else [0, 0, 0]
    return [head.height, head.width, head.scans, *jpeg]


def by_core(files):
    """Return the row of each file; None for those that the core does not understand."""
    ragged = Ragged.of([np.frombuffer(file, np.uint8) for file in files], np.dtype(np.uint8))
    rows = np.full((len(files), len(heads.COLUMNS)), -1, np.int32)
    core.native.read_jpeg_heads(ragged.payload, ragged.offsets[:-1], ragged.offsets[1:], rows)
    return [row if row[0] else None for row in rows.tolist()]


def check(files):
    """Assert that the core says what Python says; that it leaves an unusual JPEG to Python would be
    no error."""
    reference = [by_python(file) for file in files]
    assert by_core(files) == [row if row and row[3] else None for row in reference]
    return reference


def test_real_files_of_all_formats():
    rows = check([*(path.read_bytes() for path in FILES), *corpus()])

    assert sum(bool(row and row[3]) for row in rows) > 30  # JPEGs
    assert (
        sum(row is None for row in rows) > 10
    )  # of formats that are decoded, but damaged, or none


@pytest.mark.parametrize("seed", range(len(JPEGS)))
def test_damaged_files(seed):
    rng, data = np.random.default_rng([seed, 1]), JPEGS[seed]

    check(
        [
            data,
            *(mutated(data, rng, most=int(rng.integers(1, 5))) for _ in range(4 * NUM_ROUNDS)),
            *lost(data, rng),
        ]
    )


def test_files_that_were_cut_off_anywhere_in_their_headers():
    data = imagefiles.inserted(imagefiles.jpeg(40, 30), imagefiles.exif_segment(turned(6)))

    rows = check([data[:end] for end in (*range(700), *range(len(data) - 40, len(data) + 1))])

    assert rows[-1] == [30, 40, 1, 3, 6, len(data) - 2]


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientations_in_exif_blocks_whole_and_damaged(order):
    rng = np.random.default_rng(7)
    blocks = [
        imagefiles.exif(*entries, order="<", count=count)
        for entries in ENTRIES
        for count in (None, 1, 3, 900)
    ]
    blocks += [turned(value, order) for value in range(10)]
    blocks += [mutated(block, rng, most=2) for block in blocks for _ in range(10)]
    blocks += [block[:size] for block in blocks[:20] for size in range(len(block))]
    plain = imagefiles.jpeg(40, 30)
    files = [
        imagefiles.inserted(plain, imagefiles.exif_segment(block))
        for block in blocks
        if len(block) < 60000
    ]
    two = [imagefiles.exif_segment(turned(value, order)) for value in (1, 6)]

    rows = check(
        [*files, *(imagefiles.inserted(plain, *both) for both in (two, two[::-1], two[:1] * 2))]
    )

    assert len({row[4] for row in rows if row}) == 8


def test_heads_of_a_batch_say_the_same_without_the_core(monkeypatch):
    png, jpeg = imagefiles.png(), imagefiles.jpeg(17, 33)
    files = Ragged.of(
        [np.frombuffer(file, np.uint8) for file in (jpeg, png, jpeg)], np.dtype(np.uint8)
    )[1:]

    rows = heads.read_heads(files)

    assert heads.jpeg_head(rows[0]) is None
    assert heads.jpeg_head(rows[1]) == heads.read(jpeg)
    monkeypatch.setattr(core, "native", None)
    np.testing.assert_array_equal(heads.read_heads(files)[:, :3], rows[:, :3])


def test_a_file_that_is_refused_is_an_error_of_its_row():
    files = [imagefiles.jpeg(), imagefiles.png(), imagefiles.jpeg()[:-2], b"nothing"]
    ragged = Ragged.of([np.frombuffer(file, np.uint8) for file in files], np.dtype(np.uint8))

    with pytest.raises(RowError, match="end-of-image marker") as caught:
        heads.read_heads(ragged)

    assert caught.value.row == 2


def test_places_outside_the_memory_are_refused():
    data, out = np.zeros(10, np.uint8), np.zeros((1, 6), np.int32)
    for begin, end in ((-1, 5), (0, 11), (6, 5)):
        with pytest.raises((IndexError, ValueError)):
            core.native.read_jpeg_heads(data, np.array([begin]), np.array([end]), out)
    with pytest.raises(ValueError, match="six"):
        core.native.read_jpeg_heads(data, np.array([0]), np.array([5]), np.zeros((1, 5), np.int32))
