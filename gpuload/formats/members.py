"""Members: arrays of one length inside a file as the fields of records, for HDF5 and Zarr.

    numbers, booleans, bytes of one length   arrays ``[*shape]``: record i is element i of the first
                                             axis
    compounds                                a field for each part, ``"array.part"``
    texts of varying length                  text
    other values of varying length           `Ragged`; encoded images where the first value is one

Access  Rows that lie in files as NumPy has them are read where they lie, by the reader of
        rows (`rows.py`). All others are decoded a block of rows at a time (`blocks.py`), and
        cached.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import FormatError, SpecError, line_of, short_repr
from gpuload.formats.packing import MOST_BITS, Packing
from gpuload.formats.pixels import are_of_pixels, warn_of_images
from gpuload.images.head import kind_of
from gpuload.ragged import Ragged
from gpuload.sources.blocks import BlockLeaf, BlockMemory, check_cache_bytes
from gpuload.sources.classnames import common_classes
from gpuload.sources.columns import ColumnSource, differing_files
from gpuload.sources.dtypes import joining
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.layouts import compact_layout, layout_of, native
from gpuload.sources.leaf import Array, Indices, Leaf, starts_of
from gpuload.sources.rows import RecordForm, RowLeaf
from gpuload.spec import NUMBERS, Field, Layout, Spec, check_name, is_name, list_of_names
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files
from gpuload.storage.inflate import limit_bytes, too_large
from gpuload.storage.manifest import Manifest

BLOCK_BYTES = 1 << 20  # of rows that are decoded together where the file has no blocks of its own
MOST_BLOCKS = 1 << 24  # of an array: the places of more take gigabytes
MOST_CHOICES = 4  # that an error names
HEAD_BYTES = 64  # of a value, which tell whether it is an image
log = logging.getLogger("gpuload")
Objects = NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class MemberPlaces:
    """Runs of rows that lie in files as NumPy has them; int64 ``[num_runs]`` each.

    Attributes:
        files: the number of the file.
        counts: rows.
        offsets: the byte of the file where the first row begins.
    """

    files: Indices
    counts: Indices
    offsets: Indices


@dataclass(frozen=True)
class Gaps:
    """Chunks of an array that are not there, and are read as the fill value.

    Attributes:
        num_missing, num_chunks: how many are not there, of how many.
        fill: the fill value, as a text.
        is_usual: True if sound writers leave out chunks that hold nothing but the fill value.
    """

    num_missing: int
    num_chunks: int
    fill: str
    is_usual: bool = False


@dataclass(frozen=True, eq=False)
class Member:
    """An array of a file, as fields of its records.

    Attributes:
        title: file and array, for errors.
        path: of the array in the file.
        fields: the layout of a row as it is stored; or the field of values of varying length.
        block_starts: int64 ``[num_blocks + 1]``, the first row of each block, and the number of
            rows.
        decode: returns the rows of a block as they are stored, ``[n, *shape]``, or a `Ragged`.
        how: one line about how blocks are decoded.
        origin: returns the file of a block, and the byte where it begins.
        num_bytes: of all rows decoded, about.
        places: where rows lie as NumPy has them; None if they have to be decoded.
        classes: the names of the values, where the file has them.
        gaps: the chunks that are not there; None if all are.
        packing: how its numbers stand for values; None if they are values.
    """

    title: str
    path: str
    fields: Layout | Field
    block_starts: Indices
    decode: Callable[[int], Any]
    how: str
    origin: Callable[[int], tuple[str, int]]
    num_bytes: int
    places: MemberPlaces | None = None
    classes: tuple[str, ...] = ()
    gaps: Gaps | None = None
    packing: Packing | None = None

    @property
    def length(self) -> int:
        """The number of rows."""
        return int(self.block_starts[-1])

    @property
    def spec(self) -> Spec:
        """The fields that a row becomes."""
        if isinstance(self.fields, Layout):
            return self.fields.spec
        return Spec((self.fields,))


def check_arguments(
    call: str, fields: Any, group: Any, cache_bytes: Any, fill: Any, mask_and_scale: Any
) -> dict[str, Any]:
    """Return the arguments of a reader of arrays in the form in which a source is pickled.

    Raises:
        SpecError: one of them is of another kind.
    """
    pairs: dict[str, str] | None = None
    if fields is not None:
        form = "a list of the paths of arrays, or a dict from the names of fields to these"
        example = '["image", "label"] or {"image": "train/images"}'
        if isinstance(fields, Mapping):
            columns = list(fields)
        else:
            columns = fields
        keys = list_of_names(f"{call}: fields", columns, form=form, example=example)
        paths: Sequence[Any] = keys
        if isinstance(fields, Mapping):
            paths = list(fields.values())
        if not all(is_name(path) and path for path in paths):
            raise SpecError(
                f"{call}: fields = {short_repr(fields)}",
                cause=f"it is {form}",
                remedy=f"write {example}",
            )
        pairs = dict(zip(keys, map(str, paths), strict=True))
    if not is_name(group):
        raise SpecError(
            f"{call}: group = {group!r}",
            cause="it is the path of a group",
            remedy='write "train", say',
        )
    if fill is not None and not isinstance(fill, bool):
        raise SpecError(
            f"{call}: fill = {fill!r}",
            cause="it says whether chunks that are not there are read as the fill value",
            remedy="write fill=True, fill=False, or leave it out",
        )
    if mask_and_scale is not None and not isinstance(mask_and_scale, bool):
        raise SpecError(
            f"{call}: mask_and_scale = {mask_and_scale!r}",
            cause="it says whether packed numbers become the values that they stand for",
            remedy="write mask_and_scale=True or mask_and_scale=False",
        )
    arguments = {
        "fields": pairs,
        "group": group,
        "cache_bytes": check_cache_bytes(call, cache_bytes),
    }
    return {**arguments, "fill": fill, "mask_and_scale": mask_and_scale}


class HasFields(Protocol):
    """A kind of array, as a manifest holds it."""

    def fields(self, name: str) -> Layout | Field:
        """Return the layout or the field of a row, by this name."""


AnyKind = TypeVar("AnyKind", bound=HasFields)


def source_of(
    files: Files,
    storage: Storage,
    opening: Opening,
    tables: Sequence[Sequence[Member]],
    paths: Sequence[str],
    arguments: Mapping[str, Any],
    entries: Callable[[], Entries],
) -> ColumnSource:
    """Return the source of files, of each of which the members come in the same order.

    Args:
        files: the files that the source reads.
        storage: of these.
        opening: the call.
        tables: of each file, or folder, the members.
        paths: of these files or folders.
        arguments: from `check_arguments`.
        entries: returns the content of a manifest of these.

    Raises:
        SpecError: the members of a file differ in length, or files differ in a field.
    """
    call = f"gl.{opening.function.__name__}"
    tables = [
        [_apply_choice(member, table, arguments, call) for member in table] for table in tables
    ]
    _tell_gaps(tables, arguments["fill"])
    _warn_of_images(tables, call)
    for path, table in zip(paths, tables, strict=True):
        _check_lengths(path, table)
        _check_fields(table, tables[0], call)
    num_bytes = sum(member.num_bytes for table in tables for member in table)
    cache = BlockMemory(arguments["cache_bytes"], num_bytes)
    columns = list(zip(*tables, strict=True))
    leaves = [_leaf(members, storage, cache, key) for key, members in enumerate(columns)]
    counts = [table[0].length for table in tables]
    about = [member.path for member in tables[0]]
    packings = [member.packing for member in tables[0]]
    if arguments["mask_and_scale"] and any(packings):
        about.append(repr(packings))  # the same files hold other records without it
    if arguments.get("order"):
        about.append(f"order={arguments['order']}")
    source = MemberSource(
        files, opening, storage, leaves, counts, _classes_of(columns), paths=paths, about=about
    )
    source.entries = entries
    return source


def _check_fields(table: Sequence[Member], first_table: Sequence[Member], call: str) -> None:
    """Raise ``SpecError`` if a member of a file has other fields than that of the first file."""
    for member, first in zip(table, first_table, strict=True):
        if member.spec == first.spec:
            continue
        error = differing_files(
            f"{member.title} is {member.spec}", f"{first.title} is {first.spec}"
        )
        first_field, field = first.spec.fields[0], member.spec.fields[0]
        is_single = len(member.spec) == len(first.spec) == 1
        if is_single and first_field.with_(dtype=field.dtype) == field:
            error.remedy = joining(call, field.name, first_field.dtype, field.dtype)
        raise error


def _classes_of(columns: Sequence[Sequence[Member]]) -> tuple[str, ...]:
    """Return the names of the values of the only column that has such names; else none."""
    remedy = "write the files with one enumeration, or the numbers alone"
    classes = [
        common_classes([(member.title, member.classes) for member in members], remedy)
        for members in columns
        if any(member.classes for member in members)
    ]
    if len(classes) == 1:
        return classes[0]
    return ()


def _apply_choice(
    member: Member, table: Sequence[Member], arguments: Mapping[str, Any], call: str
) -> Member:
    """Return a member as the arguments say: with packed numbers as values, or as they are stored.

    Raises:
        SpecError: its numbers are packed, and no argument says how they are read; or nothing of it
            was written.
    """
    rest = [sibling.path for sibling in table if sibling is not member]
    if rest:
        hint = f"; fields={rest} leaves it out"
    else:
        hint = ""
    gaps = member.gaps
    if gaps and gaps.num_missing == gaps.num_chunks and not gaps.is_usual and not arguments["fill"]:
        raise SpecError(
            f"{member.title}: none of its {member.length} rows was ever written",
            cause="the program that created it ended before, or writes it still; or all are the "
            "fill value by purpose",
            remedy=f"write it anew, or pass fill=True, which reads {gaps.fill}{hint}",
        )
    packing, choice = member.packing, arguments["mask_and_scale"]
    if packing is None or choice is False:
        return member
    if packing.fault:
        raise SpecError(
            f"{member.title}: its numbers cannot be unpacked",
            cause=packing.fault,
            remedy=f"{call}(..., mask_and_scale=False) gives them as stored{hint}",
        )
    if not isinstance(member.fields, Layout):
        return member
    if choice is None and packing.names:
        raise SpecError(
            f"{member.title}: its numbers stand for others, as its attributes "
            f"{', '.join(packing.names)} say",
            cause="records of them could be the values, or the numbers as they are stored",
            remedy=f"{call}(..., mask_and_scale=True) for values of {packing.dtype}, with NaN "
            "where one is missing, or "
            f"mask_and_scale=False for the numbers as stored{hint}",
        )
    if choice is None:
        return member
    field = member.fields.parts[0].field
    fields = row_layout(field.name, np.dtype(packing.dtype), field.fixed_shape)

    def decode(block: int) -> Array:
        numbers = member.decode(block)
        values = packing.apply(numbers)
        rounded = packing.first_rounded(numbers, values)
        if rounded is not None:
            raise _rounding_error(member, packing, rounded, call)
        return values

    how = f"{member.how}, unpacked by {', '.join(packing.names)}"
    return replace(member, fields=fields, decode=decode, how=how, places=None)


def _rounding_error(member: Member, packing: Packing, number: int | float, call: str) -> SpecError:
    """Return the error for a stored number that would be rounded, as its float does not hold it."""
    return SpecError(
        f"{member.title}: {number} is no value of {packing.dtype}",
        cause="mask_and_scale=True makes floats of the numbers, because of "
        f"{', '.join(packing.names)}; "
        f"floats hold all whole numbers up to 2**{MOST_BITS}, and few above",
        remedy=f'{call}(..., fields=["{member.path}"], mask_and_scale=False) gives this field as '
        "it is stored; "
        "gl.zip joins it with the others",
    )


def _warn_of_images(tables: Sequence[Sequence[Member]], call: str) -> None:
    """Warn once of files that look like an image each: of arrays of one shape, and nothing
    beside."""
    shapes = [[_shape_of(member) for member in table] for table in (tables[0], tables[-1])]
    is_alike = len({table[0].length for table in tables}) == 1 and shapes[0] == shapes[1]
    if is_alike and all(are_of_pixels(len(tables), *shape) for shape in shapes[0]):
        remedy = (
            'To have each file as a record, write the arrays as NPY: gl.npy(paths, record="file")'
        )
        warn_of_images(call.removeprefix("gl."), len(tables), *shapes[0][0], remedy)


def _shape_of(member: Member) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and the shape of an array; no shape for values of varying length and
    compounds."""
    if not isinstance(member.fields, Layout) or len(member.fields.parts) != 1:
        return np.dtype(np.void), ()
    field = member.fields.parts[0].field
    return field.dtype, (member.length, *field.fixed_shape)


