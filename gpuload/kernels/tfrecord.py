"""TFRecords: where records begin in a piece of a file, and where values lie in serialized tf.train.Examples.

The messages are those of `example.proto`; numbers of fields stand in the comments below:

    Example          features = 1          SequenceExample  context = 1, feature_lists = 2
    Features         feature = 1           FeatureLists     feature_list = 1        maps: entries of key = 1, value = 2
    FeatureList      feature = 1           Feature          bytes_list = 1, float_list = 2, int64_list = 3: one of them
    BytesList, FloatList, Int64List        value = 1

Trust    none: each length is compared with what is left before it is used, so that no byte outside a record is read.
Errors   a kernel says which row it cannot read, and nothing more. `sources/tfrecord/wire.py` is the form without Numba;
         it reads that row again and says why.
Speed    inner functions take addresses, not arrays, which are seven words each. Measured: a third of the time.
Source   https://protobuf.dev/programming-guides/encoding: varints, tags, packed fields, the last value of a field wins,
         messages that occur twice are merged; groups, and fields that nobody knows, are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from gpuload.kernels.compile import kernel
from gpuload.kernels.memory import copy_bytes

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

DONE, BAD = -1, -1  # a result; in place of where the next field begins
VARINT, FIXED_64, SPAN, GROUP, GROUP_END, FIXED_32 = range(6)  # wire types
MOST_DEPTH = 100  # of groups inside groups, as in protobuf
FRAME_BYTES, HEADER_BYTES, MASK_SHIFT = 16, 12, 0xA282EAD8
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
MISSING = -1


@intrinsic  # type: ignore[untyped-decorator]
def load_byte(typing_context: Any, address: Any) -> Any:
    """``load_byte(address)``: the byte there, as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_word(typing_context: Any, address: Any, value: Any) -> Any:
    """``store_word(address, value)``: write an int64 there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@kernel
def walk(piece: Bytes, left: int, lengths: Int64s, tables: Int64s) -> tuple[int, int]:
    """Find records that begin in a piece of a file.

    Args:
        piece: uint8, from the beginning of a record on.
        left: how many bytes the file has from there on.
        lengths: of the payload of each record; written.
        tables: int64 ``[8, 256]``, what each value of each byte of a length adds to its checksum, bit by bit, the first
            table also that of 8 zeros; or nothing, and lengths are believed.

    Returns:
        How many records there are, and where in the piece (or behind it) the next one begins, or what is none.
    """
    place, count = 0, 0
    while count < lengths.size and place <= piece.size - HEADER_BYTES:
        length, said, checksum = np.int64(0), np.int64(0), np.int64(0)
        for i in range(8):
            byte = np.int64(piece[place + i])
            length |= byte << (8 * i)
            if tables.size > 0:
                checksum ^= tables[i, byte]
        if tables.size > 0:
            for i in range(4):
                said |= np.int64(piece[place + 8 + i]) << (8 * i)
            if ((((checksum >> 15) | (checksum << 17)) & 0xFFFFFFFF) + MASK_SHIFT) & 0xFFFFFFFF != said:
                break
        if length < 0 or length > left - place - FRAME_BYTES:
            break
        lengths[count] = length
        place += int(length) + FRAME_BYTES
        count += 1
    return count, place


@kernel
def find(
    raw: Bytes, begins: Int64s, ends: Int64s, keys: Bytes, key_begins: Int64s, sections: Int64s, spans: Int64s
) -> int:
    """Find the map entries of some keys; of a key that occurs twice the last one.

    Args:
        raw: uint8, the messages of all records.
        begins: of each message, int64 ``[n]``.
        ends: of each message, int64 ``[n]``.
        keys: the keys, one after the other.
        key_begins: where each begins and the last ends, int64 ``[num_keys + 1]``.
        sections: 1 for a key of features or of a context, 2 for one of feature lists, int64 ``[num_keys]``.
        spans: int64 ``[num_keys, n, 2]``: begin and end of each entry, MISSING where there is none; written.

    Returns:
        DONE, or the row of a message that cannot be read.
    """
    base, num_keys = raw.ctypes.data, sections.size
    spans[:] = MISSING
    # An Example has no feature lists: what stands in their place is a field that nobody knows.
    has_features, has_lists = False, False
    for which in range(num_keys):
        has_features |= sections[which] == 1
        has_lists |= sections[which] == 2
    for row in range(begins.size):
        place, hint = begins[row], 0
        while place < ends[row]:
            section, kind, first, after, place = _next(base, place, ends[row])
            if place == BAD:
                return row
            if kind != SPAN or not ((section == 1 and has_features) or (section == 2 and has_lists)):
                continue
            inner = first
            while inner < after:
                number, kind, begin, end, inner = _next(base, inner, after)
                if inner == BAD:
                    return row
                if number != 1 or kind != SPAN:
                    continue
                key, key_end, field = begin, begin, begin
                while field < end:
                    number, kind, one, last, field = _next(base, field, end)
                    if field == BAD:
                        return row
                    if number == 1 and kind == SPAN:
                        key, key_end = one, last
                for step in range(num_keys):  # most records have their keys in one order: the next one is likely
                    which = hint + step - (num_keys if hint + step >= num_keys else 0)
                    size = key_begins[which + 1] - key_begins[which]
                    if sections[which] != section or size != key_end - key:
                        continue
                    i = 0
                    while i < size and load_byte(base + key + i) == keys[key_begins[which] + i]:
                        i += 1
                    if i == size:
                        spans[which, row, 0], spans[which, row, 1] = begin, end
                        hint = which + 1
                        break
    return DONE


@kernel
def count_steps(raw: Bytes, spans: Int64s, counts: Int64s) -> int:
    """Count the features of the feature list of each entry; MISSING where there is no entry. Returns as ``find``."""
    nowhere = np.empty((0, 2), np.int64)
    for row in range(counts.size):
        counts[row] = MISSING
        if spans[row, 0] != MISSING:
            counts[row] = _steps(raw.ctypes.data, spans[row, 0], spans[row, 1], nowhere, 0)
            if counts[row] == BAD:
                return row
    return DONE


@kernel
def fill_steps(raw: Bytes, spans: Int64s, steps: Int64s) -> None:
    """Write begin and end of each feature of feature lists that were counted, one list after the other."""
    done = 0
    for row in range(spans.shape[0]):
        if spans[row, 0] != MISSING:
            done += _steps(raw.ctypes.data, spans[row, 0], spans[row, 1], steps, done)


@kernel
def _steps(base: int, begin: int, end: int, steps: Int64s, at: int) -> int:
    """Count the features of an entry's list, and write where they are if there is room; BAD if it cannot be read."""
    count, place = 0, begin
    while place < end:
        number, kind, first, after, place = _next(base, place, end)
        if place == BAD:
            return BAD
        if number != 2 or kind != SPAN:
            continue
        inner = first
        while inner < after:
            number, kind, one, last, inner = _next(base, inner, after)
            if inner == BAD:
                return BAD
            if number == 1 and kind == SPAN:
                if steps.shape[0] > 0:
                    steps[at + count, 0], steps[at + count, 1] = one, last
                count += 1
    return count


