"""Python with several fields: fields in, fields out; beside DALI and on a GPU, where it runs on the
host."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops
from gpuload.errors import RowError, SpecError
from gpuload.executors import choose
from gpuload.graph.graph import compile_ops
from gpuload.ops import Dali, Python
from gpuload.ops.base import stays_on_host
from gpuload.spec import Field, Spec
from tests import simdevice

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (10, 6, 5, 3), dtype=np.uint8)
BOXES = [RANDOM.random((row % 4, 4), np.float32) for row in range(10)]
FIELDS = {"boxes": ("f4", (None, 4))}


def source():
    return gl.zip(
        gl.arrays(image=IMAGES, label=np.arange(10)), gl.records(10, boxes_of, fields=FIELDS)
    )


def boxes_of(rows):
    return {"boxes": [BOXES[row] for row in rows]}


def loader_of(*chain, **arguments):
    return gl.Loader(
        source(), **{"batch_size": 4, "ops": list(chain), "device": "cpu", **arguments}
    )


def rows_of(load, name):
    """Return the rows of a field in the order of the records."""
    with load:
        rows = {
            record: row
            for batch in load
            for record, row in zip(batch.records, batch[name], strict=True)
        }
    return [
        np.asarray(rows[record].get() if hasattr(rows[record], "get") else rows[record])
        for record in sorted(rows)
    ]


def assert_same(rows, expected):
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        other = np.asarray(other)
        assert (row.dtype, row.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(row, other)


def flip(image, boxes, rng):
    """Mirror the image and its boxes, (left, top, right, bottom) as parts of its width and height,
    or neither."""
    if rng.random() < 0.5:
        return image, boxes
    left, top, right, bottom = boxes.T
    return image[:, ::-1], np.stack([1 - right, top, 1 - left, bottom], axis=1)


FLIP = Python(flip, on=("image", "boxes"), out={})


def by_hand(images, boxes, mirrored):
    flipped = [np.stack([1 - b[:, 2], b[:, 1], 1 - b[:, 0], b[:, 3]], axis=1) for b in boxes]
    return (
        [i[:, ::-1] if is_so else i for i, is_so in zip(images, mirrored, strict=True)],
        [f if is_so else b for f, b, is_so in zip(flipped, boxes, mirrored, strict=True)],
    )


@pytest.mark.parametrize(
    "arguments", [{}, {"batch_size": 1}, {"batch_size": 10, "num_threads": 3, "shuffle": True}]
)
def test_an_image_and_its_boxes_are_mirrored_by_one_draw(arguments):
    images = rows_of(loader_of(FLIP, seed=2, **arguments), "image")
    mirrored = [
        not np.array_equal(image, other) for image, other in zip(images, IMAGES, strict=True)
    ]
    expected = by_hand(IMAGES, BOXES, mirrored)

    assert 0 < sum(mirrored) < 10
    assert_same(images, expected[0])
    assert_same(rows_of(loader_of(FLIP, seed=2, **arguments), "boxes"), expected[1])


def test_it_stands_between_ops_of_single_fields():
    chain = [ops.CenterCrop(4), Python(lambda image, label: (image[::-1], label + 1), on=("image", "label")),
             ops.Normalize(5, 2), ops.Cast("float32", on="label")]  # fmt: skip

    load = loader_of(*chain)

    assert_same(rows_of(load, "image"), (IMAGES[:, 1:5, :4][:, ::-1].astype(np.float32) - 5) / 2)
    assert_same(rows_of(loader_of(*chain), "label"), np.arange(1, 11, dtype=np.float32))


def test_a_dict_may_hold_new_fields_and_what_is_not_in_it_stays():
    def more(image, boxes):
        return {
            "area": (boxes[:, 2:] - boxes[:, :2]).prod(axis=1),
            "mean": image.mean(dtype=np.float32),
        }

    op = Python(more, on=("image", "boxes"), out={"area": ("f4", (None,)), "mean": "float32"})
    load = loader_of(op, ops.Normalize(1, 2, on="image"), ops.Cast("float16", on="mean"))

    assert load.spec_out.names == ("image", "label", "boxes", "area", "mean")
    batch = load.batch_at(0)
    assert isinstance(batch["area"], gl.Ragged)
    assert_same(list(batch["boxes"]), BOXES[:4])
    assert_same(list(batch["area"]), [(b[:, 2:] - b[:, :2]).prod(axis=1) for b in BOXES[:4]])
    expected = np.array([image.mean(dtype=np.float32) for image in IMAGES[:4]])
    np.testing.assert_array_equal(batch["mean"], expected.astype(np.float16))
    np.testing.assert_array_equal(batch["image"], (IMAGES[:4].astype(np.float32) - 1) / 2)
    assert_same(
        rows_of(loader_of(op, output="area"), "area"),
        [(b[:, 2:] - b[:, :2]).prod(axis=1) for b in BOXES],
    )


@pytest.mark.parametrize(
    "out", [None, {"image": gl.Field("image", "u1", (6, 5, 3)), "big": ("f8", (2,))}]
)
def test_of_fields_of_one_shape_it_is_found_out_by_zeros_what_comes(out):
    def two(image, label):
        return {"image": 255 - image, "big": np.array([label, image.sum()], np.float64)}

    load = loader_of(Python(two, on=("image", "label"), out=out))

    assert load.spec_out["big"] == Field("big", np.dtype(np.float64), (2,))
    expected = [[row, image.sum()] for row, image in enumerate(IMAGES)]
    assert_same(rows_of(load, "big"), np.array(expected, np.float64))


def test_of_fields_that_vary_it_is_found_out_by_zeros_of_two_sizes_what_comes():
    def shifted(image, boxes):
        return {
            "image": image / np.float32(2),
            "boxes": boxes + 1,
            "size": np.array(image.shape[:2]),
        }

    load = loader_of(Python(shifted, on=("image", "boxes")))

    shapes = {
        name: (load.spec_out[name].dtype.name, load.spec_out[name].shape)
        for name in ("image", "boxes", "size")
    }
    assert shapes == {
        "image": ("float32", (6, 5, 3)),
        "boxes": ("float32", (None, 4)),
        "size": ("int64", (2,)),
    }
    assert_same(rows_of(load, "boxes"), [boxes + 1 for boxes in BOXES])


def test_one_for_many_gets_arrays_of_records():
    def many(image, label, rng):
        assert len(image) == len(label) == len(rng)
        return {"image": image + 1, "noise": np.array([its.random() for its in rng])}

    def single(image, label, rng):
        return {"image": image + 1, "noise": np.array(rng.random())}

    on = ("image", "label")
    noise = rows_of(loader_of(Python(many, on=on, batch=True), batch_size=7), "noise")

    assert_same(noise, rows_of(loader_of(Python(single, on=on)), "noise"))
    assert_same(rows_of(loader_of(Python(many, on=on, batch=True)), "image"), IMAGES + 1)


def test_images_of_different_sizes_keep_theirs_and_are_cropped_behind_it():
    images = [RANDOM.integers(0, 256, (8 + row, 9, 3), np.uint8) for row in range(6)]
    read = gl.records(
        6, lambda rows: {"image": [images[row] for row in rows], "n": rows},
        fields={"image": ("u1", (None, None, 3)), "n": ("i8", ())},
    )  # fmt: skip
    chain = [
        Python(lambda image, n: (image[::-1], n), on=("image", "n"), out={}),
        ops.CenterCrop(6),
    ]

    results = rows_of(gl.Loader(read, 4, ops=chain, device="cpu"), "image")

    tops = [round((len(image) - 6) / 2) if len(image) % 2 == 0 else None for image in images]
    for result, image, top in zip(results, images, tops, strict=True):
        if top is not None:
            np.testing.assert_array_equal(result, image[::-1][top : top + 6, 1:7])


def test_a_new_image_whose_size_nobody_knows_is_not_drawn_for():
    spec = Spec((Field("image", np.dtype(np.uint8), (None, None, 3), axes="HWC"),))
    thumb = Python(lambda image: {"thumb": image[::2]}, out={"thumb": ("u1", (None, None, 3))})

    for op in (
        ops.RandomCrop(3, on="thumb"),
        ops.RandomResizedCrop(3, on="thumb"),
        ops.Resize(shorter=3, on="thumb"),
    ):
        with pytest.raises(SpecError, match=r"size of field 'thumb'.*not known"):
            compile_ops(spec, [thumb, op])
    compile_ops(spec, [thumb, ops.Resize(4, 4, on="thumb"), ops.RandomCrop(3, on="thumb")])


def test_an_op_of_images_that_gets_boxes_names_the_mark_and_the_op_that_changes_both():
    with pytest.raises(SpecError, match="field 'boxes'") as caught:
        loader_of(ops.RandomFlip(on=("image", "boxes")))

    assert "source.mark(boxes='xyxy')" in caught.value.remedy
    assert "gl.ops.Python, see docs/own-op.md" in caught.value.remedy


class Unlucky(KeyError):
    """An error of the user's."""


