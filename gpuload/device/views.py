"""Views: images of different sizes that lie in one memory on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def view_at(memory: Any, begin: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    """Return the bytes of an array on a GPU from ``begin`` on as another array."""
    # Three views of views would take longer.
    return type(memory)(shape, dtype, memory.data + begin)


class Views(Sequence[Any]):
    """Images of different sizes in one memory on a GPU: a table, and arrays of those that are read.

    Kernels need the table alone, and to make the arrays of many images takes longer than to queue a
    kernel. It is no list, which CuPy's functions would read past `__iter__`: `as_list` makes one.

    Args:
        memory: an array of one axis, in which the images are.
        dtype: of the numbers.
        shapes: of each image, which is in C order, int64 ``[N, 3]``.
        begins: the first byte of each in the memory, int64 ``[N]``.

    Attributes:
        memory, shapes: as above.
    """

    def __init__(
        self,
        memory: Any,
        dtype: np.dtype[Any],
        shapes: NDArray[np.int64],
        begins: NDArray[np.int64],
    ) -> None:
        self.memory, self._dtype, self.shapes, self._begins = memory, dtype, shapes, begins

    @property
    def table(self) -> NDArray[np.int64]:
        """Strides in bytes, shape and address of each image, int64 ``[N, 7]``."""
        table: NDArray[np.int64] = np.empty((len(self), 7), np.int64)
        table[:, 2], table[:, 3:6], table[:, 6] = self._dtype.itemsize, self.shapes, self._begins
        table[:, 1] = table[:, 5] * table[:, 2]
        table[:, 0] = table[:, 4] * table[:, 1]
        table[:, 6] += self.memory.data.ptr
        return table

    @property
    def nbytes(self) -> int:
        """The bytes of all images."""
        return int(self.shapes.prod(axis=1).sum()) * self._dtype.itemsize

    def join(self) -> Any | None:
        """Return the rows of all images as one array; None where they do not lie side by side."""
        sizes = self.shapes.prod(axis=1) * self._dtype.itemsize
        are_alike = (self.shapes[:, 1:] == self.shapes[:1, 1:]).all()
        has_gaps = (self._begins[1:] != self._begins[:-1] + sizes[:-1]).any()
        if not len(self) or not are_alike or has_gaps:
            return None
        shape = int(self.shapes[:, 0].sum()), *self.shapes[0, 1:].tolist()
        return view_at(self.memory, int(self._begins[0]), self._dtype, shape)

    def move(self, memory: Any) -> Views:
        """Return the same images in an array over the same bytes."""
        return Views(memory, self._dtype, self.shapes, self._begins)

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return Views(self.memory, self._dtype, self.shapes[key], self._begins[key])
        row = range(len(self))[key]
        return next(iter(self[row : row + 1]))

    def __iter__(self) -> Iterator[Any]:
        for shape, begin in zip(self.shapes.tolist(), self._begins.tolist(), strict=True):
            yield view_at(self.memory, begin, self._dtype, shape)


def as_list(values: Any) -> Any:
    """Return the values of a field as anyone takes them: `Views` as a list."""
    return list(values) if isinstance(values, Views) else values