@kernel
def count_values(raw: Bytes, spans: Int64s, is_entry: bool, wanted: int, counts: Int64s) -> int:
    """Count the values of features.

    Args:
        raw: uint8.
        spans: int64 ``[n, 2]``, begin and end of each feature, or of the entry that holds it; MISSING: there is none.
        is_entry: which of these.
        wanted: BYTES_LIST, FLOAT_LIST or INT64_LIST.
        counts: int64 ``[n]``; MISSING for a feature that is not there or holds no list; written.

    Returns:
        DONE, or the row of a feature that cannot be read, or holds another kind of values.
    """
    for row in range(counts.size):
        counts[row] = MISSING
        if spans[row, 0] != MISSING:
            kind, count = _values(raw.ctypes.data, spans[row, 0], spans[row, 1], is_entry, wanted, 0, 0, 0)
            if kind == BAD or (kind != 0 and kind != wanted):
                return row
            if kind != 0:
                counts[row] = count
    return DONE


@kernel
def read_features(
    raw: Bytes, begins: Int64s, ends: Int64s, keys: Bytes, key_begins: Int64s, sections: Int64s, which: Int64s,
    kinds: Int64s, spans: Int64s, counts: Int64s,
) -> int:  # fmt: skip
    """Find features, and count the values of those that are no feature lists; one call, so that the GIL is left once.

    Args:
        raw: as in ``find``, and so are the next four.
        begins: as there.
        ends: as there.
        keys: as there.
        key_begins: as there.
        sections: as there.
        which: the key of each feature; several may have the same.
        kinds: BYTES_LIST, FLOAT_LIST or INT64_LIST for each feature; 0: it is a feature list, and not counted here.
        spans: int64 ``[num_keys, n, 2]``; written.
        counts: int64 ``[num_features, n]``; written.

    Returns:
        DONE, or the row that cannot be read.
    """
    bad = find(raw, begins, ends, keys, key_begins, sections, spans)
    for feature in range(kinds.size):
        if bad == DONE and kinds[feature] != 0:
            bad = count_values(raw, spans[which[feature]], True, kinds[feature], counts[feature])
    return bad


