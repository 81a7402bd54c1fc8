"""Beside: the role of a field beside an image, by its mark, dtype and shape, and by the ops that
make it.

A name says nothing, but for ``image`` and ``label``, which ops act on by themselves. One rule for
all ops that move the pixels of images, mix records, or blend pixels:

    image    another image: an encoded file; numbers of the image's height and width
    mask     whole numbers of the image's height and width in one channel; the result of
             ``Decode("LABELS")``
    masks    numbers ``[number, height, width]``, one mask for each object, or more than four maps
    scaled   numbers along the image's height and width, divided or multiplied by 2, 3, 4, 8 or 16
    xyxy     four numbers, or rows of four: boxes
    rows     rows of five: boxes, and the class of each
    xy       two numbers, rows of two, or rows of three: points, with their visibility
    label    the result of ``OneHot``

Rows may have one axis more, for objects: ``[people, 17, 3]``, of a fixed number or of any. Of all
else nothing is told, since it may be anything: flat numbers, ``[51]`` say, rows of other lengths,
single numbers.

The user can say something else: by a mark (``"HWC"`` for an image of its own), by
``on="image"``, by ``output=``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpuload.errors import SpecError
from gpuload.ops.base import Op, calls_python, original
from gpuload.spec import INSTANCES, MASK, MOST_CHANNELS, NUMBERS, POINT_FORMAT, Field, Shape, Spec

IMAGE, LABEL, BOXES, POINTS = "image", "label", "xyxy", POINT_FORMAT
BOXES_AND_CLASSES, ALPHA, SCALED = "rows", "alpha", "scaled"
# Fields that an op takes along by their mark alone, never by on=.
PLACES = (BOXES, BOXES_AND_CLASSES, POINTS, INSTANCES)
MATRICES = ((3, 3), (4, 4), (5, 5))  # of a camera or a pose, in data sets that have such
SCALES = (2, 3, 4, 8, 16)  # of maps that networks make of images, and of pairs for super-resolution
SHORTEST_SIDE = 8  # of such maps
SHORTEST_IMAGE = 28  # of numbers other than uint8; with a shorter side they are rows of objects
COLOUR_OPS = (  # that change colours, and do not say so by ``takes_parts``
    "CLAHE", "GaussianNoise", "JpegArtefacts", "Normalize", "PerImageStandardization",
    "AugMix", "AutoAugment", "RandAugment", "TimmAugment", "TrivialAugmentWide",
)  # fmt: skip


def image_name(spec: Spec) -> str | None:
    """Return the name of the image to which other fields belong; None if there is none, or several
    may be it."""
    if IMAGE in spec:
        return IMAGE
    names = [field.name for field in spec if not field.is_marked and field.may_be_image]
    return names[0] if len(names) == 1 else None


def role(field: Field, image: Field, roles: Iterable[tuple[str, str]] = ()) -> str:
    """Return the role of a field that is not marked beside an image; "" if it does not belong to
    its pixels.

    Args:
        field: the field.
        image: the field of the image, as it is beside it.
        roles: those that marks and ops gave to fields, by their names, see ``roles_behind``.
    """
    if field.is_marked or field.shape is None or field.name == image.name:
        return ""
    stated_role = dict(roles).get(field.name, "")
    if stated_role in (LABEL, MASK):
        return stated_role
    if field.encoded:
        if image.encoded or image.may_be_image:
            return IMAGE
        return ""
    if field.dtype.kind not in NUMBERS:
        return ""
    size = _size(image)
    if _are_masks(field, size):
        return INSTANCES
    if _is_scaled(field, size):
        return SCALED
    if size is not None and _size(field, len(size)) == size:
        is_mask = (
            stated_role != IMAGE
            and field.dtype.kind in "bui"
            and _num_channels(field, len(size)) == 1
        )
        return MASK if is_mask else IMAGE
    return _role_of_places(field)


def roles_before(spec: Spec, ops: Sequence[Op]) -> dict[str, str]:
    """Return the roles of fields of a source, by their names: images by a mark, ``"HWC"`` or
    ``"CHW"``.

    Args:
        spec: the fields.
        ops: the ops that made them, of which one may have said their roles.
    """
    roles = {field.name: IMAGE for field in spec if field.axes in ("HWC", "CHW")}
    for op in ops:
        on = (op.on,) if isinstance(op.on, str) else op.on
        if type(op).__name__ == "OneHot":
            usual = LABEL
        else:
            usual = IMAGE
        roles = roles_behind(op, on or (usual,), spec, roles)
    return {name: role for name, role in roles.items() if name in spec}


def roles_behind(
    op: Op,
    on: Sequence[str],
    after: Spec,
    roles: Mapping[str, str],
) -> dict[str, str]:
    """Return the roles of fields behind an op, by their names: a label, a mask, an image with
    alpha.

    Args:
        op: the op.
        on: the fields that it acts on.
        after: the fields behind it.
        roles: the result for the fields before it.
    """
    result = dict(roles)
    name, mode = type(op).__name__, getattr(op, "mode", "")
    if name == "OneHot":
        result |= dict.fromkeys(on, LABEL)
    if name == "Decode" and mode in ("LABELS", "RGBA"):
        result |= dict.fromkeys(on, MASK if mode == "LABELS" else ALPHA)
    copies = {field.name: original(op, field.name, on) for field in after if field.name not in on}
    result |= {copy: roles[name] for copy, name in copies.items() if name in roles}
    is_function = (
        calls_python(op) or op.traits.execution.needs_dali
    )  # it may do anything with alpha
    unknown = on if is_function else ()
    return {name: role for name, role in result.items() if role != ALPHA or name not in unknown}


def changes_colours(op: Op) -> bool:
    """Return True if an op changes numbers of images as colours, or one of its ops does."""
    inner = [part for way in op.traits.ways for part in way]
    return (
        op.traits.arithmetic.takes_parts
        or type(op).__name__ in COLOUR_OPS
        or any(map(changes_colours, inner))
    )


def check_alpha(op: Op, on: Sequence[str], spec: Spec, roles: Mapping[str, str]) -> None:
    """Raise ``SpecError`` for an op that would change the alpha of an image as if it were a colour.

    Args:
        op: the op.
        on: the fields that it acts on.
        spec: the fields before it.
        roles: of these, see ``roles_behind``.
    """
    field = next((spec[name] for name in on if roles.get(name) == ALPHA), None)
    if field is not None:
        culprit = _changes_alpha(op)
    else:
        culprit = None
    if field is None or culprit is None or field.is_marked:
        return
    name, white = field.name, 1
    if field.dtype.kind == "u":
        white = np.iinfo(field.dtype).max
    remedy = (
        f"keep the two apart: gl.ops.Copy({name!r}, to='alpha'), "
        f"gl.ops.Python(lambda x: x[..., :3], on={name!r}) and "
        "gl.ops.Python(lambda x: x[..., 3:], on='alpha') before it, and "
        f"on=({name!r}, 'alpha') for ops that move pixels; gl.ops.Decode() leaves alpha out"
    )
    if type(culprit).__name__ == "Normalize":
        mean, std = (getattr(culprit, name) for name in ("mean", "std"))
        mean, std = (*[mean] * 3, 0), (*[std] * 3, white)
        remedy = f"give numbers for each channel: gl.ops.Normalize({mean}, {std}, on={name!r})"
    raise SpecError(
        f"{op}: the fourth channel of field {name!r} is alpha, as gl.ops.Decode('RGBA') makes it",
        cause="the op would change what is transparent as if that were a colour",
        remedy=remedy,
    )


def _changes_alpha(op: Op) -> Op | None:
    """Return the op, or the first of its ops, that changes the fourth channel as a colour."""
    inner = [part for way in op.traits.ways for part in way]
    if inner:
        return next(filter(None, map(_changes_alpha, inner)), None)
    if type(op).__name__ == "Normalize":  # a scale is one for all channels
        if op.traits.arithmetic.centers and not np.ndim(getattr(op, "mean", 0)):
            return op
        return None
    if changes_colours(op) or type(op).__name__ == "ChannelShuffle":
        return op
    return None


def names_fields(op: Op, spec: Spec) -> bool:
    """Return True if the user said by ``on=`` which fields an op acts on, and could have left it
    out.

    Where the image has another name than ``image``, ``on=`` is needed: then it says nothing of the
    fields beside it.
    """
    return op.on is not None and (IMAGE in spec or sum(not field.is_marked for field in spec) == 1)


def is_resized(before: Field, after: Field) -> bool:
    """Return True if height or width of an image are known to be others behind an op."""
    first, second = _size(before), _size(after)
    if first is None or second is None or len(first) != len(second):
        return False
    return any(None not in pair and pair[0] != pair[1] for pair in zip(first, second, strict=True))


def _role_of_places(field: Field) -> str:
    """Return whether a field holds boxes or points, by its last axis."""
    shape = field.shape or ()
    if not shape or len(shape) > 3 or field.dtype.kind not in "iuf" or shape in MATRICES:
        return ""
    if field.name == LABEL and len(shape) == 1:  # of two classes, or four
        return ""
    is_nested = len(shape) == 3
    are_of_objects = is_nested and _are_of_objects(field)
    if shape[-1] == 4 and (not is_nested or are_of_objects):
        return BOXES
    if shape[-1] == 5 and len(shape) == 2:
        return BOXES_AND_CLASSES
    if shape[-1] == 2 or (shape[-1] == 3 and (len(shape) == 2 or are_of_objects)):
        return POINTS
    return ""


def _are_of_objects(field: Field) -> bool:
    """Return True for rows of three or four numbers of each object, ``[number, 17, 3]``.

    An image has three channels, or four: it varies in both sides, is of uint8, or has longer sides.
    """
    number, num_rows, _ = field.shape or ()
    if num_rows is None or field.dtype == "uint8" or (field.shape or ())[1:] in MATRICES:
        return False
    return number is None or (number != num_rows and min(number, num_rows) < SHORTEST_IMAGE)


def _are_masks(field: Field, size: Shape | None) -> bool:
    """Return True for masks of objects, ``[number, height, width]``, in an image of a size."""
    shape = field.shape or ()
    if size is None or len(size) != 2 or len(shape) != 3 or field.axes:
        return False
    if shape[-1] is not None and shape[-1] <= MOST_CHANNELS:
        return False
    number, *sides = shape
    if field.dtype.kind == "f" and number is not None and number <= MOST_CHANNELS:
        return False  # an image in CHW order
    if shape == (None, None, None):
        return field.dtype.kind in "bui"
    # An image of so many channels as the mask is wide would have its height and width first.
    return tuple(sides) == size and number != size[0]


def _is_scaled(field: Field, size: Shape | None) -> bool:
    """Return True for a mask, map or image with sides that are a part or a multiple of an
    image's."""
    shape = field.shape or ()
    if size is None or len(size) != 2 or None in size or len(shape) not in (2, 3) or shape[-1] == 2:
        return False
    height, width = (side or 0 for side in size)
    larger = [(height * scale, width * scale) for scale in SCALES]
    smaller = [(height / scale, width / scale) for scale in SCALES]  # no sides if there is a rest
    ends = (shape[:2], shape[-2:])
    scaled = [sides for sides in ends if sides in larger or sides in smaller]
    return any(min(filter(None, sides)) >= SHORTEST_SIDE for sides in scaled)


def _size(field: Field, num_sides: int | None = None) -> Shape | None:
    """Return height and width of an image or a mask, of slices also their number before; None if it
    is neither.

    Args:
        field: the field.
        num_sides: 3 beside slices, where three axes are those of a mask; by the field itself if
            left out.
    """
    shape = field.shape
    if (
        field.encoded
        or field.dtype.kind not in NUMBERS
        or shape is None
        or len(shape) not in (2, 3, 4)
    ):
        return None
    if num_sides == 3 or (num_sides is None and field.is_volume):
        return shape[:3] if len(shape) > 2 else None
    if len(shape) == 2:
        return None if field.ragged else shape
    if field.is_channels_first:
        return shape[1:]
    return shape[:2]


def _num_channels(field: Field, num_sides: int) -> int | None:
    """Return the channels of a field of images with so many sides; 1 of those without an axis for
    them."""
    shape = field.shape or ()
    if len(shape) == num_sides:
        return 1
    if field.is_channels_first:
        return shape[0]
    return shape[num_sides]
