"""Cast: another dtype.

Meaning  a floating-point number becomes the nearest integer, halves away from zero, and the dtype's
         limits bound it; not a number becomes 0. Integers are bounded by the dtype's limits. To
         floating point: the nearest value, halves to even; to float16 and bfloat16 through float32.
         From bfloat16 through float32, which holds it exactly.
DALI     its CPU rounds like this, its GPU rounds halves to even (DALI 2.4,
         include/dali/core/convert.h), so there the rounding is spelt out; not a number becomes the
         least int32 or int64 in DALI, so that is taken out before.
bfloat16 is no dtype of NumPy's, CuPy's or DALI's. The package ml_dtypes adds it to NumPy, so it is
cast on the host.
Dates    become int64: how many units since 1970-01-01T00:00 in UTC, of times how many units long
         they are; in the unit of the field, or in ``unit``, rounded down. No integer stands for a
         missing date (NaT), so that is an error, as is a date that int64 does not reach in that
         unit. NumPy's alone, on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device, signalsafe
from gpuload.errors import RowError, SpecError, missing_package
from gpuload.kernels import pixels
from gpuload.kernels.tables import ALMOST_HALF
from gpuload.kernels.walk import VARYING, Walk
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Arithmetic, Execution, Traits, once
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec

DALI_TYPES = {
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FLOAT16", "float32": "FLOAT", "float64": "FLOAT64",
}  # fmt: skip
TIMES = "mM"  # kinds of dtypes: times and dates
UNITS = ("D", "h", "m", "s", "ms", "us", "ns")  # of numbers that come out
CALENDAR, MOST_MONTHS = (
    ("M", "Y"),
    10**12,
)  # units of varying length; more of them have no day in int64
SECOND = 10**18
LENGTHS = {
    **{
        unit: seconds * SECOND
        for unit, seconds in (("W", 604800), ("D", 86400), ("h", 3600), ("m", 60), ("s", 1))
    },
    **{
        unit: SECOND // 1000**power
        for power, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), 1)
    },
}  # of units, in 10**-18 seconds
KERNEL = """
typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    for (int channel = 0; channel < CHANNELS; ++channel) {
        In value = at(image, y, x, channel);
        CAST
    }
}
"""
ROUND = f"""
        float number = (float)value, above = number > 0.0f ? number : 0.0f, below = number < 0.0f ? number : 0.0f;
        number = floorf(above + {ALMOST_HALF!r}f) + ceilf(below - {ALMOST_HALF!r}f);
        to[channel] = number <= (float)LOW ? (Out)LOW : number >= (float)HIGH ? (Out)HIGH : (Out)number;"""
BOUND = "to[channel] = (Out)(value < (In)LOW ? (In)LOW : value > (In)HIGH ? (In)HIGH : value);"


def exact_cast(field: Field) -> str:
    """Return the op, as text, that makes numbers of dates or times and leaves out no part of them.

    Of a unit shorter than a nanosecond the text says which digits are left out.
    """
    unit = np.datetime_data(field.dtype)[0]
    if unit in UNITS:
        return f"gl.ops.Cast('int64', on={field.name!r})"
    if unit in (*CALENDAR, "W"):  # whole days
        return f"gl.ops.Cast('int64', unit='D', on={field.name!r})"
    call = f"gl.ops.Cast('int64', unit='ns', on={field.name!r})"
    return f"{call}, which leaves out parts of a nanosecond"


@dataclass(frozen=True)
class Cast(Op):
    """Convert to another dtype; integers are rounded to, halves away from zero, and saturate.

    Not a number becomes the integer 0. A value beyond the limits of float16 or bfloat16 becomes
    infinite.

    A field of dates or times (datetime64, timedelta64) becomes int64, the number of units since
    1970 (UTC), or of the time: ``gl.ops.Cast("int64", unit="s", on="day")``. A date that is missing
    (NaT) is an error that names the record.

    Example:
        ``gl.ops.Cast("float32")``

    Args:
        dtype: an integer or floating-point dtype, or ``"bfloat16"``, which needs the package
            ml_dtypes; of dates int64.
        unit: of dates and times, ``"D"``, ``"h"``, ``"m"``, ``"s"``, ``"ms"``, ``"us"`` or
            ``"ns"``; parts of a unit are rounded down. None: that of the field.
    """

    dtype: str
    unit: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if arguments.is_bfloat16(self.dtype):
            arguments.keep(self, dtype="bfloat16")
        else:
            arguments.keep(self, dtype=arguments.dtype_name(self, "dtype", self.dtype, DALI_TYPES))
        if self.unit is not None and (not isinstance(self.unit, str) or self.unit not in UNITS):
            raise arguments.refuse(
                self, "unit", self.unit, f"one of {list(UNITS)}", "write 's' for seconds, say"
            )

    @property
    @once
    def traits(self) -> Traits:
        """It changes each element by itself."""
        return Traits(
            arithmetic=Arithmetic(elementwise=True),
            execution=Execution(stays_on_host=self._stays_on_host),
        )

    def forms(self, field: Field) -> Forms:
        """It is the end of a walk."""
        return Forms(fold=self._fold)

    def _stays_on_host(self, before: Spec) -> bool:
        """Return True for bfloat16, and for dates."""
        are_on_host = (
            arguments.is_bfloat16(field.dtype) or field.dtype.kind in TIMES for field in before
        )
        return self.dtype == "bfloat16" or any(are_on_host)

    def field_after(self, field: Field) -> Field:
        """The dtype becomes ``dtype``."""
        if field.dtype.kind in TIMES and not field.encoded:
            return self._of_times(field)
        if self.unit is not None:
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype}",
                cause="dates and times alone have a unit",
                remedy="name a field of dates with on=, or leave unit= out",
            )
        if not arguments.is_bfloat16(field.dtype):
            images.numeric(self, field)
        if field.dtype == np.float64 and np.dtype(self.dtype).kind in "ui":
            raise SpecError(
                f"{self}: field {field.name!r} is float64",
                cause="DALI does not round float64 to integers the same way on every device",
                remedy="put gl.ops.Cast('float32') before it",
            )
        return field.with_(dtype=self._result())

    def _of_times(self, field: Field) -> Field:
        """Return a field of dates or times behind the op."""
        if self.unit:
            of_unit = f", unit={self.unit!r}"
        else:
            of_unit = ""
        call = f"gl.ops.Cast('int64'{of_unit}, on={field.name!r})"
        if self.dtype != "int64":
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype}",
                cause="dates and times become int64, which holds them exactly",
                remedy=f"put {call} before it",
            )
        unit = np.datetime_data(field.dtype)[0]
        if unit == "generic" or (unit in CALENDAR and field.dtype.kind == "m"):
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype}",
                cause="its unit has no length",
                remedy="store times in days or seconds: array.astype('timedelta64[D]')",
            )
        if unit not in UNITS and self.unit is None:
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype}",
                cause=f"numbers of that unit would have no common meaning; units are {list(UNITS)}",
                remedy=f"say the unit: {exact_cast(field)}",
            )
        return field.with_(dtype=np.dtype(np.int64))

    def _result(self) -> np.dtype[Any]:
        """Return the dtype that comes out."""
        if self.dtype != "bfloat16":
            return np.dtype(self.dtype)
        try:
            bfloat16: np.dtype[Any] = np.dtype(signalsafe.import_package("ml_dtypes").bfloat16)
            return bfloat16
        except ImportError as error:
            needed_for = "gl.ops.Cast('bfloat16')"
            raise missing_package(
                "ml_dtypes", needed_for=needed_for, extra="cpu", error=error
            ) from None

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one record in the other dtype."""
        if x.dtype.kind in TIMES:
            return self._units(np.asarray(x)[None])[0]
        dtype = self._result()
        if "V" in (dtype.kind, x.dtype.kind):  # bfloat16
            x = x.astype(np.float32)
        if dtype.kind in "fV" or x.dtype.kind == "b" or x.dtype == dtype:
            with np.errstate(over="ignore"):
                if dtype == np.float16:
                    x = x.astype(xp.float32)
                return x.astype(dtype)
        if x.dtype.kind == "f":
            return _to_integer(xp, x.astype(xp.float32), dtype)
        low, high = np.iinfo(dtype), np.iinfo(x.dtype.name)
        return x.clip(max(low.min, high.min), min(low.max, high.max)).astype(dtype)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch, on a GPU by a kernel."""
        is_list = isinstance(x, VARYING) and not isinstance(x, Ragged)
        if not is_list and x.dtype.kind in TIMES:
            return self._units(x)
        if isinstance(x, Ragged):
            return x.with_payload(self._flat(xp, x.flat))
        if not is_list:
            return self._flat(xp, x)
        if not x or x[0].ndim != 3 or not pixels.reads(xp, x):
            return super().array_batch(xp, x, draw)
        dtype = self._result()
        return pixels.Pixels(xp, x).change(_kernel(x[0].dtype, dtype), dtype=dtype)

    def _units(self, x: Any) -> Any:
        """Return dates or times of a batch as numbers of units; raises ``RowError`` for a row that
        has none."""
        if isinstance(x, Ragged):
            flat: NDArray[Any] = x.flat
        else:
            flat = x
        unit, step = np.datetime_data(flat.dtype)
        is_missing, counts = np.isnat(flat), flat.view(np.int64)
        is_far = np.zeros(counts.shape, np.bool_)
        if unit in CALENDAR:
            is_far = abs(counts.astype(np.float64)) > MOST_MONTHS
            counts, unit, step = (
                np.where(is_far, 0, counts).view(flat.dtype).astype("M8[D]").view(np.int64),
                "D",
                1,
            )
        ratio = Fraction(step * LENGTHS[unit], LENGTHS[self.unit or unit])
        limit = np.iinfo(np.int64).max // ratio.numerator
        is_far |= (counts > limit) | (counts < -limit)
        if (wrong := is_missing | is_far).any():
            place = int(wrong.reshape(-1).argmax())
            raise self._no_number(x, place, flat.reshape(-1)[place])
        numbers = counts * ratio.numerator // ratio.denominator
        if isinstance(x, Ragged):
            return x.with_payload(numbers)
        return numbers

    def _no_number(self, x: Any, place: int, value: Any) -> RowError:
        """Return the error for a date without a number; ``place`` counts the values of all rows."""
        if isinstance(x, Ragged):
            row = (
                int(
                    np.searchsorted(
                        x.offsets - x.offsets[0],
                        place // max(1, math.prod(x.flat.shape[1:])),
                        "right",
                    )
                )
                - 1
            )
        else:
            row = place // max(1, math.prod(x.shape[1:]))
        if np.isnat(value):
            return RowError(
                row,
                f"{self}: a date is missing (NaT)",
                cause="no integer stands for that",
                remedy="give missing dates a value when the source is opened: "
                "defaults={'day': numpy.datetime64('1970-01-01')}; or leave the record out with source.select(...)",
            )
        unit = np.datetime_data(value.dtype)[0]
        remedy = "mend the record, or leave it out with source.select(...)"
        if unit in UNITS and self.unit not in (None, unit):
            remedy = f"leave unit= out: numbers of {unit!r}, as the field has them, hold it"
        return RowError(
            row,
            f"{self}: {value} is too far away",
            cause=f"int64 does not hold it in the unit {self.unit!r}",
            remedy=remedy,
        )

    def _flat(self, xp: ModuleType, x: Any) -> Any:
        """Return numbers that lie one after the other in the other dtype."""
        row = pixels.row_of(xp, x)
        if row is None:
            device.settle()
            return self.array(xp, x, {})
        dtype = self._result()
        return pixels.Pixels(xp, row).change(_kernel(x.dtype, dtype), dtype=dtype).reshape(x.shape)

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``cast``; its rounding and its not-a-number spelt out where they are not ours."""
        math, types, dtype = dali.math, dali.types, np.dtype(self.dtype)
        if (
            field.dtype.kind == "f"
            and dtype.kind in "ui"
            and (device == "gpu" or dtype.itemsize > 2)
        ):
            x = dali.fn.cast(x, dtype=types.FLOAT)
            above, below = math.max(x, 0.0), math.min(x, 0.0)  # each is 0 where x is not a number
            x = math.floor(above + ALMOST_HALF) + math.ceil(below - ALMOST_HALF)
        if self.dtype == "float16" and field.dtype != np.float16:
            return images.to_float16(dali, dali.fn.cast(x, dtype=types.FLOAT), device)
        return dali.fn.cast(x, dtype=getattr(types, DALI_TYPES[self.dtype]))

    def _fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """The walk's last rounding: to float32 or float16, from uint8 or float32."""
        exact = walk.mean is None and walk.dtype == np.uint8
        folds = {
            "float32": exact or walk.dtype == np.float32,
            "float16": exact or walk.dtype == np.float32,
        }
        if folds.get(self.dtype, False):
            return walk.with_(dtype=np.dtype(self.dtype))
        return None


