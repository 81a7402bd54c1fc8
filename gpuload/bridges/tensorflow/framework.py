"""TensorFlow itself, which arrays it can take as they are, and which fields it has tensors for."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from gpuload import device, signalsafe
from gpuload.bridges import common
from gpuload.errors import ClosedError, DeviceError, install_command, missing_package

if TYPE_CHECKING:
    from gpuload.loader import Loader
    from gpuload.spec import Field

try:
    tf: Any = signalsafe.import_package("tensorflow")
except ImportError as error:
    raise missing_package(
        "tensorflow", needed_for="gpuload.bridges.tensorflow", extra="tensorflow", error=error
    ) from error

T = TypeVar("T")
ALIGNMENT_BYTES = 64  # TensorFlow 2.21 ends the process (Check failed: IsAligned()) at the first op on anything less


def fields_of(loader: Loader) -> tuple[tuple[str, ...], common.Nest]:
    """Return the names of the fields to hand out and their nest; raises ``SpecError`` if one has no
    tensor form."""
    return common.handed_out(loader, _check)


def check_gpu(name: str) -> None:
    """Raise ``DeviceError`` if TensorFlow does not see a GPU of ours."""
    num_seen = len(tf.config.list_physical_devices("GPU"))
    if device.number(name) >= num_seen:
        built = tf.test.is_built_with_cuda()
        raise DeviceError(
            f"the loader is on {name}, and TensorFlow sees {num_seen} GPUs",
            cause="TensorFlow cannot load its CUDA libraries"
            if built
            else "this TensorFlow was built without CUDA",
            remedy=f'{install_command("cuda12")}, without tensorflow-cpu, or use device="cpu"',
        )


@functools.cache
def start() -> None:
    """Have TensorFlow start its devices, once."""
    tf.constant(0)


def is_shareable(array: Any) -> bool:
    """Return whether TensorFlow can take the memory of a NumPy or CuPy array as it is."""
    return common.shareable(array, align_bytes=ALIGNMENT_BYTES)


def dtype_of(field: Field) -> Any:
    """Return TensorFlow's dtype of a field."""
    if common.is_text(field):
        return tf.string
    return tf.as_dtype(field.dtype)


def alive(part: weakref.ref[T]) -> T:
    """Return the loader, or part of a dataset of it; raises ``ClosedError`` if nothing refers to it
    any more.

    For generators of datasets, which TensorFlow 2.21 keeps for ever: they must not keep loaders,
    and so sources.
    """
    target = part()
    if target is None:
        raise ClosedError(
            "the loader of a dataset is gone", cause="nothing keeps it", remedy="keep the loader"
        )
    return target


def _check(field: Field) -> None:
    common.check_field(field, "a tf.Tensor", text=True, ragged=True, bfloat16=True)
