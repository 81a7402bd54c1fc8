"""Policies: the operations of torchvision's and timm's, every value, and their probabilities."""

from __future__ import annotations

import ast
import gc
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image, ImageOps

import gpuload as gl
from gpuload import core, device
from gpuload.errors import GpuloadError, SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops.policy import policies
from gpuload.ops.policy.policies import OPERATIONS, SIGNED
from gpuload.spec import Spec
from gpuload.testing.ops import OpContract, uniform, varying
from tests import simdevice

BYTES = uniform(np.uint8, 9, 9, 3)

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "augment" / "policies.npz"))
TIMM = dict(np.load(Path(__file__).parents[1] / "golden" / "augment" / "timm_policies.npz"))
FILL = (124, 116, 104)
ops = gl.ops


class TestPolicies(OpContract):
    cases: ClassVar = [
        (ops.RandAugment(3, 20), uniform(np.uint8, 12, 15, 3)),
        (ops.RandAugment(interpolation="linear", fill=FILL), varying(np.uint8, channels=3)),
        (ops.TrivialAugmentWide(), uniform(np.uint8, 12, 15, 1)),
        (ops.AutoAugment("svhn"), varying(np.uint8, channels=3)),
        (ops.TimmAugment("rand-m9-n3-p0.9-mstd0.5-inc1", fill=FILL), uniform(np.uint8, 12, 15, 3)),
        (ops.TimmAugment("rand-m9-n3-p1-t3a"), varying(np.uint8, channels=3)),
        (ops.TimmAugment("rand-m9-p1-tweights"), uniform(np.uint8, 12, 15, 3)),
        (ops.TimmAugment("v0-mstd0.5", fill=FILL), varying(np.uint8, channels=3)),
        (ops.TimmAugment("3a-mstd2"), uniform(np.uint8, 12, 15, 3)),
        (ops.AugMix(5, interpolation="linear"), uniform(np.uint8, 12, 15, 3)),
    ]
    refused: ClassVar = [
        (ops.RandAugment(), uniform(np.float32, 8, 9, 3)),
        (ops.TimmAugment("rand-m9"), uniform(np.uint8, 8, 9, 4)),
    ]


def assert_equal(op, draw, expected):
    """Assert that an op makes this of the image, by NumPy and by the core."""
    image = GOLDEN["image"]
    np.testing.assert_array_equal(op.array(np, image, draw), expected)
    if core.native is not None:
        draws, out = (
            {name: np.asarray(value)[None] for name, value in draw.items()},
            np.empty_like(image),
        )
        numbers = op.forms(BYTES).edits(
            draws, np.array([image.shape[:2]], np.int32), image.shape[2]
        )
        core.native.edit(image[None], numbers, out[None])
        np.testing.assert_array_equal(out, expected)


def draw_of_operation(name, level, **draws):
    """Return the draw of one operation."""
    return {
        "op": np.int32([OPERATIONS.index(name)]),
        "level": np.float32([ast.literal_eval(level)]),
        **draws,
    }


# torchvision's v2 takes 255 * float32(2 / 3) for the threshold, 170.00000507;
# torchvision.transforms has 170.
OF_V2 = "torchvision/Solarize/0.6666666666666666/nearest"


@pytest.mark.parametrize(
    "key", [key for key in GOLDEN if key.startswith("torchvision/") and key != OF_V2]
)
def test_an_operation_of_torchvision(key):
    _, name, level, interpolation = key.split("/")
    assert_equal(
        ops.RandAugment(interpolation=interpolation, fill=FILL),
        draw_of_operation(name, level),
        GOLDEN[key],
    )


@pytest.mark.parametrize(
    ("op", "num_bins"),
    [(ops.RandAugment(), 31), (ops.TrivialAugmentWide(), 31), (ops.AutoAugment(), 10)],
)
def test_solarize_inverts_what_pillow_does_at_the_threshold_of_each_step(op, num_bins):
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    ranges = policies._wide_ranges if isinstance(op, ops.TrivialAugmentWide) else policies._ranges
    levels = ranges("Solarize", num_bins, np.array([[16, 16]]))

    for step in range(num_bins):
        threshold = Fraction(
            255 * (num_bins - 1 - step), num_bins - 1
        )  # torch.linspace(255, 0, num_bins)
        expected = ImageOps.solarize(Image.fromarray(ramp[..., 0]), threshold)
        draw = {
            "op": np.int32([[OPERATIONS.index("Solarize")]]),
            "level": levels[None, step : step + 1],
        }
        result = op.array_batch(np, ramp[None], draw)[0]
        np.testing.assert_array_equal(result[..., 0], np.asarray(expected), err_msg=f"step {step}")


