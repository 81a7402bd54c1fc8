"""The contract of ops: the promises of every op, on every executor. A test class that subclasses it
has the tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuload import core
from gpuload import device as devices
from gpuload.errors import SpecError
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor
from gpuload.executors.differences import difference
from gpuload.graph.graph import Graph, compile_ops, image_sizes
from gpuload.ops.base import HEADS, Draw, Op, has_dali_form
from gpuload.ops.bounds import EXACT, Bound, stated_bound
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec

NUM_RECORDS = 9
SPOT_SIDE, SPOT_RADIUS = (
    24,
    3.0,
)  # pixels: of the smallest images on which a spot is painted, and of the spot
RECORDS = np.array([3, 0, 7, 12, 10**12, 5, 6, 99, 41])


def uniform(dtype: Any, *shape: int, name: str = "image", axes: str = "") -> Field:
    """Return a field of one shape."""
    return Field(name, np.dtype(dtype), shape, axes=axes)


def varying(dtype: Any, channels: int) -> Field:
    """Return a field of HWC images of different sizes."""
    return Field("image", np.dtype(dtype), (None, None, channels), axes="HWC")


def numbers(field: Field, count: int) -> Any:
    """Return values of a field: noise over the range of a dtype, of a few different sizes where the
    shape varies."""
    rng = np.random.default_rng(20)
    shape = field.shape or ()
    images = [
        _noise(
            rng,
            field.dtype,
            tuple(37 + 5 * (row + axis) if n is None else n for axis, n in enumerate(shape)),
        )
        for row in range(count)
    ]
    if field.ragged:
        return Ragged.of(images, field.dtype)
    if field.uniform:
        return np.stack(images)
    return images


def assert_identical(actual: Any, expected: Any) -> None:
    """Check dtype, shape and every element."""
    assert len(actual) == len(expected)
    for value, expected_value in zip(actual, expected, strict=True):
        value, expected_value = np.asarray(value), np.asarray(expected_value)
        assert (value.dtype, value.shape) == (expected_value.dtype, expected_value.shape)
        np.testing.assert_array_equal(value, expected_value)


def assert_equal_but_for_tiny_halves(actual: Any, expected: Any) -> None:
    """Check dtype, shape and every element; float16 below 6.1e-5 may be 6e-8 off
    (``images.to_float16``)."""
    assert_within(EXACT, actual, expected)


def assert_within(bound: Bound, actual: Any, expected: Any) -> None:
    """Check dtype, shape and every element of each record; float16 below 6.1e-5 may be 6e-8 off
    always."""
    assert len(actual) == len(expected)
    for row, (value, expected_value) in enumerate(zip(actual, expected, strict=True)):
        text = difference(value, expected_value, bound)
        assert not text, f"row {row}: {text}"


class OpContract:
    """The promises of every op. A subclass gives ``cases``, and in ``refused`` the fields that do
    not fit."""

    cases: ClassVar[Sequence[tuple[Op, Field]]]
    """Ops and the fields they act on; each case is run by every test."""

    neutral: ClassVar[Sequence[tuple[Op, Field]]] = ()
    """Ops with parameters that make them change nothing."""

    refused: ClassVar[Sequence[tuple[Op, Field]]] = ()
    """Ops and fields that do not fit them."""

    op: Op
    party: str

    def values(self, field: Field, count: int) -> Any:
        """Return values of a field."""
        return numbers(field, count)

    def compare(self, actual: Any, expected: Any) -> None:
        """Compare the results of an executor with the array form on the CPU: within the bound that
        the op states.

        ``self.op`` is the op, ``self.party`` the executor and its kind of device. A subclass may
        ask for more.
        """
        assert_within(stated_bound(self.op.traits.bounds, self.party), actual, expected)

    def compare_gpu(self, actual: Any, expected: Any) -> None:
        """The same for results on a GPU."""
        self.compare(actual, expected)

    def _compare(self, op: Op, party: str, actual: Any, expected: Any) -> None:
        self.op, self.party = op, party
        if party.endswith("gpu"):
            compare = self.compare_gpu
        else:
            compare = self.compare
        compare(actual, expected)

    def test_the_declared_spec_is_the_real_one(self) -> None:
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)

            result = array_form(graph, values, draws)

            after = graph.spec_out[field.name]
            batch = ArrayRowExecutor(graph).run({field.name: values}, draws, {})[field.name]
            assert isinstance(
                batch, np.ndarray if after.uniform else Ragged if after.ragged else list
            )
            for value in [*result, *batch]:
                assert value.dtype == after.dtype, op
                assert after.shape is not None
                assert len(value.shape) == len(after.shape), op
                assert all(n in (None, m) for n, m in zip(after.shape, value.shape, strict=True)), (
                    op
                )

    def test_a_draw_depends_on_seed_epoch_and_record_alone(self) -> None:
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)
            single_draws = [self._draw(graph, values, [row])[0] for row in range(NUM_RECORDS)]
            backwards = self._draw(graph, values, list(reversed(range(NUM_RECORDS))))[0]

            for name, parameters in draws[0].items():
                assert parameters.dtype in (np.int32, np.float32)
                np.testing.assert_array_equal(
                    np.concatenate([draw[name] for draw in single_draws]), parameters
                )
                np.testing.assert_array_equal(backwards[name][::-1], parameters)

    def test_other_ops_do_not_change_its_draws(self) -> None:
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)

            longer_graph = compile_ops(
                graph.spec_in, [Identity(on=field.name), op, Identity(on=field.name)]
            )

            for name in draws[0].keys() - {
                HEADS
            }:  # which are of files that no other op may have changed
                parameters = draws[0][name]
                np.testing.assert_array_equal(
                    self._draw(longer_graph, values, range(NUM_RECORDS))[1][name], parameters
                )

    def test_neutral_parameters_change_nothing(self) -> None:
        for op, field in self.neutral:
            graph, values, draws = self._batch(op, field)

            result = array_form(graph, values, draws)

            assert_identical(result, values)

    def test_the_form_for_a_batch_equals_the_form_for_each_record(self) -> None:
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)

            result = op.array_batch(np, values, draws[0])

            assert_identical(result, array_form(graph, values, draws))

    @pytest.mark.parametrize("compiled", [True, False])
    def test_the_executor_on_rows_equals_the_array_form(
        self, compiled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if compiled and core.native is None:
            pytest.skip(core.problem)
        if not compiled:
            monkeypatch.setattr(core, "native", None)
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)

            result = ArrayRowExecutor(graph).run({field.name: values}, draws, {})[field.name]

            assert_identical(result, array_form(graph, values, draws))

    def test_the_executor_on_batches_equals_the_array_form(self) -> None:
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)

            result = batch_form(graph, values, draws, "cpu")

            assert_identical(result, array_form(graph, values, draws))

    def test_results_share_no_memory_with_what_was_given(self) -> None:
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)

            result = ArrayRowExecutor(graph).run({field.name: values}, draws, {})[field.name]

            assert not any(
                np.shares_memory(value, two) for value, two in zip(result, values, strict=True)
            )

    def test_rows_by_themselves_are_the_rows_of_the_batch(self) -> None:
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)
            executor = ArrayRowExecutor(graph)
            after = graph.spec_out[field.name]
            if not after.uniform:
                continue
            out = np.empty((NUM_RECORDS, *after.fixed_shape), after.dtype)

            for rows in (slice(0, 4), slice(4, 4), slice(4, 5), slice(5, NUM_RECORDS)):
                part = [
                    {name: parameters[rows] for name, parameters in draw.items()} for draw in draws
                ]
                executor.run({field.name: values[rows]}, part, {field.name: out[rows]})

            assert_identical(out, executor.run({field.name: values}, draws, {})[field.name])

    def test_dali_on_the_cpu_equals_the_array_form(self) -> None:
        for op, field in self.cases:
            if not has_dali_form(op):
                continue
            graph, values, draws = self._batch(op, field)

            result = dali_form(graph, values, draws, "cpu")

            self._compare(op, "dali on cpu", result, array_form(graph, values, draws))

    @pytest.mark.gpu
    def test_dali_on_a_gpu_equals_the_array_form(self) -> None:
        for op, field in self.cases:
            if not has_dali_form(op):
                continue
            graph, values, draws = self._batch(op, field)
            if field.encoded:
                on_gpu = values
            else:
                on_gpu = _upload(values)

            result = [value.get() for value in dali_form(graph, on_gpu, draws, "gpu:0")]

            self._compare(op, "dali on gpu", result, array_form(graph, values, draws))

    @pytest.mark.gpu
    def test_cupy_equals_numpy(self) -> None:
        for op, field in self.cases:
            graph, values, draws = self._batch(op, field)
            if op.traits.codec or op.traits.execution.needs_numpy:
                continue

            result = [value.get() for value in batch_form(graph, _upload(values), draws, "gpu:0")]

            self._compare(op, "array on gpu", result, array_form(graph, values, draws))

    def test_a_point_goes_where_its_pixel_goes(self) -> None:
        """A bright spot is painted around a point; behind the op the middle of the light is where
        the point is."""
        for op, field in self.cases:
            geometric = op.traits.geometric
            if (
                geometric is None
                or geometric.points is None
                or field.dtype.kind not in "uif"
                or field.encoded
                or (field.shape or ())[2:] == ()
            ):
                continue
            if field.is_volume:  # points lie in images
                continue
            graph, values, draws = self._batch(op, field)
            if not all(min(value.shape[:2]) >= SPOT_SIDE for value in values):
                continue
            for row, value in enumerate(values):
                x, y, size = (
                    0.55 * value.shape[1],
                    0.4 * value.shape[0],
                    np.array(value.shape[:2], np.int32),
                )
                rows, columns = np.indices(value.shape[:2]) + 0.5
                light = 100 * np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / SPOT_RADIUS**2)
                painted = np.broadcast_to(light[..., None], value.shape).astype(value.dtype)
                draw = _row(draws[0], row)
                black = np.asarray(
                    graph.op_on(0, field.name).array(np, np.zeros_like(painted), draw), np.float64
                )
                result = (
                    np.asarray(graph.op_on(0, field.name).array(np, painted, draw), np.float64)
                    - black
                )
                place = geometric.move_points(np.array([[x, y]]), draw, size)[0]
                weights = result[..., 0].clip(0)
                rows, columns = np.indices(weights.shape) + 0.5
                edge = [
                    place[0],
                    place[1],
                    weights.shape[1] - place[0],
                    weights.shape[0] - place[1],
                ]
                if min(edge) < 2 * SPOT_RADIUS * max(
                    1.0, max(weights.shape) / min(value.shape[:2])
                ):
                    continue  # a part of the spot lies outside
                middle = (
                    np.array([(columns * weights).sum(), (rows * weights).sum()]) / weights.sum()
                )
                assert np.abs(middle - place).max() < 0.6, (op, row, middle, place)

    def test_fields_that_do_not_fit_are_refused_with_cause_and_remedy(self) -> None:
        for op, field in self.refused:
            with pytest.raises(SpecError) as caught:
                compile_ops(Spec((field,)), [op])

            assert type(op).__name__ in caught.value.what
            assert field.name in caught.value.what
            assert caught.value.cause
            assert caught.value.remedy

    def test_its_text_has_the_arguments_that_differ_from_their_defaults(self) -> None:
        for op, _ in self.cases:
            for parameter in dataclass_fields(op):
                value = getattr(op, parameter.name)
                if repr(value) == repr(parameter.default):  # the text of an op in it may have it
                    is_there = re.search(rf"\b{parameter.name}=", repr(op)) is not None
                    assert op.traits.ways or not is_there
                else:
                    assert repr(value) in repr(op) or value == parameter.default

    def _batch(self, op: Op, field: Field) -> tuple[Graph, Any, list[Draw]]:
        graph, values = compile_ops(Spec((field,)), [op]), self.values(field, NUM_RECORDS)
        return graph, values, self._draw(graph, values, range(NUM_RECORDS))

    def _draw(self, graph: Graph, values: Any, rows: Any) -> list[Draw]:
        field = next(iter(graph.spec_in))
        images = [values[row] for row in rows]
        sizes = {field.name: image_sizes(field, images, len(images))}
        return graph.draw(seed=3, epoch=2, records=RECORDS[list(rows)], sizes=sizes)


class Identity(Op):
    """An op that draws and changes nothing."""

    num_uniforms: ClassVar[int] = 3

    def field_after(self, field: Field) -> Field:
        return field


def array_form(graph: Graph, values: Any, draws: list[Draw]) -> Any:
    """Return the first field behind the array forms of the ops on NumPy, record by record: the
    meaning of the ops."""
    name = graph.spec_in.names[0]
    images = [values[row] for row in range(len(values))]
    for place, (on, draw) in enumerate(zip(graph.targets, draws, strict=True)):
        if name in on:
            op = graph.op_on(place, name)
            images = [op.array(np, image, _row(draw, row)) for row, image in enumerate(images)]
    if graph.spec_out[name].uniform and images:
        return np.stack(images)
    return images


def batch_form(graph: Graph, values: Any, draws: list[Draw], device: str) -> Any:
    """Return the first field behind the array executor on whole batches."""
    name = graph.spec_in.names[0]
    executor = ArrayBatchExecutor(graph, device=device)
    executor.start({name: values}, draws)
    return executor.finish()[name]


def dali_form(graph: Graph, values: Any, draws: list[Draw], device: str) -> Any:
    """Return the first field behind DALI."""
    pytest.importorskip("nvidia.dali")
    from gpuload.executors.dali import DaliExecutor

    executor = DaliExecutor(graph, device=device, batch_size=len(values), num_threads=1)
    name = graph.spec_in.names[0]
    executor.start({name: values}, draws)
    images = executor.finish()[name]
    executor.close()
    return images


def _upload(values: Any) -> Any:
    cupy = devices.cupy()
    if isinstance(values, Ragged):
        return values.with_payload(cupy.asarray(values.flat))
    if isinstance(values, list):
        return [cupy.asarray(value) for value in values]
    return cupy.asarray(values)


def _row(draw: Draw, row: int) -> Draw:
    return {name: parameters[row] for name, parameters in draw.items()}


def _noise(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "ui":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return rng.normal(100, 60, shape).astype(dtype)
