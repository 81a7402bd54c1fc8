"""CleanBoxes: which boxes are dropped, and what is dropped with them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import RecordError, SpecError
from gpuload.graph.graph import compile_ops
from gpuload.spec import Field, Spec

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "augment" / "boxes.json").read_text(encoding="utf-8")
)
IMAGES = np.random.default_rng(1).integers(0, 256, (6, 60, 80, 3), np.uint8)
BOXES = [
    np.array([[2, 4, 30 + n, 20], [0, 0, 3, 3], [60, 40, 79, 59]][: n % 4], "f4").reshape(-1, 4)
    for n in range(6)
]
IMAGE, BOX = (
    Field("image", np.dtype("u1"), (60, 80, 3)),
    Field("boxes", np.dtype("f4"), (None, 4), kind="xyxy"),
)


def read(numbers):
    return {
        "boxes": [BOXES[n] for n in numbers],
        "labels": [np.arange(len(BOXES[n])) for n in numbers],
        "words": [np.array(["a", "b", "c"], object)[: len(BOXES[n])] for n in numbers],
        "points": [np.full((len(BOXES[n]), 5, 3), n, np.float32) for n in numbers],
    }


FIELDS = {"boxes": ("f4", (None, 4)), "labels": ("i8", (None,)), "words": ("str", (None,))}
FIELDS["points"] = ("f4", (None, 5, 3))
WITH = {"labels": "with boxes", "words": "with boxes", "points": "xy with boxes"}


def source_of(read=read, **marks):
    return gl.zip(gl.arrays(image=IMAGES), gl.records(6, read, fields=FIELDS)).mark(
        boxes="xyxy", **(marks or WITH)
    )


def boxes_behind(case, least, form):
    """Return the boxes of a case of the golden file, marked as a form, behind CleanBoxes alone."""
    size = case["size"][:2] if case["name"] not in ("resize", "resized_crop") else case["size"]
    graph = compile_ops(Spec((IMAGE, BOX.with_(kind=form))), [ops.CleanBoxes(*least)])
    values = {"boxes": [np.array(case["boxes"][form], np.float32)]}
    return graph.ops[0].traits.joint.array_fields(
        np, values, {"size": np.array([size], np.int32)}, graph.spec_out.only(["boxes"])
    )


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_boxes_that_torchvision_keeps_are_kept(case, form):
    for min_size, min_area, valid in case["valid"]:
        result = boxes_behind(case, (min_size, min_area), form)["boxes"][0]

        np.testing.assert_array_equal(result, np.array(case["boxes"][form], np.float32)[valid])


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_rows_that_go_with_boxes_are_dropped_with_them(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    chain = [
        ops.CenterCrop(40, 50),
        ops.CleanBoxes(min_size=4),
    ]  # of the 60 x 80 pixels from (15, 10) on

    with gl.Loader(source_of(), 6, ops=chain, device="cpu", executor=executor) as load:
        batch = next(iter(load))

    assert [len(boxes) for boxes in batch["boxes"]] == [0, 1, 1, 2, 0, 1]
    assert batch["boxes"][3].tolist() == [[0, 0, 18, 10], [45, 30, 50, 40]]
    assert batch["labels"][3].tolist() == [0, 2]
    assert list(batch["words"][3]) == ["a", "c"]
    assert batch["points"][3].shape == (2, 5, 3)
    assert batch["points"].payload.dtype == np.float32


def test_a_record_with_another_number_of_rows_is_named():
    def wrong(numbers):
        fields = read(numbers)
        fields["labels"] = [labels[:1] for labels in fields["labels"]]
        return fields

    with gl.Loader(source_of(wrong), 6, ops=[ops.CleanBoxes()], device="cpu") as load:
        batches = iter(load)
        with pytest.raises(RecordError, match=r"record 2.*2 boxes, and field 'labels' 1 rows"):
            next(batches)


def test_a_state_tells_what_the_boxes_are_marked_as():
    load = gl.Loader(source_of(), 6, ops=[ops.CleanBoxes()], device="cpu")

    assert load.state_dict()["ops"][1].startswith("mark(boxes='xyxy', labels='with boxes'")


@pytest.mark.parametrize(
    ("spec", "on", "what"),
    [
        (Spec((IMAGE, BOX.unmarked)), None, "no field marked as boxes"),
        (Spec((IMAGE, BOX)), "image", r"the fields \['image'\] marked as boxes"),
        (Spec((IMAGE, BOX.with_(shape=(3, 4)))), None, r"shape \(3, 4\)"),
        (
            Spec((IMAGE, BOX, Field("labels", np.dtype("i8"), (3,), rows_of="boxes"))),
            None,
            r"'labels' has shape \(3,\)",
        ),
        (Spec((BOX,)), None, "which image"),
    ],
    ids=str,
)
def test_fields_that_do_not_fit_are_refused(spec, on, what):
    with pytest.raises(SpecError, match=what) as caught:
        compile_ops(spec, [ops.CleanBoxes(on=on)])

    assert caught.value.remedy


@pytest.mark.parametrize("arguments", [{"min_size": -1}, {"min_area": "4"}, {"min_size": np.nan}])
def test_arguments_that_do_not_fit_are_refused(arguments):
    with pytest.raises(SpecError, match="CleanBoxes"):
        ops.CleanBoxes(**arguments)


def read_boxes(numbers):
    return {"boxes": [np.array([[2, 3, 30, 28], [4, 4, 5, 5]], np.float32)] * len(numbers)}


@pytest.mark.parametrize("output", [None, "boxes"])
def test_boxes_stay_where_no_other_op_acts_on_their_image(output):
    boxes = gl.records(4, read_boxes, fields={"boxes": ("float32", (None, 4))})
    source = gl.zip(gl.arrays(image=np.zeros((4, 32, 32, 3), np.uint8)), boxes).mark(boxes="xyxy")
    loader = gl.Loader(source, 2, ops=[gl.ops.CleanBoxes(min_size=4)], output=output, device="cpu")

    batch = loader.batch_at(1)

    assert [rows.tolist() for rows in batch["boxes"]] == [[[2, 3, 30, 28]]] * 2
    assert loader.to_source().read([0])["boxes"][0].tolist() == [[2, 3, 30, 28]]


def test_images_of_unknown_size_beside_boxes_are_refused_early():
    def read(numbers):
        return {
            **read_boxes(numbers),
            "image": [np.zeros((32 + n, 32, 3), np.uint8) for n in numbers],
        }

    fields = {"boxes": ("float32", (None, 4)), "image": ("uint8", (None, None, 3))}
    source = gl.records(4, read, fields=fields).mark(boxes="xyxy")

    with pytest.raises(
        gl.GpuloadError, match=r"ops\[0\]: CleanBoxes.*the size of the images 'image' is not known"
    ):
        gl.Loader(source, 2, ops=[gl.ops.CleanBoxes()], device="cpu")
    loader = gl.Loader(
        source, 2, ops=[gl.ops.Brightness(0.9, 1.1), gl.ops.CleanBoxes(min_size=4)], device="cpu"
    )
    assert loader.batch_at(0)["boxes"].lengths.tolist() == [1, 1]


def rows_of(boxes, numbers):
    return {"boxes": [boxes[number % 2] for number in numbers]}


@pytest.mark.parametrize("form", ["xyxy", "cxcywh"])
def test_boxes_in_parts_that_are_marked_as_pixels_are_told_of_once_where_all_are_dropped(
    caplog, form
):
    parts = [np.array([[0.2, 0.3, 0.3, 0.4], [0.5, 0.5, 0.6, 0.9]], "f4"), np.zeros((0, 4), "f4")]
    small = [
        np.array([[0.2, 0.3, 0.4, 0.5], [9, 9, 9.5, 9.5], [2, 2, 8, 8]], "f4"),
        np.array([[0, 0, 0.5, 0.5]], "f4"),
    ]
    for boxes, mark, is_told in (
        (parts, form, True),
        (parts, f"normalized {form}", False),
        (small, form, False),
    ):
        caplog.clear()
        # Two for each record; of records in one batch and in the next.
        values = gl.records(4, functools.partial(rows_of, boxes), fields={"boxes": FIELDS["boxes"]})
        source = gl.zip(gl.arrays(image=IMAGES[:4]), values).mark(boxes=mark)
        with gl.Loader(source, 2, ops=[ops.CleanBoxes()], device="cpu") as loader:
            lengths = [len(rows) for step in range(2) for rows in loader.batch_at(step)["boxes"]]

        lines = [record.getMessage() for record in caplog.records]
        assert [f"source.mark(boxes='normalized {form}')" in line for line in lines] == [
            True
        ] * is_told
        assert (sum(lengths) == 0) == is_told
