"""Sources made of sources: some of the records, other field names, fields side by side, one after the other, split.

Each is as random-access as what it is made of. Closing one closes what it is made of. The classes of labels
(``source.classes``) are passed on.

Memory  a slice, also of a slice, is three numbers; a selection, and each part of a split, is an int64 a record.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload import rng
from gpuload.errors import SpecError
from gpuload.sources.base import Fields, Indices, Source
from gpuload.sources.places import Places, joined
from gpuload.spec import Field, Layout, Spec

Block = NDArray[np.uint8]
SPLIT_STREAM = int.from_bytes(hashlib.sha256(b"split").digest()[:8], "little")
WORDS_A_BLOCK = 4  # a block of Philox has four words: one for each of four records


class Composed(Source):
    """A source made of others.

    Attributes:
        classes: the names of the classes of labels, if one of the sources has them.
    """

    def __init__(self, *parts: Source) -> None:
        self._parts = parts
        named: list[tuple[str, ...]] = [tuple(getattr(part, "classes", ())) for part in parts]
        self.classes = next((names for names in named if names), ())
        self.has_places = any(part.has_places for part in parts)

    def _digest(self, *more: object) -> str:
        about = (type(self).__name__, [part.fingerprint() for part in self._parts], more)
        return hashlib.sha256(repr(about).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def close(self) -> None:
        """Close what it is made of."""
        super().close()
        for part in self._parts:
            part.close()


class Selected(Composed):
    """Some of the records of a source, in any order; made by ``source[a:b:c]`` and ``source.select(indices)``.

    Args:
        source: what to select from.
        indices: a range, or int64 ``[N]`` with numbers from 0 to ``len(source) - 1``.
    """

    def __init__(self, source: Source, indices: range | Indices) -> None:
        if isinstance(source, Selected):
            indices = source._chosen(indices)
            source = source._source
        super().__init__(source)
        self._source: Source = source
        self._indices: range | Indices = indices
        self.spec, self.blocks = source.spec, source.blocks

    def __len__(self) -> int:
        return len(self._indices)

    def _chosen(self, numbers: range | Indices) -> range | Indices:
        """Return the records of the source that these records are."""
        own = self._indices
        if isinstance(own, np.ndarray):
            if isinstance(numbers, range):
                numbers = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
            return own[numbers]
        if isinstance(numbers, range):
            first, after = (own.start + own.step * number for number in (numbers.start, numbers.stop))
            return range(first, after, own.step * numbers.step)
        return own.start + own.step * numbers

    def fill(self, indices: Indices, rows: Indices, out: Sequence[Block]) -> None:
        """Write the raw bytes of records into rows of blocks; see ``Source.fill``."""
        self._source.fill(np.asarray(self._chosen(indices)), rows, out)

    def places(self, indices: Indices) -> Places:
        """Return where records lie; see ``Source.places``."""
        chosen = np.asarray(self._chosen(indices))
        ascending = np.sort(chosen)
        places = self._source.places(ascending)
        return places if np.array_equal(chosen, ascending) else places.at_last()

    def copier(self) -> Any:
        """Return how the chosen records are copied; see ``Source.copier``."""
        copier = self._source.copier()
        if copier is None:
            return None
        inner = copier.chosen
        return replace(copier, chosen=lambda records: inner(self._chosen(records)))

    def read(self, indices: ArrayLike) -> Fields:
        """Return the records; see ``Source.read``."""
        return self._source.read(self._chosen(self.checked(indices)))

    def where(self, index: int) -> str:
        """Return where the record is in the source."""
        return self._source.where(int(self._indices[index]))

    def fingerprint(self) -> str:
        """Return a short text of the source and of which records."""
        if isinstance(self._indices, range):
            return self._digest(len(self), *(self._indices[:1] or [0]), self._indices.step if len(self) > 1 else 1)
        return self._digest(hashlib.sha256(np.ascontiguousarray(self._indices, "<i8").tobytes()).hexdigest())


class Renamed(Composed):
    """A source with other names for fields; made by ``source.rename(old="new")``.

    Raises:
        UnknownFieldError: an old name is not a field.
        SpecError: two fields would have one name, or a name is no text.
    """

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        super().__init__(source)
        self._source = source
        self._names = {field.name: field.name for field in source.spec}
        for old, new in names.items():
            if not isinstance(new, str) or not new:
                raise SpecError(f"rename({old}={new!r})", cause="a name is a text", remedy="pass the new name as text")
            self._names[source.spec[old].name] = new
        self.spec = Spec(tuple(self._renamed(field) for field in source.spec))
        self.blocks = tuple(
            Layout(layout.record_bytes, tuple(replace(part, field=self._renamed(part.field)) for part in layout.parts))
            for layout in source.blocks
        )

    def _renamed(self, field: Field) -> Field:
        return field.with_(name=self._names[field.name])

    def __len__(self) -> int:
        return len(self._source)

    def fill(self, indices: Indices, rows: Indices, out: Sequence[Block]) -> None:
        """Write the raw bytes of records into rows of blocks; see ``Source.fill``."""
        self._source.fill(indices, rows, out)

    def places(self, indices: Indices) -> Places:
        """Return where records lie; see ``Source.places``."""
        return self._source.places(indices)

    def copier(self) -> Any:
        """Return how the records are copied; see ``Source.copier``."""
        return self._source.copier()

    def read(self, indices: ArrayLike) -> Fields:
        """Return the records; see ``Source.read``."""
        fields = self._source.read(self.checked(indices))
        return {self._names[name]: values for name, values in fields.items()}

    def where(self, index: int) -> str:
        """Return where the record is in the source."""
        return self._source.where(index)

    def fingerprint(self) -> str:
        """Return a short text of the source and of the names."""
        return self._digest(sorted(self._names.items()))


def zip(*sources: Source) -> Zipped:
    """Return the source whose records have the fields of all sources side by side.

    Raises:
        SpecError: lengths differ, two fields have one name, or one of them is no source.
    """
    _check_sources("zip", sources)
    lengths = [len(source) for source in sources]
    if len(set(lengths)) > 1:
        raise SpecError(
            f"gl.zip of sources with {lengths} records",
            cause="record i is made of record i of each",
            remedy="cut them to one length, as in gl.zip(a, b[:len(a)])",
        )
    return Zipped(*sources)


class Zipped(Composed):
    """Sources side by side; made by ``gl.zip``."""

    def __init__(self, *sources: Source) -> None:
        super().__init__(*sources)
        self.spec = Spec(tuple(field for source in sources for field in source.spec))
        if all(source.blocks for source in sources):
            self.blocks = tuple(layout for source in sources for layout in source.blocks)

    def __len__(self) -> int:
        return len(self._parts[0])

    def fill(self, indices: Indices, rows: Indices, out: Sequence[Block]) -> None:
        """Write the raw bytes of records into rows of blocks; see ``Source.fill``."""
        begin = 0
        for part in self._parts:
            after = begin + len(part.blocks)
            part.fill(indices, rows, out[begin:after])
            begin = after

    def places(self, indices: Indices) -> Places:
        """Return where records lie, of one part after the other; see ``Source.places``."""
        *first, last = [places for part in self._parts if (places := part.places(indices)).owners] or [Places()]
        return joined([*(places.at_last() for places in first), last])

    def read(self, indices: ArrayLike) -> Fields:
        """Return the records; see ``Source.read``."""
        numbers = self.checked(indices)
        return {name: values for part in self._parts for name, values in part.read(numbers).items()}

    def where(self, index: int) -> str:
        """Return where the record is in each of the sources."""
        return " | ".join(part.where(index) for part in self._parts)

    def fingerprint(self) -> str:
        """Return a short text of the sources."""
        return self._digest()


def concat(*sources: Source) -> Concatenated:
    """Return the source of the records of the first source, then those of the second, and so on.

    Raises:
        SpecError: the fields of the sources differ, or the classes of their labels, or one of them is no source.
    """
    _check_sources("concat", sources)
    first = sources[0]
    for number, source in enumerate(sources):
        if source.spec.names != first.spec.names:
            raise _differ(number, f"the fields {list(source.spec.names)}", f"{list(first.spec.names)}")
        for field in source.spec:
            if field != first.spec[field.name]:
                raise _differ(number, f"field {field}", str(first.spec[field.name]))
    named = {names for source in sources if (names := tuple(getattr(source, "classes", ())))}
    if len(named) > 1:
        raise SpecError(
            f"gl.concat of sources with the classes {' and '.join(map(str, sorted(named)))}",
            cause="one label would stand for different classes",
            remedy="open all images with one gl.images([...])",
        )
    return Concatenated(*sources)


class Concatenated(Composed):
    """Sources one after the other; made by ``gl.concat``."""

    def __init__(self, *sources: Source) -> None:
        super().__init__(*sources)
        self._starts = np.cumsum([0, *(len(source) for source in sources)], dtype=np.int64)
        self.spec = sources[0].spec
        if all(source.blocks == sources[0].blocks for source in sources):
            self.blocks = sources[0].blocks

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _shares(self, indices: Indices) -> Iterator[tuple[Source, Indices, Indices]]:
        """Give each source that has some of the records, which of ``indices`` these are, and their numbers in it."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            yield self._parts[number], chosen, indices[chosen] - self._starts[number]

    def fill(self, indices: Indices, rows: Indices, out: Sequence[Block]) -> None:
        """Write the raw bytes of records into rows of blocks; see ``Source.fill``."""
        for part, chosen, inside in self._shares(indices):
            part.fill(inside, rows[chosen], out)

    def places(self, indices: Indices) -> Places:
        """Return where records lie; see ``Source.places``."""
        shares = self._shares(indices)
        return joined([part.places(inside).after(int(chosen[0])) for part, chosen, inside in shares])

    def read(self, indices: ArrayLike) -> Fields:
        """Return the records; see ``Source.read``."""
        numbers = self.checked(indices)
        fields = {field.name: _room(field, numbers.size) for field in self.spec}
        for part, chosen, inside in self._shares(numbers):
            for name, values in part.read(inside).items():
                _put(fields[name], chosen, values)
        return fields

    def where(self, index: int) -> str:
        """Return which source the record is in, and where there."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"part {number}: {self._parts[number].where(index - int(self._starts[number]))}"

    def fingerprint(self) -> str:
        """Return a short text of the sources."""
        return self._digest()


def split(source: Source, fraction: float, seed: int = 0) -> tuple[Source, Source]:
    """Return a random ``fraction`` of the records and the rest, each in their original order.

    The first has ``round(fraction * len(source))`` records: those with the smallest random words, where record i has
    word i % 4 of the block of number i // 4 (``rng.bits``, epoch 0, a stream of its own).

    Raises:
        SpecError: the fraction does not lie between 0 and 1, or the seed is none.
    """
    if (
        isinstance(fraction, bool)
        or not isinstance(fraction, (int, float, np.integer, np.floating))
        or not 0 <= fraction <= 1
    ):
        raise SpecError(
            f"split({fraction!r})", cause="a fraction lies between 0 and 1", remedy="pass 0.9 for nine tenths"
        )
    length = len(source)
    blocks = np.arange(-(-length // WORDS_A_BLOCK), dtype=np.int64)
    words = rng.bits(WORDS_A_BLOCK, seed=seed, epoch=0, records=blocks, stream=SPLIT_STREAM)
    order = np.argsort(words.reshape(-1)[:length], kind="stable")
    count = round(float(fraction) * length)
    return Selected(source, np.sort(order[:count])), Selected(source, np.sort(order[count:]))


def _check_sources(name: str, sources: Sequence[Any]) -> None:
    if not sources:
        raise SpecError(f"gl.{name}() without sources", cause="there is nothing to join", remedy=f"gl.{name}(a, b)")
    for source in sources:
        if not isinstance(source, Source):
            raise SpecError(
                f"gl.{name} of {type(source).__name__}",
                cause="it is no source",
                remedy=f"pass sources one by one, gl.{name}(a, b); gl.arrays(x=array) makes one of an array",
            )


def _differ(number: int, one: str, other: str) -> SpecError:
    return SpecError(
        f"gl.concat: source {number} has {one}, source 0 has {other}",
        cause="sources that follow one another have the same fields, dtypes and shapes",
        remedy="rename fields with source.rename(old='new'), convert the data, or make two loaders",
    )


def _room(field: Field, count: int) -> Any:
    return np.empty((count, *field.fixed_shape), field.dtype) if field.uniform else [None] * count


def _put(room: Any, chosen: Indices, values: Any) -> None:
    if isinstance(room, np.ndarray):
        room[chosen] = values
        return
    for place, value in builtins.zip(chosen.tolist(), values, strict=True):
        room[place] = value
