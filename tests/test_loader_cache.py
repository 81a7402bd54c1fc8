"""What a loader's ops make, kept or written: batches, draws and states are those of the loader
without it."""

from __future__ import annotations

import gc
import io
import pickle

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import signalsafe
from gpuload.errors import DeviceError, FileError, RecordError, SpecError, StateError
from gpuload.pipeline.oprecords import OpsSource
from gpuload.sources import filtering
from gpuload.testing.sources import SourceContract
from tests import simdevice

X = np.arange(240, dtype=np.uint8).reshape(10, 6, 4, 1)
needs_dali = pytest.mark.skipif(
    not signalsafe.is_installed("nvidia.dali"), reason="DALI is not installed"
)


def inverted(x):
    return 255 - x


def noisy(x, rng):
    return x + rng.integers(0, 9, x.shape).astype("u1")


def photo(number):
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
    image, exif, file = (
        Image.fromarray(pixels).resize((70 + 3 * number, 60 + number)),
        Image.Exif(),
        io.BytesIO(),
    )
    exif[0x0112] = 1 + number % 8  # each orientation
    image.save(file, "JPEG", exif=exif)
    return file.getvalue()


@pytest.fixture
def photos(tmp_path):
    for number in range(12):
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02d}.jpg").write_bytes(photo(number))
    return tmp_path / "photos"


OPS = {
    "resize": [gl.ops.Decode(), gl.ops.Resize(48, 48), gl.ops.RandomCrop(32, 32), gl.ops.RandomFlip(),
               gl.ops.Normalize(0.5, 2.0)],
    "a region that is decoded alone": [gl.ops.Decode(), gl.ops.RandomResizedCrop(24, 24), gl.ops.RandomFlip()],
    "one function twice": [gl.ops.Decode(), gl.ops.Resize(40, 40), gl.ops.Python(inverted), gl.ops.Python(noisy),
                           gl.ops.Python(inverted)],
    "several fields": [gl.ops.Decode(), gl.ops.OneHot(2, on="label"), gl.ops.Resize(shorter=40),
                       gl.ops.RandomCrop(32, 32)],
    "nothing random": [gl.ops.Decode(), gl.ops.Resize(48, 40), gl.ops.Normalize(0.5, 2.0)],
    "random at once": [gl.ops.Decode(), gl.ops.RandomCrop(32, 32)],
}  # fmt: skip


def photo_loader(photos, ops="resize", **arguments):
    source = gl.images(photos, labels="folder")
    arguments = {
        "output": ("image", "label"),
        "device": "cpu",
        "shuffle": True,
        "seed": 5,
        **arguments,
    }
    return gl.Loader(source, 5, ops=OPS[ops] if isinstance(ops, str) else ops, **arguments)


def assert_same_batches(item, other, epochs=(0, 3)):
    for epoch in epochs:
        for part, reference in zip(item.epoch(epoch), other.epoch(epoch), strict=True):
            np.testing.assert_array_equal(part.records, reference.records)
            for name in part.keys():  # noqa: SIM118 - iterating a batch gives its parts
                assert part[name].dtype == reference[name].dtype
                np.testing.assert_array_equal(part[name], reference[name])


@pytest.mark.parametrize("place", ["memory", "path"])
@pytest.mark.parametrize("ops", OPS)
def test_the_batches_are_the_same_bit_for_bit(photos, tmp_path, ops, place):
    loader = photo_loader(photos, ops)

    cached = loader.cache(
        **({"memory": "1GB"} if place == "memory" else {"path": tmp_path / "cache"})
    )

    assert_same_batches(loader, cached)
    assert_same_batches(loader.replace(seed=6, batch_size=4), cached.replace(seed=6, batch_size=4))
    if ops != "nothing random":
        images = [
            cached.batch_at(0, epoch)["image"][np.argsort(cached.batch_at(0, epoch).records)]
            for epoch in (0, 1)
        ]
        assert not np.array_equal(*images)  # drawn anew


