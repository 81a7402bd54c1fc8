"""Masks, boxes and points that are marked beside an image go where its pixels go."""

from __future__ import annotations

import gc
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import RecordError, SpecError
from gpuload.graph.advice import advice
from gpuload.graph.graph import compile_ops
from gpuload.ops.base import Op
from gpuload.ops.follow import MoveAnnotations
from gpuload.ops.traits import Geometric, Traits
from gpuload.spec import Field, Spec
from tests import simdevice

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "augment" / "boxes.json").read_text(encoding="utf-8")
)
WARPED = dict(np.load(Path(__file__).parents[1] / "golden" / "augment" / "follow.npz"))
SIZE = GOLDEN["size"]
FORMS = ("xyxy", "xywh", "cxcywh")
RNG = np.random.default_rng(4)
IMAGES = RNG.integers(0, 256, (12, 60, 80, 3), np.uint8)
MASKS = np.where(np.indices((12, 60, 80, 1)).sum(axis=0) % 31 < 15, 7, 0).astype(np.uint8)
BOXES = [
    np.array([[2 + i, 4, 30 + n, 20 + i] for i in range(n % 4)], np.float32).reshape(-1, 4)
    for n in range(12)
]
LABELS = [np.arange(len(boxes)) for boxes in BOXES]


def warning(graph, names):
    return next(advice(graph, names), None)


def op_of(case):
    """Return the op that does what a case of the golden file did, and its draw for one record."""
    if case["name"].startswith("flip"):
        vertical = int(case["name"] == "flip_both")
        return ops.RandomFlip(vertical=True), {"horizontal": [1], "vertical": [vertical]}
    if case["name"] == "pad":
        op = ops.Pad(margin=tuple(case["padding"]))
        return op, op.draw(np.empty((1, 0)), np.array([SIZE], np.int32))
    if case["name"] == "resize":
        return ops.Resize(*case["size"]), {}
    start, shape = [[case["top"], case["left"]]], [[case["height"], case["width"]]]
    if case["name"] == "resized_crop":
        return ops.RandomResizedCrop(*case["size"]), {"start": start, "shape": shape}
    return ops.RandomCrop(*shape[0], pad=9), {"start": start}


def moved(case, kind, values):
    """Return values of one record, behind the op of a case."""
    op, draw = op_of(case)
    move = MoveAnnotations(op, "image", kind, on="boxes")
    draw = move.traits.follows.complete(
        {name: np.asarray(rows) for name, rows in draw.items()}, np.array([SIZE], np.int32)
    )
    return move.array(
        np, np.asarray(values, np.float32), {name: rows[0] for name, rows in draw.items()}
    )


def warp_of(case):
    """Return the op that does what a case of follow.npz did, its draw, and how far torchvision's
    boxes lie beside ours.

    With ``expand`` torchvision begins to count at the corner of the box about the turned image,
    which is no whole number of pixels: the image itself lies in the middle of the canvas, which
    ends at whole pixels. The difference is less than one pixel.
    """
    kind, *numbers = case.split("/")
    size, beside = np.array([WARPED["mask"].shape], np.int32), np.zeros(2)
    if kind == "rotate":
        angle = float(numbers[0])
        op = ops.Rotate((angle, angle), expand=True)
        cosine, sine = abs(np.cos(np.deg2rad(angle))), abs(np.sin(np.deg2rad(angle)))
        exact = size[0] @ [[sine, cosine], [cosine, sine]]  # width and height
        beside = (WARPED[f"{case}/canvas"][::-1] - exact) / 2
        assert (np.abs(beside) < 1).all()
    elif kind == "affine":
        angle, scale, *shear = map(float, numbers)
        op = ops.Affine(
            (angle, angle), scale=(scale, scale), shear=(shear[0], shear[0], shear[1], shear[1])
        )
    elif kind == "perspective":
        return (
            ops.Perspective(p=1, interpolation="nearest"),
            {"matrix": WARPED[f"matrix/{numbers[0]}"][None]},
            size,
            beside,
        )
    else:
        return (
            ops.RandomZoomOut(),
            {"start": WARPED["start"][None], "shape": WARPED["shape"][None]},
            size,
            beside,
        )
    return op, op.draw(np.zeros((1, op.num_uniforms)), size), size, beside


