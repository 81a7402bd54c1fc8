"""TFRecord files of tf.Example, as TensorFlow, DALI and `gl.tfrecord` read them.

Fields  whole numbers of 64 bits, or of fewer (widened, values stay), are int64 lists; float32, and
        float16 (widened), float lists; bytes, text (UTF-8) and encoded images bytes lists; uint8
        with axes is one value of its bytes in C order, as decode_raw takes them. Shapes are not in
        the file: the reader gives them.
Raw     ``raw=`` writes the elements of a field of any dtype as one value of bytes, little-endian,
        in C order.
Tensor  ``tensors=`` writes a field as serialized tensors, as ``tf.io.serialize_tensor`` makes them:
        dtype and shape of each record are in the file, so that everything of NumPy's own that
        TensorFlow has can be held, of any shape.
Bytes   the fields in the order of the source, numbers packed: the same records give the same file.
Source  tensorflow/core/lib/io/record_writer.h; example.proto, feature.proto, tensor.proto,
        types.proto; https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import MissingPackageError
from gpuload.formats.tfrecord import checksums
from gpuload.formats.writing import Records, Refusal, Writer, has_padding, no_utf8, stored_dtype
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Fields, Values
from gpuload.spec import Field, Spec

BYTES, FLOATS, INTS = 1, 2, 3  # the lists of a Feature, by the number of their field
TENSOR_TYPES = {  # types.proto
    "f4": 1, "f8": 2, "i4": 3, "u1": 4, "i2": 5, "i1": 6, "c8": 8, "i8": 9, "b1": 10, "u2": 17, "c16": 18, "f2": 19,
    "u4": 22, "u8": 23,
}  # fmt: skip


def writer(raw: Sequence[str] = (), tensors: Sequence[str] = ()) -> Writer:
    """Return the writer of TFRecord files.

    Args:
        raw: the fields that are written as raw bytes.
        tensors: the fields that are written as serialized tensors.
    """
    ways = {**dict.fromkeys(raw, "raw"), **dict.fromkeys(tensors, "tensor")}

    def way(field: Field) -> str:
        return ways.get(field.name) or _way(field)

    return Writer(
        refusal=lambda field: _refusal(field, ways.get(field.name, "")),
        write=lambda path, records: _write(path, records, way),
        differs=lambda path, records: _differs(path, records, way),
        call=lambda path, spec: _call(path, spec, way),
        about={"raw": sorted(raw), "tensors": sorted(tensors)},
        notes=lambda field: _note(field, way(field)),
    )


def suggest(spec: Spec) -> str:
    """Return the call of `gl.convert` that writes all fields, some of them as serialized tensors;
    "" if none does."""
    with suppress(MissingPackageError):
        tensors = [field.name for field in spec if writer().refusal(field)]
        if tensors and not any(writer(tensors=tensors).refusal(field) for field in spec):
            options = " ".join(f"--tensor {name}" for name in tensors)
            return (
                f"all fields fit by gl.convert(..., 'out.tfrecord', tensors={tensors}) ({options})"
            )
    return ""


def _way(field: Field) -> str:
    """Return the encoding of a field: ``"bytes"``, ``"raw"``, ``"ints"`` or ``"floats"``."""
    if field.encoded or field.text or field.dtype.kind in "SUV":
        return "bytes"
    if field.dtype == np.uint8 and field.shape:
        return "raw"
    if field.dtype.kind == "f":
        return "floats"
    return "ints"


def _refusal(field: Field, way: str) -> Refusal | None:
    """Return why a field cannot be written in a way, and the remedy; None if it can."""
    if any(0xD800 <= ord(char) < 0xE000 for char in field.name):
        return (
            "its name holds half of a surrogate pair, and keys are UTF-8",
            "rename it: source.rename(...)",
        )
    if field.text:
        return _text_refusal(field, way)
    raw, tensor = f"raw=[{field.name!r}] (--raw)", f"tensors=[{field.name!r}] (--tensor)"
    has_tensor_type = field.dtype.str[1:] in TENSOR_TYPES
    if way == "tensor":
        if has_tensor_type:
            return None
        return (
            f"TensorFlow's tensors have no dtype for {field.dtype} that bytes make up",
            f"choose {raw}, or NPY",
        )
    if not field.uniform and not field.ragged:
        return (
            "only a first axis may vary: a list has no shape",
            f"choose {tensor}, which keeps the shape of each record",
        )
    if has_padding(field.dtype):
        return (
            f"{field.dtype} is of this kind of machine alone, and some of its bytes mean nothing",
            "choose NPY",
        )
    if way == "raw":
        if field.encoded:
            return ("encoded images are bytes already", "leave it out of raw=")
        return None
    return _list_refusal(field, raw, f"{tensor}, {raw}" if has_tensor_type else raw)


def _text_refusal(field: Field, way: str) -> Refusal | None:
    if way:
        return "text of any length has no elements of one size", "leave it out of raw= and tensors="
    if len(field.shape or ()) > 1:
        return "lists of texts have one axis", "write one axis of texts"
    return None


def _list_refusal(field: Field, raw: str, ways: str) -> Refusal | None:
    """Return why a field cannot be a list of tf.Example; ``ways`` are the arguments that write it."""
    kind, num_axes = field.dtype.kind, len(field.shape or ())
    if kind in "SU":
        if num_axes > 1:
            return ("lists of texts have one axis", "write one axis of texts")
        return None
    if kind == "V":
        if field.shape == ():
            return None
        return "raw bytes with axes have no form in tf.Example", f"choose {raw}"
    if (kind in "biu" and field.dtype != np.uint64) or field.dtype in (np.float32, np.float16):
        return None
    have = "tf.Example has int64, float32 and bytes"
    if kind in "mM":
        return (
            f"{have}, and no times",
            f"choose {raw}: the int64 that they are counted in; or NPY, which has them",
        )
    remedy = f"choose {ways}, or NPY, which has this dtype"
    if ways != raw:
        return f"{have}, which cannot hold all of its values", remedy
    return f"{have}, which cannot hold it", remedy


def _note(field: Field, way: str) -> str:
    if way == "ints" and field.dtype != np.int64:
        return "stored as int64"
    if way == "floats" and field.dtype != np.float32:
        return "stored as float32"
    if way == "raw":
        return f"stored as bytes of {stored_dtype(field.dtype).str}"
    if way == "tensor":
        return "stored as serialized tensors"
    if field.dtype.kind == "U":
        return "stored as UTF-8"
    return ""


def _call(path: str, spec: Spec, way: Callable[[Field], str]) -> str:
    return f"gl.tfrecord({path!r}, {{{', '.join(f'{field.name!r}: {_feature(field, way(field))}' for field in spec)}}})"


def _feature(field: Field, way: str) -> str:
    """Return the feature of a field for `gl.tfrecord`, as Python's text."""
    dtype, shape = stored_dtype(field.dtype).str, field.shape
    if field.encoded:
        return "gl.Image()"
    if way in ("raw", "tensor"):
        return f"gl.{way.title()}({dtype!r}, {shape})"
    if field.text:
        kind = "S"
        if field.text == "str":
            kind = "str"
        if shape == ():
            return repr(kind)
        return f"({kind!r}, {shape})"
    if field.dtype.kind == "V":
        return f"gl.Raw('|u1', ({field.dtype.itemsize},))"
    if way == "floats":
        dtype = "f4"
    if field.dtype.kind == "U":  # of UTF-8, in which a character has at most four bytes
        dtype = f"S{field.dtype.itemsize}"
    if shape == ():
        return repr(dtype.lstrip("|<"))
    return f"({dtype.lstrip('|<')!r}, {shape})"


