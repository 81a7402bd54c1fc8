"""Source: records by number, whole batches at a time.

A source says where its records lie (``resolve``, see `leaf.py`), and the base class does all the
rest: reading, slices, selections, splits, other names. So a composed source, here and in
`compose.py`, composes ``resolve`` and nothing else, and is read as fast as its parts. Closing it
leaves its parts open, for other sources may share them; a source of closed parts is closed, too.

Memory  a slice, also of a slice, is three numbers, and a part of a split computes its records:
        nothing is stored. A selection, also one that a filter made, is an int64 a record.

Sources are safe to read from several threads at once. A source can be pickled and copied: a source
of files as the arguments that it was opened with, so that it is opened again where it arrives.
"""

from __future__ import annotations

import hashlib
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from gpuload import lazy, signalsafe, synonyms
from gpuload.errors import ClosedError, SpecError
from gpuload.ops.base import Op
from gpuload.order import MAX_LENGTH, Split, check_count, check_flag
from gpuload.redaction import printable, redact
from gpuload.sources import card, filtering
from gpuload.sources.classes import check_fractions, split_by_class
from gpuload.sources.leaf import Fields, Group, Indices, Leaf, Share, check_numbers, plain
from gpuload.sources.marks import MarkedGroups, changes_bytes
from gpuload.sources.reading import field_names, num_numbers, read_groups, record_numbers
from gpuload.sources.sampling import Weights
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.spec import Field, Spec, outline

if TYPE_CHECKING:
    from types import TracebackType

    from gpuload.sources.names import RecordNames

AnySource = TypeVar("AnySource", bound="Source")
Selection = range | Split | Indices


def names_module() -> Any:
    """Return the module of the names of records, which is imported where these are asked for: joins
    alone need them."""
    return signalsafe.import_package("gpuload.sources.names")


cache_values = lazy.function("gpuload.sources.cache", "cache_values")


