"""Recipes: what they print makes them again, they run, and evaluation is what torchvision and timm
make of images."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError
from tests import simdevice

GOLDEN = Path(__file__).parent / "golden" / "augment" / "recipes.npz"
IMAGES = np.random.default_rng(1).integers(0, 256, (8, 40, 48, 3), np.uint8)
NAMES = tuple(name for name in gl.recipes.__all__ if name != "Ops")
SMALL = {  # arguments that make small images of a recipe
    "cifar10": {"policy": True, "cutout": 16},
    "dino": {"size": 32, "local_size": 16, "num_local": 2},
    "resnet50": {
        "size": 32, "mixup": 0.2, "smoothing": 0.1, "num_classes": 10, "erasing": 0.5, "policy": gl.ops.RandAugment(),
    },
    "segmentation": {"size": 32, "base": 36},
}  # fmt: skip
OUTPUTS = {
    "dino": ("global_0", "global_1", "local_0", "local_1"),
    "simclr": ("view_0", "view_1"),
    "segmentation": ("image", "mask"),
}


def small(name, **arguments):
    """Return a recipe of small images, of a source that has pixels."""
    return getattr(gl.recipes, name)(
        **{"images": "HWC", **SMALL.get(name, {"size": 32}), **arguments}
    )


def calls():
    """Give recipes and arguments of them."""
    for name in NAMES:
        yield name, {}
        yield name, {"train": False}
        yield name, {"layout": "NCHW", "dtype": "float16", "images": "CHW", "image": "photo"}
        yield name, SMALL.get(name, {"size": 32})
    for name in ("resnet50", "resnet50_v2", "resnet50_a1", "resnet50_a2", "deit"):
        yield name, {"repeats": 3, "num_classes": 7, "label": "class", "dtype": "bfloat16"}
    yield "resnet50", {"cutmix": 1.0, "num_classes": 10}
    yield "dino", {"num_local": 0, "scale": (0.14, 1)}
    yield "simclr", {"size": 32, "strength": 0.5, "blur": 0}
    yield "mae", {"antialias": "pil"}


@pytest.mark.parametrize(("name", "arguments"), list(calls()))
def test_what_a_recipe_prints_makes_the_same_ops(name, arguments):
    ops = getattr(gl.recipes, name)(**arguments)

    text = str(ops)

    assert tuple(eval(text, {"gl": gl})) == tuple(ops)
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("[", "]")
    assert max(map(len, lines)) <= 120


def test_a_recipe_prints_each_op_on_a_line_with_what_is_not_usual():
    assert str(gl.recipes.resnet50(images="HWC", layout="NCHW", mixup=0.2, num_classes=10)) == (
        "[\n"
        "    gl.ops.RandomResizedCrop(224),\n"
        "    gl.ops.RandomFlip(),\n"
        "    gl.ops.Normalize((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),\n"
        "    gl.ops.Transpose('CHW'),\n"
        "    gl.ops.OneHot(10, on='label'),\n"
        "    gl.ops.MixUp(alpha=0.2),\n"
        "]"
    )


def test_views_are_printed_as_one_list_where_they_are_alike():
    text = str(gl.recipes.dino())

    assert text.count("gl.ops.RandomResizedCrop(96") == 1
    assert (
        "], on=('local_0', 'local_1', 'local_2', 'local_3', 'local_4', 'local_5', 'local_6', 'local_7')),\n]"
        in text
    )


def test_a_list_in_an_op_that_is_longer_than_a_line_has_lines_of_its_own():
    text = str(gl.recipes.ssd())

    assert (
        "    gl.ops.OneOf([\n        [\n            gl.ops.Sometimes(0.5, [gl.ops.Contrast(0.5, 1.5)]),\n"
        in text
    )


def test_a_recipe_is_a_tuple_of_ops_that_can_be_pickled():
    ops = gl.recipes.mae()

    again = pickle.loads(pickle.dumps(ops))

    assert type(again) is gl.recipes.Ops
    assert again == ops == tuple(gl.recipes.mae())
    assert isinstance(ops, tuple)


def test_other_ops_are_added_behind_a_recipe():
    cast = gl.ops.Cast("float16")

    for more in ([cast], (cast,)):
        ops = gl.recipes.mae() + more
        assert type(ops) is gl.recipes.Ops
        assert ops == (*gl.recipes.mae(), cast)
    with pytest.raises(TypeError):
        gl.recipes.mae() + cast


def test_a_recipe_that_is_not_called_is_told_of():
    with pytest.raises(SpecError, match=r"ops=gl\.recipes\.mae\(\)"):
        gl.Loader(gl.arrays(image=IMAGES), 4, ops=gl.recipes.mae)


def images_with_all(*, is_marked=False):
    """Return images with boxes, a mask and labels of the images."""
    boxes = np.array([[4, 5, 30, 28], [20, 10, 44, 36]], np.float32)
    objects = gl.records(
        len(IMAGES),
        lambda numbers: {
            "boxes": [boxes[: n % 3] for n in numbers],
            "labels": [np.arange(n % 3) for n in numbers],
        },
        fields={"boxes": ("float32", (None, 4)), "labels": ("int64", (None,))},
    )
    masks = np.repeat(np.arange(8, dtype=np.uint8), 40 * 48).reshape(8, 40, 48, 1)
    arrays = gl.arrays(image=IMAGES, label=np.arange(8), mask=masks)
    source = gl.zip(arrays, objects)
    return source.mark(boxes="xyxy", labels="with boxes") if is_marked else source


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_makes_images_of_its_size(name, layout):
    names = OUTPUTS.get(name, ("image",))
    detects = name in ("ssd", "ssdlite", "lsj")
    output = (*names, *(("boxes", "labels") if detects else ("label",)))
    source = images_with_all(is_marked=detects)

    with gl.Loader(
        source, 4, ops=small(name, layout=layout), output=output, shuffle=True, device="cpu"
    ) as loader:
        fields = dict(loader.batch_at(1, epoch=2).items())

    for field in names:
        side = 16 if field.startswith("local") else 32
        shape = (4, side, side, 3) if layout == "NHWC" else (4, 3, side, side)
        if field == "mask":
            assert fields[field].shape == (4, 32, 32, 1)
            assert len(set(fields[field][0].ravel().tolist()) - {255}) == 1
        else:
            assert (fields[field].shape, fields[field].dtype) == (shape, np.float32)
            assert 0.2 < fields[field].std() < 90  # of noise, normalised


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_the_same_in_each_epoch(name):
    arguments = {
        key: value
        for key, value in SMALL.get(name, {"size": 32}).items()
        if key in ("size", "base")
    }
    ops = small(name, train=False, **arguments)

    with gl.Loader(
        images_with_all(), 1, ops=ops, output=("image", "label"), device="cpu"
    ) as loader:
        first, again = (loader.batch_at(3, epoch=epoch) for epoch in (0, 5))

    np.testing.assert_array_equal(first["image"][0], again["image"][0])
    assert first["label"].tolist() == [3]


def test_repeats_are_views_with_labels_of_their_own_and_are_mixed_with_another_image():
    ops = small("deit", repeats=3, num_classes=8)
    names = (("image_0", "image_1", "image_2"), ("label_0", "label_1", "label_2"))

    with gl.Loader(
        images_with_all(), 8, ops=ops, output=names, shuffle=True, seed=3, device="cpu"
    ) as loader:
        batch = loader.batch_at(0)

    records = batch.records
    for field in names[1]:
        labels = np.asarray(batch[field])
        np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-5)
        partners = records[np.arange(8) ^ 1]
        has_part = labels > 0.1 / 8 + 1e-6
        for row in range(8):
            assert set(np.flatnonzero(has_part[row]).tolist()) <= {
                int(records[row]),
                int(partners[row]),
            }
    assert not np.array_equal(batch["image_0"], batch["image_1"])
    assert not np.array_equal(batch["label_0"], batch["label_1"])


def test_another_name_of_the_image_and_of_the_label_is_said_in_on():
    source = gl.arrays(photo=IMAGES, animal=np.arange(8))
    ops = gl.recipes.resnet50_v2(
        images="HWC", image="photo", label="animal", num_classes=8, size=32
    )

    with gl.Loader(source, 4, ops=ops, output=("photo", "animal"), device="cpu") as loader:
        photos, animals = loader.batch_at(0)

    assert photos.shape == (4, 32, 32, 3)
    assert animals.shape == (4, 8)


@pytest.mark.parametrize("name", ["resnet50_v2", "dino", "segmentation", "ssd"])
def test_recipes_on_a_gpu(name, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    detects = name == "ssd"
    output = (*OUTPUTS.get(name, ("image",)), *(("boxes", "labels") if detects else ("label",)))
    source = images_with_all(is_marked=detects)

    with gl.Loader(source, 4, ops=small(name), output=output, shuffle=True, device="cpu") as loader:
        expected = dict(loader.batch_at(0).items())
    with loader.replace(device="gpu") as on_gpu:
        batch = dict(on_gpu.batch_at(0).items())
        for field, values in expected.items():
            for value, result in zip(values, batch[field], strict=True):
                np.testing.assert_array_equal(
                    result.get() if hasattr(result, "get") else result, value
                )

    del batch, result
    gc.collect()
    sim.finish()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_images_of_half_precision_are_the_rounded_ones(dtype):
    pytest.importorskip("ml_dtypes")
    results = []
    for ops in (
        small("resnet50_a3", num_classes=8),
        small("resnet50_a3", num_classes=8, dtype=dtype),
    ):
        with gl.Loader(
            images_with_all(), 8, ops=ops, output=("image", "label"), seed=5, device="cpu"
        ) as loader:
            results.append(loader.batch_at(0)["image"])

    np.testing.assert_array_equal(results[0].astype(results[1].dtype), results[1])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "mae",
            {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
            "multiply both by 255",
        ),
        ("mae", {"layout": "CHW"}, r"gl.recipes.mae\(layout='CHW'\)"),
        ("mae", {"images": "jpeg"}, r"one of \['encoded', 'HWC', 'CHW'\]"),
        ("mae", {"dtype": "uint8"}, r"one of \['float32', 'float16', 'bfloat16'\]"),
        ("mae", {"image": ""}, "the name of a field"),
        ("resnet50", {"mixup": 0.2}, "pass num_classes=1000"),
        ("resnet50", {"smoothing": 0.1}, "pass num_classes=1000"),
        ("deit", {"repeats": 0}, "a whole number of at least 1"),
        ("mae", {"size": 0}, "RandomResizedCrop"),
    ],
)
def test_a_wrong_argument_is_an_error_when_the_recipe_is_made(name, arguments, message):
    with pytest.raises(SpecError, match=message):
        getattr(gl.recipes, name)(**arguments)


@pytest.mark.parametrize("case", ["torchvision_v1", "torchvision_v2", "timm_a1", "deit"])
def test_evaluation_makes_the_pixels_of_torchvision_and_timm(case):
    golden = np.load(GOLDEN)
    recipe, arguments = {
        "torchvision_v1": (gl.recipes.resnet50, {}),
        "torchvision_v2": (gl.recipes.resnet50_v2, {}),
        "timm_a1": (gl.recipes.resnet50_a1, {}),
        "deit": (gl.recipes.deit, {}),
    }[case]
    for number in range(int(golden["count"])):
        image = golden[f"image/{number}"]
        expected = golden[f"{case}/{number}"]
        for antialias, levels in (("pil", 0), (True, 2 if case in ("timm_a1", "deit") else 1)):
            ops = recipe(train=False, images="HWC", layout="NCHW", antialias=antialias, **arguments)
            with gl.Loader(
                gl.arrays(image=image[None]), 1, ops=ops, output="image", device="cpu"
            ) as loader:
                result = np.array(loader.batch_at(0)["image"])[0, :, ::8, ::8]

            difference = np.abs(result - expected) * 57  # of levels, about
            assert difference.max() < levels + 0.01
            assert (
                difference > 0.1
            ).mean() <= 0.25  # Pillow rounds to whole numbers between rows and columns, too