@kernel
def fill_features(
    raw: Bytes, spans: Int64s, which: Int64s, kinds: Int64s, counts: Int64s, to: Int64s, to_ends: Int64s
) -> None:
    """Write the values of several features that were counted.

    Args:
        raw: uint8.
        spans: as ``read_features`` wrote them.
        which: as there.
        kinds: as there.
        counts: as ``read_features`` wrote them.
        to: for each feature the address where its values go, or where their bytes begin.
        to_ends: for each bytes list the address where their ends go.
    """
    for i in range(kinds.size):
        if kinds[i] != 0:
            _fill(raw.ctypes.data, spans[which[i]], True, counts[i], kinds[i], to[i], to_ends[i])


@kernel
def fill_values(
    raw: Bytes, spans: Int64s, is_entry: bool, counts: Int64s, ints: Int64s, ends: Int64s, floats: NDArray[np.float32]
) -> None:
    """Write the values of features that were counted, one feature after the other.

    Args:
        raw: as in ``count_values``.
        spans: as there.
        is_entry: as there.
        counts: as there.
        ints: the values, or where the bytes of each value begin.
        ends: where these end.
        floats: the values. Of these three arrays those have room that are for the kind, for all that was counted.
    """
    wanted = FLOAT_LIST if floats.size > 0 else BYTES_LIST if ends.size > 0 else INT64_LIST
    to = floats.ctypes.data if wanted == FLOAT_LIST else ints.ctypes.data
    _fill(raw.ctypes.data, spans, is_entry, counts, wanted, to, ends.ctypes.data)


@kernel
def _fill(base: int, spans: Int64s, is_entry: bool, counts: Int64s, wanted: int, to: int, to_ends: int) -> None:
    item = 4 if wanted == FLOAT_LIST else 8
    done = 0
    for row in range(counts.size):
        if counts[row] > 0:
            place, place_end = to + item * done, to_ends + 8 * done
            _values(base, spans[row, 0], spans[row, 1], is_entry, wanted, place, place_end, counts[row])
            done += counts[row]


@kernel
def _values(
    base: int, begin: int, end: int, is_entry: bool, wanted: int, to: int, to_end: int, room: int
) -> tuple[int, int]:
    """Read a feature; returns the kind of its list, 0 for none, and how many values it has; BAD if it cannot be read.

    Another kind of list begins anew: of the members of a ``oneof`` the last one stays. Values of the wanted kind are
    written, at most ``room`` of them: those of a list that begins anew overwrite the others.
    """
    if not is_entry:
        return _lists(base, begin, end, 0, 0, wanted, to, to_end, room)
    kind, count, place = 0, 0, begin
    while place < end:
        number, wire, first, after, place = _next(base, place, end)
        if place == BAD:
            return BAD, 0
        if number == 2 and wire == SPAN:
            kind, count = _lists(base, first, after, kind, count, wanted, to, to_end, room)
            if kind == BAD:
                return BAD, 0
    return kind, count