def test_its_error_reaches_the_caller_as_itself_with_the_record_named():
    def fails(image, label):
        if label == 7:
            raise Unlucky("seven")
        return image, label

    with (
        loader_of(Python(fails, on=("image", "label"))) as load,
        pytest.raises(Unlucky, match="seven") as caught,
    ):
        list(load)

    assert caught.value.__notes__ == [
        f"in gl.ops.Python({fails.__qualname__}), arrays, record 7 | gl.records, record 7"
    ]


@pytest.mark.parametrize(
    ("function", "out", "text"),
    [
        (lambda image, boxes: image, {}, r"returned ndarray for the fields \['image', 'boxes'\]"),
        (lambda image, boxes: (image,), {}, r"returned 1 values for the fields"),
        (lambda image, boxes: (image / 2, boxes), {}, r"\('image'\) returned float64 \(6, 5, 3\)"),
        (lambda image, boxes: (image, boxes[:, :2]), {}, r"\('boxes'\) returned float32 \(0, 2\)"),
        (lambda image, boxes: {"other": image}, {}, r"\['other'\] are not declared"),
        (lambda image, boxes: {"image": image}, {"new": "f4"}, r"\['new'\] are missing"),
    ],
)
def test_a_result_that_is_not_what_was_declared_is_an_error_that_names_the_record(
    function, out, text
):
    op = Python(function, on=("image", "boxes"), out=out)

    with loader_of(op) as load, pytest.raises(SpecError, match=text) as caught:
        next(iter(load))

    assert "record 0" in caught.value.__notes__[0]


