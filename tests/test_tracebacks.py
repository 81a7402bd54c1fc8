"""Tracebacks of errors that a user's slip causes: the user's frames, and at most two of ours."""

from __future__ import annotations

import inspect
import pickle
import traceback
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError, RecordError

PACKAGE_FOLDER = str(Path(gl.__file__).parent)
IMAGES = gl.arrays(image=np.zeros((8, 6, 6, 3), np.uint8), label=np.arange(8))


def loader(**changes):
    return gl.Loader(IMAGES, **{"batch_size": 4, "device": "cpu", **changes})


def broken(numbers):
    if 5 in numbers:
        raise RecordError("numbers.bin, record 5: it is damaged")
    return {"x": np.asarray(numbers)}


SLIPS = {
    "a path that is not there": lambda: gl.npy("nothing-*.npy"),
    "another path": lambda: gl.open("nothing.tfrecord"),
    "a wrong dtype": lambda: gl.fixed(__file__, "nonsense"),
    "ragged lists": lambda: gl.arrays(x=[[1], [2, 3]]),
    "no source": lambda: gl.Loader([1, 2, 3], 4),
    "a batch size": lambda: loader(batch_size=0),
    "a field that is not there": lambda: loader(output=("image", "labels")),
    "a window that is too large": lambda: next(iter(loader(ops=[gl.ops.RandomCrop(9, 9)]))),
    "an argument of an op": lambda: gl.ops.RandomCrop(0, 9),
    "a share": lambda: gl.ops.RandomFlip(p=3),
    "a record outside": lambda: IMAGES[99],
    "records outside": lambda: IMAGES.read([1, 99]),
    "a step outside": lambda: loader().batch_at(99),
    "a state of others": lambda: loader().load_state_dict({"version": 1}),
    "an argument of replace": lambda: loader().replace(batchsize=3),
    "a name in a batch": lambda: loader().peek()["labels"],
    "a fraction": lambda: IMAGES.split(2.0),
    "a rename": lambda: IMAGES.rename(images="x"),
    "a guess": lambda: loader().map,
    "lengths that differ": lambda: gl.zip(IMAGES, gl.arrays(x=np.zeros(3))),
    "a damaged record": lambda: list(gl.Loader(gl.records(10, broken), 2, device="cpu")),
    "a conversion": lambda: gl.convert(IMAGES, "out.nonsense"),
}


def frames_of(slip):
    """Return the error that a slip causes, and the files of its traceback."""
    with pytest.raises(GpuloadError) as raised:
        slip()
    return raised.value, [
        frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)
    ]


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_shows_the_frame_of_the_user_and_at_most_two_of_ours(name):
    _, files = frames_of(SLIPS[name])
    assert sum(file.startswith(PACKAGE_FOLDER) or file == "<string>" for file in files) in (1, 2)
    assert files.count(__file__) >= 2


def test_all_frames_are_there_for_who_asks(monkeypatch):
    _, short = frames_of(SLIPS["a path that is not there"])
    monkeypatch.setenv("GPULOAD_DEBUG", "1")
    error, files = frames_of(SLIPS["a path that is not there"])
    assert len(files) > len(short)
    assert "remedy" in str(error)


def test_an_exception_of_the_users_keeps_its_frames():
    def fails(x):
        if x == 5:
            raise ZeroDivisionError("mine")
        return x

    with pytest.raises(ZeroDivisionError) as raised:
        list(loader(ops=[gl.ops.Python(fails, on="label")]))
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "fails"


@pytest.mark.parametrize(
    "function", [gl.npy, gl.arrays, gl.Loader, gl.ops.RandomCrop, gl.Loader.batch_at]
)
def test_what_is_public_keeps_its_name_and_signature_and_its_pickle(function):
    assert "args" not in inspect.signature(function).parameters
    assert function.__doc__
    assert pickle.loads(pickle.dumps(function)) is function