def _write(path: str, records: Records, way: Callable[[Field], str]) -> None:
    with open(path, "xb") as file:
        for numbers, fields in records.chunks():
            file.write(b"".join(framed(_payloads(records, numbers, fields, way))))


def _differs(path: str, records: Records, way: Callable[[Field], str]) -> str:
    """Return how the bytes of a file, checksums and all, differ from those of the records, which
    are read again."""
    with open(path, "rb") as file:
        for numbers, fields in records.chunks():
            # The same bytes again, from the records: the encoding has no choices, so equal files
            # are equal records.
            expected = b"".join(framed(_payloads(records, numbers, fields, way)))
            if file.read(len(expected)) != expected:
                first = int(numbers[0]) - records.begin
                return f"the bytes of records {first} to {first + numbers.size - 1} of the file are others"
        if file.read(1):
            return "there is more behind the last record"
        return ""


def _payloads(
    records: Records, numbers: NDArray[np.int64], fields: Fields, way: Callable[[Field], str]
) -> list[bytes]:
    try:
        return list(examples(records.spec, fields, numbers.size, way))
    except UnicodeEncodeError as error:
        row = next((row for row, texts in enumerate(_texts(fields)) if error.object in texts), 0)
        raise no_utf8(records.source.where(int(numbers[row])), error) from None