@pytest.mark.parametrize(
    "case", [name.removesuffix("/canvas") for name in WARPED if name.endswith("/canvas")]
)
def test_masks_boxes_and_points_go_where_torchvision_turns_and_warps_them(case):
    op, draws, size, beside = warp_of(case)
    draw = {name: values[0] for name, values in draws.items()}

    mask = op.array(np, WARPED["mask"][..., None], draw)[..., 0]
    boxes = op.traits.geometric.move_boxes(WARPED["boxes"].astype(float), draw, size[0]) - np.tile(
        beside, 2
    )
    points = (
        op.traits.geometric.move_keypoints(WARPED["points"].astype(float), draw, size[0]) - beside
    )

    np.testing.assert_array_equal(op.size_after(size, draws)[0], WARPED[f"{case}/canvas"])
    np.testing.assert_array_equal(mask, WARPED[f"{case}/mask"])
    np.testing.assert_allclose(
        boxes, WARPED[f"{case}/boxes"], rtol=0, atol=2e-3
    )  # which are float32 in torch
    inside = (points > 0).all(axis=1) & (points < WARPED[f"{case}/canvas"][::-1]).all(axis=1)
    np.testing.assert_allclose(points[inside], WARPED[f"{case}/points"][inside], rtol=0, atol=2e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_boxes_go_where_torchvision_moves_them(case, form):
    result = moved(case, form, GOLDEN["boxes"][form])

    np.testing.assert_allclose(
        result, case["boxes"][form], rtol=2e-6, atol=1e-5
    )  # of float32, by way of centres


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_points_go_where_torchvision_moves_keypoints(case):
    visible = np.arange(len(GOLDEN["points"]))[:, None]

    result = moved(case, "xy", np.concatenate([GOLDEN["points"], visible], axis=1))

    np.testing.assert_allclose(result[:, :2], case["points"], rtol=2e-6, atol=1e-5)
    np.testing.assert_array_equal(result[:, 2:], visible)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_normalized_boxes_are_those_in_pixels_in_parts_of_the_image(case):
    before, after = (
        np.tile(SIZE[::-1], 2),
        np.tile(case["size"][1::-1] if "size" in case else SIZE[::-1], 2),
    )
    if case["name"].startswith("crop"):
        after = np.array([case["width"], case["height"]] * 2)
    if case["name"] == "pad":
        after = before + np.array([10, 14] * 2)

    result = moved(case, "normalized xyxy", GOLDEN["boxes"]["xyxy"] / before)

    np.testing.assert_allclose(result, case["boxes"]["xyxy"] / after, atol=1e-6)


def read_boxes(numbers):
    return {"boxes": [BOXES[n] for n in numbers], "labels": [LABELS[n] for n in numbers]}


RECORDS = gl.records(
    12, read_boxes, fields={"boxes": ("float32", (None, 4)), "labels": ("int64", (None,))}
)
PLAIN = gl.zip(gl.arrays(image=IMAGES, mask=MASKS), RECORDS)


def source_of(**marks):
    return PLAIN.mark(**(marks or {"boxes": "xyxy", "labels": "with boxes", "mask": "mask"}))


def batch_of(chain, source=None, step=0, batch_size=12, **words):
    with gl.Loader(
        source or source_of(),
        batch_size,
        ops=chain,
        seed=5,
        **{"device": "cpu", "executor": "array", **words},
    ) as load:
        return load.batch_at(step, epoch=1)


CHAINS = [
    [ops.RandomResizedCrop(32, 32), ops.RandomFlip(vertical=True)],
    [ops.RandomCrop(40, 44, pad=6), ops.Resize(shorter=50), ops.Pad(margin=2)],
    [ops.Resize(30, 40, on="image"), ops.CenterCrop(20), ops.RandomFlip(on="image")],
]


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_pixels_inside_of_boxes_stay_inside(chain):
    """Each box of each record is painted into a mask; behind the ops the bounding box of the paint
    is the box."""
    painted = np.zeros((12, 60, 80, 1), np.uint8)
    for n, boxes in enumerate(BOXES):
        for left, top, right, bottom in boxes[:1].astype(int):
            painted[n, top:bottom, left:right] = 1
    source = gl.zip(gl.arrays(image=IMAGES, mask=painted), RECORDS).mark(boxes="xyxy", mask="mask")

    batch = batch_of(chain, source)

    num_checked = 0
    for n, boxes in enumerate(batch["boxes"]):
        rows, columns = np.nonzero(np.asarray(batch["mask"][n])[..., 0])
        if not len(boxes) or not rows.size:
            continue
        paint = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert np.abs(boxes[0] - paint).max() <= 1, (n, boxes[0], paint)  # of nearest pixels
        num_checked += 1
    assert num_checked >= 4


def test_masks_are_taken_by_nearest_and_filled_with_0_unless_a_dict_says_otherwise():
    batch = batch_of(
        [ops.Resize(31, 41), ops.RandomCrop(64, 84, pad=30, fill={"mask": 255, "image": 9})]
    )
    plain = batch_of([ops.Pad(70, 90, fill=9)])

    assert set(np.unique(batch["mask"])) == {0, 7, 255}
    assert set(np.unique(plain["mask"])) == {0, 7}
    assert (plain["image"][:, 0] == 9).all()
    assert (batch["image"][(batch["mask"] == 255)[..., 0]] == 9).all()


def test_the_image_is_what_it_is_without_marks():
    chain = CHAINS[0]

    marked, plain = batch_of(chain), batch_of(chain, gl.arrays(image=IMAGES))

    np.testing.assert_array_equal(marked["image"], plain["image"])


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_boxes_are_the_same_in_any_batch_and_by_dali(chain):
    if chain is CHAINS[1]:
        chain = [*chain, ops.Resize(32, 32)]
    whole = batch_of(chain)
    for n in range(12):
        single = batch_of(chain, step=n, batch_size=1)
        np.testing.assert_array_equal(single["boxes"][0], whole["boxes"][n])
    pytest.importorskip("nvidia.dali")

    by_dali = batch_of(chain, executor="dali")

    np.testing.assert_array_equal(by_dali["mask"], whole["mask"])
    for n in range(12):
        np.testing.assert_array_equal(by_dali["boxes"][n], whole["boxes"][n])


def test_boxes_alone_are_those_beside_the_image_and_cached_ones_too():
    chain = [ops.Resize(30, 40), *CHAINS[0]]
    whole = batch_of(chain)

    alone = batch_of(chain, output=("boxes",))[0]
    load = gl.Loader(source_of(), 12, ops=chain, seed=5, device="cpu")
    cached = load.cache(memory="1GB")
    written = load.to_source(epoch=1)

    assert cached.batch_at(0, epoch=1)["image"].tobytes() == whole["image"].tobytes()
    assert cached.state_dict() == load.state_dict()
    for n in range(12):
        np.testing.assert_array_equal(alone[n], whole["boxes"][n])
        np.testing.assert_array_equal(cached.batch_at(0, epoch=1)["boxes"][n], whole["boxes"][n])
        np.testing.assert_array_equal(written[n]["boxes"], whole["boxes"][n])


def test_boxes_of_fixed_length_integers_and_points_of_boxes_are_moved():
    boxes = np.tile(np.array([[10, 20, 31, 41], [0, 0, 0, 0]], np.int16), (12, 1, 1))
    points = np.tile(np.array([[[10, 20, 2], [30, 40, 1]]], np.float32), (12, 2, 1, 1))
    source = gl.arrays(image=IMAGES, boxes=boxes, points=points).mark(
        boxes="xyxy", points="xy with boxes"
    )

    batch = batch_of([ops.RandomFlip(p=1), ops.Resize(30, 40)], source)

    assert batch["boxes"].dtype == np.int32
    assert batch["boxes"][3].tolist() == [
        [24, 10, 35, 20],
        [40, 0, 40, 0],
    ]  # 80 - 31 = 49 / 2 = 24.5, to even
    assert batch["points"][3, 1].tolist() == [[34.5, 10, 2], [24.5, 20, 1]]  # 80 - 1 - 10 = 69 / 2


def test_states_of_before_are_taken_where_a_mark_changes_nothing():
    plain, quiet, moving = PLAIN, [ops.Normalize(127.0, 60.0)], [ops.RandomFlip()]

    def state(source, chain):
        return gl.Loader(source, 4, ops=chain, device="cpu").state_dict()

    assert state(source_of(), quiet) == state(plain, quiet)
    assert state(source_of(labels="with boxes", boxes="xyxy"), moving)["ops"] == [
        "RandomFlip()",
        "mark(boxes='xyxy')",
    ]
    with pytest.raises(gl.GpuloadError, match="mark"):
        gl.Loader(source_of(), 4, ops=moving, device="cpu").load_state_dict(state(plain, moving))


def test_what_nobody_can_move_is_refused_when_the_loader_is_made():
    class Shuffled(Op):
        traits = Traits(geometric=Geometric())

        def field_after(self, field):
            return field

    image, boxes = (
        Field("photo", np.dtype("u1"), (9, 9, 3)),
        Field("boxes", np.dtype("f4"), (None, 4), kind="xyxy"),
    )
    other = Field("other", np.dtype("u1"), (9, 9, 3))
    with pytest.raises(SpecError, match="where points go"):
        compile_ops(Spec((image, boxes)), [Shuffled()])
    with pytest.raises(SpecError, match="which image") as caught:
        compile_ops(Spec((image, other, boxes)), [ops.RandomFlip(on="photo")])
    assert "rename" in caught.value.remedy
    with pytest.raises(SpecError, match="without being named"):
        compile_ops(Spec((image, boxes)), [ops.RandomFlip(on=("photo", "boxes"))])
    fixed = Field("boxes", np.dtype("f4"), (3, 4), kind="xyxy")
    with pytest.raises(SpecError, match=r"RandomFlip.*boxes"):
        compile_ops(
            Spec((image, fixed)), [ops.Reshape((-1,), on="boxes"), ops.RandomFlip(on="photo")]
        )


@pytest.mark.parametrize(
    ("box", "cause"),
    [
        ([1, 2, np.nan, 4], "nan"),
        ([30, 2, 10, 4], "ends before it begins"),
        ([200, 2, 210, 4], "outside of its image of 60 x 80"),
    ],
)
def test_a_box_that_is_none_is_an_error_that_names_record_and_box(box, cause):
    boxes = [np.float32([[1, 2, 3, 4]] * (n + 1)) for n in range(12)]
    boxes[7][2] = box
    source = gl.zip(
        gl.arrays(image=IMAGES),
        gl.records(
            12,
            lambda ns: {"boxes": [boxes[n] for n in ns]},
            fields={"boxes": ("float32", (None, 4))},
        ),
    ).mark(boxes="xyxy")

    with pytest.raises(RecordError, match=r"record 7.*'boxes': box 2") as caught:
        batch_of([ops.RandomFlip()], source)
    assert cause in caught.value.cause
    assert (
        batch_of([ops.RandomFlip()], source, on_error="skip", max_bad=0.5)
        .valid.tolist()
        .count(False)
        == 1
    )


def test_a_mask_of_another_size_than_its_image_is_refused_early_or_names_the_record():
    small = gl.arrays(image=IMAGES, mask=MASKS[:, :30]).mark(mask="mask")
    with pytest.raises(SpecError, match=r"'image' is \[60, 80\] pixels and 'mask' is \[30, 80\]"):
        batch_of([ops.RandomFlip()], small)

    varying = [IMAGES[n, : 50 if n == 5 else 60] for n in range(12)]
    source = gl.zip(
        gl.records(
            12,
            lambda ns: {"image": [varying[n] for n in ns]},
            fields={"image": ("uint8", (None, None, 3))},
        ),
        gl.arrays(mask=MASKS),
    ).mark(mask="mask")
    with pytest.raises(RecordError, match="record 5") as caught:
        batch_of([ops.RandomResizedCrop(32, 32)], source)
    assert "same size" in caught.value.cause


def test_marks_survive_what_is_made_of_a_source_and_a_pickle():
    source = source_of(boxes="normalized xywh", labels="with boxes", mask="mask")

    renamed = source.rename(boxes="bbox", labels="classes")
    derived = [
        source[2:],
        source.select([3, 1]),
        gl.concat(source, source),
        gl.mix({source: 1.0}),
        renamed,
    ]

    for other in derived[:-1]:
        assert [field.mark for field in other.spec] == ["", "mask", "normalized xywh", "with boxes"]
    assert [field.mark for field in renamed.spec] == ["", "mask", "normalized xywh", "with bbox"]
    assert "classes: int64 (None,) with bbox" in repr(renamed)
    with pytest.raises(SpecError, match="normalized xywh"):
        gl.concat(source, source_of())
    arrays = gl.arrays(image=IMAGES, mask=MASKS).mark(mask="mask")
    assert pickle.loads(pickle.dumps(arrays)).spec == arrays.spec
    assert arrays.cache(memory="1GB").spec == arrays.spec


@pytest.mark.parametrize("form", ["xyxy", "cxcywh"])
def test_boxes_in_parts_that_are_marked_as_pixels_name_the_mark(form):
    parts = np.array(
        [[[0.2, 0.3, 0.4, 0.5], [0, 0, 0, 0]], [[30, 20, 30.5, 20.5], [0.4, 0.4, 0.5, 0.5]]],
        np.float32,
    )
    source = gl.arrays(image=np.zeros((2, 40, 48, 3), np.uint8), boxes=parts).mark(boxes=form)
    loader = gl.Loader(source, 1, ops=[ops.RandomFlip(p=1)], device="cpu")

    with pytest.raises(
        RecordError, match=rf"record 0(.|\n)*write source.mark\(boxes='normalized {form}'\)"
    ):
        loader.batch_at(0)
    loader.batch_at(1)  # the second box lies in the first pixel, and the other one does not


def test_a_box_of_the_whole_image_in_parts_is_no_box_in_pixels_beside_others_in_parts():
    parts = np.array([[[0, 0, 1, 1], [0.2, 0.3, 0.4, 0.5]]], np.float32)
    source = gl.arrays(image=np.zeros((1, 40, 48, 3), np.uint8), boxes=parts).mark(boxes="xyxy")
    with pytest.raises(RecordError, match=r"source.mark\(boxes='normalized xyxy'\)"):
        gl.Loader(source, 1, ops=[ops.RandomFlip(p=1)], device="cpu").batch_at(0)


def test_a_box_of_the_first_pixel_is_no_part():
    source = gl.arrays(
        image=IMAGES, boxes=np.tile(np.float32([0, 0, 1, 1]), (len(IMAGES), 1, 1))
    ).mark(boxes="xyxy")

    batch = gl.Loader(source, 1, ops=[ops.RandomFlip(p=1)], device="cpu").batch_at(0)

    width = IMAGES.shape[2]
    assert batch["boxes"].tolist() == [[[width - 1, 0, width, 1]]]


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        *((dtype, np.int32) for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.int32)),
        *((dtype, np.int64) for dtype in (np.uint32, np.int64, np.uint64)),
        *((dtype, dtype) for dtype in (np.float16, np.float32, np.float64)),
    ],
)
@pytest.mark.parametrize(
    ("form", "box"),
    [("xyxy", (1, 2, 41, 32)), ("xywh", (1, 2, 40, 30)), ("cxcywh", (21, 17, 40, 30))],
)
def test_boxes_of_narrow_numbers_do_not_wrap_where_an_image_grows(form, box, dtype, wide):
    images = np.zeros((2, 48, 60, 3), np.uint8)
    source = gl.arrays(image=images, boxes=np.array([[box]] * 2, dtype)).mark(boxes=form)

    batch = gl.Loader(source, 2, ops=[ops.Resize(480, 600)], device="cpu").batch_at(0)

    assert batch["boxes"].dtype == wide
    assert batch["boxes"][1].tolist() == [[10 * number for number in box]]