def test_what_does_not_fit_is_refused_when_the_loader_is_made():
    both = ("image", "boxes")
    wrong = {
        r"for zeros of \(32, 4\), \(40, 4\) it returned float32 \(0, 4\)": Python(
            lambda image, boxes: (image, boxes[boxes[:, 2] > 0]), on=both
        ),
        r"two sizes it returned the fields \[\['image'\], \['boxes'\]\]": Python(
            lambda image, boxes: {"image": image} if len(boxes) < 35 else {"boxes": boxes}, on=both
        ),
        r"missing a required argument": Python(lambda image, boxes, label: image, on=both, out={}),
        r"too many positional arguments": Python(
            lambda image, boxes: image, on=(*both, "label"), out={}
        ),
        r"names the fields \['label'\]": Python(
            lambda image, boxes: image, on=both, out={"label": "f4"}
        ),
        r"new field 'a' has no dtype": Python(
            lambda image, boxes: image, on=both, out={"a": {"shape": (3,)}}
        ),
        r"batch=True": Python(lambda image, boxes: image, on=both, out={}, batch=True),
    }
    for text, op in wrong.items():
        with pytest.raises(SpecError, match=text) as caught:
            loader_of(op)
        assert caught.value.remedy


def test_a_function_of_one_field_that_expects_a_record_is_told_how_to_get_all():
    def record(fields):
        return fields["image"]

    with pytest.raises(SpecError, match="called with each of") as caught:
        loader_of(Python(record, on=("image", "label")))

    assert "write def record(image, label)" in caught.value.cause


