"""Python: a function of one's own in the list of ops.

Calls    The function gets the fields of ``on`` of one record, a read-only NumPy array each (with
         ``batch=True`` of some records, ``[n, ...]``, any number of them) and returns the new
         values. It is called in several threads at once. The record's memory is used again after
         the call. Text of any length comes as str or bytes, several texts as an array of objects.
Fields   A function that must be given one field (``def f(x)``, beside ``rng``) is called with each
         field of ``on`` by itself. Any other gets all of them in one call, in the order of ``on``,
         and returns as many in a tuple, or a dict from names to arrays; so does any function whose
         ``out`` names fields. A dict may hold new fields; a field that is not in it stays as it
         was.
Device   It runs on the host, before the ops that run on a GPU. With ``on_device=True`` it gets
         arrays of CuPy on a GPU, on the stream of the ops around it, behind operators of DALI, too,
         and arrays of NumPy on a CPU.
Result   Its dtype and shape are those of ``out``. Without ``out`` the function is called on zeros
         when the loader is made; where shapes vary, on zeros of two sizes: an axis that was as long
         as that of the input both times stays as it was, one that had the same length both times
         has that length, anything else has to be declared. The result of each record is compared
         with this.
Random   A parameter named ``rng`` gets a ``numpy.random.Generator`` (Philox) of the record: its key
         is four words drawn for (seed, epoch, record, op), so its numbers do not depend on the
         batch, the thread or earlier calls. Called with each field of ``on`` by itself, it gets the
         same numbers each time.
State    A state tells the function by its module and name: two functions of one name are the same
         to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import FunctionError, SpecError
from gpuload.ops import arguments
from gpuload.ops.arguments import Output
from gpuload.ops.base import VARYING, Draw, Op, Sizes
from gpuload.ops.traits import Arithmetic, Execution, Joint, Traits, once
from gpuload.spec import TEXTS, Field, Spec

WORDS = 4  # of 32 bits: the key of numpy.random.Philox
# How long axes that vary are in the first call on zeros, and in the second; no two axes of a call
# are equal.
LENGTHS_OF_ZEROS = ((32, 40, 24, 16), (40, 24, 32, 12))


@dataclass(frozen=True)
class Python(Op):
    """Call a function with each record, on the host or where the record is.

    Ops behind it may run in DALI and on a GPU. Its exceptions reach the caller as themselves, with
    a note that names the record.

    Example:
        ``gl.ops.Python(np.flipud)``

    Args:
        fn: ``fn(x)``, ``fn(x, rng)``, or with ``on=("image", "boxes")`` ``fn(image, boxes, rng)``,
            which returns both. It must return the same for the same record in any order of calls. A
            loader with a lambda or an inner function in it cannot be pickled; one with a function
            of a module can.
        out: its result: a dtype, ``"float32"``; dtype and shape, ``("float32", (None, None, 3))``
            or ``{"dtype": "float32", "shape": (None, None, 3)}``; or a ``gl.Field``. The dtypes
            ``"str"`` and ``"bytes"`` are text of any length. Of several fields, or of new ones, a
            dict of these by name. A part left out stays as it was, so that ``{}`` is a function
            that changes neither dtypes nor shapes. In an image, an axis that is None is as long as
            before. None: found out by calls on zeros.
        batch: give it records ``[n, ...]`` and have it return as many, in order; ``rng`` is a list
            of generators then. How many come at once is not known, so a record's result must not
            depend on the others.
        on_device: on a GPU give it CuPy arrays, copies that it may change, and have it return such;
            on a CPU NumPy arrays: write it with operators, or with
            ``xp = cupy.get_array_module(x)``. It takes no ``rng``, for the generators of CuPy have
            other numbers than NumPy's.
    """

    fn: Callable[..., Any]
    out: Output | dict[str, Output] | None = field(default=None, kw_only=True, hash=False)
    batch: bool = field(default=False, kw_only=True)
    on_device: bool = field(default=False, kw_only=True)

    num_uniforms: ClassVar[int] = WORDS

    @property
    @once
    def traits(self) -> Traits:
        """A function of the user runs on NumPy unless it takes arrays of CuPy, too."""
        return Traits(
            arithmetic=Arithmetic(any_size=True),
            execution=Execution(
                needs_numpy=not self.on_device,
                stays_on_host=self._stays_on_host,
                calls_python=True,
            ),
            joint=Joint(self._call_on_fields) if self._is_joint else None,
            is_random=self.takes_rng,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fn):
            raise arguments.refuse(
                self, "fn", self.fn, "a function", "write gl.ops.Python(lambda x: x[::-1]), say"
            )
        by_name = arguments.outputs(self, self.out)
        if by_name is None:
            out = arguments.output(self, self.out)
        else:
            out = by_name
        arguments.keep(self, out=out, batch=arguments.flag(self, "batch", self.batch))
        arguments.keep(self, on_device=arguments.flag(self, "on_device", self.on_device))
        if self.on_device and self.takes_rng:
            raise arguments.refuse(
                self, "on_device", True, "False for a function that takes rng: CuPy's generators have other numbers",
                "leave on_device out, or write an op whose draw() makes the numbers, see docs/own-op.md",
            )  # fmt: skip
        if self._is_joint and by_name is None and self.out:
            raise arguments.refuse(
                self, "out", self.out, f"a dict from names to these, for the function gets the fields {self.on}",
                f"write out={{{self._on[0]!r}: {self.out!r}}}",
            )  # fmt: skip

    def _stays_on_host(self, before: Spec) -> bool:
        """True also for text, which no array of CuPy holds."""
        return not self.on_device or any(field.host_only for field in before)

    @property
    def _is_joint(self) -> bool:
        """True if the function is called once with all fields."""
        return bool(arguments.outputs(self, self.out)) or (
            len(self._on) > 1 and self._num_required != 1
        )

    @property
    def _on(self) -> tuple[str, ...]:
        if isinstance(self.on, tuple):
            return self.on
        if self.on is None:
            return ()
        return (self.on,)

    @property
    def _num_required(self) -> int:
        """How many fields the function requires; 1 where Python has no signature, as of some
        functions in C."""
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        inputs = [
            parameter
            for parameter in self._parameters.values()
            if parameter.name != "rng" and parameter.kind in positional
        ]
        if self._parameters:
            return sum(parameter.default is Parameter.empty for parameter in inputs)
        return 1

    @property
    def _parameters(self) -> Mapping[str, Parameter]:
        try:
            return inspect.signature(self.fn).parameters
        except (TypeError, ValueError):  # of some functions written in C
            return {}

    def spec_after(self, spec: Spec) -> Spec:
        """Return the fields after the op, as ``out`` declares them, or as the function returns them
        for zeros."""
        if not self._is_joint:
            return super().spec_after(spec)
        before = [spec[name] for name in self.targets(spec)]
        names = [target.name for target in before]
        for target in before:
            self._require_pixels(target)
        self._check_call(names)
        declared = arguments.outputs(self, self.out) or {}
        unmentioned = [name for name in declared if name in spec and spec[name] not in before]
        if unmentioned:
            raise SpecError(
                f"{self}: out= names the fields {unmentioned}",
                cause="they are fields already, and the function does not get them",
                remedy=f"name them in on= too, on={(*names, *unmentioned)}, or choose new names",
            )
        if self.out is None:
            return spec.including(*self._infer_fields(before))
        varying = [target.name for target in before if not target.uniform]
        if self.batch and varying:
            raise SpecError(
                f"{self}: the shape of {varying} varies",
                cause="with batch=True the function gets arrays of some records, of one shape each",
                remedy="leave batch=True out",
            )
        new = [Field(name, np.dtype(np.uint8), ()) for name in declared if name not in spec]
        for target in new:
            if "dtype" not in declared[target.name]:
                raise SpecError(
                    f"{self}: the new field {target.name!r} has no dtype",
                    cause="a part that is left out of out= stays as it was, and this field was not there",
                    remedy=f"write out={{{target.name!r}: ('float32', (4,))}}, say",
                )
        targets = [*before, *new]
        after = (arguments.declared(declared.get(target.name, {}), target) for target in targets)
        return spec.including(*after)

    def of(self, name: str, after: Field | None = None) -> Python:
        """Return the op with all that the function must return for a field in ``out``."""
        if after is None or self._is_joint:
            return self
        if after.shape is None:
            shape = {}
        else:
            shape = {"shape": after.shape}
        return replace(self, out={"dtype": after.text or after.dtype, **shape})

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.fn, "__qualname__", type(self.fn).__name__))

    @property
    def takes_rng(self) -> bool:
        """True if the function has a parameter ``rng``."""
        return "rng" in self._parameters

    def field_after(self, field: Field) -> Field:
        """Return the field as ``out`` declares it, or as the function returns it for zeros."""
        self._require_pixels(field)
        if self.out is not None:
            return arguments.declared(self.out, field)
        trials = self._trials([field])
        results = [self._result_of_zeros(trial) for (trial,) in trials]
        return self._field_of_results(field, [trial for (trial,) in trials], results)

    def _require_pixels(self, field: Field) -> None:
        if field.encoded:
            raise SpecError(
                f"{self}: field {field.name!r} is an encoded image file",
                cause="the function gets arrays",
                remedy=f"put gl.ops.Decode(on={field.name!r}) before it",
            )

    def _check_call(self, names: list[str]) -> None:
        """Raise ``SpecError`` if the function cannot be called with so many fields."""
        try:
            if self._parameters:
                rng = {"rng": None} if self.takes_rng else {}
                inspect.signature(self.fn).bind(*names, **rng)
        except TypeError as error:
            raise SpecError(
                f"{self}: {self.name}({', '.join(names)})",
                cause=f"the function gets the fields of on= in one call, one argument each: {error}",
                remedy=f"write def {self.name.rpartition('.')[2]}({', '.join(names)}), or name other fields in on=",
            ) from None

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``key``: four random words, int32 ``[N, 4]``, if the function takes ``rng``."""
        if self.takes_rng:
            return {"key": (u * 2.0**32).astype(np.uint32).view(np.int32)}
        return {}

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the function's result for one record."""
        if self.batch:
            return _first(
                self._call_on_batch(
                    xp, _array(xp, x)[None], {name: values[None] for name, values in draw.items()}
                )
            )
        try:
            result = _array(xp, self.fn(_read_only(xp, x), **_generator(xp, draw)))
            result = _as_declared(result, arguments.declared_dtype(self.out or {}, result.dtype))
            self._check(result, x.shape if isinstance(x, xp.ndarray) else np.shape(x))
        except Exception as error:
            raise FunctionError(self.name, error) from None
        return result

    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, where the function takes one."""
        whole = self.batch and not isinstance(x, VARYING) and len(x)
        if whole:
            return self._call_on_batch(xp, x, draw)
        return super().array_batch(xp, x, draw)

    def _call_on_batch(self, xp: ModuleType, x: NDArray[Any], draw: Draw) -> NDArray[Any]:
        rows = [{name: values[row] for name, values in draw.items()} for row in range(len(x))]
        try:
            if draw:
                generators = {"rng": [_generator(xp, row)["rng"] for row in rows]}
            else:
                generators = {}
            result = _array(xp, self.fn(_read_only(xp, x), **generators))
            _check_count(self.name, result, len(x))
            self._check(_first(result), x.shape[1:])
        except Exception as error:
            raise FunctionError(self.name, error, count=len(x)) from None
        return result

    def _check(self, result: NDArray[Any], input_shape: tuple[int, ...]) -> None:
        """Raise ``SpecError`` unless a result fits ``out``; without it the field is not known
        here."""
        if self.out is not None:
            out: Output = self.out
            dtype = arguments.declared_dtype(out, result.dtype)
            _check_result(self.name, result, dtype, out.get("shape", input_shape), input_shape)

    def _result_of_zeros(self, field: Field) -> NDArray[Any]:
        """Return the function's result for zeros."""
        zeros, draw = _zeros(field), self._draw_of_zeros
        try:
            # In another thread: an exception that a signal handler raises meanwhile in the main
            # thread is no fault of the function, and must not come as its error.
            result: NDArray[Any] = signalsafe.call(lambda: self.array(np, zeros, draw))
        except FunctionError as error:
            hint = (
                f"; it must be given one field, so it is called with each of {list(self._on)} by itself; to get all in "
                f"one call write def {self.name.rpartition('.')[2]}({', '.join(self._on)})"
            )
            if len(self._on) < 2:
                hint = ""
            raise self._zeros_error(error, f"zeros of {field}", hint) from error.error
        return result

    def _infer_fields(self, before: list[Field]) -> list[Field]:
        """Return the fields that the function makes of zeros."""
        trials = self._trials(before)
        results = [self._results_of_zeros(trial) for trial in trials]
        if any(result.keys() != results[0].keys() for result in results):
            raise SpecError(
                f"{self}: for zeros of two sizes it returned the fields {[list(result) for result in results]}",
                cause="it has to return the same fields for all records",
                remedy="mend the function, or declare all fields in out=",
            )
        return [
            self._field_of_results(
                next(
                    (field for field in before if field.name == name),
                    Field(name, np.dtype(np.uint8), ()),
                ),
                [field for trial in trials for field in trial if field.name == name],
                [result[name] for result in results],
            )
            for name in results[0]
        ]

    def _results_of_zeros(self, trial: list[Field]) -> dict[str, NDArray[Any]]:
        """Return by name the results of the function for zeros of some fields."""
        zeros = {field.name: _array(np, _zeros(field)) for field in trial}
        try:
            return signalsafe.call(
                lambda: self._call(np, zeros, self._draw_of_zeros)
            )  # as in _result_of_zeros
        except FunctionError as error:
            raise self._zeros_error(
                error, f"zeros of {', '.join(map(str, trial))}"
            ) from error.error

    def _trials(self, fields: list[Field]) -> list[list[Field]]:
        """Return the fields as they are, or, where the shape of one varies, with two sets of
        lengths."""
        if all(field.uniform for field in fields):
            return [fields]
        for target in fields:
            if target.shape is None or len(target.shape) > len(LENGTHS_OF_ZEROS[0]):
                raise self._undeclared(
                    target, "a call on zeros needs the number of its axes, at most four"
                )
        return [
            [_of_one_shape(target, lengths) for target in fields] for lengths in LENGTHS_OF_ZEROS
        ]

    def _field_of_results(
        self, field: Field, trials: list[Field], results: list[NDArray[Any]]
    ) -> Field:
        """Return the field that results for zeros are, in place of ``field``.

        Args:
            field: before the function; of a new field its name, which is in no trial.
            trials: the field as it was given to the function, in each call.
            results: of the function in each call.
        """
        if len(results) == 1:
            return _like(results[0], field)
        shape = _common_shape(
            [trial.fixed_shape for trial in trials], [result.shape for result in results]
        )
        if shape is None or results[0].dtype != results[1].dtype:
            outputs = ", ".join(f"{result.dtype} {result.shape}" for result in results)
            inputs = ", ".join(str(trial.fixed_shape) for trial in trials) or "two sizes"
            raise self._undeclared(field, f"for zeros of {inputs} it returned {outputs}")
        return _like(results[0], field).with_(
            shape=shape, axes=field.axes if shape == field.shape else ""
        )

    def _undeclared(self, field: Field, cause: str) -> SpecError:
        example = {"dtype": field.dtype.name, "shape": (None,) * len(field.shape or (0, 0, 0))}
        return SpecError(
            f"{self}: what becomes of field {field.name!r} is not known",
            cause=f"out= does not declare dtype and shape, and {cause}",
            remedy=f"declare them: out={example}, say, by name where there are several fields; out={{}} where dtypes "
            "and shapes stay as they are",
        )

    @property
    def _draw_of_zeros(self) -> Draw:
        if self.takes_rng:
            return {"key": np.zeros(WORDS, np.int32)}
        return {}

    def _zeros_error(self, error: FunctionError, inputs: str, hint: str = "") -> SpecError:
        return SpecError(
            f"{self}: called once with {inputs} it raised {error.error!r}",
            cause=f"the function is tried once, to learn the dtype and shape of its result{hint}",
            remedy="mend the function, which gets arrays that it may not change; where it is right, and cannot take "
            "zeros, declare its result, as out={'dtype': 'float32', 'shape': (224, 224, 3)}, or out={} where "
            "dtypes and shapes stay as they are",
        )

    def _call_on_fields(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """Return the function's results for some records; see ``Op``."""
        count = len(next(iter(fields.values())))
        if (
            self.batch
            and count
            and not any(isinstance(values, VARYING) for values in fields.values())
        ):
            return self._call_on_records(xp, fields, draw, after)
        columns: dict[str, Any] = {name: [] for name in after.names}
        for row in range(count):
            record = {name: _array(xp, values[row]) for name, values in fields.items()}
            try:
                result = self._call(
                    xp, record, {name: values[row] for name, values in draw.items()}
                )
                self._check_names(result, fields, after)
                for name, values in columns.items():
                    values.append(
                        self._check_record(
                            result.get(name, record.get(name)), after[name], record.get(name)
                        )
                    )
            except FunctionError as error:
                raise error.shift_rows(row) from None
            except SpecError as error:
                raise FunctionError(self.name, error, row=row) from None
        return columns

    def _call(
        self, xp: ModuleType, record: dict[str, NDArray[Any]], draw: Draw
    ) -> dict[str, NDArray[Any]]:
        """Return the function's result for one record, by name."""
        try:
            if not self.batch:
                values = [_read_only(xp, x) for x in record.values()]
                return self._by_name(xp, self.fn(*values, **_generator(xp, draw)), list(record))
            if draw:
                generators = {"rng": [_generator(xp, draw)["rng"]]}
            else:
                generators = {}
            values = [_read_only(xp, x[None]) for x in record.values()]
            results = self._by_name(xp, self.fn(*values, **generators), list(record))
            return {name: _first(values) for name, values in results.items()}
        except Exception as error:
            raise FunctionError(self.name, error) from None

    def _call_on_records(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """Return the function's results for some records, from one call."""
        count = len(next(iter(fields.values())))
        rows = [{name: values[row] for name, values in draw.items()} for row in range(count)]
        try:
            if draw:
                generators = {"rng": [_generator(xp, row)["rng"] for row in rows]}
            else:
                generators = {}
            values = [_read_only(xp, x) for x in fields.values()]
            columns = self._by_name(xp, self.fn(*values, **generators), list(fields))
            self._check_names(columns, fields, after)
            for name, column in columns.items():
                _check_count(self.name, column, count)
                first = None
                if name in fields:
                    first = _first(fields[name])
                self._check_record(_first(column), after[name], first)
        except Exception as error:
            raise FunctionError(self.name, error, count=count) from None
        return {name: columns.get(name, fields.get(name)) for name in after.names}

    def _by_name(self, xp: ModuleType, result: Any, names: list[str]) -> dict[str, NDArray[Any]]:
        """Return a result of the function as arrays by name."""
        if isinstance(result, Mapping):
            return {name: _array(xp, value) for name, value in result.items()}
        if len(names) == 1 and not isinstance(result, (tuple, list)):
            values = (result,)
        else:
            values = result
        if not isinstance(values, (tuple, list)) or len(values) != len(names):
            if isinstance(values, (tuple, list)):
                answer = f"{len(values)} values"
            else:
                answer = type(result).__name__
            raise SpecError(
                f"{self.name} returned {answer} for the fields {names}",
                cause="it returns these fields in a tuple, in their order, or a dict from names to arrays, which may "
                "also hold new fields",
                remedy=f"write return {', '.join(names)}, or return {{{names[0]!r}: ...}}",
            )
        return {name: _array(xp, value) for name, value in zip(names, values, strict=True)}

    def _check_names(self, result: dict[str, Any], fields: dict[str, Any], after: Spec) -> None:
        """Raise ``SpecError`` for a field that is neither declared nor an input, and for a new one
        that is missing."""
        unknown = [name for name in result if name not in after]
        missing = [name for name in after.names if name not in result and name not in fields]
        if unknown or missing:
            cause = f"{missing} are missing, which out= declares or it returned for zeros"
            if unknown:
                cause = f"{unknown} are not declared"
            raise SpecError(
                f"{self.name} returned the fields {list(result)}",
                cause=cause,
                remedy=f"return {list(after.names)}, or declare others in out=",
            )

    def _check_record(
        self, result: Any, field: Field, input_value: NDArray[Any] | None
    ) -> NDArray[Any]:
        """Return a result that fits the field."""
        shape = () if input_value is None else input_value.shape
        result = _as_declared(result, field.dtype)
        if field.shape is not None:
            _check_result(f"{self.name} ({field.name!r})", result, field.dtype, field.shape, shape)
        return result  # type: ignore[no-any-return]


def _like(result: NDArray[Any], field: Field) -> Field:
    """Return the field that a result is, in place of one."""
    axes, text = "", ""
    if result.shape == field.shape:
        axes = field.axes
    if result.dtype.kind == "O":
        kinds = {type(value).__name__ for value in result.flat} or {field.text or "str"}
        if len(kinds) == 1:
            text = next(iter(kinds))
        else:
            text = ""
        if text not in TEXTS:
            raise SpecError(
                f"the function returned {', '.join(sorted(kinds))} for field {field.name!r}",
                cause="these are no numbers, and not text alone: str or bytes",
                remedy="return an array, numpy.array([1.0, 2.0]) say, or text",
            )
    return field.with_(dtype=result.dtype, shape=result.shape, axes=axes, text=text)


def _common_shape(
    inputs: list[tuple[int, ...]], results: list[tuple[int, ...]]
) -> tuple[int | None, ...] | None:
    """Return the shape that results of two calls have, None for an axis that follows that of the
    input.

    Returns:
        None if an axis has two lengths that are not those of the input, or none at all: a function
        that picks some rows
        picks none of zeros.
    """
    if len({len(shape) for shape in results}) > 1:
        return None
    shape: list[int | None] = []
    for axis, lengths in enumerate(zip(*results, strict=True)):
        if lengths[0] == lengths[1] and lengths[0] > 0:
            shape.append(lengths[0])
        elif list(lengths) == [before[axis] for before in inputs if axis < len(before)]:
            shape.append(None)
        else:
            return None
    return tuple(shape)


def _check_count(name: str, result: NDArray[Any], count: int) -> None:
    if result.shape[:1] != (count,):
        raise SpecError(
            f"{name} returned {result.dtype} {result.shape} for {count} records",
            cause="with batch=True it returns as many records as it gets, along the first axis",
            remedy="return them all in one array, or leave batch=True out",
        )


def _check_result(
    name: str,
    result: NDArray[Any],
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...],
    input_shape: tuple[int, ...],
) -> None:
    """Raise ``SpecError`` unless a result has a dtype and shape.

    Args:
        name: of the function.
        result: the result of the function.
        dtype: that it must have.
        shape: that it must have, None where it may have any length; in an image, that of
            ``input_shape``.
        input_shape: the shape before the function; empty where there was none.
    """
    fits = len(result.shape) == len(shape) and all(
        n in (None, m) for n, m in zip(shape, result.shape, strict=True)
    )
    are_texts = result.dtype.kind != "O" or all(
        isinstance(value, (str, bytes)) for value in result.flat
    )
    if not fits or result.dtype != dtype or not are_texts:
        raise SpecError(
            f"{name} returned {result.dtype} {result.shape}",
            cause=f"it should return {dtype} {tuple(shape)}, as out= says or as it did for zeros",
            remedy="change the function, by x.astype(...) say, or out=",
        )
    varying_axes = [
        axis for axis in (0, 1) if len(shape) == 3 and shape[axis] is None and len(input_shape) > 1
    ]
    if any(result.shape[axis] != input_shape[axis] for axis in varying_axes):
        raise SpecError(
            f"{name} returned {result.shape[0]} x {result.shape[1]} pixels for {input_shape[0]} x {input_shape[1]}",
            cause="where out= has None the image keeps its size, for later ops have drawn for that size",
            remedy="declare the new size in out= if it is the same for all, or use gl.ops.Resize or gl.ops.Pad",
        )


def _array(xp: ModuleType, value: Any) -> NDArray[Any]:
    """Return a value as an array of ``xp``; of text an array of objects.

    Raises:
        SpecError: it is an array of NumPy, and the function runs on a GPU.
    """
    if xp is not np:
        if isinstance(value, xp.ndarray):
            return value  # type: ignore[no-any-return]
        raise SpecError(
            f"the function returned {type(value).__module__}.{type(value).__name__} on a GPU",
            cause="with on_device=True it gets and returns arrays of CuPy; this one was on the host",
            remedy="write it with operators, or with xp = cupy.get_array_module(x); or leave on_device out",
        )
    array = np.asarray(value)
    if (
        array.dtype.kind in "US"
        and isinstance(value, (str, bytes, list, tuple))
        and not isinstance(value, np.generic)
    ):
        # NumPy would give them one fixed length, that of the longest, and drop zeros at the end of
        # bytes.
        array = np.array(value, object)
    return array


def _as_declared(result: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a result in the dtype of its field; an empty list of texts is floats to NumPy."""
    if dtype.kind == "O" and not result.size:
        return result.astype(dtype)
    return result


def _first(records: NDArray[Any]) -> NDArray[Any]:
    """Return the value of the first record as an array, where it is an object too."""
    return records[:1].reshape(records.shape[1:])


def _of_one_shape(field: Field, lengths: tuple[int, ...]) -> Field:
    """Return the field with a length in place of each axis that varies."""
    axes = zip(field.shape or (), lengths, strict=False)
    return field.with_(shape=tuple(length if size is None else size for size, length in axes))


def _zeros(field: Field) -> Any:
    """Return the value of a field on which a function is tried: zeros, or empty texts."""
    if not field.text:
        return np.zeros(field.fixed_shape, field.dtype)
    blank: str | bytes = b""
    if field.text == "str":
        blank = ""
    empty = np.full(field.fixed_shape, blank, object)
    return empty if field.shape else empty.item()


def _read_only(xp: ModuleType, x: Any) -> Any:
    """Return a view that cannot be written to: the record's memory may be anybody's; one text as
    itself.

    Of an array of CuPy, which knows no such view, a copy.
    """
    if xp is not np:
        return x.copy()
    if isinstance(x, np.ndarray) and x.dtype.kind == "O" and not x.ndim:
        x = x.item()
    if isinstance(x, (str, bytes)) and not isinstance(x, np.generic):
        return x
    view = np.asarray(x).view()
    view.flags.writeable = False
    return view


def _generator(xp: ModuleType, draw: Draw) -> dict[str, Any]:
    """Return the argument ``rng`` for one row of a draw; nothing where nothing was drawn."""
    if not draw:
        return {}
    words = [int(word) for word in draw["key"].view(np.uint32)]
    key = np.array([words[0] | words[1] << 32, words[2] | words[3] << 32], np.uint64)
    return {"rng": xp.random.Generator(xp.random.Philox(key=key))}