@kernel
def _lists(
    base: int, begin: int, end: int, kind: int, count: int, wanted: int, to: int, to_end: int, room: int
) -> tuple[int, int]:
    """Go on with a message of a feature; see ``_values``."""
    place = begin
    while place < end:
        number, wire, first, after, place = _next(base, place, end)
        if place == BAD:
            return BAD, 0
        if wire != SPAN or number < BYTES_LIST or number > INT64_LIST:
            continue
        if kind != number:
            kind, count = number, 0
        most, inner = room if kind == wanted else 0, first
        while inner < after:
            number, wire, one, last, inner = _next(base, inner, after)
            if inner == BAD:
                return BAD, 0
            if number != 1:
                continue
            if kind == BYTES_LIST:
                if wire == SPAN:
                    if count < most:
                        store_word(to + 8 * count, one)
                        store_word(to_end + 8 * count, last)
                    count += 1
            elif kind == FLOAT_LIST:
                if wire == SPAN or wire == FIXED_32:  # noqa: SIM109 - Numba would make a tuple
                    num_floats = (last - one) // 4
                    if 4 * num_floats != last - one:
                        return BAD, 0
                    if count < most:
                        copy_bytes(to + 4 * count, base + one, 4 * min(num_floats, most - count))
                    count += num_floats
            elif wire == VARINT:
                if count < most:
                    store_word(to + 8 * count, one)
                count += 1
            elif wire == SPAN:
                while one < last:
                    value, one = _varint(base, one, last)
                    if one == BAD:
                        return BAD, 0
                    if count < most:
                        store_word(to + 8 * count, value)
                    count += 1
    return kind, count


@kernel
def gather(raw: Bytes, begins: Int64s, lengths: Int64s, out: Bytes, places: Int64s) -> None:
    """Copy ``lengths[i]`` bytes at ``begins[i]`` of ``raw`` to ``out[places[i]:]``; who calls has checked them."""
    for i in range(begins.size):
        copy_bytes(out.ctypes.data + places[i], raw.ctypes.data + begins[i], lengths[i])


@kernel
def _next(base: int, place: int, end: int) -> tuple[int, int, int, int, int]:
    """Read the field at a place: its number, its wire type, begin and end of its bytes, and where the next one begins.

    In place of the begin of a varint stands its value. A group is skipped; its wire type is GROUP. BAD in place of the
    last one: no field is there.
    """
    number, kind, first, after, place = _field(base, place, end)
    if kind == GROUP and place != BAD:
        place = _after_group(base, place, end, number)
    elif kind == GROUP_END:
        place = BAD
    return number, kind, first, after, place


@kernel
def _after_group(base: int, place: int, end: int, number: int) -> int:
    """Return where what follows a group begins, or BAD."""
    stack = np.empty(MOST_DEPTH, np.int64)
    stack[0], depth = number, 1
    while depth > 0:
        if place >= end:
            return BAD
        number, kind, _, _, place = _field(base, place, end)
        if place == BAD:
            return BAD
        if kind == GROUP:
            if depth == MOST_DEPTH:
                return BAD
            stack[depth] = number
            depth += 1
        elif kind == GROUP_END:
            depth -= 1
            if stack[depth] != number:
                return BAD
    return place


@kernel
def _field(base: int, place: int, end: int) -> tuple[int, int, int, int, int]:
    """Read a field as ``_next`` does, but of a group its beginning and its end by themselves."""
    tag, place = _varint(base, place, end)
    number, kind = tag >> 3, tag & 7
    if place == BAD or tag < 8 or tag > 0xFFFFFFFF or kind > FIXED_32:
        return number, kind, 0, 0, BAD
    if kind == SPAN:
        size, place = _varint(base, place, end)
        if place == BAD or size < 0 or size > end - place:
            return number, kind, 0, 0, BAD
        return number, kind, place, place + size, place + size
    if kind == VARINT:
        value, place = _varint(base, place, end)
        return number, kind, value, 0, place
    size = 8 if kind == FIXED_64 else 4 if kind == FIXED_32 else 0
    if size > end - place:
        return number, kind, 0, 0, BAD
    return number, kind, place, place + size, place + size


@kernel
def _varint(base: int, place: int, end: int) -> tuple[int, int]:
    """Return a varint and where the next byte is, BAD if it does not end or has more than 64 bits."""
    if place < end:
        byte = load_byte(base + place)
        if byte < 0x80:
            return byte, place + 1
    return _long_varint(base, place, end)


@kernel
def _long_varint(base: int, place: int, end: int) -> tuple[int, int]:
    value, shift = 0, 0
    while place < end:
        byte = load_byte(base + place)
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value, BAD) if shift == 63 and byte > 1 else (value, place)
        shift += 7
        if shift > 63:
            break
    return value, BAD