def _texts(fields: Fields) -> Iterator[list[str]]:
    """Give the texts of each record."""
    columns = [
        values
        for values in fields.values()
        if isinstance(values, np.ndarray) and values.dtype.kind == "U"
    ]
    for row in zip(*columns, strict=True):
        yield [text for value in row for text in np.ravel(value).tolist()]


def framed(payloads: list[bytes]) -> Iterator[bytes]:
    """Give records as they stand in a file: length, checksum of the length, payload, checksum of
    the payload."""
    lengths = np.array([len(payload) for payload in payloads], np.int64)
    ends = np.cumsum(lengths)
    # Of all payloads of a chunk in one call: Python's calls would take longer than the checksums.
    sums = checksums.of_pieces(np.frombuffer(b"".join(payloads), np.uint8), ends - lengths, ends)
    heads = np.empty(len(payloads), [("length", "<u8"), ("sum", "<u4")])
    heads["length"], heads["sum"] = lengths, checksums.of_lengths(lengths)
    raw_heads, raw_sums = heads.tobytes(), sums.astype("<u4").tobytes()
    for number, payload in enumerate(payloads):
        yield raw_heads[12 * number : 12 * number + 12]
        yield payload
        yield raw_sums[4 * number : 4 * number + 4]


def examples(
    spec: Spec, fields: Fields, count: int, way: Callable[[Field], str]
) -> Iterator[bytes]:
    """Yield records as serialized tf.Examples."""
    entries = [list(_entries(field, fields[field.name], count, way(field))) for field in spec]
    for parts in zip(*entries, strict=True):
        features = b"".join(parts)
        yield b"\n" + varint(len(features)) + features  # Example.features = 1


def _entries(field: Field, values: Values, count: int, way: str) -> Iterator[bytes]:
    """Yield for each record the entry of a field in the map of features,
    ``Features.feature = 1``."""
    if way in ("ints", "floats"):
        if way == "ints":
            lists, kind = (_ints(values, count), INTS)
        else:
            lists, kind = (_floats(values, count), FLOATS)
        for payload in lists:
            yield _head(field.name, kind, len(payload)) + payload
    elif (field.text or field.dtype.kind in "SU") and way == "bytes" and field.shape != ():
        for texts in values:
            items = b"".join(
                b"\n" + varint(len(text)) + text for text in map(_utf8, texts.tolist())
            )
            yield _list_head(field.name, BYTES, len(items)) + items
    else:
        blobs = {"bytes": _blobs, "raw": _raw, "tensor": _tensors}[way](field, values, count)
        for blob in blobs:
            yield _head(field.name, BYTES, len(blob)) + blob


def _blobs(field: Field, values: Values, count: int) -> Iterator[bytes]:
    if field.encoded:
        return (value.tobytes() for value in values)
    return map(_utf8, values.tolist())  # type: ignore[union-attr]  # an array: the field has no axes


