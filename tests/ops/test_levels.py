"""Images of floating-point numbers to 255 before ops that take 1 for white are refused, with the
record's name."""

from __future__ import annotations

import gc
import logging

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import RecordError, SpecError
from gpuload.graph.graph import compile_ops
from gpuload.graph.levels import CheckLevels, with_checks
from tests import simdevice

PARTS = np.random.default_rng(0).random((6, 12, 14, 3), np.float32)
IMAGES = PARTS.copy()
IMAGES[4] *= 255
WORDS = r"record 4(.|\n)*levels from 0.* to 25\d(.|\n)*gl.ops.Normalize\(0, 255, on='image'\)"
TAKERS = [
    ops.Brightness(1, 1), ops.Contrast(1, 1), ops.Saturation(1, 1), ops.Hue(0, 0), ops.Gamma(1, 1), ops.Sharpness(1, 1),
    ops.ColorJitter(0.4), ops.Invert(), ops.Posterize(4), ops.Solarize(0.5), ops.AutoContrast(), ops.Equalize(),
    ops.GaussianNoise(0.1), ops.SaltAndPepper(0.1), ops.Sometimes(0.1, [ops.RandomFlip(), ops.Gamma(1, 1)]),
    ops.OneOf([[ops.Normalize(0, 255), ops.Invert()], ops.Invert()]),
]  # fmt: skip


def loader(chain, images=IMAGES, batch_size=3, device="cpu", **arguments):
    return gl.Loader(gl.arrays(image=images), batch_size, ops=chain, device=device, **arguments)


@pytest.mark.parametrize("op", TAKERS, ids=lambda op: type(op).__name__)
def test_levels_beyond_white_are_an_error_that_names_the_record_and_parts_are_taken(op):
    with pytest.raises(RecordError, match=WORDS):
        loader([ops.RandomFlip(), op]).batch_at(1)
    assert loader([op], PARTS).batch_at(1)["image"].shape == (3, 12, 14, 3)


def beyond(*levels):
    """Return images of which that of record 4 has these levels in a corner."""
    images = PARTS.copy()
    images[4, 0, : len(levels), 0] = levels
    return images


BEYOND = {
    "-1 to 1": (PARTS * 2 - 1, 0, r"levels from -0\.99.* to 0\.99.*"),
    "below black": (beyond(-0.01), 4, r"levels from -0\.01 to 0\.99"),
    "2": (beyond(2.0), 4, r"levels from 0.* to 2(.|\n)*Normalize\(0, 2, "),
    "nan": (beyond(np.nan), 4, r"levels from 0.* to 0\.99.*, and nan"),
    "nan alone": (np.full_like(PARTS, np.nan), 0, "no levels, and nan"),
    "-inf": (beyond(-np.inf), 4, r"levels from -inf to 0\.99"),
    "inf": (beyond(np.inf), 4, r"levels from 0.* to inf"),
    "65535": (beyond(300.0), 4, r"Normalize\(0, 65535, "),
}


@pytest.mark.parametrize("case", BEYOND)
@pytest.mark.parametrize(
    "op", [*TAKERS, ops.Shuffle([ops.Invert()])], ids=lambda op: type(op).__name__
)
def test_all_levels_but_those_from_0_to_1_are_refused(op, case):
    images, record, words = BEYOND[case]
    with pytest.raises(
        RecordError, match=rf"record {record}(.|\n)*field 'image', has (.|\n)*{words}"
    ):
        list(loader([op], images))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_rounding_beyond_0_and_1_is_none_of_them(device, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5) if device == "gpu" else None
    images = beyond(-5e-4, 1.0005, -0.0, 1e-45)
    load = loader([ops.Brightness(1, 1)], images, device=device)
    batch = load.batch_at(1)
    pixels = batch["image"] if device == "cpu" else batch["image"].get()
    np.testing.assert_array_equal(pixels, images[3:].clip(0, 1))
    for bad in (np.nan, -0.002, 1.002):
        with pytest.raises(RecordError, match="record 4"):
            loader([ops.Brightness(1, 1)], beyond(bad), device=device).batch_at(1)
    del batch
    gc.collect()
    if sim is not None:
        sim.finish()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_floats_of_other_widths_are_asked(dtype):
    op = CheckLevels(ops.Invert())
    for bad in (np.nan, -0.01, 1.01, np.inf):
        assert op.traits.check.rows(np, beyond(bad).astype(dtype)).tolist() == [False] * 4 + [
            True,
            False,
        ]
    assert not op.traits.check.rows(np, beyond(-5e-4, 1.0005).astype(dtype)).any()
    assert not op.traits.check.rows(np, PARTS.astype(dtype)[:, ::-1, ::-1]).any()