def test_what_comes_before_the_first_random_op_is_done_once(photos):
    loader = photo_loader(photos, "one function twice")

    cached = loader.cache(memory="1GB")

    assert cached.ops == loader.ops[3:]
    assert cached.source.spec["image"].shape == (40, 40, 3)
    for file in photos.rglob("*.jpg"):
        file.unlink()
    assert next(iter(cached))["image"].shape == (5, 40, 40, 3)


@pytest.mark.parametrize("ops", ["resize", "one function twice"])
def test_states_go_from_one_to_the_other(photos, ops):
    loader = photo_loader(photos, ops)
    cached = loader.cache(memory="1GB")
    next(iter(loader))

    cached.load_state_dict(loader.state_dict())
    assert cached.position == loader.position
    assert cached.state_dict() == loader.state_dict()
    next(iter(cached))
    loader.load_state_dict(cached.state_dict())
    assert loader.position.step == 2
    with pytest.raises(StateError, match="the ops"):
        cached.load_state_dict(
            loader.replace(ops=[*loader.ops, gl.ops.Cast("float32")]).state_dict()
        )


def test_files_of_before_are_found_and_those_of_other_ops_refused(photos, tmp_path):
    photo_loader(photos).cache(path=tmp_path / "cache")
    for file in photos.rglob("*.jpg"):
        file.write_bytes(file.read_bytes())  # another time and the same bytes

    again = photo_loader(photos).cache(path=tmp_path / "cache")

    assert_same_batches(photo_loader(photos), again, [1])
    with pytest.raises(FileError, match="the cache of other data"):
        photo_loader(photos, [gl.ops.Decode(), gl.ops.Resize(48, 40), gl.ops.RandomFlip()]).cache(
            path=tmp_path / "cache"
        )


def test_a_function_with_other_code_is_another_cache(tmp_path):
    def loader(add):
        return gl.Loader(gl.arrays(x=X), 4, ops=[gl.ops.Python(lambda x: x + add)])

    def other():
        return gl.Loader(gl.arrays(x=X), 4, ops=[gl.ops.Python(lambda x: x * 2)])

    loader(np.uint8(1)).cache(path=tmp_path / "cache")

    loader(np.uint8(1)).cache(path=tmp_path / "cache")
    for changed in (loader(np.uint8(2)), other()):
        with pytest.raises(FileError, match="the cache of other data"):
            changed.cache(path=tmp_path / "cache")


def test_fields_that_no_batch_has_are_not_kept(photos):
    source = gl.zip(gl.images(photos, labels="folder"), gl.arrays(more=np.arange(12)))
    loader = gl.Loader(source, 4, ops=OPS["resize"], output="image", device="cpu")

    assert loader.cache(memory="1GB").source.spec.names == ("image",)


def test_a_cached_loader_can_be_cached_again_and_pickled(photos):
    loader = photo_loader(photos, "one function twice")
    cached = loader.replace(ops=loader.ops[:2]).cache(memory="1GB").replace(ops=loader.ops[2:])

    twice = cached.cache(memory="1GB")

    assert twice.ops == loader.ops[3:]
    assert_same_batches(loader, twice, [2])
    assert_same_batches(loader, pickle.loads(pickle.dumps(twice)), [2])


def test_shards_of_a_cached_loader_are_those_of_the_loader(photos):
    loader = photo_loader(photos)
    cached = loader.cache(memory="1GB")
    for shard_id in range(2):
        assert_same_batches(
            *(item.replace(num_shards=2, shard_id=shard_id) for item in (loader, cached)), [1]
        )


def test_a_damaged_record_is_named_when_the_cache_is_made(photos):
    bad = photos / "a" / "02.jpg"
    bad.write_bytes(bad.read_bytes()[:600])

    for on_error in ("raise", "replace"):
        with pytest.raises(RecordError, match=r"02\.jpg"):
            photo_loader(photos, on_error=on_error).cache(memory="1GB")


def test_an_error_of_a_function_names_the_record():
    def failing(x):
        if x[0, 0, 0] == 72:
            raise KeyError("72")
        return x

    loader = gl.Loader(gl.arrays(x=X), 4, ops=[gl.ops.Python(failing)])

    with pytest.raises(KeyError) as error:
        loader.cache(memory="1GB")
    assert "arrays, record 3" in "".join(error.value.__notes__)


