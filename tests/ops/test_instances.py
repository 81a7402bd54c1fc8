"""Masks of objects, [number, height, width], go with their image and with their boxes."""

from __future__ import annotations

import gc
import logging
import pickle

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import RecordError, SpecError
from gpuload.graph.graph import compile_ops
from gpuload.spec import Field, Spec
from tests import simdevice

RNG = np.random.default_rng(8)
COUNT = 9
IMAGES = RNG.integers(0, 256, (COUNT, 40, 48, 3), np.uint8)
BOXES = [
    np.array([[4 + 6 * i, 3 + i, 14 + 6 * i, 20 + 5 * i] for i in range(n % 4)]).reshape(-1, 4)
    for n in range(COUNT)
]


def mask_of(box):
    """Return a mask with a hole and a notch, so that no mirror image of it is the same."""
    left, top, right, bottom = box
    mask = np.zeros((40, 48), bool)
    mask[top:bottom, left:right] = True
    mask[top : top + 4, left : left + 3] = False
    mask[bottom - 6 : bottom - 4, left + 3 : right - 1] = False
    return mask


MASKS = [np.array([mask_of(box) for box in boxes], bool).reshape(-1, 40, 48) for boxes in BOXES]
VARYING = ("bool", (None, None, None))
FIELDS = {
    "boxes": ("float32", (None, 4)),
    "labels": ("int64", (None,)),
    "masks": ("bool", (None, 40, 48)),
}
MARKS = {"boxes": "xyxy", "labels": "with boxes", "masks": "masks with boxes"}


def read(numbers):
    return {
        "boxes": [BOXES[n].astype("f4") for n in numbers],
        "labels": [10 * n + np.arange(len(BOXES[n])) for n in numbers],
        "masks": [MASKS[n] for n in numbers],
    }


def source_of(fields=FIELDS, read=read, **marks):
    return gl.zip(gl.arrays(image=IMAGES), gl.records(COUNT, read, fields=fields)).mark(
        **(marks or MARKS)
    )


def batch_of(chain, source=None, **words):
    words = {"seed": 3, "device": "cpu", "num_threads": 2, **words}
    with gl.Loader(
        source or source_of(), words.pop("batch_size", COUNT), ops=chain, **words
    ) as load:
        return load.batch_at(0, epoch=1)


CHAINS = [
    [ops.RandomFlip(0.5, vertical=True), ops.RandomCrop(30, 33, pad=4, fill={"image": 9})],
    [ops.RandomResizedCrop(24, 20), ops.Rotate90()],
    [ops.Resize(longer=60), ops.Pad(64, 70), ops.CenterCrop(50)],
    [ops.Rotate(30, expand=True), ops.Resize(shorter=31, interpolation="lanczos")],
    [ops.Affine(20, shear=10, interpolation="linear", fill=(1, 2, 3)), ops.Perspective(0.5)],
    [ops.Elastic(60, sigma=2), ops.RandomZoomOut(fill=3), ops.ScaleJitter(60)],
    [
        ops.OneOf([ops.RandomFlip(1), ops.Translate(0.2, 0.2)]),
        ops.Sometimes(0.5, [ops.Invert(), ops.Rotate(10)]),
    ],
]


@pytest.mark.parametrize(
    "chain", CHAINS, ids=lambda chain: "-".join(type(op).__name__ for op in chain)
)
@pytest.mark.parametrize("is_varying", [False, True])
def test_each_goes_where_a_mask_of_the_image_goes(chain, is_varying):
    """Mask number k of each record is compared with the same as the one mask of the image, which
    the op acts on."""
    fields = {**FIELDS, "masks": VARYING} if is_varying else FIELDS

    result = batch_of(chain, source_of(fields, masks="masks"))

    for number in range(3):
        layer = np.stack(
            [masks[number] if len(masks) > number else np.zeros((40, 48), bool) for masks in MASKS]
        )
        source = gl.arrays(image=IMAGES, mask=layer[..., None]).mark(mask="mask")
        batch = batch_of(chain, source)
        for row, masks in enumerate(MASKS):
            np.testing.assert_array_equal(result["image"][row], batch["image"][row])
            assert result["masks"][row].dtype == bool
            assert len(result["masks"][row]) == len(masks)
            assert result["masks"][row].shape[1:] == batch["image"][row].shape[:2]
            if len(masks) > number:
                np.testing.assert_array_equal(
                    result["masks"][row][number], batch["mask"][row][..., 0]
                )