@pytest.mark.parametrize("ragged", [False, True])
def test_points_of_narrow_numbers_go_beyond_the_image_and_before_it(ragged):
    points = np.array([[[50, 3, 2], [1, 40, 1]]] * 2, np.uint8)
    source = gl.arrays(image=np.zeros((2, 48, 60, 3), np.uint8), points=points)
    if ragged:
        fields = {"points": ("uint8", (None, 3))}
        ragged_points = gl.records(2, lambda ns: {"points": [points[n] for n in ns]}, fields=fields)
        source = gl.zip(gl.arrays(image=np.zeros((2, 48, 60, 3), np.uint8)), ragged_points)
    chain = [ops.Resize(480, 600), ops.CenterCrop(200, 300)]

    batch = gl.Loader(source.mark(points="xy"), 2, ops=chain, device="cpu").batch_at(0)

    assert batch["points"].dtype == np.int32
    assert batch["points"][0].tolist() == [
        [350, -110, 2],
        [-140, 260, 1],
    ]  # 500 - 150, 30 - 140; 10 - 150, 400 - 140


def test_boxes_of_narrow_numbers_are_joined_wide_by_mosaic():
    boxes = [np.array([[10, 20, 40, 44]], np.uint8)] * 4
    fields = {"boxes": ("uint8", (None, 4))}
    source = gl.zip(
        gl.arrays(image=np.zeros((4, 200, 250, 3), np.uint8)),
        gl.records(4, lambda ns: {"boxes": [boxes[n] for n in ns]}, fields=fields),
    ).mark(boxes="xyxy")

    batch = gl.Loader(source, 4, ops=[ops.Mosaic(600, center=0.5)], device="cpu").batch_at(0)

    # The images meet at (300, 300): left ones begin at 50, upper ones at 100.
    corners = [
        [left + 10, top + 20, left + 40, top + 44] for top in (100, 300) for left in (50, 300)
    ]
    assert batch["boxes"].dtype == np.int32
    assert batch["boxes"][0].tolist() == corners