@pytest.mark.parametrize("num_bits", [4, 6])
@pytest.mark.parametrize("num_bins", [10, 31])
def test_posterize_keeps_as_many_bits_as_torchvision_at_each_step(num_bits, num_bins):
    steps = [Fraction(8) - Fraction(step * num_bits, num_bins - 1) for step in range(num_bins)]
    assert policies._bits(num_bins, num_bits).tolist() == [
        round(bits) for bits in steps
    ]  # halves to even, as torch


@pytest.mark.parametrize("key", [key for key in GOLDEN if key.startswith("timm/")])
def test_an_operation_of_timm(key):
    _, name, level, interpolation, increases = key.split("/")
    policy = ops.TimmAugment(f"rand-inc{increases}", interpolation=interpolation, fill=FILL)
    draw = draw_of_operation(name, level, cubic=np.int32([interpolation == "cubic"]))
    assert_equal(policy, draw, GOLDEN[key])


@pytest.mark.parametrize("key", [key for key in TIMM if "/" in key])
def test_a_pair_of_a_policy_of_timm(key):
    name, pair, sign = key.split("/")
    numbers, _, magnitudes = (
        values[int(pair)] for values in policies._policy(policies.TIMM_POLICIES[name][0])
    )
    is_blur = numbers == OPERATIONS.index("GaussianBlur")
    level = np.where(is_blur, 1.3, int(sign) * np.where(magnitudes, magnitudes, 0.0)).astype(
        np.float32
    )
    draw = {
        "op": numbers.astype(np.int32),
        "level": np.copysign(level, np.where(is_blur, 1, int(sign))),
    }
    draw["cubic"] = np.zeros_like(draw["op"])

    op = ops.TimmAugment(name, interpolation="linear", fill=FILL)

    assert_equal(op, draw, TIMM[key])


def test_the_draws_of_a_policy_of_timm():
    draw = draw_of(ops.TimmAugment("v0-mstd0.5"))
    names, levels = np.array(OPERATIONS)[draw["op"]], np.abs(draw["level"])

    # ShearX stands in two of the 25 pairs, first in both, with 0.2 at level 9 and 0.0 at level 0.
    assert (names[:, 0] == "ShearX").mean() == pytest.approx(0.2 / 25, abs=0.002)
    shears = levels[:, 0][names[:, 0] == "ShearX"]
    assert np.median(shears) == pytest.approx(9, abs=0.1)
    assert shears[shears < 10].std() == pytest.approx(0.5, abs=0.05)
    assert (names[:, 1] == "Equalize").mean() == pytest.approx(
        (0.6 + 0.4 + 0.8 + 1.0 + 0.6 + 0.0 + 0.6) / 25, abs=0.006
    )
    assert draw["cubic"].mean() == pytest.approx(0.5, abs=0.01)
    radii = draw_of(ops.TimmAugment("3a"))
    radii = radii["level"][
        radii["op"] == OPERATIONS.index("GaussianBlur")
    ]  # timm: uniform from 0.1 to 2
    assert [radii.min(), radii.mean(), radii.max()] == pytest.approx([0.1, 1.05, 2.0], abs=0.02)


@pytest.mark.parametrize("key", [key for key in GOLDEN if key.startswith("augmix/")])
def test_augmix_of_timm(key):
    _, interpolation, number, weights, share = key.split("/")
    chains = [("Rotate", "Equalize"), ("Color", "ShearX"), ("Solarize", "TranslateY")]
    draw = {
        "op": np.array([[OPERATIONS.index(name) for name in chain] for chain in chains], np.int32),
        "level": np.full((3, 2), -3 - int(number), np.float32),
        "cubic": np.full((3, 2), interpolation == "cubic", np.int32),
        "weight": np.array(ast.literal_eval(weights), np.float32),
        "share": np.float32(share),
    }
    assert_equal(ops.AugMix(interpolation=interpolation, fill=FILL), draw, GOLDEN[key])


