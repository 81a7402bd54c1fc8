"""The array executors: whole chains of ops, in the core and without, in threads, in parts and in
batches."""

from __future__ import annotations

import io
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpuload import core, ops
from gpuload.errors import DeviceError, SpecError
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor, rows, runs, stages
from gpuload.executors.array.assembly import make_stages
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.ops.base import Op, RowError
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import (
    assert_equal_but_for_tiny_halves,
    assert_identical,
    dali_form,
    numbers,
    uniform,
    varying,
)

needs_core = pytest.mark.skipif(core.native is None, reason=core.problem)
FILES = Field("image", np.dtype(np.uint8), (None,), encoded=True)
CIFAR = Spec((uniform(np.uint8, 3, 32, 32), uniform(np.uint8, name="label")))
CIFAR_OPS = (
    ops.Transpose("HWC"),
    ops.RandomCrop(32, pad=4),
    ops.RandomFlip(),
    ops.Normalize((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    ops.OneHot(256),
)
JPEG_OPS = (
    ops.Decode(),
    ops.RandomResizedCrop(24),
    ops.RandomFlip(),
    ops.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)),
)


def drawn(graph, fields, records):
    sizes = {
        name: image_sizes(graph.spec_in[name], fields[name], len(records)) for name in graph.touched
    }
    return graph.draw(seed=5, epoch=1, records=np.asarray(records), sizes=sizes)


def array_forms(graph, fields, draws):
    results = {
        name: [fields[name][row] for row in range(len(fields[name]))] for name in graph.touched
    }
    for place, (on, draw) in enumerate(zip(graph.targets, draws, strict=True)):
        for name in on:
            op = graph.op_on(place, name)
            rows = [
                {key: values[row] for key, values in draw.items()}
                for row in range(len(results[name]))
            ]
            results[name] = [
                op.array(np, x, row) for x, row in zip(results[name], rows, strict=True)
            ]
    return results


def values_of(spec, count):
    return {field.name: numbers(field, count) for field in spec}


def jpegs(count):
    """Return files of a few sizes."""
    rng = np.random.default_rng(2)
    files = []
    for row in range(count):
        file = io.BytesIO()
        small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
        small.resize((40 + 7 * row, 50 - row)).save(file, "PNG" if row % 4 == 3 else "JPEG")
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    return files


def outputs(graph, count):
    return {
        field.name: np.empty((count, *field.fixed_shape), field.dtype)
        for field in graph.spec_out
        if field.uniform
    }


@needs_core
def test_ops_that_fold_are_one_walk_over_the_batch():
    graph = compile_ops(CIFAR, CIFAR_OPS)

    stages = ArrayRowExecutor(graph).describe()["stages"]

    assert (
        stages == "image: walk of Transpose RandomCrop RandomFlip Normalize; label: array of OneHot"
    )


@needs_core
def test_images_are_decoded_resized_and_walked_over_one_after_the_other():
    graph = compile_ops(Spec((FILES,)), JPEG_OPS)

    stages = ArrayRowExecutor(graph).describe()["stages"]

    assert stages == "image: image of Decode RandomResizedCrop RandomFlip Normalize"


BYTES = Field("image", np.dtype(np.uint8), (40, 50, 3), axes="HWC")
CHAINS_OF_IMAGES = {
    "image: image of RandomResizedCrop": [ops.RandomResizedCrop(20, 24)],
    "image: image of RandomResizedCrop RandomFlip RandAugment, array of Erasing": [
        ops.RandomResizedCrop(20, 24), ops.RandomFlip(), ops.RandAugment(), ops.Erasing(p=0.5),
    ],
    "image: image of Resize RandomCrop ColorJitter Normalize Transpose": [
        ops.Resize(30, 34), ops.RandomCrop(24, 24, pad=3, fill=9), ops.ColorJitter(0.4, 0.4, 0.4, 0.1),
        ops.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)), ops.Transpose("CHW"),
    ],
    "image: image of RandomFlip GaussianBlur": [ops.RandomFlip(vertical=True), ops.GaussianBlur(5)],
    "image: image of Equalize Normalize": [ops.Equalize(p=0.5), ops.Normalize(120.0, 60.0)],
    "image: edit of Equalize AugMix": [ops.Equalize(p=0.5), ops.AugMix()],
    "image: walk of RandomFlip": [ops.RandomFlip()],
    "image: image of RandomResizedCrop Normalize": [
        ops.RandomResizedCrop(20, 24, interpolation="cubic"), ops.Normalize(120.0, 60.0),
    ],
}  # fmt: skip
SIZED = ("RandomResizedCrop", "Resize")


