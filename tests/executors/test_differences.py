"""Differences: where values differ by more than a bound, and how a bound goes through the ops
behind it."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import gpuload as gl
from gpuload.executors.differences import Oracle, bounds_of, difference
from gpuload.graph.graph import compile_ops
from gpuload.ops.bounds import (
    EXACT,
    HALVES,
    MILD,
    NORMALIZING,
    NVJPEG,
    RECORD_MEAN,
    STRETCH,
    Bound,
    loosen_bound,
    stated_bound,
)
from gpuload.ops.traits import Traits
from gpuload.spec import Field, Spec

IMAGE = Field("image", np.dtype(np.uint8), (40, 40, 3), axes="HWC")
FILES = Field("image", np.dtype(np.uint8), (None,), encoded=True)


def bound_behind(ops, field=IMAGE, party="dali on gpu"):
    graph = compile_ops(Spec((field,)), ops)
    return bounds_of(graph, graph.spec_out.names, lambda place: party)["image"]


class TestABound:
    def test_is_that_of_the_executor_on_its_device_before_that_of_either(self):
        bounds = {"dali on gpu": NVJPEG, "dali": HALVES, "gpu": NORMALIZING}

        assert stated_bound(bounds, "dali on gpu") == NVJPEG
        assert stated_bound(bounds, "dali on cpu") == HALVES
        assert stated_bound(bounds, "array on gpu") == NORMALIZING
        assert stated_bound(bounds, "array on cpu") == EXACT
        assert stated_bound({}, "dali on gpu") == EXACT

    def test_of_ops_that_move_pixels_is_exact(self):
        assert (
            bound_behind([gl.ops.RandomCrop(32), gl.ops.RandomFlip(), gl.ops.Transpose("CHW")])
            == EXACT
        )

    def test_of_whole_numbers_is_no_rounding_of_others_also_behind_a_choice(self):
        choice = gl.ops.OneOf([gl.ops.Invert(), gl.ops.Grayscale(p=1.0)])

        assert bound_behind([choice], party="array on gpu") == EXACT
        floats = Field("image", np.dtype(np.float32), (40, 40, 3), axes="HWC")
        assert bound_behind([choice], floats, party="array on gpu").beyond > 0

    def test_is_kept_by_crops_and_flips_and_multiplied_by_a_scale(self):
        ops = [gl.ops.Resize(32, 32), gl.ops.RandomFlip(), gl.ops.RandomCrop(28)]
        assert bound_behind(ops) == HALVES._replace(share=1)  # of one image all may be halves

        bound = bound_behind(
            [*ops, gl.ops.Normalize((1, 2, 3), (50, 25, 100))], party="dali on cpu"
        )

        assert bound.largest == pytest.approx(1 / 25)
        assert bound.beyond == 0

    def test_grows_behind_ops_with_steps_of_some_values(self):
        bound = bound_behind([gl.ops.Resize(32, 32), gl.ops.Equalize()], party="dali on cpu")
        assert (bound.largest, bound.share, bound.beyond) == (STRETCH.largest, 1, STRETCH.beyond)

        bound = bound_behind([gl.ops.Resize(32, 32), gl.ops.Posterize(4)], party="dali on cpu")
        assert (bound.largest, bound.share, bound.beyond) == (MILD.largest, 1, MILD.beyond)

    def test_grows_behind_a_function_of_the_users_as_behind_what_stretches(self):
        for op in (gl.ops.Python(np.copy), gl.ops.Sometimes(0.5, [gl.ops.Equalize()])):
            assert (
                bound_behind([gl.ops.Resize(32, 32), op], party="dali on cpu").beyond
                == STRETCH.beyond
            )

    def test_has_means_that_grow_once(self):
        once = loosen_bound(NVJPEG)
        often = loosen_bound(loosen_bound(loosen_bound(once, STRETCH)), STRETCH)

        assert (once.mean, once.shift) == (MILD.mean, MILD.shift)
        assert (often.mean, often.shift) == (STRETCH.mean, pytest.approx(STRETCH.shift))

    def test_of_floating_point_numbers_has_no_mean_of_levels(self):
        field = Field("image", np.dtype(np.float32), (40, 40, 3), axes="HWC")

        bound = bound_behind(
            [gl.ops.Resize(32, 32), gl.ops.Posterize(4)], field, party="dali on cpu"
        )

        assert (bound.largest, bound.mean, bound.shift) == (0, inf, inf)
        few = np.zeros((40, 40, 3), np.float32)
        few[0, 0] = inf, -inf, 1
        assert difference(few, np.zeros_like(few), bound, "HWC") == ""

    def test_is_multiplied_by_the_scale_of_each_channel(self):
        bound = bound_behind(
            [gl.ops.Resize(32, 32), gl.ops.Normalize(0, (50, 25, 100))], party="dali on cpu"
        )

        assert bound.gains == pytest.approx((0.5, 1, 0.25))
        assert bound.shift == pytest.approx(HALVES.shift / 25)

    def test_of_images_that_a_gpu_decodes_is_of_the_mean(self):
        bound = bound_behind(
            [gl.ops.Decode(), gl.ops.CenterCrop(20), gl.ops.Normalize(127, 50)], FILES
        )

        assert bound.mean == pytest.approx(RECORD_MEAN / 50)
        assert bound_behind(
            [gl.ops.Decode(), gl.ops.RandomResizedCrop(8)], FILES
        ).mean == pytest.approx(RECORD_MEAN + 1)
        assert bound_behind([gl.ops.Decode()], FILES, "dali on cpu") == EXACT
        assert bound_behind([gl.ops.Decode(dtype="uint16")], FILES).mean == RECORD_MEAN * 257

    def test_goes_with_a_copy(self):
        graph = compile_ops(
            Spec((IMAGE,)), [gl.ops.Resize(32, 32), gl.ops.Copy("image", to=("a", "b"))]
        )

        bounds = bounds_of(graph, ("image", "a", "b"), lambda place: "dali on cpu")

        assert set(bounds.values()) == {HALVES._replace(share=1)}

    def test_of_an_op_made_of_ops_is_that_of_all_of_them(self):
        op = gl.ops.OneOf(
            [gl.ops.RandomFlip(p=1), gl.ops.Brightness(0.5, 1.5), gl.ops.Contrast(0.5, 1.5)]
        )

        assert (
            op.traits.bounds["gpu"].relative > gl.ops.Brightness(1, 2).traits.bounds["gpu"].relative
        )

    def test_may_be_stated_by_an_op_of_the_users(self):
        class Blurred(gl.ops.Op):
            traits = Traits(bounds={"gpu": Bound(2, 0.5, "a GPU sums in another order")})

            def field_after(self, field):
                return field

        assert bound_behind([Blurred()]).largest == 2
        assert bound_behind([Blurred()], party="dali on cpu") == EXACT


class TestADifference:
    def test_is_told_with_the_first_place_and_both_values(self):
        x = np.arange(6, dtype=np.uint8).reshape(2, 3)
        y = x.copy()
        y[1, 0] = 200
        y[1, 2] = 6

        text = difference(x, y, EXACT)

        assert (
            text
            == "2 of 6 values differ: the one at [1, 0] is 3, and should be 200; the largest difference is 197"
        )
        assert difference(x, x, EXACT) == ""

    @pytest.mark.parametrize(
        ("actual", "expected", "text"),
        [
            (
                np.zeros(2, np.uint8),
                np.zeros(3, np.uint8),
                "it is uint8 (2,), and should be uint8 (3,)",
            ),
            (
                np.zeros(2, np.uint8),
                np.zeros(2, np.int8),
                "it is uint8 (2,), and should be int8 (2,)",
            ),
            ("cat", "dog", "1 of 1 values differ: it is 'cat', and should be 'dog'"),
            (
                np.array(["a", "bc"]),
                np.array(["a", "bcd"]),
                "1 of 2 values differ: the one at [1] is 'bc'",
            ),
            (np.array(["2020"], "M8[Y]"), np.array(["2021"], "M8[Y]"), "1 of 1 values differ"),
            (np.array([(1, 2)], "u1,u2"), np.array([(1, 3)], "u1,u2"), "1 of 1 values differ"),
            (np.uint64(2**64 - 1), np.uint64(2**64 - 2), "it is 18446744073709551615"),
            (
                np.array([1.0, np.nan]),
                np.array([1.0, 2.0]),
                "the one at [1] is nan, and should be 2.0",
            ),
            (np.array([True]), np.array([False]), "the one at [0] is True"),
            (np.array([1 + 2j]), np.array([1 - 2j]), "1 of 1 values differ"),
        ],
    )
    def test_is_seen_in_values_of_every_kind(self, actual, expected, text):
        assert text in difference(actual, expected, EXACT)
        assert difference(expected, expected, EXACT) == ""

    def test_of_nothing_is_none(self):
        assert difference(np.zeros((0, 3)), np.zeros((0, 3)), EXACT) == ""
        assert difference(np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), EXACT) == ""

    def test_is_allowed_as_far_as_all_numbers_of_a_bound_go(self):
        y = np.full(100, 50, np.uint8)
        few, much = y.copy(), y.copy()
        few[:5] += 1
        much[0] += 2

        assert difference(few, y, Bound(1, 0.05, "")) == ""
        assert "at most 0.04 of the values may differ" in difference(few, y, Bound(1, 0.04, ""))
        assert "the largest difference is 2" in difference(much, y, Bound(1, 0.05, ""))
        assert difference(much, y, Bound(1, 0.05, "", beyond=0.01)) == ""
        assert "the mean difference is 0.05, and may be 0.01" in difference(
            few, y, Bound(255, 1, "", mean=0.01)
        )

    def test_of_a_channel_is_looked_at_by_itself_and_in_its_units(self):
        y = np.zeros((10, 10, 3), np.float32)
        bound = Bound(1, 1, "", shift=0.6, gains=(1.0, 0.5, 0.1))
        x = y.copy()
        x[..., 2] += 0.08

        text = difference(x, y, bound, "HWC")

        assert (
            "the mean difference of a channel, with its sign, is 0.8, and may be 0.6, in units of"
            in text
        )
        assert difference(x, y, bound) == ""
        assert "mean" in difference(np.stack([y, x]), np.stack([y, y]), bound, "NHWC")
        x[::2] *= -1
        assert difference(x, y, bound, "HWC") == ""

    def test_of_floating_point_numbers_is_a_part_of_the_largest(self):
        y = np.array([1000.0, 1.0], np.float32)

        assert difference(y + np.float32(0.01), y, Bound(0, 1, "", relative=1e-4)) == ""
        assert difference(y + np.float32(1), y, Bound(0, 1, "", relative=1e-4))

    def test_of_numbers_next_to_nothing_is_none(self):
        """A GPU makes 0 of subnormal numbers, and float16 is rounded otherwise there."""
        assert difference(np.zeros(1, np.float32), np.full(1, 1e-39, np.float32), EXACT) == ""
        assert difference(np.zeros(1, np.float16), np.full(1, 6e-8, np.float16), EXACT) == ""
        assert difference(np.zeros(1, np.float32), np.full(1, 1e-37, np.float32), EXACT)


def test_the_oracle_decodes_whole_images_and_makes_no_field_that_dali_alone_makes():
    ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(8), gl.ops.Dali("flip", on="label")]
    graph = compile_ops(
        Spec((FILES, Field("label", np.dtype(np.uint8), (4, 4, 3), axes="HWC"))), ops
    )

    oracle = Oracle(graph, ("image", "label"))

    assert oracle.names == ("image",)
    assert list(oracle.refusals) == ["label"]
    assert oracle.graph.crops == (None, None)
