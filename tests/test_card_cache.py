"""What stays in the GPU's memory: the batches are those of a loader without it, and no record is
read twice."""

from __future__ import annotations

import gc
import io
import pickle

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import device as devices
from gpuload.errors import DeviceError, RecordError, SpecError, TooLargeError

gpu = pytest.mark.gpu
IMAGES = np.random.default_rng(0).integers(0, 256, (50, 3, 12, 12), np.uint8)
LABELS = (np.arange(50) % 10).astype(np.int32)
CHAIN = [
    gl.ops.Transpose("HWC"),
    gl.ops.RandomCrop(12, 12, pad=2),
    gl.ops.RandomFlip(),
    gl.ops.Normalize(0.5, 2.0),
]
ROW_BYTES = IMAGES[0].nbytes + LABELS[0].nbytes


def records():
    return gl.arrays(image=IMAGES, label=LABELS)


def fixed(folder):
    rows = np.zeros(50, [("label", "u1"), ("image", "u1", (3, 12, 12)), ("weight", ">f4")])
    rows["label"], rows["image"], rows["weight"] = LABELS, IMAGES, np.arange(50) / 7
    rows.tofile(folder / "records.bin")
    return gl.fixed(folder / "records.bin", rows.dtype)


def on_gpu(source, ops=CHAIN, batch_size=8, **arguments):
    arguments = {"shuffle": True, "seed": 5, "executor": "array", **arguments}
    return gl.Loader(source, batch_size, ops=ops, device="gpu", **arguments)


def host(values):
    return values.get() if hasattr(values, "get") else values


def assert_same(batch, reference):
    np.testing.assert_array_equal(batch.records, reference.records)
    np.testing.assert_array_equal(batch.valid, reference.valid)
    assert list(batch.keys()) == list(reference.keys())
    for name in batch.keys():  # noqa: SIM118 - iterating a batch gives its parts
        value, expected = host(batch[name]), host(reference[name])
        if isinstance(expected, np.ndarray):
            assert value.dtype == expected.dtype
        for row, expected_row in zip(value, expected, strict=True):
            np.testing.assert_array_equal(host(row), host(expected_row))


def assert_same_epochs(loader, reference, epochs=(0, 1, 2)):
    for epoch in epochs:
        for batch, expected in zip(loader.epoch(epoch), reference.epoch(epoch), strict=True):
            assert_same(batch, expected)


class TallyReader:
    """A reader of records that counts how often each is read."""

    def __init__(self, **fields):
        self.fields, self.counts = fields, np.zeros(50, np.int64)

    def __call__(self, numbers):
        np.add.at(self.counts, numbers, 1)
        return {name: values[numbers] for name, values in self.fields.items()}


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(20):
        file, pixels = (
            io.BytesIO(),
            np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8),
        )
        Image.fromarray(pixels).resize((40 + number, 60 - number)).save(file, "JPEG")
        (folder / f"{number:02d}.jpg").write_bytes(file.getvalue())
    return folder


RESIZED = [gl.ops.Decode(), gl.ops.Resize(shorter=32), gl.ops.CenterCrop(32, 32), gl.ops.RandomCrop(24, 24),
           gl.ops.RandomFlip(), gl.ops.Normalize(0.5, 2.0)]  # fmt: skip


@gpu
@pytest.mark.parametrize("arguments", [{}, {"last_batch": "pad"}, {"drawn": True}, {"shuffle": False},
                                       {"shuffle": gl.Blocks(4, 3)}, {"output": {"x": ("image",), "y": "label"}}],
                         ids=str)  # fmt: skip
def test_the_batches_are_the_same_bit_for_bit(arguments):
    with on_gpu(records(), **arguments) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference)
        assert "50 of 50 records are in the memory of gpu:0" in loader.describe()


@gpu
@pytest.mark.parametrize("memory", [ROW_BYTES, 17 * ROW_BYTES + 5, 50 * ROW_BYTES])
def test_records_that_do_not_fit_are_read_in_each_epoch(memory, caplog):
    reader = TallyReader(image=IMAGES, label=LABELS)
    source = gl.records(50, reader)
    with on_gpu(records()) as reference, on_gpu(source).cache(device=True, memory=memory) as loader:
        reader.counts[:] = 0
        assert_same_epochs(loader, reference)
        num_resident = memory // ROW_BYTES
        assert sorted(reader.counts) == [1] * num_resident + [3] * (50 - num_resident)
        assert f"{num_resident} of 50 records are in the memory of gpu:0" in loader.describe()
        assert (f"{50 - num_resident} do not fit" in caplog.text) == (num_resident < 50)


