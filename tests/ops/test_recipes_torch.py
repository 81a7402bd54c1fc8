"""Recipes beside the transforms of torchvision 0.28 and timm: argument by argument, and evaluation
pixel by pixel."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import gpuload as gl
from tests.oracle_torchvision import torch, torchvision

timm_data = pytest.importorskip("timm.data", reason="needs timm: make test-torch")
Image = pytest.importorskip("PIL.Image")
mixup = importlib.import_module("timm.data.mixup")
v2 = importlib.import_module("torchvision.transforms.v2")
models = importlib.import_module("torchvision.models")

BILINEAR, BICUBIC = v2.InterpolationMode.BILINEAR, v2.InterpolationMode.BICUBIC
INTERPOLATIONS = {"linear": "bilinear", "cubic": "bicubic"}
SIZES = [
    (67, 90),
    (90, 67),
    (224, 224),
    (300, 401),
    (375, 500),
    (427, 640),
    (640, 427),
    (1001, 337),
]


def only(ops, kind):
    """Return the one op of a class."""
    (op,) = (op for op in ops if type(op) is kind)
    return op


def transforms(composed, kind):
    """Return the one transform of a class."""
    (transform,) = (entry for entry in composed.transforms if type(entry).__name__ == kind)
    return transform


def assert_same_interpolation(interpolation, mode):
    assert INTERPOLATIONS[interpolation] == getattr(mode, "value", mode)


def assert_same_crop(op, crop):
    assert (op.height, op.width) == tuple(crop.size)
    assert op.scale == tuple(crop.scale)
    assert op.ratio == pytest.approx(tuple(crop.ratio))
    assert_same_interpolation(op.interpolation, crop.interpolation)


def assert_same_normalize(op, transform):
    np.testing.assert_allclose(np.array(op.mean) / 255, np.asarray(transform.mean), rtol=1e-6)
    np.testing.assert_allclose(np.array(op.std) / 255, np.asarray(transform.std), rtol=1e-6)


TIMM = {
    "resnet50_a1": (224, "rand-m7-mstd0.5-inc1", {}),
    "resnet50_a2": (224, "rand-m7-mstd0.5-inc1", {}),
    "resnet50_a3": (160, "rand-m6-mstd0.5-inc1", {}),
    "deit": (224, "rand-m9-mstd0.5-inc1", {"re_prob": 0.25, "re_mode": "pixel", "re_count": 1}),
}


@pytest.mark.parametrize("name", TIMM)
def test_training_is_what_timm_makes_of_the_same_words(name):
    size, policy, erasing = TIMM[name]
    transform = timm_data.create_transform(
        size,
        is_training=True,
        auto_augment=policy,
        interpolation="bicubic",
        color_jitter=0.4,
        **erasing,
    )

    recipe = getattr(gl.recipes, name)()

    assert_same_crop(
        only(recipe, gl.ops.RandomResizedCrop),
        transforms(transform, "RandomResizedCropAndInterpolation"),
    )
    assert only(recipe, gl.ops.RandomFlip).p == transforms(transform, "RandomHorizontalFlip").p
    augment, operation = (
        only(recipe, gl.ops.TimmAugment),
        transforms(transform, "RandAugment").ops[0],
    )
    assert augment.config == policy
    assert f"m{operation.magnitude}" in policy
    assert augment.fill == operation.kwargs["fillcolor"]
    assert operation.kwargs["resample"] == Image.Resampling.BICUBIC
    assert augment.interpolation == "cubic"
    assert_same_normalize(only(recipe, gl.ops.Normalize), transforms(transform, "Normalize"))
    if erasing:
        our_erasing, timm_erasing = (
            only(recipe, gl.ops.Erasing),
            transforms(transform, "RandomErasing"),
        )
        assert (our_erasing.p, our_erasing.count) == (
            timm_erasing.probability,
            timm_erasing.max_count,
        )
        assert our_erasing.scale == (timm_erasing.min_area, timm_erasing.max_area)
        assert np.log(our_erasing.ratio).tolist() == pytest.approx(timm_erasing.log_aspect_ratio)
        assert timm_erasing.per_pixel == (our_erasing.mode == "pixel")
    assert len(transform.transforms) == 5 + bool(erasing)  # with MaybeToTensor
    assert [type(op).__name__ for op in recipe] == [
        "Decode", "RandomResizedCrop", "RandomFlip", "TimmAugment", "Normalize", *(["Erasing"] if erasing else []),
        "OneHot", "OneOf",
    ]  # fmt: skip


def test_the_crop_of_mae_is_torchvisions_of_the_authors_words():
    crop = v2.RandomResizedCrop(
        224, scale=(0.2, 1.0), interpolation=BICUBIC
    )  # the authors say 3, which is that

    assert_same_crop(only(gl.recipes.mae(), gl.ops.RandomResizedCrop), crop)


def test_training_of_resnet_has_the_defaults_of_torchvisions_transforms():
    recipe = gl.recipes.resnet50_v2()

    assert_same_crop(only(recipe, gl.ops.RandomResizedCrop), v2.RandomResizedCrop(176))
    assert only(recipe, gl.ops.RandomFlip).p == v2.RandomHorizontalFlip().p
    erasing, policy = v2.RandomErasing(p=0.1), v2.TrivialAugmentWide(interpolation=BILINEAR)
    our_erasing, our_policy = only(recipe, gl.ops.Erasing), only(recipe, gl.ops.TrivialAugmentWide)
    assert (our_erasing.p, our_erasing.scale, our_erasing.ratio) == (
        erasing.p,
        erasing.scale,
        erasing.ratio,
    )
    assert (our_erasing.mode, our_erasing.fill) == ("const", erasing.value[0])
    assert our_policy.num_magnitude_bins == policy.num_magnitude_bins
    assert_same_interpolation(our_policy.interpolation, policy.interpolation)
    assert_same_crop(
        only(gl.recipes.resnet50(), gl.ops.RandomResizedCrop), v2.RandomResizedCrop(224)
    )


def test_ssd_has_the_defaults_of_torchvisions_transforms():
    recipe = gl.recipes.ssd()

    distort, crop, zoom = v2.RandomPhotometricDistort(), v2.RandomIoUCrop(), v2.RandomZoomOut()
    brightness, choice, shuffle = (
        op for op in recipe if type(op) in (gl.ops.Sometimes, gl.ops.OneOf)
    )
    first, second = choice.ops
    assert {brightness.p, shuffle.p, *(op.p for op in (*first, *second))} == {distort.p}
    steps = [brightness.ops[0], *(op.ops[0] for op in first)]
    ranges = (distort.brightness, distort.contrast, distort.saturation, distort.hue)
    assert [type(op).__name__ for op in steps] == ["Brightness", "Contrast", "Saturation", "Hue"]
    assert [(op.low, op.high) for op in steps] == [tuple(pair) for pair in ranges]
    assert [second[2], second[0], second[1]] == list(first)
    assert isinstance(shuffle.ops[0], gl.ops.ChannelShuffle)
    our_crop, our_zoom = only(recipe, gl.ops.RandomIoUCrop), only(recipe, gl.ops.RandomZoomOut)
    assert our_crop.scale == (crop.min_scale, crop.max_scale)
    assert our_crop.ratio == (crop.min_aspect_ratio, crop.max_aspect_ratio)
    assert our_crop.options == tuple(crop.options)
    assert (our_zoom.side_range, our_zoom.p) == (tuple(zoom.side_range), zoom.p)
    assert only(gl.recipes.lsj(), gl.ops.ScaleJitter).scale == tuple(
        v2.ScaleJitter((1024, 1024)).scale_range
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_are_those_of_timms_mixup_and_of_torchs_smoothing(smoothing):
    labels = np.array([3, 0, 9, 3])
    targets = mixup.mixup_target(torch.from_numpy(labels), 10, lam=1.0, smoothing=smoothing)

    vectors = gl.ops.OneHot(10, smoothing=smoothing).array(np, labels, {})

    np.testing.assert_array_equal(vectors, targets.numpy())
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(
        logits, torch.from_numpy(labels), label_smoothing=smoothing
    )
    result = torch.nn.functional.cross_entropy(logits, torch.from_numpy(vectors.astype(np.float64)))
    assert float(result) == pytest.approx(float(expected), rel=1e-6)


def photo(size):
    rows, columns = np.mgrid[: size[0], : size[1]]
    waves = [128 + 90 * np.sin(rows / (3 + n)) * np.cos(columns / (4 + n)) for n in range(3)]
    noise = np.random.default_rng(size[0]).integers(-25, 25, (*size, 3))
    return (np.stack(waves, axis=2) + noise).clip(0, 255).astype(np.uint8)


EVALUATIONS = {
    "resnet50": lambda: models.ResNet50_Weights.IMAGENET1K_V1.transforms(),
    "resnet50_v2": lambda: models.ResNet50_Weights.IMAGENET1K_V2.transforms(),
    "resnet50_a1": lambda: timm_data.create_transform(224, interpolation="bicubic", crop_pct=0.95),
    "resnet50_a3": lambda: timm_data.create_transform(224, interpolation="bicubic", crop_pct=0.95),
    "deit": lambda: timm_data.create_transform(224, interpolation="bicubic", crop_pct=0.875),
    "mae": lambda: timm_data.create_transform(224, interpolation="bicubic", crop_pct=224 / 256),
    "dino": lambda: timm_data.create_transform(224, interpolation="bicubic", crop_pct=224 / 256),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluation_makes_the_same_pixels(name, size):
    image = photo(size)
    expected = EVALUATIONS[name]()(Image.fromarray(image)).numpy()
    results = []

    for antialias in ("pil", True):
        ops = getattr(gl.recipes, name)(
            train=False, images="HWC", layout="NCHW", antialias=antialias
        )
        with gl.Loader(
            gl.arrays(image=image[None]), 1, ops=ops, output="image", device="cpu"
        ) as loader:
            results.append(np.array(loader.batch_at(0)["image"])[0])

    as_pillow, usual = (np.abs(result - expected) * 57 for result in results)  # of levels, about
    assert (
        as_pillow.max() < 1.05
    )  # Pillow 13 sums down the columns first for some sizes, which rounds otherwise
    assert (as_pillow > 0.1).mean() <= 0.3
    assert usual.max() < 2.1
    assert (usual > 0.1).mean() <= 0.3


@pytest.mark.parametrize("size", SIZES)
def test_evaluation_of_segmentation_makes_the_same_pixels_and_labels(size):
    image, mask = photo(size), (photo(size)[..., :1] // 13).astype(np.uint8)
    preset = importlib.import_module("torchvision.transforms._presets").SemanticSegmentation(
        resize_size=520
    )
    functional = importlib.import_module("torchvision.transforms.functional")
    expected = preset(Image.fromarray(image)).numpy()
    nearest = functional.resize(
        Image.fromarray(mask[..., 0]), [520], interpolation=v2.InterpolationMode.NEAREST
    )

    ops = gl.recipes.segmentation(train=False, images="HWC", layout="NCHW", antialias="pil")
    source = gl.arrays(image=image[None], mask=mask[None])
    with gl.Loader(source, 1, ops=ops, output=("image", "mask"), device="cpu") as loader:
        images, masks = loader.batch_at(0)

    assert np.abs(images[0] - expected).max() * 57 < 1.05
    assert masks[0].shape[:2] == np.asarray(nearest).shape
    assert (
        masks[0][..., 0] != np.asarray(nearest)
    ).mean() < 0.02  # points that lie between two pixels


def test_what_is_drawn_by_timms_weights_has_timms_shares():
    transform = importlib.import_module("timm.data.auto_augment").rand_augment_transform(
        "rand-m9-t3aw", {}
    )
    names = [operation.name.removesuffix("Increasing") for operation in transform.ops]
    weights = dict(zip(names, transform.choice_weights, strict=True))
    policies = importlib.import_module("gpuload.ops.policy.policies")

    op = gl.ops.TimmAugment("rand-m9-p1-t3aw")
    draw = op.draw(
        np.random.default_rng(1).random((40_000, op.num_uniforms)),
        np.full((40_000, 2), 32, np.int32),
    )

    first = np.array(policies.OPERATIONS)[draw["op"][:, 0]]
    shares = {name: (first == name).mean() for name in names}
    assert shares == pytest.approx(weights, abs=0.01)
    assert (draw["op"][:, 0] != draw["op"][:, 1]).all()


def test_torchvision_is_there():
    assert torchvision.__version__.startswith("0.28")