def _tell_gaps(tables: Sequence[Sequence[Member]], fill: bool | None) -> None:
    """Warn of chunks that are not there, once for all files; with ``fill=False`` they are an
    error."""
    lacking = [
        (member, member.gaps) for table in tables for member in table if member.gaps is not None
    ]
    if not lacking or fill:
        return
    (member, gaps), num_others = lacking[0], len(lacking) - 1
    num_missing, num_chunks = (
        f"{gaps.num_missing} of its {gaps.num_chunks}",
        f", and {num_others} more lack some",
    )
    subject = (
        f"{member.title}: {num_missing} chunks are not there{num_chunks if num_others else ''}"
    )
    cause = "the program that wrote it or a copy stopped early, or their elements are the fill value by purpose"
    if gaps.is_usual:
        cause = (
            "the program that wrote it or a copy stopped early, or these chunks hold the fill "
            "value alone: "
            "zarr leaves out such chunks"
        )
    if fill is False:
        raise SpecError(
            subject,
            cause=cause,
            remedy="write or copy it anew, or pass fill=True, which reads these chunks as "
            f"{gaps.fill}",
        )
    log.warning(
        "%s; they are read as %s. Either %s. fill=True reads them so without this warning, "
        "fill=False is an error",
        *(subject, gaps.fill, cause),
    )