@pytest.mark.parametrize("stages", CHAINS_OF_IMAGES)
@pytest.mark.parametrize("varies", [False, True])
def test_images_go_all_the_way_at_once(stages, varies):
    chain = CHAINS_OF_IMAGES[stages]
    field = varying(np.uint8, 3) if varies else BYTES
    graph = compile_ops(Spec((field,)), chain)
    fields = {"image": numbers(field, 9)}
    draws = drawn(graph, fields, range(9))
    executor = ArrayRowExecutor(graph)

    results = executor.run(fields, draws, {})["image"]

    assert_identical(results, array_forms(graph, fields, draws)["image"])
    is_sized = type(chain[0]).__name__ in SIZED  # so that all have one size
    if core.native is not None and (is_sized or not varies):
        assert executor.describe()["stages"] == stages


@needs_core
def test_a_box_outside_of_its_image_is_an_error():
    graph = compile_ops(
        Spec((varying(np.uint8, 3),)), [ops.RandomResizedCrop(20, 24), ops.Equalize()]
    )
    images = [np.zeros((40, 50, 3), np.uint8), np.zeros((9, 9, 3), np.uint8)]
    draws = [
        {"start": np.int32([[1, 1], [1, 1]]), "shape": np.int32([[9, 9], [9, 9]])},
        {"apply": np.int32([1, 1])},
    ]

    with pytest.raises(SpecError, match="resize 9 x 9 pixels at 1, 1"):
        ArrayRowExecutor(graph).run({"image": images}, draws, {})


@pytest.mark.parametrize(
    "spec_and_ops", [(CIFAR, CIFAR_OPS), (Spec((FILES,)), JPEG_OPS)], ids=["cifar", "jpeg"]
)
def test_a_whole_chain_equals_the_array_forms(spec_and_ops):
    graph = compile_ops(*spec_and_ops)
    fields = {"image": jpegs(9)} if graph.spec_in["image"].encoded else values_of(CIFAR, 9)
    draws = drawn(graph, fields, range(9))

    results = ArrayRowExecutor(graph).run(fields, draws, {})

    expected = array_forms(graph, fields, draws)
    assert results.keys() == graph.touched
    for name in results:
        assert_identical(results[name], expected[name])


@given(st.data())
def test_any_chain_of_ops_equals_the_array_forms_and_dali(data):
    dtype = data.draw(st.sampled_from([np.uint8, np.float32]))
    field = data.draw(
        st.sampled_from([uniform(dtype, 3, 20, 24), uniform(dtype, 20, 24, 1), varying(dtype, 3)])
    )
    graph = data.draw(chains(field))
    fields = values_of(graph.spec_in, 5)
    draws = drawn(graph, fields, [4, 0, 3, 9, 7])

    result = ArrayRowExecutor(graph).run(fields, draws, {}).get("image", fields["image"])

    if graph.ops:
        expected = array_forms(graph, fields, draws)["image"]
        assert_identical(result, expected)
        if not any(isinstance(op, ops.Resize) for op in graph.ops):
            assert_equal_but_for_tiny_halves(
                dali_form(graph, fields["image"], draws, "cpu"), expected
            )


@st.composite
def chains(draw, field):
    """Give a graph of ops that fit one another."""
    crop = ops.RandomCrop(
        draw(st.integers(5, 20)), draw(st.integers(5, 20)), pad=draw(st.sampled_from([0, 0, 3]))
    )
    cast = st.builds(ops.Cast, st.sampled_from(["float32", "float16", "int16", "uint8"]))
    choices = [
        ops.RandomFlip(vertical=True),
        crop,
        ops.RandomCrop(4),
        ops.Normalize(100, (50,)),
        draw(cast),
    ]
    choices += [ops.Normalize(1, 2, dtype="float16"), ops.Transpose("CHW"), ops.Resize(20, 21)]
    choices += [
        ops.CenterCrop(7, 6),
        ops.Pad(80, fill=3),
        ops.Pad(margin=(1, 0, 2, 3)),
        ops.Brightness(0.5, 1.5),
    ]
    chain = [ops.Transpose("HWC")] if field.shape[0] == 3 else []
    for op in draw(st.lists(st.sampled_from(choices), max_size=5)):
        try:
            compile_ops(Spec((field,)), [*chain, op])
        except ValueError:
            continue
        chain.append(op)
    return compile_ops(Spec((field,)), chain)