@gpu
def test_of_records_that_lie_on_the_gpu_nothing_is_read_and_no_slot_is_uploaded(monkeypatch):
    uploads, upload = [], devices.Bundle.upload
    monkeypatch.setattr(
        devices.Bundle,
        "upload",
        lambda bundle, values: uploads.append(values.nbytes) or upload(bundle, values),
    )
    reader = TallyReader(image=IMAGES, label=LABELS)
    with on_gpu(gl.records(50, reader), prefetch=1).cache(device=True) as loader:
        reader.counts[:] = 0
        list(loader)
        assert 50 * ROW_BYTES <= sum(uploads) < 60 * ROW_BYTES
        uploads.clear()
        list(loader)
        assert not uploads
        assert (reader.counts == 1).all()


@gpu
@pytest.mark.parametrize(
    "ops", [RESIZED, RESIZED[:3], [*RESIZED[:3], gl.ops.ColorJitter(0.3), *RESIZED[3:]]], ids=len
)
def test_images_stay_behind_the_ops_that_make_one_size(photos, ops):
    source = gl.images(photos, labels=None)
    with on_gpu(source, ops, 4) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference)
        assert "20 of 20 records are in the memory of gpu:0, 0.0614 MB" in loader.describe()


@gpu
@pytest.mark.parametrize("fields", [None, ("image", "weight"), ("label",)])
def test_fields_of_one_raw_record_stay_in_their_dtypes(tmp_path, fields):
    source = fixed(tmp_path)
    with on_gpu(source, [], output=fields) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference)


@gpu
def test_texts_beside_come_from_the_source(tmp_path):
    rows = np.zeros(50, [("image", "u1", (12, 12, 3)), ("name", "S5"), ("label", "<i4")])
    rows["image"], rows["name"] = IMAGES.transpose(0, 2, 3, 1), [f"n{i}" for i in range(50)]
    rows["label"] = LABELS
    rows.tofile(tmp_path / "records.bin")
    source = gl.fixed(tmp_path / "records.bin", rows.dtype)
    with on_gpu(source, CHAIN[1:]) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference)
        assert "name: read in each epoch" in loader.describe()


@gpu
def test_fields_of_varying_length_come_from_the_source():
    lengths = np.arange(50) % 5
    tokens = gl.records(
        50, lambda numbers: {"tokens": [np.arange(lengths[i], dtype=np.int32) for i in numbers]}
    )
    source = gl.zip(records(), tokens)
    with on_gpu(source) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference)
        assert "tokens: read in each epoch" in loader.describe()


@gpu
def test_ops_that_make_no_walk_get_the_rows_as_an_array():
    ops = [
        gl.ops.OneHot(10, on="label"),
        gl.ops.Transpose("HWC"),
        gl.ops.MixUp(0.4),
        gl.ops.Erasing(p=0.5),
    ]
    with on_gpu(records(), ops) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference)


@gpu
def test_ops_that_make_whole_numbers_on_the_gpu_are_done_once_and_walks_stay_in_the_kernel(caplog):
    images = gl.arrays(image=np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1)), label=LABELS)
    ops = [
        gl.ops.Resize(16, 16),
        gl.ops.CenterCrop(14, 14),
        gl.ops.RandomFlip(),
        gl.ops.Normalize(0.5, 2.0),
    ]
    with on_gpu(images, ops) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference)
        assert len(loader.ops) == 3
        assert "one kernel of CenterCrop RandomFlip Normalize" in loader.describe()
    with (
        on_gpu(images, [gl.ops.PerImageStandardization(), *ops[2:3]]) as reference,
        reference.cache(device=True) as loader,
    ):
        assert_same_epochs(loader, reference)
        assert len(loader.ops) == 2


