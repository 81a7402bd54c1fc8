"""Mosaic: four neighbours of the epoch's order in one image, for any batch size, ranks and
executor."""

from __future__ import annotations

import gc
import hashlib

import numpy as np
import pytest

import gpuload as gl
from gpuload import device as devices
from gpuload import ops
from gpuload.errors import GpuloadError, RecordError, SpecError
from gpuload.graph.graph import compile_ops
from gpuload.spec import Field, Spec
from tests import simdevice

LENGTH, SEED, EPOCH = 23, 6, 3
RNG = np.random.default_rng(2)
SIZES = [(20 + 3 * (n % 5), 30 - 2 * (n % 7)) for n in range(LENGTH)]
IMAGES = [RNG.integers(0, 256, (*size, 3), np.uint8) for size in SIZES]
SAME_SIZE = [image[:18, :18] for image in IMAGES]
BOXES = [
    np.array([[2 + 3 * i, 1 + 2 * i, 9 + 3 * i, 13 + i] for i in range(n % 4)], np.float32).reshape(
        -1, 4
    )
    for n in range(LENGTH)
]
CANVAS = (40, 44)
MARKS = {
    "mask": "mask",
    "boxes": "xyxy",
    "labels": "with boxes",
    "points": "xy with boxes",
    "masks": "masks with boxes",
}
FIELDS = {
    "image": ("uint8", (None, None, 3)), "mask": ("uint8", (None, None, 1)), "boxes": ("float32", (None, 4)),
    "labels": ("int64", (None,)), "points": ("float32", (None, 2, 3)), "masks": ("bool", (None, None, None)),
    "number": ("int64", ()),
}  # fmt: skip


def objects_of(n):
    """Return what belongs to the boxes of a record: labels, points in their corners, and masks."""
    points = np.stack([BOXES[n][:, :2], BOXES[n][:, 2:]], axis=1)
    masks = np.zeros((len(BOXES[n]), *SIZES[n]), bool)
    for mask, (left, top, right, bottom) in zip(masks, BOXES[n].astype(int), strict=True):
        mask[top:bottom, left:right] = True
        mask[top, left] = False
    return {
        "labels": 10 * n + np.arange(len(BOXES[n])),
        "points": np.concatenate([points, np.full((len(points), 2, 1), n)], axis=2).astype(
            np.float32
        ),
        "masks": masks,
    }


def read(numbers):
    columns = {name: [] for name in FIELDS}
    for n in numbers:
        record = {
            "image": IMAGES[n],
            "mask": IMAGES[n][..., :1] // 7,
            "boxes": BOXES[n],
            "number": n,
            **objects_of(n),
        }
        for name, values in columns.items():
            values.append(np.asarray(record[name]))
    return columns


def source_of(**marks):
    return gl.records(LENGTH, read, fields=FIELDS).mark(**(marks or MARKS))


def loader(chain, batch_size, source=None, **words):
    words = {"shuffle": True, "seed": SEED, "device": "cpu", "num_threads": 2, **words}
    return gl.Loader(source or source_of(), batch_size, ops=chain, **words)


def order_of_the_epoch():
    with loader([], LENGTH) as whole:
        return whole.batch_at(0, EPOCH).records.tolist()


ORDER = order_of_the_epoch()
MOSAIC = ops.Mosaic(*CANVAS, fill={"image": (114, 7, 9)}, min_size=2, min_area=9)


def uniforms(name, record, count):
    """Return the random numbers of an op for a record, by the words of `gpuload.rng` in NumPy's
    generator."""
    stream = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    philox = np.random.Philox(
        counter=np.array([0, record, EPOCH, 0], np.uint64), key=np.array([SEED, stream], np.uint64)
    )
    return np.random.Generator(philox).random(count)


def load_mosaic(place, sizes=SIZES):
    """Return the record, its slices of the canvas and of its image, and its shift, of each image of
    a mosaic.

    As YOLOv5's ``load_mosaic`` has it: 1a, 2a are the canvas' and 1b, 2b the image's.
    """
    u, (height, width) = uniforms("Mosaic/0", ORDER[place], 2), CANVAS
    yc, xc = int((0.25 + 0.5 * u[0]) * height), int((0.25 + 0.5 * u[1]) * width)
    pieces = []
    for i in range(4):
        other = place ^ i if (place ^ i) < LENGTH else place
        h, w = sizes[ORDER[other]]
        if i == 0:
            x1a, y1a, x2a, y2a = max(xc - w, 0), max(yc - h, 0), xc, yc
            x1b, y1b, x2b, y2b = w - (x2a - x1a), h - (y2a - y1a), w, h
        elif i == 1:
            x1a, y1a, x2a, y2a = xc, max(yc - h, 0), min(xc + w, width), yc
            x1b, y1b, x2b, y2b = 0, h - (y2a - y1a), min(w, x2a - x1a), h
        elif i == 2:
            x1a, y1a, x2a, y2a = max(xc - w, 0), yc, xc, min(height, yc + h)
            x1b, y1b, x2b, y2b = w - (x2a - x1a), 0, w, min(y2a - y1a, h)
        else:
            x1a, y1a, x2a, y2a = xc, yc, min(xc + w, width), min(height, yc + h)
            x1b, y1b, x2b, y2b = 0, 0, min(w, x2a - x1a), min(y2a - y1a, h)
        to, of = (slice(y1a, y2a), slice(x1a, x2a)), (slice(y1b, y2b), slice(x1b, x2b))
        pieces.append((ORDER[other], to, of, (x1a - x1b, y1a - y1b)))
    return pieces


