"""Functions of the user's: their exceptions arrive, and never look like the end of the data."""

import numpy as np
import pytest

import gpuload as gl
from gpuload.pipeline.epoch import Epoch


def reader(error, first):
    """Return a reader of gl.records that raises an error from a record on."""

    def read(numbers):
        if (numbers >= first).any():
            raise error
        return {"x": numbers.astype(np.float32)}

    return read


def raising(error):
    def function(*arguments):
        raise error

    return function


@pytest.mark.parametrize(
    "walk", [list, lambda source: list(reversed(source)), lambda source: 7 in source]
)
def test_an_index_error_of_a_reader_does_not_end_a_loop_over_the_source(walk):
    source = gl.records(10, reader(IndexError("list index out of range"), 5))

    with pytest.raises(IndexError, match="list index out of range") as caught:
        walk(source)

    assert "the function was asked for record" in caught.value.__notes__[0]


def test_a_loop_over_a_source_gives_each_record_once_in_both_directions():
    source = gl.arrays(x=np.arange(5))

    assert [record["x"] for record in source] == [0, 1, 2, 3, 4]
    assert [record["x"] for record in reversed(source)] == [4, 3, 2, 1, 0]


CALLS = {
    "a loop over a source": lambda error: list(gl.records(10, reader(error, 5))),
    "a record": lambda error: gl.records(10, reader(error, 5))[7],
    "a loop over a loader": lambda error: list(gl.Loader(gl.records(10, reader(error, 5)), 2)),
    "a batch": lambda error: gl.Loader(gl.records(10, reader(error, 5)), 2).batch_at(4),
    "a filter": lambda error: gl.arrays(x=np.arange(5)).filter(raising(error), fields="x"),
    "an op": lambda error: list(
        gl.Loader(gl.arrays(x=np.ones((4, 2))), 2, ops=[gl.ops.Python(raising(error), out={})])
    ),
    "a batch of an op": lambda error: gl.Loader(
        gl.arrays(x=np.ones((4, 2))), 2, ops=[gl.ops.Python(raising(error), out={})]
    ).peek(),
    "a conversion": lambda error: (
        gl.Loader(gl.arrays(x=np.ones(4)), 2).peek().with_fields(raising(error))
    ),
    "a check": lambda error: list(gl.check(gl.records(10, reader(error, 5)))),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_stop_iteration_of_a_function_is_a_runtime_error_with_a_note(call):
    with pytest.raises(
        RuntimeError, match=r"a function raised StopIteration\('out of rows'\)"
    ) as caught:
        call(StopIteration("out of rows"))

    assert caught.value.__notes__


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_other_errors_of_a_function_come_as_themselves_with_a_note(call):
    error = LookupError("no such row")

    with pytest.raises(LookupError) as caught:
        call(error)

    assert caught.value is error
    assert caught.value.__notes__


def test_stop_iteration_of_a_signal_handler_in_the_wait_for_a_batch_does_not_end_an_epoch(
    monkeypatch,
):
    # A handler is called in the wait, and its exception comes from there.
    monkeypatch.setattr(Epoch, "_take", raising(StopIteration("from the handler")))
    loader = gl.Loader(gl.arrays(x=np.arange(6)), 1)

    with pytest.raises(RuntimeError, match="from the handler"):
        list(loader)
