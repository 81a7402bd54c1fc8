"""Assembly: the stages of a field. The forms that an op has decide them; no code here asks for its
class."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from gpuload import core
from gpuload.executors.array.groups import OpGroup, op_groups
from gpuload.executors.array.imagestage import ImageStage, makes_bytes
from gpuload.executors.array.stage import NO_SIZES, FieldStage
from gpuload.executors.array.stages import ArrayStage, EditStage, KernelStage, WalkStage
from gpuload.graph.graph import Graph
from gpuload.ops.base import Draw, Op
from gpuload.ops.forms import Forms


def make_stages(
    graph: Graph, name: str, places: Sequence[int] | None = None
) -> tuple[FieldStage, ...]:
    """Return the stages of a field of a graph: of all ops that act on it, or of those at some
    places, in a row."""
    if places is None:
        places = [place for place, on in enumerate(graph.targets) if name in on]
    stages: list[FieldStage] = []
    groups = op_groups(graph, name, places, folds=lambda before, after: core.native is not None)
    for is_edit, edits in groupby(groups, key=lambda group: _is_edit(group, graph.empty_draws)):
        run = list(edits)
        if is_edit:
            ops = tuple(group.ops[0] for group in run)
            op_places = tuple(group.places[0] for group in run)
            forms = tuple(group.forms[0] for group in run)
            stages.append(EditStage(ops, op_places, run[0].before, run[-1].after, forms))
        else:
            stages += map(_stage, run)
    return _with_images(stages, graph.empty_draws)


def _is_edit(group: OpGroup, empty_draws: Sequence[Draw]) -> bool:
    """Return True if a group is an op on bytes that the core can do as an edit."""
    before, shape = group.before, group.before.shape or ()
    are_bytes = before.dtype == group.after.dtype == np.uint8 and not before.encoded
    if core.native is None or group.is_walk or not are_bytes or before.shape != group.after.shape:
        return False
    if len(shape) != 3 or shape[2] is None:
        return False
    return group.forms[0].edits(empty_draws[group.places[0]], NO_SIZES, shape[2]) is not None


def _stage(group: OpGroup) -> FieldStage:
    """Return the stage of a group by itself."""
    arguments = group.ops, group.places, group.before, group.after, group.forms
    if group.is_walk:
        return WalkStage(*arguments)
    form = group.forms[0].row
    if form is None:
        return ArrayStage(*arguments)
    return KernelStage(*arguments, form)


def _with_images(
    stages: Sequence[FieldStage], empty_draws: Sequence[Draw], *, are_first: bool = True
) -> tuple[FieldStage, ...]:
    """Return the stages with those that follow one another, and can be one visit of the core, as
    one `ImageStage`.

    Where the first takes files, or images of sizes of their own, as a list, those behind it take
    images of one size.
    """
    if not stages:
        return ()
    # The longest first: each stage more in the one visit spares a pass over the images.
    for count in range(_num_joining(stages, empty_draws), 0, -1):
        joined_stage = _image_stage(stages[:count])
        if joined_stage is None:
            continue
        rest = _with_images(stages[count:], empty_draws, are_first=False)
        is_last = are_first and not rest
        has_size = joined_stage.after.uniform and (
            not are_first or all(stage.after.uniform for stage in rest)
        )
        if has_size or is_last:
            return joined_stage, *rest
    return stages[0], *_with_images(stages[1:], empty_draws, are_first=False)


def _num_joining(stages: Sequence[FieldStage], empty_draws: Sequence[Draw]) -> int:
    """Return how many stages, from the first on, can be one visit of the core; the first may
    decode."""
    if core.native is None:
        return 0
    count = int(_decodes(stages[0]))
    while count < len(stages) and stages[count].can_join(empty_draws):
        count += 1
    return count


def _decodes(stage: FieldStage) -> bool:
    """Return True if a stage decodes files."""
    return stage.before.ragged and stage.ops[0].traits.codec is not None


def _image_stage(stages: Sequence[FieldStage]) -> ImageStage | None:
    """Return stages as one, or None where that spares nothing: a walk, or edits, alone are one pass
    already."""
    first, last = stages[0], stages[-1]
    decoding, steps = None, tuple(stages)
    is_one_pass = isinstance(first, WalkStage | EditStage)
    if _decodes(first):
        decoding, steps = first, tuple(stages[1:])
        is_one_pass = not makes_bytes(first.ops[0])
    if len(stages) == 1 and is_one_pass:
        return None
    ops: tuple[Op, ...] = sum((stage.ops for stage in stages), ())
    places: tuple[int, ...] = sum((stage.places for stage in stages), ())
    forms: tuple[Forms, ...] = sum((stage.forms for stage in stages), ())
    return ImageStage(ops, places, first.before, last.after, forms, decoding, steps)