class Source(ABC):
    """Records by number. ``len(source)``, ``source.spec``, ``source.read(indices)``, ``source[i]``.

    Attributes:
        groups: fields that come out of one raw record each; together they are the fields of the
            source, in order.
        spec: these fields.
        classes: the names of the classes of labels, that of label 0 first; empty where there are
            none.
        endless: True if records are numbered on over the epochs, as those of a mix or a sample are:
            record i of epoch e is number ``e * len(source) + i``, and may be another one in each
            epoch.

    A subclass defines ``__len__``, ``_resolve``, ``_where`` and ``_digest``, and a source of files
    ``files``. ``repr`` shows ``_title`` and ``_place``.
    """

    groups: tuple[Group, ...]
    spec: Spec
    classes: tuple[str, ...] = ()
    endless: bool = False
    # True if rows of it, or of a source that it is made of, may stay on a GPU.
    _has_card: bool = False
    _closed: bool = False
    _fingerprint: str = ""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self.groups = groups
        self.spec = Spec(tuple(field for group in groups for field in group.spec))

    if not TYPE_CHECKING:  # type checkers know the attributes from the class

        def __getattr__(self, name: str) -> Any:
            synonyms.answer("source", name, synonyms.SOURCE)
            # This raises Python's own error, or that of a property.
            return object.__getattribute__(self, name)

    @property
    def files(self) -> SourceFiles:
        """The files that the records lie in; none for records in memory."""
        return SourceFiles()

    @abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    @abstractmethod
    def _resolve(self, numbers: Indices) -> list[Share]:
        """Return which leaf holds which of the records; the numbers lie in ``0 .. len - 1``."""

    @abstractmethod
    def _where(self, number: int) -> str:
        """Return the place of a record, for messages; the number lies in ``0 .. len - 1``."""

    @abstractmethod
    def _digest(self) -> str:
        """Return the fingerprint; called once."""

    def fingerprint(self) -> str:
        """Return a short text that differs for other data; a saved state is refused where it is
        another one.

        It is computed at the first call: when a state is saved or loaded, or the source is pickled.
        Of files it sees names, order, sizes, layout, labels, and a sample of the bytes
        (`storage.files.Files.digest`: all of small data, 64 pieces of large data); of arrays in
        memory the values of three MiB each. It does not see folders, times or inodes, which differ
        between the machines of one run, nor bytes between the samples: another file of the same
        name and size that differs there alone is taken for the same.
        """
        if not self._fingerprint:
            self._fingerprint = self._digest()
        return self._fingerprint

    def describe(self) -> str:
        """Return one line about how records are read."""
        return "records"

    def resolve(self, numbers: Indices) -> list[Share]:
        """Return which leaf holds which of the records, for each of ``groups``.

        Args:
            numbers: int64 ``[n]``; a record may occur more than once.

        Raises:
            ClosedError: the source was closed.
            RecordIndexError: there is no such record.
        """
        self.check_open()
        numbers = plain(numbers)
        check_numbers(numbers, num_numbers(self))
        return self._resolve(numbers)

    def where(self, index: int) -> str:
        """Return the place of a record, as ``"file, record n"``, for messages.

        Raises:
            RecordIndexError: there is no such record.
        """
        (number,) = record_numbers(self, [index]).tolist()
        return redact(self._where(number))  # URLs have passwords in them

    def read(self, indices: ArrayLike, fields: str | Sequence[str] | None = None) -> Fields:
        """Return the records as a dict of values, the records along the first axis.

        A field is an array if all records have one shape, a `Ragged` if only its first axis varies,
        else a list of arrays.

            source.read([3, 1, 4])                                      all fields
            source.read(range(len(source)), fields="label")["label"]    the labels of all records

        Args:
            indices: record numbers, in any order; a number may come twice.
            fields: a name or several, in the order of the dict; None: all fields. Only these are
                read: image files are not, where only the label is asked for. Fields that lie in one
                piece with these, as those of a fixed-length record do, are read and left out.

        Raises:
            RecordIndexError: an index lies outside ``0 .. len - 1``.
            UnknownFieldError: there is no such field.
            RecordError, FileError: a record or its file cannot be read.
        """
        if fields is None:
            names = self.spec.names
        else:
            names = field_names(self.spec, fields)
        self.check_open()
        values = read_groups(self, record_numbers(self, indices), names)
        return {name: values[name] for name in names}

    def check_open(self) -> None:
        """Raise ``ClosedError`` if the source was closed."""
        if self._closed:
            raise ClosedError(
                f"{type(self).__name__} is closed",
                cause="close() was called, or its with block ended",
                remedy="read before closing, or open it again",
            )

    def close(self) -> None:
        """Release files and arrays; reading afterwards is a ``ClosedError``. Closing twice is
        allowed.

        A thread that reads at this moment finishes its read. Slices, splits and other sources made
        of this one are closed with it; closing one of them leaves this source and its other parts
        open.
        """
        self._closed = True

    def __enter__(self: AnySource) -> AnySource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getitem__(self, key: int | slice) -> Any:
        """Return one record as a dict (``source[i]``), or a source of some of them
        (``source[a:b:c]``).

        Raises:
            RecordIndexError: there is no such record.
            SpecError: the key is neither a whole number nor a slice.
        """
        try:
            if isinstance(key, slice):
                return Selected(self, range(*key.indices(len(self))))
            if isinstance(key, bool):
                raise TypeError("a bool is no number")
            number = operator.index(key)
        except (TypeError, ValueError) as error:
            raise self._no_key(key, error) from None
        if number < 0:
            number += len(self)
        return {name: column[0] for name, column in self.read([number]).items()}

    def __iter__(self) -> Iterator[Any]:
        """Yield the records in their order.

        Without this method Python would take an IndexError or StopIteration of a reader for the end
        of the source.
        """
        for number in range(len(self)):
            yield self[number]

    def __reversed__(self) -> Iterator[Any]:
        """Yield the records from the last one on."""
        for number in reversed(range(len(self))):
            yield self[number]

    def _no_key(self, key: Any, error: Exception) -> SpecError:
        if isinstance(key, str) and key in self.spec:
            remedy = f"source[0][{key!r}] is that field of record 0, source.read([0, 1])[{key!r}] of several records"
        elif isinstance(key, (list, np.ndarray)):
            remedy = "source.select(indices) makes a source of these records, source.filter(mask) one of a mask"
        else:
            remedy = "write source[0], source[-1] or source[10:20]"
        return SpecError(
            f"source[{key!r}]",
            cause=f"a record is named by its number, or several by a slice: {error}",
            remedy=remedy,
        )

    def __repr__(self) -> str:
        closed = "closed" * (not self._is_open())
        place = printable(redact(self._place()))
        return outline(
            f"{self._title()}: {self._size()}", map(str, self.spec), place, closed, separator=","
        )

    def _line(self) -> str:
        """Return the source in one line, without its fields, for errors."""
        return f"<{', '.join(filter(None, [f'{self._title()}: {self._size()}', self._place()]))}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the fields. No record is read, so none is
        shown."""
        tables = signalsafe.import_package("gpuload.display.tables")
        notes = {"records": printable(redact(self._place()))}
        if self._is_open():
            notes |= {
                "read": self.describe(),
                "values": "none was read for this table; source[0] reads the first",
            }
        else:
            notes |= {"closed": "close() was called, and no record can be read"}
        html: str = tables.spec_table(f"{self._title()}: {self._size()}", self.spec, notes)
        return html

    def _size(self) -> str:
        """Return how many records there are, as a text."""
        return f"{len(self)} record{'s' * (len(self) != 1)}"

    def _is_open(self) -> bool:
        try:
            self.check_open()
        except ClosedError:
            return False
        return True

    def _title(self) -> str:
        """Return the call that makes the source, for ``repr``."""
        return type(self).__name__

    def _place(self) -> str:
        """Return the place of the records, for ``repr``."""
        return ""

    def _record_names(self) -> RecordNames | None:
        """Return the names of the records, of an endless source those of the first ones; None if
        they have none."""
        paths, counts = self.files.whole
        is_file_each = len(paths) == len(self) and all(count == 1 for count in set(counts))
        if len(paths) and is_file_each:
            names: RecordNames = names_module().RecordNames.of_files(paths)
            return names
        return None

    def select(self, indices: ArrayLike) -> Source:
        """Return the source of these records, in this order; a record may occur more than once."""
        self.check_open()
        return Selected(self, record_numbers(self, indices))

    def filter(
        self,
        keep: Callable[[dict[str, Any]], ArrayLike] | ArrayLike,
        fields: str | Sequence[str] | None = None,
    ) -> Source:
        """Return the source of the records that are to be kept, in their order.

            source.filter(mask)                                                    a boolean for each record
            source.filter(lambda fields: fields["label"] < 10, fields="label")     found out now, by these fields

        Args:
            keep: booleans ``[len(source)]``; or a function that is given some thousand records at a
                time, as ``read`` returns them, and returns a boolean for each. It is called until
                all records were seen, and not again.
            fields: the fields that the function is given. Only these are read: image files are not,
                where the label alone is asked for.

        Raises:
            SpecError: ``keep`` is neither, or returns something else.
            UnknownFieldError: there is no such field.
            RecordError, FileError: a record or its file cannot be read.
        """
        self.check_open()
        return Selected(self, filtering.matching_records(self, keep, fields))

    @overload
    def split(
        self, fraction: float, seed: int = 0, by: str | ArrayLike | None = None
    ) -> tuple[Source, Source]: ...

    @overload
    def split(
        self, fraction: Sequence[float], seed: int = 0, by: str | ArrayLike | None = None
    ) -> tuple[Source, ...]: ...

    def split(
        self, fraction: float | Sequence[float], seed: int = 0, by: str | ArrayLike | None = None
    ) -> tuple[Source, ...]:
        """Return sources that share the records: a random ``fraction`` of them, and the rest; or
        one for each fraction.

        The first has ``round(fraction * len(source))`` records, and each keeps its records in their
        original order. The choice depends on ``seed`` and the length alone (`order.Split`); with
        ``by`` also on the classes.

            train, held_out = source.split(0.9, seed=0)
            train, held_out = source.split(0.9, seed=0, by="label")     each class in the same proportion
            train, val, test = source.split((0.7, 0.2, 0.1), seed=0)

        Args:
            fraction: 0 to 1; or several, which together are 1. The first part is the same as with
                the first fraction alone, and ``(0.9, 0.1)`` gives the same two as 0.9. The first k
                parts together have ``round((fraction 1 + ... + fraction k) * len(source))``
                records.
            seed: 0 to 2**64 - 1.
            by: the field that holds the class of a record, a whole number or a text; or an array
                with the class of each record. Each part then has its fraction of each class. The
                numbers of records are rounded by the method of largest remainders, so they differ
                from the exact shares by less than one record; of more than two parts, those behind
                the first differ by less than two. All classes are read now, and an int64 a record
                is kept.

        Raises:
            SpecError: a fraction does not lie between 0 and 1, several are not 1 together, the seed
                is none, ``by`` holds no classes.
            UnknownFieldError: there is no such field.
        """
        return partition(self, fraction, seed, by)

    def sample(
        self, weights: ArrayLike, *, seed: int = 0, num_records: int | None = None
    ) -> Source:
        """Return a source of records that are drawn with replacement, each in proportion to its
        weight.

            labels = source.read(range(len(source)), fields="label")["label"]
            loader = gl.Loader(source.sample(1 / numpy.bincount(labels)[labels], seed=7), 64)   all classes alike

        A sample has no end, as `gl.mix` has none: a loader goes through it with ``shuffle=False``,
        each epoch has other records, and ``batch.records`` are the numbers of the draws, over all
        epochs. Slices, splits and filters of a sample are of its first epoch.

        Args:
            weights: a number of at least 0 for each record; only their proportions count.
            seed: 0 to 2**64 - 1.
            num_records: of an epoch; by default as many as there are.

        Raises:
            SpecError: there are other weights than records, or they are none; the source is a mix
                or a sample.
        """
        self.check_open()
        return Sampled(self, Weights.of(weights, len(self), seed), num_records)

    def rename(self, **names: str) -> Source:
        """Return the source with fields renamed: ``source.rename(x="image")``."""
        return Renamed(self, names)

    def mark(self, **marks: str) -> Source:
        """Return the source with marks that its files do not have:
        ``source.mark(image="encoded")``.

            "encoded"      each record is the bytes of an image file, which ``gl.ops.Decode`` takes
            "HWC" "CHW"    the three axes are height, width and channels, or channels first

        The other marks are of fields beside an image: ops that move its pixels move them by the
        same draw, whether ``on=`` names it or not:

            "mask"         a number for each pixel, which is never blended with others; beside slices for each of them
            "xyxy"         boxes, ``[..., 4]``: left, top, right, bottom, in pixels
            "xywh"         boxes: left, top, width, height;  "cxcywh" the centre, width and height
            "xy"           points, ``[..., 2]``: x, y, and more numbers behind them, which stay
            "normalized xyxy", "normalized xy" ...    in parts of the image's width and height, 0 to 1
            "with boxes"   a row for each of the field ``boxes``: labels, or ``"xy with boxes"`` for points of each box;
                           ``gl.ops.CleanBoxes`` drops boxes together with these rows

            source.mark(boxes="xyxy", labels="with boxes", mask="mask")

        The image is the field ``"image"``, or the only other one that may be an image. The upper
        left corner of the image is (0, 0), and the lower right one (width, height), as in
        torchvision and COCO.

        Encoded images are uint8 of varying length; or vectors of uint8, bytes (dtype S) or raw
        bytes (V) of one length, with zeros behind shorter files, which are cut off: JPEG and PNG
        files end in another byte. A BMP, PNM or TIFF file that ends in zeros itself is then refused
        as one that was cut off.

        Raises:
            UnknownFieldError: there is no such field.
            SpecError: the mark is another one, or does not fit the dtype and shape of the field.
        """
        return Marked(self, marks)

    def index(self, path: str | os.PathLike[str]) -> str:
        """Write a manifest of the files of this source, and return its absolute path.

            gl.npy("rows/*.npy").index("rows.manifest")
            source = gl.npy("rows.manifest")       or gl.open("rows.manifest"): the same source, and no file is read

        A manifest holds names, sizes, times and all else that opening the files needs, so that a
        source of a million files is opened in a moment. It is written whole or not at all. A file
        that is another one later is refused when it is first read. Files below the folder of the
        manifest may be moved together with it, if their times are kept.

        Args:
            path: ends in ``.manifest``; an older manifest is replaced.

        Raises:
            SpecError: the source is no source of files, or made of several; the path ends in
                something else.
            FileError: the manifest cannot be written.
        """
        raise SpecError(
            f"the index of {self._line()}",
            cause=f"a manifest lists the files of one call, as gl.npy(...); {self._title()} is "
            "none",
            remedy=f"index the sources that it is made of, before: {str(path)!r} names the "
            "manifest of one of them",
        )

    def cache(
        self,
        *,
        memory: int | str | None = None,
        path: str | os.PathLike[str] | None = None,
        device: bool = False,
    ) -> Source:
        """Return the source with its values kept: all records are read now, with progress, and not
        again.

            source.cache(memory="2GB")          in memory, if they take no more than that
            source.cache(path="cache/train")    in files below a folder, which are found there the next time
            source.cache(device=True)           in the memory of the GPU that a loader is on, as far as they fit

        With ``device=True`` nothing is read now: a record goes to the GPU when a loader first has
        it in a batch, and stays there. Records that do not fit are read in each epoch. All loaders
        of this source on a GPU, and of its slices and splits, share the rows; the last one that is
        closed frees them.

        Batches, record numbers and saved states are the same with and without it. Image files are
        kept as they are, encoded. A source that is pickled is cached again where it arrives, in
        memory by reading it once more.

        Args:
            memory: the most bytes that the values may take, or a text such as ``"2GB"`` or
                ``"1.5GiB"``. With ``device=True`` those of the GPU; by default half of the free
                memory there.
            path: a folder for this source alone.
            device: True for the memory of the GPU. Fields of one size stay there; others are read
                in each epoch.

        Raises:
            SpecError: neither or both are given, or the source is a mix.
            TooLargeError: the values take more bytes; says how many.
            FileError: the folder holds a cache of other data, or cannot be written.
            RecordError: a record cannot be read.
        """
        if check_flag("device", device):
            return OnCard(self, memory, path)
        return Cached(self, memory, path)


class LeafSource(Source):
    """A source of one leaf for each group of fields; record i of the source is record i of each
    leaf.

    A subclass sets ``_leaves``; ``close`` lets go of them, as soon as no thread reads from them any
    more.
    """

    _leaves: tuple[Leaf, ...]

    def _resolve(self, numbers: Indices) -> list[Share]:
        leaves = self._leaves  # read once: another thread may close the source at any time
        if not leaves:
            self.check_open()
        return [Share(leaf, group, numbers) for group, leaf in enumerate(leaves)]

    def close(self) -> None:
        """Let go of the leaves, with the files, arrays or functions that they read."""
        super().close()
        self._leaves = ()


class Composed(Source):
    """A source made of others."""

    def __init__(self, groups: tuple[Group, ...], *parts: Source) -> None:
        super().__init__(groups)
        self._parts = parts
        self._has_card = any(part._has_card for part in parts)
        self.classes = next((part.classes for part in parts if part.classes), ())

    def check_open(self) -> None:
        """Raise ``ClosedError`` if this source, or one that it is made of, was closed."""
        super().check_open()
        for part in self._parts:
            part.check_open()

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        return type(self), self._made_of()

    def _made_of(self) -> tuple[Any, ...]:
        """Return the arguments that make this source once more."""
        return self._parts

    def describe(self) -> str:
        """Return one line about how records are read."""
        return ", ".join(dict.fromkeys(part.describe() for part in self._parts))

    @property
    def files(self) -> SourceFiles:
        """The files of all parts."""
        return SourceFiles.of_parts([part.files for part in self._parts])

    def _titles(self) -> str:
        parts = self._parts
        if len(parts) < 3:
            return " and ".join(part._title() for part in parts)
        return f"{len(parts)} sources"

    def _digest_with(self, *details: object) -> str:
        about = (type(self).__name__, [part.fingerprint() for part in self._parts], details)
        return hashlib.sha256(repr(about).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Reordered(Composed):
    """Records of another source, chosen by their numbers."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.groups, source)
        self._source = source

    @abstractmethod
    def _inner(self, numbers: Indices) -> Indices:
        """Return the numbers that records have in the source."""

    def _resolve(self, numbers: Indices) -> list[Share]:
        return self._source.resolve(self._inner(numbers))

    def _where(self, number: int) -> str:
        return self._source.where(int(self._inner(np.array([number], np.int64))[0]))

    def _record_names(self) -> RecordNames | None:
        names = self._source._record_names()
        if names is None or len(names) < len(self._source):
            return None
        length = len(self)
        if self.endless:
            length = min(length, names_module().MOST_NAMES)
        return names.select(self._inner(np.arange(length, dtype=np.int64)))