@pytest.mark.parametrize(
    "spec_and_ops", [(CIFAR, CIFAR_OPS), (Spec((FILES,)), JPEG_OPS)], ids=["cifar", "jpeg"]
)
def test_parts_in_many_threads_fill_the_rows_of_one_batch(spec_and_ops):
    graph, count = compile_ops(*spec_and_ops), 24
    fields = {"image": jpegs(count)} if graph.spec_in["image"].encoded else values_of(CIFAR, count)
    executor, out = ArrayRowExecutor(graph), outputs(graph, count)

    def do(begin):
        rows = slice(begin, begin + 3)
        part = {name: values[rows] for name, values in fields.items()}
        executor.run(
            part,
            drawn(graph, part, range(begin, begin + 3)),
            {name: out[name][rows] for name in out},
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(do, range(0, count, 3)))

    expected = executor.run(fields, drawn(graph, fields, range(count)), {})
    for name in expected:
        assert_identical(out[name], expected[name])


def test_results_are_written_into_the_memory_that_is_given():
    graph = compile_ops(CIFAR, CIFAR_OPS)
    fields, out = values_of(CIFAR, 4), outputs(graph, 4)

    results = ArrayRowExecutor(graph).run(fields, drawn(graph, fields, range(4)), out)

    assert all(results[name] is out[name] for name in out)


def test_memory_that_is_not_in_c_order_is_filled_all_the_same():
    graph = compile_ops(CIFAR, CIFAR_OPS)
    fields = values_of(CIFAR, 4)
    draws = drawn(graph, fields, range(4))
    out = {"image": np.empty((3, 4, 32, 32), np.float32).transpose(1, 2, 3, 0)}

    ArrayRowExecutor(graph).run(fields, draws, out)

    assert_identical(out["image"], array_forms(graph, fields, draws)["image"])


@needs_core
@pytest.mark.parametrize(
    "spec_and_ops", [(CIFAR, CIFAR_OPS[:4]), (Spec((FILES,)), JPEG_OPS)], ids=["cifar", "jpeg"]
)
def test_after_the_first_batch_nothing_large_is_allocated(spec_and_ops):
    graph = compile_ops(*spec_and_ops)
    files = Ragged.of(jpegs(16)[:3] * 8, np.dtype(np.uint8))
    fields = {"image": files} if graph.spec_in["image"].encoded else values_of(CIFAR, 24)
    executor, out, draws = (
        ArrayRowExecutor(graph),
        outputs(graph, 24),
        drawn(graph, fields, range(24)),
    )
    executor.run(fields, draws, out)

    tracemalloc.start()
    executor.run(fields, draws, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 50_000  # one decoded image here has 6 kB, the batch 166 kB and 295 kB


def test_one_draw_serves_image_and_mask():
    spec = Spec((uniform(np.uint8, 20, 30, 3), uniform(np.uint8, 20, 30, 1, name="mask")))
    both = ("image", "mask")
    graph = compile_ops(spec, [ops.RandomCrop(8, on=both), ops.RandomFlip(on=both)])
    image = numbers(spec["image"], 6)
    fields = {"image": image, "mask": image[..., :1].copy()}

    results = ArrayRowExecutor(graph).run(fields, drawn(graph, fields, range(6)), {})

    assert_identical(results["image"][..., :1], results["mask"])


def test_images_that_stay_of_different_sizes_come_as_a_list():
    graph = compile_ops(Spec((FILES,)), [ops.Decode(), ops.RandomFlip(1), ops.Cast("float32")])
    fields = {"image": jpegs(3)}
    draws = drawn(graph, fields, range(3))

    images = ArrayRowExecutor(graph).run(fields, draws, {})["image"]

    assert isinstance(images, list)
    assert_identical(images, array_forms(graph, fields, draws)["image"])


def test_kept_images_do_not_share_memory():
    graph = compile_ops(Spec((FILES,)), [ops.Decode()])
    files = jpegs(2)

    first, second = ArrayRowExecutor(graph).run({"image": files}, [{}], {})["image"]

    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, np.asarray(Image.open(io.BytesIO(files[0]))))


