"""Advice: the warnings that a loader logs, once, of ops that are allowed and rarely meant.

Left behind   an op moves an image, and fields of its pixels (`ops.beside`) stay, or rows of its
              boxes do.
Views         an op moves a copy of the image, and fields of the image stay, which is itself not
              handed out itself. By a function a function, or an operator of DALI, moves an image,
              and fields of it stay.
Turned over   the axes of an image are reordered so that height and width are exchanged; fields
              of it stay.
Left unmixed  an op mixes the images of several records, and numbers beside them stay those of one,
              or the text that may be their label.
Masks         an op blends numbers that look like those of a mask, or changes them as colours.
Equal views   an op has one draw for several copies of an image, so that they stay equal.
Wrong levels  an op takes floating-point numbers for 0 to 1, and a cast made them of whole numbers.
Slices        an op moves an array of three axes as an image of many channels.
Wrong order   an op for an image from black to white, or a cast to whole numbers, stands behind one
              that normalises.
By an op      the text that ``Traits.advice`` returns of a field that the op acts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from gpuload.graph.graph import Graph
from gpuload.ops import beside, images
from gpuload.ops.base import Op, calls_python, is_random, original
from gpuload.spec import INSTANCES, KINDS, MASK, NORMALIZED, NUMBERS, Field, Spec

MOVERS = (  # functions of NumPy, and operators of DALI, that move pixels with any arguments
    np.flip, np.fliplr, np.flipud, np.rot90,
    "crop", "experimental.remap", "experimental.warp_perspective", "flip", "remap", "rotate",
    "slice", "sphere", "warp_affine", "water",
)  # fmt: skip

# For each field of levels that are no longer whole numbers the cast, and the field before it.
Casts: TypeAlias = dict[str, tuple[Op, Field]]


def advice(graph: Graph, names: Sequence[str]) -> Iterator[str]:
    """Give the warnings about a list of ops.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    lines = (_left_behind(graph, names), _moved_views(graph, names), _turned_over(graph, names))
    yield from filter(None, (*lines, _moved_by_function(graph, names), _left_unmixed(graph, names)))
    yield from filter(None, (_equal_views(graph, names), _wrong_order(graph), _wrong_levels(graph)))
    yield from filter(None, (_unmarked_slices(graph), _blended_masks(graph)))
    for place, on in enumerate(graph.targets):
        before = graph.before(place)
        for name in on:
            if name not in before:
                continue
            advice_on = graph.op_on(place, name).traits.advice
            if advice_on is not None:
                yield from filter(None, [advice_on(before[name])])


def _acts(graph: Graph) -> Iterator[tuple[int, Op, tuple[str, ...], Spec]]:
    """Give each op of a list with its place, the fields that it acts on, and the spec before it."""
    for place, (op, on) in enumerate(zip(graph.ops, graph.targets, strict=True)):
        yield place, op, on, graph.before(place)


def _fields_of_ops(graph: Graph, holds: Callable[[Op], object]) -> set[str]:
    """Return the fields that some ops act on: those for which ``holds`` is true."""
    pairs = zip(graph.ops, graph.targets, strict=True)
    return {name for op, on in pairs if holds(op) for name in on}


def _is_function(op: Op) -> bool:
    """Return True for a function and an operator of DALI: they may move any pixels."""
    return calls_python(op) or op.traits.execution.needs_dali


