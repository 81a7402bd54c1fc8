"""Packing: numbers that stand for others, as netCDF and xarray mark them by attributes; for HDF5 and Zarr.

    scale_factor, add_offset             value = number * scale_factor + add_offset
    _FillValue, missing_value            numbers that stand for a value that is not there: NaN
    valid_range, valid_min, valid_max    numbers outside are none either: NaN
    _Unsigned                            a signed type holds unsigned numbers, "true", or the other way, "false"

Dtype   of the values: float64 or float32 as scale_factor and add_offset are, float64 for integers of 4 bytes or more.
        Without both, float32 for integers of 1 or 2 bytes, float64 for larger ones; floats stay as they are.
Bits    Numbers of 8 bytes that float64 does not hold are an error where nothing scales them.
Choice  Records of packed numbers are opened when the caller says whether to unpack them. NaN as the _FillValue of
        floats, and valid_range alone, change nothing that has to be chosen.
Source  CF Conventions 1.11, 2.5.1 "Missing data", 8.1 "Packed Data"; NetCDF Users Guide, A "Attribute Conventions"
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.sources.leaf import Array

SCALES, MISSING = ("scale_factor", "add_offset"), ("_FillValue", "missing_value")
RANGE, UNSIGNED = ("valid_range", "valid_min", "valid_max"), "_Unsigned"
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
    """

    dtype: str
    view: str = ""
    scale: float = 1.0
    offset: float = 0.0
    missing: tuple[Number, ...] = ()
    lowest: Number = -math.inf
    highest: Number = math.inf
    names: tuple[str, ...] = ()

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
            number = numbers.dtype.type(missing) if numbers.dtype.kind == "f" else missing
            values[numbers == number] = np.nan
        if self.lowest != -math.inf:
            values[numbers < self.lowest] = np.nan
        if self.highest != math.inf:
            values[numbers > self.highest] = np.nan
        return values

    def first_rounded(self, numbers: Array, values: Array) -> Number | None:
        """Return the first number that its float does not hold, where nothing scales it; None if each is held.

        Args:
            numbers: as they are stored.
            values: of `apply`; numbers that stand for none are NaN.
        """
        dtype = np.dtype(self.view or numbers.dtype)
        if dtype.kind not in "iu" or dtype.itemsize * 8 <= MOST_BITS or self.scale != 1:
            return None
        numbers = numbers.view(dtype.newbyteorder(numbers.dtype.byteorder))[~np.isnan(values)].astype(dtype)
        # abs(-2**63) stays -2**63, whose bytes are those of 2**63.
        sizes = (np.abs(numbers) if dtype.kind == "i" else numbers).view(np.uint64)
        places = np.flatnonzero(sizes > 1 << MOST_BITS)
        floats = sizes[places].astype(np.float64)
        is_held = floats < 2.0**64
        is_held[is_held] = floats[is_held].astype(np.uint64) == sizes[places[is_held]]
        places = places[~is_held]
        return int(numbers[places[0]]) if places.size else None

    def to_json(self) -> list[Any]:
        """Return it in values of JSON, which has no NaN."""
        numbers = [self.scale, self.offset, self.lowest, self.highest, *self.missing]
        return [self.dtype, self.view, list(self.names), [repr(number) for number in numbers]]

    @classmethod
    def from_json(cls, entry: Any) -> Packing:
        """Return what `to_json` wrote; raises any error for other values."""
        dtype, view, names, texts = entry
        if dtype not in ("float16", "float32", "float64") or not isinstance(view, str) or not set(names) <= set(NAMES):
            raise ValueError(f"{entry!r} is no packing of numbers")
        scale, offset, lowest, highest, *missing = [_number(text) for text in texts]
        if view and np.dtype(view).kind not in "iu":
            raise ValueError(f"{view!r} is no type of integers")
        return cls(dtype, view, float(scale), float(offset), tuple(missing), lowest, highest, tuple(names))


def _number(text: str) -> Number:
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def packing_of(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Packing | None:
    """Return how the numbers of an array are packed; None if they are values.

    Args:
        attributes: of the array, by name; others than NAMES are passed over.
        dtype: of the array.

    Raises:
        SpecError: an attribute is no number.
    """
    if dtype.kind not in "iuf" or not any(name in attributes for name in NAMES):
        return None
    view = _view(attributes, dtype)
    stored_dtype = np.dtype(view) if view else dtype

    def values_of(name: str, read: Callable[[Any], Any] = np.asarray) -> Array:
        array = np.asarray(read(attributes[name])).reshape(-1) if name in attributes else np.zeros(0)
        if array.dtype.kind not in "iufb":
            raise SpecError(
                f"its attribute {name} is {attributes[name]!r}",
                cause="it says which number stands for which value, and is no number",
                remedy="write the attribute anew, as a number",
            )
        return array if name in SCALES else _in_dtype_of_array(array, dtype, stored_dtype)

    scales = {name: values_of(name) for name in SCALES if name in attributes}
    missing = {name: values_of(name, lambda value: _number_of(value, dtype)) for name in MISSING if name in attributes}
    bounds = {name: values_of(name) for name in RANGE if name in attributes}
    range_values = bounds.get("valid_range", np.zeros(0))
    lows = [*range_values[:1].tolist(), *bounds.get("valid_min", np.zeros(0)).tolist()]
    highs = [*range_values[1:2].tolist(), *bounds.get("valid_max", np.zeros(0)).tolist()]
    numbers = tuple(dict.fromkeys(n for array in missing.values() for n in array.tolist() if not _is_nan(n)))
    scale, offset = (float(scales[name][0]) if name in scales and scales[name].size else neutral
                     for name, neutral in zip(SCALES, (1.0, 0.0), strict=True))  # fmt: skip
    active_names = [name for name, neutral in zip(SCALES, (1.0, 0.0), strict=True) if name in scales
              and scales[name].size and float(scales[name][0]) != neutral]  # fmt: skip
    names = [*active_names, *(name for name, array in missing.items() if not all(map(_is_nan, array.tolist())))]
    names += [UNSIGNED] if view else []
    if not names and not lows and not highs:
        return None
    return Packing(
        _dtype_of_values(stored_dtype, [scales[name].dtype for name in active_names]).name,
        view,
        scale,
        offset,
        numbers,
        max(lows, default=-math.inf),
        min(highs, default=math.inf),
        tuple(names),
    )


def _view(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> str:
    """Return the dtype that integers are taken as, after the attribute ``_Unsigned``; "" for their own."""
    value = attributes.get(UNSIGNED)
    text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).lower()
    kind = {"true": "u", "false": "i"}.get(text, dtype.kind)
    return f"{kind}{dtype.itemsize}" if dtype.kind in "iu" and kind != dtype.kind else ""


def _in_dtype_of_array(values: Array, dtype: np.dtype[Any], stored_dtype: np.dtype[Any]) -> Array:
    """Return integers of an attribute in the dtype that those of the array are taken as: -1 of int8 is 255 of uint8.

    HDF5 has a type for them; JSON, which Zarr has, has none.
    """
    if dtype == stored_dtype or values.dtype.kind not in "iu":
        return values
    if values.dtype.itemsize == stored_dtype.itemsize:
        return values.view(stored_dtype)
    numbers = values.astype(dtype)
    return numbers.view(stored_dtype) if (numbers == values).all() else values


def _number_of(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number of an attribute; in Zarr of format 3 xarray writes floats as the base64 of a double."""
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
    else:
        floats.append(np.dtype("f8") if is_wide else np.dtype("f4"))
    return np.result_type(*floats)


def _is_nan(number: Any) -> bool:
    return isinstance(number, float) and math.isnan(number)