class MemberSource(ColumnSource):
    """Records of arrays inside of files; made by ``gl.hdf5`` and ``gl.zarr``.

    Attributes:
        entries: returns the content of a manifest; set once, by `source_of`.
    """

    entries: Callable[[], Entries]

    def _entries(self) -> Entries:
        return self.entries()


def _check_lengths(path: str, table: Sequence[Member]) -> None:
    lengths = {member.path: member.length for member in table}
    paths_of = dict[int, list[str]]()
    for array, length in lengths.items():
        paths_of.setdefault(length, []).append(array)
    if len(paths_of) < 2:
        return
    usual_first = sorted(paths_of.items(), key=lambda item: (-len(item[1]), -item[0]))
    choices = [f"fields={arrays} has {length} records" for length, arrays in usual_first]
    if len(choices) > MOST_CHOICES:
        rest = f"; {len(choices) - MOST_CHOICES} lengths more"
    else:
        rest = ""
    raise SpecError(
        f"{path} has arrays of several lengths: "
        f"{', '.join(f'{array} {length}' for array, length in lengths.items())}",
        cause="a record is made of element i of the first axis of each",
        remedy=f"name those that belong together: {', '.join(choices[:MOST_CHOICES])}{rest}",
    )


def _leaf(members: Sequence[Member], storage: Storage, cache: BlockMemory, key: int) -> Leaf:
    """Return the leaf of a member of each file.

    It has rows where they lie if all files have them so, else blocks.
    """
    # An empty one lies nowhere: with it the rows of the others could not be read where they lie.
    members = [member for member in members if member.length] or members[:1]
    first = members[0].fields
    if not isinstance(first, Layout):
        return _block_leaf(members, first, None, cache, key)
    are_same = all(
        isinstance(member.fields, Layout) and member.fields.same_bytes(first) for member in members
    )
    places = [member.places for member in members if member.places is not None]
    if are_same and len(places) == len(members):
        files, counts, offsets = (
            np.concatenate([getattr(place, name) for place in places])
            for name in ("files", "counts", "offsets")
        )
        return RowLeaf(RecordForm(first), storage, files, counts, offsets)
    if are_same:
        return _block_leaf(members, first, None, cache, key)
    if len(first.parts) > 1:
        raise SpecError(
            f"{members[0].title} has other bytes than the same array of other files",
            cause="compounds of one source are stored alike: in byte order and places",
            remedy="open the files one by one, and join them: gl.concat(a, b)",
        )
    # The files store it in other byte orders: blocks are decoded, and turned into this machine's.
    return _block_leaf(members, compact_layout(first), first.parts[0].field.dtype, cache, key)