@pytest.mark.parametrize(
    "chain", [[ops.RandomFlip(p=1)], [ops.CleanBoxes()], [ops.Mosaic(96)]], ids=str
)
@pytest.mark.parametrize(
    ("form", "box"),
    [
        *(("xyxy", (0, 0, 40, 30)), ("xywh", (0, 0, 40, 30)), ("cxcywh", (20, 15, 40, 30))),
        *(("xyxy", (0, 0, 2, 1)), ("xyxy", (10, 12, 20, 30))),
    ],
)
def test_boxes_in_pixels_that_are_marked_as_parts_name_the_mark(form, box, chain):
    values = [np.array([[0.1, 0.1, 0.3, 0.2]], np.float32)] * 3 + [np.array([box], np.float32)]
    fields = {"boxes": ("float32", (None, 4))}
    objects = gl.records(4, lambda ns: {"boxes": [values[n] for n in ns]}, fields=fields)
    source = gl.zip(gl.arrays(image=np.zeros((4, 40, 48, 3), np.uint8)), objects).mark(
        boxes=f"normalized {form}"
    )
    loader = gl.Loader(source, 4, ops=chain, device="cpu")

    with pytest.raises(RecordError, match=rf"record 3(.|\n)*write source.mark\(boxes='{form}'\)"):
        loader.batch_at(0)