class Selected(Reordered):
    """Some of the records of a source, in any order; made by ``source[a:b:c]``, ``source.select``
    and ``source.split``.

    Args:
        source: with the records to select from.
        selection: a range, a part of a split, or int64 ``[N]`` with numbers from 0 to ``len(source)
            - 1``.
    """

    def __init__(self, source: Source, selection: Selection) -> None:
        if isinstance(source, Selected) and (direct := source._select_from(selection)) is not None:
            # A selection of a selection reads from the source itself: slices of slices add no work.
            source, selection = source._source, direct
        super().__init__(source)
        self._selection: Selection = selection

    def _made_of(self) -> tuple[Any, ...]:
        return self._source, self._selection

    def _title(self) -> str:
        return f"part of {self._source._title()}"

    def _place(self) -> str:
        return f"chosen from {len(self._source)}"

    def __len__(self) -> int:
        return len(self._selection)

    def _select_from(self, subset: Selection) -> Selection | None:
        """Return the numbers in the source of a selection of these records; None if that takes more
        memory."""
        selection = self._selection
        if isinstance(subset, np.ndarray):
            return self._inner(subset)
        if isinstance(selection, range) and isinstance(subset, range):
            first, after = (
                selection.start + selection.step * number for number in (subset.start, subset.stop)
            )
            return range(first, after, selection.step * subset.step)
        if isinstance(selection, np.ndarray) and isinstance(subset, range):
            # Not as a slice: the end of a range backwards may be -1, which a slice counts from the
            # end.
            return selection[np.arange(subset.start, subset.stop, subset.step, dtype=np.int64)]
        return None

    def _inner(self, numbers: Indices) -> Indices:
        """Return the numbers that records have in the source."""
        selection = self._selection
        if isinstance(selection, range):
            return selection.start + selection.step * numbers
        if isinstance(selection, Split):
            return selection.at(numbers)
        return selection[numbers]

    def _digest(self) -> str:
        selection = self._selection
        if isinstance(selection, range):
            # Of one record the step says nothing: ranges with the same records have one digest.
            step = selection.step if len(selection) > 1 else 1
            return self._digest_with(len(selection), *(selection[:1] or [0]), step)
        if isinstance(selection, Split):
            # Left out where it is 0, so that saved states of two parts stay valid.
            number = [selection.number] * (selection.number > 0)
            about = selection.length, selection.count, selection.seed, selection.second
            return self._digest_with("split", *about, *number)
        # In one byte order, so that the digest is the same on each machine.
        raw = np.ascontiguousarray(selection, "<i8").tobytes()
        return self._digest_with(hashlib.sha256(raw).hexdigest())


