"""The interface of the compiled core: its functions and classes as types, with their arguments.

Arrays are in C order and have exactly the dtype that is said; arrays for results are writeable. The
core checks sizes, places and numbers (`cpp/door.hpp`), and raises ``ValueError``, ``IndexError`` or
``TypeError``: these are faults of a caller in gpuload, never of a file. The interpreter's lock is
free while the core works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]
Float64s = NDArray[np.float64]
Marks = NDArray[np.int8]
Pixels = NDArray[Any]  # uint8 or float32
Images = Pixels | Sequence[Pixels]  # of one dtype and three axes each, or all in one array
Buffer = Bytes | bytes | bytearray | memoryview
Size = tuple[int, int]  # height and width, pixels

# Of each pixel of a resized axis: the first source pixel, and coefficients, float32 [n, support];
# or the first source pixel, how many there are, their weights, float64 [n, support], and the weights
# in units of 2**-22.
Taps = tuple[Int32s, Floats]
PixelSums = tuple[Int32s, Int32s, Float64s, Int32s]

# The results of ``Maps.copy``, and the values of ``Maps.states``.
COPIED, CHANGED, FAILED, OUTSIDE = range(4)
REFUSED, UNTRIED, MAPPED = -1, 0, 1

# The results of ``Copies.state`` and ``Copies.wait``.
NOT_DONE, DONE, REDO = range(3)


class PathTable(NamedTuple):
    """The paths of files: that of file i is folder ``folder_of[i]`` and name i.

    Attributes:
        folders: the bytes of all folders, each with its slash.
        folder_bounds: int64 ``[num_folders + 1]``, where each begins, and the last ends.
        folder_of: uint32 ``[num_files]``.
        names: the bytes of all names.
        name_bounds: int64 ``[num_files + 1]``.
    """

    folders: Bytes
    folder_bounds: Int64s
    folder_of: NDArray[np.uint32]
    names: Bytes
    name_bounds: Int64s


class Maps(Protocol):
    """Files that are read from memory maps, or by positioned reads.

    A file is not mapped where a map is not worth it or cannot be made. Nothing writes to the arrays
    while the maps are there.

    Args:
        paths: of the files.
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
        self, paths: PathTable, stamps: Int64s, piece_bytes: int, most_maps: int
    ) -> None: ...

    def copy(
        self, files: Int64s, offsets: Int64s, lengths: Int64s, out: Bytes, begins: Int64s
    ) -> tuple[int, int]:
        """Copy ``lengths[i]`` bytes at ``offsets[i]`` of file ``files[i]`` to ``out[begins[i]:]``.

        Returns:
            A number and COPIED, CHANGED, FAILED or OUTSIDE: the number of the file, or for OUTSIDE
            of the extent; nothing was written then. The file is looked at after its bytes were
            copied.
        """

    def map(self, files: Int64s, offsets: Int64s, lengths: Int64s) -> None:
        """Map the files that these extents make worth it; errors are left to ``copy``."""

    def advise(self, files: Int64s, offsets: Int64s, lengths: Int64s, piece_bytes: int) -> None:
        """Ask the system to load these bytes into memory soon; only of files that are mapped."""

    def states(self, files: Int64s, out: Marks) -> None:
        """Write REFUSED, UNTRIED or MAPPED for each file."""


class FileRecords(Protocol):
    """Records of one size, one after the other in files. Nothing writes to the arrays.

    Args:
        maps: of the files.
        starts: int64 ``[num_files + 1]``, the first record of each file, and the number of all.
        files: int64 ``[num_files]``, their numbers in ``maps``.
        offsets: int64 ``[num_files]``, the byte of each where its first record begins.
        record_bytes: of a record.
    """

    def __init__(
        self, maps: Maps, starts: Int64s, files: Int64s, offsets: Int64s, record_bytes: int
    ) -> None: ...


class Maker(Protocol):
    """An op on the bytes of a record, with the draws for each row of a plan.

    Any number of threads may use it at a time.
    """


# Of a record: where it begins, its bytes, the block of memory that it goes to, and the op on it;
# None: it is copied. A maker knows all rows of the plan.
PlanPart = tuple[int, int, int, Maker | None]


class CopyPlan(Protocol):
    """Where the records of some steps lie.

    Args:
        ends: int64 ``[num_steps]``, the row behind the last of each step.
    """

    def __init__(self, ends: Int64s) -> None: ...

    def add(
        self, records: FileRecords, numbers: Int64s, rows: Int64s | None, parts: Sequence[PlanPart]
    ) -> None:
        """Add records, before there are copies.

        Args:
            records: those in some files.
            numbers: int64 ``[n]``, which of them; copied.
            rows: int64 ``[n]``, the row of each, ascending, copied; None: record i is row i.
            parts: of each record, where they go.
        """