def test_boxes_in_parts_may_reach_beyond_their_image():
    boxes = np.array([[[-0.4, -0.1, 1.6, 1.2]], [[0, 0, 1, 1]]], np.float32)
    source = gl.arrays(image=np.zeros((2, 40, 48, 3), np.uint8), boxes=boxes).mark(
        boxes="normalized xyxy"
    )
    batch = gl.Loader(source, 2, ops=[ops.RandomFlip(p=1)], device="cpu").batch_at(0)
    assert batch["boxes"].tolist() == [[[0, 0, 1, 1]], [[0, 0, 1, 1]]]


@pytest.mark.parametrize(
    ("mark", "points", "likely"),
    [
        ("xy", [[0.2, 0.3], [0, 0], [np.nan, 4]], "normalized xy"),
        ("normalized xy", [[12, 30], [0.4, 0.5]], "xy"),
    ],
)
def test_points_in_other_units_than_marked_name_the_mark(mark, points, likely):
    values = np.array(
        [[[0.5, 1], [0.7, 0.2], [0, 0]] if "norm" in mark else [[5, 6], [0.5, 0.5], [9, 9]]] * 2,
        np.float32,
    )
    values[1, : len(points)] = points
    source = gl.arrays(image=np.zeros((2, 40, 48, 3), np.uint8), points=values).mark(points=mark)
    with gl.Loader(source, 1, ops=[ops.RandomFlip(p=1)], device="cpu") as loader:
        loader.batch_at(0)
        with pytest.raises(
            RecordError, match=rf"record 1(.|\n)*write source.mark\(points='{likely}'\)"
        ):
            loader.batch_at(1)


