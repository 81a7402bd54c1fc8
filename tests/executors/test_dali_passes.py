"""What DALI's pipelines are made of: few passes over the pixels, settings under which pixels depend
on no neighbour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuload import core, ops
from gpuload.errors import SpecError
from gpuload.executors.array import ArrayRowExecutor
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.ops.value.decode import decoder_on_gpu
from gpuload.ops.value.normalize import FUSED
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import dali_form, numbers

dali = pytest.importorskip("nvidia.dali")
program = pytest.importorskip("gpuload.executors.dali.program")
feed_module = pytest.importorskip("gpuload.executors.dali.feed")

BOTH = ("image", "mask")
COUNT = 9
GOLDEN = Path(__file__).parents[1] / "golden" / "images" / "Pillow"


def field(dtype, name="image"):
    return Field(name, np.dtype(dtype), (7, 8, 3), axes="HWC")


def nodes(graph, device_id=None):
    """Return the operators of a graph in DALI, each with its arguments; no GPU is needed."""
    compiled = program.Program(dali, graph, device_id)
    pipeline = dali.pipeline.Pipeline(1, 1, device_id, exec_dynamic=True, prefetch_queue_depth=1)
    with pipeline:
        left = list(
            compiled.nodes({source.name: source.node(dali) for source in compiled.inputs}).values()
        )
    operators = {}
    while left:
        operator = left.pop().source
        operators[operator.name.strip("_").rpartition("_")[0]] = operator
        left += operator.inputs
    return operators


@pytest.mark.parametrize("dtype", [*FUSED, "bool", "float16", "int64"])
def test_a_flip_before_a_normalisation_is_no_pass_of_its_own(dtype):
    chain = [ops.RandomFlip(), ops.Normalize((1, 2, 3), (4, 5, 6))]
    graph = compile_ops(Spec((field(dtype),)), chain)
    values = numbers(graph.spec_in["image"], COUNT)
    sizes = {"image": np.broadcast_to(np.array([7, 8], np.int32), (COUNT, 2))}
    draws = graph.draw(seed=1, epoch=0, records=np.arange(COUNT), sizes=sizes)

    actual = dali_form(graph, values, draws, "cpu")

    assert {0, 1} == set(draws[0]["horizontal"].tolist())
    assert "Flip" not in nodes(graph, 0)
    assert "CropMirrorNormalize" in nodes(graph, 0)
    np.testing.assert_array_equal(
        actual, ArrayRowExecutor(graph).run({"image": values}, draws, {})["image"]
    )


def test_a_mask_that_is_flipped_alone_is_flipped_in_a_pass_and_its_image_with_it():
    chain = [ops.RandomFlip(on=BOTH), ops.Normalize(1, 2, on="image")]

    assert "Flip" in nodes(compile_ops(Spec((field("uint8"), field("uint8", "mask"))), chain))
    assert "Flip" not in nodes(
        compile_ops(
            Spec((field("uint8"), field("uint8", "mask"))), [chain[0], ops.Normalize(1, 2, on=BOTH)]
        )
    )


@pytest.mark.parametrize(
    "flip", [ops.RandomFlip(vertical=True), ops.RandomFlip(horizontal=False, vertical=True)]
)
def test_images_that_are_mirrored_top_to_bottom_are_flipped_in_a_pass(flip):
    assert "Flip" in nodes(compile_ops(Spec((field("uint8"),)), [flip, ops.Normalize(1, 2)]))


def test_what_comes_between_a_flip_and_a_normalisation_gets_flipped_images():
    chain = [ops.RandomFlip(), ops.CenterCrop(3, 4), ops.Normalize(1, 2)]
    assert "Flip" in nodes(compile_ops(Spec((field("uint8"),)), chain))


FILES = Spec((Field("image", np.dtype(np.uint8), (None,), encoded=True),))


def settings(op, device_id):
    """Return the arguments that DALI's decoder gets."""
    return nodes(compile_ops(FILES, [op]), device_id)["Image"]._op._init_args


