"""A mask beside an image that an op moves, and that stays where it is, is told."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.ops.advice import advice
from gpuload.ops.graph import compile_ops
from gpuload.spec import Field, Spec

IMAGES = np.zeros((4, 8, 9, 3), np.uint8)
MASKS = {"with channels": IMAGES[..., :1], "without": IMAGES[..., 0], "wide": IMAGES.astype(np.int64)[..., 0]}
MOVES = [ops.RandomFlip(), ops.RandomCrop(4), ops.CenterCrop(4), ops.Pad(20), ops.Resize(4, 4),
         ops.RandomResizedCrop(4)]  # fmt: skip


def warning(graph, names):
    return next(advice(graph, names), None)


def warnings_of(caplog, chain, mask=MASKS["with channels"], **arguments):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="gpuload"):
        gl.Loader(gl.arrays(image=IMAGES, mask=mask, x=np.zeros((4, 9))), 2, ops=chain, device="cpu", **arguments)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("op", MOVES, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("mask", MASKS.values(), ids=list(MASKS))
def test_a_mask_that_stays_is_told_once_with_the_way_to_move_it(caplog, op, mask):
    (line,) = warnings_of(caplog, [ops.Brightness(0.5, 1), op, ops.RandomFlip()], mask)

    assert type(op).__name__ in line
    assert "on=('image', 'mask')" in line
    assert "on='image'" in line


@pytest.mark.parametrize(
    "chain",
    [
        [ops.RandomFlip(on="image")],
        [ops.RandomFlip(on=("image", "mask"))],
        [ops.RandomFlip(), ops.RandomFlip(on="mask")],
        [ops.Brightness(0.5, 1), ops.Normalize(1, 2)],
        [],
    ],
)
def test_nothing_is_told_where_the_user_said_what_is_meant_or_nothing_moves(caplog, chain):
    assert warnings_of(caplog, chain) == []


def test_nothing_is_told_of_what_is_no_mask_of_the_image(caplog):
    assert warnings_of(caplog, [ops.RandomFlip()], np.zeros((4, 9, 8, 1), np.uint8)) == []
    assert warnings_of(caplog, [ops.RandomFlip()], np.zeros((4, 8), np.uint8)) == []
    assert warnings_of(caplog, [ops.RandomFlip()], output="image") == []


@pytest.mark.parametrize("shape", [(None, None), (None, None, 1)])
def test_images_of_different_sizes_have_masks_too(shape):
    fields = Field("image", np.dtype("u1"), (None, None, 3)), Field("mask", np.dtype("u1"), shape)
    texts = Field("text", np.dtype("u1"), (None,))

    graph = compile_ops(Spec((*fields, texts)), [ops.RandomFlip()])

    assert "beside it" in (warning(graph, ["image", "mask", "text"]) or "")
    assert warning(graph, ["image", "text"]) is None
