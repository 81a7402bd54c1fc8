"""Files that become images in one call of the core: the same pixels, and the same errors, as by the
forms in Python."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import core
from gpuload.errors import RecordError, RowError
from gpuload.executors.array import ArrayRowExecutor, imagestage
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.images import head as heads
from gpuload.images import native
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from tests import forkserver, imagefiles
from tests.attack.corpus import corpus
from tests.attack.mutate import mutated
from tests.core.test_damage import lost
from tests.images.test_decode import JPEGS

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "images"
NUM_DAMAGED = 400
FILES = Field("image", np.dtype(np.uint8), (None,), encoded=True)
MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
CHAINS = {
    "training": [gl.ops.Decode(), gl.ops.RandomResizedCrop(24, 20), gl.ops.RandomFlip(), gl.ops.Normalize(MEAN, STD)],
    "validation": [
        gl.ops.Decode(), gl.ops.Resize(shorter=30), gl.ops.CenterCrop(24), gl.ops.Normalize(MEAN, STD),
        gl.ops.Transpose("CHW"),
    ],
    "resize": [gl.ops.Decode(), gl.ops.Resize(17, 23, interpolation="cubic")],
    "without antialias": [gl.ops.Decode(), gl.ops.RandomResizedCrop(9, antialias=False), gl.ops.RandomFlip()],
    "windows": [
        gl.ops.Decode(), gl.ops.Resize(30, 34), gl.ops.RandomCrop(26, 28, pad=3), gl.ops.RandomFlip(vertical=True),
        gl.ops.Normalize(MEAN, STD),
    ],
    "planes": [
        gl.ops.Decode(), gl.ops.RandomResizedCrop(11, 9), gl.ops.RandomFlip(vertical=True), gl.ops.Transpose("CHW"),
    ],
    "crop": [gl.ops.Decode(), gl.ops.RandomCrop(30, 40, pad=60, fill=7), gl.ops.RandomFlip(vertical=True)],
    "flip, then crop": [gl.ops.Decode(), gl.ops.RandomFlip(), gl.ops.CenterCrop(8), gl.ops.Transpose("CHW")],
    "float16": [gl.ops.Decode(), gl.ops.RandomResizedCrop(9), gl.ops.Normalize(MEAN, STD, dtype="float16")],
    "colours": [
        gl.ops.Decode(), gl.ops.RandomResizedCrop(24, 20), gl.ops.RandomFlip(), gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1),
        gl.ops.Sometimes(0.5, [gl.ops.GaussianBlur(5)]), gl.ops.Solarize(128, p=0.3), gl.ops.Normalize(MEAN, STD),
    ],
    "policy": [
        gl.ops.Decode(), gl.ops.Resize(shorter=30), gl.ops.CenterCrop(24), gl.ops.RandAugment(3),
        gl.ops.Normalize(MEAN, STD), gl.ops.Transpose("CHW"),
    ],
    "bytes": [
        gl.ops.Decode(), gl.ops.RandomResizedCrop(9), gl.ops.RandomFlip(), gl.ops.Equalize(), gl.ops.Sharpness(0, 2),
    ],
    "padded bytes": [
        gl.ops.Decode(), gl.ops.RandomCrop(30, 40, pad=60, fill=7), gl.ops.Posterize(3),
        gl.ops.RandomCrop(28, 28, pad=9, fill=200), gl.ops.Normalize(MEAN, STD),
    ],
    "resized bytes": [gl.ops.Decode(), gl.ops.Resize(17, 23), gl.ops.AutoContrast(), gl.ops.RandomFlip()],
    "two runs": [gl.ops.Decode(), gl.ops.Resize(17, 23), gl.ops.Hue(-0.1, 0.1), gl.ops.Rotate(30), gl.ops.Invert()],
    "sizes": [gl.ops.Decode(), gl.ops.Hue(-0.1, 0.1), gl.ops.Resize(17, 23), gl.ops.Grayscale(1)],
    "gray": [
        gl.ops.Decode("GRAY"), gl.ops.RandomResizedCrop(24, 20), gl.ops.RandomFlip(vertical=True),
        gl.ops.Normalize(120.0, 60.0),
    ],
    "gray planes": [
        gl.ops.Decode("GRAY"), gl.ops.RandAugment(2), gl.ops.Resize(shorter=30), gl.ops.RandomCrop(24, pad=9, fill=7),
        gl.ops.Transpose("CHW"),
    ],
    "alpha": [gl.ops.Decode("RGBA"), gl.ops.RandomFlip(), gl.ops.RandomResizedCrop(11, 9), gl.ops.Pad(20, 20)],
    "policy first": [
        gl.ops.Decode(), gl.ops.RandAugment(3), gl.ops.RandomResizedCrop(24, 20), gl.ops.RandomFlip(),
        gl.ops.Normalize(MEAN, STD),
    ],
    "colours first": [
        gl.ops.Decode(), gl.ops.ColorJitter(0.4, 0.4, 0.4, 0.1), gl.ops.GaussianBlur(5), gl.ops.Equalize(p=0.5),
        gl.ops.Resize(shorter=30), gl.ops.CenterCrop(24),
    ],
    "flip, then box": [
        gl.ops.Decode(), gl.ops.RandomFlip(vertical=True), gl.ops.RandomResizedCrop(24, 20),
        gl.ops.Normalize(MEAN, STD),
    ],
    "flip, then size": [gl.ops.Decode(), gl.ops.RandomFlip(), gl.ops.Resize(shorter=20), gl.ops.RandomCrop(16, pad=3)],
    "padded box": [
        gl.ops.Decode(), gl.ops.Pad(margin=40, fill=9), gl.ops.RandomFlip(), gl.ops.RandomResizedCrop(12),
        gl.ops.RandomCrop(12, pad=3), gl.ops.Pad(20, 20), gl.ops.RandomCrop(16, 18), gl.ops.Transpose("CHW"),
    ],
    "padded colours": [
        gl.ops.Decode(), gl.ops.Pad(margin=5, fill=(1, 20, 255)), gl.ops.RandomFlip(vertical=True),
        gl.ops.RandomCrop(40, 50, pad=60, fill=(9, 8, 7)), gl.ops.Normalize(MEAN, STD),
    ],
    "colours last": [gl.ops.Decode(), gl.ops.Resize(9, 12), gl.ops.Pad(20, 21, fill=(1, 20, 255))],
    "nearest": [
        gl.ops.Decode(), gl.ops.RandomFlip(), gl.ops.Resize(shorter=21, interpolation="nearest"),
        gl.ops.RandomResizedCrop(31, 17, interpolation="nearest"), gl.ops.Normalize(MEAN, STD),
    ],
    "resized three times": [
        gl.ops.Decode(), gl.ops.Resize(shorter=40), gl.ops.RandomFlip(), gl.ops.Resize(37, 50, interpolation="nearest"),
        gl.ops.Hue(-0.1, 0.1), gl.ops.RandomResizedCrop(9, interpolation="lanczos"),
    ],
    "everything": [
        gl.ops.Decode(), gl.ops.Sharpness(0, 2), gl.ops.RandomResize(30, 60), gl.ops.Solarize(99), gl.ops.RandomFlip(),
        gl.ops.RandomCrop(30, 34, pad=4), gl.ops.AutoContrast(), gl.ops.Resize(20, 30),
        gl.ops.RandomFlip(vertical=True), gl.ops.Equalize(), gl.ops.Normalize(MEAN, STD), gl.ops.Transpose("CHW"),
    ],
    "any size": [gl.ops.Decode(), gl.ops.RandomFlip(), gl.ops.Posterize(4), gl.ops.RandomResize(20, 40)],
    "any size in floats": [gl.ops.Decode("GRAY"), gl.ops.RandomFlip(), gl.ops.Normalize(9.0, 3.0)],
    "any size in planes": [gl.ops.Decode("GRAY"), gl.ops.Posterize(4), gl.ops.Transpose("CHW")],
    "any size in planes of floats": [
        gl.ops.Decode(), gl.ops.RandomFlip(), gl.ops.Resize(shorter=20), gl.ops.Normalize(MEAN, STD),
        gl.ops.Transpose("CHW"),
    ],
    "python": [gl.ops.Decode(), gl.ops.RandomResizedCrop(9), gl.ops.Python(lambda x: 255 - x), gl.ops.RandomFlip()],
    "alone": [gl.ops.Decode()],
}  # fmt: skip
JOINED = {  # what one call makes of each chain
    "training": "Decode RandomResizedCrop RandomFlip Normalize",
    "validation": "Decode Resize CenterCrop Normalize Transpose",
    "resize": "Decode Resize",
    "without antialias": "Decode RandomResizedCrop RandomFlip",
    "windows": "Decode Resize RandomCrop RandomFlip Normalize",
    "planes": "Decode RandomResizedCrop RandomFlip Transpose",
    "crop": "Decode RandomCrop RandomFlip",
    "flip, then crop": "Decode RandomFlip CenterCrop Transpose",
    "float16": "Decode RandomResizedCrop, walk of Normalize",
    "colours": "Decode RandomResizedCrop RandomFlip ColorJitter Sometimes Solarize Normalize",
    "policy": "Decode Resize CenterCrop RandAugment Normalize Transpose",
    "bytes": "Decode RandomResizedCrop RandomFlip Equalize Sharpness",
    "padded bytes": "Decode RandomCrop Posterize RandomCrop Normalize",
    "resized bytes": "Decode Resize AutoContrast RandomFlip",
    "two runs": "Decode Resize Hue, kernel of Rotate, edit of Invert",
    "sizes": "Decode Hue Resize, kernel of Grayscale",
    "gray": "Decode RandomResizedCrop RandomFlip Normalize",
    "gray planes": "Decode RandAugment Resize RandomCrop Transpose",
    "alpha": "Decode RandomFlip RandomResizedCrop Pad",
    "policy first": "Decode RandAugment RandomResizedCrop RandomFlip Normalize",
    "colours first": "Decode ColorJitter GaussianBlur Equalize Resize CenterCrop",
    "flip, then box": "Decode RandomFlip RandomResizedCrop Normalize",
    "flip, then size": "Decode RandomFlip Resize RandomCrop",
    "padded box": "Decode Pad RandomFlip RandomResizedCrop RandomCrop Pad RandomCrop Transpose",
    "padded colours": "Decode Pad RandomFlip RandomCrop Normalize",
    "colours last": "Decode Resize Pad",
    "nearest": "Decode RandomFlip Resize RandomResizedCrop Normalize",
    "resized three times": "Decode Resize RandomFlip Resize Hue RandomResizedCrop",
    "everything": "Decode Sharpness RandomResize Solarize RandomFlip RandomCrop AutoContrast Resize RandomFlip "
    "Equalize Normalize Transpose",
    "any size": "Decode RandomFlip Posterize RandomResize",
    "any size in floats": "Decode RandomFlip Normalize",
    "any size in planes": "Decode Posterize Transpose",
    "any size in planes of floats": "Decode RandomFlip Resize Normalize Transpose",
    "python": "Decode RandomResizedCrop, array of Python, walk of RandomFlip",
    "alone": "Decode",
}

if native.codec() is None:
    pytest.skip(native.how(), allow_module_level=True)


def array(data):
    return np.frombuffer(data, np.uint8)


def readable(files):
    """Return the files whose heads are sound."""
    sound = []
    for data in files:
        try:
            heads.read(data)
        except heads.HeadError:
            continue
        sound.append(array(data))
    return sound


def smallest_side(data):
    head = heads.read(data)
    return min(head.height, head.width)


def batch(files, chain, seed=3):
    """Return a graph of a chain, the files as a batch, and the draws."""
    graph, values = compile_ops(Spec((FILES,)), chain), Ragged.of(files, np.dtype(np.uint8))
    sizes = {"image": image_sizes(FILES, values, len(files))}
    return graph, values, graph.draw(seed=seed, epoch=0, records=np.arange(len(files)), sizes=sizes)


def outcome(executor, values, draws, row):
    """Return the image of a row, or what is said about it."""
    rows = slice(row, row + 1)
    try:
        return executor.run(
            {"image": values[rows]},
            [{key: numbers[rows] for key, numbers in draw.items()} for draw in draws],
            {},
        )
    except RowError as error:
        return error.row, str(error)


def by_python(monkeypatch):
    monkeypatch.setattr(native, "codec", lambda: None)


def array_forms(graph, values, draws, row):
    """Return what the ops mean: the image of a row after their array forms, or what is said about
    it."""
    image = values[row]
    try:
        for place, draw in enumerate(draws):
            image = graph.op_on(place, "image").array(
                np, image, {name: column[row] for name, column in draw.items()}
            )
    except RowError as error:
        return error.row, str(error)
    return {"image": image[None]}


def assert_same(executor, values, draws, monkeypatch):
    """Assert that the core makes of each file what the ops mean; return how many are no images."""
    rows = range(len(values))
    by_core = [outcome(executor, values, draws, row) for row in rows]
    reference = [array_forms(executor.graph, values, draws, row) for row in rows]
    for result, other in zip(by_core, reference, strict=True):
        if isinstance(result, tuple) or isinstance(other, tuple):
            assert result == other
            continue
        assert result["image"][0].dtype == other["image"][0].dtype
        np.testing.assert_array_equal(result["image"], other["image"])
    return sum(isinstance(result, tuple) for result in by_core)


@pytest.fixture
def singles(monkeypatch):
    """Return a list that takes the bytes of each file that goes the way of the forms in Python."""
    files, single = [], imagestage.ImageStage._single
    monkeypatch.setattr(
        imagestage.ImageStage,
        "_single",
        lambda stage, file, draws: files.append(bytes(file)) or single(stage, file, draws),
    )
    return files


@pytest.mark.parametrize("name", [name for name in CHAINS if JOINED[name]])
def test_ops_from_files_to_images_of_one_size_are_one_call(name):
    graph = compile_ops(Spec((FILES,)), CHAINS[name])

    assert ArrayRowExecutor(graph).describe()["stages"] == f"image: image of {JOINED[name]}"


@pytest.mark.parametrize(
    "chain",
    [
        [gl.ops.Decode(dtype="uint16"), gl.ops.CenterCrop(9)],
        [gl.ops.Decode(), gl.ops.Python(lambda x: 255 - x), gl.ops.Resize(9, 9)],
    ],
)
def test_what_the_core_does_not_make_goes_op_by_op(chain):
    assert (
        ": array of Decode"
        in ArrayRowExecutor(compile_ops(Spec((FILES,)), chain)).describe()["stages"]
    )


def test_images_of_sizes_of_their_own_are_decoded_some_in_one_call(monkeypatch):
    graph, values, draws = batch(
        [array(imagefiles.jpeg(40 + n, 50)) for n in range(11)], [gl.ops.Decode()]
    )
    executor, runs, run = ArrayRowExecutor(graph), [], imagestage.ImageStage.run
    monkeypatch.setattr(
        imagestage.ImageStage,
        "run",
        lambda stage, x, *arguments: runs.append(len(x)) or run(stage, x, *arguments),
    )

    images = executor.run({"image": values}, draws, {})["image"]

    assert executor.describe()["stages"] == "image: image of Decode"
    assert runs == [8, 3]
    assert [image.shape for image in images] == [(40 + n, 50, 3) for n in range(11)]
    assert all(
        image.base is None for image in images
    )  # to hold one of them does not hold the others


BOTH = ("image", "mask")
MASK = Field("mask", np.dtype(np.uint8), (None,), encoded=True)


@pytest.mark.parametrize(
    ("ops", "names"),
    [
        (
            [gl.ops.RandomResizedCrop(24, 20, on=BOTH, interpolation={"mask": "nearest"}), gl.ops.RandomFlip(on=BOTH)],
            "RandomResizedCrop RandomFlip",
        ),
        (
            [
                gl.ops.RandomFlip(on=BOTH), gl.ops.Resize(shorter=40, on=BOTH, interpolation={"mask": "nearest"}),
                gl.ops.RandomCrop(30, 34, on=BOTH, pad=5, fill={"mask": 255}),
            ],
            "RandomFlip Resize RandomCrop",
        ),
    ],
)  # fmt: skip
def test_image_and_mask_go_the_same_way_each_in_one_visit(ops, names):
    sizes = [(40 + 7 * row, 90 - 9 * row) for row in range(5)]
    photos = [array(imagefiles.jpeg(*size)) for size in sizes]
    masks = [array(imagefiles.png(*size, imagefiles.GRAY)) for size in sizes]
    chain = [
        gl.ops.Decode(on="image"), gl.ops.Decode("LABELS", on="mask"), *ops, gl.ops.Normalize(MEAN, STD, on="image"),
    ]  # fmt: skip
    graph = compile_ops(Spec((FILES, MASK)), chain)
    fields = {
        "image": Ragged.of(photos, np.dtype(np.uint8)),
        "mask": Ragged.of(masks, np.dtype(np.uint8)),
    }
    before = {
        name: image_sizes(graph.spec_in[name], values, len(sizes))
        for name, values in fields.items()
    }
    draws = graph.draw(seed=5, epoch=0, records=np.arange(len(sizes)), sizes=before)
    executor = ArrayRowExecutor(graph)

    results = executor.run(fields, draws, {})

    stages_of_both = f"image: image of Decode {names} Normalize; mask: image of Decode {names}"
    assert executor.describe()["stages"] == stages_of_both
    for name, values in fields.items():
        for row in range(len(sizes)):
            expected = values[row]
            for place, draw in enumerate(draws):
                if name in graph.targets[place]:
                    row_draw = {key: column[row] for key, column in draw.items()}
                    expected = graph.op_on(place, name).array(np, expected, row_draw)
            np.testing.assert_array_equal(results[name][row], expected)


def test_images_of_sizes_of_their_own_are_decoded_into_memory_that_the_caller_gives():
    graph, values, draws = batch(
        [array(imagefiles.jpeg(40 + n, 50)) for n in range(11)], [gl.ops.Decode()]
    )
    executor, pieces = ArrayRowExecutor(graph), []

    def memory(shape, dtype):
        pieces.append(np.zeros(shape, dtype))
        return pieces[-1]

    images = executor.run({"image": values}, draws, {}, memory=memory)["image"]

    assert [image.ctypes.data for image in images] == [piece.ctypes.data for piece in pieces]
    for image, right in zip(
        images, executor.run({"image": values}, draws, {})["image"], strict=True
    ):
        np.testing.assert_array_equal(image, right)


def test_views_of_images_that_the_core_decodes_are_those_of_python(monkeypatch):
    files = readable([*JPEGS.values(), imagefiles.png(40, 50)])
    views = [
        gl.ops.Decode(), gl.ops.Copy("image", to=("large", "small")),
        gl.ops.RandomResizedCrop(20, on="large"), gl.ops.RandomResizedCrop(9, on="small"),
        gl.ops.GaussianBlur(5, on="large"), gl.ops.Normalize(MEAN, STD, on="small"),
    ]  # fmt: skip
    graph, values, draws = batch(files, views)

    by_core = ArrayRowExecutor(graph).run({"image": values}, draws, {})

    by_python(monkeypatch)
    reference = ArrayRowExecutor(graph).run({"image": values}, draws, {})
    for name in ("large", "small"):
        np.testing.assert_array_equal(by_core[name], reference[name])


@pytest.mark.parametrize(
    "names", [("large", "small"), ("plain", "large"), ("image", "large"), ("plain", "turned")]
)
def test_memory_of_images_that_become_views_is_used_again_and_no_result_lies_in_it(
    names, monkeypatch
):
    files = readable([*JPEGS.values(), imagefiles.png(40, 50)] * 3)
    views = [
        gl.ops.Decode(), gl.ops.Copy("image", to=("large", "small", "plain", "turned")),
        gl.ops.RandomResizedCrop(20, on="large"), gl.ops.RandomResizedCrop(9, on="small"),
        gl.ops.RandomFlip(p=1.0, on="turned"),
    ]  # fmt: skip
    graph, values, draws = batch(files, views)
    executor, fields = ArrayRowExecutor(graph), {"image": values}

    results = executor.run(fields, draws, {}, names)
    again = executor.run(fields, batch(files, views, seed=4)[2], {}, names)

    by_python(monkeypatch)
    reference = executor.run(fields, draws, {})
    assert len(files) > 32  # more than are in memory at a time
    assert results.keys() == again.keys() == set(names)
    for name in names:
        assert all(
            np.array_equal(*pair) for pair in zip(results[name], reference[name], strict=True)
        ), name


def test_it_is_said_whether_the_core_decodes():
    turned = [gl.ops.Decode(), gl.ops.RandomFlip()]
    chains = [
        CHAINS["training"], CHAINS["alone"], turned, [gl.ops.Decode(mode="GRAY"), gl.ops.Resize(9, 9)],
        [gl.ops.Decode(), gl.ops.Python(lambda x: x)], [gl.ops.Decode("LABELS"), gl.ops.CenterCrop(9)],
    ]  # fmt: skip

    *by_core, python, labels = (
        ArrayRowExecutor(compile_ops(Spec((FILES,)), chain)).describe()["codec"] for chain in chains
    )

    assert [text.endswith(", called by the core") for text in by_core] == [True] * 4
    assert "called by Python: the core decodes to 8 bits, RGB, GRAY or RGBA" in python
    assert "called by Python: the core decodes to 8 bits, RGB, GRAY or RGBA" in labels


@pytest.mark.parametrize("name", CHAINS)
def test_real_files_of_all_formats_become_the_same_images(name, monkeypatch):
    files = [
        data for path in sorted(GOLDEN.rglob("*")) if path.is_file() and (data := path.read_bytes())
    ]
    files = [
        data for data in readable([*files, *JPEGS.values(), *corpus()]) if smallest_side(data) >= 8
    ]
    graph, values, draws = batch(files, CHAINS[name])

    assert_same(ArrayRowExecutor(graph), values, draws, monkeypatch)


@pytest.mark.parametrize("seed", range(4))
def test_regions_of_every_kind_of_jpeg_are_the_same(seed, monkeypatch):
    files = readable([data for data in JPEGS.values() for _ in range(6)])
    graph, values, draws = batch(files, CHAINS["training"], seed)

    assert assert_same(ArrayRowExecutor(graph), values, draws, monkeypatch) == 0


def test_no_plain_jpeg_goes_through_python(singles):
    files = readable(
        [data for name, data in JPEGS.items() if "CMYK" not in name and "YCCK" not in name]
    )
    graph, values, draws = batch(files, CHAINS["training"])

    ArrayRowExecutor(graph).run({"image": values}, draws, {})

    assert len(files) > 5
    assert {heads.read(data).kind for data in singles} <= {"jpeg"}
    assert {heads.read(data).channels for data in singles} <= {4}


def damaged():
    """Return files whose heads are sound and whose data are not, or may not be."""
    rng, files = np.random.default_rng(11), []
    plain = [
        data
        for data in (*JPEGS.values(), imagefiles.jpeg(90, 120, restart_marker_blocks=4))
        if len(data) < 40_000
    ]
    while len(files) < NUM_DAMAGED:
        data = plain[int(rng.integers(len(plain)))]
        begin = data.find(b"\xff\xda") + 14
        cut = int(rng.integers(begin, len(data)))
        changed = [
            data[:cut] + b"\xff\xd9",
            data[:begin] + mutated(data[begin:-2], rng, most=3) + data[-2:],
        ]
        files += readable([*changed, *lost(data, rng)][: 2 + 60 * (len(files) == 0)])
    return files


@pytest.mark.parametrize("ops", [[gl.ops.RandomResizedCrop(9, scale=(0.5, 1))], []])
def test_hundreds_of_damaged_files_become_the_same_images_or_the_same_errors(ops, monkeypatch):
    graph, values, draws = batch(damaged(), [gl.ops.Decode(), *ops])

    num_errors = assert_same(ArrayRowExecutor(graph), values, draws, monkeypatch)

    assert 50 < num_errors < len(values) - 50


def test_files_that_the_core_declines_stand_between_those_that_it_makes(singles, monkeypatch):
    jpeg, png, ink = (
        imagefiles.jpeg(40, 50),
        imagefiles.png(40, 50),
        imagefiles.jpeg(40, 50, "CMYK"),
    )
    files = [array(data) for data in (jpeg, png, jpeg, ink, jpeg, png)]
    graph, values, draws = batch(files, CHAINS["training"])
    out = np.empty((6, 24, 20, 3), np.float32)

    rows = ArrayRowExecutor(graph).run({"image": values}, draws, {"image": out})["image"]

    assert rows is out
    assert singles == [png, ink, png]
    by_python(monkeypatch)
    np.testing.assert_array_equal(
        rows, ArrayRowExecutor(graph).run({"image": values}, draws, {})["image"]
    )


def test_a_list_of_files_is_a_batch_too():
    files = [array(imagefiles.jpeg(40, 50))] * 3
    graph, values, draws = batch(files, CHAINS["training"])
    executor = ArrayRowExecutor(graph)

    images = [executor.run({"image": column}, draws, {})["image"] for column in (files, values)]

    np.testing.assert_array_equal(*images)


def test_draws_without_heads_do():
    graph, values, draws = batch(
        [array(imagefiles.jpeg(40, 50)), array(imagefiles.png(40, 50))], CHAINS["training"]
    )
    plain = [{key: values for key, values in draw.items() if key != "heads"} for draw in draws]
    executor = ArrayRowExecutor(graph)

    assert "heads" in draws[0]
    np.testing.assert_array_equal(
        *(executor.run({"image": values}, some, {})["image"] for some in (draws, plain))
    )


def test_files_whose_heads_were_not_read_to_draw_are_within_the_limits_too():
    files, resize = (
        [array(imagefiles.jpeg(8, 8)), array(imagefiles.jpeg(40, 50))],
        gl.ops.Resize(9, 9),
    )
    _, values, (_, drawn) = batch(files, [gl.ops.Decode(), resize])
    small = compile_ops(Spec((FILES,)), [gl.ops.Decode(max_pixels=1999), resize])

    with pytest.raises(RowError, match="2000 pixels; at most 1999 are decoded") as caught:
        ArrayRowExecutor(small).run({"image": values}, [{}, drawn], {})

    assert caught.value.row == 1


def test_a_part_of_a_batch_is_the_batch_cut():
    graph, values, draws = batch(
        [array(imagefiles.jpeg(30 + row, 50)) for row in range(9)], CHAINS["validation"]
    )
    executor, rows = ArrayRowExecutor(graph), slice(4, 8)

    whole = executor.run({"image": values}, draws, {})["image"]
    part = executor.run(
        {"image": values[rows]},
        [{key: numbers[rows] for key, numbers in draw.items()} for draw in draws],
        {},
    )

    np.testing.assert_array_equal(part["image"], whole[rows])


@pytest.mark.parametrize("ops", [[gl.ops.Resize(9, 9)], []])
def test_a_damaged_file_is_an_error_of_its_row(ops):
    short = JPEGS["4:2:0"]
    short = array(short[: len(short) // 2] + b"\xff\xd9")
    files = [array(imagefiles.jpeg(40, 50)), array(imagefiles.png(40, 50)), short, short]
    graph, values, draws = batch(files, [gl.ops.Decode(), *ops])

    with pytest.raises(RowError, match="most likely because the data of its scan ends") as caught:
        ArrayRowExecutor(graph).run({"image": values}, draws, {})

    assert caught.value.row == 2


@pytest.mark.parametrize("ops", [[gl.ops.Resize(9, 9)], []])
def test_heads_of_other_files_make_no_pixels(ops):
    small, large = array(imagefiles.jpeg(8, 8)), array(imagefiles.jpeg(80, 90))
    graph, _, draws = batch([large, large], [gl.ops.Decode(), *ops])

    with pytest.raises(RowError):
        ArrayRowExecutor(graph).run(
            {"image": Ragged.of([large, small], np.dtype(np.uint8))}, draws, {}
        )


def test_arrays_that_do_not_fit_the_files_are_refused_or_nothing_is_written_to_them():
    file = array(imagefiles.jpeg(8, 9))
    begins, ends, none = np.array([0]), np.array([len(file)]), np.empty((0, 4), np.int32)
    head, declined = heads.read_heads(Ragged.of([file], np.dtype(np.uint8))), np.zeros(1, np.int8)

    def decode(
        images, begins=begins, ends=ends, head=head, declined=declined, regions=none, visit=(1, 3)
    ):
        files = core.native.JpegFiles(file, begins, ends, head, regions)
        core.native.Visit(*visit).decode_rows(native.codec(), files, images, declined)
        return declined[0]

    image = np.empty((8, 9, 3), np.uint8)
    assert decode([image]) == 0
    assert decode([np.empty((8, 9, 1), np.uint8)], visit=(1, 1)) == 0
    for other in (image[:7].copy(), np.empty((9, 9, 3), np.uint8), np.empty((0, 0, 3), np.uint8)):
        other[...] = 7
        assert decode([other]) == 1
        assert (other == 7).all()
    assert decode([np.empty((8, 9, 2), np.uint8)], visit=(1, 2)) == 1
    assert decode([image], head=head * 0) == 1
    assert decode([image], head=-head) == 1
    assert decode([image], regions=np.array([[0, 0, 9, 9]], np.int32)) == 1
    for images in (
        [], [image, image], [image[0]], [image.astype(np.int8)], [image[:, ::2]], [None], [image[..., :2].copy()],
        [image.astype(np.float32)],
    ):  # fmt: skip
        with pytest.raises(ValueError, match="make_rows"):
            decode(images)
    for wrong in (
        {"ends": ends + 1},
        {"begins": begins - 1},
        {"head": head[:, :5].copy()},
        {"head": np.repeat(head, 2, 0)},
        {"visit": (2, 3)},
        {"visit": (1, 4)},
        {"visit": (-1, 3)},
        {"visit": (1, 0)},
        {"regions": np.zeros((2, 4), np.int32)},
    ):
        with pytest.raises((ValueError, IndexError)):
            decode([image], **wrong)
    with pytest.raises(ValueError, match="make_rows"):
        decode([image], declined=np.zeros(2, np.int8))


def test_many_threads_decode_at_a_time():
    files = readable([*JPEGS.values(), imagefiles.png(40, 50)] * 3)
    graph, values, draws = batch(files, CHAINS["training"])
    executor = ArrayRowExecutor(graph)
    reference = executor.run({"image": values}, draws, {})["image"]

    def work():
        for _ in range(3):
            results.append(executor.run({"image": values}, draws, {})["image"])

    workers, results = [threading.Thread(target=work) for _ in range(8)], []
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert len(results) == 24
    for images in results:
        np.testing.assert_array_equal(images, reference)


PROGRAM = """
import os, sys
import numpy as np
import gpuload as gl
from gpuload import core
from gpuload.images import native

ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(24), gl.ops.RandomFlip(), gl.ops.Normalize(120.0, 60.0)]

