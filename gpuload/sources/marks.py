"""Marks: facts of fields that files do not say, from the user.

Bytes    that they are encoded images, and the order of axes.
Meaning  which fields are the mask, the masks of objects, the boxes or the points of the image
         beside them, and which have a row for each box: ops that move pixels move them, too
         (`ops.follow`). Such a mark changes no record.

Padding  encoded images that are stored in one length each have zeros behind shorter ones. JPEG
         files end in D9 and PNG files in 82, so that all zeros at the end can be cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuload import rawdecode
from gpuload.errors import SpecError
from gpuload.ragged import Ragged
from gpuload.sources.layouts import compact_layout
from gpuload.sources.leaf import Bytes, Group, Indices, Leaf, Share, Values
from gpuload.spec import (
    BOX_FORMATS,
    INSTANCES,
    KINDS,
    MASK,
    NORMALIZED,
    VOLUMES,
    Field,
    Layout,
    Shape,
    Spec,
)

ENCODED_MARK = "encoded"
AXES = ("HWC", "CHW", *VOLUMES)
UINT8 = np.dtype(np.uint8)
WITH = "with "  # before the name of a field of boxes
FORMS = (
    "a mark is 'encoded', 'HWC', 'CHW', 'DHWC' or 'DHW'; 'mask', 'masks' (one of each object), "
    "'xyxy', 'xywh', 'cxcywh' (boxes) or 'xy' (points), in pixels, or 'normalized xyxy' in parts "
    "of the image's width and height; 'with boxes' of what has a row for each of the boxes"
)


FORMATS = {  # by the name of a data set or a library, ours
    "albumentations": "normalized xyxy", "bbox": "xyxy", "boxes": "xyxy", "coco": "xywh", "keypoints": "xy",
    "pascal_voc": "xyxy", "rel_xyxy": "normalized xyxy", "segmentation": "mask", "voc": "xyxy",
    "yolo": "normalized cxcywh",
}  # fmt: skip


def changes_bytes(mark: str) -> bool:
    """Return True if a mark changes records; else it only gives them a meaning."""
    return mark in (ENCODED_MARK, *AXES)


def mark_field(field: Field, mark: str) -> Field:
    """Return the field that a mark makes of a field.

    Raises:
        SpecError: there is no such mark, or it does not fit the field.
    """
    if not isinstance(mark, str) or not mark:
        raise _unknown_mark(field, mark)
    if not changes_bytes(mark):
        return _mark_meaning(field, mark)
    if mark == ENCODED_MARK:
        if field.encoded:
            return field
        is_bytes = (field.dtype, field.shape) == (UINT8, (None,)) or (
            field.text == "bytes" and field.shape == ()
        )
        if not is_padded(field) and not is_bytes:
            raise _mark_error(
                field,
                mark,
                "encoded images are one axis of uint8, or bytes (dtype S or V) without axes",
            )
        return field.with_(dtype=UINT8, shape=(None,), encoded=True, text="")
    if field.encoded or field.shape is None or len(field.shape) != len(mark):
        raise _mark_error(field, mark, f"it has not the {len(mark)} axes that this names")
    return field.with_(axes=mark)


def _mark_meaning(field: Field, mark: str) -> Field:
    """Return the field with its mark: its relation to the image beside it."""
    kind, is_split, boxes = mark.partition(WITH)
    kind = kind.rstrip()
    if kind not in ("", *KINDS) or (is_split and not boxes) or not (kind or boxes):
        raise _unknown_mark(field, mark)
    result = field.with_(kind=kind or field.kind, rows_of=boxes or field.rows_of)
    if boxes and (not field.shape or result.holds_boxes):
        cause = "what has a row for each box has an axis for them, and is no boxes itself"
        raise _mark_error(field, mark, cause)
    _check_mask(field, mark, kind)
    num_numbers = (field.shape or (0,))[-1] or 0
    if result.holds_boxes:
        cause = f"boxes ({', '.join(BOX_FORMATS)}) have four numbers each, along the last axis"
        _check_last_axis(field, mark, 4, cause, fits=num_numbers == 4)
    if result.holds_points:
        cause = "points have x and y along the last axis, and what else they have behind these"
        _check_last_axis(field, mark, 2, cause, fits=num_numbers >= 2)
    if kind.startswith(NORMALIZED) and field.dtype.kind != "f":
        raise _mark_error(field, mark, "parts of width and height are floating-point numbers")
    return result


def _check_mask(field: Field, mark: str, kind: str) -> None:
    """Raise ``SpecError`` for a field that cannot be the mask, or the masks of objects."""
    num_axes, is_number = len(field.shape or ()), field.dtype.kind in "buif"
    if kind == MASK and not field.encoded and not (num_axes in (2, 3, 4) and is_number):
        cause = "a mask has height and width, and an axis of channels or none, of numbers"
        raise _mark_error(field, mark, cause)
    if kind == INSTANCES and (field.encoded or num_axes != 3 or not is_number):
        cause = "masks of objects have three axes: one for the masks, height and width"
        raise _mark_error(field, mark, cause)


def _check_last_axis(field: Field, mark: str, count: int, cause: str, *, fits: bool) -> None:
    """Raise ``SpecError`` if a field holds no numbers, or its last axis has not as many as
    needed."""
    if fits and field.dtype.kind in "iuf":
        return
    lengths = field.shape or (0,)
    if lengths[-1] is None:
        raise _mark_error(field, mark, cause, (*lengths[:-1], count))
    raise _mark_error(field, mark, cause)


def check_rows(spec: Spec) -> None:
    """Raise ``SpecError`` for a field with rows of boxes that are not there."""
    for field in spec:
        if field.rows_of and (field.rows_of not in spec or not spec[field.rows_of].holds_boxes):
            box_names = [boxes.name for boxes in spec if boxes.holds_boxes]
            raise SpecError(
                f"mark({field.name}={field.mark!r})",
                cause=f"{field.rows_of!r} is no field of boxes; those that are marked are "
                f"{box_names}",
                remedy=f"mark both: source.mark(boxes='xyxy', {field.name}='with boxes'), after "
                "gl.zip of sources",
            )


def _unknown_mark(field: Field, mark: object) -> SpecError:
    text = str(mark)
    marks = {**dict.fromkeys(KINDS), **dict.fromkeys(AXES)}
    likely = FORMATS.get(text.lower(), "")
    for word in (text.lower(), text.upper()):
        likely = likely or word * (word in marks)
    remedy = f"write source.mark({field.name}={likely!r})" if likely else "pass one of these texts"
    return SpecError(f"mark({field.name}={mark!r})"[:200], cause=FORMS, remedy=remedy)


def _mark_error(field: Field, mark: str, cause: str, shape: Shape | None = None) -> SpecError:
    """Return the error of a mark that does not fit; with a shape that would if the last axis
    varies."""
    remedy = "mark another field, or leave this mark out"
    if shape:
        cause = f"{cause}; the length of that axis is not known"
        declared = f"{{{field.name!r}: ({field.dtype.name!r}, {shape})}}"
        remedy = "declare it where the source is opened, "
        remedy += f"gl.records(..., fields={declared}), say"
    return SpecError(
        f"mark({field.name}={mark!r}): the field is {field}", cause=cause, remedy=remedy
    )


def is_padded(field: Field) -> bool:
    """Return True if the records of a field are bytes of one length."""
    if field.dtype.kind in "SV":
        return field.shape == ()
    return field.dtype == UINT8 and field.uniform and len(field.fixed_shape) == 1


class MarkedGroups:
    """The groups of a source behind marks, and where the shares of its records go.

    A field of one length that holds encoded images becomes one of varying length, in a group of its
    own; the fields before it and behind it in the record become groups, too.

    Args:
        spec: the fields of the source.
        source_groups: its groups.
        marks: by the names of fields.

    Attributes:
        groups: behind the marks.

    Raises:
        UnknownFieldError: there is no such field.
        SpecError: there is no such mark, or it does not fit its field.
    """

    def __init__(
        self, spec: Spec, source_groups: Sequence[Group], marks: Mapping[str, str]
    ) -> None:
        self._fields = {field.name: field for field in spec}
        self._fields |= {name: mark_field(spec[name], mark) for name, mark in marks.items()}
        check_rows(Spec(tuple(self._fields[name] for name in spec.names)))
        self._source_groups = source_groups
        # Of each group of the source: ours, and the fields that go there.
        self._routes: list[list[tuple[int, list[int]]]] = []
        groups: list[Group] = []
        for group in source_groups:
            runs = self._runs(group)
            self._routes.append([(len(groups) + place, picks) for place, picks in enumerate(runs)])
            groups += [self._mark_group(group, picks) for picks in runs]
        self.groups = tuple(groups)

    def route(self, shares: Sequence[Share]) -> list[Share]:
        """Return shares of the source's groups as shares of these groups."""
        return [marked_share for share in shares for marked_share in self._shares_of(share)]

    def _is_cut(self, field: Field) -> bool:
        return is_padded(field) and self._fields[field.name].encoded

    def _runs(self, group: Group) -> list[list[int]]:
        """Return the runs of fields of a group that stay together: those between the encoded ones,
        or all."""
        runs: list[list[int]] = []
        is_open = False
        for number, field in enumerate(group.spec):
            if not is_open or self._is_cut(field):
                runs.append([])
            runs[-1].append(number)
            is_open = not self._is_cut(field)
        return runs

    def _mark_group(self, group: Group, picks: list[int]) -> Group:
        fields = [self._fields[group.spec.fields[pick].name] for pick in picks]
        if group.layout is None or self._is_cut(group.spec.fields[picks[0]]):
            return Group(Spec(tuple(fields)), None, group.is_quick)
        group_parts = [group.layout.parts[pick] for pick in picks]
        parts = [
            replace(part, field=field) for part, field in zip(group_parts, fields, strict=True)
        ]
        layout = Layout(group.layout.record_bytes, tuple(parts))
        return Group.of(layout if len(picks) == len(group.spec) else compact_layout(layout))

    def _shares_of(self, share: Share) -> list[Share]:
        fields, shares = self._source_groups[share.group].spec.fields, list[Share]()
        for group, group_picks in self._routes[share.group]:
            picks = tuple(group_picks)
            if share.picks is not None:
                picks = tuple(share.picks[pick] for pick in group_picks)
            first = fields[group_picks[0]]
            if self._is_cut(first):
                leaf = PaddedLeaf(share.leaf, picks[0], self._fields[first.name])
                shares.append(replace(share, leaf=leaf, group=group, picks=None))
            elif len(group_picks) == len(fields):
                shares.append(replace(share, group=group))
            else:
                shares.append(replace(share, group=group, picks=picks))
        return shares


