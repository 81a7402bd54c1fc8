"""The NPY format: a header that says dtype, order and shape, then the elements.

Layout  6 bytes magic, 1 byte major and 1 minor version; the length of the header, little-endian, as
        uint16 (version 1) or uint32 (2 and 3); the header, a Python literal
        ``{'descr': ..., 'fortran_order': ..., 'shape': ...}`` in Latin-1 (1 and 2) or UTF-8 (3),
        padded; then the elements, in C or Fortran order.
Safety  the literal is parsed here and never evaluated; objects (pickles) are refused unread; no
        length is believed before it was compared with the file's.
Accepts the files that ``numpy.load`` accepts: other paddings, a missing trailing comma, Python 2's
        long integers (versions 1 and 2), bytes after the last element, which the readers tell
        about; another array there is refused.
Source  numpy/lib/_format_impl.py, https://numpy.org/neps/nep-0001-npy-format.html
"""

from __future__ import annotations

import ast
import math
import os
import re
import shlex
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gpuload.errors import FormatError
from gpuload.spec import LARGEST_NDIM
from gpuload.storage import archive
from gpuload.storage.archive import first_name, unpacking
from gpuload.storage.fileerrors import gzip_error
from gpuload.storage.handles import read_bytes
from gpuload.storage.wildcards import Paths

MAGIC = b"\x93NUMPY"
VERSIONS = {1: ("<H", "latin1"), 2: ("<I", "latin1"), 3: ("<I", "utf-8")}
HEAD_BYTES = 1024  # read at once; nearly all headers are shorter
LARGEST_HEADER_BYTES = (
    1 << 20
)  # of a structure with tens of thousands of fields; nothing real is longer
ALIGN_BYTES = 64  # where elements begin in files that are written
DEEPEST = 64  # structures within structures; nothing real is deeper
LARGEST_DATA_BYTES = 2**63 - 1
KEYS = {"descr", "fortran_order", "shape"}
TOKEN = re.compile(
    r"""[ \t\n\r\f]*(?:(?P<mark>[{}()\[\]:,])|(?P<text>[uU]?(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))"""
    r"""|(?P<number>-?(?:0|[1-9]\d*))(?P<long>L?)(?![\w.])|(?P<word>True|False)(?!\w)|(?P<end>$)|(?P<bad>.))""",
    re.ASCII | re.DOTALL,
)
OLD_BYTES = re.compile(r"([<>|=]?)a(\d*)")  # the name of S in NumPy before version 2
CLOSING = {"{": "}", "(": ")", "[": "]"}


@dataclass(frozen=True)
class Header:
    """The header of an NPY file.

    Attributes:
        dtype: the dtype as stored, with its byte order.
        fortran: True if the elements are in Fortran order; False where that makes no difference.
        shape: the shape of the array.
        offset_bytes: the byte of the file where the elements begin.
    """

    dtype: np.dtype[Any]
    fortran: bool
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def data_bytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def joined_arrays(path: str, num_bytes: int) -> FormatError:
    """Return the error for a file of several arrays, of which the first is followed by
    ``num_bytes`` bytes."""
    new_path = f"{path.removesuffix('.npy')}-joined.npy"
    return FormatError(
        f"{path} holds several arrays one behind the other, which is not supported",
        cause=f"behind its first array are {num_bytes} bytes that begin as an NPY file does: "
        "numpy.save was called "
        "again with the same open file; numpy.load gives the first array alone",
        remedy="join them in Python: import numpy, os; "
        f"file = open({path!r}, 'rb'); size = os.path.getsize({path!r}); "
        "arrays = [numpy.load(file) for _ in iter(lambda: file.tell() < size, False)]; "
        f"numpy.save({new_path!r}, numpy.concatenate(arrays))",
    )


class ObjectsError(FormatError):
    """An NPY file holds Python objects."""


class _Refusal(Exception):
    """Why a header is refused: cause and remedy."""

    def __init__(
        self, cause: str, remedy: str = "write it with numpy.save", *, objects: bool = False
    ) -> None:
        super().__init__(cause)
        self.cause, self.remedy = cause, remedy
        self.kind = ObjectsError if objects else FormatError


