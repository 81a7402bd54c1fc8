"""Image files through the loader: the same pixels on both executors, and errors that name the
file."""

from __future__ import annotations

import io

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import RecordError
from gpuload.images import decode
from tests import imagefiles

image_module = pytest.importorskip("PIL.Image")
pytest.importorskip("cv2")
pytest.importorskip("nvidia.dali")

EXECUTORS = ["array", "dali"]
TRAIN = [
    gl.ops.Decode(), gl.ops.RandomResizedCrop(48, 40), gl.ops.RandomFlip(),
    gl.ops.Normalize((123.7, 116.3, 103.5), (1.0, 1.0, 1.0)),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty photographs of two classes, of many sizes, every fifth a PNG."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(40):
        size = tuple(int(n) for n in random.integers(60, 140, 2))
        pixels = image_module.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8)).resize(size)
        place = root / ("cat" if number % 2 else "dog")
        place.mkdir(exist_ok=True)
        pixels.save(place / f"{number:02}.{'png' if number % 5 == 0 else 'jpg'}")
    return root


def batches(folder, **changes):
    with (
        gl.images(folder) as source,
        gl.Loader(source, **{"batch_size": 7, "shuffle": True, **changes}) as load,
    ):
        yield from load


def by_record(result):
    return {
        int(record): (np.array(batch["image"][row]), int(batch["label"][row]))
        for batch in result
        for row, record in enumerate(batch.records)
    }


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "changes", [{"batch_size": 1}, {"batch_size": 64, "num_threads": 4}, {"num_threads": 1}]
)
def test_an_image_has_the_same_pixels_for_every_batch_size_and_number_of_threads(
    folder, executor, changes
):
    item = by_record(batches(folder, ops=TRAIN, executor=executor))
    second = by_record(batches(folder, ops=TRAIN, executor=executor, **changes))
    assert item.keys() == second.keys() == set(range(40))
    assert all(np.array_equal(item[record][0], second[record][0]) for record in item)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("num_shards", [2, 3, 7])
def test_an_image_has_the_same_pixels_on_every_number_of_shards(folder, executor, num_shards):
    item = by_record(batches(folder, ops=TRAIN, executor=executor))
    shards = [
        batch
        for shard_id in range(num_shards)
        for batch in batches(
            folder, ops=TRAIN, executor=executor, num_shards=num_shards, shard_id=shard_id
        )
    ]
    second = by_record(shards)
    assert item.keys() == second.keys()
    assert all(np.array_equal(item[record][0], second[record][0]) for record in item)


def test_executors_differ_by_at_most_one_level_after_a_resize(folder):
    by_array = by_record(batches(folder, ops=TRAIN, executor="array"))
    by_dali = by_record(batches(folder, ops=TRAIN, executor="dali"))
    differences = np.concatenate(
        [np.abs(by_array[record][0] - by_dali[record][0]).ravel() for record in by_array]
    )
    assert differences.max() <= 1.001  # one level of uint8, normalised with std 1
    assert (
        differences > 1e-3
    ).mean() <= 1e-4  # these photographs; tests/ops/test_resize.py has smooth images


def test_executors_are_equal_where_nothing_is_resampled(folder):
    ops = [gl.ops.Decode(), gl.ops.RandomCrop(50, 50), gl.ops.RandomFlip(), gl.ops.Cast("float32")]
    by_array = by_record(batches(folder, ops=ops, executor="array"))
    by_dali = by_record(batches(folder, ops=ops, executor="dali"))
    assert all(np.array_equal(by_array[record][0], by_dali[record][0]) for record in by_array)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_images_of_many_sizes_come_as_a_list_of_what_pillow_decodes(folder, executor):
    files = sorted(path for path in folder.rglob("*.*"))
    for batch in batches(folder, ops=[gl.ops.Decode()], executor=executor, shuffle=False):
        assert isinstance(batch["image"], list)
        for record, pixels in zip(batch.records, batch["image"], strict=True):
            expected = np.asarray(image_module.open(files[record]).convert("RGB"))
            assert np.array_equal(pixels, expected)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("damage", ["truncated", "garbage", "scan"])
