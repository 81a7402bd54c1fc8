"""MixUp and CutMix: a record and its partner in the epoch's order, for any batch size, ranks and
executor."""

from __future__ import annotations

import gc
import hashlib

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError, SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops.mix.mixing import beta_quantile
from gpuload.order import Plan, Position
from gpuload.spec import Field, Spec
from tests import simdevice

LENGTH, SEED, EPOCH = 23, 6, 3
PIXELS = np.random.default_rng(2).integers(0, 256, (LENGTH, 9, 12, 3), np.uint8)
LABELS = np.arange(LENGTH) % 5
BEFORE = [gl.ops.RandomCrop(8, 10), gl.ops.RandomFlip(), gl.ops.OneHot(5)]
NORMALIZE = gl.ops.Normalize(120.0, 60.0)


def source():
    return gl.arrays(image=PIXELS, label=LABELS)


def loader(ops, batch_size, data=None, **arguments):
    words = {"shuffle": True, "seed": SEED, "device": "cpu", "num_threads": 2, **arguments}
    return gl.Loader(data or source(), batch_size, ops=ops, **words)


def whole_epoch(ops, **arguments):
    """Return image, label and records of an epoch in its order, as one batch."""
    with loader(ops, LENGTH, **arguments) as whole:
        batch = whole.batch_at(0, EPOCH)
        return np.array(batch["image"]), np.array(batch["label"]), batch.records


def uniforms(name, record, count):
    """Return the random numbers of an op for a record, by the words of `gpuload.rng` in NumPy's
    generator."""
    stream = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    philox = np.random.Philox(
        counter=np.array([0, record, EPOCH, 0], np.uint64), key=np.array([SEED, stream], np.uint64)
    )
    return np.random.Generator(philox).random(count)


def mixed_up(images, labels, records, alpha):
    """Return what MixUp makes of an epoch, record by record."""
    results = []
    for values in (images, labels):
        rows = []
        for place in range(len(records)):
            partner = place ^ 1
            if partner >= len(records):
                rows.append(values[place])
                continue
            u = uniforms("MixUp/0", int(records[min(place, partner)]), 2)
            weight = np.float32(beta_quantile(alpha, u[:1])[0])
            row = values[place].astype("f4") * weight + values[partner].astype("f4") * (
                np.float32(1) - weight
            )
            rows.append(row if values.dtype == np.float32 else np.floor(row + np.float32(0.5)))
        results.append(np.stack(rows).astype(values.dtype))
    return results


def cut_and_mixed(images, labels, records, alpha):
    """Return what CutMix makes of an epoch, by torchvision's words: a middle, and half of each side
    rounded down."""
    images_after, labels_after = images.copy(), labels.copy()
    height, width = images.shape[1:3]
    for place in range(len(records) // 2 * 2):
        partner = place ^ 1
        u = uniforms("CutMix/0", int(records[min(place, partner)]), 4)
        ratio = 0.5 * np.sqrt(1 - beta_quantile(alpha, u[:1])[0])
        middle_y, middle_x = int(u[1] * height), int(u[2] * width)
        half_y, half_x = int(ratio * height), int(ratio * width)
        y1, y2 = max(middle_y - half_y, 0), min(middle_y + half_y, height)
        x1, x2 = max(middle_x - half_x, 0), min(middle_x + half_x, width)
        images_after[place, y1:y2, x1:x2] = images[partner, y1:y2, x1:x2]
        weight = np.float32(1 - (y2 - y1) * (x2 - x1) / (height * width))
        labels_after[place] = labels[place] * weight + labels[partner] * (np.float32(1) - weight)
    return images_after, labels_after


CASES = {
    "MixUp": (gl.ops.MixUp(0.4), lambda *arguments: mixed_up(*arguments, 0.4)),
    "CutMix": (gl.ops.CutMix(0.9), lambda *arguments: cut_and_mixed(*arguments, 0.9)),
}


def rows_by_place(ops, batch_size, **arguments):
    """Return the rows of an epoch by their places in its order, put together from the batches of
    all ranks."""
    images, labels, order = {}, {}, whole_epoch(BEFORE)[2].tolist()
    num_shards = arguments.pop("num_shards", 1)
    for shard_id in range(num_shards):
        with loader(ops, batch_size, shard_id=shard_id, num_shards=num_shards, **arguments) as part:
            for batch in part.epoch(EPOCH):
                rows = zip(
                    batch.records.tolist(), batch["image"], batch["label"], batch.valid, strict=True
                )
                for record, image, label, valid in rows:
                    place = order.index(record)
                    if place in images:  # a padded row, which is the record of its place, too
                        assert not valid or arguments.get("last_batch") == "pad"
                        np.testing.assert_array_equal(image, images[place])
                    images[place], labels[place] = np.array(image), np.array(label)
    return images, labels


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("batch_size", "arguments"),
    [
        (4, {}), (5, {}), (1, {}), (LENGTH, {}), (64, {}), (7, {"num_threads": 5}),
        (4, {"num_shards": 2}), (3, {"num_shards": 2}), (2, {"num_shards": 5}), (3, {"num_shards": 3}),
        (4, {"last_batch": "pad"}), (5, {"last_batch": "pad", "num_shards": 2}), (5, {"last_batch": "drop"}),
        (4, {"executor": "dali"}),
    ],
)  # fmt: skip
def test_the_rows_of_an_epoch_are_the_same_with_any_batch_size_and_any_number_of_ranks(
    name, batch_size, arguments
):
    if "executor" in arguments:
        pytest.importorskip("nvidia.dali")
    op, mixed = CASES[name]
    images, labels = mixed(*whole_epoch(BEFORE))

    own_images, own_labels = rows_by_place([*BEFORE, op], batch_size, **arguments)

    if arguments.get("last_batch") != "drop":
        assert own_images.keys() == set(range(LENGTH))
    for place, image in own_images.items():
        np.testing.assert_array_equal(image, images[place])
        np.testing.assert_array_equal(own_labels[place], labels[place])


