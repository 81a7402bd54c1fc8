"""Calls that do not fit: the error names the arguments that there are, and the likely one."""

from __future__ import annotations

import inspect
import os

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops, synonyms
from gpuload.errors import CallError, SpecError

SOURCE = gl.arrays(x=np.arange(4))


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: ops.GaussianBlur(kernel_size=5), ["GaussianBlur(kernel_size=5)", "kernel, sigma", "write kernel="]),
        (lambda: ops.RandomCrop(32, padding=4), ["no argument 'padding'", "write pad= in place of padding="]),
        (lambda: ops.Pad(padding=4), ["write margin= in place"]),
        (lambda: ops.RandomFlip(horizntal=True), ["write horizontal= in place"]),
        (lambda: ops.Rotate(9, p=0.3), ["no argument 'p'", "write gl.ops.Sometimes(0.3, [gl.ops.Rotate(...)])"]),
        (lambda: ops.Brightness(0.4), ["required argument: 'high'", "write gl.ops.Brightness(0.8, 1.2), say"]),
        (lambda: ops.Copy("image", "view"), ["too many positional", 'gl.ops.Copy("image", to=']),
        (lambda: gl.Loader(SOURCE, batchsize=4), ["gl.Loader(", "write batch_size= in place"]),
        (lambda: gl.npy("x.npy", foo=1), ["gl.npy('x.npy', foo=1)", "remedy: leave it out"]),
        (lambda: gl.npy("x.npy", sep=";"), ["remedy: leave it out; it belongs to gl.csv(..., delimiter=...)"]),
        (lambda: gl.csv("x.csv", sep=";"), ["remedy: write delimiter= in place of sep="]),
        (lambda: gl.parquet("x", columns=["a"]), ["remedy: write fields= in place of columns="]),
        (lambda: gl.check("x.csv", delimiter=";"), ["it belongs to gl.csv(..., delimiter=...)"]),
        (lambda: gl.open("x.h5", group="train"), ["belongs to gl.hdf5(..., group=...) or gl.zarr(..., group=...)"]),
        (lambda: gl.recipes.cifar10(sise=32), ["gl.recipes.cifar10(sise=32)", "no argument 'sise'"]),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_names_what_there_is(call, parts):
    with pytest.raises(TypeError) as caught:
        call()

    assert type(caught.value) is CallError
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ({"decimal": ","}, "gl.csv({path!r}, delimiter=';', decimal=',')"),
        ({"sep": "|"}, "gl.csv({path!r}, delimiter='|')"),
        ({"dtype": {"a": "U3"}}, "gl.csv({path!r}, delimiter=';', columns={{'a': 'U3'}})"),
    ],
)
def test_an_argument_of_a_format_leads_from_gl_open_to_the_call_that_takes_it(
    tmp_path, arguments, call
):
    path = str(tmp_path / "a.csv")
    with open(path, "w") as file:
        file.write("a;b\n1,5;2\n")

    with pytest.raises(CallError) as caught:
        gl.open(path, **arguments)
    assert caught.value.remedy == f"write {call.format(path=path)}"
    if "|" not in call:
        assert len(eval(caught.value.remedy.removeprefix("write "))) == 1
    with pytest.raises(
        CallError, match=r"it belongs to gl.npz\(.*\), and gl.csv opens these files"
    ):
        gl.open(path, fields=["a"], decimal=",")


@pytest.mark.parametrize(
    ("files", "arguments", "call"),
    [
        (
            ("a/0.png", "b/0.png"),
            {"classes": ["b", "a"]},
            "gl.images({path!r}, classes=['b', 'a'])",
        ),
        (("a/0.png", "b/0.png"), {"labels": None}, "gl.images({path!r}, labels=None)"),
        (
            ("0.png", "1.png"),
            {"on_error": "skip"},
            "gl.images({path!r}, labels=None, on_error='skip')",
        ),
    ],
)
def test_an_argument_of_images_leads_from_gl_open_of_their_folder_to_gl_images(
    tmp_path, files, arguments, call
):
    Image = pytest.importorskip("PIL.Image")
    path = str(tmp_path / "images")
    for name in files:
        os.makedirs(os.path.dirname(os.path.join(path, name)), exist_ok=True)
        Image.new("RGB", (2, 2)).save(os.path.join(path, name))

    with pytest.raises(CallError) as caught:
        gl.open(path, **arguments)

    assert caught.value.remedy == f"write {call.format(path=path)}"
    assert len(eval(caught.value.remedy.removeprefix("write "))) == 2


