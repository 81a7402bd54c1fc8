"""DALI executor: what it promises beside the contract of the ops."""

from __future__ import annotations

import gc
import importlib
import io
import os
import subprocess
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from gpuload import device as devices
from gpuload.errors import (
    ClosedError,
    DeviceError,
    MissingPackageError,
    SpecError,
    UnknownFieldError,
)
from gpuload.executors.dali import DaliExecutor
from gpuload.executors.dali.executor import load
from gpuload.executors.dali.program import DALI_DTYPES
from gpuload.graph.graph import Graph, compile_ops
from gpuload.ops.base import Draw, Op, RowError, Sizes
from gpuload.ops.crop.resize import RandomResizedCrop
from gpuload.ops.geometry.flip import RandomFlip
from gpuload.ops.traits import Traits, ValueCheck
from gpuload.ops.value.decode import Decode
from gpuload.ops.value.normalize import Normalize
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from tests import forkserver
from tests.threads import until

pytest.importorskip("nvidia.dali")


@dataclass(frozen=True)
class Window(Op):
    """Cut ``side`` x ``side`` pixels at a drawn place."""

    side: int

    num_uniforms: ClassVar[int] = 2

    def field_after(self, field: Field) -> Field:
        assert field.shape is not None
        return field.with_(shape=(self.side, self.side, field.shape[2]))

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        return {"start": (u * (size - self.side + 1)).astype(np.int32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        top, left = draw["start"]
        return x[top : top + self.side, left : left + self.side]

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        return dali.fn.slice(x, start=draw["start"], shape=[self.side, self.side], axes=[0, 1])


@dataclass(frozen=True)
class Scale(Op):
    """Multiply by a number drawn for each record."""

    num_uniforms: ClassVar[int] = 1

    def field_after(self, field: Field) -> Field:
        return field.with_(dtype=np.dtype(np.float32))

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        return {"factor": u[:, 0].astype(np.float32)}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        return x.astype(np.float32) * draw["factor"]

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        return dali.fn.cast(x, dtype=dali.types.FLOAT) * draw["factor"]


@dataclass(frozen=True)
class Same(Op):
    """Change nothing; no negative numbers."""

    @property
    def traits(self) -> Traits:
        return Traits(check=ValueCheck(self._find_negative, self._error))

    def field_after(self, field: Field) -> Field:
        return field

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        return x

    def _find_negative(self, xp: ModuleType, x: Any) -> Any:
        return xp.stack([(row < 0).any() for row in x])

    def _error(self, value: Any) -> RowError:
        return RowError(0, f"it is negative: {value}")

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        return x


ENCODED = Spec((Field("image", np.dtype(np.uint8), (None,), encoded=True),))
NUM_IMAGES = 70


def photograph(number: int) -> NDArray[np.uint8]:
    """A smooth image with some texture, of a size of its own."""
    height, width = 60 + number % 7 * 5, 80 + number % 5 * 3
    y, x = np.mgrid[:height, :width]
    waves = [
        np.sin(x / (3 + number % 4 + c)) * 60 + np.cos(y / (5 + c)) * 50 + 128 for c in range(3)
    ]
    return np.stack(waves, axis=2).astype(np.uint8)


def jpeg(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=90)
    return np.frombuffer(file.getvalue(), np.uint8)


IMAGES = [photograph(number) for number in range(NUM_IMAGES)]
FILES = [jpeg(image) for image in IMAGES]
SIZES = np.array([image.shape[:2] for image in IMAGES], np.int32)
DAMAGED = {
    "ends early": FILES[0][: len(FILES[0]) // 2],
    "header only": FILES[0][:30],
    "no image": np.arange(200, dtype=np.uint8),
    "empty": np.zeros(0, np.uint8),
}


def draws_of(graph: Graph, records: Any, sizes: Sizes | None = None) -> list[Draw]:
    records = np.asarray(records, np.int64)
    size = SIZES[records % NUM_IMAGES] if sizes is None else sizes
    return graph.draw(seed=3, epoch=1, records=records, sizes=dict.fromkeys(graph.touched, size))


def begin(executor: DaliExecutor, records: Any, damaged: dict[int, Any] | None = None) -> None:
    """Start a batch of the JPEG files; ``damaged`` replaces files by row."""
    files = [FILES[record] for record in records]
    for row, file in (damaged or {}).items():
        files[row] = file
    executor.start({"image": files}, draws_of(executor.graph, records))


def images(executor: DaliExecutor, records: Any) -> Any:
    begin(executor, records)
    return executor.finish()["image"]


def epoch(graph: Graph, batch_size: int, num_threads: int) -> Any:
    """The images of all records, in batches of a size, the last one shorter."""
    executor = DaliExecutor(graph, batch_size=batch_size, num_threads=num_threads)
    starts = range(0, NUM_IMAGES, batch_size)
    parts = [
        images(executor, range(start, min(start + batch_size, NUM_IMAGES))) for start in starts
    ]
    executor.close()
    return np.concatenate(parts)


def expected(graph: Graph, records: Any) -> NDArray[np.float32]:
    """Decoded by Pillow and cut to the region that the graph says, then the ops' array form."""
    draws = draws_of(graph, records)
    results = []
    for row, record in enumerate(records):
        pixels = np.asarray(Image.open(io.BytesIO(FILES[record].tobytes())))
        if draws[0]:
            (top, left), (height, width) = draws[0]["start"][row], draws[0]["shape"][row]
            pixels = pixels[top : top + height, left : left + width]
        for op, draw in list(zip(graph.ops, draws, strict=True))[1:]:
            pixels = op.array(np, pixels, {key: values[row] for key, values in draw.items()})
        results.append(pixels)
    return np.stack(results)


def training() -> Graph:
    return compile_ops(ENCODED, [Decode(), Window(32), Scale()])


@pytest.fixture(scope="module")
def reference() -> Any:
    return expected(training(), range(NUM_IMAGES))


@pytest.fixture
def executor() -> Any:
    executor = DaliExecutor(training(), batch_size=16, num_threads=2)
    yield executor
    executor.close()


def of_arrays(field: Field, *ops: Op, batch_size: int = 8) -> DaliExecutor:
    return DaliExecutor(compile_ops(Spec((field,)), ops), batch_size=batch_size, num_threads=1)


def interrupted(function: Any) -> Any:
    """Return a function that is interrupted when it has done its work and before it returns."""

    def run(*args: Any) -> None:
        function(*args)
        raise KeyboardInterrupt

    return run


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


class TestPixels:
    @pytest.mark.parametrize("num_threads", [1, 4])
    @pytest.mark.parametrize("batch_size", [1, 7, 64])
    def test_they_are_the_same_for_every_batch_size_and_number_of_threads(
        self, batch_size: int, num_threads: int, reference: Any
    ) -> None:
        np.testing.assert_array_equal(epoch(training(), batch_size, num_threads), reference)

    def test_they_are_the_same_with_resampling_and_near_the_array_form(self) -> None:
        std = 50.0
        ops = [Decode(), RandomResizedCrop(24), RandomFlip(), Normalize(mean=(120.0,), std=(std,))]
        graph = compile_ops(ENCODED, ops)

        alone = epoch(graph, 1, 1)

        np.testing.assert_array_equal(epoch(graph, 7, 4), alone)
        np.testing.assert_array_equal(epoch(graph, 64, 2), alone)
        # One level of 255: where a value lies halfway, DALI rounds one way or the other.
        np.testing.assert_allclose(
            alone, expected(graph, range(NUM_IMAGES)), rtol=0, atol=1.001 / std
        )

    def test_they_do_not_depend_on_the_neighbours(
        self, executor: DaliExecutor, reference: Any
    ) -> None:
        order = np.random.default_rng(0).permutation(NUM_IMAGES)[:16]

        np.testing.assert_array_equal(images(executor, order), reference[order])


class TestFlow:
    @pytest.mark.parametrize("ahead", [1, 2, 3, 5])
    def test_batches_come_in_order_however_many_are_started_ahead(
        self, ahead: int, executor: DaliExecutor, reference: Any
    ) -> None:
        batches = [range(10), range(10, 26), range(26, 27), range(27, 40), range(40, 56)]
        for batch in batches[:ahead]:
            begin(executor, batch)

        for place, batch in enumerate(batches):
            np.testing.assert_array_equal(executor.finish()["image"], reference[batch])
            if place + ahead < len(batches):
                begin(executor, batches[place + ahead])

    def test_held_batches_stay_what_they_were(self, executor: DaliExecutor, reference: Any) -> None:
        batches = [np.arange(step, step + 8) % NUM_IMAGES for step in range(50)]
        begin(executor, batches[0])
        held = []

        for batch in [*batches[1:], None]:
            if batch is not None:
                begin(executor, batch)
            held.append(executor.finish()["image"])
        executor.close()

        for batch, array in zip(batches, held, strict=True):
            np.testing.assert_array_equal(array, reference[batch])

    def test_reset_forgets_what_was_started(self, executor: DaliExecutor, reference: Any) -> None:
        begin(executor, range(5))
        begin(executor, range(5, 10))

        executor.reset()

        np.testing.assert_array_equal(images(executor, range(20, 30)), reference[20:30])

    def test_finish_without_a_start_is_an_error(self, executor: DaliExecutor) -> None:
        with pytest.raises(SpecError, match="no batch was started"):
            executor.finish()

    def test_an_interrupted_finish_loses_no_batch(
        self, executor: DaliExecutor, reference: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin(executor, range(5))
        begin(executor, range(5, 10))
        with monkeypatch.context() as during:
            during.setattr(executor._pipeline, "_outputs", interrupted(executor._pipeline._outputs))
            with pytest.raises(KeyboardInterrupt):
                executor.finish()

        np.testing.assert_array_equal(executor.finish()["image"], reference[:5])
        np.testing.assert_array_equal(executor.finish()["image"], reference[5:10])

    def test_a_graph_without_ops_returns_no_fields(self) -> None:
        executor = DaliExecutor(compile_ops(ENCODED, []), batch_size=4, num_threads=1)
        executor.start({}, [])
        assert executor.finish() == {}

    def test_many_executors_live_side_by_side(self, reference: Any) -> None:
        executors = [DaliExecutor(training(), batch_size=8, num_threads=1) for _ in range(8)]
        for place, executor in enumerate(executors):
            begin(executor, range(place, place + 8))

        for place, executor in enumerate(executors):
            np.testing.assert_array_equal(executor.finish()["image"], reference[place : place + 8])


class TestArrays:
    @pytest.mark.parametrize("name", sorted(DALI_DTYPES))
    def test_every_dtype_of_dali_comes_through_unchanged(self, name: str) -> None:
        values = np.array([[0, 1, 1], [1, 0, 1]]).astype(name)
        executor = of_arrays(Field("x", values.dtype, (3,)), Same())
        executor.start({"x": values}, [{}])

        result = np.asanyarray(executor.finish()["x"])

        assert result.dtype == values.dtype
        np.testing.assert_array_equal(result, values)

    def test_scalars_come_through(self) -> None:
        executor = of_arrays(Field("x", np.dtype(np.int64), ()), Same())
        executor.start({"x": np.arange(5)}, [{}])
        np.testing.assert_array_equal(executor.finish()["x"], np.arange(5))

    @pytest.mark.parametrize("form", ["ragged", "list"])
    def test_ragged_fields_come_back_as_ragged(self, form: str) -> None:
        rows = [np.arange(3 * n, dtype=np.float32).reshape(n, 3) for n in (1, 4, 0, 2)]
        executor = of_arrays(Field("x", np.dtype(np.float32), (None, 3)), Scale())
        draws = draws_of(executor.graph, range(4))
        executor.start(
            {"x": Ragged.of(rows, np.dtype(np.float32)) if form == "ragged" else rows}, draws
        )

        result = executor.finish()["x"]

        assert isinstance(result, Ragged)
        for row, values in enumerate(result):
            np.testing.assert_array_equal(values, rows[row] * draws[0]["factor"][row])

    def test_ragged_rows_that_happen_to_have_one_shape_are_ragged_too(self) -> None:
        executor = of_arrays(Field("x", np.dtype(np.float32), (None, 3)), Scale())
        executor.start({"x": [np.ones((2, 3), np.float32)] * 2}, draws_of(executor.graph, range(2)))
        result = executor.finish()["x"]
        assert isinstance(result, Ragged)
        assert result.lengths.tolist() == [2, 2]

    def test_fields_of_which_several_axes_vary_are_lists(self) -> None:
        rows = [np.arange(n * n, dtype=np.float32).reshape(n, n) for n in (1, 4, 2)]
        executor = of_arrays(Field("x", np.dtype(np.float32), (None, None)), Scale())
        draws = draws_of(executor.graph, range(3))
        executor.start({"x": rows}, draws)

        result = executor.finish()["x"]

        assert isinstance(result, list)
        for row, values in enumerate(result):
            np.testing.assert_array_equal(values, rows[row] * draws[0]["factor"][row])

    def test_encoded_images_come_as_ragged_too(
        self, executor: DaliExecutor, reference: Any
    ) -> None:
        executor.start(
            {"image": Ragged.of(FILES[:5], np.dtype(np.uint8))}, draws_of(executor.graph, range(5))
        )
        np.testing.assert_array_equal(executor.finish()["image"], reference[:5])

    def test_one_draw_serves_all_the_fields_of_an_op(self) -> None:
        fields = (
            Field("a", np.dtype(np.uint8), (9, 9, 3), axes="HWC"),
            Field("b", np.dtype(np.float32), (9, 9, 1)),
        )
        graph = compile_ops(Spec(fields), [Window(4, on=("a", "b"))])
        executor = DaliExecutor(graph, batch_size=5, num_threads=1)
        a = np.random.default_rng(0).integers(0, 255, (5, 9, 9, 3), np.uint8)
        b = a[..., :1].astype(np.float32)
        executor.start({"a": a, "b": b}, draws_of(graph, range(5), np.full((5, 2), 9, np.int32)))

        results = executor.finish()

        np.testing.assert_array_equal(np.asarray(results["a"])[..., :1], results["b"])

    @pytest.mark.parametrize("form", ["strided", "reversed", "read-only", "fortran"])
    def test_inputs_may_lie_in_memory_in_any_way(self, form: str) -> None:
        base = np.arange(48, dtype=np.int32).reshape(4, 3, 4)
        values = {
            "strided": base.repeat(2, axis=2)[..., ::2],
            "reversed": base[::-1, :, ::-1],
            "read-only": base,
            "fortran": np.asfortranarray(base),
        }[form]
        values.flags.writeable = form != "read-only"
        executor = of_arrays(Field("x", np.dtype(np.int32), (3, 4)), Same())
        executor.start({"x": values}, [{}])
        np.testing.assert_array_equal(executor.finish()["x"], values)

    def test_outputs_share_no_memory_with_inputs(self) -> None:
        values = np.arange(24, dtype=np.float32).reshape(4, 6)
        executor = of_arrays(Field("x", np.dtype(np.float32), (6,)), Same())
        executor.start({"x": values}, [{}])
        result = executor.finish()["x"]
        assert not np.shares_memory(result, values)

    def test_inputs_are_let_go_when_their_batch_is_finished(self) -> None:
        executor = of_arrays(Field("x", np.dtype(np.float32), (6,)), Same())
        values = np.zeros((4, 6), np.float32)
        gone = weakref.ref(values)
        executor.start({"x": values}, [{}])
        del values
        assert gone() is not None
        executor.finish()
        assert gone() is None

    def test_outputs_begin_at_64_bytes_as_tensorflow_wants(self, executor: DaliExecutor) -> None:
        assert all(images(executor, range(n)).ctypes.data % 64 == 0 for n in (1, 3, 16))


class TestDamage:
    @pytest.mark.parametrize("kind", DAMAGED)
    def test_a_damaged_image_raises_its_row(
        self, kind: str, executor: DaliExecutor, reference: Any
    ) -> None:
        begin(executor, range(10), {6: DAMAGED[kind]})

        with pytest.raises(RowError, match="the image cannot be decoded") as caught:
            executor.finish()

        assert caught.value.row == 6
        assert "\n" not in str(caught.value)
        np.testing.assert_array_equal(images(executor, range(10)), reference[:10])

    def test_a_pipeline_that_failed_is_not_used_again(self, executor: DaliExecutor) -> None:
        begin(executor, range(4), {2: DAMAGED["no image"]})
        pipeline = weakref.ref(executor._pipeline)

        with pytest.raises(RowError):
            executor.finish()

        gc.collect()
        assert pipeline() is None

    @pytest.mark.parametrize("row", range(7))
    def test_the_row_is_found_wherever_it_is(self, row: int, executor: DaliExecutor) -> None:
        begin(executor, range(7), {6: DAMAGED["ends early"], row: DAMAGED["no image"]})
        with pytest.raises(RowError) as caught:
            executor.finish()
        assert caught.value.row == row

    def test_few_pipelines_are_built_to_find_the_row(
        self, executor: DaliExecutor, monkeypatch: Any
    ) -> None:
        built: list[int] = []
        build = executor._program.build
        monkeypatch.setattr(
            executor._program, "build", lambda size, *rest: built.append(size) or build(size, *rest)
        )
        begin(executor, range(10), {9: DAMAGED["no image"]})

        with pytest.raises(RowError) as caught:
            executor.finish()

        assert caught.value.row == 9
        assert built == [
            5
        ]  # the first half's pipeline finds the row in each later half, where it is the last

    def test_only_the_damaged_batches_raise_of_several_in_flight(
        self, executor: DaliExecutor, reference: Any
    ) -> None:
        damaged = {1: {3: DAMAGED["no image"]}, 3: {0: DAMAGED["ends early"], 9: DAMAGED["empty"]}}
        for step in range(5):
            begin(executor, range(step * 10, step * 10 + 10), damaged.get(step))

        for step in range(5):
            if step in damaged:
                with pytest.raises(RowError) as caught:
                    executor.finish()
                assert caught.value.row == min(damaged[step])
            else:
                np.testing.assert_array_equal(
                    executor.finish()["image"], reference[step * 10 : step * 10 + 10]
                )

    def test_an_error_that_is_kept_keeps_no_threads(self, executor: DaliExecutor) -> None:
        before = num_threads()
        begin(executor, range(4), {2: DAMAGED["no image"]})
        with pytest.raises(RowError) as caught:
            executor.finish()
        images(executor, range(4))
        assert until(lambda: num_threads() <= before), (
            caught
        )  # threads of other tests may end meanwhile

    def test_a_value_that_an_op_cannot_take_raises_its_row(self) -> None:
        executor = of_arrays(Field("x", np.dtype(np.int32), ()), Same(), Scale())
        draws = draws_of(executor.graph, range(3))
        for values in ([1, 2, 3], [4, -5, -6], [7, 8, 9]):
            executor.start({"x": np.array(values, np.int32)}, draws)

        np.testing.assert_array_equal(
            executor.finish()["x"], np.array([1, 2, 3], np.float32) * draws[1]["factor"]
        )
        with pytest.raises(RowError, match="it is negative") as caught:
            executor.finish()
        assert caught.value.row == 1
        np.testing.assert_array_equal(
            executor.finish()["x"], np.array([7, 8, 9], np.float32) * draws[1]["factor"]
        )

    def test_a_value_that_was_made_on_the_way_raises_its_row_too(self) -> None:
        executor = of_arrays(Field("x", np.dtype(np.int32), ()), Scale(), Same())
        executor.start({"x": np.array([4, -5, -6], np.int32)}, draws_of(executor.graph, range(3)))

        with pytest.raises(RowError, match="it is negative") as caught:
            executor.finish()

        assert caught.value.row == 1

    def test_a_draw_that_dali_refuses_raises_its_row_and_says_why_in_one_line(
        self, executor: DaliExecutor, reference: Any
    ) -> None:
        draws = draws_of(executor.graph, range(8))
        draws[1]["start"][5] = 999
        executor.start({"image": FILES[:8]}, draws)

        with pytest.raises(RowError, match=r"slice: .*999") as caught:
            executor.finish()

        assert caught.value.row == 5
        assert "\n" not in str(caught.value)
        np.testing.assert_array_equal(images(executor, range(8)), reference[:8])


class TestRefusals:
    @pytest.mark.parametrize("dtype", ["complex64", "S5", "U5", "datetime64[s]", "longdouble"])
    def test_a_dtype_that_dali_has_not_is_refused_when_the_executor_is_made(
        self, dtype: str
    ) -> None:
        with pytest.raises(SpecError, match="'x'"):
            of_arrays(Field("x", np.dtype(dtype), (3,)), Same())

    def test_a_rank_that_varies_is_refused_when_the_executor_is_made(self) -> None:
        with pytest.raises(SpecError, match="'x'"):
            of_arrays(Field("x", np.dtype(np.int32), None), Same())

    def test_an_op_that_dali_cannot_build_is_refused_when_the_executor_is_made(self) -> None:
        @dataclass(frozen=True)
        class Wrong(Same):
            def lower(
                self, dali: ModuleType, x: Any, draw: Any, *, field: Field, device: str
            ) -> Any:
                return dali.fn.resize(x, no_such_argument=1)

        with pytest.raises(SpecError, match="no_such_argument"):
            of_arrays(Field("x", np.dtype(np.uint8), (3, 3, 3)), Wrong())

    def test_a_lowering_that_is_not_what_the_spec_says_is_an_error(self) -> None:
        @dataclass(frozen=True)
        class Liar(Same):
            def field_after(self, field: Field) -> Field:
                return field.with_(dtype=np.dtype(np.int16))

        executor = of_arrays(Field("x", np.dtype(np.uint8), (3,)), Liar())
        executor.start({"x": np.zeros((2, 3), np.uint8)}, [{}])
        with pytest.raises(SpecError, match=r"uint8.*\n.*int16"):
            executor.finish()

    @pytest.mark.parametrize(
        "values",
        [
            pytest.param(np.zeros((4, 6), ">f4"), id="other byte order"),
            pytest.param(np.zeros((4, 6), np.float64), id="other dtype"),
            pytest.param(np.zeros((4, 5), np.float32), id="other shape"),
            pytest.param(np.zeros((4, 6, 1), np.float32), id="other rank"),
            pytest.param(np.zeros((0, 6), np.float32), id="no rows"),
            pytest.param(np.zeros((9, 6), np.float32), id="too many rows"),
            pytest.param(
                [np.zeros(6, np.float32), np.zeros(7, np.float32)], id="rows of two shapes"
            ),
        ],
    )
    def test_a_batch_that_does_not_fit_is_refused_and_the_next_one_runs(self, values: Any) -> None:
        executor = of_arrays(Field("x", np.dtype(np.float32), (6,)), Same())

        with pytest.raises(SpecError):
            executor.start({"x": values}, [{}])

        executor.start({"x": np.ones((8, 6), np.float32)}, [{}])
        np.testing.assert_array_equal(executor.finish()["x"], np.ones((8, 6)))

    def test_a_draw_of_another_length_than_the_batch_is_refused(
        self, executor: DaliExecutor
    ) -> None:
        with pytest.raises(SpecError, match="one length"):
            executor.start({"image": FILES[:4]}, draws_of(executor.graph, range(5)))

    def test_a_missing_field_is_named(self, executor: DaliExecutor) -> None:
        with pytest.raises(UnknownFieldError, match="image"):
            executor.start({}, draws_of(executor.graph, range(5)))

    def test_without_dali_the_error_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "nvidia.dali", None)
        with pytest.raises(MissingPackageError, match=r'pip install "gpuload\[cpu\]"'):
            DaliExecutor(training(), batch_size=4, num_threads=1)

    def test_a_dali_that_makes_other_pixels_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importlib.import_module("nvidia.dali"), "__version__", "1.53.0")
        with pytest.raises(
            MissingPackageError,
            match=r"nvidia-dali 1\.53\.0[\s\S]*install nvidia-dali 2\.4 or later",
        ):
            DaliExecutor(training(), batch_size=4, num_threads=1)

    def test_a_driver_that_is_not_for_this_dali_is_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> int:
            raise RuntimeError(
                "CUDA runtime API error cudaErrorInsufficientDriver (35):\nthe driver is too old"
            )

        monkeypatch.setattr(
            importlib.import_module("nvidia.dali").backend, "GetCUDADeviceCount", fail
        )

        with pytest.raises(DeviceError, match=r"DALI on gpu:0\n.*too old\n.*executor='array'"):
            load("gpu:0")

    def test_a_gpu_that_cannot_be_used_is_refused_with_the_cause(self) -> None:
        problem = devices.gpu_problem(99)
        assert problem
        with pytest.raises(DeviceError) as caught:
            DaliExecutor(training(), device="gpu:99", batch_size=4, num_threads=1)
        assert caught.value.cause == problem.cause


class TestEnd:
    def test_closing_gives_back_the_threads(self) -> None:
        before = num_threads()
        executor = DaliExecutor(training(), batch_size=4, num_threads=4)
        begin(executor, range(4))
        assert num_threads() > before

        executor.close()
        executor.close()

        assert until(lambda: num_threads() <= before)

    def test_dropping_it_in_mid_work_leaves_nothing(self) -> None:
        gc.collect()
        gc.disable()
        try:
            before = num_threads()
            executor = DaliExecutor(training(), batch_size=4, num_threads=4)
            begin(executor, range(4))
            begin(executor, range(4))
            executor.finish()
            del executor
            assert until(lambda: num_threads() <= before)
        finally:
            gc.enable()

    def test_use_after_close_is_an_error(self, executor: DaliExecutor) -> None:
        executor.close()
        with pytest.raises(ClosedError):
            begin(executor, range(4))

    def test_it_says_what_it_chose(self, executor: DaliExecutor) -> None:
        description = executor.describe()
        assert description["device"] == "cpu"
        assert description["threads"] == "2"
        assert "libjpeg-turbo" in description["decoder"]
        assert description["executor"].startswith("dali 2.")
        assert all("\n" not in line for line in description.values())


FORKING = """
import os, sys
import numpy as np
import gpuload as gl

def loader(executor):
    return gl.Loader(gl.arrays(image=np.zeros((40, 8, 8, 3), np.uint8)), batch_size=4, executor=executor, device="cpu",
                     ops=[gl.ops.RandomFlip(), gl.ops.Normalize(1.0, 2.0)])

load = loader("dali")
run = iter(load)
next(run)
if sys.argv[1] == "between epochs":
    for _ in run:
        pass
child = os.fork()
if child == 0:
    try:
        next(iter(load))
    except gl.GpuloadError as error:
        assert "forked" in str(error), error
        assert sum(1 for _ in loader("array")) == 10
        load.close()
        sys.exit(7)  # through the whole end of an interpreter
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 1 + sum(1 for _ in run))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("when", ["in an epoch", "between epochs"])
def test_a_child_of_fork_is_told_so_works_with_arrays_and_ends_as_it_should(when: str) -> None:
    process = forkserver.run(FORKING, when)
    assert process.stdout.split() == ["7", "10" if when == "in an epoch" else "1"], process.stderr
    assert "Exception ignored" not in process.stderr


@pytest.mark.gpu
class TestGpu:
    # nvJPEG's inverse DCT and chroma upsampling round in other places than libjpeg-turbo's: some
    # pixels differ by more.
    MEAN_LEVELS = 1.0

    def on_gpu(self, graph: Graph, batch_size: int = 16) -> DaliExecutor:
        return DaliExecutor(graph, device="gpu:0", batch_size=batch_size, num_threads=2)

    def of_arrays(self, *ops: Op) -> DaliExecutor:
        return self.on_gpu(compile_ops(Spec((Field("x", np.dtype(np.float32), (6,)),)), ops))

    def test_decoded_images_are_near_those_of_the_cpu(self, reference: Any) -> None:
        executor = self.on_gpu(training())
        for batch in (range(16), range(16, 23)):
            pixels = devices.cupy().asnumpy(images(executor, batch))
            assert np.abs(pixels - reference[batch]).mean() <= self.MEAN_LEVELS

    @pytest.mark.parametrize("batch_size", [1, 7, 64])
    def test_decoded_images_are_the_same_for_every_batch_size(self, batch_size: int) -> None:
        cupy = devices.cupy()
        whole = images(self.on_gpu(training(), NUM_IMAGES), range(NUM_IMAGES))
        executor = self.on_gpu(training(), batch_size)

        parts = [
            images(executor, range(a, min(a + batch_size, NUM_IMAGES)))
            for a in range(0, NUM_IMAGES, batch_size)
        ]

        cupy.testing.assert_array_equal(cupy.concatenate(parts), whole)

    @pytest.mark.parametrize("where", ["host", "gpu"])
    def test_arrays_come_from_the_host_or_the_gpu(self, where: str) -> None:
        values = np.random.default_rng(0).random((5, 6), np.float32)
        executor = self.of_arrays(Scale())
        draws = draws_of(executor.graph, range(5))
        array = values if where == "host" else devices.cupy().asarray(values)
        for _ in range(3):
            executor.start({"x": array}, draws)

        for _ in range(3):
            result = executor.finish()["x"]
            np.testing.assert_array_equal(
                devices.cupy().asnumpy(result), values * draws[0]["factor"][:, None]
            )

    def test_ragged_fields_are_lists_on_the_gpu_too(self) -> None:
        rows = [np.arange(3 * n, dtype=np.float32).reshape(n, 3) for n in (1, 4, 2)]
        executor = self.on_gpu(
            compile_ops(Spec((Field("x", np.dtype(np.float32), (None, 3)),)), [Scale()])
        )
        draws = draws_of(executor.graph, range(3))
        executor.start({"x": rows}, draws)

        for row, values in enumerate(executor.finish()["x"]):
            np.testing.assert_array_equal(
                devices.cupy().asnumpy(values), rows[row] * draws[0]["factor"][row]
            )

    def test_held_batches_stay_what_they_were(self) -> None:
        executor = self.of_arrays(Same())
        batches: list[Any] = []
        for step in range(50):
            executor.start({"x": np.full((8, 6), step, np.float32)}, [{}])
            batches.append(executor.finish()["x"])
        executor.close()

        assert (
            [float(batch.min()) for batch in batches]
            == [float(batch.max()) for batch in batches]
            == list(range(50))
        )

    @pytest.mark.parametrize("kind", DAMAGED)
    def test_a_damaged_image_raises_its_row(self, kind: str) -> None:
        executor = self.on_gpu(training())
        begin(executor, range(10), {6: DAMAGED[kind]})
        begin(executor, range(10))

        with pytest.raises(RowError) as caught:
            executor.finish()

        assert caught.value.row == 6
        assert len(executor.finish()["image"]) == 10

    def test_a_gpu_array_is_refused_on_the_cpu(self) -> None:
        executor = of_arrays(Field("x", np.dtype(np.float32), (6,)), Same())
        with pytest.raises(SpecError, match="on a GPU"):
            executor.start({"x": devices.cupy().zeros((2, 6), np.float32)}, [{}])


ENDS_EARLY = """
import sys
import gpuload as gl

ops = [gl.ops.Decode(), gl.ops.Resize(16, 16)]
loader = gl.Loader(gl.images(sys.argv[1], labels=None), 2, ops=ops, executor="dali", device="cpu")
next(loader.epoch(0))
kept = iter(loader)
next(kept)
"""


@pytest.mark.parametrize("num_scripts", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_script_that_ends_in_mid_epoch_ends_in_silence(tmp_path: Path, num_scripts: int) -> None:
    """DALI shuts down its pipelines at the end, and complains of those that somebody makes
    meanwhile."""
    for number in range(12):
        Image.fromarray(np.full((40, 50, 3), number, np.uint8)).save(tmp_path / f"{number}.jpg")
    for _ in range(num_scripts):
        command = [sys.executable, "-c", ENDS_EARLY, str(tmp_path)]
        script = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (script.returncode, script.stderr) == (0, "")