def _block_leaf(
    members: Sequence[Member],
    fields: Layout | Field,
    dtype: np.dtype[Any] | None,
    cache: BlockMemory,
    key: int,
) -> BlockLeaf:
    """Return the leaf of blocks of a member of each file, which become of a dtype if one is given."""
    num_blocks = starts_of([member.block_starts.size - 1 for member in members])
    firsts = starts_of([member.length for member in members])
    starts = [
        member.block_starts[:-1] + begin for member, begin in zip(members, firsts[:-1], strict=True)
    ]

    def find(block: int) -> tuple[Member, int]:
        number = int(np.searchsorted(num_blocks, block, side="right")) - 1
        return members[number], block - int(num_blocks[number])

    def decode(block: int) -> Any:
        member, number = find(block)
        values = member.decode(number)
        if dtype is None:
            return values
        return np.ascontiguousarray(values, dtype)

    def origin(block: int) -> tuple[str, int]:
        member, number = find(block)
        return member.origin(number)

    all_starts = np.concatenate([*starts, firsts[-1:]])
    rows = int(np.diff(all_starts).max(initial=0))
    how = f"blocks of up to {rows} rows, {members[0].how}"
    return BlockLeaf(fields, all_starts, decode, cache, key, how, origin)


def complete_path(group: str, path: str) -> str:
    """Return the path of an array from the root on, each part once."""
    return "/" + "/".join(part for part in f"{group}/{path}".split("/") if part not in ("", "."))