@pytest.mark.parametrize(
    "out", ["float32", ("float32", (None, None, 3)), gl.Field("image", "f4", (6, 5, 3)), np.float32]
)
def test_out_takes_what_features_take(out):
    assert_same(
        rows_of(loader_of(Python(lambda x: x / np.float32(2), out=out)), "image"),
        IMAGES / np.float32(2),
    )


def halves(image, label):
    return {"image": image, "half": np.float32(label / 2)}


def test_it_can_be_pickled_with_its_loader_and_resumed():
    op = Python(halves, on=("image", "label"), out={"half": "float32"})
    with loader_of(op) as load, pickle.loads(pickle.dumps(load)) as again:
        next(iter(load))
        state = load.state_dict()
        again.load_state_dict(state)

        np.testing.assert_array_equal(
            next(iter(again))["half"], np.arange(4, 8, dtype=np.float32) / 2
        )


def test_a_cached_loader_keeps_the_new_fields():
    chain = [
        Python(halves, on=("image", "label"), out={"half": "float32"}),
        ops.RandomFlip(),
        ops.Cast("f8", on="half"),
    ]
    with loader_of(*chain, output=("image", "half")) as load, load.cache(memory="1MB") as cached:
        assert_same(rows_of(cached, "half"), np.arange(10) / 2)


# Beside DALI, and on a GPU: on the host, in front of the others


def test_beside_dali_it_runs_on_the_host_before():
    pytest.importorskip("nvidia.dali")
    chain = [ops.CenterCrop(4), FLIP, Dali("flip", horizontal=0, vertical=1), ops.Normalize(5, 2)]
    load, plain = loader_of(*chain, seed=2), loader_of(chain[0], FLIP, seed=2)

    assert "dali" in load.describe()
    assert "together by Python" in load.describe()
    expected = [(image[::-1].astype(np.float32) - 5) / 2 for image in rows_of(plain, "image")]
    assert_same(rows_of(load, "image"), expected)
    boxes = rows_of(loader_of(chain[0], FLIP, seed=2), "boxes")
    assert_same(rows_of(loader_of(*chain, seed=2, batch_size=3, num_threads=3), "boxes"), boxes)


@pytest.mark.parametrize("executor", ["dali"])
def test_with_executor_dali_the_ops_behind_it_run_there(executor):
    pytest.importorskip("nvidia.dali")
    chain = [
        ops.RandomCrop(4),
        Python(lambda x: 255 - x),
        ops.RandomFlip(),
        ops.Normalize(5, 2),
        ops.OneHot(10),
    ]

    assert_same(
        rows_of(loader_of(*chain, executor=executor), "image"), rows_of(loader_of(*chain), "image")
    )


def test_behind_an_operator_of_dali_on_a_gpu_it_is_refused_by_name():
    graph = compile_ops(source().spec, [Dali("flip", horizontal=1), Python(lambda x: x, out={})])

    with pytest.raises(SpecError, match=r"Python.* behind Dali") as caught:
        choose.choose(graph, "gpu:0")

    assert "put Python before Dali" in caught.value.remedy


def mean_boxes(image, boxes):
    """Return the image turned over, its boxes in pixels, and two new fields."""
    return {
        "image": image[::-1],
        "boxes": boxes * np.float32(image.shape[1]),
        "mean": np.float32(image.mean()),
        "name": f"{len(boxes)} boxes",
    }


