"""Elastic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuload import core
from gpuload.errors import RowError, SpecError
from gpuload.ops import Elastic
from gpuload.ops.geometry.elastic import places
from gpuload.ops.geometry.warp import sample
from gpuload.testing.ops import OpContract, uniform, varying

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "augment" / "blur.npz"))


class TestElastic(OpContract):
    cases = (
        (Elastic(60, 6), varying(np.uint8, 3)),
        (Elastic(40, 1, interpolation="nearest", fill=(1, 2)), uniform(np.int64, 12, 19, 2)),
        (Elastic(300, 0.1, fill=0.5), uniform(np.float32, 12, 19, 1)),
        (Elastic(60, 1, fill=9), uniform(np.uint16, 12, 19, 5)),
    )
    neutral = (
        (Elastic(0, 1), uniform(np.uint8, 12, 19, 3)),
        (Elastic(0, 1, interpolation="nearest"), varying(np.uint8, 1)),
    )
    refused = (
        (Elastic(), uniform(np.uint8, 3, 32, 32)),
        (Elastic(), uniform(np.uint8, 20, 64, 3)),
        (Elastic(1, 1), uniform(np.int16, 20, 64, 3)),
    )


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_it_equals_torchvision(interpolation):
    image, expected = GOLDEN["images/noise"], GOLDEN[f"elastic/{interpolation}"]
    columns, rows = places(np, np.moveaxis(GOLDEN["displacement"], 2, 0))

    result = sample(
        np, image, columns, rows, {"bilinear": "linear"}.get(interpolation, interpolation), 7
    )

    difference = np.abs(result.astype(int) - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 1e-3


def test_the_core_equals_numpy(monkeypatch):
    if core.native is None:
        pytest.skip(core.problem)
    image = np.random.default_rng(0).integers(0, 256, (33, 40, 3), np.uint8)
    for interpolation in ("nearest", "linear"):
        op, key = Elastic(80, 2, interpolation=interpolation), np.array([1, 2, 3, 4], np.int32)
        result = np.empty_like(image)
        op.forms(uniform(np.uint8, 33, 40, 3)).row(image, {"key": key}, result)
        with monkeypatch.context() as patch:
            patch.setattr(core, "native", None)

            np.testing.assert_array_equal(result, op.array(np, image, {"key": key}))


def test_points_go_where_their_pixels_go():
    op, size = Elastic(60, 4), np.array([60, 80], np.int32)
    coordinates = np.indices((60, 80))[::-1].transpose(1, 2, 0).astype(np.float32) + np.float32(0.5)
    points = np.array([[43.0, 27.0], [20.3, 31.9], [60.6, 15.0]])
    for seed in range(6):
        draw = {"key": np.array([seed, 2, 3, 4], np.int32)}
        result = op.array(np, coordinates, draw)  # each pixel says where it was taken

        moved = op.traits.geometric.move_points(points, draw, size)

        columns, rows = (moved.T[:, None] - 0.5).astype(np.float32)
        np.testing.assert_allclose(
            sample(np, result, columns, rows, "linear", 0)[0], points, atol=0.02
        )
        assert np.abs(moved - points).max() > 0.3


def test_an_image_that_is_too_small_is_named():
    with pytest.raises(RowError) as caught:
        Elastic(9, 2).draw(np.zeros((2, 4)), np.array([[9, 9], [8, 9]], np.int32))

    assert caught.value.row == 1


@pytest.mark.parametrize(
    "arguments", [{"alpha": -1}, {"sigma": 0}, {"sigma": float("nan")}, {"interpolation": "cubic"}]
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match="Elastic"):
        Elastic(**arguments)