def expected_mosaic(place):
    """Return what becomes of the record at a place of the order."""
    image, mask = np.full((*CANVAS, 3), (114, 7, 9), np.uint8), np.zeros((*CANVAS, 1), np.uint8)
    rows = {name: [] for name in ("boxes", "labels", "points", "masks")}
    for n, to, of, (left, top) in load_mosaic(place):
        image[to], mask[to] = IMAGES[n][of], IMAGES[n][of][..., :1] // 7
        objects = objects_of(n)
        for i, box in enumerate(BOXES[n]):
            box = (box + np.array([left, top] * 2)).clip(0, [CANVAS[1], CANVAS[0]] * 2)
            if (
                min(box[2] - box[0], box[3] - box[1]) < 2
                or (box[2] - box[0]) * (box[3] - box[1]) < 9
            ):
                continue
            whole = np.zeros(CANVAS, bool)
            whole[to] = objects["masks"][i][of]
            rows["boxes"].append(box)
            rows["labels"].append(objects["labels"][i])
            rows["points"].append(objects["points"][i] + [left, top, 0])
            rows["masks"].append(whole)
    return {"image": image, "mask": mask, "number": ORDER[place], **rows}


EXPECTED = [expected_mosaic(place) for place in range(LENGTH)]


def assert_mosaic(record, place):
    for name, values in EXPECTED[place].items():
        value = np.asarray(record[name])
        assert len(value) == len(values) if name in ("boxes", "labels", "points", "masks") else True
        if len(np.atleast_1d(values)):
            np.testing.assert_array_equal(value, np.asarray(values).astype(value.dtype))


def check_all(chain, batch_size, **words):
    """Compare all records of all ranks of an epoch."""
    visited, num_shards = set(), words.pop("num_shards", 1)
    for shard_id in range(num_shards):
        with loader(chain, batch_size, shard_id=shard_id, num_shards=num_shards, **words) as part:
            for batch in part.epoch(EPOCH):
                for row, record in enumerate(batch.records.tolist()):
                    assert_mosaic({name: batch[name][row] for name in FIELDS}, ORDER.index(record))
                    visited.add(record)
    return visited


@pytest.mark.parametrize(
    ("batch_size", "words"),
    [
        (4, {}), (8, {}), (5, {}), (1, {}), (3, {}), (LENGTH, {}), (64, {}), (6, {"num_threads": 5}),
        (4, {"num_shards": 2}), (3, {"num_shards": 2}), (2, {"num_shards": 5}), (4, {"last_batch": "pad"}),
        (5, {"last_batch": "pad", "num_shards": 2}), (7, {"last_batch": "drop"}), (4, {"executor": "dali"}),
        (6, {"executor": "dali"}),
    ],
)  # fmt: skip
def test_the_records_of_an_epoch_are_the_same_with_any_batch_size_and_any_number_of_ranks(
    batch_size, words
):
    if "executor" in words:
        pytest.importorskip("nvidia.dali")
        chain = [ops.Dali("flip", horizontal=0, vertical=0), MOSAIC]
        words = {**words, "source": source_of()}
    else:
        chain = [MOSAIC]

    visited = check_all(chain, batch_size, **words)

    assert visited == set(range(LENGTH)) or words.get("last_batch") == "drop"