def read_header(
    path: str, size_bytes: int, head: bytes, read_bytes_to: Callable[[int], bytes] | None = None
) -> Header:
    """Return the header of a file, checked against its size.

    Args:
        path: the file, for messages, and for the rare header that is longer than ``head``.
        size_bytes: its size.
        head: its first HEAD_BYTES bytes, or all where it has fewer.
        read_bytes_to: returns so many of the first bytes, for an array that does not lie in a file
            of its own.

    Raises:
        FormatError: it is no NPY file, holds objects, or is shorter than it says.
    """
    try:
        text, version, offset = _header_text(
            path, size_bytes, head, read_bytes_to or partial(read_bytes, path)
        )
        header = _parse(text, version, offset)
        if offset + header.data_bytes > size_bytes:
            raise _Refusal(
                f"the header says {header.data_bytes} bytes of data ({header.dtype} "
                f"{header.shape}), "
                f"the file has {size_bytes - offset} after its header",
                "it was cut short or is still being written: copy it again",
            )
        return header
    except _Refusal as refusal:
        raise refusal.kind(
            f"{path} is no NPY file to read", cause=refusal.cause, remedy=refusal.remedy
        ) from None


def end_of_header(head: bytes) -> int:
    """Return where the header of an NPY file ends that begins so, which may be beyond ``head``; 0
    for other files."""
    if not head.startswith(MAGIC) or len(head) < 8 or head[6] not in VERSIONS:
        return 0
    length_format, _ = VERSIONS[head[6]]
    start = 8 + struct.calcsize(length_format)
    if len(head) >= start:
        return start + int(struct.unpack_from(length_format, head, 8)[0])
    return 0


@contextmanager
def naming_conversion(paths: Paths) -> Iterator[None]:
    """Add to the error for files of Python objects the calls that convert them.

    Args:
        paths: the files, as the user named them.
    """
    try:
        yield
    except ObjectsError as error:
        if isinstance(paths, (list, tuple)) and len(paths) == 1:
            path_argument = paths[0]
        else:
            path_argument = paths
        if isinstance(path_argument, (str, os.PathLike)):
            path = os.fspath(path_argument)
        else:
            path = ""
        error.remedy += (
            "; if you trust its writer, this makes a file without objects, with a record of each "
            "dict or tuple: "
            f"gl.convert({repr(path) if path else 'paths'}, 'records.npz', allow_pickle=True), or "
            f"gpuload convert --allow-pickle {shlex.quote(path) if path else 'FILES'} records.npz"
        )
        raise


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a file with elements in C order.

    It has the lowest version that can hold it, and ends in spaces and a line end, so that the
    elements begin at a multiple of 64 bytes.
    """
    descr = np.lib.format.dtype_to_descr(dtype)
    text = repr({"descr": descr, "fortran_order": False, "shape": shape})
    for version, (length_format, encoding) in VERSIONS.items():
        try:
            raw = text.encode(encoding)
        except UnicodeEncodeError:
            continue
        start = 8 + struct.calcsize(length_format)
        body = raw + b" " * (-(start + len(raw) + 1) % ALIGN_BYTES) + b"\n"
        # The lowest version that holds it: NumPy before 1.9 reads version 1 alone.
        if len(body) < 1 << 8 * struct.calcsize(length_format):
            return MAGIC + bytes((version, 0)) + struct.pack(length_format, len(body)) + body
    raise FormatError(
        f"a header of {len(text)} characters",
        cause="no NPY file can hold it",
        remedy="write fewer fields",
    )


def to_literal(header: Header) -> str:
    """Return a header as the literal that it has in a file."""
    descr = np.lib.format.dtype_to_descr(header.dtype)
    return repr({"descr": descr, "fortran_order": header.fortran, "shape": header.shape})


def from_literal(text: str) -> Header:
    """Return the header of a literal; its ``offset_bytes`` is 0.

    Raises:
        ValueError: it is none; says why.
    """
    try:
        return _parse(text.encode(), 3, 0)
    except (_Refusal, UnicodeEncodeError) as refusal:
        raise ValueError(str(refusal)) from None


def _header_text(
    path: str, size_bytes: int, head: bytes, read_bytes_to: Callable[[int], bytes]
) -> tuple[bytes, int, int]:
    """Return the header's text, the version and where the data begins."""
    if not head:
        raise _Refusal("the file is empty", "it was never written: make it again")
    if (error := gzip_error(path, head)) is not None:
        raise error
    if head.startswith(archive.MAGIC):
        if not path.lower().endswith(".npz"):
            raise _Refusal(
                "it begins with the bytes of a ZIP archive", unpacking(path, [first_name(head)])
            )
        raise _Refusal(
            "it is an archive of arrays, as numpy.savez writes it, and gl.npy reads files of one "
            "array each",
            f"open it with gl.npz({path!r})",
        )
    if not head.startswith(MAGIC):
        cause = f"an NPY file begins with {MAGIC!r}, this one with {head[:6]!r}"
        raise _Refusal(cause, "call gl.open(path), which finds out the format")
    if len(head) < 8 or head[6] not in VERSIONS or head[7] != 0:
        raise _Refusal(
            f"its version is {'.'.join(map(str, head[6:8]))}; there are 1.0, 2.0 and 3.0"
        )
    length_format, _ = VERSIONS[head[6]]
    start = 8 + struct.calcsize(length_format)
    if len(head) < start:
        raise _Refusal(
            f"it has only {len(head)} bytes, fewer than a header", "it was cut short: copy it again"
        )
    (length,) = struct.unpack_from(length_format, head, 8)
    if start + length > size_bytes:
        raise _Refusal(
            f"its header of {length} bytes does not fit into the file of {size_bytes}",
            "copy it again",
        )
    # Before it is read: the length comes from the file.
    if length > LARGEST_HEADER_BYTES:
        raise _Refusal(f"its header of {length} bytes is longer than {LARGEST_HEADER_BYTES}")
    if start + length > len(head):
        head = read_bytes_to(start + length)
    if start + length > len(head):
        raise _Refusal(
            "its bytes end inside its header", "it was cut short or damaged: copy it again"
        )
    return head[start : start + length], head[6], start + length


