"""Python: a function of one's own in the list of ops.

Calls    The function gets one record as a read-only NumPy array (with ``batch=True`` some records, ``[n, ...]``, any
         number of them) and returns what becomes of it. It is called in several threads at once. The record's memory
         is used again after the call.
Result   Its dtype and shape are what ``out`` says. Without ``out`` the function is called once on zeros when the loader
         is made, which needs a field of one shape.
Random   A parameter named ``rng`` gets a ``numpy.random.Generator`` (Philox) of the record: its key is four words drawn
         for (seed, epoch, record, op), so what it draws does not depend on the batch, the thread or earlier calls. With
         several fields in ``on`` each call gets the same numbers.
State    A state tells the function by its module and name: two functions of one name are the same to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import DeviceError, SpecError, noted
from gpuload.kernels import aside
from gpuload.ops import arguments
from gpuload.ops.arguments import Output
from gpuload.ops.base import VARYING, Draw, Op, RowError, Sizes
from gpuload.spec import Field

WORDS = 4  # of 32 bits: the key of numpy.random.Philox


@dataclass(frozen=True)
class Python(Op):
    """Call a function with each record; on the CPU, by the array executor.

    What the function raises reaches the caller as itself, with a note that names the record.

    Args:
        fn: ``fn(x)`` or ``fn(x, rng)``; it must return the same for the same record, whatever came before. A loader
            with a lambda or an inner function in it cannot be pickled; one with a function of a module can.
        out: what it returns, ``{"dtype": "float32", "shape": (None, None, 3)}``; what is left out stays as it was. In
            an image, an axis that is None is as long as before. None: found out by a call on zeros.
        batch: give it records ``[n, ...]`` and have it return as many, in order; ``rng`` is a list of generators then.
            How many come at once is not known, so a record's result must not depend on the others.
    """

    fn: Callable[..., Any]
    out: Output | None = field(default=None, kw_only=True, hash=False)
    batch: bool = field(default=False, kw_only=True)

    num_uniforms: ClassVar[int] = WORDS
    needs_numpy: ClassVar[bool] = True
    any_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fn):
            raise arguments.refuse(self, "fn", self.fn, "a function", "write gl.ops.Python(lambda x: x[::-1]), say")
        arguments.keep(self, out=arguments.output(self, self.out), batch=arguments.flag(self, "batch", self.batch))

    def of(self, name: str, after: Field | None = None) -> Python:
        """Return the op with all that the function must return for a field in ``out``."""
        if after is None:
            return self
        shape = {} if after.shape is None else {"shape": after.shape}
        return replace(self, out={"dtype": after.dtype, **shape})

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.fn, "__qualname__", type(self.fn).__name__))

    @property
    def takes_rng(self) -> bool:
        """True if the function has a parameter ``rng``."""
        try:
            return "rng" in inspect.signature(self.fn).parameters
        except (TypeError, ValueError):  # of some functions written in C nothing can be told
            return False

    @property
    def is_random(self) -> bool:
        """True if the function takes ``rng``."""
        return self.takes_rng

    def field_after(self, field: Field) -> Field:
        """What ``out`` says, or what the function makes of zeros."""
        if field.encoded:
            raise SpecError(
                f"{self}: field {field.name!r} is an encoded image file",
                cause="the function gets arrays",
                remedy=f"put gl.ops.Decode(on={field.name!r}) before it",
            )
        if self.out is not None:
            return arguments.declared(self.out, field)
        if not field.uniform:
            raise SpecError(
                f"{self}: field {field.name!r} has shape {field.shape}",
                cause="what the function returns is not declared, and a call on zeros needs one shape",
                remedy=f"declare it: out={{'dtype': {field.dtype.name!r}}} if the shape stays as it is, else "
                f"out={{'dtype': {field.dtype.name!r}, 'shape': (224, 224, 3)}}, say",
            )
        made = self._tried(field)
        axes = field.axes if made.shape == field.shape else ""
        return field.with_(dtype=made.dtype, shape=made.shape, axes=axes)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``key``: four random words, int32 ``[N, 4]``, if the function takes ``rng``."""
        return {"key": (u * 2.0**32).astype(np.uint32).view(np.int32)} if self.takes_rng else {}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return what the function makes of one record."""
        if self.batch:
            return self._many(xp, np.asarray(x)[None], {name: values[None] for name, values in draw.items()})[0]
        x = np.asarray(x)
        try:
            made = np.asarray(self.fn(_read_only(x), **_generator(xp, draw)))
            self._check(made, x.shape)
        except Exception as error:
            raise FunctionError(self.name, error) from None
        return made

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, where the function takes one."""
        whole = self.batch and not isinstance(x, VARYING) and len(x)
        return self._many(xp, x, draw) if whole else super().array_batch(xp, x, draw)

    def lower(self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str) -> Any:
        """There is none: DALI would call the function between its own threads."""
        raise DeviceError(
            f"{self} in DALI",
            cause="a Python function runs on NumPy arrays alone",
            remedy="use executor='array' and device='cpu', or an op of gl.ops",
        )

    def _many(self, xp: ModuleType, x: NDArray[Any], draw: Draw) -> NDArray[Any]:
        rows = [{name: values[row] for name, values in draw.items()} for row in range(len(x))]
        try:
            generators = {"rng": [_generator(xp, row)["rng"] for row in rows]} if draw else {}
            made = np.asarray(self.fn(_read_only(x), **generators))
            if made.shape[:1] != (len(x),):
                raise SpecError(
                    f"{self.name} returned {made.dtype} {made.shape} for {len(x)} records",
                    cause="with batch=True it returns as many records as it gets, along the first axis",
                    remedy="return them all in one array, or leave batch=True out",
                )
            self._check(made[0], x.shape[1:])
        except Exception as error:
            raise FunctionError(self.name, error, count=len(x)) from None
        return made

    def _check(self, made: NDArray[Any], given: tuple[int, ...]) -> None:
        """Raise ``SpecError`` unless a result is what ``out`` says; without it the field is not known here."""
        if self.out is None:
            return
        shape = self.out.get("shape", given)
        fits = len(made.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, made.shape, strict=True))
        dtype = np.dtype(self.out.get("dtype", made.dtype))
        if not fits or made.dtype != dtype:
            raise SpecError(
                f"{self.name} returned {made.dtype} {made.shape}",
                cause=f"it should return {dtype} {tuple(shape)}, as out= says or as it did for zeros",
                remedy="change the function, by x.astype(...) say, or what out= declares",
            )
        moved = [axis for axis in (0, 1) if len(shape) == 3 and shape[axis] is None and len(given) > 1]
        if any(made.shape[axis] != given[axis] for axis in moved):
            raise SpecError(
                f"{self.name} returned {made.shape[0]} x {made.shape[1]} pixels for {given[0]} x {given[1]}",
                cause="where out= has None the image keeps its size, for later ops have drawn for that size",
                remedy="declare the new size in out= if it is the same for all, or use gl.ops.Resize or gl.ops.Pad",
            )

    def _tried(self, field: Field) -> NDArray[Any]:
        """Return what the function makes of zeros."""
        draw: Draw = {"key": np.zeros(WORDS, np.int32)} if self.takes_rng else {}
        try:
            # Aside, for what a signal handler raises meanwhile is no fault of the function.
            made: NDArray[Any] = aside.call(lambda: self.array(np, np.zeros(field.fixed_shape, field.dtype), draw))
        except FunctionError as failed:
            raise SpecError(
                f"{self}: called once with zeros of {field} it raised {failed.error!r}",
                cause="the function is tried once, to find out what it returns",
                remedy="mend the function, which gets an array that it may not change; where it is right, and cannot "
                "take zeros, declare what it returns, as out={'dtype': 'float32', 'shape': (224, 224, 3)}",
            ) from failed.error
        return made