def _utf8(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode()
    return bytes(text)


def _raw(field: Field, values: Values, count: int) -> Iterator[bytes]:
    dtype = stored_dtype(field.dtype)
    return (np.ascontiguousarray(value, dtype).tobytes() for value in values)


def _tensors(field: Field, values: Values, count: int) -> Iterator[bytes]:
    """Yield records as TensorProto: dtype = 1, tensor_shape = 2, tensor_content = 4."""
    dtype = stored_dtype(field.dtype)
    begin = b"\x08" + varint(TENSOR_TYPES[dtype.str[1:]])
    for value in values:
        array = np.ascontiguousarray(value, dtype).reshape(np.shape(value))
        sizes = [
            b"\x08" + varint(length) if length else b"" for length in array.shape
        ]  # Dim.size = 1; 0 is left out
        dims = b"".join(
            b"\x12" + varint(len(size)) + size for size in sizes
        )  # TensorShapeProto.dim = 2
        content = array.tobytes()
        yield begin + b"\x12" + varint(len(dims)) + dims + b"\x22" + varint(len(content)) + content


def _ints(values: Values, count: int) -> Iterator[bytes]:
    flat, ends = _flat(values, count, np.dtype(np.int64))
    raw, places = varints(flat)
    return _split(raw.tobytes(), places[ends].tolist())


def _floats(values: Values, count: int) -> Iterator[bytes]:
    flat, ends = _flat(values, count, np.dtype("<f4"))
    return _split(flat.tobytes(), (ends * 4).tolist())


def _flat(
    values: Values, count: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the elements of all records one after the other, and int64 ``[count + 1]``, their
    ends, from 0 on."""
    if isinstance(values, Ragged):
        row_size = int(np.prod(values.payload.shape[1:], dtype=np.int64))
        return values.flat.reshape(-1).astype(dtype), (
            values.offsets - values.offsets[0]
        ) * row_size
    array = np.asarray(values)
    row_size = int(np.prod(array.shape[1:], dtype=np.int64))
    return array.reshape(-1).astype(dtype), np.arange(count + 1, dtype=np.int64) * row_size


def _split(raw: bytes, ends: list[int]) -> Iterator[bytes]:
    return (raw[begin:end] for begin, end in pairwise(ends))


def varints(values: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return numbers as varints, 7 bits a byte, the lowest first; and their offsets, with the end
    of the last."""
    # Negative numbers have ten bytes, as protobuf writes an int64: the sign is the highest of 64
    # bits.
    left = values.view(np.uint64)
    lengths = np.ones(values.size, np.int64)
    for bits in range(7, 64, 7):
        lengths += left >= np.uint64(1 << bits)
    begins = np.zeros(values.size + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    raw = np.empty(int(begins[-1]), np.uint8)
    for place in range(int(lengths.max(initial=0))):
        numbers = np.flatnonzero(lengths > place)
        continues = (lengths[numbers] > place + 1).astype(np.uint8) << 7
        raw[begins[numbers] + place] = (left[numbers] >> np.uint64(7 * place)).astype(
            np.uint8
        ) & 0x7F | continues
    return raw, begins


@lru_cache(maxsize=4096)
def varint(number: int) -> bytes:
    """Return a number of at least 0 as a varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@lru_cache(maxsize=4096)
def _head(name: str, kind: int, length: int) -> bytes:
    """Return the bytes in front of a list's one value, or of its packed numbers, which take
    ``length`` bytes."""
    inner = b"\n" + varint(length)  # BytesList.value, FloatList.value, Int64List.value = 1
    return _list_head(name, kind, len(inner) + length) + inner


@lru_cache(maxsize=4096)
def _list_head(name: str, kind: int, length: int) -> bytes:
    """Return the bytes in front of a list of ``length`` bytes: the entry, its key, the feature, the
    list."""
    key = name.encode()
    feature = bytes([kind << 3 | 2]) + varint(
        length
    )  # Feature.bytes_list = 1, float_list = 2, int64_list = 3
    value = b"\x12" + varint(len(feature) + length) + feature  # the entry's value = 2
    entry = b"\n" + varint(len(key)) + key + value  # the entry's key = 1
    return b"\n" + varint(len(entry) + length) + entry