@pytest.mark.parametrize("batch_size", [1, 4, 10])
def test_behind_an_operator_of_dali_it_gets_and_makes_several_fields(batch_size):
    pytest.importorskip("nvidia.dali")
    out = {"mean": "float32", "name": "str"}
    chain = [
        ops.RandomFlip(),
        Python(lambda label: label + 1, on="label", out={}),
        Dali("flip", horizontal=0, vertical=1),
        Python(mean_boxes, on=("image", "boxes"), out=out),
        ops.Normalize(5, 2),
        Python(noisy, on=("mean", "label"), out={}),
    ]
    load = loader_of(*chain, seed=2, batch_size=batch_size, shuffle=True)
    flipped = rows_of(loader_of(ops.RandomFlip(), seed=2, batch_size=3), "image")

    assert "behind it" in load.describe()
    assert_same(rows_of(load, "image"), [(image.astype(np.float32) - 5) / 2 for image in flipped])
    assert_same(
        rows_of(loader_of(*chain, batch_size=batch_size), "boxes"),
        [boxes * np.float32(5) for boxes in BOXES],
    )
    assert [str(name) for name in rows_of(loader_of(*chain), "name")] == [
        f"{row % 4} boxes" for row in range(10)
    ]
    alone = rows_of(loader_of(*chain, seed=2, batch_size=3), "mean")
    assert_same(rows_of(loader_of(*chain, seed=2, batch_size=batch_size), "mean"), alone)
    assert_same(rows_of(loader_of(*chain), "label"), np.arange(1, 11))


def noisy(mean, label, rng):
    return mean + np.float32(rng.random()), label


def refuse_three(image, label):
    if label == 3:
        raise ValueError("three")
    return image, label


def find_damage(image, label):
    if label == 3:
        raise RowError(0, "three", cause="it is three", remedy="leave it out")
    return image, label


def test_what_it_raises_behind_dali_names_the_function_and_the_record():
    pytest.importorskip("nvidia.dali")
    chain = [Dali("flip", horizontal=1), Python(refuse_three, on=("image", "label"), out={})]
    load = loader_of(*chain)

    with load, pytest.raises(ValueError, match="three") as caught:
        load.batch_at(0)
    assert "gl.ops.Python(refuse_three)" in str(caught.value.__notes__)
    assert "record 3" in str(caught.value.__notes__)

    damaged = [chain[0], Python(find_damage, on=("image", "label"), out={})]
    with loader_of(*damaged, on_error="skip", max_bad=0.5) as skipping:
        assert next(iter(skipping)).valid.tolist() == [True, True, True, False]
        assert {bad.record for bad in skipping.bad_records()} == {3}


def test_errors_of_a_list_with_both_name_the_op_at_fault():
    pytest.importorskip("nvidia.dali")
    wrong_out = Python(lambda image, label: (image[:3], label), on=("image", "label"), out={})
    for chain, words in (
        (
            [Dali("flip", horizontal=1), Python(lambda x: x, out={}), Dali("flip", vertical=1)],
            "behind Python|Dali.*behind",
        ),
        (
            [Dali("cast", dtype="float32"), Python(refuse_three, on=("image", "label"), out={})],
            "field 'image': DALI makes",
        ),
        ([Dali("flip", horizontal=1), wrong_out], "lambda.* returned"),
        (
            [Python(lambda a, b, c: a, on=("image", "label"), out={}), Dali("flip", horizontal=1)],
            "gets|lambda",
        ),
    ):
        with pytest.raises(gl.GpuloadError, match=words) as caught, loader_of(*chain) as load:
            load.batch_at(0)
        assert caught.value.remedy


def test_decoded_images_go_through_it_to_dali(tmp_path):
    pytest.importorskip("nvidia.dali")
    Image = pytest.importorskip("PIL.Image")
    for row, image in enumerate(IMAGES):
        Image.fromarray(np.repeat(image, 4, axis=row % 2)).save(tmp_path / f"{row}.png")
    files = gl.images(tmp_path, labels=None)
    invert = Python(lambda image: 255 - image, out={})
    crop = [ops.RandomResizedCrop(8), ops.Normalize(5, 2)]

    def load(*chain, **arguments):
        return gl.Loader(files, 4, ops=list(chain), seed=1, device="cpu", **arguments)

    with_dali = rows_of(load(ops.Decode(), invert, Dali("flip", horizontal=1), *crop), "image")
    expected = rows_of(
        load(ops.Decode(), invert, Python(lambda x: x[:, ::-1], out={}), *crop), "image"
    )
    for row, other in zip(with_dali, expected, strict=True):
        np.testing.assert_allclose(
            row, other, atol=0.5
        )  # a level, by resizing; Normalize divides it by 2


