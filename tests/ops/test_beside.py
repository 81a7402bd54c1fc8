"""What belongs to an image goes along with it, or is told of with the form to write."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import SpecError
from gpuload.graph.advice import advice
from gpuload.graph.graph import compile_ops
from gpuload.spec import Field, Spec

IMAGES = np.zeros((4, 8, 9, 3), np.uint8)
MASKS = {
    "with channels": IMAGES[..., :1],
    "without": IMAGES[..., 0],
    "wide": IMAGES.astype(np.int64)[..., 0],
}
MOVES = [ops.RandomFlip(), ops.RandomCrop(4), ops.CenterCrop(4), ops.Pad(20), ops.Resize(4, 4),
         ops.RandomResizedCrop(4)]  # fmt: skip


def warning(graph, names):
    return next(advice(graph, names), None)


def warnings_of(caplog, chain, mask=MASKS["with channels"], **arguments):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="gpuload"):
        gl.Loader(
            gl.arrays(image=IMAGES, mask=mask, x=np.zeros((4, 9))),
            2,
            ops=chain,
            device="cpu",
            **arguments,
        )
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("op", MOVES, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("mask", MASKS.values(), ids=list(MASKS))
def test_a_mask_that_stays_is_told_once_with_the_way_to_move_it(caplog, op, mask):
    (line,) = warnings_of(caplog, [ops.Brightness(0.5, 1), op, ops.RandomFlip()], mask)

    assert type(op).__name__ in line
    assert "on=('image', 'mask')" in line
    assert "on='image'" in line


@pytest.mark.parametrize(
    "chain",
    [
        [ops.RandomFlip(on="image")],
        [ops.RandomFlip(on=("image", "mask"))],
        [ops.RandomFlip(), ops.RandomFlip(on="mask")],
        [ops.Brightness(0.5, 1), ops.Normalize(1, 2)],
        [],
    ],
)
def test_nothing_is_told_where_the_user_said_what_is_meant_or_nothing_moves(caplog, chain):
    assert warnings_of(caplog, chain) == []


def test_nothing_is_told_of_what_is_no_mask_of_the_image(caplog):
    assert warnings_of(caplog, [ops.RandomFlip()], np.zeros((4, 9, 8, 1), np.uint8)) == []
    assert warnings_of(caplog, [ops.RandomFlip()], np.zeros((4, 8), np.uint8)) == []
    assert warnings_of(caplog, [ops.RandomFlip()], output="image") == []


@pytest.mark.parametrize("shape", [(None, None), (None, None, 1)])
def test_images_of_different_sizes_have_masks_too(shape):
    fields = Field("image", np.dtype("u1"), (None, None, 3)), Field("mask", np.dtype("u1"), shape)
    texts = Field("text", np.dtype("u1"), (None,))

    graph = compile_ops(Spec((*fields, texts)), [ops.RandomFlip()])

    assert "beside it" in (warning(graph, ["image", "mask", "text"]) or "")
    assert warning(graph, ["image", "text"]) is None


def lines_of(caplog, chain, output=None, marks=None, **fields):
    """Return the warnings of a loader, and its first batch."""
    caplog.clear()
    source = gl.arrays(**fields).mark(**marks or {})
    with caplog.at_level(logging.WARNING, logger="gpuload"):
        loader = gl.Loader(source, 2, ops=chain, output=output, device="cpu", seed=3)
        batch = loader.batch_at(0)
    return [record.getMessage() for record in caplog.records], batch


PLACES = {
    (4,): "xyxy", (3, 4): "xyxy", (2,): "xy", (5, 2): "xy", (17, 3): "xy", (6, 17, 2): "xy",
    (5, 8, 9): "masks", (8, 9, 1): "mask", (8, 9): "mask",
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int16, np.uint8])
@pytest.mark.parametrize("shape", PLACES, ids=str)
def test_numbers_that_are_places_or_masks_of_the_image_are_told_of_by_any_name(
    caplog, shape, dtype
):
    lines, _ = lines_of(
        caplog, [ops.RandomFlip()], image=IMAGES, anything=np.zeros((4, *shape), dtype)
    )

    assert [f"source.mark(anything={PLACES[shape]!r})" in line for line in lines] == [True]


@pytest.mark.parametrize(
    "op",
    [
        *(
            *MOVES,
            ops.Rotate(10),
            ops.Affine(10),
            ops.Perspective(),
            ops.Elastic(1, 0.5),
            ops.Rotate90(),
        ),
        *(ops.Sometimes(0.5, [ops.RandomFlip()]), ops.RandAugment()),
    ],
    ids=lambda op: type(op).__name__,
)
def test_points_beside_any_op_that_moves_pixels_are_told_of(caplog, op):
    (line,), _ = lines_of(caplog, [op], image=IMAGES, landmarks=np.ones((4, 5, 2), np.float32))
    assert "source.mark(landmarks='xy')" in line


def test_all_that_stays_is_in_one_line_with_a_form_for_each(caplog):
    fields = {
        "eyes": np.ones((4, 2, 2), np.float32),
        "face": np.ones((4, 4)),
        "right": IMAGES,
        "seg": IMAGES[..., :1],
    }

    (line,), _ = lines_of(caplog, [ops.RandomFlip()], image=IMAGES, **fields)

    for form in ("eyes='xy'", "face='xyxy'", "seg='mask'", "on=('image', 'right')", "on='image'"):
        assert form in line
    marks = {"eyes": "xy", "face": "xyxy", "seg": "mask"}
    moved = [ops.RandomFlip(on=("image", "right"))]
    assert lines_of(caplog, moved, marks=marks, image=IMAGES, **fields)[0] == []


@pytest.mark.parametrize(
    "fields",
    [
        {
            "label": np.arange(4),
            "id": np.arange(4),
            "weight": np.ones(4),
            "width": np.full(4, 9, np.int32),
        },
        {
            "embedding": np.zeros((4, 512), np.float32),
            "tokens": np.zeros((4, 77), np.int64),
            "name": np.array(list("abcd")),
        },
        {
            "label": np.eye(4, dtype=np.float32),
            "camera": np.zeros((4, 3, 3)),
            "pose": np.zeros((4, 4, 4)),
        },
        {"small": np.zeros((4, 4, 5, 3), np.uint8), "flags": np.zeros((4, 4), bool)},
    ],
    ids=["numbers", "vectors", "matrices", "another size"],
)
def test_numbers_that_are_no_part_of_the_image_are_moved_beside_without_a_word(caplog, fields):
    assert lines_of(caplog, [ops.RandomFlip(), ops.Resize(4, 4)], image=IMAGES, **fields)[0] == []


@pytest.mark.parametrize("name", ["label", "target", "segmentation"])
def test_a_mask_is_one_by_any_name(caplog, name):
    (line,), _ = lines_of(caplog, [ops.RandomFlip()], image=IMAGES, **{name: IMAGES[..., :1]})
    assert f"source.mark({name}='mask')" in line


def test_boxes_that_only_gpuload_pads_stay_and_those_that_a_function_moves_do_not(caplog):
    padded, moved = ops.PadTo(5, on="boxes"), ops.Python(lambda boxes: boxes, on="boxes")
    fields = {"image": IMAGES, "boxes": np.ones((4, 3, 4), np.float32)}
    assert len(lines_of(caplog, [ops.RandomFlip(), padded], **fields)[0]) == 1
    assert lines_of(caplog, [ops.RandomFlip(), moved], **fields)[0] == []


def test_a_label_of_two_classes_is_no_point(caplog):
    assert (
        lines_of(
            caplog, [ops.OneHot(2, on="cls"), ops.RandomFlip()], image=IMAGES, cls=np.zeros(4, int)
        )[0]
        == []
    )


def test_on_of_an_image_by_another_name_does_not_say_what_is_beside_it(caplog):
    fields = {"jpg": IMAGES, "landmarks": np.ones((4, 5, 2)), "cls": np.eye(4)}

    (line,), _ = lines_of(caplog, [ops.RandomFlip(on="jpg")], **fields)
    assert "source.mark(landmarks='xy')" in line
    assert "output=" in line
    (line,), _ = lines_of(caplog, [ops.MixUp(on="jpg")], output=("jpg", "cls"), **fields)
    assert "on=('jpg', 'cls')" in line
    assert (
        lines_of(caplog, [ops.MixUp(on=("jpg", "cls"))], output=("jpg", "cls"), **fields)[0] == []
    )


def test_points_beside_fields_that_on_names_are_told_of(caplog):
    fields = {"image": IMAGES, "mask": IMAGES[..., :1], "landmarks": np.ones((4, 5, 2))}
    (line,), _ = lines_of(caplog, [ops.RandomFlip(on=("image", "mask"))], **fields)
    assert "['landmarks'] beside it" in line
    assert lines_of(caplog, [ops.RandomFlip(on="image")], marks={"mask": "mask"}, **fields)[0] == []


def test_files_of_a_second_image_are_told_of_with_what_decodes_them(caplog):
    files = Field("image", np.dtype("u1"), (None,), encoded=True)
    masks = Field("mask", np.dtype("u1"), (None,), encoded=True)
    chain = [ops.Decode(), ops.Resize(8, 8), ops.RandomFlip()]

    assert "gl.ops.Decode(on='mask') before it" in (
        warning(compile_ops(Spec((files, masks)), chain), ("image", "mask")) or ""
    )
    assert warning(compile_ops(Spec((files, masks)), chain), ("image",)) is None


@pytest.mark.parametrize("op", [ops.Resize(4, 4), ops.RandomResizedCrop(4), ops.Rotate(20, interpolation="linear")],
                         ids=lambda op: type(op).__name__)  # fmt: skip
def test_numbers_of_pixels_that_an_op_blends_are_told_of(caplog, op):
    on = ("image", "seg")
    chain, fields = [dataclasses.replace(op, on=on)], {"image": IMAGES, "seg": IMAGES[..., :1]}

    (line,), _ = lines_of(caplog, chain, **fields)

    assert "source.mark(seg='mask') for a mask beside its image" in line
    assert lines_of(caplog, chain, marks={"seg": "HWC"}, **fields)[0] == []
    assert lines_of(caplog, [op], marks={"seg": "mask"}, **fields)[0] == []
    nearest = dataclasses.replace(op, on=on, interpolation={"seg": "nearest"})
    assert lines_of(caplog, [nearest], **fields)[0] == []


def test_labels_of_pixels_by_decode_are_told_of_where_they_are_blended():
    files = Field("image", np.dtype("u1"), (None,), encoded=True)
    decode = [ops.Decode(), ops.Decode("LABELS", on="seg")]
    graph = compile_ops(
        Spec((files, files.with_(name="seg"))),
        [*decode, ops.Resize(8, 8), ops.Resize(8, 8, on="seg")],
    )
    assert "source.mark(seg='mask')" in (warning(graph, ("image", "seg")) or "")


def test_labels_of_pixels_alone_are_told_of_where_they_are_blended():
    files = Field("image", np.dtype("u1"), (None,), encoded=True)
    decode = [ops.Decode("LABELS")]
    line = warning(compile_ops(Spec((files,)), [*decode, ops.Resize(8, 8)]), ("image",))
    assert "interpolation='nearest' for one alone" in (line or "")
    assert (
        warning(
            compile_ops(Spec((files,)), [*decode, ops.Resize(8, 8, interpolation="nearest")]),
            ("image",),
        )
        is None
    )
    assert (
        warning(compile_ops(Spec((files,)), [ops.Decode("GRAY"), ops.Resize(8, 8)]), ("image",))
        is None
    )


LEVELS = np.stack([np.full((8, 9, 3), level, np.uint8) for level in (0, 250, 0, 250)])


@pytest.mark.parametrize("name", ["cls", "fine_label", "target"])
@pytest.mark.parametrize(
    "op",
    [
        ops.MixUp(1.0),
        ops.OneOf([ops.MixUp(1.0), ops.MixUp(0.5)]),
        ops.Sometimes(1.0, [ops.MixUp()]),
    ],
    ids=lambda op: type(op).__name__,
)
def test_labels_of_any_name_are_mixed_as_their_images_are(caplog, name, op):
    lines, batch = lines_of(
        caplog, [ops.OneHot(2, on=name), op], image=LEVELS, **{name: np.array([0, 1, 0, 1])}
    )

    assert lines == []
    share = (
        batch["image"][:, 0, 0, 0] / 250
    )  # of the image that is 250 everywhere, and so of class 1
    assert ((share > 0.02) & (share < 0.98)).all()
    np.testing.assert_allclose(
        batch[name], np.stack([1 - share, share], axis=1), atol=0.5 / 250 + 1e-6
    )


def test_labels_of_cutmix_are_mixed_by_the_area(caplog):
    chain = [ops.OneHot(2, on="cls"), ops.OneHot(3, on="coarse"), ops.CutMix(1.0)]

    lines, batch = lines_of(
        caplog, chain, image=LEVELS, cls=np.array([0, 1, 0, 1]), coarse=np.array([2, 0, 2, 0])
    )

    share = (batch["image"] == 250).mean(axis=(1, 2, 3))
    assert lines == []
    np.testing.assert_allclose(batch["cls"], np.stack([1 - share, share], axis=1), atol=1e-6)
    np.testing.assert_allclose(
        batch["coarse"], np.stack([share, 0 * share, 1 - share], axis=1), atol=1e-6
    )


@pytest.mark.parametrize(
    ("op", "fields", "forms"),
    [
        (
            ops.MixUp(),
            {"cls": np.arange(4)},
            ["gl.ops.OneHot(10, on='cls')", "on='image'", "output="],
        ),
        (
            ops.CutMix(),
            {"soft": np.ones((4, 7), np.float32)},
            ["on=('image', 'soft')", "on='image'"],
        ),
        (ops.Mosaic(16), {"cls": np.arange(4)}, ["on='image'", "output="]),
        (
            ops.OneOf([ops.MixUp(), ops.CutMix()]),
            {"boxes": np.ones((4, 3, 4))},
            ["['boxes'] beside it", "output="],
        ),
        (
            ops.MixUp(),
            {"tags": np.ones((4, 20), bool)},
            ["gl.ops.Cast('float32', on='tags') and on=('image', 'tags')"],
        ),
        (ops.CutMix(), {"age": np.ones(4), "seg": LEVELS[..., :1]}, ["on=('image', 'age', 'seg')"]),
        (ops.MixUp(), {"age": np.ones(4), "seg": LEVELS[..., :1]}, ["on=('image', 'age') "]),
    ],
)
def test_numbers_that_stay_those_of_one_record_are_told_of(caplog, op, fields, forms):
    (line,), _ = lines_of(caplog, [op], image=LEVELS, **fields)
    assert [form for form in forms if form not in line] == []
    assert "'boxes')" not in line
    assert lines_of(caplog, [op], output="image", image=LEVELS, **fields)[0] == []
    alone = dataclasses.replace(op, on="image")
    assert lines_of(caplog, [alone], image=LEVELS, **fields)[0] == []


def test_what_mosaic_leaves_is_told_of_once(caplog):
    fields = {"boxes": np.ones((4, 3, 4), np.float32), "seg": LEVELS[..., :1]}
    (line,), _ = lines_of(caplog, [ops.Mosaic(16)], image=LEVELS, **fields)
    assert "source.mark(boxes='xyxy')" in line


def test_a_label_of_whole_numbers_for_each_class_is_to_be_cast():
    with pytest.raises(SpecError, match=r"gl.ops.Cast\('float32', on='cls'\) before it"):
        compile_ops(
            Spec((Field("image", np.dtype("u1"), (8, 8, 3)), Field("cls", np.dtype("i8"), ()))),
            [ops.OneHot(4, "int64", on="cls"), ops.MixUp()],
        )


def test_what_stays_beside_exchanged_sides_is_told_of_and_the_remedy_is_that_image(caplog):
    boxes = np.tile(np.array([1, 2, 5, 4], np.float32), (4, 1, 1))
    turned = [ops.Rotate90((1,)), ops.RandomFlip(p=1.0, horizontal=False, vertical=True)]
    marks = {"boxes": "xyxy"}

    (line,), batch = lines_of(
        caplog, [ops.Transpose((1, 0, 2))], marks=marks, image=IMAGES, boxes=boxes
    )
    lines, again = lines_of(caplog, turned, marks=marks, image=IMAGES, boxes=boxes)

    assert "Rotate90((1,)) and gl.ops.RandomFlip(p=1.0, horizontal=False, vertical=True)" in line
    assert lines == []
    np.testing.assert_array_equal(batch["image"], again["image"])
    assert again["boxes"][0].tolist() == [[2, 1, 4, 5]]  # x and y exchanged
    for fields in ({"eyes": np.ones((4, 5, 2), np.float32)}, {"seg": IMAGES[..., :1]}):
        (line,), _ = lines_of(caplog, [ops.Transpose((1, 0, 2))], image=IMAGES, **fields)
        assert f"{list(fields)} beside it stay" in line
    for op in (ops.Transpose("CHW"), ops.Transpose((2, 0, 1))):
        assert lines_of(caplog, [op], marks=marks, image=IMAGES, boxes=boxes)[0] == []
    fields = {"label": np.arange(4), "weight": np.ones(4)}
    assert lines_of(caplog, [ops.Transpose((1, 0, 2))], image=IMAGES, **fields)[0] == []


def test_a_text_that_may_be_the_label_of_mixed_images_is_told_of(caplog):
    words = np.array(["cat", "dog", "cat", "dog"])

    (line,), _ = lines_of(caplog, [ops.MixUp()], image=LEVELS, cls=words)

    assert "['cls'] beside it stay those of one" in line
    assert "numbers in place of 'cls'" in line
    hot = [ops.OneHot(2, on="label"), ops.MixUp()]  # the text is a name of the file, say
    assert lines_of(caplog, hot, image=LEVELS, label=np.array([0, 1, 0, 1]), name=words)[0] == []
    assert lines_of(caplog, [ops.MixUp()], output="image", image=LEVELS, cls=words)[0] == []
    assert lines_of(caplog, [ops.Mosaic(16)], image=LEVELS, cls=words)[0] == []


def test_what_belongs_to_an_image_of_which_moved_copies_are_handed_out_is_told_of(caplog):
    boxes = np.tile(np.array([1, 2, 5, 4], np.float32), (4, 1, 1))
    views = [
        ops.Copy("image", to=("first", "second")),
        *ops.repeat([ops.RandomFlip()], on=("first", "second")),
    ]
    fields = {
        "image": IMAGES,
        "boxes": boxes,
        "eyes": np.ones((4, 5, 2), np.float32),
        "label": np.arange(4),
    }

    for marks in ({"boxes": "xyxy", "eyes": "xy"}, {"boxes": "xyxy"}, {}):
        (line,), _ = lines_of(
            caplog, views, output=("first", "second", "boxes", "eyes"), marks=marks, **fields
        )
        assert "moves the pixels of ['first'], and ['boxes', 'eyes'] beside it stay" in line

    assert lines_of(caplog, views, output=("first", "second", "label"), **fields)[0] == []
    assert lines_of(caplog, views, output=("image", "first", "boxes"), **fields)[0] == []
    colours = [ops.Copy("image", to="first"), ops.Brightness(0.9, 1.1, on="first")]
    assert lines_of(caplog, colours, output=("first", "boxes"), **fields)[0] == []


@pytest.mark.parametrize("op", [ops.MixUp(on="image"), ops.CutMix(on="image"), ops.OneOf([ops.MixUp()], on="image")],
                         ids=lambda op: type(op).__name__)  # fmt: skip
def test_a_label_beside_an_image_that_is_mixed_alone_is_told_of(caplog, op):
    numbers = np.array([0, 1, 0, 1])
    hot = [ops.OneHot(2, on="cls"), op]

    (line,), batch = lines_of(caplog, hot, image=LEVELS, cls=numbers)

    np.testing.assert_array_equal(batch["cls"], np.eye(2))
    assert "on=('image', 'cls') for numbers to be mixed with it" in line
    assert "to keep them" not in line
    both = [hot[0], dataclasses.replace(op, on=("image", "cls"))]
    assert lines_of(caplog, both, image=LEVELS, cls=numbers)[0] == []
    for apart in ([*hot, ops.MixUp(on="cls")], [*both, op]):
        (line,), _ = lines_of(caplog, apart, image=LEVELS, cls=numbers)
        assert "['cls'] beside it stay those of one" in line
    copied = [hot[0], ops.Copy("cls", to="target"), op]
    assert (
        "['target']"
        in lines_of(caplog, copied, output=("image", "target"), image=LEVELS, cls=numbers)[0][0]
    )
    (line,), _ = lines_of(caplog, [op], image=LEVELS, label=numbers)
    assert "gl.ops.OneHot(10, on='label')" in line
    assert lines_of(caplog, [op], output="image", image=LEVELS, label=numbers)[0] == []


COLOURS = [
    ops.Brightness(0.5, 1), ops.Equalize(), ops.GaussianNoise(0.1), ops.GaussianBlur(3), ops.CLAHE(),
    ops.JpegArtefacts(50), ops.Normalize(0, 255), ops.PerImageStandardization(), ops.RandAugment(), ops.AutoAugment(),
]  # fmt: skip


@pytest.mark.parametrize("op", COLOURS, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("mark", ["", "mask"])
def test_classes_of_a_mask_that_are_changed_as_colours_are_told_of(caplog, op, mark):
    fields, marks = {"image": IMAGES, "seg": IMAGES[..., :1]}, {"seg": mark} if mark else {}

    lines, batch = lines_of(
        caplog, [dataclasses.replace(op, on=("image", "seg"))], marks=marks, **fields
    )

    if batch["seg"].dtype == np.float32 and not mark:  # which no loss takes for classes
        assert lines == []
        return
    (line,) = lines
    assert "of field 'seg'" in line
    assert ("source.mark(seg='HWC')" in line) == (not mark)
    assert (
        lines_of(
            caplog, [dataclasses.replace(op, on=("image", "seg"))], marks={"seg": "HWC"}, **fields
        )[0]
        == []
    )
    assert (
        lines_of(caplog, [dataclasses.replace(op, on="seg")], marks={"seg": "mask"}, **fields)[0]
        == []
    )


def test_colours_within_a_choice_leave_a_marked_mask_and_nothing_is_told(caplog):
    op = ops.OneOf([ops.RandomFlip(p=1.0), ops.Invert()])
    lines, batch = lines_of(caplog, [op], marks={"seg": "mask"}, image=LEVELS, seg=LEVELS[..., :1])
    assert lines == []
    np.testing.assert_array_equal(batch["seg"], LEVELS[:2, ..., :1])


@pytest.mark.parametrize("shape", [(3, 5), (None, 5)])
def test_boxes_with_their_classes_in_a_fifth_column_are_told_of(shape):
    fields = Field("image", np.dtype("u1"), (8, 9, 3)), Field("targets", np.dtype("f4"), shape)
    line = warning(compile_ops(Spec(fields), [ops.RandomFlip()]), ["image", "targets"])
    assert "rows[..., :4] and rows[..., 4]" in (line or "")
    assert "source.mark(boxes='xyxy', classes='with boxes')" in (line or "")
    assert (
        warning(compile_ops(Spec(fields), [ops.RandomFlip(on="image")]), ["image", "targets"])
        is None
    )
    table = Field("row", np.dtype("f4"), (5,))
    assert (
        warning(compile_ops(Spec((fields[0], table)), [ops.RandomFlip()]), ["image", "row"]) is None
    )


def test_labels_of_records_behind_ops_are_mixed(caplog):
    source = gl.arrays(image=LEVELS, cls=np.array([0, 1, 0, 1]))
    hot = gl.Loader(source, 2, ops=[ops.OneHot(2, on="cls")], device="cpu").to_source()
    caplog.clear()
    batch = gl.Loader(hot, 2, ops=[ops.MixUp()], device="cpu", seed=3).batch_at(0)
    share = batch["image"][:, 0, 0, 0] / 250
    np.testing.assert_allclose(
        batch["cls"], np.stack([1 - share, share], axis=1), atol=0.5 / 250 + 1e-6
    )
    assert not caplog.records


def fewer_rows(image):
    return image[::2]


def both(image, boxes):
    return image[:, ::-1], boxes


@pytest.mark.parametrize(
    ("op", "is_told"),
    [
        (ops.Python(np.fliplr), True), (ops.Python(fewer_rows, out={"shape": (4, 9, 3)}), True),
        (ops.Dali("flip", horizontal=1), True), (ops.Python(np.negative), False),
        (ops.Dali("gaussian_blur", sigma=1.0), False), (ops.Python(both, on=("image", "boxes")), False),
    ],
    ids=str,
)  # fmt: skip
def test_functions_that_are_known_to_move_an_image_alone_are_told_of(op, is_told):
    image, boxes = (
        Field("image", np.dtype("u1"), (8, 9, 3)),
        Field("boxes", np.dtype("f4"), (None, 4)),
    )
    for kind in ("", "xyxy"):
        spec = Spec((image, boxes.with_(kind=kind), Field("label", np.dtype("i8"), ())))
        line = warning(compile_ops(spec, [op]), ["image", "boxes", "label"])
        assert (line is not None) == is_told
        assert not is_told or "['boxes'] beside it stay" in line
        by_hand = compile_ops(spec, [op, ops.Python(np.negative, on="boxes")])
        assert warning(by_hand, ["image", "boxes", "label"]) is None
    parts = Spec((image, boxes.with_(kind="normalized xyxy")))
    resize = compile_ops(parts, [ops.Python(fewer_rows, out={"shape": (4, 9, 3)})])
    assert warning(resize, ["image", "boxes"]) is None


def line_beside(image, dtype, shape, op=None):
    """Return the warning about a field of a dtype and a shape beside an image of 32 x 48, or of a
    shape."""
    fields = Field("image", np.dtype("u1"), image), Field("x", np.dtype(dtype), shape)
    return warning(compile_ops(Spec(fields), [op or ops.RandomFlip()]), ["image", "x"])


@pytest.mark.parametrize("number", [None, 2, 40])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i2"])
@pytest.mark.parametrize(
    ("rows", "mark"), [((17, 3), "xy"), ((3, 4), "xyxy"), ((17, 2), "xy"), ((32, 48), "masks")]
)
def test_rows_of_objects_are_told_of_however_many_they_are(number, dtype, rows, mark):
    if number == 2 and mark == "masks" and dtype in ("f4", "f8"):
        mark = "HWC"  # an image of two channels
    for op in (ops.RandomFlip(), ops.Resize(16, 16), ops.RandomCrop(8, 8)):
        line = line_beside((32, 48, 3), dtype, (number, *rows), op)
        form = "on=('image', 'x')" if mark == "HWC" else f"source.mark(x={mark!r})"
        assert form in (line or "")


@pytest.mark.parametrize(
    ("dtype", "shape", "form"),
    [
        ("u1", (16, 24), "source.mark(x='mask')"), ("i8", (16, 24, 1), "source.mark(x='mask')"),
        ("?", (8, 12), "source.mark(x='mask')"), ("f4", (64, 96), "source.mark(x='mask')"),
        ("f4", (17, 8, 12), "source.mark(x='masks')"), ("f4", (None, 16, 24), "source.mark(x='masks')"),
        ("f4", (96, 144, 3), "gl.ops.Python of one function for all, on=('image', 'x')"),
        ("u1", (16, 24, 3), "gl.ops.Python of one function for all, on=('image', 'x')"),
    ],
    ids=str,
)  # fmt: skip
def test_maps_and_images_of_another_size_are_told_of(dtype, shape, form):
    line = line_beside((32, 48, 3), dtype, shape)
    assert form in (line or "")
    assert "on='image', if that is what you mean" in (line or "")
    assert line_beside((32, 48, 3), dtype, shape, ops.RandomFlip(on="image")) is None
    assert line_beside((None, None, 3), dtype, shape) is None  # whose size nobody knows


def test_a_mask_of_the_image_s_size_can_be_marked_as_the_line_about_a_smaller_one_says(caplog):
    fields = {
        "image": np.zeros((4, 32, 32, 3), np.uint8),
        "seg": np.zeros((4, 16, 16, 1), np.uint8),
    }
    assert len(lines_of(caplog, [ops.RandomFlip()], **fields)[0]) == 1
    fields["seg"] = fields["seg"].repeat(2, axis=1).repeat(2, axis=2)
    assert lines_of(caplog, [ops.RandomFlip()], marks={"seg": "mask"}, **fields)[0] == []
    pairs = {"image": fields["image"], "low": fields["image"][:, ::2, ::2]}
    assert len(lines_of(caplog, [ops.RandomFlip()], **pairs)[0]) == 1
    both = ops.Python(lambda image, low: (image[:, ::-1], low[:, ::-1]), on=("image", "low"))
    lines, batch = lines_of(caplog, [both], **pairs)
    assert lines == []
    assert batch["low"].shape == (2, 16, 16, 3)


QUIET = [
    (768,), (10,), (51,), (5,), (6,), (8,), (3,), (1,), (), (100, 6), (100, 12), (77, 768), (1, 8), (5, 8),
    (3, 3), (4, 4), (2, 3, 3), (2, 4, 4), (32, 32), (7, 7), (4, 6), (13, 13), (64, 64, 3), (48, 32, 3), (30, 30, 4),
    (None, 6), (None, 8), (None, 51), (None, 128), (None, 3, 3), (None, 4, 4), (None, None, 3), (None, None, None),
]  # fmt: skip


@pytest.mark.parametrize("shape", QUIET, ids=str)
def test_numbers_that_may_be_anything_are_not_told_of(shape):
    assert line_beside((32, 48, 3), "f4", shape) is None
    assert line_beside((224, 224, 3), "f4", shape) is None