@pytest.mark.parametrize(
    ("mark", "likely"),
    [("coco", "xywh"), ("yolo", "normalized cxcywh"), ("pascal_voc", "xyxy"), ("XYXY", "xyxy")],
)
def test_a_form_of_boxes_by_the_name_of_a_data_set_names_ours(mark, likely):
    with pytest.raises(SpecError, match=rf"remedy: write source.mark\(boxes='{likely}'\)"):
        source_of(boxes=mark)


@pytest.mark.parametrize(
    ("marks", "what"),
    [
        ({"boxes": "xyyx"}, "'normalized xyxy'"),
        ({"boxes": 4}, "'normalized xyxy'"),
        ({"boxes": "with "}, "'normalized xyxy'"),
        ({"labels": "xyxy"}, "four numbers"),
        ({"labels": "normalized xy"}, "x and y"),
        ({"labels": "mask"}, "height and width"),
        ({"labels": "with boxes"}, "no field of boxes"),
        ({"boxes": "xyxy", "labels": "with boxen"}, "no field of boxes"),
        ({"boxes": "xyxy with boxes"}, "no boxes itself"),
    ],
    ids=str,
)
def test_a_mark_that_does_not_fit_is_refused(marks, what):
    with pytest.raises(SpecError) as caught:
        source_of(**marks)

    assert what in f"{caught.value.cause}"
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("mark", "shape", "declared"),
    [("xywh", (None, None), (None, 4)), ("xy", (None, None, None), (None, None, 2))],
)
def test_boxes_and_points_of_which_no_number_is_known_are_to_be_declared(mark, shape, declared):
    source = gl.records(
        2, lambda numbers: {"x": [np.zeros((1,) * (len(shape) - 1) + (4,)) for _ in numbers]}
    )

    with pytest.raises(SpecError, match="the length of that axis is not known") as caught:
        source.mark(x=mark)

    assert f"fields={{'x': ('float64', {declared})}}" in caught.value.remedy


