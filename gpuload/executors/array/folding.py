"""Folding: ops that crop, mirror, reorder and normalise, as one walk over the images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuload.kernels import walk
from gpuload.kernels.walk import Walk
from gpuload.ops.base import Draw
from gpuload.ops.forms import Forms
from gpuload.spec import Field


def num_folding(forms: Sequence[Forms], draws: Sequence[Draw], field: Field) -> int:
    """Return how many ops, by their forms, from the first on, fold into one walk over the images of a
    field."""
    path, count = walk.begin(field, 0), 0
    while path is not None and count < len(forms):
        path = _fold(path, forms[count], draws[count])
        count += path is not None
    return count


def fold_ops(path: Walk | None, forms: Sequence[Forms], draws: Sequence[Draw]) -> Walk:
    """Return the walk of ops that fold, by ``num_folding``, behind a walk."""
    for form, draw in zip(forms, draws, strict=True):
        if path is not None:
            path = _fold(path, form, draw)
    if path is None:
        # A fault of an op: whether it folds must not depend on draws, because stages are
        # made once.
        raise RuntimeError(f"{list(forms)} folded without records and do not with them")
    return path


def _fold(path: Walk, form: Forms, draw: Draw) -> Walk | None:
    """Return a walk with an op behind it, None if that is not one walk."""
    longer = form.fold(path, draw)
    # A walk over bytes fills with a byte. The op itself refuses, or cuts, any other number.
    if longer is not None and path.in_dtype == np.uint8 and longer.fill not in range(256):
        return None
    return longer