def _equal_views(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about copies of a field that are equal although random ops changed them;
    None if none are.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    # Equal fields begin as one and pass through the same ops.
    steps = {name: (name,) for name in graph.spec_in.names}
    last_draw: dict[str, Op] = {}
    for place, (op, on, fields) in enumerate(
        zip(graph.ops, graph.targets, graph.outputs, strict=True)
    ):
        originals = {name: first for name in fields if (first := original(op, name, on)) != name}
        if originals:
            steps |= {name: steps[first] for name, first in originals.items()}
            last_draw |= {
                name: last_draw[first] for name, first in originals.items() if first in last_draw
            }
            continue
        for name in fields:
            if op.traits.joint:
                twin = name
            else:
                twin = repr(graph.op_on(place, name))
            steps[name] = (*steps.get(name, ()), f"{place} {twin}")
        if is_random(op):
            last_draw |= dict.fromkeys(fields, op)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(steps[name], []).append(name)
    views = next(
        (tuple(group) for group in groups.values() if len(group) > 1 and group[0] in last_draw),
        None,
    )
    if views is None:
        return None
    return (
        f"the fields {list(views)} are copies of one, and equal in each batch; cause: {last_draw[views[0]]} draws once "
        f"for all fields in its on=, as an image and its mask need it; remedy: *gl.ops.repeat([...], on={views}) makes "
        "ops for each of them, with draws of their own"
    )


def _wrong_order(graph: Graph) -> str | None:
    """Return a warning about the first op that acts on numbers about 0 as if they were an image;
    None if none does."""
    centred: dict[str, Op] = {}  # for each field the op that normalised it
    for place, op, on, before in _acts(graph):
        after = graph.specs[place]
        for name in on:
            if name not in centred or before[name].dtype.kind != "f":
                continue
            fault, remedy = "", f"put {type(op).__name__} before {type(centred[name]).__name__}"
            if op.traits.arithmetic.takes_parts:
                fault = "takes 0 for black and 1 for white"
            elif op.traits.arithmetic.centers:
                fault, remedy = "normalises a second time", "leave one of them out"
            elif after[name].dtype.kind in "ui":
                fault = f"makes {after[name].dtype} of it, and leaves some whole numbers about 0"
            if fault:
                return (
                    f"{op} {fault}; cause: before it {centred[name]} makes numbers about 0 of field {name!r}; "
                    f"remedy: {remedy}"
                )
        for name in graph.outputs[place]:
            maker: Op | None = op
            if not op.traits.arithmetic.centers:
                maker = centred.get(original(op, name, on))
            if maker is not None and after[name].dtype.kind == "f":
                centred[name] = maker
    return None


def _wrong_levels(graph: Graph) -> str | None:
    """Return a warning about the first op that takes levels, 0 to 255 say, for 0 to 1; None if none
    does."""
    casts: Casts = {}
    for place, op, on, before in _acts(graph):
        for name in on:
            is_float = name in casts and before[name].dtype.kind == "f"
            if is_float and op.traits.arithmetic.takes_parts and not before[name].is_marked:
                cast, field = casts[name]
                bytes_too = ""
                if field.dtype == "uint8":
                    bytes_too = f"leave {type(cast).__name__} out, or "
                return (
                    f"{op} takes 0 for black and 1 for white; cause: before it {cast} makes floating-point numbers of "
                    f"{field}, and leaves their levels; remedy: {bytes_too}write {images.to_parts(field)} in its place"
                )
        casts = _casts_after(graph, place, casts)
    return None


def _casts_after(graph: Graph, place: int, casts: Casts) -> Casts:
    """Return the casts that made levels which fields still have behind an op.

    Args:
        graph: the ops.
        place: of the op.
        casts: the same before it.
    """
    op, on, before = graph.ops[place], graph.targets[place], graph.before(place)
    origins = {name: original(op, name, on) for name in graph.outputs[place]}
    levels: Casts = {}
    scales = op.traits.arithmetic.centers or calls_python(op) or type(op).__name__ == "Normalize"
    if not scales:
        levels = {name: casts[first] for name, first in origins.items() if first in casts}
    if type(op).__name__ == "Cast":
        levels |= {name: (op, before[name]) for name in on if before[name].dtype.kind in "ui"}
    after = graph.specs[place]
    rest = {name: cast for name, cast in casts.items() if name not in origins}
    return rest | {name: cast for name, cast in levels.items() if after[name].dtype.kind == "f"}


def _unmarked_slices(graph: Graph) -> str | None:
    """Return a warning about the first array of three axes that an op moves as an image of many
    channels, or None."""
    for _, op, on, before in _acts(graph):
        if not op.traits.geometric:
            continue
        for field in (before[name] for name in on if name in before):
            hint = images.slices_hint(field)
            if hint and not field.is_marked:
                return (
                    f"{op} takes the axes of {field} for height, width and {(field.shape or ())[-1]} channels; cause: "
                    f"nothing says what they are; remedy: {hint} for slices, or {hint.replace('DHW', 'HWC')}"
                )
    return None


def _left_behind(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about an image that an op moves while fields that belong to its pixels stay;
    None if none do.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    for place, op, on, before in _acts(graph):
        image = on[0]
        # Boxes and points cannot be named in on=, so that several fields there say nothing of them.
        is_alone = sum(not before[name].is_marked for name in on if name in before) == 1
        if not op.traits.geometric or image not in before or (graph.choices[place] and is_alone):
            continue
        roles = _roles_that_stay(graph, place, names)
        if roles:
            left = {field.name for group in roles.values() for field in group}
            fields = [field.name for field in before if field.name in left]
            forms = "; ".join(_form(role, group, image) for role, group in roles.items())
            return (
                f"{op} moves the pixels of field {image!r}, and those of {fields} beside it stay where they are; "
                f"cause: nothing says that they belong to the image; remedy: {forms}, so that one draw serves all; or "
                f"{_as_meant(before, image, fields)}"
            )
    targets = _fields_of_ops(graph, lambda op: True)
    return _left_rows(graph, [name for name in names if name not in targets])


def _roles_that_stay(graph: Graph, place: int, names: Sequence[str]) -> dict[str, list[Field]]:
    """Return the fields that belong to the pixels of the image that an op moves, and stay, by role.

    Args:
        graph: the ops.
        place: of the op.
        names: the fields of a batch.
    """
    before = graph.before(place)
    moving = _fields_of_ops(graph, lambda op: op.traits.geometric)
    by_function = _fields_of_ops(graph, _is_function)
    roles: dict[str, list[Field]] = {}
    for field in (field for field in before if field.name in names):
        role = beside.role(field, before[graph.targets[place][0]], graph.roles)
        if role in beside.PLACES:
            stays = field.name not in by_function
        else:
            stays = field.name not in moving and not graph.choices[place]
        if stays and role not in ("", beside.LABEL):
            roles.setdefault(role, []).append(field)
    return roles


def _moved_views(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about a moved copy of an image that stands for it beside fields of the
    image; None if none does.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    image, views = beside.image_name(graph.spec_in), set[str]()
    if image is None or image in names:  # fields of the image lie beside it
        return None
    for place, op, on, before in _acts(graph):
        targets = [name for name in on if name in views]
        if targets and op.traits.geometric and image in before:
            in_batch = [field for field in before if field.name in {*names} - {*on} - views]
            places = (*beside.PLACES, MASK)
            fields = [
                field.name
                for field in in_batch
                if field.is_marked or beside.role(field, before[image], graph.roles) in places
            ]
            if fields:
                return (
                    f"{op} moves the pixels of {targets}, and {fields} beside it stay as they are beside {image!r}; "
                    f"cause: what belongs to an image goes with {image!r}, and not with its copies; remedy: act on "
                    f"{image!r} in place of {targets[0]!r}, and mark what belongs to it; or leave {fields} out of "
                    "output="
                )
        copies = {
            name for name in graph.outputs[place] if original(op, name, on) in views | {image}
        }
        views |= copies - {image}
    return None


def _turned_over(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about a Transpose that exchanges the sides of an image, beside fields of
    it, or None.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    for _, op, on, before in _acts(graph):
        image, order = beside.image_name(before), getattr(op, "order", ())
        if type(op).__name__ != "Transpose" or image not in on or before[image].is_volume:
            continue
        first = int(before[image].is_channels_first)  # of the height; the next is that of the width
        if len(order) < 2 or order.index(first) < order.index(first + 1):
            continue
        roles = {field.name: beside.role(field, before[image], graph.roles) for field in before}
        belong = [
            field
            for field in before
            if field.is_marked or roles[field.name] not in ("", beside.LABEL)
        ]
        fields = [field for field in belong if field.name in names and field.name not in on]
        if fields:
            return (
                f"{op} exchanges height and width of field {image!r}, and {[field.name for field in fields]} beside it "
                "stay as they are; cause: it reorders axes, and moves nothing else; remedy: gl.ops.Rotate90((1,)) and "
                "gl.ops.RandomFlip(p=1.0, horizontal=False, vertical=True) in its place move what is marked, too"
            )
    return None


def _moved_by_function(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about the first function or operator of DALI that moves an image alone.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    by_function = _fields_of_ops(graph, _is_function)
    for place, op, on, before in _acts(graph):
        image = beside.image_name(before)
        if not _is_function(op) or op.traits.geometric or image not in on:
            continue
        is_mover = getattr(op, "fn", None) in MOVERS
        if not is_mover and not beside.is_resized(before[image], graph.specs[place][image]):
            continue
        in_batch = [field for field in before if field.name in {*names} - by_function]
        fields = []
        for field in in_batch:
            role = field.kind or beside.role(field, before[image], graph.roles)
            is_meant = graph.choices[place]
            if field.kind:  # a resize leaves places that are parts of the image
                is_meant = not is_mover and field.kind.startswith(NORMALIZED)
            if role in (*beside.PLACES, MASK, *KINDS) and not is_meant:
                fields.append(field.name)
        if fields:
            return (
                f"{op} moves the pixels of field {image!r}, and {fields} beside it stay where they are; "
                "cause: nothing says where it moves them; remedy: an op of gpuload in its place, which "
                f"moves what is marked, or gl.ops.Python of one function for all, on={(image, *fields)}"
            )
    return None


def _form(role: str, fields: Sequence[Field], image: str) -> str:
    """Return how to say how some fields belong to an image."""
    marks = {beside.BOXES: "xyxy", beside.POINTS: "xy", MASK: MASK, INSTANCES: INSTANCES}
    alternatives = {
        beside.BOXES: " (or 'xywh', 'cxcywh', 'normalized xyxy')",
        beside.POINTS: " (or 'normalized xy')",
        INSTANCES: " (or 'masks with boxes')",
    }
    files = [field.name for field in fields if field.encoded]
    if files:
        return f"gl.ops.Decode(on={_on(files)}) before it, with source.mark({files[0]}='mask') if it is a mask"
    if role == beside.BOXES_AND_CLASSES:
        return (
            f"two fields in place of {fields[0].name!r}, rows[..., :4] and rows[..., 4], if they are "
            "boxes with their classes: source.mark(boxes='xyxy', classes='with boxes')"
        )
    if role == beside.SCALED:
        return _form_of_scaled(fields, image)
    if role not in marks:
        return f"on={(image, *(field.name for field in fields))}"
    text = f"source.mark({', '.join(f'{field.name}={marks[role]!r}' for field in fields)}){alternatives.get(role, '')}"
    flat = next((field for field in fields if role == MASK and len(field.shape or ()) == 2), None)
    if flat is not None:
        reshape = f", with {images.to_three_axes(flat)} before it"
    else:
        reshape = ""
    if role != MASK:
        return text + reshape
    return f"{text}{reshape}, or on={(image, *(field.name for field in fields))}"


def _form_of_scaled(fields: Sequence[Field], image: str) -> str:
    """Return how to move maps and images of another size with an image."""
    with_colours = [field.name for field in fields if (field.shape or ())[2:] in ((3,), (4,))]
    maps = [field for field in fields if field.name not in with_colours]
    forms = []
    if with_colours:
        on = (image, *with_colours)
        forms.append(f"gl.ops.Python of one function for all, on={on}, in the place of the op")
    for field in maps:
        mark = MASK
        if (field.shape or ())[2:] not in ((), (1,)):  # many maps
            mark = INSTANCES
        form = f"source.mark({field.name}={mark!r})"
        forms.append(f"{field.name!r} in the size of the image, and {form}")
    return "; ".join(forms)


def _as_meant(spec: Spec, image: str, fields: Sequence[str]) -> str:
    """Return how to say that fields stay as they are."""
    if beside.IMAGE in spec:
        return f"on={image!r}, if that is what you mean"
    return f"leave {fields} out of output="


def _left_unmixed(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about fields that stay those of one record while an op mixes its image;
    None if none do.

    Numbers are told of, and texts if no label is mixed.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    for place, op, on, before in _acts(graph):
        if not op.traits.mixes or (graph.choices[place] and op.traits.geometric):
            continue
        numbers = _unmixed(graph, place, names)
        if not numbers:
            continue
        targets = tuple(name for name in on if not before[name].is_marked)
        left_out = [field.name for field in numbers]
        return (
            f"{op} mixes field {targets[0]!r} of several records, and {left_out} beside it stay those of one; cause: "
            f"it acts on {list(targets)} alone; remedy: {'; '.join(_forms_to_mix(graph, place, targets, numbers))}"
        )
    return None


def _unmixed(graph: Graph, place: int, names: Sequence[str]) -> list[Field]:
    """Return the numbers, and texts that may be a label, that an op that mixes leaves as they are.

    Args:
        graph: the ops.
        place: of the op.
        names: the fields of a batch.
    """
    op, on, before = graph.ops[place], graph.targets[place], graph.before(place)
    fields = [field for field in before if field.name in {*names} - {*on}]
    if not graph.choices[place]:
        mix_fields = _fields_of_ops(graph, lambda op: op.traits.mixes)
        fields = [field for field in fields if field.name not in mix_fields]
    elif beside.image_name(before) in on:  # on= says it, but of labels; two ops have two draws
        fields = [field for field in fields if _is_label(graph, field)]
    else:
        return []
    numbers = [field for field in fields if not field.is_marked and field.dtype.kind in NUMBERS]
    if op.traits.geometric:  # `_left_behind` tells of fields of its pixels, and of rows of boxes
        numbers = [field for field in numbers if not _is_left_behind(graph, place, field)]
    elif len(on) == 1:  # where no label is mixed with the image, a text may be it
        numbers += filter(_is_text, fields)
    return numbers


def _is_left_behind(graph: Graph, place: int, field: Field) -> bool:
    """Return True if `_left_behind` tells of a field beside the op at a place, which moves
    pixels."""
    before, image = graph.before(place), graph.targets[place][0]
    has_rows = field.ragged and any(neighbour.holds_boxes for neighbour in before)
    return has_rows or beside.role(field, before[image], graph.roles) not in ("", beside.LABEL)


def _forms_to_mix(
    graph: Graph, place: int, targets: tuple[str, ...], numbers: Sequence[Field]
) -> Iterator[str]:
    """Give how to say the fate of numbers beside the image of an op that mixes.

    Args:
        graph: the ops.
        place: of the op.
        targets: the fields that it acts on.
        numbers: the fields beside them.
    """
    yield from _forms_of_labels(graph, place, targets, numbers)
    mixable = [field.name for field in numbers if _is_mixable(graph, place, targets[0], field)]
    if mixable and graph.ops[place].traits.geometric is None:
        yield f"on={(*targets, *mixable)} for numbers to be mixed with it"
    keep = ""
    if beside.IMAGE in graph.before(place) and not graph.choices[place]:
        keep = f", or write on={_on(targets)}, to keep them"
    yield f"leave those that are no target out of output={keep}"


def _forms_of_labels(
    graph: Graph, place: int, targets: tuple[str, ...], numbers: Sequence[Field]
) -> Iterator[str]:
    """Give how numbers or texts that are the label become numbers that are mixed; arguments as of
    `_forms_to_mix`."""
    before, is_geometric = graph.before(place), graph.ops[place].traits.geometric is not None
    classes = [field.name for field in numbers if field.shape == () and field.dtype.kind in "ui"]
    if classes and not is_geometric:
        with_image = ""
        if beside.IMAGE not in before:
            with_image = f" and on={(*targets, classes[0])}"
        yield f"gl.ops.OneHot(10, on={classes[0]!r}){with_image}, with the number of classes, for one that is a label"
    words = next((field.name for field in numbers if _is_text(field)), None)
    if words is not None:
        yield f"numbers in place of {words!r}, by gl.Labels or classes=, and gl.ops.OneHot of them, if it is a label"
    vectors = [field for field in numbers if len(field.shape or ()) == 1 and field.uniform]
    weights = next((field.name for field in vectors if field.dtype.kind in "bui"), None)
    if weights is not None and not is_geometric:
        yield f"gl.ops.Cast('float32', on={weights!r}) and on={(*targets, weights)}, for a number for each class"


def _is_mixable(graph: Graph, place: int, image: str, field: Field) -> bool:
    """Return True if an op that mixes an image can mix numbers beside it, too."""
    role = beside.role(field, graph.before(place)[image], graph.roles)
    # One row of two or four numbers may be the label of so many classes; more rows are boxes and
    # points.
    is_label = len(field.shape or ()) < 2 or role not in beside.PLACES
    # Of whole numbers those alone that are cut out, as a mask is, and not blended.
    is_cut_out = role != "" and not _blends(graph.ops[place], field.name)
    return field.uniform and is_label and (field.dtype.kind == "f" or is_cut_out)


def _is_label(graph: Graph, field: Field) -> bool:
    """Return True for results of `OneHot`, and for numbers that are called ``label``."""
    is_number = len(field.shape or ()) < 2 and field.dtype.kind in NUMBERS
    return (is_number and field.name == beside.LABEL) or (field.name, beside.LABEL) in graph.roles


def _is_text(field: Field) -> bool:
    return field.shape == () and (field.text == "str" or field.dtype.kind == "U")


def _on(names: Sequence[str]) -> str:
    if len(names) == 1:
        return repr(names[0])
    return repr(tuple(names))


def _blended_masks(graph: Graph) -> str | None:
    """Return a warning about the first op that blends or colours a field like a mask, or None."""
    for place, op, on, before in _acts(graph):
        image = beside.image_name(before) or on[0]
        for field in (before[name] for name in on if name in before and image in before):
            is_map = (field.name, MASK) in graph.roles and not field.is_marked  # Decode("LABELS")
            is_mask = is_map or beside.role(field, before[image], graph.roles) == MASK
            if is_mask and _blends(op, field.name):
                only_mask = ""
                if op.traits.geometric:
                    only_mask = " beside its image, interpolation='nearest' for one alone"
                return (
                    f"{op} blends the numbers of field {field.name!r}, {field}, which makes others of "
                    "classes; cause: nothing says whether they are a mask or an image; remedy: "
                    f"source.mark({field.name}='mask') for a mask{only_mask}, "
                    f"source.mark({field.name}='HWC') for an image of its own"
                )
            is_mask = is_mask or field.kind == MASK
            if len(on) < 2 or not is_mask or not _colours(graph, place, field):
                continue
            remedy = f"leave {field.name!r} out of on="
            if op.traits.geometric:
                remedy = "move both by gl.ops.RandomFlip, Rotate or Affine, and change colours by gl.ops.ColorJitter"
            if not field.is_marked:
                remedy += f"; source.mark({field.name}='HWC') for an image of its own"
            return (
                f"{op} changes the numbers of field {field.name!r}, {field}, as colours, which makes "
                "others of classes; cause: on= names it, and it is, or looks like, a mask; "
                f"remedy: {remedy}"
            )
    return None


def _colours(graph: Graph, place: int, field: Field) -> bool:
    """Return True if an op changes the numbers of a mask as colours, and they may stay classes."""
    op = graph.ops[place]
    if field.kind == MASK and hasattr(op, "inner"):  # it leaves masks as they are, see `choices`
        return False
    # Floats are no classes: a loss tells of that, and the field may be an image.
    keeps_dtype = graph.specs[place][field.name].dtype == field.dtype
    changes = beside.changes_colours(op) or type(op).__name__ == "GaussianBlur"
    return changes and (field.is_marked or keeps_dtype)


def _blends(op: Op, name: str) -> bool:
    """Return True if an op makes new numbers of several pixels of a field, without a word of the
    user about it."""
    inner: Sequence[Op] = getattr(op, "inner", ())
    interpolation = getattr(op, "interpolation", None)
    if isinstance(interpolation, dict):
        if name in interpolation:
            interpolation = None
        else:
            interpolation = "linear"
    makes_numbers = interpolation not in (None, "nearest") or type(op).__name__ in (
        "MixUp",
        "GaussianBlur",
    )
    return makes_numbers or any(_blends(part, name) for part in inner)


def _left_rows(graph: Graph, names: Sequence[str]) -> str | None:
    """Return a warning about rows that stay while an op without ``on=`` drops marked boxes; None if
    none do.

    Args:
        graph: the ops.
        names: the fields of a batch that no op acts on.
    """
    boxes = next((field.name for field in graph.spec_in if field.holds_boxes), None)
    op = next((op for op in graph.ops if op.traits.marks.drops_rows and op.on is None), None)
    fields = [field for field in graph.spec_in if field.ragged and field.name in names]
    rows = [field.name for field in fields if not field.is_marked and not field.encoded]
    if boxes is None or op is None or not rows:
        return None
    if type(op).__name__ == "CleanBoxes":
        on = boxes
    else:
        on = "image"
    return (
        f"{op} drops boxes of field {boxes!r}, and the rows of {rows} beside it stay; cause: nothing says that they "
        f"have a row for each box; remedy: source.mark({rows[0]}='with boxes'), so that they go with them, or "
        f"on={on!r}, if that is what you mean"
    )