def test_whole_numbers_cannot_be_parts_of_an_image():
    with pytest.raises(SpecError, match="normalized xyxy"):
        gl.arrays(boxes=np.zeros((3, 2, 4), np.int32)).mark(boxes="normalized xyxy")


@pytest.mark.parametrize(
    ("name", "shape", "is_told"),
    [
        ("boxes", (None, 4), True),
        ("bboxes", (3, 4), True),
        ("label", (4,), False),
        ("boxes", (None, 6), False),
    ],
)
def test_boxes_that_nobody_marked_and_that_stay_are_told_of_once(name, shape, is_told):
    image, boxes = Field("image", np.dtype("u1"), (9, 9, 3)), Field(name, np.dtype("f4"), shape)

    line = warning(
        compile_ops(Spec((image, boxes)), [ops.RandomFlip(), ops.Resize(4, 4)]), ("image", name)
    )

    assert (line is not None) == is_told
    if is_told:
        assert f"source.mark({name}='xyxy')" in line
        assert line.count("RandomFlip") == 1
    marked = boxes.with_(kind="xyxy") if shape[-1] == 4 and len(shape) == 2 else boxes
    assert warning(compile_ops(Spec((image, marked)), [ops.RandomFlip()]), ("image", name)) is None
    by_hand = gl.ops.Python(lambda image, boxes: (image, boxes), on=("image", name), out={})
    assert (
        warning(compile_ops(Spec((image, boxes)), [by_hand, ops.RandomFlip()]), ("image", name))
        is None
    )


