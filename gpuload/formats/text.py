"""Text files: each line is a record, by number.

Layout   UTF-8. A line ends with LF, or with CR LF; neither is part of it. Empty lines are records.
         Bytes behind the last line end are a record. A mark at the beginning (BOM) is left out.
Access   any line by index, one positioned read: the offsets of the lines are found once, by a walk
         through the files, and stored (`spanindex.py`).
Memory   8 bytes a line, for its place.
Packed   gzip files, which are found by their content, are unpacked once into the cache folder
         (`storage/unpack.py`).
Errors   a line that is no UTF-8 is an error of that record, and names file, line and byte.
Limits   a line has at most ``max_line_bytes``, so that a file of another kind is refused when it is
         opened.
Source   https://www.tensorflow.org/api_docs/python/tf/data/TextLineDataset; RFC 3629 for UTF-8
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpuload.errors import FormatError, RecordError, RowError, SpecError
from gpuload.formats.base import Format
from gpuload.ragged import Ragged, offsets_of
from gpuload.sources import spanindex
from gpuload.sources.filesource import Entries, FileSource, Opening
from gpuload.sources.leaf import Group, Indices, Values, gather_pieces
from gpuload.sources.memory import step_room
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.sources.spans import Show, SpanLeaf, bounds_of, manifest_arrays, manifest_bounds
from gpuload.spec import Field, Spec, is_whole
from gpuload.storage import keptfile, manifest, open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files
from gpuload.storage.unpack import unpack_files, with_names
from gpuload.storage.wildcards import Paths, expand

LF, CR = 10, 13
MAX_LINE_BYTES = 1 << 24
PIECE_BYTES = 1 << 20
ENCODINGS = {"utf-8": "str", None: "bytes"}
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def text(
    paths: Paths, *, encoding: str | None = "utf-8", max_line_bytes: int = MAX_LINE_BYTES
) -> TextSource:
    """Return the lines of text files as records with one field, ``text``.

        gl.text("corpus-*.txt")                      objects of str
        gl.text("corpus.txt.gz", encoding=None)      objects of bytes, as tf.data.TextLineDataset
                                                     has them

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a
            wildcard is sorted. Files of gzip are found by their content. Or a manifest of such
            files (``Source.index``).
        encoding: ``"utf-8"``: lines become str, and one that is no UTF-8 is an error when it is
            read. None: lines become bytes, of any content.
        max_line_bytes: the longest line that may be in the files, its end included.

    Raises:
        SpecError: an argument is wrong.
        RecordError: a line is too long; names file and line.
        FormatError: a file is UTF-16, its lines end with CR alone, or a packed file is damaged.
        FileError: a file is missing, a directory, or cannot be read.
    """
    if not isinstance(encoding, (str, type(None))) or encoding not in ENCODINGS:
        raise SpecError(
            f"encoding = {encoding!r}",
            cause="lines are found by their bytes, which are those of UTF-8",
            remedy='pass "utf-8" for str, None for bytes as they are; gl.csv(path, encoding=...) '
            "reads other encodings",
        )
    if not is_whole(max_line_bytes, 1):
        raise SpecError(
            f"max_line_bytes = {max_line_bytes!r}",
            cause="it is a number of bytes, at least 1",
            remedy="leave it out",
        )
    listing = manifest.load(paths, "text")
    if listing is not None:
        bounds, starts = manifest_bounds(listing)
        for number, first in enumerate(starts[:-1].tolist()):
            file_bounds = bounds[first + number : int(starts[number + 1]) + number + 1]
            _check_lengths(listing.files.names[number], file_bounds, int(max_line_bytes))
        arguments = {
            "paths": listing.path,
            "encoding": encoding,
            "max_line_bytes": int(max_line_bytes),
        }
        files, opening = listing.files, Opening(text, arguments)
        return TextSource(files, files.paths, bounds, starts, ENCODINGS[encoding], opening)
    originals = expand(paths)
    files, leads = keptfile.look_at(unpack_files(originals), len(codecs.BOM_UTF8), _lead_bytes)
    files = with_names(files, originals)

    def look(number: int, show: Show, go_on: Callable[[], None]) -> Indices:
        walk = partial(_bounds_in, files, number, leads[number], partial(show, number))
        bounds = spanindex.load_or_walk(files, number, "text", walk, go_on, leads[number])
        _check_lengths(files.names[number], bounds, int(max_line_bytes))
        return bounds

    bounds, starts = bounds_of(files, "looking for lines", look)
    opening = Opening(
        text,
        {"paths": tuple(originals), "encoding": encoding, "max_line_bytes": int(max_line_bytes)},
    )
    return TextSource(files, originals, bounds, starts, ENCODINGS[encoding], opening)


class TextSource(FileSource):
    """Lines of text files; made by ``gl.text``."""

    def __init__(
        self,
        files: Files,
        originals: Sequence[str],
        bounds: Indices,
        starts: Indices,
        kind: str,
        opening: Opening,
    ) -> None:
        storage = open_storage(files)
        spec = Spec((Field("text", np.dtype(object), (), text=kind),))
        super().__init__(files, opening, (Group(spec, None, is_quick=True),), storage)
        self._originals, self._starts, self._bounds = originals, starts, bounds
        self._leaves = (LineLeaf(spec, storage, bounds, starts, originals),)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _where(self, number: int) -> str:
        file = int(np.searchsorted(self._starts, number, side="right")) - 1
        return f"{self._files.names[file]}, line {number - int(self._starts[file]) + 1}"

    @property
    def files(self) -> SourceFiles:
        """The files, and how many records each has."""
        return SourceFiles(
            self._files.paths, np.diff(self._starts).tolist(), originals=self._originals
        )

    def _entries(self) -> Entries:
        return Entries(arrays=manifest_arrays(self._bounds, self._starts))

    def _digest(self) -> str:
        return self._files.digest("text", str(self.spec), np.diff(self._starts).tolist())


class LineLeaf(SpanLeaf):
    """Lines, which are read with their line ends."""

    def __init__(
        self, spec: Spec, storage: Storage, bounds: Indices, starts: Indices, paths: Sequence[str]
    ) -> None:
        super().__init__(storage, bounds, starts, paths)
        self.spec, self.how = spec, storage.how

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the lines without their line ends, as they are stored."""
        self._check(numbers, raw)
        begins, ends = raw.offsets[:-1], raw.offsets[1:].copy()
        for mark in (LF, CR):
            rows = np.flatnonzero(ends > begins)
            if mark == CR:  # one that stands at the end of a line without LF is part of it
                rows = rows[ends[rows] < raw.offsets[1:][rows]]
            ends[rows] -= raw.payload[ends[rows] - 1] == mark
        offsets = offsets_of(ends - begins)
        payload = step_room(int(offsets[-1]))
        gather_pieces(raw.payload, begins, ends - begins, payload, offsets[:-1])
        return [Ragged(payload, offsets)]

    def _check(self, numbers: Indices, raw: Ragged) -> None:
        """Raise ``RowError`` if a record does not lie between two line ends: then the index is of
        other bytes."""
        ends = raw.offsets[1:]
        is_ended = np.zeros(ends.size, np.bool_)
        rows = np.flatnonzero(ends > raw.offsets[:-1])
        is_ended[rows] = raw.payload[ends[rows] - 1] == LF
        is_last = numbers + 1 == self._starts[self.files_of(numbers) + 1]
        # Two counts for all lines at once; which line is wrong is looked for only where they
        # differ.
        if bool((is_ended | is_last).all()) and np.count_nonzero(
            raw.payload == LF
        ) == np.count_nonzero(is_ended):
            return
        inner = np.array([np.count_nonzero(line == LF) for line in raw]) - is_ended
        row = int((~(is_ended | is_last) | (inner > 0)).argmax())
        raise RowError(
            row,
            "its bytes are not those of one line",
            cause="the bytes changed after the index of the lines was made",
            remedy="remove the index (.NAME.gpuload-index beside the file); it is made anew",
        )