def partition(
    source: Source, fraction: Any, seed: int, by: str | ArrayLike | None
) -> tuple[Source, ...]:
    """Return the parts of a source; see ``Source.split``."""
    fractions = check_fractions(fraction, seed, by)
    ends = [round(share * len(source)) for share in np.cumsum(fractions).tolist()]
    if by is None:
        parts, rest, begin = list[Source](), source, 0
        for number, end in enumerate(ends[: max(1, len(ends) - 1)]):
            first, second = (
                Split(len(rest), end - begin, seed, is_second, number=number)
                for is_second in (False, True)
            )
            parts.append(Selected(rest, first))
            rest, begin = Selected(rest, second), end
        return (*parts, rest)
    source.check_open()
    return tuple(
        Selected(source, numbers) for numbers in split_by_class(source, fractions, ends, seed, by)
    )


class SameRecords(Composed):
    """A source with the records of another one in their order: with other fields, or kept
    elsewhere.

    Attributes:
        ops: the ops that made the records, those of ``loader.cache`` for instance; () without any.
    """

    ops: tuple[Op, ...] = ()

    def __init__(self, groups: tuple[Group, ...], source: Source) -> None:
        super().__init__(groups, source)
        self._source = source
        self.endless = source.endless

    @property
    def files(self) -> SourceFiles:
        """The files of the source."""
        return self._source.files

    def _place(self) -> str:
        return self._source._place()

    def _record_names(self) -> RecordNames | None:
        return self._source._record_names()

    def __len__(self) -> int:
        return len(self._source)

    def _where(self, number: int) -> str:
        return self._source.where(number)


