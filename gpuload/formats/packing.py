"""Packing: numbers that stand for others, as netCDF and xarray mark them by attributes; for HDF5
and Zarr.

    scale_factor, add_offset             value = number * scale_factor + add_offset
    _FillValue, missing_value            numbers that stand for a value that is not there: NaN
    valid_range, valid_min, valid_max    numbers outside are none either: NaN
    _Unsigned                            a signed type holds unsigned numbers, "true", or the other
                                         way, "false"

Dtype   of the values: float64 or float32 as scale_factor and add_offset are, float64 for integers
        of 4 bytes or more. Without both, float32 for integers of 1 or 2 bytes, float64 for larger
        ones; floats stay as they are.
Bits    Numbers of 8 bytes that float64 does not hold are an error where nothing scales them.
Choice  Records of packed numbers are opened when the caller says whether to unpack them. NaN as the
        _FillValue of floats, and a range of all numbers that the dtype has, change nothing that has
        to be chosen.
Source  CF Conventions 1.11, 2.5.1 "Missing data", 8.1 "Packed Data"; NetCDF Users Guide, A
        "Attribute Conventions"
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import short_repr
from gpuload.sources.leaf import Array

SCALES, MISSING = ("scale_factor", "add_offset"), ("_FillValue", "missing_value")
RANGE, UNSIGNED = ("valid_range", "valid_min", "valid_max"), "_Unsigned"
NEUTRAL = dict(zip(SCALES, (1.0, 0.0), strict=True))
COUNTS = {
    "scale_factor": 1,
    "add_offset": 1,
    "valid_range": 2,
    "valid_min": 1,
    "valid_max": 1,
}  # of numbers
NAMES = (*SCALES, *MISSING, *RANGE, UNSIGNED)
WIDE_BYTES = 4  # integers of which float32 does not hold all
MOST_BITS = 53  # of whole numbers, all of which float64 holds
Number = int | float


@dataclass(frozen=True)
class Packing:
    """How numbers become values.

    Attributes:
        dtype: of the values, ``"float32"``.
        view: the dtype that the numbers are taken as; "" for that of the array.
        scale, offset: of each number.
        missing: the numbers that stand for none.
        lowest, highest: the least and the largest number that is one.
        names: of the attributes that have to be chosen about.
        fault: why the numbers cannot be unpacked; "" if they can.
    """

    dtype: str
    view: str = ""
    scale: float = 1.0
    offset: float = 0.0
    missing: tuple[Number, ...] = ()
    lowest: Number = -math.inf
    highest: Number = math.inf
    names: tuple[str, ...] = ()
    fault: str = ""

    def apply(self, numbers: Array) -> Array:
        """Return the values of numbers, as an array of their own."""
        if self.view:
            numbers = numbers.view(np.dtype(self.view).newbyteorder(numbers.dtype.byteorder))
        values: Array = numbers.astype(self.dtype)
        kind = values.dtype.type
        if self.scale != 1:
            values *= kind(self.scale)
        if self.offset != 0:
            values += kind(self.offset)
        for missing in self.missing:
            if numbers.dtype.kind == "f":
                number = numbers.dtype.type(missing)
            else:
                number = missing
            values[numbers == number] = np.nan
        if self.lowest != -math.inf:
            values[numbers < self.lowest] = np.nan
        if self.highest != math.inf:
            values[numbers > self.highest] = np.nan
        return values

    def first_rounded(self, numbers: Array, values: Array) -> Number | None:
        """Return the first number that its float does not hold, where nothing scales it; None if
        each is held.

        Args:
            numbers: as they are stored.
            values: of `apply`; numbers that stand for none are NaN.
        """
        dtype = np.dtype(self.view or numbers.dtype)
        if dtype.kind not in "iu" or dtype.itemsize * 8 <= MOST_BITS or self.scale != 1:
            return None
        numbers = numbers.view(dtype.newbyteorder(numbers.dtype.byteorder))
        numbers = numbers[~np.isnan(values)].astype(dtype)
        # abs(-2**63) stays -2**63, which has the bytes of 2**63.
        if dtype.kind == "u":
            sizes = numbers.view(np.uint64)
        else:
            sizes = np.abs(numbers).view(np.uint64)
        places = np.flatnonzero(sizes > 1 << MOST_BITS)
        floats = sizes[places].astype(np.float64)
        is_held = floats < 2.0**64
        is_held[is_held] = floats[is_held].astype(np.uint64) == sizes[places[is_held]]
        places = places[~is_held]
        if places.size:
            return int(numbers[places[0]])
        return None

    def to_json(self) -> list[Any]:
        """Return it in values of JSON, which has no NaN."""
        numbers = [self.scale, self.offset, self.lowest, self.highest, *self.missing]
        values = [self.dtype, self.view, list(self.names), [repr(number) for number in numbers]]
        if self.fault:
            return [*values, self.fault]
        return values

    @classmethod
    def from_json(cls, entry: Any) -> Packing:
        """Return the packing that `to_json` wrote; raises any error for other values."""
        (dtype, view, names, texts), fault = entry[:4], "".join(entry[4:])
        if (
            dtype not in ("float16", "float32", "float64")
            or not isinstance(view, str)
            or not set(names) <= set(NAMES)
        ):
            raise ValueError(f"{entry!r} is no packing of numbers")
        scale, offset, lowest, highest, *missing = [_number(text) for text in texts]
        if view and np.dtype(view).kind not in "iu":
            raise ValueError(f"{view!r} is no type of integers")
        return cls(
            dtype,
            view,
            float(scale),
            float(offset),
            tuple(missing),
            lowest,
            highest,
            tuple(names),
            fault,
        )


def _number(text: str) -> Number:
    if text.lstrip("-").isdecimal():
        return int(text)
    return float(text)


def packing_of(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Packing | None:
    """Return how the numbers of an array are packed; None if they are values.

    Args:
        attributes: of the array, by name; others than NAMES are passed over.
        dtype: of the array.
    """
    attributes = {name: attributes[name] for name in NAMES if _has_value(attributes.get(name))}
    if not attributes:
        return None
    dtype = dtype.base
    if dtype.kind not in "iuf":
        return _of_compounds(attributes, dtype)
    try:
        return _of_numbers(attributes, dtype)
    except _FaultError as error:
        return Packing("float64", names=tuple(attributes), fault=str(error))


def _has_value(value: Any) -> bool:
    """Return False for an attribute that is not there, null of JSON, or empty."""
    return value is not None and getattr(value, "shape", ()) is not None and np.size(value) > 0


class _FaultError(Exception):
    """An attribute does not say all that it has to."""


def _of_compounds(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Packing | None:
    """Return a packing with a fault for compounds and the like that have factors: they have no
    numbers to scale."""
    present = [name for name in SCALES if name in attributes]
    names = tuple(name for name in present if np.ravel(attributes[name])[0] != NEUTRAL[name])
    if dtype.kind not in "cOV" or not names:
        return None
    return Packing(
        "float64",
        names=names,
        fault=f"{', '.join(names)} beside elements of {dtype} is not supported",
    )


def _values_of(
    attributes: Mapping[str, Any], name: str, dtype: np.dtype[Any], stored_dtype: np.dtype[Any]
) -> Array:
    """Return the numbers of an attribute, ``[n]``; none if it is not there. Raises
    `_FaultError`."""
    if name not in attributes:
        return np.zeros(0)
    value = attributes[name]
    if name in MISSING:
        value = _number_of(value, dtype)
    array = np.asarray(value).reshape(-1)
    if array.dtype.kind not in "iufb":
        raise _FaultError(f"its attribute {name} is {short_repr(value)}, and no number")
    if name in COUNTS and array.size != COUNTS[name]:
        raise _FaultError(f"its attribute {name} has {array.size} numbers, {short_repr(value)}")
    if name in SCALES:
        return array
    return _in_dtype_of_array(array, dtype, stored_dtype)


def _of_numbers(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Packing | None:
    """Return the packing of an array of integers or floats; None if they are values. Raises
    `_FaultError`."""
    view = _view(attributes, dtype)
    stored_dtype = dtype
    if view:
        stored_dtype = np.dtype(view)
    arrays = dict[str, Array]()
    for name in NAMES:
        if name != UNSIGNED:
            arrays[name] = _values_of(attributes, name, dtype, stored_dtype)
    factors = dict(NEUTRAL)
    factors.update((name, float(arrays[name][0])) for name in NEUTRAL if name in attributes)
    lows = [*arrays["valid_range"][:1].tolist(), *arrays["valid_min"].tolist()]
    highs = [*arrays["valid_range"][1:].tolist(), *arrays["valid_max"].tolist()]
    missing = [number for name in MISSING for number in arrays[name].tolist()]
    active_names = [name for name, neutral in NEUTRAL.items() if factors[name] != neutral]
    names = list(active_names)
    names += [name for name in MISSING if not all(map(_is_nan, arrays[name].tolist()))]
    if view:
        names.append(UNSIGNED)
    lowest, highest = max(lows, default=-math.inf), min(highs, default=math.inf)
    if _leaves_out(lowest, highest, stored_dtype):
        names += [name for name in RANGE if name in attributes]
    if not names:
        return None
    return Packing(
        _dtype_of_values(stored_dtype, [arrays[name].dtype for name in active_names]).name,
        view,
        factors["scale_factor"],
        factors["add_offset"],
        tuple(dict.fromkeys(number for number in missing if not _is_nan(number))),
        lowest,
        highest,
        tuple(names),
    )


def _leaves_out(lowest: Number, highest: Number, dtype: np.dtype[Any]) -> bool:
    """Return True if a dtype has numbers outside of a range; infinite ones aside."""
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return bool(lowest > limits.min or highest < limits.max)


def _view(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> str:
    """Return the dtype that integers are taken as, after the attribute ``_Unsigned``; "" for their
    own."""
    value = np.ravel(attributes.get(UNSIGNED, ""))[0]  # netCDF has texts in arrays of one
    text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).lower()
    kind = {"true": "u", "false": "i"}.get(text, dtype.kind)
    if dtype.kind in "iu" and kind != dtype.kind:
        return f"{kind}{dtype.itemsize}"
    return ""


def _in_dtype_of_array(values: Array, dtype: np.dtype[Any], stored_dtype: np.dtype[Any]) -> Array:
    """Return integers of an attribute in the dtype that those of the array are taken as: -1 of int8
    is 255 of uint8.

    HDF5 has a type for them; JSON, which Zarr has, has none.
    """
    if dtype == stored_dtype or values.dtype.kind not in "iu":
        return values
    if values.dtype.itemsize == stored_dtype.itemsize:
        return values.view(stored_dtype)
    numbers = values.astype(dtype)
    if (numbers == values).all():
        return numbers.view(stored_dtype)
    return values


def _number_of(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number of an attribute; in Zarr of format 3 xarray writes floats as the base64 of a
    double."""
    if isinstance(value, str) and dtype.kind == "f":
        try:
            return struct.unpack("<d", base64.b64decode(value, validate=True))[0]
        except (ValueError, struct.error):
            names = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
            return names.get(value, value)
    return value


def _dtype_of_values(stored_dtype: np.dtype[Any], scales: list[np.dtype[Any]]) -> np.dtype[Any]:
    is_wide = stored_dtype.kind != "f" and stored_dtype.itemsize >= WIDE_BYTES
    floats = [dtype if dtype.kind == "f" else np.dtype("f8") for dtype in scales]
    if stored_dtype.kind == "f":
        floats.append(stored_dtype)
    elif is_wide:
        floats.append(np.dtype("f8"))
    else:
        floats.append(np.dtype("f4"))
    return np.result_type(*floats)


def _is_nan(number: Any) -> bool:
    return isinstance(number, float) and math.isnan(number)