@needs_dali
def test_pixels_of_another_executor_are_refused_with_the_way(photos):
    loader = photo_loader(photos, executor="dali")

    with pytest.raises(
        DeviceError,
        match=r"executor 'dali' on cpu(.|\n)*replace\(device='cpu', executor='array', decode='auto'\)",
    ):
        loader.cache(memory="1GB")
    cached = (
        loader.replace(device="cpu", executor="array").cache(memory="1GB").replace(executor="dali")
    )
    assert (
        np.abs(cached.batch_at(0)["image"] - loader.batch_at(0)["image"]).max() <= 2
    )  # two levels of 8 bits, by std=0.5


@needs_dali
def test_functions_before_dali_are_done_once_on_the_host():
    ops = [gl.ops.Python(inverted, out={}), gl.ops.Python(noisy, out={}), gl.ops.RandomFlip()]
    loader = gl.Loader(gl.arrays(x=X), 4, ops=ops, device="cpu", executor="dali")

    cached = loader.cache(memory="1MB")

    assert cached.ops == loader.ops[1:]
    assert_same_batches(loader, cached, [1])


def test_a_mix_and_no_place_are_refused():
    mixture = gl.Loader(
        gl.mix({gl.arrays(x=X): 1, gl.arrays(x=X): 2}), 4, ops=[gl.ops.Cast("float32")]
    )

    with pytest.raises(SpecError, match="cache its parts"):
        mixture.cache(memory="1GB")
    with pytest.raises(SpecError, match="memory=None, path=None"):
        gl.Loader(gl.arrays(x=X), 4).cache()


# --- written to files


def test_a_loader_is_written_as_its_batches_are_in_the_order_of_its_source(photos, tmp_path):
    loader = photo_loader(photos, "nothing random")

    result = gl.convert(loader, tmp_path / "out.npz")

    in_order = loader.replace(shuffle=False, batch_size=12).batch_at(0)
    content = eval(result.call, {"gl": gl}).read(range(12))
    np.testing.assert_array_equal(content["image"], in_order["image"])
    np.testing.assert_array_equal(content["label"], in_order["label"])
    assert loader.position.step == 0  # no epoch was run


def test_random_ops_want_an_epoch(photos, tmp_path):
    loader = photo_loader(photos)

    with pytest.raises(SpecError, match=r"RandomCrop(.|\n)*gl\.convert\(loader, out, epoch=0\)"):
        gl.convert(loader, tmp_path / "out.npz")

    for epoch in (0, 3):
        gl.convert(loader, tmp_path / "out.npz", epoch=epoch, overwrite=True)
        batches = list(loader.replace(shuffle=False).epoch(epoch))
        expected = np.concatenate([batch["image"] for batch in batches])
        np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["image"], expected)


def test_images_of_all_sizes_are_written_as_tensors(photos, tmp_path):
    loader = photo_loader(photos, [gl.ops.Decode()])

    result = gl.convert(loader, tmp_path / "out.tfrecord", tensors=["image"])

    content = eval(result.call, {"gl": gl}).read(range(12))
    for part, reference in zip(
        content["image"],
        loader.replace(shuffle=False, batch_size=12).batch_at(0)["image"],
        strict=True,
    ):
        np.testing.assert_array_equal(part, reference)


def test_a_conversion_behind_ops_goes_on_and_that_of_other_ops_is_another(photos, tmp_path):
    out = tmp_path / "out-{shard}.npy"
    loader = photo_loader(photos, "nothing random", output="image")
    gl.convert(loader, out, num_shards=3)
    (tmp_path / "out-1.npy").unlink()

    assert gl.convert(loader, out, num_shards=3).num_kept == 2
    with pytest.raises(FileError, match="is there already"):
        gl.convert(loader.replace(ops=OPS["nothing random"][:2]), out, num_shards=3)