def total():
    with gl.Loader(gl.images(sys.argv[1], labels=None), batch_size=5, seed=3, ops=ops, device="cpu") as loader:
        return [np.asarray(batch["image"]).tobytes() for batch in loader]
"""


@pytest.fixture
def folder(tmp_path):
    for number in range(12):
        data = (
            imagefiles.png(40, 50 + number) if number % 5 == 2 else imagefiles.jpeg(40 + number, 60)
        )
        (tmp_path / f"{number:02}").with_suffix(".png" if number % 5 == 2 else ".jpg").write_bytes(
            data
        )
    return tmp_path


def run(program, folder, **settings):
    if not settings and core.SWITCH not in os.environ:
        result = forkserver.run(PROGRAM + program, folder)
    else:
        command = [sys.executable, "-c", PROGRAM + program, str(folder)]
        environment = {
            name: value for name, value in os.environ.items() if name != core.SWITCH
        } | settings
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
            timeout=100,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_without_the_core_a_loader_delivers_the_same(folder):
    program = "import hashlib; print(native.codec() is None, hashlib.sha256(b''.join(total())).hexdigest())"

    (_, by_core), (is_off, by_numpy) = run(program, folder), run(program, folder, GPULOAD_CORE="0")

    assert (is_off, by_core) == ("True", by_numpy)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_of_fork_has_a_codec_of_its_own(folder):
    program = """
