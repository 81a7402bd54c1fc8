"""Every op with every kind of field, record and annotation that does not suit it: a result that
fits, or our error.

The ops are the examples of their docstrings. What an op makes is what the loader's spec says; what
it refuses is a GpuloadError with cause and remedy: when the loader is made, or naming the record.
`test_arguments.py` has wrong arguments, `docs/ops.md` the dtypes that each op takes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError, RowError
from gpuload.graph.graph import compile_ops
from gpuload.ops import boxes
from tests.opexamples import DTYPES, ELSE, NAMES, PAGE, example, example_arguments
from tests.ops.test_arguments import BOXES, CASES, FILES, IMAGES

COUNT = 4
SIDE = 32
LARGE = [10**9, 2**31 - 1, 3e38, -1, (0, 10**9), (1, 3e38)]
GOOD = np.array([[4, 6, 20, 24], [1, 1, 5, 9]], np.float32)
NAN, INF = float("nan"), float("inf")


def noise(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return values of a dtype that are no labels of ten classes, and no nan."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(0)
    if dtype.kind in "SUM":
        return np.full(shape, {"S": b"abc", "U": "abc", "M": 0}[dtype.kind], dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def uniform(dtype: Any, *shape: int) -> gl.Source:
    """Return records of one shape."""
    return gl.arrays(x=noise(dtype, (COUNT, *shape)))


def varying(dtype: Any, *shapes: tuple[int, ...]) -> gl.Source:
    """Return a record of each shape."""
    values = [noise(dtype, shape) for shape in shapes]
    lengths = [{shape[axis] for shape in shapes} for axis in range(len(shapes[0]))]
    declared = tuple(None if len(of_axis) > 1 else next(iter(of_axis)) for of_axis in lengths)
    return beside("x", dtype, declared, values)


def beside(name: str, dtype: Any, shape: tuple[int | None, ...], values: list[Any]) -> gl.Source:
    """Return a source of one field that holds these values."""
    return gl.records(
        len(values),
        lambda numbers: {name: [values[n] for n in numbers]},
        fields={name: (dtype, shape)},
    )


def texts(kind: str) -> gl.Source:
    """Return a text of its own length for each record."""
    letter = "a" if kind == "str" else b"a"
    return beside("x", kind, (), [letter * n for n in range(COUNT)])


FIELDS = {
    **{
        f"{dtype} images": (lambda dtype=dtype: uniform(dtype, SIDE, SIDE, 3))
        for dtype in (*DTYPES, "complex64")
    },
    **{f"{n} channels": (lambda n=n: uniform("u1", SIDE, SIDE, n)) for n in (0, 1, 2, 4, 5)},
    **{
        f"{dtype} numbers": (lambda dtype=dtype: uniform(dtype))
        for dtype in ("?", "u1", "i8", "f4", "c8", "M8[s]")
    },
    "texts of one length": lambda: uniform("S3"),
    "texts": lambda: texts("str"),
    "bytes": lambda: texts("bytes"),
    "channels first": lambda: uniform("u1", 3, SIDE, SIDE),
    "images of one pixel": lambda: uniform("u1", 1, 1, 3),
    "images of no pixel": lambda: uniform("u1", 0, SIDE, 3),
    "images of many sizes": lambda: varying("u1", (30, 40, 3), (33, 35, 3), (50, 32, 3)),
    "float images of many sizes": lambda: varying("f4", (30, 40, 3), (33, 35, 3), (50, 32, 3)),
    "small images": lambda: varying("u1", (1, 9, 3), (2, 5, 3), (7, 1, 3)),
    "images of which one has no pixel": lambda: varying("u1", (32, 9, 3), (0, 5, 3), (7, 0, 3)),
    "images of many channels": lambda: varying("u1", (40, 40, 1), (40, 40, 3)),
    "masks without channels": lambda: varying("u1", (30, 40), (40, 30)),
    "volumes": lambda: uniform("u1", 4, SIDE, SIDE, 2),
    "vectors": lambda: uniform("f4", 5),
    "rows of many lengths": lambda: varying("i8", (0,), (3,)),
    "matrices": lambda: uniform("u1", SIDE, SIDE),
    "images of nan": lambda: gl.arrays(x=np.full((COUNT, SIDE, SIDE, 3), NAN, np.float32)),
    "images of infinity": lambda: gl.arrays(x=np.full((COUNT, SIDE, SIDE, 3), INF, np.float32)),
    "boxes": lambda: uniform("f4", 3, 4).mark(x="xyxy"),
    "bytes that are no file": lambda: uniform("u1", 60).mark(x="encoded"),
    "another field": lambda: uniform("u1", SIDE, SIDE, 3).rename(x="y"),
}


def on_x(name: str) -> Any:
    """Return the example of an op as it acts on the field x."""
    op = example(name)
    return (
        gl.ops.Dali(op.fn, on="x", **op.settings)
        if name == "Dali"
        else dataclasses.replace(op, on="x")
    )


def run(source: gl.Source, op: Any) -> Any:
    """Return the batch of all records behind an op; their values are what the loader's spec
    says."""
    with gl.Loader(source, len(source), ops=[op], device="cpu", num_threads=1) as loader:
        batch = loader.batch_at(0)
        for field in loader.port.graph.spec_out:
            for value in map(np.asarray, batch[field.name]):
                if not field.text and field.shape is not None:
                    assert value.dtype == field.dtype or field.dtype.kind in "SU"
                    assert len(value.shape) == len(field.shape)
                    assert all(
                        n in (None, m) for n, m in zip(field.shape, value.shape, strict=True)
                    )
        return batch


def refusal(call: Any) -> Any:
    """Return the error that a call raises, which has a cause and a remedy; None if it raises
    none."""
    try:
        call()
    except (GpuloadError, RowError) as caught:
        error = caught
    else:
        return None
    assert error.cause, error
    assert error.remedy, error
    return error


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("error")
def test_a_field_is_taken_or_refused_when_the_loader_is_made_or_with_its_record(name):
    for kind, make_source in FIELDS.items():
        source = make_source()
        error = refusal(lambda source=source: run(source, on_x(name)))
        what = "" if error is None else error.what

        assert error is None or name in what or "record" in what or "'x'" in what, kind
        assert kind != "another field" or "no field 'x'" in what


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSE])
def test_the_dtypes_that_the_page_names_are_those_that_the_op_takes(name):
    row = next(
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| `{name}(")
    )
    # As images have them: floats are from 0 to 1 where an op takes 1 for white.
    images = {dtype: noise(dtype, (COUNT, SIDE, SIDE, 3)) for dtype in DTYPES}
    images |= {
        dtype: np.clip(image, 0, 1) for dtype, image in images.items() if image.dtype.kind == "f"
    }
    sources = {dtype: gl.arrays(x=image) for dtype, image in images.items()}

    dtypes = [
        dtype
        for dtype in DTYPES
        if refusal(lambda dtype=dtype: run(sources[dtype], on_x(name))) is None
    ]

    text = row.split(" | ")[2].strip(" |")
    refused = text.removeprefix("all").removeprefix(" but ")
    assert dtypes == (
        [dtype for dtype in DTYPES if dtype != refused]
        if text.startswith("all")
        else text.split(", ")
    )


@pytest.mark.parametrize(("name", "argument"), CASES, ids=["-".join(case) for case in CASES])
def test_a_large_argument_is_refused_or_drawn_with(name, argument):
    if argument in ("on", "settings", "fn"):
        return
    for value in LARGE:

        def draw(value: Any = value) -> None:
            op = getattr(gl.ops, name)(**{**example_arguments(name), argument: value})
            graph = compile_ops(
                FILES if name == "Decode" else BOXES if op.traits.marks.are_read else IMAGES, [op]
            )
            sizes = {field: np.full((3, 2), SIDE, np.int32) for field in graph.touched}
            boxes = {field: [GOOD] * 3 for field in graph.fields_to_draw}
            if name != "Decode":  # which reads headers of files
                partners = np.zeros((3, graph.group - 1 or 1), np.int32)
                graph.draw(
                    seed=0,
                    epoch=0,
                    records=np.arange(3),
                    sizes=sizes,
                    partners=partners,
                    values=boxes,
                )

        refusal(draw)


def test_a_result_that_does_not_fit_into_memory_names_the_record():
    with pytest.raises(gl.errors.TooLargeError) as caught:
        run(uniform("u1", SIDE, SIDE, 3), gl.ops.RandomZoomOut(side_range=(4e5, 4e5), p=1))

    assert "record 0" in str(caught.value)
    assert "smaller images" in caught.value.remedy


@pytest.mark.parametrize(
    ("op", "size"),
    [
        (gl.ops.ScaleJitter(1024, scale=(1e6, 1e6), on="x"), "1024000000 x 1024000000"),
        (gl.ops.RandomZoomOut(side_range=(1e6, 1e6), p=1, on="x"), "32000000 x 32000000"),
        (gl.ops.RandomResize(2**23, 2**23, on="x"), "8388608 x 33554432"),
        (gl.ops.Resize(shorter=2**23, on="x"), "8388608 x 33554432"),
    ],
)
def test_a_result_with_a_side_that_float32_does_not_count_names_the_record(op, size):
    long = op if type(op) in (gl.ops.RandomResize, gl.ops.Resize) else None

    error = refusal(
        lambda: run(
            varying("u1", (SIDE, 128, 3), (SIDE, 127, 3)) if long else uniform("u1", SIDE, SIDE, 3),
            op,
        )
    )

    assert error is not None
    assert size in str(error)
    assert "record 0" in str(error)


# Beside an image

MOVERS = [
    name for name in NAMES if (geometric := example(name).traits.geometric) and geometric.points
]
PHOTOS = noise("u1", (COUNT, SIDE, SIDE, 3))


def with_boxes(bad: Any, mark: str = "xyxy", dtype: str = "float32") -> gl.Source:
    """Return images with boxes, of which the last record has bad ones."""
    good = GOOD / SIDE if mark.startswith("normalized") else GOOD
    rows = [good.astype(dtype)] * (COUNT - 1) + [np.array([bad], dtype)]
    return gl.zip(gl.arrays(image=PHOTOS), beside("boxes", dtype, (None, 4), rows)).mark(boxes=mark)


def with_field(
    name: str, mark: str, shape: tuple[int | None, ...], good: Any, bad: Any
) -> gl.Source:
    """Return images with boxes and a further field, of which the last record is bad."""
    boxes = beside("boxes", "float32", (None, 4), [GOOD] * COUNT)
    values = beside(name, good.dtype, shape, [good] * (COUNT - 1) + [bad])
    return gl.zip(gl.arrays(image=PHOTOS), boxes, values).mark(boxes="xyxy", **{name: mark})


def points(*bad: float) -> gl.Source:
    """Return images with points, of which the last record has a bad one."""
    return with_field("points", "xy", (None, 2), GOOD[:, :2], np.array([bad], np.float32))


MASK, MASKS = np.zeros((SIDE, SIDE, 1), np.uint8), np.zeros((2, SIDE, SIDE), np.uint8)
BAD = {
    "ends before it begins": lambda: with_boxes([20, 6, 4, 24]),
    "as 'xywh' it ends before it begins": lambda: with_boxes([5, 5, -3, 4], "xywh"),
    "it holds nan or inf": lambda: with_boxes([1, NAN, 4, 24]),
    "nan or inf": lambda: with_boxes([1, 1, INF, 24]),
    "holds nan": lambda: with_boxes([5, 5, NAN, 4], "cxcywh"),
    "it lies outside of its image of 32 x 32 pixels": lambda: with_boxes([100, 6, 120, 24]),
    "lies outside of its image": lambda: with_boxes([1.5, 1.5, 0.2, 0.2], "normalized cxcywh"),
    "outside of its image": lambda: with_boxes([100, 6, 120, 24], dtype="int64"),
    "it holds inf": lambda: points(INF, 3),
    "holds inf": lambda: points(-INF, -INF),
    "must have the same size": lambda: with_field("mask", "mask", (None, None, 1), MASK, MASK[2:]),
    "same size": lambda: with_field(
        "masks", "masks with boxes", (None, None, None), MASKS, MASKS[:, 2:]
    ),
}


def mover(name):
    """Return an op that moves pixels."""
    op = example(name)
    return type(op)(24, 24) if name in ("Resize", "RandomResizedCrop", "ScaleJitter") else op


@pytest.mark.parametrize("name", MOVERS)
@pytest.mark.filterwarnings("error")
def test_a_bad_annotation_is_an_error_with_its_record(name):
    op = mover(name)

    for cause, make_source in BAD.items():
        source = make_source()
        if name == "RandomIoUCrop" and "inf" in cause.split()[-1]:
            continue  # the images are drawn for first, by boxes
        error = refusal(lambda source=source: run(source, op))

        assert error is not None, cause
        assert cause in error.cause
        assert f"record {COUNT - 1}" in error.what


@pytest.mark.parametrize("name", MOVERS)
@pytest.mark.filterwarnings("error")
def test_a_point_of_nan_is_a_point_that_is_not_there(name):
    op = mover(name)

    batch = run(points(NAN, NAN), op)

    rows = batch["points"][COUNT - 1]
    assert np.isnan(rows[0]).all()


def test_flips_and_rotations_are_shuffled_beside_a_mask_of_images_of_many_sizes():
    source = gl.zip(
        varying("u1", (30, 40, 3), (20, 30, 3)),
        varying("u1", (30, 40, 1), (20, 30, 1)).rename(x="mask"),
    )
    source = source.rename(x="image").mark(mask="mask")

    batch = run(source, gl.ops.Shuffle([gl.ops.RandomFlip(p=1), gl.ops.Rotate(10)]))

    assert [mask.shape for mask in batch["mask"]] == [(30, 40, 1), (20, 30, 1)]


def test_clean_boxes_in_front_drops_boxes_that_would_be_an_error():
    bad, good = with_boxes([1, NAN, 4, 24]), with_boxes([1, 2, 4, 24])
    ops = [gl.ops.CleanBoxes(), gl.ops.RandomFlip(p=0)]

    numbers = [
        [len(rows) for rows in gl.Loader(source, COUNT, ops=ops, device="cpu").batch_at(0)["boxes"]]
        for source in (bad, good)
    ]

    assert numbers == [[2, 2, 2, 0], [2, 2, 2, 1]]


def test_noise_for_bytes_is_a_part_of_white():
    error = refusal(lambda: run(uniform("u1", SIDE, SIDE, 3), gl.ops.GaussianNoise(25, on="x")))

    assert error is not None
    assert "25 / 255" in error.remedy
    assert (
        run(uniform("f4", SIDE, SIDE, 3), gl.ops.GaussianNoise(25, on="x", clip=False)) is not None
    )


def test_a_batch_does_not_print_the_array_that_it_is_indexed_by():
    batch = run(uniform("u1", SIDE, SIDE, 3), gl.ops.RandomFlip(on="x"))

    with pytest.raises(GpuloadError) as caught:
        batch[batch["x"]]

    assert len(caught.value.what) < 300


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int16"])
@pytest.mark.parametrize("name", ["Brightness", "Hue", "SaltAndPepper"])
def test_the_remedy_for_whole_numbers_makes_parts_of_white_where_an_op_takes_these(name, dtype):
    info = np.iinfo(dtype)
    values = (
        np.linspace(info.min, info.max, COUNT * SIDE * SIDE * 3)
        .astype(dtype)
        .reshape(COUNT, SIDE, SIDE, 3)
    )
    source, op = gl.arrays(x=values), on_x(name)
    error = (
        refusal(lambda: run(source, op)) if (name, dtype) != ("SaltAndPepper", "uint16") else None
    )
    if error is None:
        return
    first = eval(error.remedy.removeprefix("put ").partition(" before")[0], {"gl": gl})

    batch = gl.Loader(source, COUNT, ops=[first, op], device="cpu").batch_at(0)

    assert batch["x"].min() < 0.1
    assert batch["x"].max() > 0.8
    assert 0.3 < batch["x"].mean() < 0.7


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_point_of_whole_numbers_that_is_moved_beyond_them_is_the_nearest_that_there_is(dtype):
    points = np.array([[np.inf, -np.inf], [1e30, -1e30], [np.nan, 2.5], [-0.5, 3.5]])
    values, sizes = np.zeros((4, 3), dtype), np.full((4, 2), 10, np.int32)

    x, y, _ = boxes.from_pixels(points, "xy", sizes, values).T

    limits = np.iinfo(dtype)
    most = 2**31 - 1 if dtype == "int32" else 2**63 - 1024  # the greatest float64 that fits
    assert x.tolist() == [most, most, 0, 0]
    assert y.tolist() == [limits.min, limits.min, 2, 4]