class FunctionError(RowError):
    """A function of the user's raised an error for a row; whoever knows the record raises that error itself."""

    def __init__(self, name: str, error: Exception, *, row: int = 0, count: int = 1) -> None:
        super().__init__(row, f"{name} raised {error!r}")
        self.name, self.error, self.count = name, error, count

    def moved(self, rows: int) -> FunctionError:
        """Return the error for a batch in which ``rows`` others stand before."""
        return FunctionError(self.name, self.error, row=self.row + rows, count=self.count)

    def of_record(self, where: str) -> Any:
        """Return the function's error, with a note that names the record."""
        many = f", the first of the {self.count} that it was called with" if self.count > 1 else ""
        return noted(self.error, f"in gl.ops.Python({self.name}), {where}{many}")


def _read_only(x: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written to: the record's memory may be anybody's."""
    view = x.view()
    view.flags.writeable = False
    return view


def _generator(xp: ModuleType, draw: Draw) -> dict[str, Any]:
    """Return the argument ``rng`` for one row of a draw; nothing where nothing was drawn."""
    if not draw:
        return {}
    words = [int(word) for word in draw["key"].view(np.uint32)]
    key = np.array([words[0] | words[1] << 32, words[2] | words[3] << 32], np.uint64)
    return {"rng": xp.random.Generator(xp.random.Philox(key=key))}