@gpu
def test_fields_that_come_out_of_one_record_stay_on_the_gpu_together_or_not_at_all(photos):
    counts = np.arange(20) % 4
    boxes = gl.records(20, lambda numbers: {"boxes": [np.full((counts[i], 4), 5 + i, np.float32) for i in numbers],
                                            "tags": [np.arange(counts[i]) for i in numbers]},
                       fields={"boxes": ("float32", (None, 4)), "tags": ("int64", (None,))})  # fmt: skip
    source = gl.zip(gl.images(photos, labels=None), boxes).mark(boxes="xyxy")
    ops = [*RESIZED[:2], gl.ops.CenterCrop(32, 32), gl.ops.RandomFlip()]
    with pytest.raises(SpecError, match="image beside boxes") as caught:
        on_gpu(source, ops, 4).cache(device=True)
    assert "output=('image',)" in caught.value.remedy
    assert_same_epochs(on_gpu(source, ops, 4, output=("image",)).cache(device=True),
                       on_gpu(source, ops, 4, output=("image",)))  # fmt: skip
    tags = gl.records(
        50, lambda numbers: {"x": IMAGES[numbers], "tags": [np.arange(i % 4) for i in numbers]}
    )
    with pytest.raises(SpecError, match="x beside tags") as caught:
        on_gpu(tags, [], 4).cache(device=True)
    assert "gl.ops.PadTo(100, on=['tags'])" in caught.value.remedy
    texts = gl.records(
        50, lambda numbers: {"x": IMAGES[numbers], "name": [f"n{i}" for i in numbers]}
    )
    with pytest.raises(SpecError, match="x beside name") as caught:
        on_gpu(texts, [], 4).cache(device=True)
    assert caught.value.remedy.startswith(
        "leave name out, output=('x',)"
    )  # no padding makes rows of texts
    padded = on_gpu(tags, [gl.ops.PadTo(100, on=["tags"])], 4)
    with padded, padded.cache(device=True) as loader:
        assert_same_epochs(loader, padded)
        assert "read in each epoch" not in loader.describe()


@gpu
def test_states_are_the_same_and_batches_can_be_made_again():
    with on_gpu(records()) as reference, reference.cache(device=True) as loader:
        batches, expected = iter(loader), iter(reference)
        for _ in range(3):
            assert_same(next(batches), next(expected))
        state = loader.state_dict()
        assert state == reference.state_dict()
        reference.load_state_dict(state)
        loader.load_state_dict(reference.state_dict())
        for batch, again in zip(loader, reference, strict=True):
            assert_same(batch, again)
        assert_same(loader.batch_at(4, epoch=7), reference.batch_at(4, epoch=7))


@gpu
def test_each_shard_keeps_the_records_that_it_has_had():
    source = records()
    for shard_id in range(3):
        arguments = {"shard_id": shard_id, "num_shards": 3}
        with on_gpu(source, **arguments) as reference, reference.cache(device=True) as loader:
            assert_same_epochs(loader, reference, range(6))


@gpu
def test_two_loaders_of_one_cache_share_the_rows_and_the_last_one_frees_them():
    reader = TallyReader(image=IMAGES, label=LABELS)
    source = gl.records(50, reader).cache(device=True)
    free = devices.card_bytes("gpu:0")[0]
    first, second = source.split(0.8, seed=0)
    train, val, whole = (
        on_gpu(first),
        on_gpu(second, CHAIN[:1], shuffle=False),
        on_gpu(source, CHAIN[:1]),
    )
    reader.counts[:] = 0
    list(train), list(val), list(whole)
    assert (reader.counts == 1).all()
    assert "50 of 50" in val.describe()
    train.close(), whole.close()
    assert devices.card_bytes("gpu:0")[0] < free
    assert len(list(val)) == 2
    assert (reader.counts == 1).all()
    val.close()
    devices.empty_pool("gpu:0")
    assert devices.card_bytes("gpu:0")[0] >= free


@gpu
def test_several_iterators_at_once_have_the_same_batches():
    with on_gpu(records()) as reference, reference.cache(device=True) as loader:
        for triple in zip(loader.epoch(0), loader.epoch(0), reference.epoch(0), strict=True):
            assert_same(triple[0], triple[2])
            assert_same(triple[1], triple[2])


@gpu
def test_joined_sources_of_which_one_stays_on_the_gpu():
    rest = gl.arrays(image=IMAGES[::-1].copy(), label=LABELS)
    with (
        on_gpu(gl.concat(records(), rest)) as reference,
        on_gpu(gl.concat(records().cache(device=True), rest)) as loader,
        on_gpu(
            gl.concat(rest, records().cache(device=True), rest.cache(device=True))[50:].select(
                range(50)
            )
        ) as third,
    ):
        assert_same_epochs(loader, reference)
        assert_same_epochs(third, on_gpu(records()))


@gpu
def test_mixes_and_samples_of_what_stays_on_the_gpu():
    parts = records(), gl.arrays(image=IMAGES[::-1].copy(), label=LABELS)
    mix = gl.mix({parts[0].cache(device=True): 0.7, parts[1].cache(device=True): 0.3})
    arguments = {"shuffle": False}
    with (
        on_gpu(mix, **arguments) as loader,
        on_gpu(gl.mix(dict(zip(parts, (0.7, 0.3), strict=True))), **arguments) as reference,
    ):
        assert_same_epochs(loader, reference)
    weights = 1 + np.arange(50)
    with (
        on_gpu(records().cache(device=True).sample(weights, seed=3), **arguments) as loader,
        on_gpu(records().sample(weights, seed=3), **arguments) as reference,
    ):
        assert_same_epochs(loader, reference)


