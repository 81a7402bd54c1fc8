"""Ragged: values of varying length, one after the other in one array, and where each begins.

    lengths 2, 0, 3      payload [a b c d e]      offsets [0 2 2 5]

It is the layout of Apache Arrow's lists (Arrow columnar format, "Variable-size List Layout") with
int64 offsets. The payload is a NumPy array on the host or a CuPy array on a GPU; the offsets are
always NumPy arrays on the host, because cutting the payload needs them there. A field is ragged
where only its first axis varies (`spec.Field.ragged`); where several axes vary, a list of arrays
stands in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import RecordIndexError, SpecError, TooLargeError

Offsets = NDArray[np.int64]


class Ragged:
    """Values of varying length: a sequence of arrays that share one payload.

    ``ragged[i]`` is value i, a view of the payload; ``ragged[a:b]`` is the ragged of some values, without a copy.

    Args:
        payload: ``[total, *shape]``: the values one after the other.
        offsets: int64 ``[N + 1]``, ascending: value i is ``payload[offsets[i]:offsets[i + 1]]``.
            The first need not be 0, nor the last the length of the payload.

    Raises:
        SpecError: the payload is no array, or the offsets are not one axis of ascending int64
            numbers inside it.
    """

    __slots__ = ("offsets", "payload")

    def __init__(self, payload: Any, offsets: Offsets) -> None:
        if not getattr(payload, "ndim", 0):
            raise SpecError(
                f"payload = {payload!r}"[:200],
                cause="it is a NumPy or CuPy array that has the values one after the other along "
                "its first axis",
                remedy="pass such an array; gl.Ragged.of([array, array], array.dtype) makes one of "
                "single values",
            )
        fits = (
            isinstance(offsets, np.ndarray)
            and offsets.ndim == 1
            and offsets.size
            and offsets.dtype == np.int64
        )
        if (
            not fits
            or offsets[0] < 0
            or offsets[-1] > len(payload)
            or bool((offsets[1:] < offsets[:-1]).any())
        ):
            raise SpecError(
                f"offsets {offsets!r} into a payload of {len(payload)}",
                cause="offsets are ascending int64 numbers that lie inside the payload, one more "
                "than there are values",
                remedy="pass the running total of the lengths, beginning with 0: numpy.array([0, "
                "2, 2, 5]), say",
            )
        self.payload, self.offsets = payload, offsets

    @classmethod
    def of(
        cls, values: Sequence[NDArray[Any]], dtype: np.dtype[Any], shape: tuple[int, ...] = ()
    ) -> Ragged:
        """Return arrays ``[length_i, *shape]`` of one dtype as a ragged, copied one after the
        other.

        Raises:
            SpecError: they cannot be joined, or, where there are none, no array has such a dtype
                and shape.
        """
        try:
            lengths = np.array([len(value) for value in values], np.int64)
            if len(values):
                payload = np.concatenate(values)
            else:
                payload = np.empty((0, *shape), dtype)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"gl.Ragged.of({values!r}"[:200] + f", {dtype!r}, {shape!r})"[:200],
                cause="the values are arrays that differ in the length of their first axis alone: "
                f"{error}",
                remedy="write gl.Ragged.of([numpy.zeros(2), numpy.zeros(3)], numpy.dtype('f8')), "
                "say",
            ) from None
        return cls(payload, offsets_of(lengths))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.payload.dtype  # type: ignore[no-any-return]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each value, int64 ``[N]``."""
        return np.diff(self.offsets)

    @property
    def flat(self) -> Any:
        """The values of this ragged one after the other: the part of the payload that it uses."""
        return self.payload[int(self.offsets[0]) : int(self.offsets[-1])]

    @property
    def nbytes(self) -> int:
        """The bytes of the values and of the offsets."""
        return int(self.flat.nbytes + self.offsets.nbytes)

    def to_dense(self, length: int | None = None, value: Any = 0, *, truncate: bool = False) -> Any:
        """Return the values as one array ``[N, length, *shape]``, filled up behind each value; on
        the payload's device.

        Args:
            length: of each row; that of the longest value if left out.
            value: fills the rows behind shorter values.
            truncate: cut values that are longer than ``length``, which are an error else.

        Raises:
            SpecError: a value is longer than ``length``, or ``length`` is no whole number; or the
                dtype does not hold ``value``.
        """
        longest = int(self.lengths.max(initial=0))
        if length is not None and (
            not isinstance(length, (int, np.integer)) or isinstance(length, bool) or length < 0
        ):
            raise SpecError(
                f"to_dense(length={length!r})"[:200],
                cause="it is how many elements each row has, a whole number",
                remedy="write ragged.to_dense(128), or to_dense() for the length of the longest "
                "value",
            )
        if length is not None and longest > length and not truncate:
            raise SpecError(
                f"to_dense({length}) of a ragged whose value {int(self.lengths.argmax())} has "
                f"{longest} elements",
                cause="elements beyond a row would be lost",
                remedy=f"write to_dense({longest}), or to_dense({length}, truncate=True)",
            )
        if not holds(self.dtype, value):
            raise SpecError(
                f"to_dense(value={value!r}) of {self.dtype}"[:200],
                cause="the dtype does not hold this value",
                remedy="pass one that it holds: a number, or '' for text",
            )
        if length is None:
            num_elements = longest
        else:
            num_elements = int(length)
        num_bytes = (
            max(len(self), 1)
            * num_elements
            * max(self.payload.dtype.itemsize, np.dtype(np.int64).itemsize)
        )
        try:
            # NumPy has several errors for such sizes, and no error for some
            if num_bytes > sys.maxsize:
                raise MemoryError
            return dense(_namespace(self.payload), self, num_elements, value)
        except MemoryError:
            raise TooLargeError(
                f"to_dense({num_elements}) of {len(self)} values"[:200],
                cause="there is no memory for so many elements",
                remedy="pass a smaller length, or convert fewer values at a time: "
                "ragged[0:100].to_dense()",
            ) from None

    def with_payload(self, flat: Any) -> Ragged:
        """Return a ragged of the same lengths with other values: ``flat`` is in place of
        ``self.flat``."""
        return Ragged(flat, self.offsets - self.offsets[0])

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, key: int | slice) -> Any:
        try:
            selection = range(len(self))[key]  # negative numbers count from the end
        except IndexError:
            raise RecordIndexError(
                f"ragged[{key}] of {len(self)} values",
                cause=f"values are numbered 0 to {len(self) - 1}" if len(self) else "it has none",
                remedy="ask for a value below len(ragged)",
            ) from None
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"ragged[{key!r}]"[:200],
                cause=f"a value is named by its number, or several by a slice: {error}",
                remedy="write ragged[0] or ragged[10:20]; ragged.flat has the elements of all "
                "values",
            ) from None
        if isinstance(selection, int):
            return self.payload[int(self.offsets[selection]) : int(self.offsets[selection + 1])]
        if selection.step != 1:
            raise SpecError(
                f"ragged[{key}]", cause="a ragged is cut, not strided", remedy="take single values"
            )
        # A slice that ends before its beginning is empty.
        return Ragged(
            self.payload, self.offsets[selection.start : max(selection.start, selection.stop) + 1]
        )

    def __iter__(self) -> Iterator[Any]:
        bounds = self.offsets.tolist()
        for number in range(len(self)):
            yield self.payload[bounds[number] : bounds[number + 1]]

    def __repr__(self) -> str:
        return f"Ragged({len(self)} values of {self.dtype}, {int(self.offsets[-1] - self.offsets[0])} elements)"