def test_an_argument_of_zarr_leads_from_gl_open_to_gl_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = str(tmp_path / "a.zarr")
    array = zarr.open_group(path, mode="w", zarr_format=2).create_array(
        "x", shape=(4,), chunks=(2,), dtype="i2"
    )
    array[:2] = 1

    with pytest.raises(CallError) as caught:
        gl.open(path, fill=True)

    assert caught.value.remedy == f"write gl.zarr({path!r}, fill=True)"
    assert eval(caught.value.remedy.removeprefix("write ")).read(range(4))["x"].tolist() == [
        1,
        1,
        0,
        0,
    ]


def test_an_error_of_types_inside_of_a_call_stays_as_it_is():
    def read(records):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine") as caught:
        gl.records(4, read)[0]
    assert not isinstance(caught.value, CallError)


def test_arguments_of_others_lead_to_arguments_that_some_function_has():

    functions = [getattr(ops, name) for name in ops.__all__ if name != "Op"]
    parameters = {
        name
        for function in (*functions, gl.Loader, gl.npy, gl.csv, gl.images, gl.parquet)
        for name in inspect.signature(function).parameters
    }

    assert {word for words in synonyms.ARGUMENTS.values() for word in words} <= parameters


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (
            lambda: ops.RandomResizedCrop((224, 192)),
            r"write gl.ops.RandomResizedCrop\(224, 192\), height and width",
        ),
        (lambda: ops.RandomResizedCrop(224, interpolation="bilinear"), "write 'linear'"),
        (lambda: ops.Rotate(5, interpolation="BILINEAR"), "write 'linear'"),
        (lambda: ops.Transpose("NCHW"), "write 'CHW'"),
        (lambda: ops.Cast("torch.float32"), "write 'float32'"),
        (lambda: ops.AutoAugment("cifar"), "write 'cifar10'"),
        (lambda: ops.Normalize(0, 0), "pass a number of more than zero"),
        (
            lambda: gl.Loader(SOURCE, 2, ops=[gl.ops.repeat([ops.RandomFlip()], on=("a", "b"))]),
            "put a star before it",
        ),
        (lambda: gl.Loader(SOURCE, 2, ops=["RandomFlip"]), r"write gl.ops.RandomFlip\(...\)"),
    ],
)
def test_a_value_as_another_library_has_it_names_ours(call, remedy):
    with pytest.raises(SpecError, match=f"remedy: {remedy}"):
        call()


RGBA = gl.arrays(
    image=np.zeros((4, 8, 9, 4), np.uint8), label=np.array(["cat", "dog", "cat", "ant"])
)


@pytest.mark.parametrize(
    "op", [ops.ColorJitter(0.4), ops.RandAugment(), ops.JpegArtefacts(50), ops.Grayscale()]
)
def test_images_with_alpha_name_an_op_that_makes_them_fit(op):
    with pytest.raises(SpecError) as caught:
        gl.Loader(RGBA, 2, ops=[op], device="cpu")

    assert "gl.ops.Python(lambda x: x[..., :3], on='image') before it" in caught.value.remedy
    mended = gl.Loader(
        RGBA,
        2,
        ops=[ops.Python(lambda x: x[..., :3], on="image"), op],
        output="image",
        device="cpu",
    )
    assert mended.batch_at(0)["image"].shape == (2, 8, 9, 3)


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: gl.Loader(RGBA, 2, ops=[ops.OneHot(3)]), "numpy.unique"),
        (lambda: ops.Decode("L"), "write 'GRAY'"),
        (lambda: gl.Loader(RGBA, 2, ops=gl.recipes.resnet50()), "images='HWC'"),
    ],
)
def test_data_in_another_form_names_the_way(call, remedy):
    with pytest.raises(SpecError) as caught:
        call()
    assert remedy in caught.value.remedy