def test_a_shard_a_source_with_an_epoch_and_a_late_epoch_of_a_mix_are_refused(tmp_path):
    source, ops = gl.arrays(x=X), [gl.ops.Cast("float32")]

    with pytest.raises(SpecError, match=r"shard 1 of 2(.|\n)*num_shards=1"):
        gl.convert(gl.Loader(source, 2, ops=ops, num_shards=2, shard_id=1), tmp_path / "a.npy")
    with pytest.raises(SpecError, match="epoch=0 with a ArraysSource"):
        gl.convert(source, tmp_path / "a.npy", epoch=0)
    with pytest.raises(SpecError, match=r"epoch 1 of <gl\.mix"):
        gl.convert(gl.Loader(gl.mix({source: 1}), 2, ops=ops), tmp_path / "a.npy", epoch=1)
    with pytest.raises(SpecError, match="a source is open already"):
        gl.convert(gl.Loader(source, 2), tmp_path / "a.npy", allow_pickle=True)


def test_the_records_of_an_epoch_make_no_loader_that_takes_the_states_of_others(photos):
    loader = photo_loader(photos)

    frozen = gl.Loader(loader.to_source(epoch=3), 5, shuffle=True, seed=5)

    np.testing.assert_array_equal(
        frozen.batch_at(1)["image"], _row_by_row(loader, frozen.batch_at(1).records)
    )
    with pytest.raises(StateError):
        frozen.load_state_dict(loader.state_dict())


def _row_by_row(loader, records):
    rows = {
        record: image
        for batch in loader.epoch(3)
        for record, image in zip(batch.records.tolist(), batch["image"], strict=True)
    }
    return np.stack([rows[record] for record in records.tolist()])


@pytest.mark.parametrize(
    "ops", [OPS["nothing random"], [gl.ops.Decode()]], ids=["one size", "all sizes"]
)
def test_few_large_files_are_read_at_a_time(photos, monkeypatch, ops):
    monkeypatch.setattr(filtering, "CHUNK_BYTES", 8000)
    sizes = {file.name: file.stat().st_size for file in photos.rglob("*.jpg")}
    behind = photo_loader(photos, ops).to_source()

    pieces = list(filtering.chunks(behind, ("image",)))

    assert np.concatenate(pieces).tolist() == list(range(12))
    for piece in pieces:
        files = [
            behind.where(number).partition(",")[0].rpartition("/")[2] for number in piece.tolist()
        ]
        assert len(files) == 1 or sum(sizes[file] for file in files) <= 8000


class TestOpsSource(SourceContract):
    def open(self, folder):
        source = gl.arrays(x=X, label=np.arange(10))
        return OpsSource(
            source,
            [gl.ops.Cast("float32", on="x"), gl.ops.RandomFlip(on="x")],
            ("x", "label"),
            7,
            2,
        )

    def open_other(self, folder):
        return OpsSource(
            gl.arrays(x=X, label=np.arange(10)), [gl.ops.Cast("float32", on="x")], ("x", "label"), 7
        )

    def expected(self):
        loader = gl.Loader(
            gl.arrays(x=X), 10, ops=[gl.ops.Cast("float32"), gl.ops.RandomFlip()], seed=7
        )
        return {"x": loader.batch_at(0, 2)["x"], "label": np.arange(10)}


def test_on_a_simulated_gpu_what_the_cpu_made_is_kept_and_the_other_ops_run_there(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    ops = [gl.ops.Cast("float32"), gl.ops.RandomFlip()]

    with gl.Loader(
        gl.arrays(x=X), 4, ops=ops, shuffle=True, device="gpu", executor="array"
    ) as loader:
        with pytest.raises(
            DeviceError,
            match=r"executor 'array' on gpu:0(.|\n)*replace\(device='cpu', executor='array'",
        ):
            loader.cache(memory="1MB")
        with loader.replace(device="cpu").cache(memory="1MB").replace(device="gpu") as cached:
            assert cached.ops == loader.ops[1:]
            for part, reference in zip(cached.epoch(1), loader.epoch(1), strict=True):
                assert part["x"].get().tolist() == reference["x"].get().tolist()
            del part, reference
    del loader, cached
    gc.collect()
    sim.finish()
