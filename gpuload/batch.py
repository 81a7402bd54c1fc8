"""Batch: what is handed to the user, and how ``output=`` arranges it.

A batch stays what it was for as long as anything refers to one of its arrays: a view, a slice, a DLPack capsule, a
tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError, UnknownFieldError
from gpuload.spec import Spec

Output = Any  # a field name, or a tuple, list or dict of outputs


class Batch(Mapping[str, Any]):
    """The fields of one step: ``batch["image"]`` is an array with the records along the first axis.

    A field whose shape varies from record to record is a `Ragged` if only its first axis does, else a list of arrays.

    Attributes:
        output: the fields arranged as the loader's ``output=`` says; a dict of all fields without it. Where that is a
            tuple, the batch unpacks like it: ``images, labels = batch``.
        records: int64 ``[n]``, which records these are.
        valid: bool ``[n]``, False where a record only pads the batch.
        epoch, step: which batch this is.
    """

    def __init__(
        self, fields: dict[str, Any], nest: Output, *, records: NDArray[np.int64], valid: NDArray[np.bool_],
        epoch: int, step: int, event: Any = None,
    ) -> None:  # fmt: skip
        self._fields, self._nest, self._event = fields, nest, event
        self.records, self.valid, self.epoch, self.step = records, valid, epoch, step

    def synchronize(self) -> None:
        """Wait until the arrays of a batch on a GPU are there; on a CPU they always are.

        CuPy, and whoever takes the arrays by DLPack, need not call it: the stream that was CuPy's current one when the
        batch was handed out waits by itself. It is for readers whose stream cannot be told, TensorFlow for one.
        """
        if self._event is not None:
            self._event.synchronize()

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