@pytest.mark.parametrize("batch_size", [4, 5])
@pytest.mark.parametrize("sizes", ["different", "same"])
def test_on_a_gpu(batch_size, sizes, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    source = source_of() if sizes == "different" else gl.arrays(image=np.stack(SAME_SIZE))
    chain = [ops.RandomFlip(), ops.Mosaic(*CANVAS, fill=9)]

    with (
        loader(chain, batch_size, source) as on_cpu,
        loader(chain, batch_size, source, device="gpu") as on_gpu,
    ):
        for batch, expected in zip(on_gpu.epoch(EPOCH), on_cpu.epoch(EPOCH), strict=True):
            np.testing.assert_array_equal(batch["image"].get(), expected["image"])
            if sizes == "different":
                for row in range(len(batch.records)):
                    np.testing.assert_array_equal(batch["boxes"][row].get(), expected["boxes"][row])
                    np.testing.assert_array_equal(batch["masks"][row].get(), expected["masks"][row])

    del batch
    gc.collect()
    sim.finish()


def test_ops_before_and_behind_it_and_mixup_of_mosaics():
    """Ops act on each image before, and on the mosaic behind; MixUp takes two neighbouring
    mosaics."""
    source = source_of(boxes="xyxy", labels="with boxes")
    chain = [
        ops.RandomFlip(0.5),
        ops.Mosaic(*CANVAS),
        ops.RandomCrop(30, 30),
        ops.Normalize(100.0, 50.0),
    ]
    with loader([*chain[:2]], LENGTH, source) as whole:
        mosaics = {
            int(n): np.array(image)
            for n, image in zip(ORDER, whole.batch_at(0, EPOCH)["image"], strict=True)
        }
    for batch_size in (4, 5):
        with loader(chain, batch_size, source, drawn=True) as load:
            for batch in load.epoch(EPOCH):
                for row, record in enumerate(batch.records.tolist()):
                    top, left = batch.drawn["RandomCrop/0"]["start"][row]
                    crop = mosaics[record][top : top + 30, left : left + 30]
                    np.testing.assert_allclose(
                        batch["image"][row], (crop.astype("f4") - 100) / 50, atol=1e-6
                    )
    plain = gl.arrays(image=np.stack(SAME_SIZE))
    with loader([ops.Mosaic(*CANVAS)], LENGTH, plain) as whole:
        mosaics = np.array(whole.batch_at(0, EPOCH)["image"]).astype(np.float32)
    for batch_size in (4, 5, 2):
        with loader([ops.Mosaic(*CANVAS), ops.MixUp(0.4)], batch_size, plain, drawn=True) as load:
            for batch in load.epoch(EPOCH):
                for row, record in enumerate(batch.records.tolist()):
                    place, weight = ORDER.index(record), batch.drawn["MixUp/0"]["weight"][row]
                    partner = place ^ 1 if (place ^ 1) < LENGTH else place
                    mixture = mosaics[place] * weight + mosaics[partner] * (np.float32(1) - weight)
                    np.testing.assert_array_equal(
                        batch["image"][row], np.floor(mixture + np.float32(0.5))
                    )


def test_a_record_that_is_no_mosaic_lies_in_the_middle():
    with loader([ops.Mosaic(33, 34, fill=5, p=0)], 4) as load:
        batch = load.batch_at(1, EPOCH)
    for row, record in enumerate(batch.records.tolist()):
        (height, width), image = SIZES[record], batch["image"][row]
        top, left = (33 - height) // 2, (34 - width) // 2
        np.testing.assert_array_equal(
            image[top : top + height, left : left + width], IMAGES[record]
        )
        assert (image == 5).all(axis=2).sum() >= 33 * 34 - height * width
        assert batch["labels"][row].tolist() == objects_of(record)["labels"].tolist()
        np.testing.assert_array_equal(
            batch["boxes"][row], BOXES[record] + np.array([left, top] * 2, np.float32)
        )


def test_p_is_the_share_of_mosaics_and_the_point_lies_within_center():
    op = ops.Mosaic(100, 200, center=(0.4, 0.5), p=0.3)

    draw = op.draw(np.random.default_rng(0).random((10_000, 3)), np.zeros((10_000, 2), np.int32))

    assert draw["apply"].mean() == pytest.approx(0.3, abs=0.02)
    assert (draw["point"].min(axis=0).tolist(), draw["point"].max(axis=0).tolist()) == (
        [40, 80],
        [49, 99],
    )


def test_a_run_that_goes_on_with_another_batch_size_has_the_same_records():
    with loader([MOSAIC], 5) as first, loader([MOSAIC], 4) as second:
        second.load_state_dict(first.state_dict(EPOCH, 1))
        records = []
        for batch in second:
            records += batch.records.tolist()
            for row, record in enumerate(batch.records.tolist()):
                assert_mosaic({name: batch[name][row] for name in FIELDS}, ORDER.index(record))
    assert records == ORDER[5:]


def test_masks_in_files_and_images_of_files(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    for n, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"{n:02d}.png")
    source = gl.images(tmp_path, labels=None)
    with loader([ops.Decode(), ops.Mosaic(*CANVAS, fill=(114, 7, 9))], 6, source) as load:
        for batch in load.epoch(EPOCH):
            for row, record in enumerate(batch.records.tolist()):
                np.testing.assert_array_equal(
                    batch["image"][row], EXPECTED[ORDER.index(record)]["image"]
                )


def test_a_bad_box_of_a_neighbour_is_told_of_its_own_record():
    bad = ORDER[6]

    def read_bad(numbers):
        columns = read(numbers)
        for row, n in enumerate(numbers):
            if n == bad:
                columns["boxes"][row] = np.array([[1, 2, 30, np.nan]], np.float32)
        return columns

    source = gl.records(LENGTH, read_bad, fields=FIELDS).mark(boxes="xyxy")
    with (
        loader([MOSAIC], 1, source) as load,
        pytest.raises(RecordError, match=f"record {bad}: field 'boxes'"),
    ):
        load.batch_at(4, EPOCH)


def test_a_damaged_record_is_replaced_before_it_is_joined():
    bad = ORDER[6]

    def read_bad(numbers):
        columns = read(numbers)
        columns["boxes"] = [
            np.array([[1, 2, 30, np.nan]], "f4") if n == bad else BOXES[n] for n in numbers
        ]
        return columns

    source = gl.records(LENGTH, read_bad, fields=FIELDS).mark(boxes="xyxy")
    with loader([MOSAIC], 4, source, on_error="replace", max_bad=0.5) as load:
        batch = load.batch_at(1, EPOCH)
        substitute = int(batch.records[2])
        assert substitute != bad
        assert {entry.record for entry in load.bad_records()} == {bad}
    # The first mosaic of the group has the substitute at its lower left.
    top, left = (
        int((0.25 + 0.5 * u) * side)
        for u, side in zip(uniforms("Mosaic/0", ORDER[4], 2), CANVAS, strict=True)
    )
    height, width = (
        min(side, room)
        for side, room in zip(SIZES[substitute], (CANVAS[0] - top, left), strict=True)
    )
    piece = batch["image"][0][top : top + height, left - width : left]
    np.testing.assert_array_equal(
        piece, IMAGES[substitute][:height, SIZES[substitute][1] - width :]
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.Mosaic(0), "height"),
        (lambda: ops.Mosaic(9, center=(0.6, 0.4)), "center"),
        (lambda: ops.Mosaic(9, center=2), "center"),
        (lambda: ops.Mosaic(9, p=2), "a probability"),
        (lambda: ops.Mosaic(9, min_size=-1), "min_size"),
        (lambda: loader([ops.Mosaic(9, fill=300)], 4), "cannot hold this value"),
        (lambda: loader([ops.Mosaic(9)], 4).to_source(EPOCH), "without an order"),
        (
            lambda: loader([ops.Sometimes(0.5, [ops.Mosaic(9)])], 4, source_of(mask="mask")),
            "Sometimes of Mosaic",
        ),
        (lambda: loader([ops.Mosaic(9, on=("image", "boxes"))], 4), "without being named"),
        (lambda: loader([ops.PadTo(5, on="boxes"), ops.Mosaic(9)], 4), "its rows do not stay"),
    ],
)
def test_what_is_wrong_is_told(call, words):
    with pytest.raises(GpuloadError, match=words) as caught:
        call()
    assert caught.value.cause
    assert caught.value.remedy