@pytest.mark.parametrize("name", CASES)
def test_floats_behind_the_normalisation_and_ops_behind_it(name):
    op, mixed = CASES[name]
    behind = [gl.ops.Transpose("CHW"), gl.ops.Cast("float16", on="label")]
    images, labels = mixed(*whole_epoch([*BEFORE, NORMALIZE]))

    own_images, own_labels = rows_by_place([*BEFORE, NORMALIZE, op, *behind], 5)

    for place, image in own_images.items():
        np.testing.assert_array_equal(image, images[place].transpose(2, 0, 1))
        np.testing.assert_array_equal(own_labels[place], labels[place].astype("f2"))


@pytest.mark.parametrize("batch_size", [4, 5])
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name, batch_size, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    op, mixed = CASES[name]
    images, labels = mixed(*whole_epoch(BEFORE))
    order = whole_epoch(BEFORE)[2].tolist()

    with loader([*BEFORE, op], batch_size, device="gpu") as on_gpu:
        for batch in [*on_gpu.epoch(EPOCH), on_gpu.batch_at(1, EPOCH)]:
            places = [order.index(record) for record in batch.records.tolist()]
            np.testing.assert_array_equal(batch["image"].get(), images[places])
            np.testing.assert_allclose(batch["label"].get(), labels[places], rtol=0, atol=1e-7)

    del batch
    gc.collect()
    sim.finish()


def test_a_run_that_goes_on_with_another_batch_size_has_the_same_rows():
    images, _ = mixed_up(*whole_epoch(BEFORE), 0.4)
    order = whole_epoch(BEFORE)[2].tolist()
    with (
        loader([*BEFORE, gl.ops.MixUp(0.4)], 5) as first,
        loader([*BEFORE, gl.ops.MixUp(0.4)], 4) as second,
    ):
        second.load_state_dict(first.state_dict(EPOCH, 1))
        records = []
        for batch in second:
            records += batch.records.tolist()
            np.testing.assert_array_equal(
                batch["image"], images[[order.index(n) for n in batch.records.tolist()]]
            )
            assert len(batch["image"]) == len(batch.records) == len(batch.valid) <= 4
    assert records == order[5:]


