"""Python: a function of the user's."""

from __future__ import annotations

import pickle
import signal
import threading

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.ops import Python
from gpuload.spec import Field, Spec
from gpuload.testing.ops import OpContract, uniform, varying
from tests.interrupts import Alarm


def inverted(x):
    return 255 - x


def halved(x):
    return x[::2].astype(np.float32) / 2


def noisy(x, rng):
    return x + rng.normal(size=x.shape).astype(np.float32)


def each_noisy(x, rng):
    return np.stack([noisy(row, its) for row, its in zip(x, rng, strict=True)])


class TestPython(OpContract):
    cases = (
        (Python(inverted), uniform(np.uint8, 9, 8, 3)),
        (Python(inverted, out={"dtype": "uint8"}), varying(np.uint8, 3)),
        (Python(inverted), varying(np.uint8, 3)),
        (Python(inverted, batch=True), uniform(np.uint8, 9, 8, 3)),
        (Python(inverted, out={"shape": (None, None, 1)}, batch=True), varying(np.uint8, 1)),
        (Python(halved), uniform(np.uint8, 9, 8, 3)),
        (Python(lambda x: x.sum()), uniform(np.float64, 5)),
        (Python(lambda x: x[:2], out={"shape": (None,)}), Field("x", np.dtype(np.int16), (None,))),
        (Python(lambda x: np.char.str_len(x)), uniform("U7")),
        (Python(noisy), uniform(np.float32, 9, 8, 3)),
        (Python(each_noisy, batch=True), uniform(np.float32, 9, 8, 3)),
        (Python(noisy, out={"dtype": "float32", "shape": (None, None, 3)}), varying(np.float32, 3)),
    )
    neutral = ((Python(lambda x: x), uniform(np.uint8, 5, 4)),)
    refused = (
        (Python(halved), varying(np.uint8, 3)),
        (Python(inverted), Field("image", np.dtype(np.uint8), None)),
        (Python(inverted), Field("image", np.dtype(np.uint8), (None,), encoded=True)),
        (Python(lambda x: x[10]), uniform(np.uint8, 5)),
    )

    def values(self, field, count):
        return (
            np.array(["a" * row for row in range(count)], field.dtype)
            if field.dtype.kind == "U"
            else super().values(field, count)
        )


IMAGES = np.random.default_rng(0).integers(0, 200, (10, 6, 5, 3), dtype=np.uint8)


def loader_of(*chain, **arguments):
    source = gl.arrays(image=IMAGES, label=np.arange(10))
    return gl.Loader(source, **{"batch_size": 4, "ops": list(chain), "device": "cpu", **arguments})


def collected(load, name="image"):
    with load:
        batches = [(batch.records, batch[name]) for batch in load]
    order = np.concatenate([records for records, _ in batches]).argsort()
    return np.concatenate([values for _, values in batches])[order]


def test_a_function_stands_between_other_ops():
    result = collected(loader_of(ops.CenterCrop(4), Python(inverted), ops.Normalize(5, 2)))

    np.testing.assert_array_equal(result, (255 - IMAGES[:, 1:5, :4].astype(np.float32) - 5) / 2)


@pytest.mark.parametrize("batch_size", [1, 3, 10])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize(
    "op", [Python(noisy, out={"dtype": "float32"}), Python(each_noisy, batch=True)]
)
def test_what_it_draws_depends_on_seed_epoch_and_record_alone(batch_size, num_threads, op):
    expected = collected(loader_of(ops.Cast("float32"), op, seed=3))

    result = collected(
        loader_of(
            ops.Cast("float32"),
            op,
            seed=3,
            batch_size=batch_size,
            num_threads=num_threads,
            shuffle=True,
        )
    )

    np.testing.assert_array_equal(result, expected)
    assert (collected(loader_of(ops.Cast("float32"), op, seed=4)) != expected).any()
    assert len({noise.tobytes() for noise in expected - IMAGES}) == 10


def test_its_generator_is_philox_keyed_by_four_words_of_the_draw():
    words = np.array([1, -2, 3, -4], np.int32)

    result = Python(noisy).array(np, np.zeros(5, np.float32), {"key": words})

    key = np.array([1 | (2**32 - 2) << 32, 3 | (2**32 - 4) << 32], np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key)).normal(size=5).astype(np.float32)
    np.testing.assert_array_equal(result, expected)


def test_image_and_mask_get_the_same_numbers():
    source = gl.arrays(image=IMAGES.astype(np.float32), mask=IMAGES.astype(np.float32))
    both = Python(noisy, on=("image", "mask"))

    with gl.Loader(source, batch_size=5, ops=[both], device="cpu") as load:
        batch = next(iter(load))

    np.testing.assert_array_equal(batch["image"], batch["mask"])