@pytest.fixture(params=["sim", pytest.param("cupy", marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    if request.param == "cupy":
        yield None
        return
    simulation = simdevice.install(monkeypatch, seed=11)
    yield simulation
    gc.collect()
    simulation.finish()


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True, "batch_size": 3, "num_threads": 3}])
def test_on_a_gpu_it_runs_on_the_host_and_the_others_behind_it(gpu, arguments):
    more = Python(lambda image, label: {"half": np.float32(label / 2), "many": np.arange(label)}, on=("image", "label"),
                  out={"half": "float32", "many": ("int64", (None,))})  # fmt: skip
    chain = [ops.RandomCrop(4), FLIP, more, ops.Normalize(5, 2), ops.OneHot(10)]
    for name in ("image", "boxes", "label", "half", "many"):
        expected = rows_of(loader_of(*chain, seed=2), name)

        load = loader_of(*chain, seed=2, device="gpu", executor="array", **arguments)

        assert_same(rows_of(load, name), expected)


def test_on_a_gpu_what_only_numpy_makes_needs_no_op_there(gpu):
    load = loader_of(FLIP, seed=2, device="gpu", output=("image", "label"))

    assert_same(rows_of(load, "image"), rows_of(loader_of(FLIP, seed=2), "image"))


def turn(image, label):
    """Return the image mirrored and inverted, and twice the label: with operators alone."""
    return 255 - image[:, ::-1], label * 2


def turn_batch(image):
    return image[:, ::-1]


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True, "batch_size": 3}])
def test_with_on_device_it_gets_arrays_of_the_gpu_between_other_ops_there(gpu, arguments):
    chain = [
        ops.RandomCrop(4),
        Python(turn, on=("image", "label"), on_device=True),
        ops.Normalize(5, 2),
    ]
    chain += [
        Python(turn_batch, batch=True, on_device=True),
        Python(lambda boxes: boxes + 1, on="boxes", out={}, on_device=True),
    ]
    kinds = set()
    probe = Python(
        lambda label: kinds.add(type(label)) or label, on="label", out={}, on_device=True
    )

    for name in ("image", "label", "boxes"):
        load = loader_of(*chain, probe, seed=2, device="gpu", executor="array", **arguments)

        assert_same(rows_of(load, name), rows_of(loader_of(*chain, seed=2), name))

    assert "host" not in load.describe().partition("executor")[2].partition("\n")[0]
    assert np.ndarray not in kinds


def test_with_on_device_it_stands_behind_an_operator_of_dali_on_a_gpu():
    function = Python(lambda x: 255 - x, out={}, on_device=True)
    graph = compile_ops(source().spec, [Dali("flip", horizontal=1), function])

    assert choose.in_dali(graph, "gpu:0") == (0,)
    assert choose.split_ops(graph, choose.choose(graph, "gpu:0"), "gpu:0") == ((), (0, 1))
    pytest.importorskip("nvidia.dali")
    on_cpu = rows_of(loader_of(Dali("flip", horizontal=1), function), "image")
    assert_same(on_cpu, 255 - IMAGES[:, :, ::-1])


def test_with_on_device_an_array_of_the_host_is_refused(gpu):
    op = Python(lambda x: np.zeros((6, 5, 3), np.uint8), on_device=True)

    with (
        loader_of(op, device="gpu", executor="array") as load,
        pytest.raises(SpecError, match="on a GPU") as caught,
    ):
        load.batch_at(0)

    assert "leave on_device out" in caught.value.remedy
    assert rows_of(loader_of(op), "image")[0].max() == 0


def test_with_on_device_it_takes_no_generator_and_text_stays_on_the_host():
    with pytest.raises(SpecError, match="takes rng"):
        Python(noisy, on_device=True)

    op = Python(lambda text: text, on="text", out={}, on_device=True)
    assert stays_on_host(op, Spec((Field("text", np.dtype(object), (), text="str"),)))
    assert not op.traits.execution.needs_numpy