@gpu
def test_names_and_pairs_of_one_cache():
    reader = TallyReader(image=IMAGES, label=LABELS)
    source = gl.records(50, reader).cache(device=True)
    pairs = gl.zip(source[:-1], source[1:].rename(image="next", label="next_label"))
    plain = gl.zip(records()[:-1], records()[1:].rename(image="next", label="next_label"))
    ops = [gl.ops.Transpose("HWC", on=("image", "next")), gl.ops.RandomFlip(on=("image", "next"))]
    with on_gpu(pairs, ops) as loader, on_gpu(plain, ops) as reference:
        assert_same_epochs(loader, reference)
        reader.counts[:] = 0
        list(loader.epoch(3))
        assert not reader.counts.any()


@gpu
@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_other_records_stand_for_damaged_ones(photos, on_error):
    for number in (3, 11):
        path = photos / f"{number:02d}.jpg"
        path.write_bytes(path.read_bytes()[:200])
    source = gl.images(photos, labels=None)
    arguments = {"ops": RESIZED, "batch_size": 4, "on_error": on_error, "max_bad": 0.5}
    with on_gpu(source, **arguments) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference, range(4))
        # In the order in which threads met them.
        numbers, right = (
            sorted(bad.record for bad in each.bad_records()) for each in (loader, reference)
        )
        assert numbers == right
    with (
        on_gpu(source, RESIZED, 4).cache(device=True) as loader,
        pytest.raises(RecordError, match=r"(03|11)\.jpg"),
    ):
        list(loader)


@gpu
@pytest.mark.parametrize("batch_size", [4, 25])
def test_a_record_that_is_damaged_later_beside_its_row_on_the_gpu_gets_another_in_all_fields(
    batch_size,
):
    is_damaged = False

    def read(numbers):
        if is_damaged and 5 in numbers:
            raise RecordError("tokens of record 5", cause="they are damaged", remedy="none")
        return {"tokens": [np.arange(number % 4) for number in numbers]}

    tokens = gl.records(50, read)
    arguments = {"batch_size": batch_size, "on_error": "replace", "max_bad": 0.5}
    with (
        on_gpu(gl.zip(records(), tokens), **arguments) as reference,
        on_gpu(gl.zip(records().cache(device=True), tokens), **arguments) as loader,
    ):
        assert_same_epochs(loader, reference, [0])
        is_damaged = True
        for batch, expected in zip(loader.epoch(1), reference.epoch(1), strict=True):
            assert_same(batch, expected)
        (step,) = reference.steps_of([5], 2)
        assert_same(loader.batch_at(step, 2), reference.batch_at(step, 2))
        assert_same_epochs(loader, reference, [2])


@gpu
def test_what_stands_for_a_damaged_record_is_not_kept_under_its_number(photos):
    path = photos / "03.jpg"
    path.write_bytes(path.read_bytes()[:200])
    with on_gpu(
        gl.images(photos, labels=None), RESIZED, 4, on_error="replace", max_bad=0.5
    ) as loader:
        cached = loader.cache(device=True)
    with cached, cached.replace(on_error="raise") as strict:
        list(cached)
        with pytest.raises(RecordError, match=r"03\.jpg"):
            list(strict)


@gpu
def test_labels_that_an_op_refuses_on_the_gpu_are_replaced():
    labels = LABELS.copy()
    labels[7] = 99
    source = gl.arrays(image=IMAGES, label=labels)
    ops = [*CHAIN, gl.ops.OneHot(10, on="label")]
    arguments = {"on_error": "replace", "max_bad": 0.5}
    with on_gpu(source, ops, **arguments) as reference, reference.cache(device=True) as loader:
        assert_same_epochs(loader, reference, range(4))


@gpu
def test_a_pickled_loader_and_a_changed_one_keep_rows_of_their_own_or_share():
    with on_gpu(records()) as reference, reference.cache(device=True) as loader:
        next(iter(loader))
        with pickle.loads(pickle.dumps(loader)) as again:
            assert again.position == loader.position
            assert_same_epochs(again, reference)
        with loader.replace(batch_size=5) as smaller, reference.replace(batch_size=5) as expected:
            assert_same_epochs(smaller, expected)