@pytest.mark.gpu
def test_all_operations_on_images_of_many_sizes_on_a_gpu():
    cupy, random = device.cupy(), np.random.default_rng(3)
    images = [
        random.integers(0, 256, (20 + row % 5, 23 + row % 3, 3), np.uint8) for row in range(40)
    ]
    sizes = np.array([image.shape[:2] for image in images], np.int32)
    members = [
        ops.GaussianBlur(5),
        ops.Contrast(0.2, 2),
        ops.Equalize(),
        ops.AutoContrast(),
        ops.RandomFlip(),
    ]
    choices = [
        *(
            ops.RandAugment(3, 20, interpolation=name, fill=(1, 2, 3))
            for name in policies.INTERPOLATIONS
        ),
        *(
            ops.TimmAugment("rand-m10-n4-p1-mstd101", fill=7),
            ops.AugMix(10, 4),
            ops.AutoAugment("svhn"),
        ),
        *(ops.TimmAugment("rand-m10-p1-mstd101-t3a"), ops.TimmAugment("3a")),
        *(
            ops.OneOf(members[:4]),
            ops.OneOf(members),
            ops.Shuffle([ops.Sharpness(0, 3), ops.Hue(-0.4, 0.4)]),
        ),
        ops.Sometimes(0.5, [ops.Grayscale(p=0.5), ops.Brightness(0.5, 1.5), ops.Invert()]),
    ]
    for op in choices:
        draw = op.draw(random.random((len(images), op.num_uniforms)), sizes)

        results = op.array_batch(cupy, [cupy.asarray(image) for image in images], draw)

        for row, (image, result) in enumerate(zip(images, results, strict=True)):
            expected = op.array(np, image, {name: values[row] for name, values in draw.items()})
            np.testing.assert_array_equal(result.get(), expected, err_msg=f"{op}, image {row}")


