"""TFRecord files and tf.train.Examples by other hands: frames walked with ``struct``, messages read
by protobuf."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np

try:
    import google_crc32c
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError:
    google_crc32c = None  # type: ignore[assignment]

KINDS = (
    ("bytes_list", "BytesList", 12),
    ("float_list", "FloatList", 2),
    ("int64_list", "Int64List", 3),
)
MISSING = "all of it: google-crc32c or protobuf is not installed"


def masked(data: bytes) -> int:
    """Return the checksum of bytes as TFRecord files have it."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(payload: bytes) -> bytes:
    """Return a record."""
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", masked(length)) + payload + struct.pack("<I", masked(payload))


def walk(data: bytes) -> tuple[list[bytes | None], bool]:
    """Return the payloads of a file, None for one with another checksum; and whether the file is
    whole."""
    payloads: list[bytes | None] = []
    place = 0
    while place < len(data):
        if place + 12 > len(data):
            return payloads, False
        length, checksum = struct.unpack_from("<QI", data, place)
        if masked(data[place : place + 8]) != checksum or place + 16 + length > len(data):
            return payloads, False
        payload = data[place + 12 : place + 12 + length]
        (message,) = struct.unpack_from("<I", data, place + 12 + length)
        payloads.append(payload if masked(payload) == message else None)
        place += 16 + length
    return payloads, True


@cache
def example_class() -> Any:
    """Return protobuf's class for tf.train.Example, made of its description in example.proto and
    feature.proto."""
    file = descriptor_pb2.FileDescriptorProto(
        name="gpuload_attack.proto", package="attack", syntax="proto3"
    )
    for _, name, kind in KINDS:
        value = file.message_type.add(name=name).field.add(
            name="value", number=1, label=3, type=kind
        )
        value.options.packed = kind != 12
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, name, _) in enumerate(KINDS, 1):
        feature.field.add(
            name=field, number=number, label=1, type=11, type_name=f".attack.{name}", oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".attack.Feature")
    features.field.add(
        name="feature", number=1, label=3, type=11, type_name=".attack.Features.FeatureEntry"
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=1, type=11, type_name=".attack.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("attack.Example"))


def example(rng: np.random.Generator) -> bytes:
    """Return an Example of keys i, f and b, and sometimes others."""
    message = example_class()()
    of = message.features.feature
    of["i"].int64_list.value.extend(
        rng.integers(-(2**63), 2**63, rng.integers(5), np.int64).tolist()
    )
    of["f"].float_list.value.extend(rng.random(rng.integers(5), np.float32).tolist())
    of["b"].bytes_list.value.append(rng.bytes(int(rng.integers(40))))
    if rng.random() < 0.3:
        of["größe"].int64_list.value.append(3)
    return bytes(
        message.SerializeToString(deterministic=True)
    )  # else the order of keys is not that of the seed


def fields_of(payload: bytes) -> dict[str, list[Any]] | None:
    """Return the values of i, f and b by protobuf; None where it is no such message, or a key is of
    another kind."""
    message = example_class()()
    try:
        message.ParseFromString(payload)
    except Exception:  # protobuf's DecodeError, and what it says of keys that are no UTF-8
        return None
    results = {}
    for key, (name, _, _) in zip("bfi", KINDS, strict=True):
        feature = message.features.feature
        if key not in feature or feature[key].WhichOneof("kind") != name:
            return None
        results[key] = list(getattr(feature[key], name).value)
    return results