class Unlucky(KeyError):
    """An error of the user's."""


def fails_on_record_7(x):
    if x.size and (x == IMAGES[7]).all():
        raise Unlucky("seven")
    return x


@pytest.mark.parametrize("num_threads", [1, 3])
def test_its_error_reaches_the_caller_as_itself_with_the_record_named(num_threads):
    load = loader_of(Python(fails_on_record_7), num_threads=num_threads)

    with load, pytest.raises(Unlucky, match="seven") as caught:
        list(load)

    assert caught.value.__notes__ == ["in gl.ops.Python(fails_on_record_7), arrays, record 7"]


def test_of_a_function_for_many_records_the_first_is_named():
    def fails(x):
        if (x == IMAGES[7]).all(axis=(1, 2, 3)).any():
            raise Unlucky("among them")
        return x

    load = loader_of(Python(fails, batch=True), batch_size=5, num_threads=1)

    with load, pytest.raises(Unlucky, match="among them") as caught:
        list(load)

    assert caught.value.__notes__ == [
        f"in gl.ops.Python({fails.__qualname__}), arrays, record 5, the first of the 5 that it was called with"
    ]


def test_after_an_error_the_next_batch_is_right():
    with loader_of(Python(fails_on_record_7)) as load:
        batches = iter(load)
        next(batches)
        with pytest.raises(Unlucky):
            next(batches)

        np.testing.assert_array_equal(next(batches)["image"], IMAGES[8:])


@pytest.mark.parametrize(
    ("function", "out", "text"),
    [
        (
            lambda x: x if x.any() else x[1:],
            None,
            r"returned uint8 \(6, 5, 3\).*\n.*should return uint8 \(5, 5, 3\)",
        ),
        (lambda x: x / 2, {"dtype": "float32"}, r"returned float64 \(6, 5, 3\).*\n.*float32"),
        (lambda x: x[0], {"shape": (None, None, 3)}, r"returned uint8 \(5, 3\)"),
        (lambda x: x[1:], {"shape": (None, None, 3)}, r"returned 5 x 5 pixels for 6 x 5"),
    ],
)
def test_a_result_that_is_not_what_was_declared_is_an_error_that_names_the_record(
    function, out, text
):
    with (
        loader_of(Python(function, out=out)) as load,
        pytest.raises(SpecError, match=text) as caught,
    ):
        next(iter(load))

    assert "record 0" in caught.value.__notes__[0]
    assert "out=" in caught.value.remedy or "Resize" in caught.value.remedy


def test_one_for_many_that_returns_too_few_is_an_error():
    op = Python(lambda x: x[:1], batch=True, out={"dtype": "uint8"})

    with loader_of(op) as load, pytest.raises(SpecError, match=r"for 4 records"):
        next(iter(load))


def test_its_argument_cannot_be_written_to():
    def writes(x):
        x[0] = 1
        return x

    with (
        loader_of(Python(writes, out={"dtype": "uint8"})) as load,
        pytest.raises(ValueError, match="read-only"),
    ):
        next(iter(load))


def test_what_it_returns_may_be_what_it_was_given():
    np.testing.assert_array_equal(collected(loader_of(Python(lambda x: x[::-1]))), IMAGES[:, ::-1])


def test_without_out_it_is_called_with_zeros_when_the_loader_is_made():
    calls = []

    with loader_of(
        Python(lambda x: calls.append((x.any(), x.shape, threading.current_thread().name)) or x)
    ):
        assert calls
        assert set(calls) == {(False, (6, 5, 3), "gpuload-signalsafe-0")}


