"""Listing: the part of a manifest about CSV files, which opens files in object stores unread.

Values  the names of the columns, the form of the text, and the form of the rows: for each column
        that was read its kind and its longest text.
Arrays  of each file its records and blocks; of each block its first record, its line, its byte, and
        whether each of its records is one line (`rows.CsvFileRecords`).
Limits  Lines of compressed files, and of those in another encoding, have no places: of these files,
        and of files with wrong lines, the manifest holds none of this, and they are read when they
        are opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuload.formats.csv import table
from gpuload.formats.csv.columns import CsvColumn, Dialect
from gpuload.formats.csv.kinds import ColumnKind, Form
from gpuload.formats.csv.parse import CODES, NULL, OVER, TEXT, WORDS
from gpuload.formats.csv.rows import CsvFileRecords
from gpuload.formats.csv.values import Job
from gpuload.formats.listing import ListedArray, read_arrays, split_by_file, to_arrays
from gpuload.order import MAX_LENGTH
from gpuload.sources.filesource import Entries
from gpuload.sources.leaf import Indices
from gpuload.storage.manifest import Manifest

BLOCK = ("first_record", "line", "begin", "is_regular")
ARRAYS = (
    ListedArray("counts", after=MAX_LENGTH, total=MAX_LENGTH),
    ListedArray("blocks", after=MAX_LENGTH),
    ListedArray("places", per=("blocks",), columns=BLOCK, inside=("begin",)),
)
LARGEST_BLOCK_BYTES = 1 << 26  # those that are written have some MiB, and one record more
LONGEST_TEXT = 1 << 24  # as a record can be


@dataclass(frozen=True)
class Listing:
    """The part of a manifest about CSV files.

    Attributes:
        names: of all columns.
        columns: those of known kinds, as texts.
        form: their kinds.
        longest: of each of them the longest text.
        parts: the records and blocks of each file; of longest texts nothing.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    form: Form
    longest: tuple[int, ...]
    parts: list[CsvFileRecords]

    def select(self, columns: Sequence[CsvColumn]) -> tuple[Form, list[CsvFileRecords]] | None:
        """Return the form of the rows of some columns, and the result for each file; None if one is
        not known."""
        texts = [_text_of(column) for column in columns]
        if not set(texts) <= set(self.columns):
            return None
        places = [self.columns.index(text) for text in texts]
        longest = [self.longest[place] for place in places]
        return tuple(self.form[place] for place in places), [
            replace(part, longest=longest) for part in self.parts
        ]


def entries_of(job: Job, form: Form, parts: Sequence[CsvFileRecords]) -> Entries:
    """Return the part of a manifest about files."""
    if any(part.bad or (part.places[:, 2] < 0).any() for part in parts):
        return Entries()
    about: dict[str, Any] = {
        "names": list(job.names),
        "dialect": repr(job.dialect),
        "columns": [_text_of(column) for column in job.columns],
        "form": table.to_json(form),
        "longest": [
            max(lengths) for lengths in zip(*(part.longest for part in parts), strict=True)
        ],
    }
    values = {
        "counts": [part.count for part in parts],
        "blocks": [len(part.places) for part in parts],
        "places": np.concatenate([part.places for part in parts]),
    }
    return Entries(about, to_arrays(ARRAYS, values))


def _text_of(column: CsvColumn) -> str:
    """Return a column as a text that is the same for the same values."""
    return repr(
        (column.number, column.name, str(column.dtype), repr(column.default), column.is_part)
    )


def from_manifest(manifest: Manifest, dialect: Dialect) -> Listing | None:
    """Return the part of a manifest about CSV files; None if it lists them alone, or their text is
    read in another form.

    Raises:
        FormatError: it contradicts itself.
    """
    about = manifest.about
    if about.get("dialect") != repr(dialect):
        return None
    try:
        names, columns, longest = (
            tuple(about["names"]),
            tuple(about["columns"]),
            tuple(about["longest"]),
        )
        form = table.form_of_json(about["form"])
        is_sound = all(isinstance(text, str) for text in (*names, *columns)) and bool(columns)
        is_sound = is_sound and all(type(length) is int and length >= 0 for length in longest)
        is_sound = is_sound and all(map(_is_sound, form))
        if not is_sound or not len(columns) == len(form) == len(longest):
            raise ValueError
    except (TypeError, ValueError, LookupError):
        raise manifest.error("it does not say which columns the files have") from None
    return Listing(names, columns, form, longest, _parts_of(manifest))


def _is_sound(kind: ColumnKind) -> bool:
    """Return True for a kind that rows can have."""
    is_known = kind.name in (NULL, WORDS, CODES, TEXT) or np.dtype(kind.name).kind in "biufM"
    return (
        is_known
        and kind.name != OVER
        and 0 <= kind.width <= LONGEST_TEXT
        and kind.unit in (1, 2, 4)
    )


def _parts_of(manifest: Manifest) -> list[CsvFileRecords]:
    """Return records and blocks of each file; raises ``FormatError`` where these cannot be."""
    counts, blocks, places = read_arrays(manifest, ARRAYS).values()
    num_records, num_bytes = sizes_of(places, blocks, counts, manifest.files.sizes).T
    firsts = places[(np.cumsum(blocks) - blocks)[blocks > 0], 0]
    is_sound = (
        (places[:, 1] > 0).all()
        and not firsts.any()
        and not counts[blocks == 0].any()
        and (num_bytes > 0).all()
        and int(num_bytes.max(initial=0)) <= LARGEST_BLOCK_BYTES
        and (num_records >= 0).all()
        and (num_records <= num_bytes).all()
    )
    if not is_sound:
        raise manifest.error("its blocks are not in order, or lie outside of their file")
    pieces = split_by_file(places, blocks)
    return [
        CsvFileRecords(count, piece) for count, piece in zip(counts.tolist(), pieces, strict=True)
    ]


def sizes_of(places: Indices, blocks: Indices, counts: Indices, sizes: Indices) -> Indices:
    """Return the records and the bytes of each block, int64 ``[num_blocks, 2]``.

    Args:
        places: of the blocks of all files, as `CsvFileRecords.places` has them.
        blocks: the number of blocks of each file.
        counts: its records.
        sizes: its bytes.
    """
    after = np.concatenate([places[1:, [0, 2]], np.zeros((min(1, len(places)), 2), np.int64)])
    # The last block of a file ends where the file does, not where the next block begins.
    after[np.cumsum(blocks)[blocks > 0] - 1] = np.stack([counts, sizes], axis=1)[blocks > 0]
    return after - places[:, [0, 2]]
