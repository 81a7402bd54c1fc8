"""What a remedy says to type works when it is typed."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError
from tests import remedies


def test_every_remedy_in_the_code_names_calls_arguments_extras_and_verbs_that_there_are():
    texts = list(remedies.static())
    snippets = [(where, snippet) for where, text in texts for snippet in remedies.snippets(text)]

    assert len(texts) > 700
    assert len(snippets) > 200
    assert [
        (where, reason) for where, snippet in snippets if (reason := remedies.fault(snippet))
    ] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("write gl.ops.turn(...), which is no text", "there is no gl.ops.turn"),
        ("write gl.ops.Resize(size=3)", "gl.ops.Resize takes no size="),
        ("write gl.opne(path)", "there is no gl.opne"),
        ('pip install "gpuload[nothing]"', "there is no extra 'nothing'"),
        ("`gpuload repair PATH` mends it", "there is no gpuload repair"),
        ("`gpuload check PATH --mend` mends it", "gpuload check takes no --mend"),
        ("Resize(side=3)", "Resize takes no side="),
        ("source.reed(3)", "there is no source.reed"),
    ],
)
def test_a_remedy_that_cannot_be_typed_is_seen(text, reason):
    assert [remedies.fault(snippet) for snippet in remedies.snippets(text)] == [reason]


# A program that is wrong, what its remedy says to write, and the program in which that is written.
TYPED = [
    ("gl.ops.Resize(size=32)", "shorter=32", "gl.ops.Resize(shorter=32)"),
    ("gl.ops.Resize(size=(32, 48))", "height=32, width=48", "gl.ops.Resize(height=32, width=48)"),
    ("gl.ops.Resize(32)", "Resize(32, 32)", "gl.ops.Resize(32, 32)"),
    ("gl.ops.Resize((32, 48))", "Resize(32, 48)", "gl.ops.Resize(32, 48)"),
    ("gl.ops.RandomCrop(size=32)", "height=32", "gl.ops.RandomCrop(height=32)"),
    ("gl.ops.RandomCrop(32, padding=4)", "pad=", "gl.ops.RandomCrop(32, pad=4)"),
    ("gl.ops.RandomFlip(prob=0.5)", "p=", "gl.ops.RandomFlip(p=0.5)"),
    ("gl.ops.flip()", "gl.ops.RandomFlip", "gl.ops.RandomFlip()"),
    ("gl.ops.resize(8, 8)", "gl.ops.Resize", "gl.ops.Resize(8, 8)"),
    ("gl.ops.randomflip()", "gl.ops.RandomFlip", "gl.ops.RandomFlip()"),
    ("gl.ops.ToTensor()", "gl.ops.Normalize(0, 255)", "gl.ops.Normalize(0, 255)"),
    ("loader(ops=['flip'])", "gl.ops.RandomFlip(...)", "loader(ops=[gl.ops.RandomFlip()])"),
    (
        "loader(ops=[gl.ops.RandomFlip])",
        "gl.ops.RandomFlip(...)",
        "loader(ops=[gl.ops.RandomFlip()])",
    ),
    (
        "loader(ops=gl.ops.RandomFlip())",
        "ops=[gl.ops.RandomFlip(...)]",
        "loader(ops=[gl.ops.RandomFlip()])",
    ),
    (
        "loader(ops=[len])",
        "gl.ops.Python(len)",
        "loader(ops=[gl.ops.Python(len, on='label', out='i8')])",
    ),
    ("loader(shard_id=1)", "shard_id=1, num_shards=2", "loader(shard_id=1, num_shards=2)"),
    ("loader(drop_last=True)", "last_batch=", "loader(last_batch='drop')"),
    ("loader(num_workers=2)", "num_threads=", "loader(num_threads=2)"),
    (
        "loader().seek",
        "loader.state_dict(epoch=0, step=100)",
        "loader().state_dict(epoch=0, step=1)",
    ),
    ("source.fields", "source.spec.names", "source.spec.names"),
    ("source.take", "source[:100]", "source[:100]"),
    ("gl.image", "gl.images", "gl.images"),
    ("gl.recipes.resnet51", "gl.recipes.resnet50", "gl.recipes.resnet50"),
    ("gl.npy(table)", "gl.open(path)", "gl.open(table)"),
]


@pytest.mark.parametrize(("wrong", "named", "right"), TYPED)
def test_what_a_remedy_says_works_when_it_is_typed(tmp_path, wrong, named, right):
    table = tmp_path / "a.csv"
    table.write_text("a,b\n1,2\n")
    source = gl.arrays(image=np.zeros((8, 16, 16, 3), np.uint8), label=np.arange(8))

    def loader(**arguments):
        return gl.Loader(source, 4, device="cpu", **arguments)

    names = {"gl": gl, "source": source, "loader": loader, "table": table}
    if "table" in wrong and find_spec("pyarrow") is None:
        pytest.skip("gl.csv needs PyArrow")

    with pytest.raises(GpuloadError) as error:
        eval(wrong, names)

    assert named in error.value.remedy
    assert eval(right, names) is not None


def test_a_module_of_ops_is_no_op_and_says_so():
    from gpuload.ops import mix

    with pytest.raises(GpuloadError, match=r"gl\.ops\.mix is a module") as error:
        mix()

    assert (
        error.value.remedy == "write gl.ops.CutMix(...) or gl.ops.MixUp(...) or gl.ops.Mosaic(...)"
    )
    with pytest.raises(GpuloadError) as error:
        gl.Loader(gl.arrays(image=np.zeros((2, 4, 4, 3), np.uint8)), 2, ops=[mix], device="cpu")
    assert "gl.ops.MixUp(...)" in error.value.remedy


def test_the_plugin_is_built_for_the_dali_that_is_here():
    pytest.importorskip("tensorflow", reason="the plugin is TensorFlow's")
    pytest.importorskip("nvidia.dali", reason="the plugin is DALI's")
    from importlib.metadata import distributions

    from gpuload.bridges.tensorflow import plugin

    names = {distribution.metadata["Name"] for distribution in distributions()}
    extra = "tf-plugin-cpu" if "nvidia-dali-cuda130" in names else "tf-plugin"

    assert re.findall(r"'\.\[([\w-]+)\]'", plugin._build()) == [extra]


@pytest.mark.parametrize("name", ["gltf", "gltorch"])
def test_a_wrong_call_of_a_bridge_is_named_as_our_pages_name_it(name):
    package = {"gltf": "tensorflow", "gltorch": "torch"}[name]
    pytest.importorskip(package, reason=f"gpuload.bridges.{package} needs it")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    bridge = __import__(f"gpuload.bridges.{package}", fromlist=["dataset"])

    with pytest.raises(GpuloadError) as error:
        bridge.dataset()

    assert str(error.value).startswith(f"{name}.dataset()")