@gpu
def test_memory_of_a_loader_that_was_dropped_is_free_for_the_next():
    loader = on_gpu(records()).cache(device=True)
    list(loader)
    free = devices.card_bytes("gpu:0")[0]
    del loader
    gc.collect()
    # Half of what is free is the budget of a cache that names none.
    assert devices.card_bytes("gpu:0")[0] >= free + 50 * ROW_BYTES


@gpu
@pytest.mark.parametrize("memory", ["200TB", 1 << 50])
def test_a_gpu_without_room_is_an_error_that_says_how_much_is_free(memory):
    devices.empty_pool("gpu:0")
    free = devices.card_bytes("gpu:0")[0]
    with pytest.raises(TooLargeError, match=f"{free} of its") as caught:
        on_gpu(records()).cache(device=True, memory=memory)
    size = int(caught.value.remedy.partition("memory=")[2].partition(")")[0])
    assert size == free // 2
    on_gpu(records()).cache(device=True, memory=size).close()


@gpu
def test_a_budget_below_a_record_is_an_error_with_one_that_can_be_had():
    devices.empty_pool("gpu:0")
    sources = {50 * ROW_BYTES: records(), devices.card_bytes("gpu:0")[0]: gl.records(
        1 << 40, lambda numbers: {"x": np.zeros((len(numbers), 8), np.float32)}, fields={"x": ("float32", (8,))}
    )}  # fmt: skip
    for size, source in sources.items():
        with pytest.raises(TooLargeError, match="one record takes") as caught:
            on_gpu(source.cache(device=True, memory=3), [], shuffle=False)
        assert f"write cache(device=True, memory={size});" in caught.value.remedy


@gpu
@pytest.mark.parametrize("memory", ["much", 0, -1, 2.5, True, "10 apples", []])
def test_a_budget_that_is_no_number_of_bytes_is_refused(memory):
    with pytest.raises(SpecError, match="most bytes of the GPU"):
        on_gpu(records()).cache(device=True, memory=memory)


@gpu
def test_what_cannot_stay_on_the_gpu_is_refused_with_a_remedy(photos, tmp_path):
    files = gl.images(photos, labels=None)
    for ops in (
        [gl.ops.Decode(), gl.ops.RandomResizedCrop(24, 24)],
        [gl.ops.Decode(), gl.ops.RandomCrop(24, 24)],
    ):
        with pytest.raises(SpecError, match="one size") as caught:
            on_gpu(files, ops, 4).cache(device=True)
        assert "Resize" in caught.value.remedy
    with pytest.raises(SpecError, match="one size"):
        on_gpu(files.cache(device=True), RESIZED, 4)
    tokens = gl.records(50, lambda numbers: {"tokens": [np.arange(i % 4) for i in numbers]})
    with pytest.raises(SpecError, match="without a field that can stay"):
        on_gpu(tokens, []).cache(device=True)
    with pytest.raises(SpecError, match="one place"):
        on_gpu(records()).cache(device=True, path=tmp_path)
    with pytest.raises(SpecError, match="mix"):
        gl.mix({records(): 0.5, records(): 0.5}).cache(device=True)
    with pytest.raises(SpecError, match="runs on the host acts on it"):
        on_gpu(records(), [gl.ops.Python(lambda x, rng: x)]).cache(device=True)


def test_a_loader_on_the_cpu_is_told_to_use_the_memory_of_the_machine():
    with pytest.raises(DeviceError, match="on the CPU") as caught:
        gl.Loader(records(), 8, ops=CHAIN, device="cpu").cache(device=True)
    assert 'cache(memory="8GB")' in caught.value.remedy
    with pytest.raises(DeviceError, match="on the CPU"):
        gl.Loader(records().cache(device=True), 8, ops=CHAIN, device="cpu")


@pytest.mark.parametrize("device", [1, "gpu", None])
def test_the_flag_is_true_or_false(device):
    with pytest.raises(SpecError, match="device"):
        records().cache(device=device)


def test_the_records_of_a_source_that_stays_on_a_gpu_are_those_of_the_source(tmp_path):
    for source in (records(), fixed(tmp_path)):
        resident = source.cache(device=True)
        assert resident.fingerprint() == source.fingerprint()
        assert resident.where(3) == source.where(3)
        for name, values in source.read([3, 1, 49, 3]).items():
            np.testing.assert_array_equal(resident.read([3, 1, 49, 3])[name], values)
        assert pickle.loads(pickle.dumps(resident)).fingerprint() == source.fingerprint()
