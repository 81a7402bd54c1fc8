"""Arguments of ops: checked when the op is made, and kept in one form, so that equal ops are told
alike.

The text of an op is part of a loader's state: ``[1, 2]``, ``(1, 2)`` and an array of them must not
be three ops.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import synonyms
from gpuload.errors import RowError, SpecError
from gpuload.spec import TEXTS, Field

LARGEST_INT = 2**31 - 1
LARGEST_FLOAT = float(np.finfo(np.float32).max)
LARGEST_SIDE = (
    2**24 - 1
)  # pixels: places in an image are float32, which has all whole numbers up to here

Output = dict[str, Any]  # the result of an op, as the user declares it: dtype and shape
OUTPUT_FORMS = "a dtype, (dtype, shape), a Field, a dict with dtype or shape or both, or a dict from names to these"
OUTPUT_EXAMPLE = "out={'dtype': 'float32', 'shape': (None, None, 3)}"


def keep(op: Any, **values: Any) -> None:
    """Set the attributes of a frozen op, in ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(op, name, value)


def refuse(op: Any, name: str, value: Any, demand: str, remedy: str = "") -> SpecError:
    """Return the error for a wrong argument."""
    if demand.startswith(("at ", "less ", "more ")):
        subject = "a number of "
    else:
        subject = ""
    return SpecError(
        f"gl.ops.{type(op).__name__}({name}={value!r})",
        cause=f"{name} must be {subject}{demand}",
        remedy=remedy or f"pass {subject}{demand}",
    )


def whole(op: Any, name: str, value: Any, *, least: int = 1, largest: int = LARGEST_INT) -> int:
    """Return a whole number from ``least`` to ``largest``, by default all that int32 has, as draws
    are int32."""
    if (
        isinstance(value, (bool, np.bool_))
        or not isinstance(value, (int, np.integer))
        or value < least
    ):
        raise refuse(op, name, value, f"a whole number of at least {least}")
    if value > largest:
        raise refuse(op, name, value, f"a whole number of at most {largest}")
    return int(value)


def side(op: Any, name: str, value: Any, *, least: int = 1) -> int:
    """Return a number of pixels along a side of an image."""
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    if (
        name == "height"
        and is_pair
        and all(isinstance(length, (int, np.integer)) for length in value)
    ):
        remedy = f"write gl.ops.{type(op).__name__}({value[0]}, {value[1]}), height and width"
        raise refuse(op, name, value, "a whole number, and so must width", remedy)
    return whole(op, name, value, least=least, largest=LARGEST_SIDE)


def check_sides(op: Any, sides: NDArray[Any]) -> NDArray[Any]:
    """Return the sides of images as they are, ``[N, ...]``, pixels; raises ``RowError`` for one
    that is too long."""
    is_long: NDArray[np.bool_] = np.asarray(sides > LARGEST_SIDE)
    if is_long.any():
        row = int(is_long.reshape(len(sides), -1).any(axis=1).argmax())
        raise RowError(
            row,
            f"{op}: the result would have {' x '.join(f'{side:.0f}' for side in sides[row])} pixels",
            cause=f"a side of an image has at most {LARGEST_SIDE} pixels, up to which float32 counts them",
            remedy="leave the record out with source.select(...), or let the op make smaller images",
        )
    return sides