def test_images_of_any_number_of_channels_are_refused():
    spec = Spec((Field("image", np.dtype("u1"), (None, None, None), axes="HWC"),))
    with pytest.raises(SpecError, match="one number of channels"):
        compile_ops(spec, [ops.Mosaic(9)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, bool])
@pytest.mark.parametrize("form", ["one size", "different sizes"])
def test_the_kernel_equals_numpy(dtype, form):
    xp = devices.cupy()
    op = ops.Mosaic(*CANVAS, fill=1, p=0.7)
    values = SAME_SIZE if form == "one size" else IMAGES
    values = [image.astype(dtype) for image in values]
    size = np.array([image.shape[:2] for image in values], np.int32)
    places = np.arange(LENGTH)[:, None]
    further = (places ^ np.arange(1, 4)) - places
    draw = op.draw(np.random.default_rng(4).random((LENGTH, 3)), size)
    draw["partner"] = np.where(places + further < LENGTH, further, 0).astype(np.int32)
    spec = Spec((Field("image", np.dtype(dtype), (None, None, 3), axes="HWC"),))
    x = np.stack(values) if form == "one size" else values

    on_device = xp.asarray(x) if form == "one size" else [*map(xp.asarray, x)]
    join = op.traits.joint.array_fields
    on_gpu = join(xp, {"image": on_device}, draw, op.spec_after(spec))

    expected = join(np, {"image": x}, draw, op.spec_after(spec))["image"]
    np.testing.assert_array_equal(on_gpu["image"].get(), expected)
