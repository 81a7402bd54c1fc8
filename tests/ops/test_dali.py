"""Dali: any operator of DALI. It has no array form, so it has no contract with one; expected values
are OpenCV's."""

from __future__ import annotations

from typing import ClassVar

import cv2
import numpy as np
import pytest

import gpuload as gl
from gpuload import ops, state
from gpuload.errors import DeviceError, SpecError
from gpuload.ops import Dali
from gpuload.testing.ops import uniform

dali = pytest.importorskip("nvidia.dali")
fn, types = dali.fn, dali.types

IMAGES = cv2.blur(
    np.random.default_rng(0).integers(0, 256, (10, 40, 50, 3), dtype=np.uint8).reshape(400, 50, 3),
    (5, 5),
)
IMAGES = IMAGES.reshape(10, 40, 50, 3)


def loader_of(*chain, **arguments):
    source = gl.arrays(image=IMAGES, label=np.arange(10))
    return gl.Loader(source, **{"batch_size": 4, "ops": list(chain), "device": "cpu", **arguments})


def first(load):
    with load:
        return next(iter(load))["image"]


@pytest.mark.parametrize(
    "op",
    [
        Dali("gaussian_blur", sigma=1.5, window_size=9),
        Dali(lambda x: fn.gaussian_blur(x, sigma=1.5, window_size=9)),
        Dali(lambda x, sigma: fn.gaussian_blur(x, sigma=sigma, window_size=9), sigma=1.5),
    ],
    ids=["name", "function", "function with an argument"],
)
def test_an_operator_stands_between_other_ops(op):
    # DALI blurs in float32 as OpenCV does; bytes may differ by 1 where a value lies near a half.
    result = first(loader_of(op, ops.CenterCrop(20, 30)))

    blurred = np.stack(
        [cv2.GaussianBlur(image.astype(np.float32), (9, 9), 1.5) for image in IMAGES[:4]]
    )
    assert np.abs(result - blurred[:, 10:30, 10:40]).max() <= 0.51


def test_its_result_is_what_out_says():
    op = Dali("gaussian_blur", sigma=1.5, window_size=9, dtype="float32", out={"dtype": "float32"})

    result = first(loader_of(op))

    expected = np.stack(
        [cv2.GaussianBlur(image.astype(np.float32), (9, 9), 1.5) for image in IMAGES[:4]]
    )
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-3)


def test_a_result_that_is_not_what_out_says_is_an_error():
    with (
        loader_of(Dali("gaussian_blur", sigma=1.5, dtype="float32")) as load,
        pytest.raises(SpecError, match=r"DALI makes float32.*\n.*uint8"),
    ):
        next(iter(load))


def test_a_dtype_is_told_by_name_however_it_is_given():
    named, enumerated = Dali("cast", dtype="FLOAT"), Dali("cast", dtype=types.FLOAT)

    assert (
        state.canonical_text(named)
        == state.canonical_text(enumerated)
        == "Dali(fn='cast', settings={'dtype': 'FLOAT'})"
    )
    for op in (named, enumerated, Dali("cast", dtype="float32")):
        result = first(loader_of(Dali(op.fn, out={"dtype": "float32"}, **op.settings)))
        np.testing.assert_array_equal(result, IMAGES[:4].astype(np.float32))


@pytest.mark.parametrize(
    "name", ["noise.gaussian", "random.uniform", "random_resized_crop", "jitter", "readers.file"]
)
def test_random_operators_are_refused_by_name(name):
    with pytest.raises(SpecError, match=rf"{name} of DALI draws random numbers") as caught:
        Dali(name)

    assert "no batch could be made again" in caught.value.cause


def test_a_seed_makes_it_no_better():
    with pytest.raises(SpecError, match="draws random numbers"):
        Dali("some_new_operator", seed=3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: fn.noise.gaussian(x, stddev=3),
        lambda x: fn.gaussian_blur(fn.noise.salt_and_pepper(x), sigma=1.0),
        lambda x: fn.brightness(x, brightness=fn.random.uniform(range=(0.5, 1.5))),
        lambda x: fn.flip(x, horizontal=fn.random.coin_flip(probability=0.5)) + 0,
    ],
)
def test_random_operators_inside_a_function_are_found_when_the_loader_is_made(function):
    with pytest.raises(SpecError, match="draws random numbers"):
        loader_of(Dali(function))


@pytest.mark.parametrize("executor", ["auto", "dali"])
def test_dali_runs_it(executor):
    with loader_of(Dali("flip", horizontal=1), executor=executor) as load:
        assert "dali" in load.describe()
        np.testing.assert_array_equal(next(iter(load))["image"], IMAGES[:4, :, ::-1])


def test_the_array_executor_does_not_and_the_remedy_works():
    with pytest.raises(DeviceError, match="executor='array'") as caught:
        loader_of(Dali("flip", horizontal=1), executor="array")

    assert "leave executor= out" in caught.value.remedy


def test_an_operator_that_is_not_there_is_an_error_with_those_that_sound_like_it():
    with pytest.raises(SpecError, match=r"no operator 'gausian_blur'") as caught:
        loader_of(Dali("gausian_blur", sigma=1.0))

    assert "gaussian_blur" in caught.value.remedy