class Renamed(SameRecords):
    """A source with other names for fields; made by ``source.rename(old="new")``.

    Raises:
        UnknownFieldError: an old name is not a field.
        SpecError: two fields would have one name, or a name is no text.
    """

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        self._source = source
        self._names = {field.name: field.name for field in source.spec}
        for old, new in names.items():
            if not isinstance(new, str) or not new:
                raise SpecError(
                    f"rename({old}={new!r})",
                    cause="a name is a text",
                    remedy="pass the new name as text",
                )
            self._names[source.spec[old].name] = new
        super().__init__(tuple(self._rename_group(group) for group in source.groups), source)

    def _made_of(self) -> tuple[Any, ...]:
        return self._source, self._names

    def _title(self) -> str:
        return f"{self._source._title()} renamed"

    def _rename_group(self, group: Group) -> Group:
        def rename_field(field: Field) -> Field:
            return field.with_(
                name=self._names[field.name], rows_of=self._names.get(field.rows_of, field.rows_of)
            )

        if group.layout is None:
            return replace(group, spec=Spec(tuple(map(rename_field, group.spec))))
        return Group.of(
            replace(
                group.layout,
                parts=tuple(replace(p, field=rename_field(p.field)) for p in group.layout.parts),
            )
        )

    def _resolve(self, numbers: Indices) -> list[Share]:
        return self._source.resolve(numbers)

    def _digest(self) -> str:
        return self._digest_with(sorted(self._names.items()))


