"""Advice: what a loader logs, once, of ops that are allowed and rarely meant.

Left behind   an op without ``on=`` moves an image, and its mask, boxes or rows stay.
Equal views   an op has one draw for several copies of an image, so that they stay equal.
Wrong levels  an op takes floating-point numbers for 0 to 1, and a cast made them of whole numbers.
Slices        an op moves an array of three axes as an image whose channels are many.
Wrong order   an op for an image from black to white, or a cast to whole numbers, stands behind one that normalises.
By an op      what ``Op.advice`` says of a field that the op acts on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuload.ops import images
from gpuload.ops.base import Op
from gpuload.ops.graph import Graph, size_axes
from gpuload.spec import MOST_CHANNELS, NUMBERS, Field

BOX_NAMES = ("box", "boxes", "bbox", "bboxes")


def advice(graph: Graph, names: Sequence[str]) -> Iterator[str]:
    """Give the warnings about a list of ops.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    lines = (_left_behind(graph, names), _equal_views(graph, names), _wrong_order(graph))
    yield from filter(None, (*lines, _wrong_levels(graph), _unmarked_slices(graph)))
    for place, on in enumerate(graph.targets):
        for name in on:
            line = graph.op_on(place, name).advice(graph.before(place)[name]) if name in graph.before(place) else None
            if line is not None:
                yield line