@pytest.mark.parametrize(
    ("function", "dtype", "shape"),
    [
        (inverted, "uint8", (None, None, 3)),
        (lambda image: image[..., :1] / np.float32(2), "float32", (None, None, 1)),
        (lambda image: image[..., 0], "uint8", (None, None)),
        (lambda image: np.resize(image, (24, 20, 3)), "uint8", (24, 20, 3)),
        (lambda image: image.mean(axis=(0, 1)), "float64", (3,)),
        (lambda image: image.max(), "uint8", ()),
    ],
)
def test_of_images_that_differ_in_size_zeros_of_two_sizes_show_dtype_and_shape(
    function, dtype, shape
):
    graph = compile_ops(Spec((varying(np.uint8, 3),)), [Python(function)])

    assert (graph.spec_out["image"].dtype, graph.spec_out["image"].shape) == (
        np.dtype(dtype),
        shape,
    )
    assert graph.spec_out["image"].axes == ("HWC" if shape == (None, None, 3) else "")


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (
            halved,
            r"\(32, 40, 3\), \(40, 24, 3\) it returned float32 \(16, 40, 3\), float32 \(20, 24, 3\)",
        ),
        (
            lambda image: image.swapaxes(0, 1),
            r"it returned uint8 \(40, 32, 3\), uint8 \(24, 40, 3\)",
        ),
        (lambda image: image[image.any(axis=(1, 2))], r"it returned uint8 \(0, 40, 3\)"),
        (lambda image: image if len(image) < 35 else image / 2, "it returned uint8 .* float64"),
    ],
)
def test_what_zeros_of_two_sizes_do_not_show_is_declared(function, cause):
    with pytest.raises(SpecError, match=cause) as caught:
        compile_ops(Spec((varying(np.uint8, 3),)), [Python(function)])

    assert "out={'dtype': 'uint8', 'shape': (None, None, None)}" in caught.value.remedy


def test_a_record_that_is_not_as_zeros_were_is_an_error():
    images = [np.zeros((20, 30, 3), np.uint8), np.zeros((300, 90, 3), np.uint8)]
    read = gl.records(
        2,
        lambda rows: {"image": [images[row] for row in rows]},
        fields={"image": ("u1", (None, None, 3))},
    )

    load = gl.Loader(read, 1, ops=[Python(lambda x: x[:224])], device="cpu")

    assert load.batch_at(0)["image"][0].shape == (20, 30, 3)
    with pytest.raises(SpecError, match="returned 224 x 90 pixels for 300 x 90"):
        load.batch_at(1)


@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that send signals"
)
def test_what_a_signal_handler_raises_while_the_function_is_tried_is_no_fault_of_the_function():
    go_on = threading.Event()

    def wait(x):
        go_on.wait(60)
        return x

    try:
        with Alarm(0.05, armed=True), pytest.raises(Alarm.Rang):
            loader_of(Python(wait))
    finally:
        go_on.set()


def test_where_zeros_will_not_do_the_remedy_is_out():
    def positive(x):
        return x / x.max() if x.max() else 1 // 0

    with pytest.raises(SpecError, match="called once with zeros") as caught:
        loader_of(Python(positive))

    assert "ZeroDivisionError" in caught.value.what
    result = collected(loader_of(Python(positive, out={"dtype": "float64"})))
    np.testing.assert_array_equal(result, [image / image.max() for image in IMAGES])


def test_a_function_of_a_module_can_be_pickled_with_its_loader_and_a_lambda_cannot():
    with loader_of(Python(inverted)) as load, pickle.loads(pickle.dumps(load)) as again:
        np.testing.assert_array_equal(next(iter(again))["image"], next(iter(load))["image"])
    with (
        loader_of(Python(lambda x: x)) as load,
        pytest.raises((pickle.PicklingError, AttributeError)),
    ):
        pickle.dumps(load)


def test_masks_of_two_axes_become_images_of_one_channel():
    masks = Spec(
        (
            Field("image", np.dtype(np.uint8), (None, None, 3), axes="HWC"),
            Field("mask", np.dtype(np.uint8), (None, None)),
        )
    )
    chain = [
        Python(lambda mask: mask[..., None], out={"shape": (None, None, 1)}, on="mask"),
        ops.RandomCrop(8, on=("image", "mask")),
    ]
    graph = compile_ops(masks, chain)
    images = [np.zeros((20, 30, 3), np.uint8), np.zeros((40, 9, 3), np.uint8)]
    fields = {"image": images, "mask": [image[..., 0] for image in images]}
    sizes = {name: image_sizes(masks[name], values, 2) for name, values in fields.items()}

    _, draw = graph.draw(seed=0, epoch=0, records=np.arange(2), sizes=sizes)

    assert (draw["start"] + 8 <= sizes["mask"]).all()
    assert graph.spec_out["mask"].shape == (8, 8, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"fn": 3},
        {"fn": inverted, "out": 3},
        {"fn": inverted, "out": {"dtypes": 7}},
        {"fn": inverted, "out": {"image": gl.Field("mask", "u1", (3,))}},
        {"fn": lambda a, b: a, "on": ("a", "b"), "out": "uint8"},
        {"fn": inverted, "out": {"dtype": "float"}},
        {"fn": inverted, "out": {"dtype": object}},
        {"fn": inverted, "out": {"shape": 3}},
        {"fn": inverted, "out": {"shape": (3, -1)}},
        {"fn": inverted, "out": {"shape": (True,)}},
        {"fn": inverted, "batch": 1},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="Python"):
        Python(**arguments)