class Marked(SameRecords):
    """A source of which more is known than files say; made by ``source.mark(image="encoded")``.

    Raises:
        UnknownFieldError, SpecError: see ``Source.mark``.
    """

    def __init__(self, source: Source, marks: Mapping[str, str]) -> None:
        self._source, self._marks = source, dict(marks)
        self._marked_groups = MarkedGroups(source.spec, source.groups, marks)
        super().__init__(self._marked_groups.groups, source)

    def _made_of(self) -> tuple[Any, ...]:
        return self._source, self._marks

    def _title(self) -> str:
        return f"{self._source._title()} marked"

    def _resolve(self, numbers: Indices) -> list[Share]:
        return self._marked_groups.route(self._source.resolve(numbers))

    def _digest(self) -> str:
        marks = sorted((name, mark) for name, mark in self._marks.items() if changes_bytes(mark))
        if not marks:  # the records are the same
            return self._source.fingerprint()
        return self._digest_with(marks)


class CacheSource(LeafSource, SameRecords):
    """The records of a source, with their values in another place as well."""

    def __init__(self, groups: tuple[Group, ...], source: Source) -> None:
        super().__init__(groups, source)
        self.ops = ops_of(source)

    def _digest(self) -> str:
        return self._source.fingerprint()


class Cached(CacheSource):
    """The records of a source, with their values kept; made by ``source.cache(...)``.

    Raises:
        SpecError, TooLargeError, FileError, RecordError: see ``Source.cache``.
    """

    def __init__(
        self, source: Source, memory: int | str | None, path: str | os.PathLike[str] | None
    ) -> None:
        source.check_open()
        self._source, self._memory, self._path = source, memory, path
        content = cache_values(source, memory, path)
        self._access: str
        self._access, self._leaves = content.place, content.leaves
        super().__init__(content.groups, source)
        self._has_card = False

    def _made_of(self) -> tuple[Any, ...]:
        # The process that makes it once more may be in another folder.
        path = None if self._path is None else os.path.abspath(self._path)
        return self._source, self._memory, path

    def _title(self) -> str:
        return f"{self._source._title()} cached"

    def _place(self) -> str:
        return self._access

    def describe(self) -> str:
        """Return one line about how records are read."""
        return self._access