def _equal_views(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about copies of a field that are equal although random ops changed them; None if none are.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    steps = {name: (name,) for name in graph.spec_in.names}  # equal fields begin as one and pass through the same ops
    last_draw: dict[str, Op] = {}
    for place, (op, on, fields) in enumerate(zip(graph.ops, graph.targets, graph.outputs, strict=True)):
        originals = {name: first for name in fields if (first := op.original(name, on)) != name}
        if originals:
            steps |= {name: steps[first] for name, first in originals.items()}
            last_draw |= {name: last_draw[first] for name, first in originals.items() if first in last_draw}
            continue
        for name in fields:
            twin = name if op.joint else repr(graph.op_on(place, name))
            steps[name] = (*steps.get(name, ()), f"{place} {twin}")
        last_draw |= dict.fromkeys(fields, op) if op.is_random else {}
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(steps[name], []).append(name)
    views = next((tuple(group) for group in groups.values() if len(group) > 1 and group[0] in last_draw), None)
    if views is None:
        return None
    return (
        f"the fields {list(views)} are copies of one, and equal in each batch; cause: {last_draw[views[0]]} draws once "
        f"for all fields in its on=, as an image and its mask need it; remedy: *gl.ops.repeat([...], on={views}) makes "
        "ops for each of them, with draws of their own"
    )


def _wrong_order(graph: Graph) -> str | None:
    """Return a warning about the first op that acts on numbers about 0 as if they were an image; None if none does."""
    centred: dict[str, Op] = {}  # for each field the op that normalised it
    for place, (op, on) in enumerate(zip(graph.ops, graph.targets, strict=True)):
        before, after = graph.before(place), graph.specs[place]
        for name in on:
            if name not in centred or before[name].dtype.kind != "f":
                continue
            fault, remedy = "", f"put {type(op).__name__} before {type(centred[name]).__name__}"
            if op.takes_parts:
                fault = "takes 0 for black and 1 for white"
            elif op.centers:
                fault, remedy = "normalises a second time", "leave one of them out"
            elif after[name].dtype.kind in "ui":
                fault = f"makes {after[name].dtype} of it, and leaves some whole numbers about 0"
            if fault:
                return (
                    f"{op} {fault}; cause: before it {centred[name]} makes numbers about 0 of field {name!r}; "
                    f"remedy: {remedy}"
                )
        for name in graph.outputs[place]:
            maker = op if op.centers else centred.get(op.original(name, on))
            if maker is not None and after[name].dtype.kind == "f":
                centred[name] = maker
    return None


def _wrong_levels(graph: Graph) -> str | None:
    """Return a warning about the first op that takes levels, 0 to 255 say, for 0 to 1; None if none does."""
    casts: dict[str, tuple[Op, Field]] = {}  # for each field of such levels the cast, and the field before it
    for place, (op, on) in enumerate(zip(graph.ops, graph.targets, strict=True)):
        before, after = graph.before(place), graph.specs[place]
        for name in on:
            if name in casts and op.takes_parts and before[name].dtype.kind == "f" and not before[name].is_marked:
                cast, field = casts[name]
                bytes_too = f"leave {type(cast).__name__} out, or " if field.dtype == "uint8" else ""
                return (
                    f"{op} takes 0 for black and 1 for white; cause: before it {cast} makes floating-point numbers of "
                    f"{field}, and leaves their levels; remedy: {bytes_too}write {images.to_parts(field)} in its place"
                )
        scales = op.centers or op.calls_python or type(op).__name__ == "Normalize"
        origins = {name: op.original(name, on) for name in graph.outputs[place]}
        levels = {name: casts[first] for name, first in origins.items() if first in casts and not scales}
        if type(op).__name__ == "Cast":
            levels |= {name: (op, before[name]) for name in on if before[name].dtype.kind in "ui"}
        casts = {name: cast for name, cast in casts.items() if name not in origins} | {
            name: cast for name, cast in levels.items() if after[name].dtype.kind == "f"
        }
    return None


def _unmarked_slices(graph: Graph) -> str | None:
    """Return a warning about the first array of three axes that an op moves as an image of many channels, or None."""
    for place, (op, on) in enumerate(zip(graph.ops, graph.targets, strict=True)):
        for field in (graph.before(place)[name] for name in on if name in graph.before(place)):
            hint = images.slices_hint(field) if op.moves_pixels and not field.is_marked else ""
            if hint:
                return (
                    f"{op} takes the axes of {field} for height, width and {(field.shape or ())[-1]} channels; cause: "
                    f"nothing says what they are; remedy: {hint} for slices, or {hint.replace('DHW', 'HWC')}"
                )
    return None


def _left_behind(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about an image that an op moves without ``on=`` while its mask or boxes stay; None if none do.

    A mask is another field of images of the same height and width, known or not, that no op moves; boxes are four
    numbers each in a field of such a name, that are not marked and that no op acts on.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    moving = {name for op, on in zip(graph.ops, graph.targets, strict=True) if op.moves_pixels for name in on}
    touched = {name for on in graph.targets for name in on}
    for place, (op, on) in enumerate(zip(graph.ops, graph.targets, strict=True)):
        if op.on is not None or not op.moves_pixels:
            continue
        before, image = graph.before(place), on[0]
        size, names_beside = _image_size(before[image]), set(names) - moving
        candidates = [field for field in before if field.name in names_beside and not field.is_marked]
        beside = [field.name for field in candidates if size is not None and _image_size(field) == size]
        start = f"{op} moves the pixels of field {image!r}, and"
        if beside:
            return (
                f"{start} those of {beside} beside it stay where they are; "
                f"cause: without on= an op acts on {image!r} alone; remedy: on={(image, *beside)}, so that one draw "
                f"serves all, or on={image!r}, if that is what you mean"
            )
        for kind, is_of_kind, mark, other_marks in (
            ("masks", _are_masks_by_name, "masks", "'masks with boxes'"),
            ("boxes", _are_boxes_by_name, "xyxy", "'xywh', 'cxcywh'"),
        ):
            unmarked = [field.name for field in candidates if field.name not in touched and is_of_kind(field)]
            if unmarked:
                return (
                    f"{start} the {kind} in {unmarked} beside it stay where they are; cause: nothing says that they "
                    f"belong to the image; remedy: source.mark({unmarked[0]}={mark!r}) (or {other_marks}), so that one "
                    f"draw serves all, or on={image!r}, if that is what you mean"
                )
    return _left_rows(graph, [name for name in names if name not in touched])


def _left_rows(graph: Graph, names: Sequence[str]) -> str | None:
    """Return what to tell of rows that stay while an op without ``on=`` drops marked boxes; None if none do.

    Args:
        graph: the ops.
        names: the fields of a batch that no op acts on.
    """
    boxes = next((field.name for field in graph.spec_in if field.holds_boxes), None)
    op = next((op for op in graph.ops if op.drops_rows and op.on is None), None)
    fields = [field for field in graph.spec_in if field.ragged and field.name in names]
    rows = [field.name for field in fields if not field.is_marked and not field.encoded]
    if boxes is None or op is None or not rows:
        return None
    on = boxes if type(op).__name__ == "CleanBoxes" else "image"
    return (
        f"{op} drops boxes of field {boxes!r}, and the rows of {rows} beside it stay; cause: nothing says that they "
        f"have a row for each box; remedy: source.mark({rows[0]}='with boxes'), so that they go with them, or "
        f"on={on!r}, if that is what you mean"
    )


def _are_boxes_by_name(field: Field) -> bool:
    """Return True if a field has the name and the shape of boxes."""
    name = field.name.lower().rpartition("/")[2].rpartition("_")[2]  # "objects/bbox", "gt_boxes"
    return name in BOX_NAMES and (field.shape or ())[1:] == (4,) and field.dtype.kind in "iuf"


def _are_masks_by_name(field: Field) -> bool:
    """Return True if a field has the name and the shape of masks of objects, ``[number, height, width]``."""
    shape = field.shape or ()
    if len(shape) != 3 or shape[0] is not None or field.dtype.kind not in "bui":
        return False
    return field.name.lower().endswith("masks") and (shape[2] is None or shape[2] > MOST_CHANNELS)


def _image_size(field: Field) -> tuple[int | None, ...] | None:
    """Return height and width of an image or a mask, None where they vary; None if a field is neither."""
    if field.encoded or field.dtype.kind not in NUMBERS or field.shape is None or len(field.shape) not in (2, 3):
        return None
    if len(field.shape) == 2:
        return None if field.ragged else field.shape
    if _are_masks_by_name(field):
        return None
    height, width, *_ = size_axes(field)
    return field.shape[height], field.shape[width]
