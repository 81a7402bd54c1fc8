"""The TensorFlow bridge through DALI's plugin: the same batches as without it, and the plugin's
traps."""

from __future__ import annotations

import importlib.util
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
nvidia_dali = pytest.importorskip("nvidia.dali")

import gpuload as gl  # noqa: E402
from gpuload.bridges import tensorflow as gltf  # noqa: E402
from gpuload.bridges.tensorflow import plugin  # noqa: E402
from gpuload.errors import DeviceError, MissingPackageError, SpecError  # noqa: E402
from gpuload.ops.base import Op  # noqa: E402
from tests import imagefiles  # noqa: E402
from tests.interrupts import Alarm  # noqa: E402
from tests.threads import none_left  # noqa: E402

ROOT = Path(__file__).parents[2]
needs_plugin = pytest.mark.skipif(
    importlib.util.find_spec("nvidia.dali_tf_plugin") is None,
    reason="DALI's TensorFlow plugin is not installed",
)
pytestmark = needs_plugin

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (23, 20, 30, 3), dtype=np.uint8)
MASKS = RNG.integers(0, 4, (23, 20, 30, 1), dtype=np.uint8)
SOURCE = gl.arrays(
    image=IMAGES,
    mask=MASKS,
    label=np.arange(23),
    x=RNG.normal(size=(23, 5)).astype(np.float32),
    big=np.arange(23, dtype=">i4"),
)


def loader_of(*ops: Any, source: Any = SOURCE, **arguments: Any) -> gl.Loader:
    """A loader of 5 records a batch, in DALI."""
    value = {
        "batch_size": 5,
        "shuffle": True,
        "seed": 3,
        "device": "cpu",
        "output": ("image", "label"),
    }
    if ops:
        value["executor"] = "dali"
    return gl.Loader(source, **{**value, "ops": ops, **arguments})


def flat(nest: Any) -> list[np.ndarray]:
    return [np.asarray(item) for item in tf.nest.flatten(nest)]


def check_equal(loader: gl.Loader, num_epochs: int = 2) -> None:
    """The batches of the plugin are those of ``tensors``."""
    data = gltf.dataset(loader, via="plugin")
    for number in range(num_epochs):
        expected = [flat(batch.output) for batch in loader.epoch(number)]
        results = [flat(batch) for batch in data]
        assert len(results) == len(expected) == len(loader)
        for item, second in zip(results, expected, strict=True):
            assert len(item) == len(second)
            for left, right in zip(item, second, strict=True):
                assert left.dtype == right.dtype
                np.testing.assert_array_equal(left, right)


OPS = {
    "none": [],
    "crop": [gl.ops.RandomCrop(12, 13, pad=2)],
    "crops": [gl.ops.RandomResizedCrop(8, 9, on=("image", "mask"), interpolation={"mask": "nearest"})],
    "centre": [gl.ops.CenterCrop(10, 11)],
    "pad": [gl.ops.Pad(32, 40, fill=7)],
    "flip": [gl.ops.RandomFlip(on=("image", "mask"))],
    "resize": [gl.ops.Resize(13, 17)],
    "colour": [gl.ops.Brightness(0.5, 1.5), gl.ops.Contrast(0.5, 1.5, center=128)],
    "normalise": [gl.ops.Normalize((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))],
    "standardise": [gl.ops.PerImageStandardization()],
    "axes": [gl.ops.Transpose("CHW")],
    "reshape": [gl.ops.Reshape((60, 30))],
    "cast": [gl.ops.Cast("float16")],
    "one hot": [gl.ops.OneHot(23, on="label")],
    "blur": [gl.ops.Dali("gaussian_blur", sigma=1.5)],
    "several": [gl.ops.RandomCrop(12, 13), gl.ops.RandomFlip(), gl.ops.Brightness(0.5, 1.5),
                gl.ops.Normalize(1.0, 2.0)],
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_the_batches_of_each_op_are_those_of_the_loader(name):
    check_equal(loader_of(*OPS[name], output=("image", "mask", "label")))


@pytest.mark.parametrize(
    "output",
    [
        "image",
        ("image",),
        ("label", "image", "label"),
        {"b": "image", "a": ("label", "big")},
        ["image", ["label"]],
        None,
    ],
)
def test_nests_and_dtypes_are_kept(output):
    loader = loader_of(gl.ops.RandomFlip(), output=output)

    data = gltf.dataset(loader, via="plugin")

    check_equal(loader)
    generated = gltf.dataset(loader, via="generator")
    assert tf.nest.map_structure(
        lambda item: item.dtype, data.element_spec
    ) == tf.nest.map_structure(lambda item: item.dtype, generated.element_spec)
    assert data.cardinality() == len(loader)


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad"])
@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_no_record_of_the_last_batch_is_lost(last_batch, shard):
    loader = loader_of(
        gl.ops.RandomFlip(), last_batch=last_batch, shard_id=shard[0], num_shards=shard[1]
    )

    check_equal(loader)

    axis = None if last_batch == "partial" else 5
    assert gltf.dataset(loader, via="plugin").element_spec[0].shape.as_list() == [axis, 20, 30, 3]


DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
]


