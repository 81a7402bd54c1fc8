"""An op needs its array form alone: where it has none in DALI, the graph is cut before it and goes
on in array code."""

from __future__ import annotations

import io
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import ops
from gpuload.errors import SpecError
from gpuload.executors import choose
from gpuload.executors.array import ArrayRowExecutor
from gpuload.executors.choose import ExecutorRequest
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.ops.base import Draw, Op, RowError
from gpuload.ops.traits import Regional, Traits, ValueCheck
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import assert_identical

pytest.importorskip("nvidia.dali")
chain = pytest.importorskip("gpuload.executors.dali.chain")

FILES = Field("image", np.dtype(np.uint8), (None,), encoded=True)
LABEL = Field("label", np.dtype(np.int64), ())
COUNT = 7


@dataclass(frozen=True)
class Invert(Op):
    """Turn dark into bright, and refuse an image whose first pixel is black; there is no form in
    DALI."""

    @property
    def traits(self) -> Traits:
        return Traits(check=ValueCheck(self._find_black, self._error))

    def field_after(self, field: Field) -> Field:
        return field

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        return 255 - x

    def _find_black(self, xp: ModuleType, x: Any) -> Any:
        return xp.stack([(image[0, 0] == 0).all() for image in x])

    def _error(self, value: Any) -> RowError:
        return RowError(0, "its first pixel is black")


@dataclass(frozen=True)
class Corner(Op):
    """Cut the lower right corner of 4 x 5 pixels, of which alone the image need be decoded."""

    @property
    def traits(self) -> Traits:
        return Traits(regional=Regional(self._region, self._within))

    def field_after(self, field: Field) -> Field:
        assert field.shape is not None
        return field.with_(shape=(4, 5, field.shape[2]))

    def draw(self, u: Any, size: Any) -> Draw:
        return {"start": (size - (4, 5)).astype(np.int32)}

    def _region(self, draw: Draw, size: Any) -> Draw:
        return {
            "start": draw["start"],
            "shape": np.full_like(draw["start"], 1) * np.array([4, 5], np.int32),
        }

    def _within(self, draw: Draw, region: Draw) -> Draw:
        return {"start": draw["start"] - region["start"]}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        top, left = draw["start"].tolist()
        return x[top : top + 4, left : left + 5]


def jpeg(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=95)
    return np.frombuffer(file.getvalue(), np.uint8)


def batch(graph, files):
    """Return fields and draws of a batch."""
    fields = {"image": Ragged.of(files, np.dtype(np.uint8)), "label": np.arange(len(files)) % 3}
    fields = {name: values for name, values in fields.items() if name in graph.touched}
    sizes = {
        name: image_sizes(graph.spec_in[name], values, len(files))
        for name, values in fields.items()
    }
    return fields, graph.draw(seed=1, epoch=0, records=np.arange(len(files)), sizes=sizes)


def executor_of(*chain_of_ops, spec=(FILES, LABEL)):
    graph = compile_ops(Spec(spec), chain_of_ops)
    return graph, choose.make("dali", graph, device="cpu", batch_size=COUNT, num_threads=1)


NOISE = np.random.default_rng(0).integers(100, 200, (COUNT, 40, 40, 3), np.uint8)
SOUND = [jpeg(image[: 30 + number]) for number, image in enumerate(NOISE)]
BLACK = jpeg(np.zeros((35, 40, 3), np.uint8))


def test_images_are_those_of_the_array_executor():
    graph, executor = executor_of(
        ops.Decode(), ops.CenterCrop(8, 9), Invert(), ops.RandomFlip(), ops.OneHot(3)
    )
    batches = [batch(graph, files) for files in (SOUND, SOUND[::-1], SOUND[2:4])]
    for fields, draws in batches:
        executor.start(fields, draws)

    for fields, draws in batches:
        actual, expected = executor.finish(), ArrayRowExecutor(graph).run(fields, draws, {})
        assert_identical(actual["image"], expected["image"])
        assert_identical(actual["label"], expected["label"])
    with pytest.raises(SpecError, match="no batch was started"):
        executor.finish()
    executor.close()


def test_the_images_of_many_sizes_go_on_as_a_list():
    graph, executor = executor_of(ops.Decode(), Invert(), spec=(FILES,))
    fields, draws = batch(graph, SOUND)
    executor.start(fields, draws)

    assert_identical(
        executor.finish()["image"], ArrayRowExecutor(graph).run(fields, draws, {})["image"]
    )


def test_a_region_that_an_op_behind_the_cut_asks_for_is_decoded_alone():
    graph, executor = executor_of(ops.Decode(), Corner(), spec=(FILES,))
    fields, draws = batch(graph, SOUND)
    executor.start(fields, draws)

    assert "start" in draws[0]
    assert_identical(
        executor.finish()["image"], ArrayRowExecutor(graph).run(fields, draws, {})["image"]
    )


@pytest.mark.parametrize(
    ("row", "damage", "reason"),
    [(3, SOUND[3][:60], "cannot be decoded"), (5, BLACK, "first pixel")],
)
def test_a_row_that_cannot_be_used_is_named_and_the_next_batch_is_right(row, damage, reason):
    graph, executor = executor_of(ops.Decode(), ops.CenterCrop(8, 9), Invert(), spec=(FILES,))
    fields, draws = batch(graph, SOUND)
    damaged = {"image": Ragged.of([*SOUND[:row], damage, *SOUND[row + 1 :]], np.dtype(np.uint8))}
    executor.start(damaged, draws)
    executor.start(fields, draws)

    with pytest.raises(RowError, match=reason) as caught:
        executor.finish()

    assert caught.value.row == row
    assert_identical(
        executor.finish()["image"], ArrayRowExecutor(graph).run(fields, draws, {})["image"]
    )
    refused = executor.row_error(damaged, draws, row)
    assert refused is not None
    assert reason in str(refused)
    assert executor.row_error(fields, draws, row) is None


