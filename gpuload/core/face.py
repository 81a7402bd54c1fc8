"""The interface of the compiled core: its functions as types, with their arguments and results.

Arrays are in C order and have just the dtype that is said; arrays for results are writeable. The
core checks sizes, places and numbers, and raises ``ValueError``, ``IndexError`` or ``TypeError``:
these are faults of a caller in gpuload, never of a file. The interpreter's lock is free while the
core works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]
Float64s = NDArray[np.float64]
Pixels = NDArray[Any]  # uint8 or float32

# The results of ``Maps.copy``, and the values of ``Maps.states``.
COPIED, CHANGED, FAILED, OUTSIDE = range(4)
REFUSED, UNTRIED, MAPPED = -1, 0, 1

# The results of ``Copies.state`` and ``Copies.wait``.
NOT_DONE, DONE, REDO = range(3)


class Maps(Protocol):
    """Files that are read from memory maps, or by positioned reads where a map is not worth it or
    cannot be made.

    The path of file i is folder ``folder_of[i]`` and name i. Nobody writes to the arrays while the
    maps are there.

    Args:
        folders: the bytes of all folders, each with its slash.
        folder_bounds: int64 ``[num_folders + 1]``, where each begins, and the last ends.
        folder_of: uint32 ``[num_files]``.
        names: the bytes of all names.
        name_bounds: int64 ``[num_files + 1]``.
        stamps: int64 ``[num_files, 3]``: size in bytes, time of modification in ns, inode, or 0
            where it is not known.
        piece_bytes: the system is asked, in such pieces, for the bytes of a call before they are
            copied; 0: it is not.
        most_maps: at a time; the least recently used ones are undone for others. 0: most of those
            that are allowed.

    Attributes:
        any_refused: True once a file could not be mapped.
    """

    any_refused: bool

    def __init__(
        self, folders: Bytes, folder_bounds: Int64s, folder_of: NDArray[np.uint32], names: Bytes, name_bounds: Int64s,
        stamps: Int64s, piece_bytes: int, most_maps: int,
    ) -> None: ...  # fmt: skip

    def copy(
        self, files: Int64s, offsets: Int64s, lengths: Int64s, out: Bytes, begins: Int64s
    ) -> tuple[int, int]:
        """Copy ``lengths[i]`` bytes at ``offsets[i]`` of file ``files[i]`` to ``out[begins[i]:]``.

        Returns:
            A number and COPIED, CHANGED, FAILED or OUTSIDE: the number of the file, or for OUTSIDE
            of the extent;
            nothing was written then. The file is looked at after its bytes were copied.
        """

    def map(self, files: Int64s, offsets: Int64s, lengths: Int64s) -> None:
        """Map the files that these extents make worth it; errors are left to ``copy``."""

    def advise(self, files: Int64s, offsets: Int64s, lengths: Int64s, piece_bytes: int) -> None:
        """Ask the system to load these bytes into memory soon; only of files that are mapped."""

    def states(self, files: Int64s, out: NDArray[np.int8]) -> None:
        """Write REFUSED, UNTRIED or MAPPED for each file."""


class Codec(Protocol):
    """Decoders of nvImageCodec, called without Python; it belongs to the process that made it.

    Args:
        library: path of its library.
        extensions: folder of its extensions.

    Raises:
        RuntimeError: it cannot be used; says why.

    Attributes:
        version: of the library, ``"0.9.0"``.
    """

    version: str

    def __init__(self, library: str, extensions: str) -> None: ...

    def make_rows(
        self, raw: Bytes, begins: Int64s, ends: Int64s, heads: Int32s, regions: Int32s, visit: Visit,
        out: Pixels | Sequence[Pixels], declined: NDArray[np.int8],
    ) -> float:  # fmt: skip
        """Decode JPEG files and take each image through the steps of a visit, into its result.

        Args:
            raw: the files.
            begins: of each file, int64 ``[n]``.
            ends: of each file, int64 ``[n]``.
            heads: int32 ``[n, 6]``, as ``read_jpeg_heads`` writes them.
            regions: the part of each image to decode: top, left, height and width in pixels, int32
                ``[n, 4]``; ``[0, 4]``: all of it.
            visit: of n images: of three channels they are RGB, of one gray (as `images.decode`
                makes it of these), of four RGBA, all opaque.
            out: for each image an array ``[height, width, channels]``,
                ``[channels, height, width]`` behind a walk that writes planes, or one array of all:
                uint8, or float32 behind a walk; written.
            declined: 1 for each image that was not made: its file is damaged or is not decoded
                here, or numbers and sizes do not fit; then its array may hold anything; int8
                ``[n]``.

        Returns:
            Seconds that decoding took.
        """


class Visit(Protocol):
    """Steps that images of bytes go through, each of them all the way at once; empty at first.

    Steps are added before there are images, in their order; numbers are copied. What does not fit
    an image is not found here: it is declined.

    Args:
        count: of images.
        channels: of each.
    """

    def __init__(self, count: int, channels: int) -> None: ...

    def resize(
        self, boxes: Int32s, sizes: Int32s, table: Floats, width: float, antialias: bool
    ) -> None:
        """Add a resize of a box of each image.

        Args:
            boxes: top, left, height and width in pixels, int32 ``[count, 4]``.
            sizes: height and width that each gets, int32 ``[count, 2]``.
            table: of the filter, see `kernels.resampling`; empty: the nearest pixels are taken.
            width: of the filter in source pixels.
            antialias: see `kernels.resampling`.
        """

    def edit(self, edits: Float64s) -> None:
        """Add edits of each image, float64 ``[count, L]``, see `kernels.edits`."""

    def walk(self, start: Int32s, mirror: Int32s, sizes: Int32s, fill: Bytes) -> None:
        """Add a walk, see `kernels.walk`.

        Args:
            start: top and left of each window, int32 ``[count, 2]``.
            mirror: 1 where a window is mirrored down, across, int32 ``[count, 2]``.
            sizes: height and width of each window, int32 ``[count, 2]``, or of all, ``[1, 2]``.
            fill: of each channel the value outside the image, uint8 ``[channels]``.
        """

    def finish(self, mean: Floats, scale: Floats, out_planes: bool) -> None:
        """Say what the last step, a walk whose fill is the same for all channels, does with values.

        Args:
            mean: of each channel: ``(value - mean) * scale``, where the result is float32.
            scale: of each channel.
            out_planes: True for CHW.
        """

    def make_rows(
        self,
        images: Bytes | Sequence[Bytes],
        out: Pixels | Sequence[Pixels],
        declined: NDArray[np.int8],
    ) -> None:
        """Do as ``Codec.make_rows`` with images, uint8 ``[height, width, channels]`` or all in one
        array, for files."""

    def maker(
        self,
        writes_floats: bool,
        image_height: int,
        image_width: int,
        out_height: int,
        out_width: int,
    ) -> Maker:
        """Return what takes images of one size through the steps: image i for row i.

        Args:
            writes_floats: True for a result of float32, False for uint8.
            image_height: of each image, pixels.
            image_width: as before.
            out_height: of each result.
            out_width: as before.
        """


class Queue(Protocol):
    """Work for threads that do it without the interpreter's lock, and calls that bring them back to
    Python."""

    def __init__(self) -> None: ...

    def serve(self) -> int:
        """Do work until there is a call; returns the largest number that a call has allowed, -1
        after ``end``."""

    def call(self, until: int, num_threads: int) -> None:
        """Call threads out of ``serve``, and allow a number."""

    def end(self, ignored: object = None, /) -> None:
        """Call all threads out of ``serve``, now and later. Never waits; a callback of a weak
        reference may be this."""

    def leave(self) -> None:
        """Say that a thread which was called does not come back."""

    def take_idle_s(self) -> float:
        """Return the seconds that threads waited in ``serve`` since the last call."""


class Plan(Protocol):
    """Where the records of some steps lie.

    Args:
        ends: int64 ``[num_steps]``, the row behind the last of each step.
    """

    def __init__(self, ends: Int64s) -> None: ...

    def add(
        self, maps: Maps, starts: Int64s, files: Int64s, offsets: Int64s, record_bytes: int, numbers: Int64s,
        rows: Int64s | None, parts: Sequence[PlanPart],
    ) -> None:  # fmt: skip
        """Add records of one size, before there are copies.

        Args:
            maps: of the files.
            starts: int64 ``[num_files + 1]``, the first record of each file, and the number of all.
            files: int64 ``[num_files]``, their numbers in ``maps``.
            offsets: int64 ``[num_files]``, the byte of each where its first record begins.
            record_bytes: of a record.
            numbers: int64 ``[n]``, which records.
            rows: int64 ``[n]``, the row of each, ascending; None: record i is row i.
            parts: of each record, where they go.
        """


class Maker(Protocol):
    """What becomes of the bytes of a record, with what was drawn for each row of a plan; any
    threads may use it."""


# Of a record: where it begins, its bytes, which block of memory it goes to, and what becomes of it
# there; None: it is copied. A maker knows all rows of the plan.
PlanPart = tuple[int, int, int, Maker | None]


class Copies(Protocol):
    """Some steps whose records are copied from files, by threads of a queue and by the thread that
    waits for a step.

    Dropping it withdraws the pieces that no thread has begun, and waits for the others.

    Args:
        queue: whose threads do it.
        plan: where the records lie.
        first_step, num_steps: which steps of the plan.
        piece_rows: a thread copies so many rows at a time.
        blocks: uint8 ``[n]`` each; the first row of these steps goes to its beginning.

    Attributes:
        num_done: steps that are DONE.
        wait_s: seconds in ``wait``.
    """

    num_done: int
    wait_s: float

    def __init__(
        self,
        queue: Queue,
        plan: Plan,
        first_step: int,
        num_steps: int,
        piece_rows: int,
        blocks: Sequence[Bytes],
    ) -> None: ...

    def state(self, step: int) -> int:
        """Return NOT_DONE, DONE, or REDO: a file cannot be read, and ``Maps.copy`` returns the
        reason."""

    def wait(self, step: int) -> int:
        """Copy until a step is done, or nothing is left to copy; return its state after 20 ms at
        most."""

    def times(self) -> tuple[float, float, float, float, float]:
        """Return seconds: of all pieces; of those that were sampled, and of these blocked, starved,
        and off_core.

        See `stats.Stage`.
        """

    def spans(self) -> list[tuple[int, float, float, int]]:
        """Return of each piece of steps that are done: step, begin, end (``perf_counter``),
        thread."""


class Native(Protocol):
    """The extension module.

    Attributes:
        source: a checksum of the C++ files that it was built from, see `core.source`.
    """

    source: str
    Codec: type[Codec]
    Visit: type[Visit]
    Maps: type[Maps]
    Queue: type[Queue]
    Plan: type[Plan]
    Copies: type[Copies]

    def philox(
        self, records: Int64s, epoch: int, seed: int, stream: int, out: NDArray[np.uint64]
    ) -> None:
        """Write the words of each record into its row, uint64 ``[num_records, 4 * blocks]``; see
        `rng`."""

    def uniform(
        self, records: Int64s, epoch: int, seed: int, stream: int, out: NDArray[np.float64]
    ) -> None:
        """Write numbers in [0, 1) of each record into its row, float64 ``[num_records, count]``;
        see `rng`."""

    def permute(
        self,
        positions: Int64s,
        length: int,
        high: int,
        low: int,
        keys: NDArray[np.uint32],
        out: Int64s,
    ) -> None:
        """Write the numbers at positions of a permutation; ``keys`` is ``[rounds, 2]``; see
        `order.Permutation`."""

    def thread_usage(self) -> tuple[int, int, int]:
        """Return of the calling thread: ns on a core, ns in the queue for a core, how often it
        waited.

        A number is -1 where the system does not say it.
        """

    def divide_gap(
        self, time_ns: int, before: tuple[int, int, int], after: tuple[int, int, int]
    ) -> tuple[int, ...]:
        """Divide the time in which a thread did not run, as `stats.stages.divide_gap` does."""

    def gather_rows(self, rows: Bytes, numbers: Int64s, out: Bytes, begins: Int64s) -> int:
        """Copy row ``numbers[i]`` of ``rows``, uint8 ``[num_rows, size]``, to ``out[begins[i]:]``.

        Returns:
            -1, or the place of the first number or begin that lies outside; then nothing was
            copied.
        """

    def gather_pieces(
        self, raw: Bytes, begins: Int64s, lengths: Int64s, out: Bytes, places: Int64s
    ) -> None:
        """Copy ``lengths[i]`` bytes at ``begins[i]`` of ``raw`` to ``out[places[i]:]``."""

    def can_map(self) -> bool:
        """Return True where files can be mapped with the guard against those that shrink: Linux
        with statx."""

    def num_free_maps(self) -> int:
        """Return how many more files can be mapped in this process."""

    def offer_pages(self, memory: Bytes) -> bool:
        """Let the system take whole pages of some memory when it is short of it; False if it does
        not do that."""

    def crc32(self, data: Bytes | bytes | bytearray | memoryview, before: int = 0) -> int | None:
        """Return the CRC-32 of bytes whose first part has the checksum ``before``; None where
        zlib's is as fast."""

    def crc32_by_128_bits(self, data: Bytes | bytes | memoryview, before: int = 0) -> int | None:
        """Return the same with registers of 128 bits."""

    def crc32c(self, data: Bytes | bytes | memoryview, before: int = 0) -> int:
        """Return the CRC32C of bytes whose first part has the checksum ``before``, 0 if there is no
        first part."""

    def crc32c_by_tables(self, data: Bytes | bytes | memoryview, before: int = 0) -> int:
        """Return the same without the processor's instruction."""

    def frames(self, piece: Bytes, left: int, verify: bool, lengths: Int64s) -> tuple[int, int]:
        """Find TFRecords that begin in a piece of a file, from its first byte on.

        Args:
            piece: the piece.
            left: how many bytes the file has from there on.
            verify: False: lengths are believed.
            lengths: of the payload of each record; written.

        Returns:
            How many records there are, and the place in the piece (or behind it) where the next one
            begins, or damage.
        """

    def verify(self, raw: Bytes, begins: Int64s, ends: Int64s) -> tuple[int, int]:
        """Compare TFRecords, whose payloads lie at ``raw[begins[i]:ends[i]]``, with their frames.

        Returns:
            The first row that is damaged, and 1 for another length, 2 for a wrong checksum of the
            length, 3 for one of
            the payload; or 0 and 0.
        """

    def read_features(
        self, raw: Bytes, begins: Int64s, ends: Int64s, keys: Bytes, key_begins: Int64s, sections: Int64s,
        feature_keys: Int64s, kinds: Int64s, spans: Int64s, counts: Int64s,
    ) -> int:  # fmt: skip
        """Find features of serialized tf.train.Examples, and count the values of those that are no
        feature lists.

        Args:
            raw: the messages of all records.
            begins: of each message, int64 ``[n]``.
            ends: of each message, int64 ``[n]``.
            keys: the keys, one after the other.
            key_begins: where each begins and the last ends, int64 ``[num_keys + 1]``.
            sections: 1 for a key of features or of a context, 2 for one of feature lists, int64
                ``[num_keys]``.
            feature_keys: the number of the key of each feature; several may have the same.
            kinds: 1 bytes, 2 float, 3 int64 for each feature; 0: it is a feature list, and not
                counted here.
            spans: int64 ``[num_keys, n, 2]``: begin and end of each map entry, of a key that occurs
                twice the last; -1 where there is none; written.
            counts: int64 ``[num_features, n]``; -1 for a feature that is not there; written.

        Returns:
            -1, or the row that cannot be read, or that holds another kind of values.
        """

    def count_values(self, raw: Bytes, spans: Int64s, kind: int, counts: Int64s) -> int:
        """Count the values of features that lie at spans; returns the same as ``read_features``."""

    def count_steps(self, raw: Bytes, spans: Int64s, counts: Int64s) -> int:
        """Count the features of the feature list of each map entry; -1 where there is none. Returns
        the same."""

    def fill_steps(self, raw: Bytes, spans: Int64s, steps: Int64s) -> None:
        """Write begin and end of each feature of lists that were counted, int64 ``[total, 2]``."""

    def fill_ints(
        self, raw: Bytes, spans: Int64s, are_entries: bool, counts: Int64s, values: Int64s
    ) -> None:
        """Write the values of features that were counted, one feature after the other.

        Args:
            raw: the messages of all records.
            spans: begin and end of each feature, or of the map entry that holds it, int64
                ``[n, 2]``.
            are_entries: which of these.
            counts: how many values each has, as they were counted.
            values: has room for all of them.
        """

    def fill_floats(
        self, raw: Bytes, spans: Int64s, are_entries: bool, counts: Int64s, values: Floats
    ) -> None:
        """Do the same for floats."""

    def fill_bytes(
        self,
        raw: Bytes,
        spans: Int64s,
        are_entries: bool,
        counts: Int64s,
        begins: Int64s,
        ends: Int64s,
    ) -> None:
        """Do the same for bytes: where in ``raw`` each value begins and ends."""

    def lzw_bytes(self, stream: Bytes, enough: int) -> int:
        """Return how many bytes LZW data of TIFF come to, up to the first Clear at which they are
        enough.

        Returns:
            The number; -1 where the data do not begin with Clear, -2 where a code is not in the
            table.
        """

    def unfilter(self, rows: Bytes, pixel_bytes: int, out: Bytes) -> bool:
        """Undo the filters of the rows of a PNG; see `images.decode`.

        Args:
            rows: of each row its filter and its bytes, one axis.
            pixel_bytes: of a pixel, 1 where that has fewer bits.
            out: uint8 ``[height, row_bytes]``; written.

        Returns:
            False if a filter is none that PNG has.
        """

    def read_scans(
        self,
        file: Bytes | memoryview,
        frame: int,
        place: int,
        segments: Sequence[tuple[int, int]],
        max_scans: int,
    ) -> tuple[int, int]:
        """Read the scans of a JPEG, at most ``max_scans``; see `images.scans.read`.

        Returns:
            Their number, and where the data of the only one ends; -1 and 0 if they are damaged.
        """

    def read_jpeg_heads(self, raw: Bytes, begins: Int64s, ends: Int64s, heads: Int32s) -> None:
        """Read the heads of JPEG files, whose bytes are ``raw[begins[i]:ends[i]]``; see
        `images.head.read_heads`.

        Args:
            raw: the files.
            begins: of each file, int64 ``[n]``.
            ends: of each file, int64 ``[n]``.
            heads: int32 ``[n, 6]``: height and width of the upright image, scans, channels,
                orientation, and the end of the only scan; zeros for a file that is no JPEG or is
                refused; written.
        """

    def walk(
        self, images: Pixels, stride: int, height: int, width: int, channels: int, in_planes: bool, out_planes: bool,
        start: Int32s, mirror: Int32s, fill: float, mean: Floats, scale: Floats, out: Pixels, window_height: int,
        window_width: int,
    ) -> None:  # fmt: skip
        """Crop, mirror, reorder axes and normalise images; see `kernels.walk.Walk`.

        Args:
            images: one axis: the memory that holds the images.
            stride: elements from image to image.
            height: of an image, and so are the next two.
            width: as before.
            channels: as before.
            in_planes: True for CHW, False for HWC.
            out_planes: the same of the result.
            start: top and left of each window, int32 ``[n, 2]``.
            mirror: 1 where a window is mirrored down, across, int32 ``[n, 2]``.
            fill: the value outside the image.
            mean: of each channel: ``(value - mean) * scale``; not for a result in uint8.
            scale: of each channel.
            out: one axis: the result, of the dtype of the images or float32.
            window_height: of the result.
            window_width: of the result.
        """

    def resize(
        self, image: Pixels, offset: int, stride: int, height: int, width: int, channels: int, rows: Int32s,
        row_weights: Floats, columns: Int32s, column_weights: Floats, vertical_first: bool, out: Pixels, new_width: int,
    ) -> None:  # fmt: skip
        """Resize a box of an image; see `kernels.resampling`.

        Args:
            image: one axis: the memory that holds the image.
            offset: where in it the box begins, in elements.
            stride: elements from row to row.
            height: of the box, and so are the next two.
            width: as before.
            channels: as before.
            rows: the first source row of each row of the result.
            row_weights: its coefficients, float32 ``[new height, support]``.
            columns: the first source column of each column, up to a multiple of any number.
            column_weights: their coefficients, float32 ``[number of columns, support]``.
            vertical_first: which pass is the first.
            out: one axis: the result, of the dtype of the image.
            new_width: of the result.
        """

    def edit(self, images: Bytes, edits: Float64s, out: Bytes) -> None:
        """Do edits to images of bytes, one image after the other.

        Args:
            images: uint8 ``[n, height, width, channels]``.
            edits: of each image, float64 ``[n, L]``; see `kernels.edits`.
            out: the results, of the shape of the images, in other memory.
        """

    def policy_edits(
        self, numbers: Int32s, levels: Floats, cubic: Int32s, sizes: Int32s, rules: Float64s,
        moves: Float64s, out: Float64s,
    ) -> None:  # fmt: skip
        """Write operations that were drawn for images as edits; see `ops.policy.policies`.

        Args:
            numbers: of the operations, int32 ``[n, K]``.
            levels: of each, float32 ``[n, K]``, at most 1e6.
            cubic: 1 where pixels are taken by cubic interpolation, int32 ``[n, K]``; ``[0, 0]`` for
                none.
            sizes: height and width of each image, int32 ``[n, 2]``.
            rules: of each operation, `policies.LevelRule`, float64 ``[M, 5]``.
            moves: the edits' numbers of the interpolation that is not cubic, and of the other; and
                the fill of three channels; float64 ``[5]``.
            out: the edits, float64 ``[n, K, 34]``.
        """

    def walk_maker(
        self, reads_floats: bool, writes_floats: bool, height: int, width: int, channels: int, in_planes: bool,
        out_planes: bool, start: Int32s, mirror: Int32s, fill: float, mean: Floats, scale: Floats, window_height: int,
        window_width: int,
    ) -> Maker:  # fmt: skip
        """Return what does as ``walk``: image i of uint8 or float32 becomes row i of uint8 or
        float32."""

    def edit_maker(self, height: int, width: int, channels: int, edits: Float64s) -> Maker:
        """Return what does as ``edit`` with images of a size; ``edits`` are those of each row,
        ``[n, L]``."""

    def make_gray(self, image: Bytes, out: Bytes) -> None:
        """Write the grays of an image in red, green and blue, to one channel or to three."""

    def taps(
        self,
        table: Floats,
        width: float,
        antialias: bool,
        length: int,
        first: Int32s,
        weights: Floats,
    ) -> None:
        """Write the taps of a resize of one axis from ``length`` pixels, as ``Codec.make_rows``
        uses them.

        Args:
            table: of the filter.
            width: of the filter in source pixels.
            antialias: see `kernels.resampling.filter_of`.
            length: pixels.
            first: the first source pixel of each pixel of the result, int32 ``[count]``; written.
            weights: the coefficients, float32 ``[count, support]``; written.
        """

    def warp_nearest(self, image: Bytes, matrix: Floats, fill: Bytes, out: Bytes) -> None:
        """Take the nearest pixels where a matrix says; see `ops.geometry.warp`.

        Args:
            image: uint8 ``[height, width, bytes of a pixel]``.
            matrix: float32 ``[6]`` or ``[8]``.
            fill: the bytes of a pixel outside.
            out: the result, ``[new height, new width, bytes of a pixel]``.
        """

    def warp_linear(
        self, image: NDArray[Any], matrix: Floats, fill: Floats, out: NDArray[Any]
    ) -> None:
        """Blend four pixels where a matrix says; see `ops.geometry.warp`.

        Args:
            image: uint8, uint16 or float32 ``[height, width, channels]``.
            matrix: float32 ``[6]`` or ``[8]``.
            fill: of each channel, float32 ``[channels]``.
            out: the result, of the image's dtype, ``[new height, new width, channels]``.
        """

    def sample_nearest(
        self, image: Bytes, columns: Floats, rows: Floats, fill: Bytes, out: Bytes
    ) -> None:
        """Do as ``warp_nearest`` at the places ``columns`` and ``rows``, float32
        ``[new height, new width]``."""

    def sample_linear(
        self, image: NDArray[Any], columns: Floats, rows: Floats, fill: Floats, out: NDArray[Any]
    ) -> None:
        """Do as ``warp_linear`` at the places ``columns`` and ``rows``, float32
        ``[new height, new width]``."""

    def blur(self, image: NDArray[Any], down: Floats, across: Floats, out: NDArray[Any]) -> None:
        """Blur an image; see `ops.colour.blur`.

        Args:
            image: uint8, uint16 or float32 ``[height, width, channels]``.
            down: weights along the columns, an odd number of them; half of them are fewer than
                rows.
            across: weights along the rows.
            out: the result, like the image.
        """

    def clahe(
        self,
        image: NDArray[np.uint16],
        limit: float,
        rows: int,
        columns: int,
        out: NDArray[np.uint16],
    ) -> None:
        """Make the histogram of each tile even, of each channel by itself; see `ops.colour.clahe`.

        Args:
            image: uint16 ``[height, width, channels]``; images of bytes are edited, see ``edit``.
            limit: how many times its share of the pixels a level may have.
            rows: tiles down.
            columns: tiles across.
            out: the result, like the image, in other memory.
        """

    def resize_as_pillow(
        self, image: Bytes, offset: int, stride: int, height: int, width: int, rows: Int32s, row_count: Int32s,
        row_weights: Int32s, columns: Int32s, column_count: Int32s, column_weights: Int32s, out: Bytes,
    ) -> None:  # fmt: skip
        """Resize a box of an image of bytes; see `kernels.pillow.resize`.

        Args:
            image: one axis: the memory that holds the image.
            offset: where in it the box begins.
            stride: bytes from row to row.
            height: of the box.
            width: of the box.
            rows: of each row of the result the first source row; empty if the height stays, and so
                are the next two.
            row_count: how many source rows it has.
            row_weights: their weights in units of 2**-22, ``[new height, support]``.
            columns: the same for the columns.
            column_count: as before.
            column_weights: as before.
            out: ``[new height, new width, channels]``.
        """
