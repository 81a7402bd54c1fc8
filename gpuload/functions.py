"""Functions of the user's: how they are called, and how their exceptions reach the caller.

    call_function(read, numbers, note=lambda: "gl.records: the function was asked for record 7")

Rule   An exception reaches the caller as itself, with a note that says which call it was: it is no
       damage of a file and no wrong argument. StopIteration, which would end the loop that asked
       and hide the rest of the data, comes as the cause of a RuntimeError
       (`errors.of_function`).
Ops    gl.ops.Python makes a `FunctionError` of the exception, which knows the row; its
       ``of_record`` keeps this rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpuload.errors import of_function

R = TypeVar("R")


def call_function(function: Callable[..., R], *arguments: Any, note: Callable[[], str]) -> R:
    """Return the result of a user's function for some arguments.

    Args:
        function: the user's function.
        arguments: for it.
        note: returns a text that says which call it was; called only if the function raised an
            exception.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise of_function(error, note())  # noqa: B904  it is the same error, or has it as its cause
