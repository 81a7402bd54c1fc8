"""Sources made of several: fields side by side, records one after the other.

Each says where its records lie by asking its parts (``resolve``), as slices and the like do
(`base.py`).
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import lazy, signalsafe
from gpuload.errors import SpecError
from gpuload.order import check_flag
from gpuload.sources.base import Composed, Source, names_module
from gpuload.sources.classnames import common_classes, shorten
from gpuload.sources.dtypes import common_dtype, joining_call, rewriting
from gpuload.sources.layouts import compact_layout
from gpuload.sources.leaf import Group, Indices, Share, starts_of
from gpuload.sources.zones import check_zones
from gpuload.spec import Field, Layout, Part, Spec

if TYPE_CHECKING:
    from gpuload.sources.joins import By
    from gpuload.sources.names import RecordNames

check_files = lazy.function("gpuload.sources.joins", "check_files")
RENAME = "rename fields with source.rename(old='new'), or make two loaders"
log = logging.getLogger("gpuload")


def zip(*sources: Source, by: By = None, missing: str = "raise", by_file: bool = True) -> Zipped:
    """Return the source of records with the fields of all sources side by side.

        pairs = gl.zip(gl.images("photos", labels=None), gl.images("masks", labels=None).rename(image="mask"))
        pairs = gl.zip(photos, masks, missing="drop")                   photos without a mask are left out
        pairs = gl.zip(photos, masks, by=lambda name: name[:8])         by the first 8 characters of the names
        pairs = gl.zip(rows, gl.arrays(label=labels))                   by place: arrays have no names

    Sources of records that are files, or members of tars, know names: ``cat/1.png``, as seen from
    the folder of all of their files. Records that have one name belong together: without suffixes,
    and without the part that all names of a source share, as ``_mask`` of ``1_mask.png``. Where
    names stand in another order, the records of the other sources are put into that of the first.
    Sources that know no names are joined by place, unless a column of theirs has the names in
    another order. So are parts of one source, as ``gl.zip(frames[:-1],
    frames[1:].rename(image="next"))``.

    Args:
        sources: sources of one length, unless ``missing="drop"`` leaves records out.
        by: None: as said above. ``"name"``: by names alone. A function: by its result for each
            name, suffix included, ``"cat/1.png"``. ``"place"``: record i is joined with record i
            under any names.
        missing: the fate of a record that has no partner of its name. ``"raise"``: it is an
            error. ``"drop"``: it is left out, and the log counts such records.
        by_file: True: if two sources have as many files as each other, as shards of images and
            shards of their labels, file i of one has as many records as file i of the other; else
            it is an error. False: the same as ``by="place"``.

    Raises:
        SpecError: lengths or names differ, two records have one name, a column has the names in
            another order, two fields have one name, or one of the sources is none.
    """
    _check_sources("zip", sources)
    joins = signalsafe.import_package("gpuload.sources.joins")
    joins.check_arguments(by, missing)
    by_file = check_flag("by_file", by_file)
    is_by_place = by == joins.PLACE or (by is None and missing == joins.RAISE and not by_file)
    if is_by_place:
        selections = sources
    else:
        selections = joins.by_name(sources, by, missing)
    lengths = [len(source) for source in selections]
    if len(set(lengths)) > 1:
        raise SpecError(
            f"gl.zip of sources with {lengths} records",
            cause="record i is made of record i of each, and no names say which of them have no "
            "partner",
            remedy="leave out the records that have no partner: gl.zip(a.select(numbers), b); "
            "source.where(i) says where record i comes from",
        )
    if by is None and not is_by_place:
        _check_files(selections)
    class_names = list(dict.fromkeys(source.classes for source in sources if source.classes))
    if len(class_names) > 1:
        log.warning(
            "gl.zip of sources with the classes %s and %s: which labels they name is not known, "
            "and source.classes is empty; labels of one kind have one list of names: "
            "gl.images(..., classes=a)",
            shorten(class_names[0]), shorten(class_names[1]),
        )  # fmt: skip
    return Zipped(*selections)


def _check_files(sources: Sequence[Source]) -> None:
    """Raise ``SpecError`` if two sources of as many files have other records, or other names, in
    these."""
    first: dict[
        int, tuple[Sequence[str], Sequence[int]]
    ] = {}  # of each number of files the first source
    for source in sources:
        paths, counts = source.files.whole
        # One file against one: the lengths, which are equal here, say all.
        if len(paths) < 2:
            continue
        other_paths, first_counts = first.setdefault(len(paths), (paths, counts))
        for first_count, count, other_path, path in builtins.zip(
            first_counts, counts, other_paths, paths, strict=True
        ):
            if first_count != count:
                raise _file_error(
                    len(paths), f"{other_path} has {first_count} records, {path} has {count}"
                )
        # Files that are a record each were compared before.
        if set(counts) != {1}:
            check_files("gl.zip", other_paths, paths)


def _file_error(num_files: int, text: str) -> SpecError:
    return SpecError(
        f"gl.zip: {text}",
        cause=f"both sources have {num_files} files, and these two stand at one place",
        remedy="name the files in one order; if the records go together all the same, gl.zip(..., "
        "by='place')",
    )


class Zipped(Composed):
    """Sources side by side; made by ``gl.zip``."""

    def __init__(self, *sources: Source) -> None:
        super().__init__(tuple(group for source in sources for group in source.groups), *sources)
        if len({source.classes for source in sources if source.classes}) > 1:
            self.classes = ()
        self.endless = all(source.endless for source in sources)

    def _title(self) -> str:
        return f"gl.zip of {self._titles()}"

    def __len__(self) -> int:
        return len(self._parts[0])

    def _resolve(self, numbers: Indices) -> list[Share]:
        shares, before = list[Share](), 0
        for part in self._parts:
            shares += [
                replace(share, group=share.group + before) for share in part.resolve(numbers)
            ]
            before += len(part.groups)
        return shares

    def _record_names(self) -> RecordNames | None:
        return next(
            (names for part in self._parts if (names := part._record_names()) is not None), None
        )

    def _where(self, number: int) -> str:
        return " | ".join(part.where(number) for part in self._parts)

    def _digest(self) -> str:
        return self._digest_with()


def concat(*sources: Source, promote: bool = False) -> Concatenated:
    """Return the source of the records of the first source, then those of the second, and so on.

        gl.concat(a, b)
        gl.concat(a, b, promote=True)     a has int32, b has int64: the records have int64

    Args:
        sources: sources with the same fields.
        promote: True: fields of different dtypes have the smallest dtype that holds the values of
            all of them, of whole numbers, of floating-point numbers, or of texts of a length.
            False: dtypes are the same.

    Raises:
        SpecError: the fields of the sources differ, or the classes of their labels; times with a
            zone follow times without one; one of them is no source.
    """
    _check_sources("concat", sources)
    promote = check_flag("promote", promote)
    check_fields("gl.concat", sources, promote=promote)
    titles = [f"source {number} of gl.concat" for number in range(len(sources))]
    for name in sources[0].spec.names:
        check_zones(builtins.zip(titles, [source.spec[name] for source in sources], strict=True))
    common_classes(
        [(f"gl.concat: source {number}", source.classes) for number, source in enumerate(sources)],
        "open them with the same classes: a = gl.images('a', classes=[...]); b = gl.images('b', "
        "classes=a)",
    )
    return Concatenated(*sources)


class Concatenated(Composed):
    """Sources one after the other; made by ``gl.concat``.

    If all sources group their fields alike, the groups stay; else each field is a group of its own.
    The layout of a group is that of all sources, if they have the same; else native byte order and
    C order.
    """

    def __init__(self, *sources: Source) -> None:
        self._starts = starts_of([len(source) for source in sources])
        self._alike = len({_grouping(source) for source in sources}) == 1
        by_source = [source.groups if self._alike else _single(source) for source in sources]
        super().__init__(tuple(map(_common, builtins.zip(*by_source, strict=True))), *sources)

    def _title(self) -> str:
        return f"gl.concat of {self._titles()}"

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _resolve(self, numbers: Indices) -> list[Share]:
        shares = list[Share]()
        for part, rows, inside in self._by_part(numbers):
            for share in part.resolve(inside):
                # A part numbers the rows of its own records; here they are rows of the whole batch.
                part_share = replace(share, rows=_rows_within(rows, share.rows))
                if self._alike:
                    shares += [part_share]
                else:
                    shares += _by_field(part_share, part)
        return shares

    def _by_part(self, numbers: Indices) -> Iterator[tuple[Source, Indices | None, Indices]]:
        """Give each source that has some of the records, which of the records these are, and their
        numbers in it."""
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        for owner in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == owner)
            inside = numbers - self._starts[owner]
            if rows.size == numbers.size:
                # No rows means all in order, which is read without a gather.
                yield self._parts[owner], None, inside
            else:
                yield self._parts[owner], rows, inside[rows]

    def _record_names(self) -> RecordNames | None:
        names = [part._record_names() for part in self._parts]
        present = [part_names for part_names in names if part_names is not None]
        return (
            names_module().RecordNames.concatenate(present) if len(present) == len(names) else None
        )

    def _where(self, number: int) -> str:
        owner = int(np.searchsorted(self._starts, number, side="right")) - 1
        return f"part {owner}: {self._parts[owner].where(number - int(self._starts[owner]))}"

    def _digest(self) -> str:
        return self._digest_with()


def _grouping(source: Source) -> tuple[tuple[tuple[str, ...], bool], ...]:
    return tuple((group.spec.names, group.layout is None) for group in source.groups)


def _single(source: Source) -> list[Group]:
    """Return a group for each field of a source, with the bytes of the field alone."""
    single = []
    for group in source.groups:
        for number, field in enumerate(group.spec):
            if group.layout is None:
                part = None
            else:
                part = group.layout.parts[number]
            if part is None:
                layout = None
            else:
                layout = compact_layout(Layout(part.num_bytes, (part,)))
            single.append(Group(Spec((field,)), layout, group.is_quick))
    return single


def _common(groups: Sequence[Group]) -> Group:
    """Return the group in which the records of all of these groups can be."""
    spec, layouts = groups[0].spec, [group.layout for group in groups if group.layout is not None]
    is_same = all(group.spec == spec for group in groups)
    if not is_same:  # a dtype that holds the values of all
        dtypes = [
            common_dtype([group.spec.fields[i].dtype for group in groups]) for i in range(len(spec))
        ]
        fields = builtins.zip(spec, dtypes, strict=True)
        spec = Spec(
            tuple(field if dtype is None else field.with_(dtype=dtype) for field, dtype in fields)
        )
    if len(layouts) < len(groups):
        return Group(
            spec, None, all(group.layout is not None or group.is_quick for group in groups)
        )
    if not is_same:
        return Group.of(
            compact_layout(Layout(0, tuple(Part(field, field.dtype) for field in spec)))
        )
    first = layouts[0]
    return Group.of(
        first if all(layout.same_bytes(first) for layout in layouts) else compact_layout(first)
    )


def _by_field(share: Share, part: Source) -> list[Share]:
    """Return a share of a part as one for each of its fields, which are groups of their own."""
    before = sum(len(group.spec) for group in part.groups[: share.group])
    picks = range(len(part.groups[share.group].spec)) if share.picks is None else share.picks
    return [
        replace(share, group=before + number, picks=(pick,)) for number, pick in enumerate(picks)
    ]


def _rows_within(rows: Indices | None, inner: Indices | None) -> Indices | None:
    """Return which of all records these are, which are ``inner`` of those that are ``rows``."""
    if rows is None or inner is None:
        if rows is None:
            return inner
        return rows
    return rows[inner]


def _check_sources(name: str, sources: Sequence[Any]) -> None:
    if not sources:
        raise SpecError(
            f"gl.{name}() without sources",
            cause="there is nothing to join",
            remedy=f"gl.{name}(a, b)",
        )
    for source in sources:
        if not isinstance(source, Source):
            raise SpecError(
                f"gl.{name} of {type(source).__name__}",
                cause="it is no source",
                remedy=f"pass sources one by one, gl.{name}(a, b); gl.arrays(x=array) makes one of "
                "an array",
            )
    mixes = [source for source in sources if source.endless]
    if mixes and (name == "concat" or len(mixes) < len(sources)):
        raise SpecError(
            f"gl.{name} of {mixes[0]!r}",
            cause="a mix or a sample has other records in each epoch, and the others have the same",
            remedy=f"gl.{name} the parts, and mix or sample these; mix[:] is the first epoch of a "
            "mix alone",
        )


def check_fields(call: str, sources: Sequence[Source], *, promote: bool) -> None:
    """Check that sources have the same fields.

    Args:
        call: that joins them, ``"gl.concat"`` or ``"gl.mix"``.
        sources: in their order.
        promote: True if the dtypes may be those for which there is a common one.

    Raises:
        SpecError: they have not.
    """
    first = sources[0]
    for number, source in enumerate(sources):
        if source.spec.names != first.spec.names:
            raise _differ(
                call,
                f"source {number} has the fields {list(source.spec.names)}, source 0 has "
                f"{list(first.spec.names)}",
                RENAME,
            )
        for field in source.spec:
            expected = first.spec[field.name]
            if field != expected:
                fields = [part.spec[field.name] for part in sources[: number + 1]]
                common = common_dtype([part.dtype for part in fields])
                is_alike = common is not None and _differ_in_dtype(field, expected)
                if not (promote and is_alike):
                    raise _differing_fields(call, fields, is_alike=is_alike)


def _differing_fields(call: str, fields: Sequence[Field], *, is_alike: bool) -> SpecError:
    """Return the error for a field of some sources, of which the last one differs from the others.

    Args:
        call: that joins the sources.
        fields: of each source.
        is_alike: True if a dtype holds the values of all, and they differ in nothing else.
    """
    # Of uint8, int8 and uint64 the last one has a common dtype with the first, not with the second.
    dtype, rivals = fields[-1].dtype, fields[:-1]
    pairs = ([field.dtype, dtype] for field in rivals)
    unfit = (number for number, pair in enumerate(pairs) if common_dtype(pair) is None)
    rival = 0 if is_alike else next(unfit, 0)
    first, second = fields[rival], fields[-1]
    difference = f"source {len(rivals)} has field {second}, source {rival} has {first}"
    if is_alike:
        join = joining_call(call, "a", "b", promote=True)
        return _differ(call, difference, f"have the dtype that holds the values of all: {join}")
    has_zone = "UTC" in (first.zone, second.zone)  # which arrays have not
    if not _differ_in_dtype(first, second) or has_zone:
        return _differ(call, difference, RENAME)
    names = f"a is source {rival}, b is source {len(rivals)}: "
    remedy = rewriting(call, ("a", "b"), second.name, (first.dtype, dtype), ".npz")
    if remedy:
        return _differ(call, difference, names + remedy)
    return _differ(call, difference, RENAME)


def _differ_in_dtype(first: Field, second: Field) -> bool:
    """Return True if two fields differ in nothing but the dtype of their numbers."""

    def form(field: Field) -> tuple[Any, ...]:
        return field.shape, field.encoded, field.axes, field.text, field.kind, field.rows_of

    return form(first) == form(second)


def _differ(call: str, difference: str, remedy: str) -> SpecError:
    return SpecError(
        f"{call}: {difference}",
        cause="sources that follow one another have the same fields, dtypes and shapes",
        remedy=remedy,
    )