def test_a_damaged_image_is_named_by_its_row_and_the_next_batch_is_right():
    graph = compile_ops(Spec((FILES,)), JPEG_OPS)
    files = jpegs(6)
    draws, executor = drawn(graph, {"image": files}, range(6)), ArrayRowExecutor(graph)
    broken = files[3].copy()
    broken[60:] ^= 0x3C
    whole = executor.run({"image": files}, draws, {})["image"]

    with pytest.raises(RowError) as caught:
        executor.run({"image": [*files[:3], broken, *files[4:]]}, draws, {})

    assert caught.value.row == 3
    assert_identical(executor.run({"image": files}, draws, {})["image"], whole)


def test_no_rows_make_no_rows():
    for graph in (compile_ops(CIFAR, CIFAR_OPS), compile_ops(Spec((FILES,)), JPEG_OPS)):
        fields = {
            field.name: [] if field.encoded else numbers(field, 1)[:0] for field in graph.spec_in
        }

        results = ArrayRowExecutor(graph).run(
            fields, drawn(graph, fields, np.zeros(0, np.int64)), outputs(graph, 0)
        )

        assert all(len(values) == 0 for values in results.values())


def test_batches_come_back_in_the_order_they_were_started():
    graph = compile_ops(CIFAR, [ops.Cast("float32")])
    executor = ArrayBatchExecutor(graph, device="cpu")
    for value in (1, 2):
        executor.start({"image": np.full((2, 3, 32, 32), value, np.uint8)}, [{}])

    assert [executor.finish()["image"].max() for _ in range(2)] == [1, 2]


def test_finish_without_a_start_is_an_error():
    graph, fields = compile_ops(CIFAR, CIFAR_OPS), values_of(CIFAR, 2)
    executor = ArrayBatchExecutor(graph, device="cpu")
    executor.start(fields, drawn(graph, fields, range(2)))
    executor.reset()

    with pytest.raises(SpecError, match="no batch was started"):
        executor.finish()


@pytest.mark.parametrize(
    "spec_and_ops", [(CIFAR, CIFAR_OPS), (Spec((FILES,)), JPEG_OPS)], ids=["cifar", "jpeg"]
)
def test_a_chain_on_whole_batches_equals_the_array_forms(spec_and_ops):
    graph = compile_ops(*spec_and_ops)
    fields = {"image": jpegs(5)} if graph.spec_in["image"].encoded else values_of(CIFAR, 5)
    draws = drawn(graph, fields, range(5))
    executor = ArrayBatchExecutor(graph, device="cpu")

    executor.start(fields, draws)

    results = executor.finish()
    for name, expected in array_forms(graph, fields, draws).items():
        assert_identical(results[name], expected)


def test_a_batch_with_values_that_an_op_cannot_take_raises_and_the_next_one_is_right():
    graph = compile_ops(
        Spec((uniform(np.int16, name="label"),)), [ops.Cast("int32", on="label"), ops.OneHot(3)]
    )
    executor = ArrayBatchExecutor(graph, device="cpu")
    for labels in ([0, 1], [2, 3], [1, 1]):
        executor.start({"label": np.array(labels, np.int16)}, [{}, {}])

    assert executor.finish()["label"].argmax(axis=1).tolist() == [0, 1]
    with pytest.raises(RowError, match="label 3") as caught:
        executor.finish()
    assert caught.value.row == 1
    assert executor.finish()["label"].argmax(axis=1).tolist() == [1, 1]


@dataclass(frozen=True)
class Negative(Op):
    """255 minus each pixel: a colour op with an array form only, which notes what it is given."""

    calls: ClassVar[list[Any]] = []

    def field_after(self, field):
        return field

    def array(self, xp, x, draw):
        self.calls.append((x.shape, x.nbytes, x.ctypes.data))
        return 255 - x

    def array_batch(self, xp, x, draw):
        return self.array(xp, x, draw)