def test_every_dtype_that_the_plugin_has_comes_through_without_and_with_an_op():
    assert set(DTYPES) == set(plugin.DTYPES)
    arrays = {name: RNG.integers(0, 2, (23, 3, 2)).astype(name) for name in DTYPES}

    check_equal(loader_of(source=gl.arrays(**arrays), output=tuple(DTYPES)))
    for name in DTYPES:
        check_equal(
            loader_of(gl.ops.Reshape((6,), on=name), source=gl.arrays(**arrays), output=name), 1
        )


def test_jpegs_of_many_sizes_are_decoded_in_the_plugin(tmp_path):
    for number in range(12):
        folder = tmp_path / f"class {number % 3}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(imagefiles.jpeg(30 + 3 * number, 60 - 2 * number))
    source = gl.images(tmp_path, labels="folder")
    ops = [
        gl.ops.Decode(),
        gl.ops.RandomResizedCrop(24, 32),
        gl.ops.RandomFlip(),
        gl.ops.Normalize(120.0, 60.0),
    ]

    check_equal(loader_of(*ops, source=source))


def test_jpegs_that_the_host_decodes_come_to_the_plugin_decoded(tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.jpg").write_bytes(imagefiles.jpeg(30 + 3 * number, 60 - 2 * number))
    (tmp_path / "3.jpg").write_bytes((tmp_path / "3.jpg").read_bytes()[:300])
    ops = [
        gl.ops.Decode(),
        gl.ops.RandomResizedCrop(24, 32),
        gl.ops.RandomFlip(),
        gl.ops.Normalize(120.0, 60.0),
    ]
    words = {
        "source": gl.images(tmp_path, labels=None),
        "on_error": "replace",
        "max_bad": 0.5,
        "output": "image",
    }
    loader = loader_of(*ops, **words, decode="host")

    assert [type(op).__name__ for op in loader.port.feed_graph.ops] == ["Normalize"]
    check_equal(loader)


def test_images_of_varying_shape_are_brought_to_one_shape():
    shapes = [(10 + n, 30 - n, 3) for n in range(12)]
    source = gl.records(
        12,
        lambda numbers: {
            "image": [np.full(shapes[n], n, np.uint8) for n in numbers],
            "label": np.array(numbers),
        },
        fields={"image": ("uint8", (None, None, 3)), "label": ("int64", ())},
    )

    check_equal(loader_of(gl.ops.Resize(9, 8), source=source))


# --- the position, resuming


def test_each_iterator_begins_at_the_position_and_a_completed_epoch_moves_it():
    loader = loader_of(gl.ops.RandomFlip())
    data = gltf.dataset(loader, via="plugin")

    for _ in range(3):
        next(iter(data))  # looks, as Keras does
    assert (loader.position.epoch, loader.position.step) == (0, 0)
    list(data)
    assert (loader.position.epoch, loader.position.step) == (1, 0)


def test_a_resumed_epoch_is_what_is_left_of_it():
    first = loader_of(gl.ops.RandomCrop(9, 9))
    batches = iter(first)
    next(batches), next(batches)
    loader = loader_of(gl.ops.RandomCrop(9, 9))
    loader.load_state_dict(first.state_dict())

    results = [flat(batch) for batch in gltf.dataset(loader, via="plugin")]

    expected = [flat(batch.output) for batch in batches]
    assert [labels.tolist() for _, labels in results] == [labels.tolist() for _, labels in expected]
    assert loader.position.epoch == 1
    assert len(list(gltf.dataset(loader, via="plugin"))) == len(loader)


def test_keras_trains_several_epochs_and_evaluates_and_predicts():
    loader = loader_of(gl.ops.RandomFlip(), gl.ops.Normalize(120.0, 60.0))
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(23)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = gltf.dataset(loader, via="plugin")

    history = model.fit(
        data,
        epochs=3,
        verbose=0,
        shuffle=False,
        validation_data=gltf.dataset(loader.replace(), via="plugin"),
    )

    assert len(history.history["loss"]) == len(history.history["val_loss"]) == 3
    assert (loader.position.epoch, loader.position.step) == (3, 0)
    assert int(model.optimizer.iterations.numpy()) == 3 * len(loader)
    assert model.predict(
        gltf.dataset(loader.replace(output="image"), via="plugin"), verbose=0
    ).shape == (23, 23)


def test_the_dataset_can_be_prefetched_repeated_and_mapped_on_a_cpu():
    loader = loader_of(gl.ops.RandomFlip())

    data = gltf.dataset(loader, via="plugin").map(lambda image, label: label).repeat(2).prefetch(3)

    expected = [batch["label"].tolist() for number in range(2) for batch in loader.epoch(number)]
    assert [labels.numpy().tolist() for labels in data] == expected


# --- what is chosen, and what is refused


def test_auto_takes_the_generator_on_a_cpu_and_describe_says_so():
    loader = loader_of(gl.ops.RandomFlip())

    gltf.dataset(loader)
    assert "dataset:   by a generator (the faster one on a CPU)" in loader.describe()
    gltf.dataset(loader, via="plugin")
    assert "dataset:   by DALI's TensorFlow plugin (asked for)" in loader.describe()


def test_another_way_is_refused():
    with pytest.raises(SpecError, match=r"via = 'dali'[\s\S]*'auto', 'plugin', 'generator'"):
        gltf.dataset(loader_of(), via="dali")


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"text": np.array(["a", "b", "c"])}, "no <U1 tensors"),
        ({"double": np.zeros((3, 2))}, "no float64 tensors"),
        ({"wave": np.zeros(3, np.complex64)}, "no complex64 tensors"),
    ],
)
def test_fields_that_the_plugin_has_no_form_for_are_refused_by_name(fields, cause):
    (name,) = fields
    with pytest.raises(SpecError, match=rf"'{name}'[\s\S]*{cause}[\s\S]*via='generator'"):
        gltf.dataset(gl.Loader(gl.arrays(**fields), 2, device="cpu"), via="plugin")


