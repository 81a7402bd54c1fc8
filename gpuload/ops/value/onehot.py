"""OneHot: a class number to a vector with a 1 at its place, or to one that is smoothed."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import pixels
from gpuload.kernels.pixels import Pixels
from gpuload.ops import arguments
from gpuload.ops.base import VARYING, Draw, Op, RowError
from gpuload.ops.traits import Arithmetic, Execution, Traits, ValueCheck, once
from gpuload.ops.value.cast import DALI_TYPES
from gpuload.spec import NUMBERS, Field, Spec

# Kernels of CuPy: their inputs, their outputs, their code for element i, and their names.
OUTSIDE = (
    "T label, int64 count",
    "bool outside",
    "outside = label < 0 || label >= count",
    "gpuload_outside",
)
IS_OUTSIDE = """
__device__ inline bool is_wrong(In label, const int* words) {
    return label < 0 || (unsigned long long)label >= (unsigned long long)*(const Long*)words;
}
"""
VECTORS = (
    "raw T labels, int64 num, float32 off, float32 on",
    "U hot",
    "hot = labels[i / num] == i % num ? on : off",
    "gpuload_vectors",
)


@dataclass(frozen=True)
class OneHot(Op):
    """Make a vector of zeros with a 1 at the label's place, along a new last axis.

    Without ``on`` it acts on ``"label"``, or on the only field that is one whole number.

    With ``smoothing`` s and n classes the label's place has ``1 - s + s / n`` and each other one
    ``s / n``: what ``torch.nn.CrossEntropyLoss(label_smoothing=s)``,
    ``tf.keras.losses.CategoricalCrossentropy(label_smoothing=s)`` and timm's ``Mixup`` make of
    labels. Leave it out of the loss then. DALI's one_hot and Keras' CategoryEncoding do not smooth;
    Albumentations and torchvision leave labels as they are.

    Example:
        ``gl.ops.OneHot(10)``

    Args:
        num_classes: how many; labels are 0 to ``num_classes - 1``, others are an error that names
            the record.
        dtype: dtype of the vector.
        smoothing: 0 to 1; of a floating-point dtype.
    """

    num_classes: int
    dtype: str = "float32"
    smoothing: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        dtype = arguments.dtype_name(self, "dtype", self.dtype, DALI_TYPES)
        arguments.keep(
            self, num_classes=arguments.whole(self, "num_classes", self.num_classes), dtype=dtype
        )
        smoothing = arguments.number(self, "smoothing", self.smoothing)
        if not 0 <= smoothing <= 1:
            raise arguments.refuse(self, "smoothing", self.smoothing, "a number from 0 to 1")
        if smoothing and np.dtype(dtype).kind != "f":
            remedy = "write dtype='float32', or leave smoothing out"
            raise arguments.refuse(
                self, "smoothing", smoothing, f"0 for {dtype}, which holds no parts of 1", remedy
            )
        arguments.keep(self, smoothing=smoothing)

    @property
    @once
    def traits(self) -> Traits:
        """It checks labels; DALI takes both numbers as float32."""
        return Traits(
            arithmetic=Arithmetic(elementwise=True),
            execution=Execution(has_dali_form=self._is_as_dali),
            check=ValueCheck(self._find_outside, self._error),
        )

    @property
    def levels(self) -> NDArray[Any]:
        """The values at the places of other classes, and at the label's; ``[2]`` of the dtype."""
        off = self.smoothing / self.num_classes
        exact = np.array([off, 1 - self.smoothing + off])
        if self.dtype == "float16":
            exact = exact.astype(np.float32)
        return exact.astype(self.dtype)

    @property
    def _is_as_dali(self) -> bool:
        """True but for smoothed float64: DALI takes both numbers as float32."""
        return not (self.smoothing and self.dtype == "float64")

    def targets(self, spec: Spec) -> tuple[str, ...]:
        """Return the field ``"label"``, or the only whole number of a record, unless ``on`` says
        otherwise.

        Raises:
            SpecError: neither is there, and ``on`` was left out.
        """
        if self.on is not None or len(spec.fields) == 1:
            return super().targets(spec)
        if "label" in spec:
            return ("label",)
        numbers = [field.name for field in spec if field.shape == () and field.dtype.kind in "ui"]
        if len(numbers) != 1:
            raise SpecError(
                f"{self}: there is no field 'label' for it to act on",
                cause=f"the fields are {list(spec.names)}, of which {numbers or 'none'} are whole numbers",
                remedy=f"say which it is: gl.ops.OneHot({self.num_classes}, on={(numbers or ['cls'])[0]!r})",
            )
        return (numbers[0],)

    def field_after(self, field: Field) -> Field:
        """A new last axis, ``num_classes`` long."""
        if field.dtype.kind not in "ui" or field.shape is None or field.encoded:
            remedy = f"put gl.ops.Cast('int64', on={field.name!r}) before it"
            if field.encoded or field.dtype.kind not in NUMBERS:
                remedy = (
                    "make class numbers of texts, by one list of names for train and test: classes=[...] of "
                    "gl.images and gl.webdataset, or names = numpy.unique(texts_of_train).tolist(); "
                    "numbers = [names.index(text) for text in texts]"
                )
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype} and shape {field.shape}",
                cause="labels are integers",
                remedy=f"name the field of labels with on=, or {remedy}",
            )
        return field.with_(
            dtype=np.dtype(self.dtype), shape=(*field.shape, self.num_classes), axes=""
        )

    @device.waits
    def _find_outside(self, xp: ModuleType, x: Any) -> Any:
        """Return the rows with a label that is no class."""
        is_list = isinstance(x, VARYING)
        if not is_list and x.ndim == 1:
            return self._outside(xp, x)
        if (rows := pixels.as_images(xp, x)) is not None:
            return Pixels(xp, rows, np.full((len(x), 1), self.num_classes, np.int64)).mark(
                IS_OUTSIDE
            )
        device.settle()
        if is_list:
            if len(x):
                return xp.stack([self._outside(xp, labels).any() for labels in x])
            return xp.zeros(0, bool)
        return self._outside(xp, x).reshape(len(x), -1).any(axis=1)

    def _error(self, value: Any) -> RowError:
        """Return the error that says which label it is, and how many classes it needs."""
        wrong = int(value.max())
        if wrong < self.num_classes:
            wrong = int(value.min())
        reason = f"label {wrong} is not in 0 to {self.num_classes - 1}"
        if wrong < 0:
            cause, remedy = (
                "labels count from 0",
                "leave the record out with source.select(...), or give it a class",
            )
        else:
            cause = f"num_classes is {self.num_classes}; this label needs at least {wrong + 1}"
            remedy = f"if it is a class, gl.ops.OneHot({wrong + 1}) or more; else leave it out with source.select(...)"
        return RowError(0, reason, cause=cause, remedy=remedy)

    def _outside(self, xp: ModuleType, x: Any) -> Any:
        if device.compiles(xp):
            outside = xp.empty(x.shape, bool)
            device.elementwise(*OUTSIDE)(x, self.num_classes, outside)
            return outside
        device.settle()
        return (x < 0) | (x >= self.num_classes)

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the vector of one label (or of an array of labels)."""
        if device.compiles(xp) and self._is_as_dali:  # the kernel takes float32 as DALI does
            labels, (off, on) = xp.asarray(x), np.asarray(self.levels, np.float32).tolist()
            vectors = xp.empty((*labels.shape, self.num_classes), self.dtype)
            device.elementwise(*VECTORS)(labels, self.num_classes, off, on, vectors)
            return vectors
        is_label = xp.asarray(x)[..., None] == xp.arange(self.num_classes)
        if self.smoothing:
            return xp.where(is_label, *xp.asarray(self.levels[::-1]))
        return is_label.astype(self.dtype)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch, on a GPU by a kernel."""
        if device.compiles(xp) and self._is_as_dali and not isinstance(x, VARYING):
            return self.array(xp, x, draw)
        return super().array_batch(xp, x, draw)

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``one_hot``, cast where it does not make the dtype itself."""
        off, on = np.asarray(self.levels, np.float32).tolist()
        dtype = getattr(
            dali.types, DALI_TYPES["float32" if self.dtype == "float16" else self.dtype]
        )
        settings = {"num_classes": self.num_classes, "on_value": on, "off_value": off, "axis": -1}
        hot = dali.fn.one_hot(x, dtype=dtype, **settings)
        # which is exact
        if self.dtype == "float16":
            return dali.fn.cast(hot, dtype=dali.types.FLOAT16)
        return hot