def photographs(count):
    """Return a chain around a colour op, and images for it."""
    chain = [
        ops.RandomCrop(200, 210),
        Negative(),
        ops.RandomFlip(),
        ops.Normalize((123.7, 116.3, 103.5), (58, 57, 59)),
    ]
    graph = compile_ops(Spec((uniform(np.uint8, 220, 230, 3),)), chain)
    fields = values_of(graph.spec_in, count)
    return graph, fields, drawn(graph, fields, range(count))


def test_a_colour_op_of_one_s_own_stands_between_crop_and_normalise():
    graph, fields, draws = photographs(6)

    images = ArrayRowExecutor(graph).run(fields, draws, {})["image"]

    assert_identical(images, array_forms(graph, fields, draws)["image"])


def test_an_op_without_a_fast_form_is_run_while_its_images_are_in_the_cache(monkeypatch):
    graph, fields, draws = photographs(6)
    executor, order = ArrayRowExecutor(graph), []
    for kind in (stages.WalkStage, stages.ArrayStage):
        run = kind.run

        def noted(self, x, plan, rows, *arguments, run=run):
            order.append((str(self).split()[0], rows.start))
            return run(self, x, plan, rows, *arguments)

        monkeypatch.setattr(kind, "run", noted)
    Negative.calls.clear()

    executor.run(fields, draws, outputs(graph, 6))

    # Each tile goes through all stages before the next one, and a tile is no larger than the cache.
    starts = [start for kind, start in order if kind == "array"]
    forms = [str(stage).split()[0] for stage in make_stages(graph, "image")]
    assert order == [(form, start) for start in starts for form in forms][: len(order)]
    assert len(order) == len(starts) * len(forms)
    assert starts == sorted(set(starts))
    assert max(num_bytes for _, num_bytes, _ in Negative.calls) <= max(
        runs.TILE_BYTES, 200 * 210 * 3
    )


@needs_core
def test_what_is_made_on_the_way_lies_in_the_same_memory_for_every_tile():
    graph, fields, draws = photographs(6)
    Negative.calls.clear()

    ArrayRowExecutor(graph).run(fields, draws, outputs(graph, 6))

    assert len({address for _, _, address in Negative.calls}) == 1


def test_tiles_of_any_size_make_the_same(monkeypatch):
    graph, count = (
        compile_ops(CIFAR, [*CIFAR_OPS[:2], Negative(), *CIFAR_OPS[2:4], ops.Cast("float16")]),
        23,
    )
    fields = values_of(graph.spec_in, count)
    draws = drawn(graph, fields, range(count))
    expected = array_forms(graph, fields, draws)["image"]

    for tile_bytes in (1, 3000, 10_000, 1 << 30):
        monkeypatch.setattr(runs, "TILE_BYTES", tile_bytes)
        assert_identical(ArrayRowExecutor(graph).run(fields, draws, {})["image"], expected)


def test_the_row_of_an_error_is_counted_over_all_tiles(monkeypatch):
    graph = compile_ops(Spec((uniform(np.int16, name="label"),)), [ops.OneHot(3)])
    monkeypatch.setattr(runs, "TILE_BYTES", 30)

    with pytest.raises(RowError, match="label 9") as caught:
        ArrayRowExecutor(graph).run(
            {"label": np.array([0, 1, 2, 1, 2, 0, 9, 9], np.int16)}, [{}], {}
        )

    assert caught.value.row == 6


def test_an_array_form_that_is_not_what_the_spec_says_is_an_error():
    @dataclass(frozen=True)
    class Liar(Negative):
        def field_after(self, field):
            return field.with_(dtype=np.dtype(np.int16))

    graph = compile_ops(Spec((uniform(np.uint8, 4, 4, 3),)), [Liar()])

    with pytest.raises(SpecError, match=r"Liar.*uint8.*\n.*int16"):
        ArrayRowExecutor(graph).run(values_of(graph.spec_in, 2), [{}], {})


RAGGED = Field("x", np.dtype(np.int16), (None,))