def test_a_function_that_returns_no_field_is_an_error():
    with pytest.raises(SpecError, match="makes list"):
        loader_of(Dali(lambda x: [x, x]))


def test_wrong_arguments_of_the_operator_are_dalis_error_in_our_words():
    with pytest.raises(SpecError, match="DALI makes no pipeline") as caught:
        loader_of(Dali("gaussian_blur", window_size="wide"))

    assert "gl.ops.Dali" in caught.value.remedy


def test_an_argument_that_the_operator_has_not_is_an_error_with_those_that_sound_like_it():
    with pytest.raises(SpecError, match="gaussian_blur has no argument 'sigmas'") as caught:
        loader_of(Dali("gaussian_blur", sigmas=1.0))

    assert "'sigma'" in caught.value.remedy


@pytest.mark.parametrize("angle", [(-10, 10), [5.0], np.arange(4.0), {"low": -10}])
def test_a_range_in_place_of_a_number_is_an_error_that_says_how_numbers_are_drawn(angle):
    with pytest.raises(SpecError, match=r"angle of DALI's rotate is one number") as caught:
        loader_of(Dali("rotate", angle=angle))

    assert "gl.draw.uniform(-10, 10)" in caught.value.remedy


def test_images_without_known_axes_get_the_layout_that_operators_need():
    field = uniform(np.uint8, 40, 50, 3)
    assert field.axes == ""

    result = first(loader_of(Dali("rotate", angle=180.0, fill_value=0.0)))

    np.testing.assert_array_equal(result, IMAGES[:4, ::-1, ::-1])


def test_bytes_of_a_file_need_both_dtype_and_shape_in_out():
    from gpuload.spec import Field

    file = Field("image", np.dtype(np.uint8), (None,), encoded=True)

    with pytest.raises(SpecError, match="encoded image file"):
        Dali("decoders.image").field_after(file)

    op = Dali("decoders.image", out={"dtype": "uint8", "shape": (None, None, 3)})
    assert (op.field_after(file).encoded, op.field_after(file).shape) == (False, (None, None, 3))


@pytest.mark.parametrize(
    "arguments", [{"fn": 3}, {"fn": ""}, {"fn": None}, {"fn": "flip", "out": "float"}]
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="Dali"):
        Dali(**arguments)


class TestArgumentsThatAreDrawn:
    """Arguments of ``gl.draw``: numbers of each record."""

    pixels: ClassVar = np.random.default_rng(5).integers(0, 256, (9, 16, 20, 3), np.uint8)

    def loader(self, op, **arguments):
        return gl.Loader(
            gl.arrays(image=self.pixels), 4, ops=[op], device="cpu", drawn=True, seed=3, **arguments
        )

    def test_are_what_the_operator_gets(self):
        op = gl.ops.Dali("flip", horizontal=gl.draw.coin_flip(0.5), vertical=gl.draw.coin_flip(0.5))
        with self.loader(op) as loader:
            for batch in loader.epoch(1):
                draw = batch.drawn["Dali/0"]
                for row, record in enumerate(batch.records):
                    down, across = (
                        -1 if draw[name][row] else 1 for name in ("vertical", "horizontal")
                    )
                    np.testing.assert_array_equal(
                        batch["image"][row], self.pixels[record][::down, ::across]
                    )

    def test_do_not_depend_on_the_batch(self):
        op = gl.ops.Dali("rotate", angle=gl.draw.uniform(-90, 90), keep_size=True, fill_value=0)
        with self.loader(op) as loader, loader.replace(batch_size=9) as whole:
            images = np.concatenate([batch["image"] for batch in loader.epoch(0)])
            np.testing.assert_array_equal(images, whole.batch_at(0)["image"])
            assert len(np.unique(whole.batch_at(0).drawn["Dali/0"]["angle"])) == 9

    def test_stand_in_a_state(self):
        text = state.canonical_text(gl.ops.Dali("rotate", angle=gl.draw.uniform(-9, 9)))
        assert text != state.canonical_text(gl.ops.Dali("rotate", angle=gl.draw.uniform(-9, 8)))
        assert "uniform" in text

    @pytest.mark.parametrize(
        ("op", "words"),
        [
            (gl.ops.Dali("rotate", interp_type=gl.draw.integers(0, 2)), "the same for all records"),
            (gl.ops.Dali("rotate", angle=gl.draw.integers(0, 2)), "is FLOAT"),
            (gl.ops.Dali("flip", horizontal=gl.draw.uniform(0, 1)), "is INT"),
        ],
    )
    def test_that_do_not_fit_are_refused(self, op, words):
        with pytest.raises(SpecError, match=words):
            self.loader(op)


def test_its_text_is_the_call_that_makes_it():
    op = ops.Dali("resize", size=[8, 9], out={"shape": (8, 9, 3)}, on="image")

    assert repr(op) == "Dali('resize', size=[8, 9], out={'shape': (8, 9, 3)}, on='image')"
    assert eval(f"ops.{op!r}") == op
