"""Scans of a JPEG: the damage that their bytes show, without decoding them.

Data    of a scan ends at the first 0xFF that is not followed by 0 (then it is a value) or by a
        restart marker. The marker there must be one that may stand there.
Between the data of two scans, and before the end, segments stand one after the other, without a
gap.
Whole   the end-of-image marker is reached from segment to segment; bytes behind it do not matter.
        Each channel has a scan. Of a progressive image its first scan counts: the others may be
        left out (as in libjpeg's jcmaster.c).
Restart markers are as many as frame and interval say, and are numbered in turn. One more may stand
at the end.
Zeros   256 zero bytes in a row, as a file has them where blocks of a disk or of a download are
        missing, would be ten blocks or more with 63 equal values each. They are no damage where one
        code of zeros stands for a flat block, and none at the end of the data, where some writers
        fill up a buffer.
Core    `core/cpp/scans.cpp` does the same; a file that it refuses is read here again, for the text
        of the error.
Not     seen are bits that changed without making a marker: a Huffman decoder takes nearly all bits
        for something.
Source  ITU-T T.81, annexes B and E.1.4 (restart), F.2.2.3 (Huffman codes are given in order, the
        first is all zeros).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuload import core

MAX_SCANS = 2**16  # of a file with more no more are counted
SEARCHED_BYTES = 1 << 16  # that are looked at, at a time
FEW_BYTES = 512  # in which a regular expression is faster
ZEROS = bytes(256)

EOI, SOS, DHT, DRI = 0xD9, 0xDA, 0xC4, 0xDD
SEQUENTIAL, HUFFMAN = {0xC0, 0xC1, 0xC9}, {0xC0, 0xC1}
RESTART = range(0xD0, 0xD8)
FOLLOWERS = {0xFF, *RESTART}  # the bytes that may follow 0xFF in the data of a scan, beside 0
SEGMENTS = {DHT, 0xCC, 0xDB, 0xDC, DRI, *range(0xE0, 0xF0), 0xFE}  # and DAC, DQT, DNL, APPn, COM
MARKER, FILLED_MARKER = re.compile(rb"\xff[^\x00\xff]"), re.compile(rb"\xff+[^\xff]")


class ScanError(ValueError):
    """The scans of a JPEG are damaged; says how."""


@dataclass(frozen=True)
class Scans:
    """The number of scans, up to MAX_SCANS, and where the data of the only one ends.

    The end is 0 where there are several scans, or arithmetic coding.
    """

    number: int
    end: int


def read(view: memoryview, frame: int, place: int, segments: Iterable[tuple[int, int]]) -> Scans:
    """Return the scans of a JPEG, checked.

    Args:
        view: the file.
        frame: where the frame header stands, a segment that was checked; its marker is in front of
            it.
        place: where the header of the first scan stands, behind its marker.
        segments: the others of the header that matter here, DRI and DHT: marker and place.

    Raises:
        ScanError: they are damaged, or the file was cut off.
    """
    segments = list(segments)
    if core.native is not None:
        number, end = core.native.read_scans(view, frame, place, segments, MAX_SCANS)
        if number >= 0:
            return Scans(number, end)
    return read_plain(view, frame, place, segments)


def read_plain(
    view: memoryview, frame: int, place: int, segments: Iterable[tuple[int, int]]
) -> Scans:
    """Return the same, in NumPy; arguments and errors are those of ``read``."""
    settings = _Settings()
    for marker, segment_place in segments:
        settings.take(view, marker, segment_place)
    kind, channels = view[frame - 1], _channels(view, frame)
    # All channels in the first scan of a sequential image: nothing may follow but the end.
    one_scan = kind in SEQUENTIAL and view[place + 2] == len(channels)
    missing, number, end = set(channels), 0, 0
    while number < (1 if one_scan else MAX_SCANS):
        begin = _begin(view, place)
        ac_tables = _scan_tables(view, place, channels)
        end, restarts = _find_data_end(view, begin)
        interval = settings.interval
        if interval:
            expected = -(-_units(view, frame, ac_tables.keys(), channels) // interval) - 1
        else:
            expected = 0
        if kind in HUFFMAN and any(
            settings.firsts.get(table, 0) & 15 for table in ac_tables.values()
        ):
            _check_zeros(view, begin, end)
        if kind in SEQUENTIAL or view[begin - 3] == 0:  # the scan has the means of the blocks
            missing -= ac_tables.keys()
        number += 1
        marker, place = _next_header(view, end, settings)
        if expected or len(restarts):
            _check_restarts(view, restarts, end, expected)
        if marker == EOI:
            break
        if one_scan:
            raise ScanError(f"a further scan begins at byte {place}, where the image is complete")
    if missing and number < MAX_SCANS:
        raise ScanError(
            f"{len(missing)} of its {len(channels)} channels have no scan: it was cut off, or is "
            "damaged"
        )
    data_end = 0
    if one_scan and kind in HUFFMAN:
        data_end = end
    return Scans(number, data_end)


class _Settings:
    """The settings that segments make for the scans behind them."""

    def __init__(self) -> None:
        self.interval = 0  # of restart markers, in units; 0 for none
        self.firsts: dict[int, int] = {}  # of each AC table the value with the code of all zeros

    def take(self, view: memoryview, marker: int, place: int) -> None:
        end = place + (view[place] << 8 | view[place + 1])
        if marker == DRI and end == place + 4:
            self.interval = view[place + 2] << 8 | view[place + 3]
        place += 2
        while marker == DHT and place + 17 < end:
            table = view[place]
            if table >= 16:
                self.firsts[table - 16] = view[place + 17]
            place += 17 + sum(view[place + 1 : place + 17])


def _channels(view: memoryview, frame: int) -> dict[int, tuple[int, int]]:
    """Return the channels of a frame: how many samples each has across and down, of the most."""
    places = range(frame + 8, frame + 8 + 3 * view[frame + 7], 3)
    return {view[place]: (view[place + 1] >> 4, view[place + 1] & 15) for place in places}


def _begin(view: memoryview, place: int) -> int:
    """Return where the data of the scan begins that has its header at a place."""
    if place + 2 < len(view):
        length = view[place] << 8 | view[place + 1]
    else:
        length = 0
    if place + length >= len(view):
        raise ScanError("the file ends inside the header of a scan: it was cut off")
    if length != 6 + 2 * view[place + 2] or not 1 <= view[place + 2] <= 4:
        raise ScanError(
            f"the header of a scan at byte {place} is {length} bytes long, for {view[place + 2]} "
            "channels"
        )
    return place + length


def _scan_tables(
    view: memoryview, place: int, channels: dict[int, tuple[int, int]]
) -> dict[int, int]:
    """Return the channels of a scan, each with its AC table."""
    ac_tables = {
        view[at]: view[at + 1] & 15 for at in range(place + 3, place + 3 + 2 * view[place + 2], 2)
    }
    if not ac_tables.keys() <= channels.keys() or len(ac_tables) < view[place + 2]:
        raise ScanError(
            f"the scan at byte {place} is of channels {list(ac_tables)}; the image has "
            f"{list(channels)}"
        )
    return ac_tables


def _find_data_end(view: memoryview, begin: int) -> tuple[int, NDArray[np.intp]]:
    """Return where the data of a scan ends, and the places of its restart markers."""
    match = MARKER.search(view, begin, begin + FEW_BYTES)
    if match and match[0][1] not in RESTART:
        return match.start(), np.empty(0, np.intp)
    data, restarts = np.frombuffer(view, np.uint8), [np.empty(0, np.intp)]
    for start in range(begin, len(view) - 1, SEARCHED_BYTES):
        part = data[start : start + SEARCHED_BYTES + 1]  # a marker may lie across two parts
        is_marker, following = part[:-1] == 0xFF, part[1:]
        is_marker &= following != 0  # 0xFF 0x00 stands for the value 0xFF in the data
        first = is_marker.argmax()
        if not is_marker[first]:
            continue
        if following[first] not in FOLLOWERS:  # the usual case, by itself because it is faster
            return int(start + first), np.concatenate(restarts)
        places = np.flatnonzero(is_marker)
        places = places[following[places] != 0xFF]  # fill bytes may stand before a marker
        ends = np.flatnonzero(following[places] & 0xF8 != RESTART.start)
        restarts.append(start + (places[: ends[0]] if ends.size else places))
        if ends.size:
            return int(start + places[ends[0]]), np.concatenate(restarts)
    raise ScanError("the file ends before the end-of-image marker: it was cut off")


def _units(
    view: memoryview,
    frame: int,
    scan_channels: Collection[int],
    channels: dict[int, tuple[int, int]],
) -> int:
    """Return how many units (MCU) the data of a scan holds (T.81, A.2)."""
    factors = channels.values()
    if not all(0 < factor <= 4 for pair in factors for factor in pair):
        raise ScanError(f"its channels are sampled {list(factors)}; each factor is 1 to 4")
    height, width = (
        int.from_bytes(view[frame + 3 : frame + 5], "big"),
        int.from_bytes(view[frame + 5 : frame + 7], "big"),
    )
    most_across, most_down = max(across for across, _ in factors), max(down for _, down in factors)
    if len(scan_channels) == 1:
        across, down = channels[next(iter(scan_channels))]
    else:
        across, down = (1, 1)
    return -(-width * across // (8 * most_across)) * -(-height * down // (8 * most_down))


def _check_restarts(view: memoryview, places: NDArray[np.intp], end: int, expected: int) -> None:
    """Refuse restart markers that are not as many as expected, or not in turn."""
    count = len(places)
    if count == expected + 1 and places[-1] + 2 == end:
        expected += 1
    if count != expected:
        raise ScanError(
            f"the scan that ends at byte {end} has {count} restart markers; its header makes it "
            f"{expected}"
        )
    numbers = np.frombuffer(view, np.uint8)[places + 1] & 7
    wrong = np.flatnonzero(numbers != np.arange(count) % 8)
    if wrong.size:
        place, number = places[wrong[0]], wrong[0] % 8
        raise ScanError(
            f"its restart marker at byte {place} has number {numbers[wrong[0]]}, where {number} "
            "comes next"
        )


def _check_zeros(view: memoryview, begin: int, end: int) -> None:
    """Refuse a long run of zeros in front of other data."""
    for start in range(begin, end, SEARCHED_BYTES):
        place = bytes(view[start : min(end, start + SEARCHED_BYTES + len(ZEROS) - 1)]).find(ZEROS)
        if place >= 0:
            if np.frombuffer(view, np.uint8)[start + place : end].any():
                raise ScanError(
                    f"zeros stand in its scan from byte {start + place} on: a part of the file was "
                    "lost"
                )
            return


def _next_header(view: memoryview, end: int, settings: _Settings) -> tuple[int, int]:
    """Return the marker SOS or EOI that comes next behind the data of a scan, and the place behind
    it."""
    while True:
        match = FILLED_MARKER.match(view, end)
        if match is None:
            if end < len(view) - 1:
                reason = f"byte {end} is {view[end]:#04x}, where a marker must begin"
            else:
                reason = ""
            raise ScanError(
                reason or "the file ends before the end-of-image marker: it was cut off"
            )
        marker, place = match[0][-1], match.end()
        if marker in (SOS, EOI):
            return marker, place
        if marker not in SEGMENTS:
            raise ScanError(
                f"marker {marker:#04x} at byte {place - 2} has no place in or behind a scan"
            )
        if place + 2 > len(view):
            raise ScanError("the file ends before the end-of-image marker: it was cut off")
        length = view[place] << 8 | view[place + 1]
        if length < 2 or place + length > len(view):
            raise ScanError(
                f"segment {marker:#04x} behind a scan, at byte {place}, does not end inside the "
                "file"
            )
        # Tables and intervals may change between two scans (T.81, B.2.4).
        settings.take(view, marker, place)
        end = place + length