def test_what_the_error_says_to_type_works():
    signed = PARTS * 2 - 1
    for line, source, parts in [
        ("gl.ops.Python(lambda x: (x + 1) / 2, on='image')", signed, PARTS),
        ("gl.ops.Python(lambda x: x.clip(0, 1), on='image')", signed, signed.clip(0, 1)),
        (
            "gl.ops.Python(lambda x: numpy.nan_to_num(x).clip(0, 1), on='image')",
            beyond(np.nan),
            beyond(0),
        ),
    ]:
        with pytest.raises(RecordError) as error:
            list(loader([ops.Invert(p=1.0)], source))
        assert line in str(error.value)
        before = eval(line, {"gl": gl, "numpy": np})
        np.testing.assert_allclose(
            loader([before, ops.Invert(p=1.0)], source).batch_at(1)["image"],
            1 - parts[3:],
            atol=1e-6,
        )
    noise = ops.GaussianNoise(0.0)
    with pytest.raises(RecordError, match="or write clip=False"):
        loader([noise], signed).batch_at(0)
    unbounded = loader([ops.GaussianNoise(0.0, clip=False)], signed).batch_at(0)
    np.testing.assert_array_equal(unbounded["image"], signed[:3])


EDGES = np.zeros((6, 12, 14, 3), np.float32)
EDGES[:, 3:9, 4:10] = 1
OVERSHOOTING = [
    ops.Resize(31, 29, interpolation="cubic"), ops.Resize(31, 29, interpolation="lanczos"),
    ops.Resize(31, 29, interpolation={"image": "cubic"}), ops.RandomResizedCrop(31, 29, interpolation="lanczos"),
    ops.OneOf([ops.Resize(31, 29, interpolation="cubic"), ops.Resize(31, 29, interpolation="lanczos")]),
]  # fmt: skip


@pytest.mark.parametrize("resize", OVERSHOOTING, ids=str)
def test_what_a_filter_adds_at_edges_is_cut_off_and_not_refused(resize):
    resized = np.asarray(loader([resize], EDGES).batch_at(0)["image"])
    assert resized.min() < -0.02
    assert resized.max() > 1.02

    batch = loader([resize, ops.Brightness(1, 1)], EDGES).batch_at(0)

    np.testing.assert_array_equal(batch["image"], resized.clip(0, 1))
    for levels in (EDGES * 255, EDGES * 4 - 2, EDGES * np.nan):
        with pytest.raises(RecordError, match="record 0"):
            loader([resize, ops.Brightness(1, 1)], levels).batch_at(0)
    moved = [resize, ops.Python(lambda x: x), ops.Brightness(1, 1)]
    with pytest.raises(RecordError, match="record 0"):
        loader(moved, EDGES).batch_at(0)