def listed_paths(
    listing: Manifest, paths: Any, fields: Mapping[str, str] | None, group: str, noun: str
) -> dict[str, str]:
    """Return the paths in a group of the arrays that a manifest lists, by the names of fields.

    Args:
        listing: the manifest.
        paths: of the arrays, complete; from the manifest, so of any kind.
        fields: those that are wanted; None: all of the group itself.
        group: the path of the group.
        noun: for errors, ``"dataset"``.

    Raises:
        FormatError: the manifest lists none.
        SpecError: one is not listed.
    """
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise listing.error(f"it holds no paths of {noun}s")
    root = complete_path(group, "").rstrip("/") + "/"
    names = [path.removeprefix(root) for path in paths if path.startswith(root)]
    if fields is not None:
        pairs = dict(fields)
    else:
        pairs = {name: name for name in names if name and "/" not in name}
    missing = [path for path in pairs.values() if complete_path(group, path) not in paths]
    if missing or not pairs:
        if missing:
            subject = f"{listing.path} lists no {noun} {complete_path(group, missing[0])}"
        else:
            subject = f"{listing.path} lists no {noun} in the group {group}"
        raise SpecError(
            subject,
            cause=f"it lists {list(dict.fromkeys(paths))}",
            remedy="name one of these by group= and fields=, or index the files with more fields",
        )
    return pairs


def listed_kinds(
    listing: Manifest,
    path: str,
    entries: Any,
    from_json: Callable[[Any], AnyKind],
    errors: tuple[type[Exception], ...],
    noun: str,
) -> list[AnyKind]:
    """Return the kinds of an array that a manifest holds, all of which make the same fields.

    Args:
        listing: the manifest.
        path: of the array, complete.
        entries: of the kinds; from the manifest, so of any kind.
        from_json: returns the kind of an entry.
        errors: that it raises for values that are none.
        noun: the thing that has one of the kinds, for errors: ``"file"``.

    Raises:
        FormatError: there are none, one cannot be, or they differ in their fields.
    """
    if not isinstance(entries, list) or not entries:
        raise listing.error(f"it holds no kinds of {path}")

    def read() -> tuple[list[AnyKind], list[Any]]:
        try:
            kinds = list(map(from_json, entries))
            fields = [kind.fields("x") for kind in kinds]
        except SpecError as error:
            raise to_error(error) from None
        return kinds, [part.spec if isinstance(part, Layout) else part for part in fields]

    def to_error(error: Exception) -> FormatError:
        return listing.error(f"a kind of {path} cannot be: {line_of(error)}"[:200])

    kinds, specs = signalsafe.call_library(read, to_error, errors)
    if any(spec != specs[0] for spec in specs):
        raise listing.error(f"{path} would be another field in each {noun}")
    return kinds


