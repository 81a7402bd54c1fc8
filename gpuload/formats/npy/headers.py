"""Headers of many NPY files in arrays: each different header once, and of each file its length and
where data begin.

    shards of 1000, 1000 and 500 rows of (28, 28)      heads: (0, 28, 28)      lengths: 1000 1000 500

Memory  20 bytes a file, so a manifest holds just this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.npy import npyheader
from gpuload.formats.npy.npyheader import Header
from gpuload.storage.manifest import Manifest

LARGEST_LENGTH = 1 << 60


@dataclass(frozen=True, eq=False)
class Headers:
    """The headers of files.

    Attributes:
        heads: the different headers, in the order of their first files; the length of the first
            axis is 0.
        head_of: int64 ``[num_files]``, which of them each file has.
        lengths: int64 ``[num_files]``, the length of the first axis; 1 where there are no axes.
        offsets: int64 ``[num_files]``, the byte where the data begins.
    """

    heads: tuple[Header, ...]
    head_of: NDArray[np.int64]
    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, headers: Sequence[Header]) -> Headers:
        """Return the headers of files in arrays."""
        numbers: dict[tuple[Any, ...], int] = {}
        head_of = [
            numbers.setdefault(
                (header.dtype, header.fortran, header.shape[:1] and (0, *header.shape[1:])),
                len(numbers),
            )
            for header in headers
        ]
        heads = tuple(Header(dtype, fortran, shape, 0) for dtype, fortran, shape in numbers)
        lengths = [header.shape[0] if header.shape else 1 for header in headers]
        offsets = [header.offset_bytes for header in headers]
        return cls(heads, *(np.array(column, np.int64) for column in (head_of, lengths, offsets)))

    def __len__(self) -> int:
        return self.head_of.size

    def first(self, head: int) -> int:
        """Return the first file that has a header."""
        return int((self.head_of == head).argmax())

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a file's array."""
        shape = self.heads[int(self.head_of[number])].shape
        if shape:
            return (int(self.lengths[number]), *shape[1:])
        return ()

    def ends(self) -> NDArray[np.int64]:
        """Return the byte of each file where its data ends."""
        row_bytes = np.array([_row_bytes(head) for head in self.heads], np.int64)
        ends: NDArray[np.int64] = self.offsets + self.lengths * row_bytes[self.head_of]
        return ends

    def different(self) -> tuple[list[int], NDArray[np.int64]]:
        """Return the first file of each header and length, and which of these each file is like."""
        # Numbers of the lengths, and not np.unique(axis=0): NumPy compares rows by code of Python,
        # and takes the exception of a signal handler there for an error of its own.
        _, length_of = np.unique(self.lengths, return_inverse=True)
        pairs = length_of.reshape(-1) * len(self.heads) + self.head_of
        _, firsts, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        order = np.argsort(firsts)  # in the order of the files
        places = np.empty(order.size, np.int64)
        places[order] = np.arange(order.size)
        return firsts[order].tolist(), places[inverse.reshape(-1)]

    def to_manifest(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the values and arrays of a manifest."""
        about = {"heads": [npyheader.to_literal(head) for head in self.heads]}
        return about, {
            "head_of": self.head_of.astype(np.uint32),
            "lengths": self.lengths,
            "data_begins": self.offsets,
        }

    @classmethod
    def from_manifest(
        cls, manifest: Manifest, prefix: str, texts: Any, sizes: NDArray[np.int64]
    ) -> Headers:
        """Return the headers that a manifest has.

        Args:
            manifest: it has the arrays.
            prefix: of their names.
            texts: the values that stand for the different headers.
            sizes: int64 ``[num_files]``, the bytes of each file, or of the part of it that is an
                NPY file.

        Raises:
            FormatError: they are no headers, or data would end behind their file.
        """
        if (
            not isinstance(texts, list)
            or not texts
            or not all(isinstance(text, str) for text in texts)
        ):
            raise manifest.error("it holds no headers")
        try:
            heads = tuple(map(npyheader.from_literal, texts))
        except ValueError as error:
            raise manifest.error(f"of one of its headers: {error}") from None
        if any(head.shape and head.shape[0] for head in heads):
            raise manifest.error("one of its headers says a length of the first axis")
        head_of = manifest.numbers(f"{prefix}head_of", 0, len(heads), "<u4").astype(np.int64)
        lengths = manifest.numbers(f"{prefix}lengths", 0, LARGEST_LENGTH)
        offsets = manifest.numbers(f"{prefix}data_begins", 0, LARGEST_LENGTH)
        row_bytes = np.array([_row_bytes(head) for head in heads], np.int64)[head_of]
        room = sizes - offsets  # so said, no product can overflow
        if bool((room < 0).any()) or bool(
            (lengths > np.where(row_bytes > 0, room // np.maximum(row_bytes, 1), lengths)).any()
        ):
            raise manifest.error("data of a file would end behind the file")
        has_axes = np.array([bool(head.shape) for head in heads])[head_of]
        if bool((lengths[~has_axes] != 1).any()):
            raise manifest.error("an array without axes has a length")
        return cls(heads, head_of, lengths, offsets)


def _row_bytes(head: Header) -> int:
    return replace(head, shape=head.shape[1:]).data_bytes