def dense(xp: Any, ragged: Ragged, length: int, value: Any) -> Any:
    """Return the values of a ragged as ``[N, length, *shape]``, cut or filled up behind with
    ``value``.

    Args:
        xp: the array library of the payload.
        ragged: the values.
        length: of each row.
        value: that the dtype holds.
    """
    flat, place = ragged.flat, np.arange(length)
    shape = (len(ragged), length, *flat.shape[1:])
    if not len(flat) or not length:
        return xp.full(shape, value, dtype=flat.dtype)
    inside = place < ragged.lengths[:, None]
    # Element 0 stands where a row is filled up: an index has to lie inside, and the mask replaces
    # the element that it takes.
    index = np.where(inside, (ragged.offsets[:-1] - ragged.offsets[0])[:, None] + place, 0)
    mask = xp.asarray(inside.reshape(*inside.shape, *(1,) * (len(shape) - 2)))
    return xp.where(mask, flat[xp.asarray(index)], xp.asarray(value, dtype=flat.dtype))


def holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Return True if a dtype holds a value exactly: a number, up to the rounding of floats, or a
    text."""
    if dtype.kind == "O":
        return isinstance(value, (str, bytes))
    if dtype.kind in "SU":
        is_text = isinstance(value, {"S": bytes, "U": str}[dtype.kind])
        return is_text and bool(np.asarray(value).astype(dtype) == value)
    if isinstance(value, (str, bytes)):
        return False
    try:
        # NumPy warns of a cast that overflows; the comparison below finds it.
        with np.errstate(all="ignore"):
            array = np.asarray(value).astype(dtype)
    except (TypeError, ValueError, OverflowError):
        return False
    if array.ndim:
        return False
    if array.dtype.kind == "f":
        return bool(np.isfinite(array) == np.isfinite(value))
    return bool(array == value)


def _namespace(payload: Any) -> Any:
    """Return the array library of an array: NumPy, CuPy, or the one that the array names."""
    if isinstance(payload, np.ndarray):
        return np
    namespace_of = getattr(payload, "__array_namespace__", None)
    if namespace_of is None:
        return sys.modules[type(payload).__module__.partition(".")[0]]
    return namespace_of()


def offsets_of(lengths: NDArray[np.int64]) -> Offsets:
    """Return the offsets of values of these lengths that lie one after the other, int64 ``[N +
    1]``."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def concatenate(parts: Sequence[Ragged]) -> Ragged:
    """Return the values of several raggeds of one kind, one after the other; of a single one
    without a copy."""
    if len(parts) == 1:
        return parts[0]
    payload = np.concatenate([part.flat for part in parts])
    return Ragged(payload, offsets_of(np.concatenate([part.lengths for part in parts])))


def num_bytes(values: Any) -> int:
    """Return the bytes of the values of a field: an array, values of varying length, or a list of
    arrays."""
    if isinstance(values, list):
        return sum(array.nbytes for array in values)
    return int(values.nbytes)