def number(op: Any, name: str, value: Any) -> float:
    """Return a finite number, within the range of float32, as a float."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise refuse(op, name, value, "a number")
    if not -LARGEST_FLOAT <= value <= LARGEST_FLOAT:
        raise refuse(
            op,
            name,
            value,
            "a number that float32 has: neither infinite nor nan, and within 3.4e38",
        )
    return float(value)


def numbers(op: Any, name: str, value: Any) -> float | tuple[float, ...]:
    """Return one finite number, or a tuple of them for a sequence or a one-dimensional array."""
    if (isinstance(value, Sequence) and not isinstance(value, (str, bytes))) or _is_row(value):
        if not len(value):
            raise refuse(op, name, value, "a number, or one for each channel")
        return tuple(number(op, name, element) for element in value)
    return number(op, name, value)


def probability(op: Any, name: str, value: Any) -> float:
    """Return a probability, 0 to 1."""
    p = number(op, name, value)
    if not 0 <= p <= 1:
        raise refuse(op, name, value, "a probability, 0 to 1")
    return p


def interval(op: Any, name: str, value: Any) -> tuple[float, float]:
    """Return two numbers ``(low, high)`` with 0 < low <= high."""
    pair = numbers(op, name, value)
    if not isinstance(pair, tuple) or len(pair) != 2 or not 0 < pair[0] <= pair[1]:
        raise refuse(op, name, value, "two numbers, low and high, with 0 < low <= high")
    return pair


def spread(op: Any, name: str, value: Any) -> tuple[float, float]:
    """Return two numbers ``(low, high)`` with low <= high; one number at least 0 is
    ``(-value, value)``."""
    pair = numbers(op, name, value)
    if not isinstance(pair, tuple):
        pair = (-pair, pair)
    if len(pair) != 2 or not pair[0] <= pair[1]:
        raise refuse(
            op,
            name,
            value,
            "a number of at least 0, or two numbers, low and high, with low <= high",
        )
    return pair


def amounts(op: Any, name: str, value: Any) -> tuple[float, float]:
    """Return two numbers ``(low, high)`` with 0 <= low <= high; one number is both."""
    pair = numbers(op, name, value)
    if not isinstance(pair, tuple):
        pair = (pair, pair)
    if len(pair) != 2 or not 0 <= pair[0] <= pair[1]:
        raise refuse(
            op, name, value, "a number of at least 0, or two, low and high, with 0 <= low <= high"
        )
    return pair


def between(pair: Any, u: Any) -> Any:
    """Return the number ``low + u * (high - low)`` of a pair for each number of ``u`` in [0, 1)."""
    low, high = pair
    return low + u * (high - low)


def low_and_high(op: Any, low: Any, high: Any) -> tuple[float, float]:
    """Return the arguments ``low`` and ``high`` with 0 <= low <= high."""
    pair = number(op, "low", low), number(op, "high", high)
    if pair[0] < 0:
        raise refuse(op, "low", low, "at least 0")
    if pair[1] < pair[0]:
        raise refuse(op, "high", high, f"at least low, which is {pair[0]}")
    return pair


def flag(op: Any, name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise refuse(op, name, value, "True or False")
    return bool(value)


def choice(op: Any, name: str, value: Any, choices: Iterable[str], *, beside: str = "") -> str:
    """Return one of a few words; ``beside`` says which others may be passed, ``", or a dict"``."""
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        raise refuse(op, name, value, f"one of {words}{beside}", _likely(value, words))
    return value


def _likely(value: Any, words: list[str]) -> str:
    """Return the remedy that names the word which is meant by another one; "" if none is known."""
    text = str(value).rpartition(".")[2].lower()  # "torch.float32", "InterpolationMode.BILINEAR"
    texts = {text, synonyms.VALUES.get(text, text), text.removeprefix("n")}
    near = [word for word in words if word.lower() in texts] or difflib.get_close_matches(
        text, words, 1
    )
    return f"write {near[0]!r}" if near else ""


def dtype_name(op: Any, name: str, value: Any, names: Iterable[str]) -> str:
    """Return the NumPy name of a dtype, ``"float32"`` say, that is one of ``names``."""
    words = list(names)
    dtype = _dtype(op, name, value, words)
    if dtype is None or dtype.name not in words:
        raise refuse(op, name, value, f"one of {words}", _likely(value, words))
    return str(dtype.name)


def is_bfloat16(value: Any) -> bool:
    """Return True for bfloat16: its name, or the dtype that the package ml_dtypes adds to NumPy."""
    if isinstance(value, str):
        dtype_name = value
    elif isinstance(value, type):
        dtype_name = value.__name__
    else:
        dtype_name = ""
    return "bfloat16" in (dtype_name, getattr(value, "name", ""))


def _dtype(op: Any, name: str, value: Any, words: list[str]) -> np.dtype[Any] | None:
    """Return a dtype, None if it is none; raises ``SpecError`` for a name that leaves open how many
    bits it has."""
    if isinstance(value, str):
        dtype_name = value
    elif isinstance(value, type):
        dtype_name = value.__name__
    else:
        dtype_name = ""
    if is_bfloat16(value):
        raise SpecError(
            f"gl.ops.{type(op).__name__}({name}='bfloat16')",
            cause="neither NumPy nor CuPy nor DALI has bfloat16",
            remedy="write 'float32' here, and gl.ops.Cast('bfloat16') behind it, or cast in the training step: "
            "tf.cast(images, tf.bfloat16)",
        )
    if (
        dtype_name
        and not dtype_name.startswith("bool")
        and not any(letter.isdigit() for letter in dtype_name)
    ):
        near = [
            word for word in words if word.rstrip("0123456789") == dtype_name
        ] or words  # "float" has 64 in NumPy
        likely = next((word for word in ("float32", "int32", "uint8") if word in near), near[0])
        demand = f"a dtype that says how many bits it has, one of {near}"
        raise refuse(op, name, value, demand, f"write {likely!r}, say")
    if isinstance(value, (np.generic, np.ndarray)):  # which NumPy takes for their own dtype
        return None
    try:
        return None if value is None else np.dtype(value)
    except (
        TypeError,
        ValueError,
        SyntaxError,
    ):  # NumPy parses "(2" and raises the error of its parser
        return None


def output(op: Any, value: Any) -> Output | None:
    """Return the argument ``out`` for one field: a dict of ``dtype`` and ``shape``, either of which
    may be missing.

    Args:
        op: for the error.
        value: such a dict; a dtype; ``(dtype, shape)``; a ``Field``: its dtype and shape count;
            or None, as it is.
    """
    if value is None:
        return None
    value = _as_declaration(value)
    if not isinstance(value, Mapping) or not set(value) <= {"dtype", "shape"}:
        raise refuse(op, "out", value, OUTPUT_FORMS, f"write {OUTPUT_EXAMPLE}")
    declaration: Output = {}
    name = value.get("dtype")
    if name is str or name is bytes:
        name = name.__name__
    if isinstance(name, str) and name in TEXTS:
        declaration["dtype"] = name
    elif "dtype" in value:
        dtype = _dtype(op, "out", value["dtype"], ["uint8", "int32", "int64", "float32"])
        if dtype is None or dtype.kind in "OV":
            raise refuse(
                op, "out", value, "a dict whose dtype is one of NumPy's", f"write {OUTPUT_EXAMPLE}"
            )
        declaration["dtype"] = dtype.name
        if dtype.kind not in "buifc":
            declaration["dtype"] = dtype.newbyteorder("=").str
    if "shape" in value:
        lengths = value["shape"]
        if not isinstance(lengths, (tuple, list)) or not all(map(_is_length, lengths)):
            demand = "a dict whose shape is a tuple of lengths, None where they vary"
            raise refuse(op, "out", value, demand, f"write {OUTPUT_EXAMPLE}")
        declaration["shape"] = tuple(None if side is None else int(side) for side in lengths)
    return declaration


def _as_declaration(value: Any) -> Any:
    """Return a declaration of `output` as a dict where it is another of its forms; others as they
    are."""
    if isinstance(value, Field):
        dtype = value.text or value.dtype
        if value.shape is None:
            return {"dtype": dtype}
        return {"dtype": dtype, "shape": value.shape}
    if isinstance(value, (str, type, np.dtype)):
        return {"dtype": value}
    if isinstance(value, tuple) and len(value) == 2:
        return {"dtype": value[0], "shape": value[1]}
    return value


def outputs(op: Any, value: Any) -> dict[str, Output] | None:
    """Return the argument ``out`` by the names of fields; None where it is for one field, see
    ``output``."""
    if not isinstance(value, Mapping) or set(value) <= {"dtype", "shape"}:
        return None
    if not all(isinstance(name, str) and name for name in value):
        raise refuse(op, "out", value, OUTPUT_FORMS, f"write {OUTPUT_EXAMPLE}")
    for name, declaration in value.items():
        if isinstance(declaration, Field) and declaration.name != name:
            raise refuse(
                op,
                "out",
                value,
                f"a dict whose fields have its names; {name!r} is the field {declaration.name!r}",
            )
    return {name: output(op, declaration) or {} for name, declaration in value.items()}


def declared(out: Output, field: Field) -> Field:
    """Return a field after an op with a declared result; a part that is not declared stays."""
    axes = field.axes if "shape" not in out else ""
    shape, name = out.get("shape", field.shape), out.get("dtype")
    if name is None:
        text = field.text
    elif name in TEXTS:
        text = name
    else:
        text = ""
    return field.with_(
        dtype=declared_dtype(out, field.dtype), shape=shape, axes=axes, encoded=False, text=text
    )


def declared_dtype(out: Output, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that an op says it makes; without a word ``dtype``."""
    name = out.get("dtype")
    if name is None:
        return dtype
    if name in TEXTS:
        return np.dtype(object)
    return np.dtype(name)


def field_names(op: Any, name: str, value: Any) -> str | tuple[str, ...] | None:
    """Return a field name, or a tuple of them, each once, for a tuple or list; None as it is."""
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, (tuple, list)):
        names = tuple(value)
    else:
        names = ()
    if (
        not names
        or not all(isinstance(text, str) and text for text in names)
        or len(set(names)) < len(names)
    ):
        raise refuse(
            op, name, value, "a field name, or a tuple of them, each once", "write on='image', say"
        )
    return names


def by_field(
    op: Any, name: str, value: Any, check: Callable[[Any, str, Any], Any], default: Any
) -> Any:
    """Return an argument that may differ from field to field: a value, or a dict of them by the
    names of fields.

    Entries that equal the default are left out; if none is left, the default itself is returned.
    """
    if not isinstance(value, Mapping):
        return check(op, name, value)
    wrong = [field for field in value if not isinstance(field, str)]
    if wrong:
        raise refuse(op, name, value, "a value, or a dict from field names to values")
    values = {field: check(op, name, entry) for field, entry in value.items()}
    return {field: entry for field, entry in values.items() if entry != default} or default


def _is_length(value: Any) -> bool:
    return value is None or (
        isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 0
    )


def _is_row(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1
