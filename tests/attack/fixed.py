"""Fixed-length records of any dtype, header and footer: what ``numpy.frombuffer`` finds, or an
error of ours."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import gpuload as gl
from tests.attack.examples import examples
from tests.attack.hunt import Report, hunt, outcome
from tests.sources.npyfiles import fields_of

PLAIN = st.one_of(
    npst.boolean_dtypes(), npst.integer_dtypes(endianness="?"), npst.floating_dtypes(endianness="?"),
    npst.complex_number_dtypes(endianness="?", sizes=(64, 128)), npst.byte_string_dtypes(max_len=9),
    npst.datetime64_dtypes(endianness="?"), npst.timedelta64_dtypes(endianness="?"), st.just(np.dtype("V3")),
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(0, 9),
    st.integers(-(2**70), 2**70),
    st.sampled_from([True, 1.0, None, "1", np.int8(3)]),
)
DTYPES = st.one_of(
    PLAIN,
    npst.nested_dtypes(PLAIN, max_itemsize=60),
    st.sampled_from(["u1", "O", "f4,O", "x", "S0", "", 3]),
)
FILES = st.tuples(
    DTYPES,
    st.integers(0, 9),
    NUMBERS,
    NUMBERS,
    st.integers(0, 5),
    st.integers(-3, 40),
    st.integers(0, 99),
)


def attack(seconds: float, seed: int) -> Report:
    """Read files of fixed-length records."""
    return hunt(seconds, seed, trial, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Read one file after the other."""
    return examples(rng, lambda value: _check(folder / "a.bin", *value), FILES)


def _check(
    path: Path,
    dtype: Any,
    seed: int,
    header: Any,
    footer: Any,
    num_records: int,
    extra: int,
    percent: int,
) -> str:
    """Write ``num_records`` records with header and footer, and ``more`` bytes every other time,
    and read them."""
    around = sum(
        int(n) for n in (header, footer) if isinstance(n, (int, np.integer)) and 0 <= n < 100
    )
    itemsize = dtype.itemsize if isinstance(dtype, np.dtype) else 1
    data = np.random.default_rng(seed).bytes(
        max(0, around + itemsize * num_records + (extra if percent < 50 else 0))
    )
    path.write_bytes(data)
    status, result = outcome(_read, path, dtype, header, footer)
    if status == "refused":
        assert percent < 50 or _is_beyond(dtype, header, footer), (
            f"a sound file is refused: {result}"
        )
        return status
    body = data[int(header) : len(data) - int(footer)]
    expected = fields_of(
        np.frombuffer(body, np.dtype(dtype)) if body else np.zeros(0, np.dtype(dtype))
    )
    assert list(result) == list(expected), f"fields {list(result)}, by NumPy {list(expected)}"
    for name, reference in expected.items():
        actual = np.asarray(result[name])
        assert (actual.dtype, actual.shape) == (reference.dtype, reference.shape), (
            f"{name!r}: {actual!r}, by NumPy {reference!r}"
        )
        same = (
            np.array_equal(actual, reference, equal_nan=True)
            if actual.dtype.kind in "fcmM"
            else actual.tobytes() == reference.tobytes()
        )
        assert same, f"{name!r}: {actual!r}, by NumPy {reference!r}"
    return status


def _read(path: Path, dtype: Any, header: Any, footer: Any) -> Any:
    with gl.fixed(path, dtype, header, footer) as source:
        return source.read(range(len(source)))


def _is_beyond(dtype: Any, header: Any, footer: Any) -> bool:
    """Return True for arguments that gpuload says it refuses."""
    counts = all(type(n) in (int, np.int8) and 0 <= n < 100 for n in (header, footer))
    return not counts or not isinstance(dtype, np.dtype) or not _has_bytes(dtype)


def _has_bytes(dtype: np.dtype[Any]) -> bool:
    if dtype.subdtype is not None:
        return math.prod(dtype.shape) > 0 and _has_bytes(dtype.base)
    if dtype.names is not None:
        return bool(dtype.names) and all(_has_bytes(dtype[name]) for name in dtype.names)
    return dtype.itemsize > 0