class PaddedLeaf(Leaf):
    """A field of a leaf that holds encoded images of one length each, with zeros behind them, which
    are cut off.

    Args:
        leaf: with the records.
        pick: the number of the field in the leaf.
        field: that it becomes.
    """

    def __init__(self, leaf: Leaf, pick: int, field: Field) -> None:
        self.spec, self.num_records, self.how = Spec((field,)), leaf.num_records, leaf.how
        self._leaf, self._pick = leaf, pick

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has, int64 ``[n]``; those of all its fields."""
        return self._leaf.num_bytes(numbers)

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._leaf.read(numbers, out, begins)

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the images without the zeros behind them."""
        rows = self._rows(numbers, raw)
        # By ``bytes.rstrip``, one call of C; NumPy would look at each byte of every row.
        lengths = [len(row.tobytes().rstrip(b"\0")) for row in rows]
        return [Ragged.of([row[:length] for row, length in zip(rows, lengths, strict=True)], UINT8)]

    def _rows(self, numbers: Indices, raw: Ragged) -> Bytes:
        """Return the bytes of the field, uint8 ``[n, num_bytes]``."""
        if self._leaf.layout is None:
            values: Any = self._leaf.unpack(numbers, raw)[self._pick]
        else:
            records, part = raw.flat.reshape(numbers.size, -1), self._leaf.layout.parts[self._pick]
            if part.is_c_order:
                return records[:, part.offset_bytes : part.offset_bytes + part.num_bytes]  # type: ignore[no-any-return]
            values = rawdecode.view_part(records, part)
        return np.ascontiguousarray(values).view(np.uint8).reshape(numbers.size, -1)

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file that holds a record and the byte where it begins; None where no file is
        known."""
        return self._leaf.origin(number)

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._leaf.advise(numbers)