def test_boxes_beside_images_on_a_gpu_are_those_of_the_cpu(monkeypatch):
    chain = [ops.RandomCrop(40, 44, pad=6), ops.RandomFlip(), ops.CleanBoxes()]
    expected = batch_of(chain)
    sim = simdevice.install(monkeypatch, seed=3)

    batch = batch_of(chain, device="gpu")

    assert np.array_equal(batch["image"].get(), expected["image"])
    assert np.array_equal(batch["mask"].get(), expected["mask"])
    np.testing.assert_array_equal(batch["boxes"].payload.get(), expected["boxes"].payload)
    np.testing.assert_array_equal(batch["boxes"].offsets, expected["boxes"].offsets)
    del batch
    gc.collect()
    sim.finish()


@pytest.mark.parametrize("op", [ops.CleanBoxes(), ops.Mosaic(32)])
def test_rows_of_boxes_that_are_dropped_are_told_of_where_they_are_not_marked(op):
    image = Field("image", np.dtype(np.uint8), (60, 80, 3))
    boxes = Field("boxes", np.dtype(np.float32), (None, 4), kind="xyxy")
    labels = Field("labels", np.dtype(np.int64), (None,))
    graph, names = (
        compile_ops(Spec((image, boxes, labels)), [ops.RandomFlip(), op]),
        ("image", "boxes", "labels"),
    )

    assert "source.mark(labels='with boxes')" in (warning(graph, names) or "")
    assert warning(graph, ("image", "boxes")) is None
    marked = Spec((image, boxes, labels.with_(rows_of="boxes")))
    assert warning(compile_ops(marked, [ops.RandomFlip(), op]), names) is None
    assert warning(compile_ops(Spec((image, boxes, labels)), [ops.RandomFlip()]), names) is None
    meant = (
        ops.CleanBoxes(on="boxes") if isinstance(op, ops.CleanBoxes) else ops.Mosaic(32, on="image")
    )
    assert (
        warning(
            compile_ops(Spec((image, boxes, labels)), [ops.RandomFlip(on="image"), meant]), names
        )
        is None
    )
