"""Batches for ``fit``, ``evaluate`` and ``predict`` of Keras 3 on JAX and torch; TensorFlow has
`bridges.tensorflow`.

    model.fit(PyDataset(loader), epochs=3, shuffle=False)

Position each batch takes the loader along, and each epoch of Keras is the next ``len(loader)``
         batches. Keras reads no batch ahead on these backends, so in a callback
         ``loader.state_dict()`` is behind the last one trained.
Look     Keras takes a first batch to build a model, and begins again. So an epoch of Keras that
         ends behind its first batch counts as a look: the next one begins with the same batch.
Order    is the loader's. Keras' own ``shuffle=True``, its default, draws the order of batches anew,
         by Python's random numbers: it is refused where it shows.
Memory   the batches are arrays of NumPy, which Keras copies to its device; on a GPU of torch or JAX
         a loop of one's own over ``tensors(loader)`` needs no such copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuload import signalsafe
from gpuload.bridges import common
from gpuload.errors import SpecError, missing_package
from gpuload.tracebacks import public

if TYPE_CHECKING:
    from gpuload.batch import Batch
    from gpuload.loader import Loader
    from gpuload.order import Position
    from gpuload.spec import Field

try:
    keras: Any = signalsafe.import_package("keras")
except ImportError as error:
    raise missing_package(
        "keras", needed_for="gpuload.bridges.keras", extra="keras", error=error
    ) from error


class PyDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """A loader as a ``keras.utils.PyDataset``; an element is a batch.

    Args:
        loader: on the CPU; its ``output=`` is a nest that Keras takes: ``("image", "label")`` for
            inputs and targets, a third one for the weights of samples, dicts in place of names for
            models of several inputs.

    Attributes:
        loader: of the batches.

    Raises:
        SpecError: Keras computes with TensorFlow, the loader is on a GPU, or a field has no tensor
            form.
    """

    @public
    def __init__(self, loader: Loader) -> None:
        super().__init__()
        common.check_loader("PyDataset", loader)
        common.handed_out(loader, _check_field)
        if keras.backend.backend() == "tensorflow":
            raise SpecError(
                "PyDataset(loader) with Keras on TensorFlow",
                cause="Keras makes a tf.data.Dataset of it there, which takes batches that it does "
                "not train on",
                remedy="from gpuload.bridges.tensorflow import dataset, and fit on dataset(loader)",
            )
        if loader.device != "cpu":
            raise SpecError(
                f"PyDataset(loader) of a loader on {loader.device}",
                cause="Keras copies each batch to the host",
                remedy='make the loader with device="cpu", or train in a loop over tensors(loader)',
            )
        common.warn_of_padding("PyDataset", loader)
        self.loader = loader
        self._batches: Iterator[Any] = iter(())
        self._index = 0
        self._look: tuple[Position, Batch] | None = (
            None  # the first batch of an epoch, and the position behind it
        )

    def __len__(self) -> int:
        """The number of steps of an epoch."""
        return len(self.loader)

    def __getitem__(self, index: int) -> Any:
        """Return the next batch of the loader, as ``output=`` says.

        Args:
            index: 0, or one more than before: Keras counts the batches of an epoch.

        Raises:
            SpecError: Keras asks for batches in another order.
        """
        if index not in (0, self._index):
            raise SpecError(
                f"Keras asks for batch {index} where batch {self._index} is next",
                cause="fit() draws the order of batches anew unless it is told not to, and the run "
                "could not be repeated or resumed; the loader shuffles by itself, all records",
                remedy="pass shuffle=False to fit(), and shuffle=True to gl.Loader",
            )
        # The position tells whether a state was loaded in between: then the batch of the look is
        # not the next one.
        if index == 0 and self._look is not None and self._look[0] == self.loader.position:
            return self._look[1].output
        if index:
            batch = next(self._batches, None)
        else:
            batch = None
        if (
            batch is None
        ):  # an epoch of Keras, or of the loader, begins: at the position, which may have been moved
            self._batches = iter(self.loader)
            batch = next(self._batches)
        self._index = index + 1
        # In an epoch of one batch nothing tells a look from training: it counts as trained.
        if index == 0 and len(self) > 1:
            self._look = (self.loader.position, batch)
        else:
            self._look = None
        return batch.output


def _check_field(field: Field) -> None:
    common.check_field(field, "an input of Keras", text=False, ragged=False)
