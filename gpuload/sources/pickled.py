"""Pickled arrays: NPY files of Python objects, for data that the user trusts. `gpuload convert` is the one way to them.

An NPY file of objects is a pickle: reading it runs whatever code its writer put there, with all the rights of this
process. So no source opens one. ``gl.convert(path, out, allow_pickle=True)`` and ``gpuload convert --allow-pickle`` do,
once, for a file whose writer is known, and make a file of it that holds bytes alone.

Records  an array of objects has a record for each element: dicts are records with fields, other values one field ``x``.
         Arrays of one shape, numbers, texts and bytes become such a field; arrays of different shapes one that varies.
         An array of no axes that holds a dict of arrays (``numpy.save(path, {...})``) has a field for each of them.
Memory   the whole file.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import FormatError, SpecError
from gpuload.sources.arrays import arrays
from gpuload.sources.base import Source
from gpuload.sources.records import records
from gpuload.storage.files import Paths, expand, look_at

log = logging.getLogger("gpuload")


def trusted(paths: Paths) -> Source:
    """Return the records of NPY files of Python objects, which are unpickled: code in them is run.

    Raises:
        FormatError: a file cannot be unpickled, or holds something that is no record.
        FileError: a file is missing or cannot be read.
    """
    named = expand(paths)
    files, _ = look_at(named, 0, lambda path, size, head: None)
    log.warning("%s: unpickled, which runs what its writer put there; allow_pickle was given", named[0])
    tables = [_fields(path) for path in files.paths]
    names = list(tables[0])
    for path, one in zip(named, tables, strict=True):
        if list(one) != names:
            raise SpecError(
                f"{path} has the fields {list(one)}, {named[0]} has {names}",
                cause="the records of a source have the same fields",
                remedy="convert them one by one",
            )
    columns = {name: [value for one in tables for value in one[name]] for name in names}
    return _source(columns, _digest(named))


def _fields(path: str) -> dict[str, Any]:
    try:
        loaded = np.load(path, allow_pickle=True)
    except Exception as error:  # a pickle may raise anything
        raise FormatError(
            f"{path} cannot be unpickled",
            cause=f"{type(error).__name__}: {error}",
            remedy="it may need the packages and versions of its writer; numpy.load(path, allow_pickle=True) says more",
        ) from None
    if not isinstance(loaded, np.ndarray):
        raise FormatError(
            f"{path} is no NPY file of objects",
            cause=f"numpy.load makes a {type(loaded).__name__} of it",
            remedy="convert it without allow_pickle",
        )
    values = loaded.item() if loaded.ndim == 0 else loaded
    if isinstance(values, Mapping):
        return {str(name): list(one) for name, one in values.items()}
    if loaded.ndim == 0:
        raise FormatError(
            f"{path} holds one {type(values).__name__}",
            cause="it has no records",
            remedy="save an array of records, or a dict of arrays of one length",
        )
    listed = list(loaded)
    if listed and all(isinstance(one, Mapping) for one in listed):
        names = list(listed[0])
        for number, one in enumerate(listed):
            if list(one) != names:
                raise FormatError(
                    f"{path}, record {number}: its keys are {list(one)}, those of record 0 are {names}",
                    cause="all records have the same fields",
                    remedy="give all of them the same keys, in one order",
                )
        return {str(name): [one[name] for one in listed] for name in names}
    return {"x": listed}


def _source(columns: dict[str, list[Any]], version: str) -> Source:
    """Return a source of lists of values: arrays where they have one shape, else each value for itself."""
    made = {name: _column(name, values) for name, values in columns.items()}
    if all(isinstance(one, np.ndarray) for one in made.values()):
        return arrays(**made)
    length = len(next(iter(made.values())))

    def read(numbers: NDArray[np.int64]) -> dict[str, Any]:
        chosen = numbers.tolist()
        return {
            name: one[numbers] if isinstance(one, np.ndarray) else [one[number] for number in chosen]
            for name, one in made.items()
        }

    return records(length, read, version=version)


def _column(name: str, values: list[Any]) -> NDArray[Any] | list[Any]:
    if values and all(isinstance(value, (bytes, bytearray)) for value in values):
        return [bytes(value) for value in values]  # of any length, and with zeros at their ends
    listed = [np.asarray(value) for value in values]
    kinds = {one.dtype.kind for one in listed}
    if "O" in kinds or (len(kinds) > 1 and not kinds <= set("biuf")):
        bad = next(number for number, one in enumerate(listed) if one.dtype.kind in ("O", *sorted(kinds)[1:]))
        raise FormatError(
            f"field {name!r}, record {bad}: a value of {type(values[bad]).__name__}",
            cause="records are numbers, text, bytes, and arrays of these; all records of a field are of one kind",
            remedy="make arrays of the objects before they are saved",
        )
    dtype = np.result_type(*{one.dtype for one in listed})
    if len({one.shape for one in listed}) == 1:
        return np.stack(listed).astype(dtype)
    return [one.astype(dtype) for one in listed]


def _digest(paths: list[str]) -> str:
    text = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            text.update(os.path.basename(path).encode("utf-8", "surrogateescape"))
            while piece := file.read(1 << 20):
                text.update(piece)
    return text.hexdigest()
