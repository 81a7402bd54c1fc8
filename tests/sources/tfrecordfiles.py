"""TFRecord files for tests, written byte by byte: nothing here is the package's own, nor
TensorFlow's."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

POLYNOMIAL = 0x82F63B78  # of CRC32C, its bits reversed: RFC 3720, section 12.1


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", masked(length)) + payload + struct.pack("<I", masked(payload))


def write(path: Path, payloads: Any) -> Path:
    path.write_bytes(b"".join(map(frame, payloads)))
    return path


# The wire format


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def message(number: int, content: bytes) -> bytes:
    return tag(number, 2) + varint(len(content)) + content


def group(number: int, content: bytes) -> bytes:
    return tag(number, 3) + content + tag(number, 4)


def ints(*values: int, packed: bool = True) -> bytes:
    """A serialized Feature with an int64 list."""
    if packed:
        return message(3, message(1, b"".join(map(varint, values))))
    return message(3, b"".join(tag(1, 0) + varint(value) for value in values))


def floats(*values: float, packed: bool = True) -> bytes:
    if packed:
        return message(2, message(1, struct.pack(f"<{len(values)}f", *values)))
    return message(2, b"".join(tag(1, 5) + struct.pack("<f", value) for value in values))


def texts(*values: bytes) -> bytes:
    return message(1, b"".join(message(1, value) for value in values))


def entry(key: str | bytes, value: bytes) -> bytes:
    return message(1, message(1, key.encode() if isinstance(key, str) else key) + message(2, value))


def feature(value: Any) -> bytes:
    """A serialized Feature of Python values: bytes, floats or whole numbers; of None, or none, an
    empty one."""
    if value is None:
        return b""
    some = value if isinstance(value, (list, tuple, np.ndarray)) else [value]
    if not len(some):
        return b""
    if any(isinstance(item, bytes) for item in some):
        return texts(*some)
    if any(isinstance(item, (float, np.floating)) for item in some):
        return floats(*map(float, some))
    return ints(*map(int, some))


def example(**features: Any) -> bytes:
    return message(1, b"".join(entry(key, feature(value)) for key, value in features.items()))


def sequence_example(context: dict[str, Any], lists: dict[str, list[Any]]) -> bytes:
    parts = b"".join(
        entry(key, b"".join(message(1, feature(step)) for step in steps))
        for key, steps in lists.items()
    )
    return message(
        1, b"".join(entry(key, feature(value)) for key, value in context.items())
    ) + message(2, parts)