def test_ragged_fields_are_refused_by_name():
    source = gl.records(6, lambda numbers: {"tokens": [np.arange(n + 1) for n in numbers]})

    with pytest.raises(SpecError, match=r"'tokens'[\s\S]*its length varies[\s\S]*via='generator'"):
        gltf.dataset(gl.Loader(source, 2, device="cpu"), via="plugin")


def test_ops_of_numpy_and_the_array_executor_are_refused():
    with pytest.raises(SpecError, match=r"Python[\s\S]*NumPy alone"):
        gltf.dataset(loader_of(gl.ops.Python(lambda x: x), executor="auto"), via="plugin")
    with pytest.raises(DeviceError, match=r"executor='array'[\s\S]*leave executor= out"):
        gltf.dataset(loader_of(gl.ops.RandomFlip(), executor="array"), via="plugin")


@dataclass(frozen=True)
class Invert(Op):
    """Turn dark into bright; there is no form in DALI."""

    def field_after(self, field):
        return field

    def array(self, xp, x, draw):
        return 255 - x


def test_an_op_without_a_form_in_dali_is_refused():
    with pytest.raises(SpecError, match=r"Invert[\s\S]*has no lower\(\)[\s\S]*via='generator'"):
        gltf.dataset(loader_of(gl.ops.RandomFlip(), Invert(), executor="auto"), via="plugin")


def test_an_op_that_checks_what_another_has_made_is_refused():
    ops = gl.ops.Cast("int32", on="label"), gl.ops.OneHot(3, on="label")

    with pytest.raises(SpecError, match=r"OneHot[\s\S]*put OneHot before"):
        gltf.dataset(loader_of(*ops), via="plugin")


def test_weights_come_by_the_generator_alone():
    with pytest.raises(SpecError, match=r"weights=True[\s\S]*via='generator'"):
        gltf.dataset(loader_of(), via="plugin", weights=True)


def test_a_missing_plugin_is_named_with_what_installs_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "tf_plugin" in name else find(name)
    )

    with pytest.raises(MissingPackageError, match=r"nvidia-dali-tf-plugin[\s\S]*make tf-plugin"):
        gltf.dataset(loader_of(), via="plugin")


def test_a_plugin_that_does_not_load_is_said_to_be_of_another_tensorflow(monkeypatch):
    load_others = plugin.signalsafe.import_package

    def load(path):
        if path != "nvidia.dali.plugin.tf":
            return load_others(path)
        raise tf.errors.NotFoundError(
            None, None, f"{path}: undefined symbol: _ZNK10tensorflow4data\nand more"
        )

    monkeypatch.setattr(plugin.signalsafe, "import_package", load)

    with pytest.raises(MissingPackageError, match="compiled for another TensorFlow") as caught:
        gltf.dataset(loader_of(), via="plugin")
    assert "nvidia.dali.plugin.tf: undefined symbol" in caught.value.cause
    assert "--no-cache-dir" in caught.value.remedy