parent = total()
mine = native.codec()
child = os.fork()
same = total() == parent and (child != 0) == (native.codec() is mine)
if not child:
    sys.exit(0 if same else 1)  # the usual end of a process, with all that is cleaned up there
print(same, os.waitpid(child, 0)[1])
"""

    assert run(program, folder) == ["True", "0"]


def test_a_process_ends_in_the_middle_of_an_epoch(folder):
    program = """
loader = gl.Loader(gl.images(sys.argv[1], labels=None), batch_size=2, ops=ops, device="cpu", num_threads=4)
batches = iter(loader)
print(next(batches)["image"].shape[0])
"""

    assert run(program, folder) == ["2"]


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_damaged_files_are_replaced_or_skipped(folder, on_error, monkeypatch):
    data = JPEGS["4:2:0"]
    (folder / "04.jpg").write_bytes(data[: len(data) // 2] + b"\xff\xd9")
    chain = [gl.ops.Decode(), gl.ops.Resize(20, 20), gl.ops.Normalize(MEAN, STD)]

    def batches(**changes):
        settings = {
            "batch_size": 4,
            "seed": 3,
            "ops": chain,
            "device": "cpu",
            "executor": "array",
            **changes,
        }
        with gl.images(folder, labels=None) as source, gl.Loader(source, **settings) as loader:
            return [
                (batch.records.tolist(), batch.valid.tolist(), np.array(batch["image"]))
                for batch in loader
            ]

    by_core = batches(on_error=on_error, max_bad=0.5)
    with pytest.raises(RecordError, match=r"04\.jpg"):
        batches()
    by_python(monkeypatch)
    reference = batches(on_error=on_error, max_bad=0.5)

    assert [batch[:2] for batch in by_core] == [batch[:2] for batch in reference]
    for batch, other in zip(by_core, reference, strict=True):
        np.testing.assert_array_equal(batch[2], other[2])