def test_a_damaged_image_is_an_error_that_names_its_file_at_its_step(tmp_path, executor, damage):
    buffer = io.BytesIO()
    random = np.random.default_rng(0)
    image_module.fromarray(random.integers(0, 256, (64, 64, 3), np.uint8)).save(
        buffer, "JPEG", progressive=True
    )
    whole = buffer.getvalue()
    half = len(whole) // 2
    broken = {
        "truncated": whole[:half],
        "garbage": b"not an image",
        "scan": whole[:half] + b"\xff\xc4" + whole[half:],
    }
    for number in range(12):
        (tmp_path / f"{number:02}.jpg").write_bytes(broken[damage] if number == 6 else whole)
    source = gl.images(tmp_path, labels=None)
    ops = [gl.ops.Decode(), gl.ops.Resize(8, 8)]
    run, steps = iter(gl.Loader(source, batch_size=2, ops=ops, executor=executor)), []

    for _ in range(3):
        steps.append(next(run).step)
    with pytest.raises(RecordError, match=r"06\.jpg") as failure:
        next(run)
    steps.extend(batch.step for batch in run)

    assert "cause:" in str(failure.value)
    assert "remedy:" in str(failure.value)
    assert steps == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("extra", [[], [gl.ops.Resize(8, 8)]], ids=["alone", "resized"])
@pytest.mark.parametrize(
    ("bomb", "option", "message"),
    [(imagefiles.jpeg_of_scans(64, 64, 51), {"max_scans": 51}, "51 scans"),
     (imagefiles.png(2**14, 2**13 + 1, imagefiles.GRAY, 1), {"max_pixels": 2**27 + 2**14}, "134234112 pixels")],
    ids=["scans", "pixels"],
)  # fmt: skip
def test_a_small_file_that_takes_long_or_much_memory_is_an_error_that_names_the_option(
    tmp_path, executor, extra, bomb, option, message
):
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(bomb if number == 3 else imagefiles.jpeg())
    source = gl.images(tmp_path, labels=None)
    run, steps = (
        iter(gl.Loader(source, batch_size=1, ops=[gl.ops.Decode(), *extra], executor=executor)),
        [],
    )

    for _ in range(3):
        steps.append(next(run).step)
    with pytest.raises(RecordError, match=rf"^3\.jpg: it has {message}") as failure:
        next(run)
    steps.extend(batch.step for batch in run)

    name, value = next(iter(option.items()))
    assert f"gl.ops.Decode({name}={value})" in failure.value.remedy
    assert steps == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_limit_may_be_raised(tmp_path, executor):
    (tmp_path / "0.jpg").write_bytes(imagefiles.jpeg_of_scans(64, 48, 51))
    source = gl.images(tmp_path, labels=None)

    (batch,) = gl.Loader(source, batch_size=1, ops=[gl.ops.Decode(max_scans=51)], executor=executor)

    assert np.array_equal(batch["image"][0], np.full((64, 48, 3), 128))


def test_no_codec_sees_a_file_beyond_a_limit(tmp_path, monkeypatch):
    from gpuload.executors.dali import DaliExecutor

    def see(*_):
        raise AssertionError("the file came to a codec")

    monkeypatch.setattr(decode, "decode", see)
    monkeypatch.setattr(DaliExecutor, "start", see)
    (tmp_path / "0.jpg").write_bytes(imagefiles.jpeg_of_scans(64, 48, 51))
    source = gl.images(tmp_path, labels=None)
    for executor in EXECUTORS:
        with pytest.raises(RecordError, match="51 scans"):
            list(gl.Loader(source, batch_size=1, ops=[gl.ops.Decode()], executor=executor))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_label_that_is_no_class_is_an_error_that_names_its_record(executor):
    source = gl.arrays(label=np.array([0, 1, 7, 2]))
    load = gl.Loader(source, batch_size=2, ops=[gl.ops.OneHot(3, on="label")], executor=executor)
    with pytest.raises(RecordError, match="record 2"):
        list(load)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_list_of_all_batches_holds_what_each_was_when_it_came(folder, executor):
    held_batches = []
    for _ in range(3):
        held_batches.extend(
            (batch, batch["image"].copy())
            for batch in batches(folder, ops=TRAIN, executor=executor)
        )
    assert all(np.array_equal(batch["image"], copy) for batch, copy in held_batches)


