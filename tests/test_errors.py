"""Every error is ours and the built-in one, and reads: what, cause, remedy."""

from __future__ import annotations

import inspect
import pickle

import pytest

from gpuload import errors
from gpuload.errors import GpuloadError

BUILT_IN = {
    "SpecError": ValueError,
    "TooLargeError": MemoryError,
    "FormatError": ValueError,
    "RecordError": ValueError,
    "DamagedBlockError": ValueError,
    "DamagedSourceError": ValueError,
    "FileError": OSError,
    "MissingFileError": FileNotFoundError,
    "DirectoryError": IsADirectoryError,
    "UnreadableFileError": PermissionError,
    "ChangedFileError": OSError,
    "RecordIndexError": IndexError,
    "UnknownFieldError": KeyError,
    "UnknownAttributeError": AttributeError,
    "CallError": TypeError,
    "ClosedError": ValueError,
    "StateError": ValueError,
    "DeviceError": RuntimeError,
    "PixelError": RuntimeError,
    "MissingPackageError": ImportError,
}
KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, GpuloadError)
]


def test_every_error_is_in_the_table():
    assert {kind.__name__ for kind in KINDS} == {*BUILT_IN, "GpuloadError"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not GpuloadError])
def test_an_error_is_also_the_built_in_one(kind):
    with pytest.raises(BUILT_IN[kind.__name__]):
        raise kind("x.npy", cause="it is gone", remedy="bring it back")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_reads_what_cause_remedy(kind):
    assert str(kind("x.npy", cause="it is gone", remedy="bring it back")) == (
        "x.npy\n  cause:  it is gone\n  remedy: bring it back"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_between_processes(kind):
    error = pickle.loads(pickle.dumps(kind("x.npy", cause="it is gone", remedy="bring it back")))
    assert type(error) is kind
    assert str(error).endswith("bring it back")


def test_notes_and_parts_of_an_error_survive_it_too():
    error = errors.PixelError("record 3", cause="a wrong kernel", remedy="none")
    error.record, error.value = 3, [165, 88]
    errors.add_note(error, "epoch 0")
    again = pickle.loads(pickle.dumps(error))
    assert (again.record, again.value, again.expected, again.field) == (3, [165, 88], None, "")
    assert again.__notes__ == ["epoch 0"]


def test_a_place_is_put_in_front():
    assert str(errors.SpecError("no field 'x'").within("ops[2]")) == "ops[2]: no field 'x'"


def test_a_missing_package_names_its_extra():
    error = errors.missing_package("pyarrow", needed_for="speed", extra="cpu")
    assert 'pip install "gpuload[cpu]"' in str(error)


def test_a_package_that_is_there_and_cannot_be_imported_says_why():
    reasons = [
        ModuleNotFoundError("No module named 'pyarrow'"),
        ImportError("pyarrow requires NumPy 2.0 or newer"),
    ]

    causes = [
        errors.missing_package("pyarrow", needed_for="gl.csv", extra="csv", error=item).cause
        for item in reasons
    ]

    assert causes == [
        "it is not installed",
        "it is installed, but cannot be imported: pyarrow requires NumPy 2.0 or newer",
    ]
