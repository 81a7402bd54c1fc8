"""Op: one transform, with three faces: its draw, its array form (its meaning) and its DALI form.

A subclass is a frozen dataclass in a file of its own. It says what it does to a field (``field_after``), how many
uniform numbers a record needs (``num_uniforms``), and then ``draw``, ``array`` and ``lower`` stand one under another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.spec import Field, Spec

Draw = dict[str, NDArray[Any]]  # per argument one int32 or float32 array, records along the first axis
Sizes = NDArray[np.int32]  # [N, 2], height and width in pixels


class RowError(Exception):
    """One row of a batch cannot be used; the loader, which knows records and files, makes a RecordError of it.

    Args:
        row: its place in the batch.
        reason: what is wrong with it.
        cause: why it is, if not that its bytes are damaged.
        remedy: what to do about that.
    """

    def __init__(self, row: int, reason: str, *, cause: str = "", remedy: str = "") -> None:
        super().__init__(f"row {row} of the batch: {reason}")
        self.row, self.reason, self.cause, self.remedy = row, reason, cause, remedy


@dataclass(frozen=True)
class Op:
    """One transform of the fields it acts on.

    Args:
        on: the field or fields; by default ``"image"``, or the only field of a source that has one.
            One draw serves all the fields, so that image and mask stay together.
    """

    on: str | tuple[str, ...] | None = field(default=None, kw_only=True)

    num_uniforms: ClassVar[int] = 0
    """How many uniform numbers ``draw`` needs for one record."""

    codec: ClassVar[bool] = False
    """True if the op decodes images, which no array library can: the executors do it, with a codec or by ``lower``."""

    def targets(self, spec: Spec) -> tuple[str, ...]:
        """Return the names of the fields that the op acts on.

        Raises:
            UnknownFieldError: a name in ``on`` is not a field.
            SpecError: ``on`` was left out and neither is there an ``"image"`` nor just one field.
        """
        if self.on is not None:
            names = (self.on,) if isinstance(self.on, str) else tuple(self.on)
            return tuple(spec[name].name for name in names)
        if "image" in spec:
            return ("image",)
        if len(spec) == 1:
            return spec.names
        raise SpecError(
            f"{self}: which of the fields {list(spec.names)} it acts on",
            cause="no field is named 'image', and there is more than one",
            remedy=f"say it: gl.ops.{type(self).__name__}(..., on={spec.names[0]!r})",
        )

    def spec_after(self, spec: Spec) -> Spec:
        """Return the spec of the records after this op.

        Raises:
            SpecError: a field is not what the op needs.
        """
        return spec.replacing(*(self.field_after(spec[name]) for name in self.targets(spec)))

    def field_after(self, field: Field) -> Field:
        """Return what a field becomes; raises ``SpecError`` where the op cannot act on it."""
        raise NotImplementedError

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the images' sizes after the op, int32 ``[N, 2]``, height and width in pixels."""
        return size

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return the random (or size-dependent) parameters of a batch, on the host.

        Args:
            u: float64 ``[N, num_uniforms]`` in [0, 1).
            size: int32 ``[N, 2]``, height and width of each image before the op, pixels; zeros for fields
                that are not images.

        Returns:
            A dict of int32 or float32 arrays with the records along the first axis; empty if there is nothing to draw.
        """
        return {}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """What the op means, for one record: ``x`` an array of ``xp`` (NumPy or CuPy), ``draw`` its row of each draw.

        Every executor must equal this.
        """
        raise NotImplementedError

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The array form for a batch ``[N, ...]`` (or a list of arrays); equals ``array`` record by record."""
        done = [self.array(xp, x[i], {name: values[i] for name, values in draw.items()}) for i in range(len(x))]
        same = len({(one.shape, one.dtype) for one in done}) == 1
        return xp.stack(done) if same and not isinstance(x, list) else done

    def check(self, xp: ModuleType, x: Any) -> tuple[int, str] | None:
        """Return the first row of a batch whose values the op cannot take, and why; None if it can take them all.

        Executors ask before they run the op, because DALI has no error for values (``OneHot`` of a label that is no
        class would be all zeros).
        """
        return None

    def lower(self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str) -> Any:
        """The same in DALI.

        Args:
            dali: the module ``nvidia.dali``.
            x: DataNode of the field.
            draw: DataNodes of the draws, on the CPU whatever the device, as DALI wants its arguments.
            field: the field before the op; DALI's graph does not know dtypes and shapes when it is built.
            device: ``"cpu"`` or ``"gpu"``; encoded images come on the CPU all the same.
        """
        raise NotImplementedError

    def fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """Return ``walk`` with this op added, or None if the op cannot become part of one walk over the image."""
        return None


class Walk(NamedTuple):
    """One walk over each image of a batch that crops, mirrors, reorders axes and normalises at once.

    It reads pixel ``(top + y, left + x)`` of an image for pixel ``(y, x)`` of the window, ``fill`` where that lies
    outside, mirrors the window, and writes ``(value - mean) * scale`` per channel if ``mean`` is given.

    Attributes:
        height, width, channels: of the input images, before the walk.
        in_axes: axes of the input, ``"HWC"`` or ``"CHW"``.
        start: int32 ``[N, 2]``, top and left of each window, pixels; may be negative.
        window: height and width of the window, pixels.
        mirror: int32 ``[N, 2]``, 1 where the window is mirrored vertically, horizontally.
        out_axes: axes of the result.
        fill: the value outside the image, in units of the input.
        mean, scale: float32 ``[C]``, or None.
        dtype: dtype of the result.
        padded: True once a window may reach outside the image.
    """

    height: int
    width: int
    channels: int
    in_axes: str
    start: NDArray[np.int32]
    window: tuple[int, int]
    mirror: NDArray[np.int32]
    out_axes: str
    fill: float
    mean: NDArray[np.float32] | None
    scale: NDArray[np.float32] | None
    dtype: np.dtype[Any]
    padded: bool = False

    def with_(self, **changes: Any) -> Walk:
        """Return this walk with some attributes changed."""
        return self._replace(**changes)


def streams(ops: Sequence[Op]) -> list[int]:
    """Return the random stream of each op: of its class and its occurrence, so that other ops do not change its draws.

    The stream is the first 8 bytes, little-endian, of SHA-256 of ``"RandomFlip/0"`` (class name, occurrence).
    """
    seen: dict[str, int] = {}
    numbers = []
    for op in ops:
        name = type(op).__name__
        occurrence = seen.get(name, 0)
        seen[name] = occurrence + 1
        digest = hashlib.sha256(f"{name}/{occurrence}".encode()).digest()
        numbers.append(int.from_bytes(digest[:8], "little"))
    return numbers
