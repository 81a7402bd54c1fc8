"""Forms: the array form of an op in other words, which the core or one kernel understands.

``op.forms(field)`` is one object with all of them. Each equals the array form bit for bit, and each
may be missing: the executor takes the best that is there, and the array form where none is. It is
asked once, when a recipe is made, and the functions in it are called at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from gpuload.kernels.edits import Edits
from gpuload.kernels.resampling import Resampling
from gpuload.kernels.walk import Walk
from gpuload.ops.traits import Draw, Sizes

RowForm: TypeAlias = Callable[[NDArray[Any], Draw, NDArray[Any]], None]  # row_form(x, draw, out)
EditForm: TypeAlias = Callable[[Draw, Sizes, int], Edits | None]


def no_form(*arguments: Any) -> None:
    """Return None, as an op does that has no such form."""


@dataclass(frozen=True)
class Forms:
    """The compiled forms of an op on one field.

    Whether an op has a form must not depend on the numbers that are drawn: a draw of no rows, and
    sizes of none, tell.

    Attributes:
        fold: returns a walk with the op added, of that walk and the draw; None if the op cannot
            become part of this walk over the image.
        resample: returns the op as a resize of boxes in images of some sizes, of the draw and these
            sizes, int32 ``[N, 2]``, height and width in pixels; None if it is not one, or is one as
            Pillow's.
        edits: returns the op as edits of N uint8 images of unchanged shape (`kernels.edits`), of
            the draw, the sizes and the number of channels; None if it has none.
        row: writes a single record. ``row(x, draw, out)`` does as ``array`` does with ``x``, a
            C-contiguous record, and its row of each draw, and writes the result to ``out``. For
            images of different sizes ``out`` has the size of ``size_after``. None if there is no
            such form.
    """

    fold: Callable[[Walk, Draw], Walk | None] = no_form
    resample: Callable[[Draw, Sizes], Resampling | None] = no_form
    edits: EditForm = no_form
    row: RowForm | None = None