class Queue(Protocol):
    """Work that threads do without the interpreter's lock, and calls of them back to Python."""

    def __init__(self) -> None: ...

    def serve(self) -> int:
        """Work until there is a call; return the largest number that a call allowed.

        It is -1 after ``end``.
        """

    def call(self, until: int, num_threads: int) -> None:
        """Call threads out of ``serve``, and allow a number."""

    def end(self, ignored: object = None, /) -> None:
        """Call all threads out of ``serve``, now and later.

        Never waits; a callback of a weak reference may be this.
        """

    def leave(self) -> None:
        """Say that a thread which was called does not come back."""

    def take_idle_s(self) -> float:
        """Return the seconds that threads waited in ``serve`` since the last call."""


class Copies(Protocol):
    """Copies of the records of some steps from files.

    Threads of a queue do it, and the thread that waits for a step. Dropping the copies withdraws
    the pieces that no thread has begun, and waits for the others.

    Args:
        queue: its threads do it.
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
        self, queue: Queue, plan: CopyPlan, first_step: int, num_steps: int, piece_rows: int,
        blocks: Sequence[Bytes],
    ) -> None: ...  # fmt: skip

    def state(self, step: int) -> int:
        """Return NOT_DONE, DONE, or REDO.

        REDO: a file cannot be read, and ``Maps.copy`` returns the reason.
        """

    def wait(self, step: int) -> int:
        """Copy until a step is done, or nothing is left, 20 ms at most; return its state."""

    def times(self) -> tuple[float, float, float, float, float]:
        """Return seconds, as `stats.Stage` has them.

        Those of all pieces; of the pieces that were sampled, and of these blocked, starved, and
        off_core.
        """

    def spans(self) -> list[tuple[int, float, float, int]]:
        """Return step, begin, end (``perf_counter``) and thread of each piece of steps that are
        done."""


class FeatureQuery(Protocol):
    """The features that are wanted of serialized tf.train.Examples; copied.

    Args:
        keys: the section and the text of each key. Section 1 has features, or those of a context, 2
            has feature lists.
        features: the number of its key, and the kind of its values: 1 bytes, 2 float, 3 int64; 0:
            it is a feature list, and is not counted. Several features may have the same key.
    """

    def __init__(
        self, keys: Sequence[tuple[int, bytes]], features: Sequence[tuple[int, int]]
    ) -> None: ...

    def find(self, raw: Bytes, begins: Int64s, ends: Int64s, spans: Int64s, counts: Int64s) -> int:
        """Find the features in messages, and count their values.

        Args:
            raw: the messages.
            begins: of each message, int64 ``[n]``.
            ends: of each message, int64 ``[n]``.
            spans: int64 ``[num_keys, n, 2]``: begin and end of each map entry, of a key that occurs
                twice the last; -1 where there is none; written.
            counts: int64 ``[num_features, n]``; -1 for a feature that is not there; written.

        Returns:
            -1, or the row that cannot be read, or that holds another kind of values.
        """


class JpegFiles(Protocol):
    """JPEG files, and the part of each that is wanted. Nothing writes to the arrays.

    Args:
        raw: the bytes of the files.
        begins: of each file, int64 ``[n]``.
        ends: of each file, int64 ``[n]``.
        heads: int32 ``[n, 6]``, as ``Native.read_jpeg_heads`` writes them.
        regions: top, left, height and width in pixels, int32 ``[n, 4]``; ``[0, 4]``: all of each.
    """

    def __init__(
        self, raw: Bytes, begins: Int64s, ends: Int64s, heads: Int32s, regions: Int32s
    ) -> None: ...


class Codec(Protocol):
    """Decoders of nvImageCodec, called without Python; they belong to the process that made them.

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


