"""Damaged records through each bridge: the batches of the loader, each framework's way, and no step
more or fewer."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError
from tests import imagefiles

BAD = {3, 11, 18}
NUM_RECORDS, BATCH = 24, 5


def rows(on_error="replace", **changes):
    """Return a loader of labels, some of which are no class."""
    labels = np.arange(NUM_RECORDS) % 4
    labels[sorted(BAD)] = 9
    source = gl.arrays(x=np.arange(NUM_RECORDS, dtype=np.float32)[:, None], label=labels)
    arguments = {
        "ops": [gl.ops.OneHot(4)],
        "output": ("x", "label"),
        "shuffle": True,
        "seed": 2,
        "max_bad": 0.2,
    }
    return gl.Loader(source, BATCH, device="cpu", on_error=on_error, **{**arguments, **changes})


@pytest.fixture
def photos(tmp_path):
    """Return a folder of JPEG files, some of which are cut short."""
    for number in range(NUM_RECORDS):
        data = imagefiles.jpeg(16, 24)
        (tmp_path / f"{number:02}.jpg").write_bytes(
            data[: len(data) // 2] if number in BAD else data
        )
    return tmp_path


def expected(**changes):
    """Return x of each row of two epochs, and which rows are valid, from the loader itself."""
    with rows(**changes) as load:
        batches = [batch for _ in range(2) for batch in load]
    assert BAD.isdisjoint(record for batch in batches for record in batch.records.tolist())
    return [batch["x"][:, 0].tolist() for batch in batches], [
        batch.valid.tolist() for batch in batches
    ]


@pytest.mark.parametrize("on_error", ["replace", "skip"])
@pytest.mark.parametrize("bridge", ["tensorflow", "torch", "jax", "dali"])
def test_tensors_hold_what_the_batches_hold(bridge, on_error):
    pytest.importorskip(
        {"tensorflow": "tensorflow", "torch": "torch", "jax": "jax", "dali": "nvidia.dali"}[bridge]
    )
    module = importlib.import_module(f"gpuload.bridges.{bridge}")
    values, valid = expected(on_error=on_error)
    with rows(on_error) as load:
        if bridge == "dali":
            assert _through_dali(module, load) == values
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            batches = [batch for _ in range(2) for batch in module.tensors(load)]
        assert [np.asarray(batch["x"])[:, 0].tolist() for batch in batches] == values
        assert [batch.valid.tolist() for batch in batches] == valid
        assert {bad.record for bad in load.bad_records()} == BAD


def _through_dali(module, load):
    dali = importlib.import_module("nvidia.dali")

    @dali.pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)
    def pipeline():
        return module.reader(load)

    pipe, results = pipeline(), []
    for _ in range(2):
        for _ in range(len(load)):
            x, _ = pipe.run()
            results.append([float(np.asarray(x[row])[0]) for row in range(len(x))])
        with pytest.raises(StopIteration):
            pipe.run()
        pipe.reset()
    return results


@pytest.mark.parametrize("via", ["generator", "plugin"])
def test_a_dataset_has_as_many_steps_as_ever(via):
    pytest.importorskip("nvidia.dali_tf_plugin" if via == "plugin" else "tensorflow")
    gltf = importlib.import_module("gpuload.bridges.tensorflow")
    values, _ = expected()
    with rows() as load:
        data = gltf.dataset(load, via=via)
        results = [x.numpy()[:, 0].tolist() for _ in range(2) for x, _ in data]
    assert results == values


def test_skipped_rows_weigh_nothing_in_a_dataset_with_weights():
    pytest.importorskip("tensorflow")
    gltf = importlib.import_module("gpuload.bridges.tensorflow")
    with rows("skip") as load:
        weights = np.concatenate(
            [weight.numpy() for *_, weight in gltf.dataset(load, weights=True)]
        )
    assert weights.sum() == NUM_RECORDS - len(BAD)
    assert weights.size == NUM_RECORDS


def test_the_plugin_says_why_it_takes_no_decoder_then(photos):
    pytest.importorskip("nvidia.dali_tf_plugin")
    gltf = importlib.import_module("gpuload.bridges.tensorflow")
    ops = [gl.ops.Decode(), gl.ops.Resize(8, 8)]
    with gl.Loader(
        gl.images(photos, labels=None), BATCH, ops=ops, device="cpu", on_error="skip", max_bad=0.2
    ) as load:
        with pytest.raises(SpecError, match="on_error='skip'") as caught:
            gltf.dataset(load, via="plugin")
        assert "via='generator'" in caught.value.remedy
        assert len(list(gltf.dataset(load))) == len(load)


def test_keras_trains_over_damaged_records():
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras is not on TensorFlow")
    gltf = importlib.import_module("gpuload.bridges.tensorflow")
    with rows() as load:
        model = keras.Sequential([keras.layers.Dense(4, activation="softmax")])
        model.compile("sgd", "categorical_crossentropy")
        model.fit(gltf.dataset(load), epochs=2, steps_per_epoch=len(load), shuffle=False, verbose=0)
        assert load.position.epoch == 2
        assert load.stats()["records_replaced"] == 2 * len(BAD)


def test_torchs_dataloader_gets_the_same():
    torch = pytest.importorskip("torch")
    gltorch = importlib.import_module("gpuload.bridges.torch")
    values, _ = expected()
    with rows() as load:
        data = torch.utils.data.DataLoader(gltorch.dataset(load), batch_size=None)
        assert [x[:, 0].tolist() for _ in range(2) for x, _ in data] == values


def test_a_reader_in_a_dali_pipeline_gives_its_decoder_no_damaged_file(photos):
    pytest.importorskip("nvidia.dali")
    dali, bridge = (
        importlib.import_module("nvidia.dali"),
        importlib.import_module("gpuload.bridges.dali"),
    )
    with gl.Loader(
        gl.images(photos, labels=None), BATCH, device="cpu", on_error="replace", max_bad=0.2
    ) as load:

        @dali.pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)
        def pipeline():
            return dali.fn.resize(
                dali.fn.decoders.image(bridge.reader(load)), resize_x=8, resize_y=8
            )

        pipe = pipeline()
        sizes = [len(pipe.run()[0]) for _ in range(len(load))]
        assert sum(sizes) == NUM_RECORDS
        assert {bad.record for bad in load.bad_records()} == BAD


def test_distributed_replicas_agree():
    tf = pytest.importorskip("tensorflow")
    gltf = importlib.import_module("gpuload.bridges.tensorflow")
    values, _ = expected()
    with rows() as load:
        results = [
            x.numpy()[:, 0].tolist() for x, _ in gltf.distribute(load, tf.distribute.get_strategy())
        ]
    assert results == values[: len(load)]
