"""Extents: the places of the bytes of records, and the checks that both readers of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuload.core.face import Maps
from gpuload.errors import RecordIndexError, SpecError
from gpuload.storage.files import Files

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
INT64, UINT8 = np.dtype(np.int64), np.dtype(np.uint8)


@dataclass(frozen=True, eq=False)
class Extents:
    """The places of the bytes of records; three int64 arrays of one length.

    Attributes:
        files: the number of the file in ``Files``.
        offsets: bytes from the beginning of the file.
        lengths: bytes.
    """

    files: Int64s
    offsets: Int64s
    lengths: Int64s

    def __len__(self) -> int:
        return self.files.size

    def take(self, selection: Int64s | NDArray[np.bool_] | slice) -> Extents:
        """Return a selection of the extents: by numbers, by a mask, or by a slice."""
        return Extents(self.files[selection], self.offsets[selection], self.lengths[selection])


class Storage(Protocol):
    """Brings bytes of files into memory; any number of threads may use one at the same time.

    Its maps and descriptors are released with the last reference: there is no method to close it,
    and a thread that still reads keeps them.

    Attributes:
        how: one line for ``describe()``.
        files: the files.
    """

    how: str
    files: Files

    def read(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Copy the bytes of extent i to ``out[begins[i] : begins[i] + lengths[i]]``; places must
        not overlap.

        An extent without bytes is checked and touches no file.

        Args:
            extents: in any order, repeats allowed; the arrays must not change meanwhile.
            out: uint8, one axis, C-contiguous, writeable. After an error its content is undefined.
            begins: int64, one for each extent.

        Raises:
            RecordIndexError: an extent lies outside its file, or its place outside ``out``; nothing
                was written.
            SpecError: the arrays are not of these kinds and lengths.
            ChangedFileError: a file changed since it was opened, or is gone.
            FileError: a file cannot be read.
        """

    def maps(self) -> Maps | None:
        """Return the maps that the core copies from just as ``read`` does; None where only ``read``
        can do it."""

    def advise(self, extents: Extents) -> None:
        """Ask the system to have these bytes in memory soon; returns at once, costs nothing where
        it cannot.

        Errors of files are left to ``read``, which will meet them again and name the file.

        Raises:
            RecordIndexError: an extent lies outside its file.
        """


def check_arrays(extents: Extents, out: Bytes, begins: Int64s) -> tuple[Extents, Int64s]:
    """Return extents and places as arrays of the one kind that the core takes.

    Raises:
        SpecError: they have different lengths, or ``out`` cannot be written to byte by byte.
    """
    extents, begins = plain(extents), _plain(begins)
    if out.dtype != UINT8 or out.ndim != 1 or not out.flags.carray:
        raise SpecError(
            f"bytes of files into an array of {out.dtype} {out.shape}",
            cause="they are copied to a writeable, contiguous array of uint8 with one axis",
            remedy="pass array.reshape(-1).view('u1') of a contiguous array",
        )
    if begins.shape != extents.files.shape:
        raise SpecError(
            f"{begins.shape} places for {extents.files.shape} extents",
            cause="each extent goes to a place of its own",
            remedy="pass one place for each extent",
        )
    return extents, begins


def plain(extents: Extents) -> Extents:
    """Return extents with arrays of int64 of one axis and one length, in C order.

    Raises:
        SpecError: they have different lengths or several axes.
    """
    files, offsets, lengths = (
        _plain(extents.files),
        _plain(extents.offsets),
        _plain(extents.lengths),
    )
    if not (files.ndim == 1 and files.shape == offsets.shape == lengths.shape):
        raise SpecError(
            f"extents of {files.shape} files, {offsets.shape} offsets and {lengths.shape} lengths",
            cause="they are three arrays of one axis and one length",
            remedy="pass a file, an offset and a length for each extent",
        )
    if files is extents.files and offsets is extents.offsets and lengths is extents.lengths:
        return extents
    return Extents(files, offsets, lengths)


def _plain(numbers: Int64s) -> Int64s:
    if numbers.dtype == INT64 and numbers.flags.c_contiguous:
        return numbers
    if numbers.dtype.kind not in "iu":
        raise SpecError(
            f"{numbers.dtype} as places in files",
            cause="files, offsets, lengths and places are whole numbers",
            remedy="pass arrays of int64",
        )
    return np.array(numbers, np.int64)


def check_inside(files: Files, extents: Extents) -> None:
    """Check that each extent lies inside its file.

    Raises:
        RecordIndexError: one does not.
    """
    wrong = (
        (extents.files < 0)
        | (extents.files >= len(files))
        | (extents.offsets < 0)
        | (extents.lengths < 0)
    )
    if not wrong.any():
        # so said, no sum can overflow
        wrong = extents.lengths > files.sizes[extents.files] - extents.offsets
    if wrong.any():
        raise outside(files, extents, int(np.flatnonzero(wrong)[0]))


def check_places(files: Files, extents: Extents, out: Bytes, begins: Int64s) -> None:
    """Check that the place of each extent lies in ``out``; no length is negative.

    Raises:
        RecordIndexError: one does not.
    """
    wrong = (begins < 0) | (extents.lengths > out.size - begins)
    if wrong.any():
        raise outside(files, extents, int(np.flatnonzero(wrong)[0]))


def outside(files: Files, extents: Extents, number: int) -> RecordIndexError:
    """Return the error for an extent that is outside of its file, or has a target outside of the
    array."""
    file, offset, length = (
        int(array[number]) for array in (extents.files, extents.offsets, extents.lengths)
    )
    if not 0 <= file < len(files):
        subject, cause = f"bytes of file {file}", f"there are {len(files)} files"
    else:
        subject = f"{length} bytes at byte {offset} of {files.paths[file]}"
        inside = length >= 0 and offset >= 0 and length <= int(files.sizes[file]) - offset
        has = f"the file has {int(files.sizes[file])} bytes"
        if inside:
            cause = "the place that they should go to lies outside the array"
        else:
            cause = has
    return RecordIndexError(
        f"extent {number}, {subject}, is outside",
        cause=cause,
        remedy="check the record numbers, and the size of the array",
    )