@lru_cache(maxsize=1024)  # files of one set have the same header; 20,000 of them are parsed once
def _parse(text: bytes, version: int, offset: int) -> Header:
    try:
        header_text = text.decode(VERSIONS[version][1])
    except UnicodeDecodeError:
        raise _Refusal("its header is not UTF-8, as version 3.0 must be") from None
    values = _Literal(header_text, longs=version < 3).value()
    if not isinstance(values, dict) or values.keys() != KEYS:
        raise _Refusal(f"its header must be a dict of {sorted(KEYS)}, it is {header_text[:200]!r}")
    shape, fortran = _shape(values["shape"]), values["fortran_order"]
    if not isinstance(fortran, bool):
        raise _Refusal(f"fortran_order is {fortran!r}, neither True nor False")
    dtype = _dtype(values["descr"])
    # Axes of length 0 are left out: NumPy refuses a shape if its other axes overflow, although it
    # has no elements.
    if (
        math.prod(length for length in shape if length) * max(dtype.itemsize, 1)
        > LARGEST_DATA_BYTES
    ):
        raise _Refusal(f"its shape {shape} of {dtype} is more than 2**63 bytes")
    # With one axis longer than 1 both orders are the same bytes; C order is read row by row in one
    # piece.
    return Header(dtype, fortran and sum(length != 1 for length in shape) > 1, shape, offset)


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or not all(
        type(length) is int and length >= 0 for length in shape
    ):
        raise _Refusal(
            f"its shape is {str(shape)[:200]}, not a tuple of whole numbers of at least 0"
        )
    if len(shape) > LARGEST_NDIM:
        raise _Refusal(f"its shape has {len(shape)} axes; NumPy has at most {LARGEST_NDIM}")
    return shape