def test_the_weights_of_augmix_are_of_a_dirichlet_distribution():
    draw = draw_of(ops.AugMix(width=3))
    np.testing.assert_allclose(draw["weight"].sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(draw["weight"].mean(axis=0), [1 / 3] * 3, atol=0.005)
    np.testing.assert_allclose(
        draw["weight"].var(axis=0), [1 / 18] * 3, atol=0.002
    )  # of Dirichlet(1, 1, 1)
    assert draw["share"].mean() == pytest.approx(0.5, abs=0.01)
    depths = (draw["op"] != 0).sum(axis=2)
    np.testing.assert_allclose(
        np.bincount(depths.ravel()) / depths.size, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.01
    )


@pytest.mark.parametrize("key", [key for key in GOLDEN if key.startswith("steps/")])
def test_the_magnitudes_of_torchvision(key):
    _, policy, name, bins, size = key.split("/")
    ranges = policies._wide_ranges if policy == "TrivialAugmentWide" else policies._ranges
    steps = ranges(name, int(bins), np.array([size.split("x")], np.int32))
    np.testing.assert_array_equal(np.broadcast_to(steps, (1, int(bins)))[0], GOLDEN[key])


@pytest.mark.parametrize("name", ["imagenet", "cifar10", "svhn"])
def test_the_pairs_of_torchvision(name):
    pairs = ast.literal_eval(str(GOLDEN[f"pairs/{name}"]))
    numbers, probabilities, steps = policies._policy(name)
    entries = [
        tuple((OPERATIONS[n], p, step) for n, p, step in zip(*pair, strict=True))
        for pair in zip(numbers.tolist(), probabilities.tolist(), steps.tolist(), strict=True)
    ]
    assert entries == [tuple((word, p, step or 0) for word, p, step in pair) for pair in pairs]


def draw_of(op, count=60_000):
    graph = compile_ops(Spec((uniform(np.uint8, 224, 331, 3),)), [op])
    sizes = {"image": np.full((count, 2), (224, 331), np.int32)}
    return graph.draw(seed=1, epoch=0, records=np.arange(count), sizes=sizes)[0]


def test_each_operation_of_randaugment_is_as_likely_and_so_is_each_direction():
    draw = draw_of(ops.RandAugment(2, 9))
    shares = np.bincount(draw["op"].ravel(), minlength=14) / draw["op"].size
    np.testing.assert_allclose(shares, np.full(14, 1 / 14), atol=0.004)
    rotations = draw["level"][draw["op"] == OPERATIONS.index("Rotate")]
    assert set(np.unique(rotations).tolist()) == {-9.0, 9.0}
    assert (rotations > 0).mean() == pytest.approx(0.5, abs=0.02)
    for name in OPERATIONS[:14]:
        assert bool((draw["level"][draw["op"] == OPERATIONS.index(name)] < 0).any()) == (
            name in SIGNED
        )


def test_each_magnitude_of_trivialaugment_is_as_likely():
    draw = draw_of(ops.TrivialAugmentWide(num_magnitude_bins=5))
    levels, counts = np.unique(
        np.abs(draw["level"][draw["op"] == OPERATIONS.index("Rotate")]), return_counts=True
    )
    np.testing.assert_array_equal(levels, [0, 33.75, 67.5, 101.25, 135])
    np.testing.assert_allclose(counts / counts.sum(), [0.2] * 5, atol=0.03)


def test_the_probabilities_of_autoaugment():
    draw = draw_of(ops.AutoAugment("imagenet"))
    pairs = ast.literal_eval(str(GOLDEN["pairs/imagenet"]))
    expected = sum(p for (word, p, _), _ in pairs if word == "Posterize") / 25
    assert (draw["op"][:, 0] == OPERATIONS.index("Posterize")).mean() == pytest.approx(
        expected, abs=0.006
    )


def test_the_levels_of_timm():
    draw = draw_of(ops.TimmAugment("rand-m9-n2-p0.3-mstd0.5"))
    levels = np.abs(draw["level"])
    assert levels.max() <= 10
    assert np.median(levels) == pytest.approx(9, abs=0.02)
    assert levels[levels < 10].std() == pytest.approx(0.5, abs=0.05)
    assert (draw["op"] != 0).mean() == pytest.approx(0.3, abs=0.01)
    assert draw["cubic"].mean() == pytest.approx(0.5, abs=0.01)
    even = np.abs(draw_of(ops.TimmAugment("rand-m10-mstd101"))["level"])
    assert even.mean() == pytest.approx(5, abs=0.05)


def test_on_a_gpu(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    images = gl.arrays(image=np.stack([GOLDEN["image"], GOLDEN["image"][::-1]] * 8))
    chain = [ops.RandAugment(2, 12), ops.TimmAugment("rand-m9-p1-inc1", fill=FILL)]
    with (
        gl.Loader(images, 16, ops=chain, device="cpu") as loader,
        loader.replace(device="gpu") as on_gpu,
    ):
        np.testing.assert_array_equal(
            on_gpu.batch_at(0)["image"].get(), loader.batch_at(0)["image"]
        )
    gc.collect()
    sim.finish()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.RandAugment(magnitude=31), "less than num_magnitude_bins"),
        (lambda: ops.RandAugment(0), "at least 1"),
        (lambda: ops.RandAugment(fill=(1, 2)), "one for each channel"),
        (lambda: ops.AutoAugment("mnist"), "policy must be one of"),
        (lambda: ops.TrivialAugmentWide(1), "at least 2"),
        (lambda: ops.AugMix(11), "from 1 to 10"),
        (lambda: ops.AugMix(depth=0), "at least 1"),
        (lambda: ops.TimmAugment("rand-m9-w0"), "tweights"),
        (lambda: ops.TimmAugment("rand-m9-t4a"), "timm's words"),
        (lambda: ops.TimmAugment("rand-m9-t3a-tweights"), "timm's words"),
        (lambda: ops.TimmAugment("rand-n15-t3aw"), "timm's words"),
        (lambda: ops.TimmAugment("augmix-m3"), "timm's words"),
        (lambda: ops.TimmAugment("rand-m9.5"), "timm's words"),
        (lambda: ops.TimmAugment("v0-m9"), "timm's words"),
        (lambda: ops.TimmAugment("v1"), "timm's words"),
        (lambda: ops.AutoAugment("v0"), "a policy of torchvision's"),
        (
            lambda: ops.TimmAugment("rand-m9", interpolation="lanczos"),
            "interpolation must be one of",
        ),
    ],
)
def test_what_is_wrong_is_told(call, words):
    with pytest.raises(GpuloadError, match=words) as caught:
        call()
    assert caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize("level", [0.0, 4.25, 9.0, 10.0, 20.0])
def test_the_operations_of_deit_iii_are_pillows(level):
    image_module = pytest.importorskip("PIL.Image")
    enhance, image_filter = (
        pytest.importorskip("PIL.ImageEnhance"),
        pytest.importorskip("PIL.ImageFilter"),
    )
    photo = image_module.fromarray(GOLDEN["image"])
    part = level / 10  # timm: 0.5 to 1 of the colour is taken away, and the radius is from 0.1 to 2
    expected = {
        "Desaturate": enhance.Color(photo).enhance(1 - min(0.5 + 0.5 * part, 1)),
        "GaussianBlur": photo.filter(image_filter.GaussianBlur(min(0.1 + 1.9 * part, 2))),
    }

    for name, image in expected.items():
        op = ops.TimmAugment("rand-t3a")
        result = op.array(
            np, GOLDEN["image"], draw_of_operation(name, str(level), cubic=np.int32([0]))
        )
        np.testing.assert_array_equal(result, np.asarray(image))


