"""Batch, and the ring of reusable slots that its arrays live in.

A slot is page-aligned host memory for one step. Every array of a batch is a view of its slot, which lives as long as
any view, slice, DLPack capsule or tensor made of them. When the last of them is gone the memory goes back to the ring
by itself. So a batch stays what it was for as long as anything refers to it, and a loop that drops its batches
allocates nothing after the first lap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError, UnknownFieldError
from gpuload.spec import Spec
from gpuload.stats import Counters

ALIGN_BYTES = 256  # TensorFlow aborts below 64 (facts: DLPack), GPUs like 256

Memory = tuple[NDArray[np.uint8], int]  # of a slot, and its address, which NumPy takes a microsecond to tell
Output = Any  # a field name, or a tuple, list or dict of outputs


class Batch(Mapping[str, Any]):
    """The fields of one step: ``batch["image"]`` is an array with the records along the first axis.

    Attributes:
        output: the fields arranged as the loader's ``output=`` says; a dict of all fields without it. Where that is a
            tuple, the batch unpacks like it: ``images, labels = batch``.
        records: int64 ``[n]``, which records these are.
        valid: bool ``[n]``, False where a record only pads the batch.
        epoch, step: which batch this is.
    """

    def __init__(
        self, fields: dict[str, Any], nest: Output, *, records: NDArray[np.int64], valid: NDArray[np.bool_],
        epoch: int, step: int,
    ) -> None:  # fmt: skip
        self._fields, self._nest = fields, nest
        self.records, self.valid, self.epoch, self.step = records, valid, epoch, step

    @property
    def output(self) -> Any:
        """The fields arranged as ``output=`` says."""
        return dict(self._fields) if self._nest is None else arranged(self._nest, self._fields)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._fields[name]
        except KeyError:
            raise UnknownFieldError(
                f"no field {name!r} in the batch",
                cause=f"its fields are {list(self._fields)}",
                remedy="name it in the loader's output=",
            ) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.output) if isinstance(self._nest, (tuple, list)) else iter(self._fields)

    def keys(self) -> Any:
        """The names of the fields."""
        return self._fields.keys()

    def values(self) -> Any:
        """The arrays."""
        return self._fields.values()

    def items(self) -> Any:
        """The names and arrays."""
        return self._fields.items()

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __len__(self) -> int:
        return len(self._nest) if isinstance(self._nest, (tuple, list)) else len(self._fields)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {getattr(value, 'shape', 'list')}" for name, value in self._fields.items())
        return f"Batch(epoch={self.epoch}, step={self.step}, records={self.records.size}; {shapes})"


def arranged(nest: Output, fields: Mapping[str, Any]) -> Any:
    """Return the nest with every field name replaced by that field."""
    if isinstance(nest, str):
        return fields[nest]
    if isinstance(nest, dict):
        return {key: arranged(inner, fields) for key, inner in nest.items()}
    return type(nest)(arranged(inner, fields) for inner in nest)


def names_in(nest: Output, spec: Spec) -> tuple[str, ...]:
    """Return the field names in a nest, each once, in order; all fields of the spec where the nest is None.

    Raises:
        UnknownFieldError: a name is not a field.
        SpecError: the nest holds something else than names, tuples, lists and dicts.
    """
    if nest is None:
        return spec.names
    if isinstance(nest, str):
        return (spec[nest].name,)
    if isinstance(nest, dict) or type(nest) in (tuple, list):
        inner = nest.values() if isinstance(nest, dict) else nest
        found = [name for one in inner for name in names_in(one, spec)]
        return tuple(dict.fromkeys(found))
    raise SpecError(
        f"output holds {nest!r}",
        cause="it is made of field names, tuples, lists and dicts",
        remedy=f"name fields out of {list(spec.names)}",
    )


class Ring:
    """Reusable slots of one size.

    Args:
        num_bytes: the size of a slot.
        ready: how many slots are made at once, so that a loop that drops its batches never makes another.
        limit: how many slots are kept at most.
        allocate: makes page-aligned (or pinned) memory, uint8 ``[num_bytes]``.
        counters: counts slots made and used again.
    """

    def __init__(
        self,
        num_bytes: int,
        *,
        ready: int = 0,
        limit: int,
        allocate: Callable[[int], NDArray[np.uint8]],
        counters: Counters,
    ) -> None:
        self.num_bytes, self.limit = num_bytes, limit
        self._allocate, self._counters = allocate, counters
        self._free = deque(self._new() for _ in range(ready))
        self._made = ready
        counters.add(slots_made=ready)

    def take(self) -> Slot:
        """Return a free slot, or a new one; it is free again when it and all its arrays are gone."""
        try:
            memory = self._free.pop()  # the one given back last: it is still in the cache
        except IndexError:
            memory = self._new()
            self._made += 1
            self._counters.add(slots_made=1)
            if self._made > self.limit:  # beyond the limit memory is not kept; it dies with its arrays
                self._made -= 1
                return Slot(memory, deque(maxlen=0))
        else:
            self._counters.add(slots_reused=1)
        return Slot(memory, self._free)

    def _new(self) -> Memory:
        memory = self._allocate(self.num_bytes)
        return memory, int(memory.ctypes.data)

    @property
    def crowded(self) -> bool:
        """True if every slot that may be kept is in use, so that a batch should be copied out of its slot."""
        return not self._free and self._made >= self.limit


class Slot:
    """Memory for one step, lent by a ring: what its arrays are views of. It goes back when the last of them is gone.

    Attributes:
        address: of the first byte.
    """

    __slots__ = ("__array_interface__", "_free", "_memory", "address")

    def __init__(self, memory: Memory, free: deque[Memory]) -> None:
        self._memory, self.address, self._free = memory, memory[1], free

    def array(self, begin: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an array over the bytes from ``begin`` on. One thread at a time."""
        self.__array_interface__ = {  # NumPy's protocol; some microseconds less than slice, view and reshape
            "data": (self.address + begin, False), "shape": shape, "typestr": dtype.str, "version": 3,
        }  # fmt: skip
        return np.asarray(self)

    def __del__(self) -> None:
        self._free.append(self._memory)


def aligned(num_bytes: int) -> int:
    """Return ``num_bytes`` rounded up to where the next array of a slot may begin."""
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES
