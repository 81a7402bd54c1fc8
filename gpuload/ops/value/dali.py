"""Dali: any operator of NVIDIA DALI in the list of ops.

    gl.ops.Dali("gaussian_blur", sigma=1.5)
    gl.ops.Dali(lambda x: fn.gaussian_blur(x, sigma=1.5))          with ``from nvidia.dali import fn``

    gl.ops.Dali("rotate", angle=gl.draw.uniform(-10, 10), keep_size=True)

Random   An argument of ``gl.draw`` is drawn for each record, from (seed, epoch, record, op), and
         handed to DALI. DALI's random operators are refused: their draws depend on the place in the
         batch and on the batches before, so that no batch could be made again. By name when the op
         is made; and when DALI's pipeline is built, for operators of any function, by DALI's
         schemas of them (``HasRandomSeedArg``, DALI 2.4).
Result   DALI's graph does not know dtypes and shapes when it is built, so ``out`` declares them.
         The result is compared with that when a batch comes out; a change that a later op undoes is
         not seen.
State    A state tells a function by its module and name, an operator by its name and arguments.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import DeviceError, SpecError
from gpuload.ops import arguments
from gpuload.ops.arguments import Output
from gpuload.ops.base import Draw, Op, Sizes
from gpuload.ops.traits import Arithmetic, Execution, Traits, once
from gpuload.ops.value.cast import DALI_TYPES
from gpuload.ops.value.numbers import Numbers
from gpuload.spec import Field

NUMBERS = (
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "FLOAT",
    "FLOAT16",
    "FLOAT64",
)
RANDOM = (
    "random",
    "noise",
    "readers",
    "jitter",
    "coin_flip",
    "uniform",
    "normal_distribution",
    "batch_permutation",
)


@dataclass(frozen=True, init=False)
class Dali(Op):
    """Run an operator of DALI; by ``executor="dali"`` alone, which ``"auto"`` takes then.

    Example:
        ``gl.ops.Dali("gaussian_blur", sigma=1.5)``

    Args:
        fn: its name below ``nvidia.dali.fn``, ``"gaussian_blur"`` or
            ``"experimental.median_blur"``; or a function that gets a DataNode and returns one.
        out: its result, ``{"dtype": "float32", "shape": (None, None, 3)}``; a part left out stays
            as it was, and an axis that is None is as long as before.
        **settings: its arguments. Numbers that are drawn for each record by
            ``gl.draw.uniform(-10, 10)``, ``gl.draw.integers(0, 4)``, ``gl.draw.coin_flip(0.5)``. A
            dtype by its NumPy name; enumerations of ``nvidia.dali.types`` by name or as such.
    """

    fn: str | Callable[..., Any]
    out: Output | None = field(default=None, kw_only=True, hash=False)
    settings: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    @once
    def traits(self) -> Traits:
        """DALI alone runs it."""
        return Traits(arithmetic=Arithmetic(any_size=True), execution=Execution(needs_dali=True))

    def __init__(
        self, fn: str | Callable[..., Any], *, out: Output | None = None, on: str | tuple[str, ...] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        arguments.keep(
            self,
            fn=fn,
            out=out,
            on=on,
            settings={key: _plain(value) for key, value in settings.items()},
        )
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.fn) and not (isinstance(self.fn, str) and self.fn):
            raise arguments.refuse(
                self, "fn", self.fn, "the name of an operator, or a function",
                "write gl.ops.Dali('gaussian_blur', sigma=1.5), say",
            )  # fmt: skip
        arguments.keep(self, out=arguments.output(self, self.out))
        # A name that tells it is refused here, before DALI is imported; `_check_random` finds the
        # others in the pipeline.
        if "seed" in self.settings or (
            isinstance(self.fn, str) and any(word in self.fn for word in RANDOM)
        ):
            subject = "an operator with a seed"
            if isinstance(self.fn, str):
                subject = self.fn
            raise self._is_random(subject)

    def __repr__(self) -> str:
        """Return the call that makes the op, with the arguments of DALI's operator by name."""
        values = {**self.settings, "out": self.out, "on": self.on}
        texts = [f"{name}={value!r}" for name, value in values.items() if value is not None]
        return f"Dali({', '.join([repr(self.fn), *texts])})"

    def field_after(self, field: Field) -> Field:
        """Return the field as ``out`` declares it."""
        if field.encoded and not {"dtype", "shape"} <= set(self.out or ()):
            raise SpecError(
                f"{self}: field {field.name!r} is an encoded image file",
                cause="the result of decoding it is not declared",
                remedy=f"put gl.ops.Decode(on={field.name!r}) before it, or declare dtype and shape in out=",
            )
        if 0 in (field.shape or ()):
            raise SpecError(
                f"{self}: field {field.name!r} has shape {field.shape}",
                cause="it holds no values, and operators of DALI may end the program for that",
                remedy="name another field with on=, or mend the source",
            )
        return arguments.declared(self.out or {}, field)

    @property
    def _numbers(self) -> dict[str, Numbers]:
        """The arguments that are drawn for each record."""
        return {name: value for name, value in self.settings.items() if isinstance(value, Numbers)}

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]  # a constant of other ops
        """How many uniform numbers the arguments that are drawn need for one record."""
        return sum(numbers.count for numbers in self._numbers.values())

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return the arguments that are drawn, by their names."""
        draw, begin = {}, 0
        for name, numbers in self._numbers.items():
            draw[name] = numbers.of(u[:, begin : begin + numbers.count])
            begin += numbers.count
        return draw

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """There is none."""
        raise DeviceError(
            f"{self} in {xp.__name__}",
            cause="an operator of DALI has no array form",
            remedy="use executor='dali', or leave executor= out",
        )

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """The operator."""
        if field.shape is not None and len(field.shape) == 3 and not field.encoded:
            layout = "HWC"
            if field.is_channels_first:
                layout = "CHW"
            x = dali.fn.reshape(x, layout=layout)
        # The numbers that are drawn come as DataNodes, in place of the `Numbers` of the same names.
        settings = {key: _in_dali(dali, key, value) for key, value in self.settings.items()} | draw
        if isinstance(self.fn, str):
            operator = self._operator(dali)
        else:
            operator = self.fn
        self._check_settings(dali.backend.TryGetSchema(getattr(operator, "_schema_name", "")))
        result = operator(x, **settings)
        if not isinstance(result, dali.data_node.DataNode):
            raise SpecError(
                f"{self} makes {type(result).__name__}",
                cause="an op makes one field of one field, a DataNode of DALI",
                remedy="write a function that returns one of its results: gl.ops.Dali(lambda x: operator(x)[0])",
            )
        self._check_random(dali, result, x)
        return result

    def _operator(self, dali: ModuleType) -> Callable[..., Any]:
        operator: Any = dali.fn
        for part in str(self.fn).split("."):
            near = difflib.get_close_matches(part, dir(operator), n=3) or ["gaussian_blur"]
            operator = getattr(operator, part, None)
            if operator is None:
                break
        if not callable(operator):
            raise SpecError(
                f"{self}",
                cause=f"nvidia.dali.fn has no operator {self.fn!r}",
                remedy=f"did you mean one of {near}? dir(nvidia.dali.fn) lists all",
            )
        return operator  # type: ignore[no-any-return]

    def _check_settings(self, schema: Any) -> None:
        """Raise ``SpecError`` for a setting that the operator has not, and for several values where
        it has a number.

        Args:
            schema: of the operator, in DALI; None where DALI has none.
        """
        if schema is None:
            names = []
        else:
            names = list(schema.GetArgumentNames())
        for name in [name for name in self.settings if names and name not in ("name", "device")]:
            if name not in names:
                raise SpecError(
                    f"{self}: {name}=",
                    cause=f"DALI's {self.fn} has no argument {name!r}",
                    remedy=f"did you mean one of {difflib.get_close_matches(name, names, n=3) or names}?",
                )
            value, kind = self.settings[name], schema.GetArgumentType(name).name
            if isinstance(value, Numbers):
                self._check_numbers(schema, name, value, kind)
            elif kind in NUMBERS and isinstance(value, (list, tuple, Mapping, np.ndarray)):
                raise SpecError(
                    f"{self}: {name}={value!r}"[:300],
                    cause=f"{name} of DALI's {self.fn} is one number ({kind}); nothing is drawn inside DALI",
                    remedy=f"write {name}=10.0, say, or {name}=gl.draw.uniform(-10, 10) for a number that is drawn for "
                    "each record",
                )

    def _check_numbers(self, schema: Any, name: str, numbers: Numbers, kind: str) -> None:
        """Raise ``SpecError`` for an argument that cannot be drawn for each record, or not as such
        numbers."""
        if not schema.IsTensorArgument(name):
            raise SpecError(
                f"{self}: {name}={numbers}",
                cause=f"{name} of DALI's {self.fn} is the same for all records of a batch",
                remedy="write one value",
            )
        if (numbers.kind == "uniform") != kind.startswith("FLOAT"):
            if kind.startswith("FLOAT"):
                example = "gl.draw.uniform(-10, 10)"
            else:
                example = "gl.draw.integers(0, 4)"
            raise SpecError(
                f"{self}: {name}={numbers}",
                cause=f"{name} of DALI's {self.fn} is {kind}",
                remedy=f"write {name}={example}, say",
            )

    def _check_random(self, dali: ModuleType, output: Any, source: Any) -> None:
        """Raise ``SpecError`` if one of the operators between two DataNodes is random."""
        visits, waiting = {id(source)}, [output]
        while waiting:
            node = waiting.pop()
            if id(node) in visits or node.source is None:
                continue
            visits.add(id(node))
            name = getattr(getattr(node.source, "_op", None), "schema_name", None)
            if name is None:
                schema = None
            else:
                schema = dali.backend.TryGetSchema(name)
            if schema is not None and schema.HasRandomSeedArg():
                raise self._is_random(str(name))
            waiting += (
                getattr(node.source, "inputs", None) or ()
            )  # DataNodes of arguments are among them

    def _is_random(self, name: str) -> SpecError:
        return SpecError(
            f"{self}: {name} of DALI draws random numbers",
            cause="they depend on the place in the batch and on the batches before, so no batch could be made again",
            remedy="use an op of gl.ops that draws, an operator that is not random with arguments of gl.draw, or "
            "gl.ops.Python with a function that takes rng",
        )


def _plain(value: Any) -> Any:
    """Return an argument as a state can tell it: DALI's enumerations by their names."""
    if type(value).__module__.startswith("nvidia.dali") and hasattr(value, "name"):
        return value.name
    return value


def _in_dali(dali: ModuleType, key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if key == "dtype":
        name = {**DALI_TYPES, "bool": "BOOL"}.get(value, value)
    else:
        name = value
    if name.isupper():
        return getattr(dali.types, name, value)
    return value
