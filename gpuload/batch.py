"""Batch: the fields of a step as the user gets them, and their order by ``output=``.

    images, labels = batch        iterating gives the parts of ``output=``, in its order, as of a
                                  tuple
    batch[0], len(batch)          the first part, and how many there are
    batch["image"]                a field by its name, wherever it is in ``output=``
    batch.output                  the nest of ``output=`` itself, with arrays in place of names

Without ``output=`` the parts are all fields, in the order of the source. Where it is one name, the
part is that field; where it is a dict, a named tuple or a dataclass, the parts are its values.
``keys``, ``values`` and ``items`` are of the fields, so that ``dict(batch)`` and ``f(**batch)`` go
by name.

A batch does not change for as long as anything refers to one of its arrays: a view, a slice, a
DLPack capsule, a tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import RecordIndexError, SpecError, UnknownFieldError, short_repr
from gpuload.functions import call_function
from gpuload.spec import Spec, outline

Output = Any  # a field name, or a tuple, list, dict, named tuple or dataclass of outputs


class BatchAttributeError(UnknownFieldError, AttributeError):
    """A batch has no such attribute."""


class Batch:
    """The fields of one step: ``batch["image"]`` is an array with the records along the first axis.

    A field of a shape that varies from record to record is a `Ragged` if only its first axis does,
    else a list of arrays.

    Attributes:
        output: the fields arranged as the loader's ``output=`` says; a dict of all fields without
            it.
        records: int64 ``[n]``, which records these are; with ``on_error="replace"`` or ``"skip"`` a
            row of a damaged record holds another one; its number stands here.
        valid: bool ``[n]``, False where a record only pads the batch, and with ``on_error="skip"``
            where it stands in the place of a damaged one. Such a row holds a whole record all the
            same.
        epoch, step: which batch this is.
        drawn: of a loader with ``drawn=True``: the draws of each op for the records, by op and
            name, on the host; see ``Loader``.
    """

    drawn: Mapping[str, Mapping[str, NDArray[Any]]]

    def __init__(
        self, fields: dict[str, Any], nest: Output, *, records: NDArray[np.int64], valid: NDArray[np.bool_],
        epoch: int, step: int, event: Any = None, drawn: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
        spec: Spec | None = None,
    ) -> None:  # fmt: skip
        if drawn is not None:
            self.drawn = drawn
        self._fields, self._nest, self._event, self._spec = fields, nest, event, spec
        self.records, self.valid, self.epoch, self.step = records, valid, epoch, step

    def synchronize(self) -> None:
        """Wait until the arrays of a batch on a GPU are there; on a CPU they always are.

        CuPy, and readers that take the arrays by DLPack, need not call it: the stream that was
        CuPy's current one when the batch was handed out waits by itself. It is for readers with an
        unknown stream, TensorFlow for one.
        """
        if self._event is not None:
            self._event.synchronize()

    @property
    def output(self) -> Any:
        """The fields arranged as ``output=`` says."""
        if self._nest is None:
            return dict(self._fields)
        return arranged(self._nest, self._fields)

    def __getitem__(self, key: str | int | slice) -> Any:
        """Return a field by its name, or a part of ``output`` by its place."""
        if not isinstance(key, str):
            return self._part(key)
        try:
            return self._fields[key]
        except KeyError:
            raise UnknownFieldError(
                f"no field {key!r} in the batch",
                cause=f"its fields are {list(self._fields)}",
                remedy="name it in the loader's output=",
            ) from None

    def _part(self, place: int | slice) -> Any:
        try:
            return self._parts()[place]
        except (IndexError, TypeError):
            raise RecordIndexError(
                f"batch[{short_repr(place)}]",
                cause=f"a batch has {len(self)} parts, and the fields {list(self._fields)}",
                remedy="take a part by its place (batch[0]), a field by its name, or a record of "
                "it: batch[name][0]",
            ) from None

    def _parts(self) -> tuple[Any, ...]:
        nest = self._nest
        if nest is None:
            return tuple(self._fields.values())
        if isinstance(nest, str):
            inner = [nest]
        else:
            inner = parts_of(nest)
        return tuple(arranged(part, self._fields) for part in inner)

    if not TYPE_CHECKING:  # type checkers know the attributes from the class

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the place of the fields; called for missing attributes."""
            if name.startswith("_"):  # looked for by pickle, copy and inspection
                raise AttributeError(name)
            if name == "drawn":
                raise BatchAttributeError(
                    "batch.drawn",
                    cause="draws are kept only where the loader is asked for them",
                    remedy="make the loader with drawn=True: loader.replace(drawn=True)",
                )
            field = name
            if name not in self._fields:
                field = next(iter(self._fields), "...")
            raise BatchAttributeError(
                f"batch.{name}",
                cause="its attributes are output, records, valid, epoch and step; its fields are "
                f"{list(self._fields)}",
                remedy=f"write batch[{field!r}]",
            )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts())

    def __len__(self) -> int:
        return len(self._parts())

    def keys(self) -> KeysView[str]:
        """The names of the fields."""
        return self._fields.keys()

    def values(self) -> ValuesView[Any]:
        """The arrays of the fields."""
        return self._fields.values()

    def items(self) -> ItemsView[str, Any]:
        """The names and arrays of the fields."""
        return self._fields.items()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._fields

    def with_fields(self, convert: Callable[[Any], Any]) -> Batch:
        """Return the same batch with every field converted, to the tensors of a framework for
        instance.

        Raises:
            SpecError: there is no function to convert them.
        """
        if not callable(convert):
            raise SpecError(
                f"with_fields({convert!r})"[:200],
                cause="it takes a function that is given the values of a field and returns others",
                remedy="pass one, as in batch.with_fields(numpy.copy)",
            )
        fields = dict[str, Any]()
        for name, values in self._fields.items():
            note = partial("batch.with_fields: the function was given field {!r}".format, name)
            fields[name] = call_function(convert, values, note=note)
        return Batch(
            fields,
            self._nest,
            records=self.records,
            valid=self.valid,
            epoch=self.epoch,
            step=self.step,
            event=self._event,
            # Not `self.drawn`, which explains by an error why there are none.
            drawn=self.__dict__.get("drawn"),
            spec=self._spec,
        )

    def __repr__(self) -> str:
        values = signalsafe.import_package("gpuload.display.values")
        fields = [
            f"{name}: {values.field_text(field, values.field_of(name, field, self._spec))}"
            for name, field in self._fields.items()
        ]
        return outline(self._title(), fields, separator=";")

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the first records, images as small pictures."""
        tables = signalsafe.import_package("gpuload.display.tables")
        self.synchronize()
        html: str = tables.batch_table(
            self._title(), self._fields, self._spec, self.records, self.valid
        )
        return html

    def _title(self) -> str:
        """Return the place of the batch, and how many records it has, as a text."""
        num_records, num_valid = self.records.size, int(np.count_nonzero(self.valid))
        if num_valid == num_records:
            valid = ""
        else:
            valid = f", {num_valid} valid"
        records = f"{num_records} record{'s' * (num_records != 1)}{valid}"
        return f"gl.Batch: {records}, epoch {self.epoch}, step {self.step}"


def arranged(nest: Output, fields: Mapping[str, Any]) -> Any:
    """Return the nest with every field name replaced by that field."""
    if isinstance(nest, str):
        return fields[nest]
    parts = [arranged(inner, fields) for inner in parts_of(nest)]
    if isinstance(nest, dict):
        return dict(zip(nest, parts, strict=True))
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        names = [field.name for field in dataclasses.fields(nest) if field.init]
        return dataclasses.replace(nest, **dict(zip(names, parts, strict=True)))
    if hasattr(nest, "_fields"):
        return type(nest)(*parts)
    return type(nest)(parts)


def parts_of(nest: Output) -> list[Output]:
    """Return the parts of a nest that is no name, in its order.

    Raises:
        SpecError: it is no tuple, list, dict, named tuple or dataclass.
    """
    if isinstance(nest, dict):
        return list(nest.values())
    if type(nest) in (tuple, list) or (isinstance(nest, tuple) and hasattr(nest, "_fields")):
        return list(nest)
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        return [getattr(nest, field.name) for field in dataclasses.fields(nest) if field.init]
    raise SpecError(
        f"output holds {nest!r}",
        cause="it is made of field names, tuples, lists, dicts, named tuples and dataclasses",
        remedy='name the fields, output=("image", "label") for instance',
    )


def names_in(nest: Output, spec: Spec) -> tuple[str, ...]:
    """Return the field names in a nest, each once, in order; all fields of the spec where the nest
    is None.

    Raises:
        UnknownFieldError: a name is not a field.
        SpecError: the nest holds something else than names, tuples, lists, dicts, named tuples and
            dataclasses, or no name at all.
    """
    if nest is None:
        return spec.names
    names = tuple(dict.fromkeys(_names(nest, spec)))
    if not names:
        raise SpecError(
            f"output={nest!r}",
            cause="it names no field, so that there would be nothing in a batch",
            remedy=f"name the fields, output={spec.names!r} for instance, or leave output= out",
        )
    return names


def _names(nest: Output, spec: Spec) -> Iterator[str]:
    if isinstance(nest, str):
        yield spec[nest].name
    else:
        for inner in parts_of(nest):
            yield from _names(inner, spec)