class OnCard(CacheSource):
    """The records of a source, with their rows in the memory of GPUs; made by
    ``source.cache(device=True)``.

    Raises:
        SpecError: there is a path, the budget says no number of bytes, or the source is a mix.
    """

    def __init__(
        self, source: Source, memory: int | str | None, path: str | os.PathLike[str] | None = None
    ) -> None:
        source.check_open()
        self._source, self._memory = source, memory
        self._leaves = card.card_leaves(source, memory, path)
        groups = tuple(Group(leaf.spec, leaf.layout, is_quick=True) for leaf in self._leaves)
        super().__init__(groups, source)
        self._has_card = True

    def _made_of(self) -> tuple[Any, ...]:
        return self._source, self._memory

    def _title(self) -> str:
        return f"{self._source._title()} cached on the GPU"

    def describe(self) -> str:
        """Return one line about how records are read."""
        return f"in the memory of the GPU once they were there; {self._source.describe()}"


class Sampled(Reordered):
    """Records that are drawn with replacement; made by ``source.sample(weights)``.

    Raises:
        SpecError: the source has no end itself; ``num_records`` is no number of records.
    """

    endless = True

    def __init__(self, source: Source, weights: Weights, num_records: int | None) -> None:
        if source.endless:
            raise SpecError(
                f"a sample of {source._line()}",
                cause="it has other records in each epoch",
                remedy="sample its parts, or a part of it: source[:].sample(...)",
            )
        super().__init__(source)
        self._weights, self._length = weights, len(source)
        if num_records is not None:
            self._length = check_count("num_records", num_records, maximum=MAX_LENGTH)

    def _made_of(self) -> tuple[Any, ...]:
        return self._source, self._weights, self._length

    def _title(self) -> str:
        return f"{self._source._title()} sampled"

    def _place(self) -> str:
        return f"drawn from {len(self._source)}"

    def __len__(self) -> int:
        return self._length

    def _inner(self, numbers: Indices) -> Indices:
        return self._weights.at(numbers)

    def _digest(self) -> str:
        return self._digest_with(self._weights.digest(), self._weights.seed, self._length)


def ops_of(source: Source) -> tuple[Op, ...]:
    """Return the ops that made the records of a source; () for records as they are stored."""
    return source.ops if isinstance(source, SameRecords) else ()


def before_ops(source: Source) -> Source:
    """Return the source before its ops were applied; without ops the source itself."""
    while isinstance(source, SameRecords) and source.ops:
        source = source._source
    return source