@pytest.mark.parametrize("on_error", ["replace", "skip"])
@pytest.mark.parametrize("executor", ["array", "dali"])
def test_what_stands_in_the_place_of_a_damaged_record_is_mixed(on_error, executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    labels = LABELS.copy()
    labels[[3, 11]] = 9  # which OneHot(5) refuses
    data = gl.arrays(image=PIXELS, label=labels)
    words = {"on_error": on_error, "max_bad": 0.5}
    with loader(BEFORE, LENGTH, data, **words) as plain:
        batch = plain.batch_at(0, EPOCH)
        before = np.array(batch["image"]), np.array(batch["label"]), batch.records.copy()
        valid = batch.valid.copy()
    images, soft = mixed_up(*before, 0.4)
    for batch_size in (LENGTH, 4, 5, 3):
        with loader(
            [*BEFORE, gl.ops.MixUp(0.4)], batch_size, data, executor=executor, **words
        ) as mixed:
            begin = 0
            for batch in mixed.epoch(EPOCH):
                rows = slice(begin, begin + len(batch.records))
                np.testing.assert_array_equal(batch.records, before[2][rows])
                np.testing.assert_array_equal(batch.valid, valid[rows])
                np.testing.assert_array_equal(batch["image"], images[rows])
                np.testing.assert_array_equal(batch["label"], soft[rows])
                begin = rows.stop
            assert {bad.record for bad in mixed.bad_records()} == {3, 11}


def test_a_damaged_partner_that_is_read_besides_is_named():
    labels = LABELS.copy()
    order = whole_epoch(BEFORE)[2]
    labels[order[5]] = 9
    with loader([*BEFORE, gl.ops.MixUp()], 5, gl.arrays(image=PIXELS, label=labels)) as mixed:
        with pytest.raises(gl.GpuloadError, match="label 9"):
            mixed.batch_at(0, EPOCH)  # its last record is mixed with the first of the next batch
        mixed.batch_at(2, EPOCH)


def test_partners_of_a_plan():
    plan = Plan(7, 3)
    pairs = plan.span_of_groups(Position(), 2, 3)
    assert pairs.records.tolist() == [0, 1, 2, 3, 2, 3, 4, 5, 6]
    assert pairs.batches == ((0, 3, 1), (1, 3, 0), (0, 1, 0))
    assert pairs.partners.tolist() == [[1], [-1], [1], [-1], [1], [-1], [1], [-1], [0]]
    assert pairs.valid.tolist() == [True, True, True, False, False, True, True, True, True]

    fours = plan.span_of_groups(Position(), 4, 3)
    assert fours.records.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 4, 5, 6]
    assert fours.batches == ((0, 3, 1), (3, 3, 1), (2, 1, 0))
    group, rest = (
        [[1, 2, 3], [-1, 2, 1], [1, -2, -1], [-1, -2, -3]],
        [[1, 2, 0], [-1, 0, 1], [0, -2, -1]],
    )
    assert fours.partners.tolist() == [*group, *group, *rest, *rest]
    assert plan.most_rows(2) >= 4
    assert plan.most_rows(4) >= 7


def test_batches_of_an_even_size_read_nothing_besides():
    for num_shards in (1, 2, 3):
        plan = Plan(36, 4, shuffle=True, num_shards=num_shards, shard_id=num_shards - 1)
        pairs = plan.span_of_groups(Position(), 2, 3)
        assert all(batch == (0, 4, 0) for batch in pairs.batches)


def test_p_is_the_share_of_pairs_that_are_mixed():
    graph = compile_ops(
        Spec((Field("image", np.dtype("f4"), (8, 8, 3)),)),
        [gl.ops.MixUp(p=0.3), gl.ops.CutMix(p=0.3)],
    )
    records = np.arange(40_000)
    partners = np.tile(np.array([1, -1], np.int32), 20_000)[:, None]
    sizes = {"image": np.full((records.size, 2), 8, np.int32)}
    for draw in graph.draw(seed=1, epoch=0, records=records, sizes=sizes, partners=partners):
        np.testing.assert_array_equal(draw["weight"][::2], draw["weight"][1::2])
        assert (draw["weight"] < 1).mean() == pytest.approx(0.3, abs=0.03)


# scipy 1.17.1, scipy.stats.beta.ppf([.05, .3, .9], alpha, alpha)
@pytest.mark.parametrize(
    ("alpha", "quantiles"),
    [
        (0.1, [8.661406889571973e-11, 0.005214870253734283, 0.9999999113071999]),
        (0.2, [7.743885786452429e-06, 0.05788057531549367, 0.9997522353080919]),
        (0.8, [0.030014474789132512, 0.27343033416362883, 0.9289495569093972]),
        (1, [0.05, 0.3, 0.9]),
        (1.5, [0.0973081817399401, 0.34015424510474795, 0.8435244130662704]),
        (4, [0.22532158403244773, 0.405240644007458, 0.7213979514182869]),
        (100, [0.441969842057659, 0.4814428501586123, 0.5452731147684465]),
    ],
)
def test_weights_have_the_beta_distribution(alpha, quantiles):
    np.testing.assert_allclose(
        beta_quantile(alpha, np.array([0.05, 0.3, 0.9])), quantiles, rtol=0, atol=3e-6
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gl.ops.MixUp(0), "more than 0"),
        (lambda: gl.ops.CutMix(alpha=101), "100 at most"),
        (lambda: gl.ops.MixUp(p=2), "a probability"),
        (lambda: loader([gl.ops.MixUp()], 4), r"OneHot\(10, on='label'\)"),
        (lambda: loader([gl.ops.CutMix()], 4), r"OneHot\(10, on='label'\)"),
        (
            lambda: loader([gl.ops.OneHot(5), gl.ops.CutMix(on="label")], 4),
            "the first field is the image",
        ),
        (lambda: loader([*BEFORE, gl.ops.MixUp()], 4).to_source(EPOCH), "without an order"),
    ],
)
def test_what_is_wrong_is_told(call, words):
    with pytest.raises(GpuloadError, match=words) as caught:
        call()
    assert caught.value.cause
    assert caught.value.remedy