def _lead_bytes(path: str, size: int, head: bytes) -> int:
    """Return the bytes of the mark at the beginning of a file."""
    if head.startswith(UTF16):
        raise FormatError(
            f"{path} is UTF-16",
            cause=f"it begins with {head[:2]!r}, the mark of that encoding",
            remedy="convert it: iconv -f utf-16 -t utf-8; or read it with gl.csv(path, "
            "encoding='utf-16')",
        )
    if head.startswith(codecs.BOM_UTF8):
        return len(codecs.BOM_UTF8)
    return 0


def _bounds_in(files: Files, number: int, lead_bytes: int, show: Callable[[int], None]) -> Indices:
    """Return the offsets at which the lines of a file begin and the last one ends, int64
    ``[num_lines + 1]``, bytes."""
    size, offset = int(files.sizes[number]), lead_bytes
    bounds = [np.array([lead_bytes], np.int64)]
    piece = np.empty(min(PIECE_BYTES, max(size, 1)), np.uint8)
    has_lf = has_cr = False
    with files.open_file(number) as descriptor:
        while offset < size:
            part = piece[: min(piece.size, size - offset)]
            files.read(number, descriptor, part.data, offset)
            bounds.append(np.flatnonzero(part == LF) + (offset + 1))
            has_lf = has_lf or bounds[-1].size > 0
            if not has_lf:
                # The last byte of the file is no end between two lines.
                has_cr = has_cr or bool((part[: size - 1 - offset] == CR).any())
            offset += part.size
            show(offset)
        # Behind the last piece, for a file that was written to meanwhile has other lines.
        files.check_descriptor(number, descriptor)
    if has_cr and not has_lf:
        raise FormatError(
            f"{files.names[number]}: lines that end with CR alone are not supported",
            cause="no line of the file ends with LF, so that all of it would be one record",
            remedy="convert it: tr '\\r' '\\n' < old > new; gl.csv reads such files as they are",
        )
    offsets = np.concatenate(bounds)
    # The last line may have no line end.
    if offsets[-1] == size:
        return offsets
    return np.append(offsets, size)


def _check_lengths(name: str, bounds: Indices, max_bytes: int) -> None:
    """Raise ``RecordError`` if a line is longer than ``max_bytes``."""
    lengths = np.diff(bounds)
    if lengths.size and int(lengths.max()) > max_bytes:
        longest = int(lengths.argmax())
        raise RecordError(
            f"{name}, line {longest + 1}, byte {int(bounds[longest])}: {int(lengths[longest])} "
            "bytes are too many",
            cause=f"a line has at most max_line_bytes={max_bytes}; the file may be of another "
            "kind, "
            "or end lines with CR",
            remedy="check the file; pass max_line_bytes= if its lines are so long",
        )


# Any text may be lines, so `gl.open` never takes it for that.
TEXT = Format(
    "text",
    text,
    records={"gl.text(paths)": "a line of text, of any length; gz"},
    compressions=("gzip",),
)