@cache
def _kernel(before: np.dtype[Any], after: np.dtype[Any]) -> str:
    """Return the text of the pixel of a kernel that makes one dtype of another."""
    if after.kind == "f" or before.kind == "b" or before == after:
        if before == np.float64 or before.kind in "iub":
            exact = ""
        else:
            exact = "(float)"
        if after == np.float16:
            text = "store(to + channel, (float)value);"
        else:
            text = f"to[channel] = (Out){exact}value;"
        return KERNEL.replace("CAST", text)
    if before.kind == "f":
        limits = [np.iinfo(after)]
    else:
        limits = [np.iinfo(after), np.iinfo(before)]
    low, high = max(limit.min for limit in limits), min(limit.max for limit in limits)
    text = BOUND
    if before.kind == "f":
        text = ROUND
    text = text.replace("LOW", _literal(low)).replace("HIGH", _literal(high))
    return KERNEL.replace("CAST", text)


def _literal(number: int) -> str:
    """Return a whole number in C."""
    if number < 0:
        return f"({number + 1}LL - 1)"
    return f"{number}ULL"


def _to_integer(xp: ModuleType, x: Any, dtype: np.dtype[Any]) -> Any:
    """Round float32 to integers, halves away from zero; bounded before, as the limits of int64 are
    no float32."""
    half = xp.float32(ALMOST_HALF)
    x = xp.where(xp.isnan(x), xp.float32(0), x)
    x = xp.floor(xp.maximum(x, 0) + half) + xp.ceil(xp.minimum(x, 0) - half)
    limits = np.iinfo(dtype)
    low, high = x <= xp.float32(limits.min), x >= xp.float32(limits.max)
    inside = xp.where(low | high, xp.float32(0), x).astype(dtype)
    return xp.where(
        low, xp.asarray(limits.min, dtype), xp.where(high, xp.asarray(limits.max, dtype), inside)
    )