@pytest.mark.parametrize("part", ["the plugin", "its pipeline"])
def test_what_a_signal_handler_raises_while_the_plugin_loads_comes_as_itself(monkeypatch, part):
    go_on = threading.Event()
    target = (
        (plugin.signalsafe, "import_package")
        if part == "the plugin"
        else (nvidia_dali.pipeline.Pipeline, "build")
    )
    monkeypatch.setattr(*target, lambda *_: go_on.wait(60))
    try:
        with Alarm(0.05, armed=True), pytest.raises(Alarm.Rang):
            gltf.dataset(loader_of(), via="plugin")
    finally:
        go_on.set()


# --- errors and endings


def test_the_text_of_an_error_is_ours_and_names_the_record():
    source = gl.arrays(image=IMAGES, label=np.array([0] * 11 + [99] + [0] * 11))
    loader = loader_of(gl.ops.OneHot(3, on="label"), source=source, shuffle=False)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"RecordError[\s\S]*record 11"):
        list(gltf.dataset(loader, via="plugin"))


def test_leaving_early_and_dropping_everything_ends_the_threads():
    source = gl.arrays(image=np.zeros((1000, 8, 8, 3), np.uint8))
    with none_left():
        for _ in range(3):
            loader = gl.Loader(source, 4, ops=[gl.ops.RandomFlip()], executor="dali", device="cpu")
            for number, _batch in enumerate(gltf.dataset(loader, via="plugin")):
                if number == 5:
                    break
            loader.close()
            del loader, _batch


# --- the plugin itself: what is worked around, so that a release which needs it no more is noticed


def through(define: Any, data: Any, dtype: Any = tf.uint8, **options: Any) -> list[np.ndarray]:
    """Run a pipeline of DALI in the plugin, without gpuload."""
    import nvidia.dali.plugin.tf as dali_tf
    from nvidia.dali import fn, pipeline_def

    batch_size, batch = options.pop("batch_size", 16), options.pop("batch", True)

    @pipeline_def(batch_size=batch_size, num_threads=1, device_id=None)
    def pipeline():
        return define(fn, fn.external_source(name="x", **options))

    with tf.device("/cpu:0"):
        result = dali_tf.experimental.DALIDatasetWithInputs(
            pipeline(), input_datasets={"x": dali_tf.experimental.Input(data, batch=batch)}, output_dtypes=dtype,
            batch_size=batch_size, num_threads=1, device_id=None,
        )  # fmt: skip
    return [np.asarray(item[0]) for item in result]


def test_the_plugin_hands_out_garbage_where_an_operator_changes_no_byte_and_a_slice_before_it_helps():
    rows = RNG.integers(0, 255, (6, 16, 48), dtype=np.uint8)
    data = tf.data.Dataset.from_tensor_slices(rows)
    expected = [row.reshape(16, 12, 4) for row in rows]

    plain = through(lambda fn, x: fn.copy(fn.reshape(x, shape=[12, 4])), data)
    sliced = through(
        lambda fn, x: fn.reshape(fn.slice(x, start=[0], shape=[48], axes=[0]), shape=[12, 4]), data
    )

    assert not all(
        np.array_equal(item, second) for item, second in zip(plain, expected, strict=True)
    )
    assert all(np.array_equal(item, second) for item, second in zip(sliced, expected, strict=True))


def test_the_plugin_loses_the_last_records_in_sample_mode_and_none_in_batch_mode():
    rows = np.arange(20, dtype=np.uint8)[:, None]
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(8)

    in_samples = through(
        lambda fn, x: fn.copy(x),
        tf.data.Dataset.from_tensor_slices(rows),
        batch_size=8,
        batch=False,
    )
    in_batches = through(lambda fn, x: fn.copy(x), batches, batch_size=8, layout="X")

    assert np.concatenate(in_samples).ravel().tolist() == list(range(16))
    assert np.concatenate(in_batches).ravel().tolist() == list(range(20))


def test_the_plugin_says_that_it_never_ends():
    import nvidia.dali.plugin.tf as dali_tf
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def pipeline():
        return fn.copy(fn.external_source(name="x", layout="X"))

    data = tf.data.Dataset.from_tensor_slices(np.zeros((3, 4, 2), np.uint8))
    with tf.device("/cpu:0"):
        result = dali_tf.experimental.DALIDatasetWithInputs(
            pipeline(), input_datasets={"x": dali_tf.experimental.Input(data, batch=True)}, output_dtypes=tf.uint8,
            batch_size=4, num_threads=1, device_id=None,
        )  # fmt: skip

    assert result.cardinality() == tf.data.INFINITE_CARDINALITY
    assert len(list(result)) == 3


def test_the_plugin_refuses_float64_and_text():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="double is not in the list of allowed values"
    ):
        through(
            lambda fn, x: x, tf.data.Dataset.from_tensor_slices(np.zeros((3, 16, 2))), tf.float64
        )
    with pytest.raises(tf.errors.OpError):
        through(
            lambda fn, x: fn.copy(x),
            tf.data.Dataset.from_tensor_slices(np.full((3, 16), b"a")),
            layout="",
        )