def _dtype(descr: Any) -> np.dtype[Any]:
    try:
        dtype = np.lib.format.descr_to_dtype(_with_current_names(descr))
    except (
        TypeError,
        ValueError,
        SyntaxError,
        KeyError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise _Refusal(
            f"its dtype {str(descr)[:200]!r} is none that NumPy has here: {error}"
        ) from None
    if dtype.hasobject:
        raise _Refusal(
            f"its dtype {dtype} holds Python objects (a pickle), which could run any code when "
            "read",
            "store numbers, bytes or text of fixed length",
            objects=True,
        )
    # NumPy moves the axes of a subarray into the shape, so such a header is of no array that it
    # writes.
    if dtype.subdtype is not None or (dtype.fields is not None and not dtype.names):
        raise _Refusal(f"its dtype {dtype} is none that an array can have")
    return dtype


def _with_current_names(descr: Any) -> Any:
    """Return the description of a dtype with the present name of bytes, S, of which NumPy does not
    warn.

    The warning cannot be silenced in one thread: ``warnings.catch_warnings`` changes the warnings
    of all threads.
    """
    if isinstance(descr, str):
        if OLD_BYTES.fullmatch(descr):
            return OLD_BYTES.sub(r"\1S\2", descr)
        return descr
    if isinstance(descr, list):
        return [
            (field[0], _with_current_names(field[1]), *field[2:]) if _is_field(field) else field
            for field in descr
        ]
    if isinstance(descr, tuple) and descr:
        return (_with_current_names(descr[0]), *descr[1:])
    return descr


def _is_field(field: Any) -> bool:
    return isinstance(field, tuple) and len(field) > 1


class _Literal:
    """A parser of the literals that headers are made of: dict, tuple, list, text, whole number,
    True, False."""

    def __init__(self, text: str, *, longs: bool) -> None:
        self.text, self.place, self.longs = text, 0, longs
        self.kind, self.token = "", ""
        self._next()

    def value(self) -> Any:
        """Return the value of the whole text."""
        value = self._value(DEEPEST)
        self._expect("end")
        return value

    def _next(self) -> None:
        match = TOKEN.match(self.text, self.place)
        if match is None or match.lastgroup == "bad" or (match["long"] and not self.longs):
            raise self._refuse()
        if match.lastgroup == "long":
            self.kind = "number"
        else:
            self.kind = str(match.lastgroup)
        self.token, self.place = match[self.kind], match.end()

    def _refuse(self) -> _Refusal:
        around = self.text[max(0, self.place - 20) : self.place + 20]
        return _Refusal(
            f"its header is no plain literal near {around!r}; anything else is not evaluated"
        )

    def _expect(self, token: str) -> None:
        if token not in (self.token, self.kind):
            raise self._refuse()
        if self.kind != "end":
            self._next()

    def _value(self, depth: int) -> Any:
        kind, token = self.kind, self.token
        if depth == 0 or kind == "end":
            raise self._refuse()
        self._next()
        if kind == "mark" and token in CLOSING:
            return self._collection(token, depth - 1)
        if kind == "text":
            return self._text(token)
        # No length has more digits, and ``int`` refuses thousands of them with an error of its own
        # (Python 3.11).
        if kind == "number" and len(token) <= 20:
            return int(token)
        if kind == "word":
            return token == "True"
        raise self._refuse()

    def _collection(self, opening: str, depth: int) -> Any:
        items: list[Any] = []
        commas = 0
        while self.token != CLOSING[opening] or self.kind != "mark":
            if commas != len(items):
                raise self._refuse()
            items.append(self._pair(depth) if opening == "{" else self._value(depth))
            if self.kind == "mark" and self.token == ",":
                commas += 1
                self._next()
        self._next()
        if opening == "(":
            if commas or not items:
                return tuple(items)
            return items[0]
        if opening == "{":
            return dict(items)
        return items

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self._value(depth)
        self._expect(":")
        if not isinstance(key, str):
            raise self._refuse()
        return key, self._value(depth)

    def _text(self, token: str) -> str:
        try:
            return str(ast.literal_eval(token))  # one quoted text and nothing else, for its escapes
        except (ValueError, SyntaxError):
            raise self._refuse() from None