def test_images_of_different_sizes_are_refused():
    spec = Spec((Field("image", np.dtype("u1"), (None, None, 3)),))
    with pytest.raises(SpecError, match="two records are mixed, which needs one shape"):
        compile_ops(spec, [gl.ops.MixUp()])


def marked(**marks):
    """Return images of one size, with a label, two boxes and a mask each."""
    fields = {
        "image": PIXELS[:, :8, :10],
        "label": np.eye(5, dtype=np.float32)[LABELS],
        "boxes": np.tile(np.array([[0, 0, 4, 4], [1, 1, 5, 6]], np.float32), (LENGTH, 1, 1)),
        "mask": np.broadcast_to(
            (np.arange(LENGTH, dtype=np.uint8))[:, None, None, None], (LENGTH, 8, 10, 1)
        ).copy(),
    }
    return gl.arrays(**fields).mark(**marks)


@pytest.mark.parametrize(
    "op", [gl.ops.MixUp(), gl.ops.CutMix(), gl.ops.OneOf([gl.ops.MixUp(), gl.ops.CutMix()])]
)
@pytest.mark.parametrize(
    "marks", [{"boxes": "xyxy"}, {"mask": "mask"}, {"boxes": "xyxy", "mask": "mask"}]
)
def test_images_are_not_mixed_beside_boxes_or_masks_that_would_stay(op, marks):
    with pytest.raises(SpecError, match="beside") as caught:
        loader([op], 4, marked(**marks))

    assert "would still be those of one of the two" in caught.value.cause
    assert ("gl.ops.CutMix(on=('image', 'label', 'mask'))" in caught.value.remedy) == (
        "mask" in marks
    )


def test_what_is_not_in_a_batch_or_not_marked_hinders_no_mixing():
    for source_of_boxes, output in (
        (marked(), None),
        (marked(boxes="xyxy", mask="mask"), ("image", "label")),
    ):
        with loader([gl.ops.CutMix()], 4, source_of_boxes, output=output) as mixing:
            assert mixing.batch_at(0)["image"].shape == (4, 8, 10, 3)


def test_cutmix_cuts_a_marked_mask_that_it_names_and_mixup_refuses_it():
    with loader(
        [gl.ops.CutMix(on=("image", "mask", "label"))], 4, marked(mask="mask"), drawn=True
    ) as cutting:
        batch = cutting.batch_at(0)
        images, masks = np.asarray(batch["image"]), np.asarray(batch["mask"])
        records = batch.records

    for row in range(4):
        record, partner = records[row], records[row ^ 1]
        is_cut = (images[row] != PIXELS[record, :8, :10]).any(axis=2)
        assert set(masks[row].ravel().tolist()) <= {record, partner}
        assert (masks[row][..., 0][is_cut] == partner).all()
    with pytest.raises(SpecError, match="a class number cannot be blended"):
        loader([gl.ops.MixUp(on=("image", "mask", "label"))], 4, marked(mask="mask"))
    with pytest.raises(SpecError, match="is marked 'xyxy'"):
        loader([gl.ops.MixUp(on=("image", "boxes"))], 4, marked(boxes="xyxy"))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("batch_size", [4, 5])
def test_fields_of_varying_length_and_texts_stand_beside(batch_size, device, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5) if device == "gpu" else None
    words = [f"record {n}" * (n % 3) for n in range(LENGTH)]
    values = {"numbers": [np.arange(n % 4) for n in range(LENGTH)], "word": words}
    fields = {"numbers": ("int64", (None,)), "word": ("str", ())}

    def read(rows):
        return {name: [column[n] for n in rows] for name, column in values.items()}

    beside = gl.records(LENGTH, read, fields=fields)

    with loader(
        [*BEFORE, gl.ops.MixUp()], batch_size, gl.zip(source(), beside), device=device
    ) as mixed:
        for batch in mixed.epoch(EPOCH):
            assert len(batch["numbers"]) == len(batch["word"]) == len(batch.records)
            for row, record in enumerate(batch.records.tolist()):
                numbers = batch["numbers"][row]
                assert (numbers.get() if device == "gpu" else numbers).tolist() == list(
                    range(record % 4)
                )
                assert str(batch["word"][row]) == words[record]

    if sim is not None:
        del batch, numbers
        gc.collect()
        sim.finish()


@pytest.mark.parametrize(
    ("images", "remedy"),
    [
        (np.zeros((4, 8, 9), np.uint8), r"gl.ops.Reshape\(\(8, 9, 1\), on='image'\) before it"),
        (np.zeros((4, 8, 9, 3), np.int16), r"gl.ops.Cast\('float32', on='image'\) before it"),
    ],
)
def test_images_that_cannot_be_blended_are_not_taken_for_labels(images, remedy):
    with pytest.raises(SpecError, match=f"images are blended(.|\n)*{remedy}"):
        gl.Loader(gl.arrays(image=images), 2, ops=[gl.ops.MixUp()], device="cpu")
