"""Places: where an op says in its traits or forms what a member of its class once said.

A member of these names does nothing in a class of its own, so `Op` refuses it. An argument of an op,
a field of the dataclass, may have any name.
"""

from __future__ import annotations

from gpuload.errors import SpecError

# The values of `ops.traits` and `ops.forms`, each with the members that it stands for.
PLACES = {
    "Arithmetic(pointwise=)": ("pointwise",),
    "Arithmetic(elementwise=)": ("elementwise",),
    "Arithmetic(takes_ragged=)": ("takes_ragged",),
    "Arithmetic(any_size=)": ("any_size",),
    "Arithmetic(takes_parts=)": ("takes_parts",),
    "Arithmetic(centers=)": ("centers",),
    "Execution(needs_numpy=)": ("needs_numpy",),
    "Execution(needs_dali=)": ("needs_dali",),
    "Execution(stays_on_host=)": ("stays_on_host",),
    "Execution(calls_python=)": ("calls_python",),
    "Execution(has_dali_form=)": ("has_dali_form",),
    "Execution(mirror=)": ("mirror",),
    "Execution(lower_mirror=)": ("lower_with_mirror",),
    "Geometric()": ("moves_pixels",),
    "Geometric(points=)": ("moves_points", "move_points"),
    "Geometric(keypoints=)": ("move_keypoints",),
    "Geometric(boxes=)": ("move_boxes",),
    "Geometric(masks=)": ("including",),
    "Geometric(mover=)": ("mover",),
    "Joint(array_fields=)": ("joint", "array_fields"),
    "Joint(lower_fields=)": ("lower_fields",),
    "Joint(copies=)": ("original",),
    "Mixes()": ("mixes",),
    "Mixes(group=)": ("group",),
    "ValueCheck(rows=)": ("checks", "check"),
    "ValueCheck(error=)": ("complaint",),
    "Regional(part=)": ("gives_region", "region"),
    "Regional(within=)": ("within",),
    "FileCodec()": ("codec",),
    "FileCodec(check_heads=)": ("check_heads",),
    "FileCodec(covering=)": ("takes_region", "covering"),
    "FileCodec(makes_bytes=)": ("makes_bytes",),
    "Marks(are_read=)": ("reads_marks",),
    "Marks(drops_rows=)": ("drops_rows",),
    "Marks(image=)": ("sized_by",),
    "Marks(boxes=)": ("fields_to_draw",),
    "Marks(draw=)": ("draw_beside",),
    "Follows(leader=)": ("leader",),
    "Follows(complete=)": ("complete_draw",),
    "Traits(bounds=)": ("bounds",),
    "Traits(is_random=)": ("is_random",),
    "Traits(keeps_size=)": ("keeps_size",),
    "Traits(meaning=)": ("meaning",),
    "Traits(advice=)": ("advice",),
    "Forms(fold=)": ("fold",),
    "Forms(resample=)": ("resample",),
    "Forms(edits=)": ("edit_form",),
    "Forms(row=)": ("row_form",),
}
BY_MEMBER = {member: place for place, members in PLACES.items() for member in members}


def check(cls: type, base: type) -> None:
    """Raise ``SpecError`` for a member of a class that has its place in traits or forms.

    Args:
        cls: of an op.
        base: `Op`.
    """
    for part in cls.__mro__:
        if part is base:
            continue
        arguments = [
            name
            for name, kind in vars(part).get("__annotations__", {}).items()
            if "ClassVar" not in str(kind)
        ]
        for member in sorted(BY_MEMBER.keys() & vars(part).keys() - {*arguments}):
            place = BY_MEMBER[member]
            room = "traits"
            if place.startswith("Forms("):
                room = "forms()"
            raise SpecError(
                f"class {cls.__qualname__}: its member {member!r}",
                cause=f"nothing asks a class for it: an op says it in {room}, by {place}",
                remedy=f"say it there, and leave {member!r} out of the class, see docs/own-op.md",
            )