def row_layout(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Layout:
    """Return the layout of a row of an array of rows ``[*shape]``; the parts of a compound are
    ``"name.part"``.

    Raises:
        SpecError: the dtype holds Python objects, or a row has more axes or bytes than an array can
            have.
    """
    check_name(name)
    return layout_of(np.dtype([(name, dtype)]) if dtype.names else dtype, shape, field=name)


def block_starts(title: str, length: int, rows: int, row_bytes: int, file_bytes: int) -> Indices:
    """Return the first row of each block of ``rows`` rows, and the number of rows.

    Args:
        title: of the array, for errors.
        length: rows of the array.
        rows: of a block, at least 1.
        row_bytes: of a row decoded.
        file_bytes: of the file that holds them, which says how much is believed.

    Raises:
        FormatError: a block decodes to more than the limit of `storage/inflate.py`.
        SpecError: there are too many blocks.
    """
    num_bytes = min(rows, length) * row_bytes
    if num_bytes > limit_bytes(file_bytes):
        raise too_large(title, file_bytes, num_bytes, unpack="with its own library")
    if -(-length // rows) > MOST_BLOCKS:
        raise SpecError(
            f"{title} has {length} rows in blocks of {rows}",
            cause=f"that are more than {MOST_BLOCKS} blocks; or its shape is damaged",
            remedy="write it anew in larger chunks",
        )
    return np.append(np.arange(0, length, rows, dtype=np.int64), np.int64(length))


def check_chunk(title: str, chunk: Sequence[int], element_bytes: int, file_bytes: int) -> None:
    """Raise ``FormatError`` for chunks that unpack to more than the limit of `storage/inflate.py`.

    A chunk reaches beyond its array, so it may have more bytes than the rows that are read of it.
    """
    num_bytes = math.prod(chunk) * element_bytes
    if num_bytes > limit_bytes(file_bytes):
        raise too_large(title, file_bytes, num_bytes, unpack="with its own library")


def rows_of_block(num_bytes: int, length: int) -> int:
    """Return how many rows, of ``num_bytes`` altogether, are about BLOCK_BYTES."""
    return max(1, BLOCK_BYTES * max(length, 1) // max(num_bytes, 1))


def text_field(name: str, shape: tuple[int, ...]) -> Field:
    """Return the field of an array of texts of varying length; ``shape`` is that of a row."""
    _check_single(name, shape, "texts")
    return Field(name, np.dtype(object), (), text="str")


def varying_field(
    name: str, dtype: np.dtype[Any] | None, shape: tuple[int, ...], first: Sequence[Any]
) -> Field:
    """Return the field of an array of values of varying length.

    Args:
        name: of the field.
        dtype: of the elements of a value; None if that is none of NumPy's.
        shape: of a row of the array.
        first: the first value, if there is one.

    Raises:
        SpecError: the elements are no numbers, or a row has several values.
    """
    if dtype is None or dtype.kind not in NUMBERS:
        raise SpecError(
            f"{name!r} has values of varying length of {dtype}",
            cause="only numbers, bytes and texts of varying length have a form here",
            remedy="convert it with its own library",
        )
    _check_single(name, shape, "values of varying length")
    is_bytes = dtype == np.dtype(np.uint8)
    if is_bytes:
        heads = [bytes(value[:HEAD_BYTES]) for value in first]
    else:
        heads = []
    return Field(
        name, native(dtype), (None,), encoded=any(kind_of(head) is not None for head in heads)
    )


def _check_single(name: str, shape: tuple[int, ...], kind: str) -> None:
    if shape:
        raise SpecError(
            f"{name!r} has {kind} of shape {shape} in a row",
            cause="a row has one of them",
            remedy="store them in several arrays",
        )


def texts_of(values: Objects) -> Ragged:
    """Return texts, or their bytes in UTF-8, as the field of text stores them."""
    raws = [
        value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        for value in values
    ]
    return Ragged.of([np.frombuffer(value, np.uint8) for value in raws], np.dtype(np.uint8))


def varying_of(values: Objects, dtype: np.dtype[Any]) -> Ragged:
    """Return values of varying length, arrays or bytes."""
    arrays: list[Array] = [
        np.frombuffer(value, dtype)
        if isinstance(value, bytes)
        else np.asarray(value, dtype).reshape(-1)
        for value in values
    ]
    return Ragged.of(arrays, dtype)