def test_on_a_gpu_the_codecs_threads_keep_to_no_core_and_one_decoder_has_all_jpegs():
    by_default = settings(ops.Decode(), 0)
    hardware = settings(ops.Decode(hw_decoder_load=1, size=(48, 64)), 0)

    assert (by_default["affine"], by_default["hw_decoder_load"]) == (False, 0.0)
    assert hardware["hw_decoder_load"] == 1.0
    assert (hardware["preallocate_height_hint"], hardware["preallocate_width_hint"]) == (48, 64)
    assert "preallocate_height_hint" not in settings(ops.Decode(hw_decoder_load=1), 0)
    assert not {"affine", "hw_decoder_load"} & set(settings(ops.Decode(hw_decoder_load=1), None))


@pytest.mark.parametrize("load", [0.65, -1, 2, float("nan"), True, "1", None])
def test_a_batch_that_is_divided_between_two_decoders_is_refused(load):
    with pytest.raises(SpecError, match="hw_decoder_load"):
        ops.Decode(hw_decoder_load=load)


def test_the_description_says_which_decoder_it_is():
    assert "without the hardware decoder" in decoder_on_gpu([ops.Decode(), ops.RandomFlip()])
    assert "the hardware decoder for the JPEGs" in decoder_on_gpu([ops.Decode(hw_decoder_load=1)])


def test_the_heads_of_jpegs_that_were_read_to_draw_are_not_read_again(monkeypatch):
    data = np.fromfile(GOLDEN / "hopper.jpg", np.uint8)
    png = np.fromfile(GOLDEN / "7x13.png", np.uint8)
    files = Ragged.of([data, data, png, data], np.dtype(np.uint8))
    graph = compile_ops(FILES, [ops.Decode(), ops.Resize(4, 4)])
    sizes = {"image": image_sizes(FILES["image"], files, 4)}
    draws = graph.draw(seed=0, epoch=0, records=np.arange(4), sizes=sizes)
    sizes = []
    monkeypatch.setattr(
        program.head, "foreign_to_dali", lambda file, **words: sizes.append(file.size) or ""
    )

    program.Program(dali, graph, None).check({"image": files}, draws, 4)

    assert sizes == (
        [png.size] if core.native is not None else [data.size, data.size, png.size, data.size]
    )


def copies_to_host(graph, monkeypatch):
    """Return the operators whose results go from a GPU to the host where TensorFlow's plugin feeds
    a pipeline."""
    monkeypatch.setattr(feed_module, "load", lambda device: dali)
    feed = feed_module.Feed(graph, graph.spec_out.names, device="gpu:0", batch_size=4)
    pipeline = dali.pipeline.Pipeline(4, 1, 0, exec_dynamic=True, prefetch_queue_depth=1)
    with pipeline:
        left, visited_nodes, copies = list(feed._outputs()), set(), set()
    while left:
        node = left.pop()
        if node.source._op.device == "gpu" and node.device == "cpu":
            copies.add(node.source.name)
        if node.source.id not in visited_nodes:
            visited_nodes.add(node.source.id)
            left += node.source.inputs
    return copies


def test_a_record_that_is_longer_than_the_plugin_can_be_fed_is_refused():
    spec = Spec((Field("x", np.dtype(np.uint8), (None,)),))
    feed = feed_module.Feed(compile_ops(spec, []), ["x"], device="cpu", batch_size=1)
    long = np.zeros(2**31, np.uint8)  # memory that nothing touches

    with pytest.raises(SpecError, match=r"a record of 21474836\d\d bytes"):
        feed.pack({"x": [long]})


def test_what_the_plugin_has_on_a_gpu_and_dali_wants_on_the_host_comes_back_at_once(monkeypatch):
    both = Spec((FILES["image"], Field("label", np.dtype(np.int64), ())))
    chain = [ops.Decode(), ops.RandomResizedCrop(8, 8), ops.RandomFlip(), ops.Normalize(1, 2)]

    assert copies_to_host(compile_ops(both, chain), monkeypatch) == {"packed"}
    assert len(copies_to_host(compile_ops(Spec((field("uint8"),)), chain[2:]), monkeypatch)) == 1
    assert (
        copies_to_host(compile_ops(Spec((field("uint8"),)), [ops.Normalize(1, 2)]), monkeypatch)
        == set()
    )