class TestFormats:
    """A folder with files of all formats."""

    @pytest.fixture
    def folder(self, tmp_path):
        image = image_module.fromarray(imagefiles.pixels(24, 32))
        for suffix in ("jpg", "png", "bmp", "ppm", "tif", "webp", "jp2", "j2k", "gif", "avif"):
            image.save(tmp_path / f"a.{suffix}")
        image_module.fromarray(np.arange(768, dtype=np.uint16).reshape(24, 32) * 85).save(
            tmp_path / "deep.png"
        )
        (tmp_path / "lies.jpg").write_bytes((tmp_path / "a.tif").read_bytes())
        return tmp_path

    def loader(self, source, executor, ops):
        return gl.Loader(source, batch_size=64, ops=ops, executor=executor, device="cpu", seed=3)

    @pytest.mark.parametrize(
        "ops",
        [[gl.ops.Decode(), gl.ops.RandomCrop(16, 20), gl.ops.RandomFlip()],
         [gl.ops.Decode(dtype="uint16"), gl.ops.RandomCrop(16, 20), gl.ops.RandomFlip()],
         [gl.ops.Decode("GRAY", dtype="uint16"), gl.ops.Normalize(30_000.0, 9_000.0)]],
    )  # fmt: skip
    def test_both_executors_make_the_same_of_what_both_decode(self, folder, ops):
        held_batches = [
            path for path in sorted(folder.iterdir()) if path.suffix not in (".gif", ".avif")
        ]
        source = gl.images(held_batches, labels=None)

        (item,), (second,) = (self.loader(source, executor, ops) for executor in EXECUTORS)

        assert len(item.records) == 10
        np.testing.assert_array_equal(item["image"], second["image"])

    def test_the_array_executor_decodes_all(self, folder):
        source = gl.images(folder, labels=None)

        (batch,) = self.loader(source, "array", [gl.ops.Decode()])

        lossless = [path.name for path in sorted(folder.iterdir())]
        for name in ("a.png", "a.bmp", "a.ppm", "a.tif", "a.jp2", "a.j2k", "lies.jpg"):
            np.testing.assert_array_equal(
                batch["image"][lossless.index(name)], imagefiles.pixels(24, 32)
            )
        assert all(item.shape == (24, 32, 3) for item in batch["image"])

    @pytest.mark.parametrize(("name", "title"), [("a.gif", "GIF"), ("a.avif", "AVIF")])
    def test_what_dali_has_no_codec_for_is_refused_by_name(self, folder, name, title):
        source = gl.images([folder / "a.png", folder / name, folder / "a.jpg"], labels=None)

        with pytest.raises(RecordError, match=rf"{name}: it is of the format {title}") as caught:
            next(iter(self.loader(source, "dali", [gl.ops.Decode()])))

        assert "DALI has no codec" in caught.value.cause
        assert 'decode="host"' in caught.value.remedy

    def test_where_damaged_records_are_replaced_so_are_they(self, folder):
        source = gl.images(
            [folder / "a.png", folder / "a.jpg", folder / "a.gif", folder / "a.bmp"], labels=None
        )
        load = gl.Loader(
            source,
            batch_size=4,
            ops=[gl.ops.Decode()],
            executor="dali",
            device="cpu",
            on_error="replace",
            max_bad=0.5,
        )

        (batch,) = load

        assert len(batch["image"]) == 4
        assert ["a.gif" in str(bad) for bad in load.bad_records()] == [True]

    @pytest.mark.parametrize("executor", EXECUTORS)
    @pytest.mark.parametrize(
        ("name", "piece"),
        [("a.bmp", 200), ("a.tif", 200), ("a.webp", 50), ("a.jp2", 50), ("a.ppm", 9)],
    )
    def test_a_damaged_file_is_named(self, folder, executor, name, piece):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-piece])
        source = gl.images([folder / "a.png", path], labels=None)

        with pytest.raises(RecordError, match=name):
            next(iter(self.loader(source, executor, [gl.ops.Decode()])))
