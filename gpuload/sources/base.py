"""Source: records by number, whole batches at a time.

A source of fixed-size records describes its raw bytes by ``blocks`` and writes them with ``fill``; the base class
makes ``read`` of these. Any other source (images, arrays of varying shape) has no blocks and implements ``read``.
Sources are safe to read from several threads at once.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload import rawdecode
from gpuload.errors import ClosedError, RecordIndexError, SpecError
from gpuload.sources.places import Places
from gpuload.spec import Layout, Spec

if TYPE_CHECKING:
    from types import TracebackType

Array = NDArray[Any]
Indices = NDArray[np.int64]
Fields = dict[str, Array | list[Array]]


class Source(ABC):
    """Records by number. ``len(source)``, ``source.spec``, ``source.read(indices)``, ``source[i]``."""

    spec: Spec
    blocks: tuple[Layout, ...] = ()
    has_places: bool = False
    _closed: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    @abstractmethod
    def where(self, index: int) -> str:
        """Return where a record is, as ``"file, record n"``, for messages."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that differs for other data: names, lengths and layout, not times or folders."""

    def fill(self, indices: Indices, rows: Indices, out: Sequence[NDArray[np.uint8]]) -> None:
        """Write the raw bytes of records into rows of preallocated blocks.

        Args:
            indices: int64 ``[N]``, record numbers, already checked to lie in ``0 .. len - 1``.
            rows: int64 ``[N]``, the row of ``out`` for each.
            out: one uint8 ``[M, record_bytes]`` for each of ``blocks``; the last axis is contiguous.

        Raises:
            FileError: a file changed, disappeared or cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fixed-size records")

    def places(self, indices: Indices) -> Places:
        """Return where records lie that will be read soon, so that storage can be asked for them.

        There are none where storage cannot be asked (``has_places`` is False), nor once the source was closed.

        Args:
            indices: their numbers, in ascending order.

        Raises:
            FileError: a file changed, disappeared or cannot be read.
        """
        del indices
        return Places()

    def copier(self) -> Any:
        """Return how records become rows of the one block by copies alone (``maps.Copier``), None where they do not."""
        return None

    def read(self, indices: ArrayLike) -> Fields:
        """Return the records as a dict of arrays with the records along the first axis.

        A field whose shape varies comes as a list of arrays.

        Raises:
            RecordIndexError: an index lies outside ``0 .. len - 1``.
            RecordError, FileError: a record or its file cannot be read; names file and record.
        """
        numbers = self.checked(indices)
        raws = [np.empty((numbers.size, layout.record_bytes), np.uint8) for layout in self.blocks]
        self.fill(numbers, np.arange(numbers.size, dtype=np.int64), raws)
        fields: Fields = {}
        for raw, layout in zip(raws, self.blocks, strict=True):
            fields.update(rawdecode.decode(np, raw, layout))
        return {name: fields[name] for name in self.spec.names}

    def checked(self, indices: ArrayLike) -> Indices:
        """Return the indices as int64 ``[N]``.

        Raises:
            ClosedError: the source was closed.
            SpecError: the indices are not one axis of whole numbers.
            RecordIndexError: one lies outside ``0 .. len - 1``.
        """
        self.check_open()
        given = np.asarray(indices)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise SpecError(
                f"indices of shape {given.shape} and dtype {given.dtype}",
                cause="read takes one axis of whole numbers",
                remedy="pass a list or a 1-d integer array; source[i] gives one record",
            )
        numbers = given.astype(np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= len(self)):
            bad = numbers[(numbers < 0) | (numbers >= len(self))][0]
            raise RecordIndexError(
                f"record {int(bad)} of a source of {len(self)} records",
                cause=f"records are numbered 0 to {len(self) - 1}",
                remedy="ask for records in that range",
            )
        return numbers

    def check_open(self) -> None:
        """Raise ``ClosedError`` if the source was closed."""
        if self._closed:
            raise ClosedError(
                f"{type(self).__name__} is closed",
                cause="close() was called, or its with block ended",
                remedy="read before closing, or open it again",
            )

    def close(self) -> None:
        """Close files and maps; reading afterwards is a ``ClosedError``. Closing twice is allowed."""
        self._closed = True

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, key: int | slice) -> Any:
        """Return one record as a dict (``source[i]``), or a source of some of them (``source[a:b:c]``)."""
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._subset(range(start, stop, step))
        number = operator.index(key)
        if number < 0:
            number += len(self)
        return {name: values[0] for name, values in self.read([number]).items()}

    def select(self, indices: ArrayLike) -> Source:
        """Return the source of these records, in this order; a record may occur more than once."""
        return self._subset(self.checked(indices))

    def split(self, fraction: float, seed: int = 0) -> tuple[Source, Source]:
        """Return two sources that share the records: a random ``fraction`` of them, and the rest.

        Each keeps its records in their original order. The choice depends on ``seed`` and the length alone.

        Raises:
            SpecError: the fraction does not lie between 0 and 1.
        """
        from gpuload.sources.compose import split

        return split(self, fraction, seed)

    def rename(self, **names: str) -> Source:
        """Return the source with fields renamed: ``source.rename(x="image")``."""
        from gpuload.sources.compose import Renamed

        return Renamed(self, names)

    def _subset(self, indices: range | Indices) -> Source:
        from gpuload.sources.compose import Selected

        return Selected(self, indices)