@pytest.mark.parametrize("tile_bytes", [1, 20, 1 << 18])
def test_ragged_fields_go_in_and_out_as_one_payload(tile_bytes, monkeypatch):
    monkeypatch.setattr(runs, "TILE_BYTES", tile_bytes)
    graph = compile_ops(Spec((RAGGED,)), [ops.Cast("float32"), ops.Normalize(3, 2)])
    values = Ragged(np.arange(30, dtype=np.int16), np.array([2, 5, 5, 20, 29]))

    result = ArrayRowExecutor(graph).run({"x": values}, [{}, {}], {})["x"]

    assert isinstance(result, Ragged)
    assert_identical(list(result), [(row.astype(np.float32) - 3) / 2 for row in values])


def test_a_ragged_field_may_be_given_as_a_list_and_may_have_no_rows():
    graph = compile_ops(Spec((RAGGED,)), [ops.Cast("float32")])
    executor = ArrayRowExecutor(graph)

    result = executor.run({"x": [np.array([1, 2], np.int16), np.array([], np.int16)]}, [{}], {})[
        "x"
    ]
    empty = executor.run({"x": Ragged.of([], np.dtype(np.int16))}, [{}], {})["x"]

    assert [row.tolist() for row in result] == [[1, 2], []]
    assert (isinstance(empty, Ragged), len(empty), empty.dtype) == (True, 0, np.float32)


def test_ragged_images_of_which_the_height_varies_are_cropped_to_one_size():
    spec = Spec((Field("image", np.dtype(np.uint8), (None, 30, 3), axes="HWC"),))
    graph = compile_ops(spec, [ops.RandomCrop(8), ops.RandomFlip(), ops.Normalize(1, 2)])
    fields = values_of(spec, 5)
    draws = drawn(graph, fields, range(5))

    images = ArrayRowExecutor(graph).run(fields, draws, {})["image"]

    assert isinstance(fields["image"], Ragged)
    assert_identical(images, array_forms(graph, fields, draws)["image"])


def test_encoded_images_come_as_ragged_or_as_a_list():
    graph = compile_ops(Spec((FILES,)), JPEG_OPS)
    files = jpegs(5)
    ragged = Ragged.of(files, np.dtype(np.uint8))

    executor, draws = ArrayRowExecutor(graph), drawn(graph, {"image": ragged}, range(5))

    images = executor.run({"image": ragged}, draws, {})["image"]
    assert_identical(images, executor.run({"image": files}, draws, {})["image"])


def test_without_the_core_the_same_is_made_and_the_description_says_so(monkeypatch):
    graph = compile_ops(CIFAR, CIFAR_OPS)
    fields = values_of(CIFAR, 3)
    draws = drawn(graph, fields, range(3))
    with_core = ArrayRowExecutor(graph).run(fields, draws, {})

    monkeypatch.setattr(core, "native", None)
    executor = ArrayRowExecutor(graph)

    assert executor.describe()["executor"] == "array, NumPy"
    for name, values in executor.run(fields, draws, {}).items():
        assert_identical(values, with_core[name])


@pytest.mark.gpu
def test_decoding_on_a_gpu_is_refused_when_the_executor_is_made():
    with pytest.raises(DeviceError, match="CuPy does not decode images"):
        ArrayBatchExecutor(compile_ops(Spec((FILES,)), JPEG_OPS), device="gpu:0")


@pytest.mark.gpu
def test_a_chain_on_cupy_equals_the_array_forms():
    from gpuload import device

    graph = compile_ops(CIFAR, CIFAR_OPS)
    fields = values_of(CIFAR, 7)
    draws = drawn(graph, fields, range(7))
    cupy = device.cupy()

    executor = ArrayBatchExecutor(graph, device="gpu:0")
    executor.start({name: cupy.asarray(fields[name]) for name in fields}, draws)

    results = executor.finish()
    for name, expected in array_forms(graph, fields, draws).items():
        np.testing.assert_allclose(results[name].get(), expected, rtol=1e-6, atol=1e-6)


def test_of_images_that_become_views_few_are_in_memory_and_fewer_of_large_ones():
    def count(num_bytes, **fields):
        files = Ragged(
            np.zeros(32 * num_bytes, np.uint8), np.arange(33) * num_bytes
        )  # memory that nothing touches
        return rows._copied_rows({"image": files, **fields}, 32)

    assert [count(num_bytes) for num_bytes in (0, 100, 100_000, 250_000, 10_000_000)] == [
        16,
        16,
        16,
        8,
        4,
    ]
    assert count(100_000, second=[np.zeros(10_000_000, np.uint8)] * 32) == 4