class Visit(Protocol):
    """Steps that images of bytes go through, each of them all the way at once; empty at first.

    Steps are added before there are images, in their order; numbers are copied. An image that does
    not fit its numbers is not found here: it is declined.

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
            antialias: as in `kernels.resampling`.
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
        """Say how the last step, a walk of one fill for all channels, writes values.

        Args:
            mean: of each channel: ``(value - mean) * scale``, where the result is float32.
            scale: of each channel.
            out_planes: True for CHW.
        """

    def make_rows(self, images: Images, out: Images, declined: Marks) -> None:
        """Take images through the steps, each into its result.

        Args:
            images: uint8 ``[height, width, channels]``.
            out: of each image its result, ``[channels, height, width]`` behind a walk that writes
                planes: uint8, or float32 behind a walk; written.
            declined: 1 for each image that was not made; then its result may hold anything; int8
                ``[count]``, written.
        """

    def decode_rows(self, codec: Codec, files: JpegFiles, out: Images, declined: Marks) -> float:
        """Do the same with the images of files; return the seconds that decoding took.

        Images of three channels are RGB, of one gray (as `images.decode` makes it of these), of
        four RGBA, all opaque. One is declined, too, if its file is damaged or is not decoded here.
        """

    def maker(self, writes_floats: bool, size: Size, out_size: Size) -> Maker:
        """Return the steps for images of one size: image i for row i, of float32 or uint8."""


class PixelWalk(Protocol):
    """How a walk changes pixels, of images of any size; copied. See `kernels.walk.Walk`.

    Args:
        in_planes: True for images in CHW, False for HWC.
        out_planes: the same of the result.
        fill: the value outside the image.
        mean: of each channel: ``(value - mean) * scale``; not for a result in uint8.
        scale: of each channel.
    """

    def __init__(
        self, *, in_planes: bool, out_planes: bool, fill: float, mean: Floats, scale: Floats
    ) -> None: ...

    def run(self, images: Pixels, start: Int32s, mirror: Int32s, out: Pixels) -> None:
        """Crop, mirror, reorder axes and normalise images.

        Args:
            images: four axes; each image is in C order, and they may lie apart.
            start: top and left of each window, int32 ``[n, 2]``.
            mirror: 1 where a window is mirrored down, across, int32 ``[n, 2]``.
            out: four axes, as large as the windows, of the dtype of the images or float32; written.
        """

    def maker(
        self, reads_floats: bool, writes_floats: bool, size: Size, window: Size, start: Int32s,
        mirror: Int32s,
    ) -> Maker:  # fmt: skip
        """Return ``run`` for images of one size and dtype: image i becomes row i."""


class PolicyRules(Protocol):
    """The edits that a policy makes of its operations; copied. See `ops.policy.policies`.

    Args:
        rules: of each operation, `policies.LevelRule`, float64 ``[M, 5]``.
        moves: the edits' numbers of the interpolation that is not cubic, and of the other; and the
            fill of three channels; float64 ``[5]``.
    """

    def __init__(self, rules: Float64s, moves: Float64s) -> None: ...

    def write_edits(
        self, numbers: Int32s, levels: Floats, cubic: Int32s, sizes: Int32s, out: Float64s
    ) -> None:
        """Write operations that were drawn for images as edits.

        Args:
            numbers: of the operations, int32 ``[n, K]``.
            levels: of each, float32 ``[n, K]``, at most 1e6.
            cubic: 1 where pixels are taken by cubic interpolation, int32 ``[n, K]``; ``[0, 0]`` for
                none.
            sizes: height and width of each image, int32 ``[n, 2]``.
            out: the edits, float64 ``[n, K, 34]``.
        """


class Native(Protocol):
    """The extension module.

    Attributes:
        source: a checksum of the C++ files that it was built from, see `core.source`.
    """

    source: str
    Maps: type[Maps]
    FileRecords: type[FileRecords]
    CopyPlan: type[CopyPlan]
    Queue: type[Queue]
    Copies: type[Copies]
    FeatureQuery: type[FeatureQuery]
    JpegFiles: type[JpegFiles]
    Codec: type[Codec]
    Visit: type[Visit]
    PixelWalk: type[PixelWalk]
    PolicyRules: type[PolicyRules]

    def philox(
        self, records: Int64s, epoch: int, seed: int, stream: int, out: NDArray[np.uint64]
    ) -> None:
        """Write the words of each record into its row, uint64 ``[n, 4 * blocks]``; see `rng`."""

    def uniform(self, records: Int64s, epoch: int, seed: int, stream: int, out: Float64s) -> None:
        """Write numbers in [0, 1) of each record into its row, ``[n, count]``; see `rng`."""

    def permute(
        self, positions: Int64s, length: int, high: int, low: int, keys: NDArray[np.uint32],
        out: Int64s,
    ) -> None:  # fmt: skip
        """Write the numbers at positions of an `order.Permutation`; ``keys`` is ``[rounds, 2]``."""

    def thread_usage(self) -> tuple[int, int, int]:
        """Return the times of the calling thread: ns on a core, ns in the queue for a core.

        The third number is how often it waited. One that the system does not say is -1.
        """

    def divide_gap(
        self, time_ns: int, before: tuple[int, int, int], after: tuple[int, int, int]
    ) -> tuple[int, ...]:
        """Divide the time in which a thread did not run, as `stats.stages.divide_gap` does."""

    def gather_rows(self, rows: Bytes, numbers: Int64s, out: Bytes, begins: Int64s) -> int:
        """Copy row ``numbers[i]`` of ``rows``, uint8 ``[num_rows, size]``, to ``out[begins[i]:]``.

        Returns:
            -1, or the place of the first number or begin that lies outside: nothing was copied.
        """

    def gather_pieces(
        self, raw: Bytes, begins: Int64s, lengths: Int64s, out: Bytes, places: Int64s
    ) -> None:
        """Copy ``lengths[i]`` bytes at ``begins[i]`` of ``raw`` to ``out[places[i]:]``."""

    def can_map(self) -> bool:
        """Return True where the guard against maps of files that shrink works: Linux with statx."""

    def num_free_maps(self) -> int:
        """Return how many more files can be mapped in this process."""

    def offer_pages(self, memory: Bytes) -> bool:
        """Let the system take whole pages of memory when it is short of it; False: it cannot."""

    def crc32(self, data: Buffer, before: int = 0) -> int | None:
        """Return the CRC-32 of bytes behind a part with the checksum ``before``, or None.

        None: zlib's is as fast here.
        """

    def crc32_by_128_bits(self, data: Buffer, before: int = 0) -> int | None:
        """Return the same with registers of 128 bits."""

    def crc32c(self, data: Buffer, before: int = 0) -> int:
        """Return the CRC32C of bytes behind a part with the checksum ``before``; 0: of no bytes."""

    def crc32c_by_tables(self, data: Buffer, before: int = 0) -> int:
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
        """Compare TFRecords with their frames; their payloads are ``raw[begins[i]:ends[i]]``.

        Returns:
            The first row that is damaged, and 1 for another length, 2 for a wrong checksum of the
            length, 3 for one of the payload; or 0 and 0.
        """

    def count_values(self, raw: Bytes, spans: Int64s, kind: int, counts: Int64s) -> int:
        """Count the values of features at spans; return the same as ``FeatureQuery.find``."""

    def count_steps(self, raw: Bytes, spans: Int64s, counts: Int64s) -> int:
        """Count the features of the list of each map entry, -1 for none; return the same."""

    def fill_steps(self, raw: Bytes, spans: Int64s, steps: Int64s) -> None:
        """Write begin and end of each feature of lists that were counted, int64 ``[total, 2]``."""

    def fill_ints(
        self, raw: Bytes, spans: Int64s, are_entries: bool, counts: Int64s, values: Int64s
    ) -> None:
        """Write the values of features that were counted, one feature after the other.

        Args:
            raw: the messages of all records.
            spans: begin and end of each feature, or of the map entry that holds it, ``[n, 2]``.
            are_entries: which of these.
            counts: how many values each has, as they were counted.
            values: has room for all of them.
        """

    def fill_floats(
        self, raw: Bytes, spans: Int64s, are_entries: bool, counts: Int64s, values: Floats
    ) -> None:
        """Do the same for floats."""

    def fill_bytes(
        self, raw: Bytes, spans: Int64s, are_entries: bool, counts: Int64s, begins: Int64s,
        ends: Int64s,
    ) -> None:  # fmt: skip
        """Do the same for bytes: where in ``raw`` each value begins and ends."""

    def lzw_bytes(self, stream: Bytes, enough: int) -> int:
        """Count the bytes that LZW data of TIFF stand for, to the first Clear with ``enough``.

        Returns:
            The number; -1 if the data do not begin with Clear, -2 if a code is not in the table.
        """

    def unfilter(self, rows: Bytes, pixel_bytes: int, out: Bytes) -> bool:
        """Undo the filters of the rows of a PNG; see `images.decode`.

        Args:
            rows: of each row its filter and its bytes, one axis.
            pixel_bytes: of a pixel, 1 where that has fewer bits.
            out: uint8 ``[height, row_bytes]``; written.

        Returns:
            False if PNG does not have a filter.
        """

    def read_scans(
        self, file: Bytes | memoryview, frame: int, place: int, segments: Sequence[tuple[int, int]],
        max_scans: int,
    ) -> tuple[int, int]:  # fmt: skip
        """Read the scans of a JPEG, at most ``max_scans``; see `images.scans.read`.

        Returns:
            Their number, and where the data of the only one ends; -1 and 0 if they are damaged.
        """

    def read_jpeg_heads(self, raw: Bytes, begins: Int64s, ends: Int64s, heads: Int32s) -> None:
        """Read the heads of JPEG files, ``raw[begins[i]:ends[i]]``; see `images.head.read_heads`.

        Args:
            raw: the files.
            begins: of each file, int64 ``[n]``.
            ends: of each file, int64 ``[n]``.
            heads: int32 ``[n, 6]``: height and width of the upright image, scans, channels,
                orientation, and the end of the only scan; zeros for a file that is not a JPEG or is
                refused; written.
        """

    def resize(
        self, box: Pixels, vertical: Taps, horizontal: Taps, vertical_first: bool, out: Pixels
    ) -> None:
        """Resize a box of an image; see `kernels.resampling`.

        Args:
            box: three axes; its rows may lie apart.
            vertical: for the rows of the result.
            horizontal: for its columns, up to a multiple of any number.
            vertical_first: which pass is the first.
            out: ``[new height, new width, channels]``, of the dtype of the image; written.
        """

    def resize_as_pillow(self, box: Bytes, down: PixelSums, across: PixelSums, out: Bytes) -> None:
        """Resize a box of an image of bytes; see `kernels.pillow.resize`.

        Args:
            box: three axes; its rows may lie apart.
            down: for the rows of the result; empty if the height stays.
            across: for the columns.
            out: ``[new height, new width, channels]``; written.
        """

    def taps(
        self, table: Floats, width: float, antialias: bool, length: int, first: Int32s,
        weights: Floats,
    ) -> None:  # fmt: skip
        """Write the taps of a resize of one axis from ``length`` pixels, as ``Visit`` uses them.

        Args:
            table: of the filter.
            width: of the filter in source pixels.
            antialias: see `kernels.resampling.filter_of`.
            length: pixels.
            first: the first source pixel of each pixel of the result, int32 ``[count]``; written.
            weights: the coefficients, float32 ``[count, support]``; written.
        """

    def edit(self, images: Bytes, edits: Float64s, out: Bytes) -> None:
        """Do edits to images of bytes, one image after the other.

        Args:
            images: uint8 ``[n, height, width, channels]``.
            edits: of each image, float64 ``[n, L]``; see `kernels.edits`.
            out: the results, of the shape of the images, in other memory.
        """

    def edit_maker(self, shape: tuple[int, ...], edits: Float64s) -> Maker:
        """Return ``edit`` for images of a shape, HWC; ``edits`` are of each row, ``[n, L]``."""

    def make_gray(self, image: Bytes, out: Bytes) -> None:
        """Write the grays of an image in red, green and blue, to one channel or to three."""

    def warp_nearest(self, image: Bytes, matrix: Floats, fill: Bytes, out: Bytes) -> None:
        """Take the nearest pixels at the places that a matrix gives; see `ops.geometry.warp`.

        Args:
            image: uint8 ``[height, width, bytes of a pixel]``.
            matrix: float32 ``[6]`` or ``[8]``.
            fill: the bytes of a pixel outside.
            out: the result, ``[new height, new width, bytes of a pixel]``.
        """

    def warp_linear(
        self, image: NDArray[Any], matrix: Floats, fill: Floats, out: NDArray[Any]
    ) -> None:
        """Blend four pixels at such places, of images of uint8, uint16 or float32.

        ``fill`` has a number for each channel, float32.
        """

    def sample_nearest(
        self, image: Bytes, columns: Floats, rows: Floats, fill: Bytes, out: Bytes
    ) -> None:
        """Do as ``warp_nearest`` at places, ``columns`` and ``rows`` of each pixel of ``out``."""

    def sample_linear(
        self, image: NDArray[Any], columns: Floats, rows: Floats, fill: Floats, out: NDArray[Any]
    ) -> None:
        """Do as ``warp_linear`` at such places."""

    def blur(self, image: NDArray[Any], down: Floats, across: Floats, out: NDArray[Any]) -> None:
        """Blur an image; see `ops.colour.blur`.

        Args:
            image: uint8, uint16 or float32 ``[height, width, channels]``.
            down: weights along the columns, an odd number; half of them are fewer than rows.
            across: weights along the rows.
            out: the result, like the image.
        """

    def clahe(
        self, image: NDArray[np.uint16], limit: float, rows: int, columns: int,
        out: NDArray[np.uint16],
    ) -> None:  # fmt: skip
        """Make the histogram of each tile even, of each channel by itself; see `ops.colour.clahe`.

        Args:
            image: uint16 ``[height, width, channels]``; images of bytes are edited, see ``edit``.
            limit: how many times its share of the pixels a level may have.
            rows: tiles down.
            columns: tiles across.
            out: the result, like the image, in other memory.
        """
