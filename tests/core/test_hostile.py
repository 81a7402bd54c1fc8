"""The functions of the core refuse any arguments, or stay inside them; under `make sanitize` each
access is seen."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import core, ops
from gpuload.kernels import edits

pytestmark = pytest.mark.skipif(core.native is None, reason=core.problem)

NUM_ROUNDS = 150
PADDING = 64  # bytes beside an array that nothing may write to
UNTOUCHED = 0xA5
REFUSALS = (ValueError, IndexError, TypeError)
WHOLE_NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
NUMBERS = (0.0, -1.0, 1e38, -1e38, float("nan"), float("inf"))


def numbers(*values, dtype="int64"):
    return np.array(values, dtype)


def pixels(*shape, dtype="uint8"):
    return (np.arange(np.prod(shape)) * 7 % 251).astype(dtype).reshape(shape)


def windows():
    return np.array([[1, 2], [-3, 4]], np.int32), np.array([[0, 1], [1, 0]], np.int32)


def steps(count, support, length):
    """Return what ``resize_as_pillow`` gets of an axis: two pixels each, of equal weights."""
    first = (np.arange(count) * (length - 1) // count).astype(np.int32)
    weights = np.zeros((count, support), np.int32)
    weights[:, :2] = 1 << 21
    return first, np.full(count, 2, np.int32), weights


def places(height, width):
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    return columns + np.float32(0.25), rows - np.float32(0.5)


AFFINE = (0.9, 0.1, 1, -0.1, 0.9, 2)
PERSPECTIVE = (*AFFINE, 0.01, 0.02)
MEAN = np.array([1, 2, 3], np.float32)
POLICY = ops.TimmAugment("rand-m9-inc1")


def edits_of_rgb():
    """Return edits of an image of at least 4 x 4 pixels, one of each kind."""
    of, table = edits.of, edits.of_tables(pixels(1, 256))
    inner = np.concatenate(
        [of(1, edits.PIL_AFFINE, 1, *AFFINE, 1, 2, 3), of(1, edits.EQUALIZE)], axis=1
    )
    parts = [
        table, of(1, edits.BRIGHTNESS, 0.5), of(1, edits.CONTRAST, 0.5, 0.5), of(1, edits.SATURATION, 0.5, 0.5),
        of(1, edits.HUE, 0.2), of(1, edits.SHARPNESS, -1), of(1, edits.GRAY), of(1, edits.AUTOCONTRAST),
        of(1, edits.BLUR, 3, 5, *[0.25] * 8), of(1, edits.PIL_CONTRAST, 2), of(1, edits.PIL_SATURATION, 2),
        of(1, edits.PIL_SHARPNESS, 2), of(1, edits.PIL_AUTOCONTRAST), of(1, edits.PIL_AFFINE, 0, *AFFINE, 1, 2, 3),
        of(1, edits.PIL_TURN, 2), of(1, edits.PIL_MIX, 0.5, 1, 0.5, inner.size, *inner[0]), of(1, edits.SKIP, 1, 2),
        of(1, edits.CLAHE, 2.5, 3, 2), of(1, edits.PIL_BLUR, 1, 1 << 22, 1 << 20),
    ]  # fmt: skip
    return np.concatenate(parts, axis=1)[0]


# Arguments that each function takes.
CALLS = {
    "gather_rows": lambda: (pixels(5, 12), numbers(4, 0, 2), np.zeros(40, np.uint8), numbers(0, 13, 28)),
    "crc32": lambda: (pixels(300), 7),
    "crc32_by_128_bits": lambda: (pixels(300), 7),
    "offer_pages": lambda: (pixels(3 * 4096),),
    "gather_pieces": lambda: (
        pixels(60), numbers(0, 50, 7), numbers(9, 10, 0), np.zeros(40, np.uint8), numbers(30, 5, 0),
    ),
    "philox": lambda: (numbers(3, 1), 1, 2, 3, np.zeros((2, 8), np.uint64)),
    "uniform": lambda: (numbers(3, 1), 1, 2, 3, np.zeros((2, 5))),
    "frames": lambda: (pixels(100), 200, True, np.zeros(6, np.int64)),
    "verify": lambda: (pixels(100), numbers(12, 50), numbers(20, 60)),
    "count_values": lambda: (pixels(60), numbers(0, 20, -1, -1).reshape(2, 2), 3, np.zeros(2, np.int64)),
    "count_steps": lambda: (pixels(60), numbers(0, 20, -1, -1).reshape(2, 2), np.zeros(2, np.int64)),
    "fill_steps": lambda: (pixels(60), numbers(0, 20, 20, 60).reshape(2, 2), np.zeros((4, 2), np.int64)),
    "fill_ints": lambda: (
        np.frombuffer(b"\x1a\x04\x0a\x02\x05\x06" * 2, np.uint8), numbers(0, 6, 6, 12).reshape(2, 2), False,
        numbers(2, 2), np.zeros(4, np.int64),
    ),
    "fill_floats": lambda: (
        np.frombuffer(b"\x12\x0a\x0a\x08abcdefgh", np.uint8), numbers(0, 12).reshape(1, 2), False, numbers(2),
        np.zeros(2, np.float32),
    ),
    "fill_bytes": lambda: (
        np.frombuffer(b"\x0a\x05\x0a\x03abc", np.uint8), numbers(0, 7).reshape(1, 2), False, numbers(1),
        np.zeros(1, np.int64), np.zeros(1, np.int64),
    ),
    "lzw_bytes": lambda: (pixels(60), 40),
    "read_jpeg_heads": lambda: (pixels(60), numbers(0, 20), numbers(20, 60), np.zeros((2, 6), np.int32)),
    "features": lambda: (
        pixels(60), numbers(0, 20), numbers(20, 60), numbers(1, 2), numbers(0, 1, 0), numbers(3, 0, 1),
        np.zeros((2, 2, 2), np.int64), np.zeros((3, 2), np.int64),
    ),
    "walk": lambda: (
        pixels(3, 5, 20, 3), False, True, *windows(), 7.0, MEAN, MEAN, np.zeros((2, 3, 4, 18), np.float32),
    ),
    "resize": lambda: (
        pixels(7, 13, 3), np.array([-1, 0, 2, 4], np.int32), np.ones((4, 3), np.float32),
        np.array([-1, 0, 2, 4, 7], np.int32), np.ones((5, 2), np.float32), True, np.zeros((4, 5, 3), np.uint8),
    ),
    "edit": lambda: (pixels(2, 4, 5, 3), np.stack([edits_of_rgb()] * 2), np.zeros((2, 4, 5, 3), np.uint8)),
    "policy_edits": lambda: (
        numbers(1, 5, 10, 0, 2, 3, dtype="i4").reshape(2, 3), numbers(0.5, 30, 4, 0, -1, 2, dtype="f4").reshape(2, 3),
        numbers(0, 1, 0, 1, 0, 1, dtype="i4").reshape(2, 3), np.full((2, 2), 9, np.int32), POLICY._rules, np.ones(5),
        np.zeros((2, 3, 34)),
    ),
    "unfilter": lambda: (pixels(4 * 7) % 5, 2, np.zeros((4, 6), np.uint8)),
    "visit": lambda: (
        [pixels(4, 5, 3), pixels(6, 4, 3)], 2, 3, *windows(), np.array([[7, 9]], np.int32), pixels(3),
        np.stack([edits_of_rgb()] * 2), numbers(0, 1, 2, 3, 1, 0, 5, 4, dtype="i4").reshape(2, 4),
        np.full((2, 2), 9, np.int32), numbers(0, 1, 0, dtype="f4"), 2.0, True,
        numbers(0, 0, 9, 9, 0, 1, 8, 8, dtype="i4").reshape(2, 4),
        np.full((2, 2), 8, np.int32), *windows(), np.array([[4, 18], [5, 17]], np.int32),
        np.full(3, 7, np.uint8), MEAN, MEAN, True,
        [np.zeros((3, 4, 18), np.float32), np.zeros((3, 5, 17), np.float32)], np.zeros(2, np.int8),
    ),
    "make_gray": lambda: (pixels(4, 5, 3), np.zeros((4, 5, 1), np.uint8)),
    "warp_nearest": lambda: (pixels(4, 5, 6), numbers(*AFFINE, dtype="f4"), pixels(6), np.zeros((3, 7, 6), np.uint8)),
    "warp_linear": lambda: (pixels(4, 5, 3), numbers(*PERSPECTIVE, dtype="f4"), MEAN, np.zeros((3, 7, 3), np.uint8)),
    "sample_nearest": lambda: (pixels(4, 5, 6), *places(3, 7), pixels(6), np.zeros((3, 7, 6), np.uint8)),
    "sample_linear": lambda: (
        pixels(4, 5, 3, dtype="u2"), *places(3, 7), MEAN, np.zeros((3, 7, 3), np.uint16),
    ),
    "blur": lambda: (
        pixels(4, 5, 3, dtype="f4"), np.ones(5, np.float32), np.ones(3, np.float32), np.zeros((4, 5, 3), np.float32),
    ),
    "clahe": lambda: (pixels(4, 5, 2, dtype="u2"), 2.5, 3, 2, np.zeros((4, 5, 2), np.uint16)),
    "resize_as_pillow": lambda: (
        pixels(7, 13, 3), *steps(4, 3, 6), *steps(5, 2, 8), np.zeros((4, 5, 3), np.uint8),
    ),
}  # fmt: skip


def visit(
    images, count, channels, start, mirror, windows, fill, edits, boxes, sizes, table, width, antialias, nearest_boxes,
    nearest_sizes, last_start, last_mirror, last_windows, last_fill, mean, scale, out_planes, out, declined,
):  # fmt: skip
    """Take images through a visit of each kind of step."""
    steps = core.native.Visit(count, channels)
    steps.walk(start, mirror, windows, fill)
    steps.edit(edits)
    steps.resize(boxes, sizes, table, width, antialias)
    steps.resize(nearest_boxes, nearest_sizes, np.empty(0, np.float32), 1.0, False)
    steps.walk(last_start, last_mirror, last_windows, last_fill)
    steps.finish(mean, scale, out_planes)
    steps.make_rows(images, out, declined)


def features(raw, begins, ends, sections, keys, kinds, spans, counts):
    query = core.native.FeatureQuery(
        [(section, b"ab") for section in sections.tolist()],
        list(zip(keys.tolist(), kinds.tolist(), strict=False)),
    )
    query.find(raw, begins, ends, spans, counts)


def walk(images, in_planes, out_planes, start, mirror, fill, mean, scale, out):
    """Walk over every second image: they lie apart."""
    planes = {"in_planes": in_planes, "out_planes": out_planes}
    pixel_walk = core.native.PixelWalk(**planes, fill=fill, mean=mean, scale=scale)
    pixel_walk.run(images[::2], start, mirror, out)


def resize(image, rows, row_weights, columns, column_weights, vertical_first, out):
    """Resize a box in the middle of an image."""
    vertical, horizontal = (rows, row_weights), (columns, column_weights)
    core.native.resize(image[1:7, 2:10], vertical, horizontal, vertical_first, out)


def resize_as_pillow(
    image, rows, row_count, row_weights, columns, column_count, column_weights, out
):
    none = np.zeros((0, 0))
    down, across = (
        (rows, row_count, none, row_weights),
        (columns, column_count, none, column_weights),
    )
    core.native.resize_as_pillow(image[1:7, 2:10], down, across, out)


def policy_edits(numbers, levels, cubic, sizes, rules, moves, out):
    core.native.PolicyRules(rules, moves).write_edits(numbers, levels, cubic, sizes, out)


# Calls of several functions of the core, or with views of arrays.
CALLERS = {
    function.__name__: function
    for function in (visit, features, walk, resize, resize_as_pillow, policy_edits)
}


def choice(rng, values):
    return values[int(rng.integers(len(values)))]


def other_shape(array, rng):
    shape = list(array.shape)
    axis = int(rng.integers(array.ndim))
    shape[axis] = max(0, choice(rng, (0, shape[axis] - 1, shape[axis] + 1, 2 * shape[axis])))
    return np.resize(array, shape)


def other_values(array, rng):
    array = array.copy()
    if array.size and array.dtype.kind == "f":
        array.reshape(-1)[int(rng.integers(array.size))] = choice(rng, NUMBERS)
    elif array.size:
        limits = np.iinfo(array.dtype)
        values = [limits.min, limits.max, *range(max(limits.min, -2), 100)]
        array.reshape(-1)[int(rng.integers(array.size))] = choice(rng, values)
    return array


def hostile(argument, rng):
    """Return an argument of another value, size or dtype."""
    if isinstance(argument, bool):
        return not argument
    if isinstance(argument, int):
        return choice(rng, (argument - 1, argument + 1, *WHOLE_NUMBERS))
    if isinstance(argument, float):
        return choice(rng, NUMBERS)
    if isinstance(argument, list):
        return [hostile(argument[0], rng), *argument[1:]]
    change = choice(
        rng, (other_shape, other_values, other_values, lambda array, _: array.astype(np.float64))
    )
    return change(argument, rng)


def padded(array):
    """Return a copy of an array with memory beside it that is looked at afterwards, and this
    memory."""
    memory = np.full(array.nbytes + 2 * PADDING, UNTOUCHED, np.uint8)
    copy = memory[PADDING : PADDING + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, memory


def is_untouched(memory):
    return (memory[:PADDING] == UNTOUCHED).all() and (
        memory[memory.size - PADDING :] == UNTOUCHED
    ).all()


@pytest.mark.parametrize(
    "has_padding", [False, True]
)  # without it a sanitizer sees what is read beyond an array
@pytest.mark.parametrize("name", CALLS)
def test_a_function_refuses_its_arguments_or_stays_inside_them(name, has_padding):
    function, rng, num_refused = (
        CALLERS.get(name) or getattr(core.native, name),
        np.random.default_rng([has_padding, *name.encode()]),
        0,
    )
    function(*CALLS[name]())

    for _ in range(NUM_ROUNDS):
        arguments, memories = list(CALLS[name]()), []
        for _ in range(int(rng.integers(1, 3))):
            place = int(rng.integers(len(arguments)))
            arguments[place] = hostile(arguments[place], rng)
        for place, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                arguments[place] = argument.copy()
                if has_padding:
                    arguments[place], memory = padded(argument)
                    memories.append(memory)
        try:
            function(*arguments)
        except REFUSALS:
            num_refused += 1
        assert all(is_untouched(memory) for memory in memories)

    assert num_refused > NUM_ROUNDS // 10


@pytest.mark.parametrize(
    ("weight", "fits"),
    [(8_413_280, True), (8_413_281, False), (-8_413_280, True), (-8_413_281, False)],
)
def test_weights_as_of_pillow_are_refused_where_a_sum_would_not_fit_into_32_bits(weight, fits):
    """255 * 8,413,281 + 2**21 is above 2**31 - 1."""
    image, out, none = pixels(2, 2, 1), np.zeros((2, 1, 1), np.uint8), (numbers(dtype="i4"),) * 2
    axis = (
        numbers(0, dtype="i4"),
        numbers(2, dtype="i4"),
        np.array([[weight // 2, weight - weight // 2]], np.int32),
    )
    exact = np.zeros((0, 0))
    no_steps = (*none, exact, np.zeros((0, 0), np.int32))
    arguments = (image, no_steps, (*axis[:2], exact, axis[2]), out)
    if fits:
        core.native.resize_as_pillow(*arguments)
    else:
        with pytest.raises(ValueError, match="weights are too large"):
            core.native.resize_as_pillow(*arguments)