def beside_dali(*more):
    """Return a graph and a chain in which DALI has no part in the labels."""
    graph = compile_ops(
        Spec((FILES, LABEL)), [ops.Decode(), ops.CenterCrop(8, 9), ops.OneHot(3), *more]
    )
    return graph, chain.Chain(graph, (0, 1), device="cpu", batch_size=COUNT, num_threads=1)


def test_fields_that_dali_has_no_part_in_are_made_beside_it():
    graph, executor = beside_dali(Invert())
    fields, draws = batch(graph, SOUND)
    executor.start(fields, draws)

    actual, expected = executor.finish(), ArrayRowExecutor(graph).run(fields, draws, {})

    assert_identical(actual["image"], expected["image"])
    assert_identical(actual["label"], expected["label"])
    assert (
        "; beside it label: array of OneHot; behind it image: array of Invert"
        in executor.describe()["cut"]
    )


@pytest.mark.parametrize("fault", ["label", "image", "both"])
def test_a_fault_beside_dali_or_in_it_costs_its_batch_alone(fault):
    graph, executor = beside_dali()
    fields, draws = batch(graph, SOUND)
    wrong = dict(fields)
    if fault != "image":
        wrong["label"] = np.where(np.arange(COUNT) == 4, 9, fields["label"])
    if fault != "label":
        wrong["image"] = Ragged.of([*SOUND[:2], SOUND[2][:60], *SOUND[3:]], np.dtype(np.uint8))
    for inputs in (fields, wrong, fields):
        executor.start(inputs, draws)

    expected = ArrayRowExecutor(graph).run(fields, draws, {})
    assert_identical(executor.finish()["label"], expected["label"])
    with pytest.raises(RowError) as caught:
        executor.finish()
    assert caught.value.row == (4 if fault == "label" else 2)
    last = executor.finish()
    assert_identical(last["label"], expected["label"])
    assert_identical(last["image"], expected["image"])
    assert executor.row_error(wrong, draws, caught.value.row) is not None
    assert executor.row_error(wrong, draws, 0) is None


def test_a_batch_that_dali_does_not_take_is_not_started_beside_it_either():
    graph, executor = beside_dali()
    fields, draws = batch(graph, SOUND)
    with pytest.raises(SpecError, match="image"):
        executor.start({**fields, "image": [np.zeros((2, 2), np.float32)] * COUNT}, draws)
    executor.start({**fields, "label": fields["label"][::-1]}, draws)

    assert executor.finish()["label"].argmax(axis=1).tolist() == fields["label"][::-1].tolist()


def test_reset_forgets_what_was_started():
    graph, executor = executor_of(ops.Decode(), Invert(), spec=(FILES,))
    executor.start(*batch(graph, SOUND[:2]))
    executor.reset()
    executor.start(*batch(graph, SOUND[:3]))

    assert len(executor.finish()["image"]) == 3


def places(chain_of_ops, device):
    return choose.in_dali(compile_ops(Spec((FILES, LABEL)), chain_of_ops), device)


@pytest.mark.parametrize(
    ("chain_of_ops", "on_cpu", "on_gpu"),
    [
        ([ops.Decode(), ops.RandomFlip()], (0, 1), (0, 1)),
        ([ops.Decode(), Invert(), ops.RandomFlip()], (0,), (0,)),
        ([ops.Decode(), ops.OneHot(3)], (0, 1), (0,)),  # CuPy has the labels there already
        ([ops.OneHot(3), ops.Decode(), Invert()], (0, 1), (1,)),
        ([ops.OneHot(3)], (0,), (0,)),
    ],
)
def test_dali_runs_what_it_can_up_to_the_first_op_that_it_cannot(chain_of_ops, on_cpu, on_gpu):
    assert places(chain_of_ops, "cpu") == on_cpu
    assert places(chain_of_ops, "gpu:0") == on_gpu


def test_an_op_of_dali_behind_one_that_dali_has_not_is_refused_by_name():
    with pytest.raises(SpecError, match="gaussian_blur") as caught:
        choose.choose(
            compile_ops(Spec((FILES,)), [ops.Decode(), Invert(), ops.Dali("gaussian_blur")]), "cpu"
        )

    assert "Invert() has no lower()" in caught.value.cause


def test_dali_alone_is_refused_where_it_runs_no_op():
    images = Field("image", np.dtype(np.uint8), (6, 7, 3), axes="HWC")
    with pytest.raises(SpecError, match=r"has no lower\(\), its form in DALI"):
        choose.choose(compile_ops(Spec((images,)), [Invert()]), "cpu", ExecutorRequest("dali"))


def test_a_loader_shows_where_it_is_cut_and_has_the_batches_of_the_array_executor(tmp_path):
    for number, data in enumerate(SOUND):
        data.tofile(tmp_path / f"{number}.jpg")
    chain_of_ops = [ops.Decode(), ops.RandomCrop(8, 9), Invert(), ops.RandomFlip()]

    def loader(executor):
        source = gl.images(tmp_path, labels=None)
        return gl.Loader(
            source, 3, ops=chain_of_ops, shuffle=True, seed=2, device="cpu", executor=executor
        )

    with loader("dali") as by_dali, loader("array") as by_arrays:
        assert (
            "cut:       DALI runs Decode RandomCrop; behind it image: array of Invert"
            in by_dali.describe()
        )
        for batch, expected in zip(by_dali, by_arrays, strict=True):
            assert_identical(batch["image"], expected["image"])