def test_a_mirrored_mask_and_its_box_stay_together():
    batch = batch_of([ops.RandomFlip(1)])

    for row in range(COUNT):
        np.testing.assert_array_equal(batch["masks"][row], MASKS[row][:, :, ::-1])
        for mask, (left, top, right, bottom) in zip(
            batch["masks"][row], batch["boxes"][row].astype(int), strict=True
        ):
            rows, columns = np.nonzero(mask)
            assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (
                left,
                top,
                right,
                bottom,
            )


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_rows_are_dropped_with_their_boxes(executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    chain = [ops.RandomCrop(24, 24), ops.CleanBoxes(min_size=3)]

    batch = batch_of(chain, executor=executor)
    whole = batch_of(chain[:1])

    dropped = 0
    for row in range(COUNT):
        stays = [bool((box[2:] - box[:2] >= 3).all()) for box in whole["boxes"][row]]
        dropped += len(stays) - sum(stays)
        np.testing.assert_array_equal(batch["masks"][row], whole["masks"][row][stays])
        np.testing.assert_array_equal(batch["labels"][row], whole["labels"][row][stays])
        np.testing.assert_array_equal(batch["boxes"][row], whole["boxes"][row][stays])
    assert dropped > 2


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_batch_size_and_threads_change_nothing(batch_size):
    chain = [*CHAINS[0], ops.CleanBoxes(min_size=3)]
    whole = batch_of(chain)

    with gl.Loader(source_of(), batch_size, ops=chain, seed=3, device="cpu", num_threads=3) as load:
        rows = [masks for batch in load.epoch(1) for masks in batch["masks"]]

    for row, masks in enumerate(rows):
        np.testing.assert_array_equal(masks, whole["masks"][row])


def test_on_a_gpu_they_are_moved_on_the_host(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    chain = [ops.RandomCrop(30, 33, pad=4), ops.RandomFlip(), ops.CleanBoxes(min_size=2)]
    expected = batch_of(chain)

    batch = batch_of(chain, device="gpu", batch_size=COUNT)

    for row in range(COUNT):
        np.testing.assert_array_equal(batch["masks"][row].get(), expected["masks"][row])
    np.testing.assert_array_equal(batch["image"].get(), expected["image"])
    del batch
    gc.collect()
    sim.finish()


def test_in_a_folder_of_images_they_follow_the_decoded_ones(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    for n, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"{n}.png")
    objects = gl.records(COUNT, read, fields={**FIELDS, "masks": VARYING})
    source = gl.zip(gl.images(tmp_path, labels=None), objects).mark(**MARKS)
    chain = [ops.RandomResizedCrop(24, 20), ops.RandomFlip()]

    batch, expected = batch_of([ops.Decode(), *chain], source), batch_of(chain)

    assert batch["masks"][3].shape == (3, 24, 20)
    for row in range(COUNT):
        np.testing.assert_array_equal(batch["masks"][row], expected["masks"][row])


def test_marks_survive_pickling_and_stand_in_the_state():
    with (
        gl.Loader(source_of(), 4, ops=CHAINS[0], device="cpu") as load,
        pickle.loads(pickle.dumps(load)) as copy,
    ):
        np.testing.assert_array_equal(load.batch_at(1)["masks"][0], copy.batch_at(1)["masks"][0])
        state = load.state_dict()
    with (
        gl.Loader(source_of(boxes="xyxy"), 4, ops=CHAINS[0], device="cpu") as other,
        pytest.raises(gl.GpuloadError),
    ):
        other.load_state_dict(state)


def test_masks_of_another_size_than_the_image_are_named():
    wrong = Field("masks", np.dtype(bool), (None, 40, 40), kind="masks")
    image = Field("image", np.dtype("u1"), (40, 48, 3))
    with pytest.raises(SpecError, match="must have the same size") as caught:
        compile_ops(Spec((image, wrong)), [ops.RandomFlip()])
    assert "masks" in caught.value.what

    def read_wrong(numbers):
        fields = read(numbers)
        fields["masks"] = [
            masks[:, :39] if n == 5 else masks
            for n, masks in zip(numbers, fields["masks"], strict=True)
        ]
        return fields

    source = source_of({**FIELDS, "masks": VARYING}, read_wrong)
    with pytest.raises(
        RecordError,
        match=r"record 5: field 'masks': the masks have 39 x 48 pixels, the image 40 x 48",
    ):
        batch_of([ops.RandomFlip()], source)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: source_of(labels="masks"), "masks of objects have three axes"),
        (
            lambda: batch_of([ops.RandomFlip(on=("image", "masks"))]),
            "go with their image without being named",
        ),
        (
            lambda: batch_of([ops.RandAugment()], source_of(masks="masks")),
            "beside the mask .masks.",
        ),
        (lambda: batch_of([ops.Reshape((-1,), on="masks"), ops.RandomFlip()]), "its shape varies"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(gl.GpuloadError, match=words):
        call()


def test_masks_that_are_not_marked_are_told_of_once(caplog):
    with caplog.at_level(logging.WARNING, logger="gpuload"):
        gl.Loader(
            source_of(boxes="xyxy", labels="with boxes"),
            2,
            ops=[ops.RandomFlip(), ops.Rotate90()],
            device="cpu",
        )
        gl.Loader(source_of(), 2, ops=[ops.RandomFlip()], device="cpu")

    (line,) = (record.getMessage() for record in caplog.records)
    assert "source.mark(masks='masks')" in line


def test_a_preview_shows_them():
    page = gl.preview(
        gl.Loader(source_of(), 2, ops=[ops.RandomFlip()], device="cpu"), records=[3], epochs=1
    )

    assert "3 masks, 40 x 48" in page._repr_html_()