@pytest.mark.parametrize("executor", ["array", "dali"])
@pytest.mark.parametrize(
    "chain",
    [[ops.Brightness(1, 1)], [ops.RandomCrop(10, 10), ops.Brightness(1, 1), ops.RandomFlip()]],
)
def test_both_executors_refuse_them(chain, executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    with loader(chain, executor=executor) as load:
        load.batch_at(0)
        with pytest.raises(RecordError, match=WORDS):
            load.batch_at(1)


@pytest.mark.parametrize(
    "op", [ops.Hue(0, 0), ops.Sometimes(0.5, [ops.Gamma(1, 1)])], ids=lambda op: type(op).__name__
)
def test_the_question_is_asked_where_the_op_runs(op):
    pytest.importorskip("nvidia.dali")
    with pytest.raises(SpecError, match=r"has no lower\(\), its form in DALI"):
        loader([op], executor="dali")
    with (
        loader([ops.RandomCrop(10, 10), op], executor="dali") as load,
        pytest.raises(RecordError, match=WORDS),
    ):
        load.batch_at(1)


def test_on_a_gpu_they_are_found_there(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    load = loader([ops.Brightness(1, 1), ops.RandomFlip()], device="gpu")

    batch = load.batch_at(0)
    with pytest.raises(RecordError, match=WORDS):
        load.batch_at(1)

    assert batch["image"].shape == (3, 12, 14, 3)
    del batch
    gc.collect()
    sim.finish()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "chain", [[ops.Invert()], [ops.RandomCrop(10, 10), ops.ColorJitter(0.4), ops.Equalize()]]
)
def test_a_card_finds_them(chain):
    with loader(chain, device="gpu") as load:
        assert load.batch_at(0)["image"].shape[0] == 3
        with pytest.raises(RecordError, match=WORDS):
            load.batch_at(1)


@pytest.mark.parametrize(("image", "right"), [(PARTS, IMAGES), (IMAGES, PARTS)])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_of_several_fields_the_error_names_the_one(device, image, right, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5) if device == "gpu" else None
    source, name = gl.arrays(image=image, right=right), "right" if image is PARTS else "image"
    load = gl.Loader(source, 3, ops=[ops.Invert(on=("image", "right"))], device=device)
    load.batch_at(0)
    with pytest.raises(RecordError, match=rf"record 4(.|\n)*field '{name}'(.|\n)*on='{name}'"):
        load.batch_at(1)
    gc.collect()
    if sim is not None:
        sim.finish()


def read_sizes(numbers):
    return {"image": [IMAGES[number, : 5 + number] for number in numbers]}


@pytest.mark.parametrize("shape", [(None, None, 3), (None, 14, 3)])
def test_images_of_different_sizes_are_asked_too(shape):
    source = gl.records(6, read_sizes, fields={"image": ("float32", shape)})
    with gl.Loader(source, 2, ops=[ops.Brightness(1, 1)], device="cpu") as load:
        load.batch_at(1)
        with pytest.raises(RecordError, match=WORDS):
            load.batch_at(2)


def test_what_a_function_makes_is_asked_and_what_the_error_says_to_type_works():
    to_floats = ops.Python(lambda x: x.astype(np.float32))
    images = (PARTS * 255).round().astype(np.uint8)
    with pytest.raises(RecordError, match=r"Normalize\(0, 255, on='image'\)"):
        loader([to_floats, ops.Contrast(1, 1)], images).batch_at(0)

    batch = loader(
        [to_floats, ops.Normalize(0, 255, on="image"), ops.Contrast(1, 1)], images
    ).batch_at(0)

    np.testing.assert_allclose(batch["image"], images[:3] / 255, atol=1e-6)


def test_a_record_of_other_levels_can_be_left_out():
    with loader([ops.Brightness(1, 1)], on_error="skip", max_bad=0.5) as load:
        assert load.batch_at(1).valid.tolist() == [True, False, True]
    with pytest.raises(RecordError, match=WORDS):
        loader([ops.Brightness(1, 1)]).to_source(0)[4]


@pytest.mark.parametrize(
    ("chain", "dtype", "expected"),
    [
        ([ops.Brightness(1, 1)], "uint8", []),
        ([ops.Normalize(0, 255), ops.ColorJitter(0.4)], "uint8", []),
        ([ops.Normalize(0, 127.5), ops.ColorJitter(0.4)], "uint8", [1]),
        ([ops.Normalize(0, 32767), ops.ColorJitter(0.4)], "int16", [1]),
        ([ops.Normalize(0, 1), ops.ColorJitter(0.4)], "uint8", [1]),
        ([ops.Normalize(0, 255), ops.Invert(), ops.Gamma(1, 1)], "float32", [1]),
        (
            [ops.Cast("float32"), ops.Invert()],
            "uint8",
            [],
        ),  # which is told of when the loader is made
        ([ops.RandomFlip(), ops.Invert(), ops.Resize(5, 5), ops.Gamma(1, 1)], "float32", [1]),
        ([ops.Invert(), ops.Python(np.flipud), ops.Invert()], "float32", [0, 3]),
        (
            [ops.GaussianNoise(0.1, clip=False), ops.Normalize(0.5, 0.2), ops.GaussianBlur(3)],
            "float32",
            [],
        ),
        ([ops.Cast("float32"), ops.Gamma(1, 1)], "float64", [1]),
        ([ops.OneOf([ops.Cast("float32"), ops.Cast("float32")]), ops.Invert()], "uint8", [1]),
    ],
)
def test_nothing_is_asked_where_levels_are_known_and_once_where_not(chain, dtype, expected):
    graph = with_checks(compile_ops(gl.arrays(image=IMAGES.astype(dtype)).spec, chain))

    assert [place for place, op in enumerate(graph.ops) if isinstance(op, CheckLevels)] == expected
    assert [op for op in graph.ops if not isinstance(op, CheckLevels)] == chain


def test_draws_and_regions_are_those_of_before():
    chain = [
        ops.RandomCrop(10, 10),
        ops.Brightness(0.5, 1.5),
        ops.RandomFlip(),
        ops.RandomCrop(6, 6),
    ]
    graph = compile_ops(gl.arrays(image=PARTS).spec, chain)
    sizes = {"image": np.array([[12, 14]] * 6, np.int32)}
    draws, checked_draws = (
        each.draw(seed=1, epoch=2, records=np.arange(6), sizes=sizes)
        for each in (graph, with_checks(graph))
    )
    assert checked_draws[1] == {}
    for draw, checked_draw in zip(draws, [checked_draws[0], *checked_draws[2:]], strict=True):
        assert draw.keys() == checked_draw.keys()
        for name, values in draw.items():
            np.testing.assert_array_equal(values, checked_draw[name])


def test_a_loader_warns_of_nothing_and_gives_its_draws(caplog):
    with (
        caplog.at_level(logging.WARNING, logger="gpuload"),
        loader([ops.Brightness(1, 1)], PARTS, drawn=True) as load,
    ):
        assert list(load.batch_at(0).drawn) == ["Brightness/0"]
    assert caplog.records == []