def test_a_set_of_timm_has_its_operations_alone():
    draw = draw_of(ops.TimmAugment("rand-m9-n3-p1-t3a"))

    numbers, counts = np.unique(draw["op"], return_counts=True)

    assert {OPERATIONS[number] for number in numbers} == {"Solarize", "Desaturate", "GaussianBlur"}
    assert counts / counts.sum() == pytest.approx([1 / 3] * 3, abs=0.01)
    assert (draw["op"][:, 0] == draw["op"][:, 1]).mean() == pytest.approx(
        1 / 3, abs=0.02
    )  # an image may get one twice


def test_operations_with_weights_are_drawn_by_them_and_not_twice():
    """The weights are timm's: 3 of some 10 for Rotate, 2 for each shear, 1 for each shift, and so
    on."""
    draw = draw_of(ops.TimmAugment("rand-m9-n2-p1-tweights"))["op"]

    first = {
        name: (draw[:, 0] == OPERATIONS.index(name)).mean()
        for name in ("Rotate", "ShearX", "TranslateY")
    }

    total = 3 + 2 * 2 + 2 * 1 + 3 * 0.25 + 7 * 0.05
    assert first == pytest.approx(
        {"Rotate": 3 / total, "ShearX": 2 / total, "TranslateY": 1 / total}, abs=0.01
    )
    assert (draw[:, 0] != draw[:, 1]).all()


def test_operations_of_a_set_become_stronger_with_the_level_in_any_case():
    assert ops.TimmAugment("rand-m9-t3a").increases
    assert not ops.TimmAugment("rand-m9").increases


@pytest.mark.parametrize(
    ("config", "op"),
    [
        ("augmix-m3-w3", "gl.ops.AugMix(severity=3, width=3)"),
        ("augmix-m5-w4-d2", "gl.ops.AugMix(severity=5, width=4, depth=2)"),
        ("augmix", "gl.ops.AugMix(severity=3, width=3)"),
    ],
)
def test_timms_string_of_augmix_leads_to_the_op(config, op):
    with pytest.raises(SpecError, match="config must be timm's words") as caught:
        ops.TimmAugment(config)

    assert caught.value.remedy == f"write {op}"


@pytest.mark.parametrize(
    "op", [ops.RandAugment(), ops.AugMix(), ops.Sometimes(0.5, [ops.AutoAugment()])], ids=str
)
def test_a_marked_mask_is_refused_for_labels_have_no_colours(op):
    photos = np.zeros((2, 12, 16, 3), np.uint8)
    source = gl.arrays(image=photos, mask=photos[..., :1]).mark(mask="mask")

    with pytest.raises(gl.GpuloadError, match="beside the mask 'mask'"):
        gl.Loader(source, 1, ops=[op], device="cpu")


POLICIES = (
    ops.RandAugment(3, 20, interpolation="cubic", fill=FILL), ops.TrivialAugmentWide(1000), ops.AutoAugment("svhn"),
    ops.TimmAugment("rand-m9-n4-mstd3-inc1-p1"), ops.TimmAugment("rand-mmax15-m14-mstd1"), ops.TimmAugment("v0"),
    ops.TimmAugment("originalr"), ops.TimmAugment("3a-mstd0.5"), ops.TimmAugment("rand-t3aw-n3-p1"), ops.AugMix(10, 2),
)  # fmt: skip


@pytest.mark.skipif(core.native is None, reason=core.problem)
@pytest.mark.filterwarnings("ignore:divide by zero")  # mmax15 leads to fewer than no bits
@pytest.mark.parametrize("count", [0, 1, 300])
@pytest.mark.parametrize("op", POLICIES, ids=str)
def test_the_core_makes_the_edits_of_numpy(op, count, monkeypatch):
    random = np.random.default_rng(count)
    size = random.integers(1, 400, (count, 2)).astype(np.int32)
    size[::3, 1] = size[::3, 0]  # squares, which are turned by quarters
    u = random.random((count, op.num_uniforms))
    u[: count // 4] = 0.0
    draw = op.draw(u, size)
    draw["level"][count // 2 : count // 2 + 30] = 90.0

    edits_of_core = op.forms(BYTES).edits(draw, size, 3)
    monkeypatch.setattr(core, "native", None)

    np.testing.assert_array_equal(
        edits_of_core.view(np.int64), op.forms(BYTES).edits(draw, size, 3).view(np.int64)
    )
