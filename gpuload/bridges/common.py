"""Common parts of the bridges: checks of loaders and of fields, and batches of a framework's
tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gpuload import device, signalsafe
from gpuload.batch import names_in
from gpuload.errors import SpecError
from gpuload.ops.value.cast import exact_cast
from gpuload.order import Position

if TYPE_CHECKING:
    from gpuload.batch import Batch
    from gpuload.loader import Loader
    from gpuload.pipeline.epoch import Epoch
    from gpuload.ragged import Ragged
    from gpuload.spec import Field

log = logging.getLogger("gpuload")
Nest = Any  # a field name, or a tuple, list or dict of nests; with tensors in place of names when handed out
NUMERIC_KINDS, TEXT_KINDS = "biufc", "SU"
Convert = Callable[[Any], Any]  # the values of a field to the type that a framework has for them
Shard = (
    str | tuple[int, int] | None
)  # "auto": as the framework says; (rank, number of processes); None: as it is


class Tensors:
    """Batches of a loader as tensors of a framework; each loop goes on from the loader's position
    and takes it along.

    Attributes:
        loader: of the batches.
    """

    def __init__(
        self,
        loader: Loader,
        convert: Convert,
        *,
        waits: bool = False,
        start: Callable[[], object] | None = None,
    ) -> None:
        """Make batches with the result of ``convert`` for each field.

        Args:
            loader: of the batches.
            convert: makes a tensor of the values of a field.
            waits: the framework's reads wait for nothing, so that the host waits until a batch on a
                GPU is there.
            start: has the framework start its devices. It is called when a loop begins, where no
                signal handler runs: JAX and TensorFlow that are broken off while they start never
                work in this process.
        """
        self.loader, self._convert, self._waits, self._start = loader, convert, waits, start

    def __len__(self) -> int:
        """The number of steps of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        if self._start is not None:
            signalsafe.call(self._start)
        return convert_batches(iter(self.loader), self._convert, waits=self._waits)

    def peek(self) -> Batch:
        """Return the batch that the next loop begins with, and move nothing."""
        batch = self.loader.peek()
        if self._waits:
            batch.synchronize()
        return batch.with_fields(self._convert)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader, at which the next loop goes on."""
        return self.loader.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a saved state; raises ``StateError`` if it is of other data, ops, shuffle or
        seed."""
        self.loader.load_state_dict(saved)


def convert_batches(batches: Epoch, convert: Convert, *, waits: bool = False) -> Epoch:
    """Return the batches of an epoch with their fields converted; an interrupt meanwhile loses none
    of them."""

    def finish(batch: Batch) -> Batch:
        try:
            if waits:
                batch.synchronize()
            return batch.with_fields(convert)
        except Exception as error:
            raise device.failure(error)  # noqa: B904  it is the same error, or has it as its cause

    return batches.then(finish)


def check_loader(name: str, loader: object, *, arguments: str = "") -> None:
    """Raise ``SpecError`` where something else than a loader is given to the function of a name.

    ``arguments``: the other arguments of the call, for the remedy.
    """
    if not hasattr(loader, "spec_out"):
        raise SpecError(
            f"{name}() of a {type(loader).__name__}",
            cause="batches come from a loader",
            remedy=f"make one: {name}(gl.Loader(source, batch_size=256){arguments})",
        )


def warn_of_padding(name: str, loader: Loader, mark: str = "") -> None:
    """Warn of rows that are not valid, if the framework cannot tell them from others.

    Such rows fill batches, or take the places of damaged records.

    Args:
        name: of the function that hands them out.
        loader: of the batches.
        mark: how to tell them apart, for the remedy.
    """
    if loader.last_batch == "pad":
        num_rows = len(loader) * loader.batch_size * loader.num_shards
    else:
        num_rows = 0
    num_records = len(loader.source)
    if num_rows > num_records:
        log.warning(
            'a %s of last_batch="pad" has %d rows an epoch for %d records: the others repeat '
            "records to fill batches, "
            "are trained and counted like records, and predict has rows for them, too. "
            'loader.replace(last_batch="partial") has none%s',
            *(name, num_rows, num_records, mark),
        )
    if loader.on_error == "skip":
        log.warning(
            'a %s of on_error="skip": another record takes the place of a damaged one, and is '
            "trained and counted, "
            'as batch.valid is not handed out; loader.replace(on_error="replace") says that it '
            "shall be so%s",
            *(name, mark),
        )


def sharded(loader: Loader, shard: Shard, find: Callable[[], tuple[int, int]]) -> Loader:
    """Return the loader of this process's share: the loader itself, or a new one that begins where
    the loader is.

    Args:
        loader: of all records, or of just that share.
        shard: ``None`` leaves the loader as it is, ``"auto"`` asks ``find``, a pair is (rank,
            number of processes).
        find: asks the framework for such a pair.

    Raises:
        SpecError: ``shard`` is something else, or the loader is another shard already.
    """
    if shard is None:
        return loader
    pair = shard
    if isinstance(shard, str) and shard == "auto":
        pair = find()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise SpecError(
            f"shard = {shard!r}"[:200],
            cause="it is the rank of this process and how many processes there are",
            remedy='pass a pair, shard=(0, 2) for the first of two, "auto" to ask the framework, '
            "or None",
        )
    present = (loader.shard_id, loader.num_shards)
    if present == pair:
        return loader
    if loader.num_shards > 1:
        raise SpecError(
            f"shard={pair} of a loader that is shard {present[0]} of {present[1]}",
            cause="it was divided already",
            remedy="make the loader without shard_id= and num_shards=, or leave shard= out",
        )
    part = loader.replace(shard_id=pair[0], num_shards=pair[1])
    if loader.position != Position():
        part.load_state_dict(loader.port.state_at(loader.position))
    return part


def handed_out(loader: Loader, check: Callable[[Field], None]) -> tuple[tuple[str, ...], Nest]:
    """Return the names of the fields that a loader hands out, each of them checked, and their
    nest."""
    names = names_in(loader.output, loader.spec_out)
    for name in names:
        check(loader.spec_out[name])
    return names, dict(zip(names, names, strict=True)) if loader.output is None else loader.output


def check_field(
    field: Field, kind: str, *, text: bool, ragged: bool, bfloat16: bool = False
) -> None:
    """Raise ``SpecError`` if no framework has the field as a tensor.

    Args:
        field: of the loader's ``spec_out``.
        kind: of the tensor, in words, ``"a tf.Tensor"``.
        text: the framework has text and bytes.
        ragged: it has values of varying length.
        bfloat16: arrays of that dtype, which NumPy has from the package ml_dtypes, can be handed
            over.
    """
    if field.encoded:
        refuse(
            field,
            kind,
            "its bytes are an encoded image",
            f"put gl.ops.Decode(on={field.name!r}) into ops=",
        )
    if field.dtype.kind in "mM":
        refuse(field, kind, "tensors have no dates", _cast_of_dates(field))
    if is_text(field) and not text:
        refuse(
            field,
            kind,
            "tensors have no text",
            "name the other fields in output=, and encode text as numbers",
        )
    is_known = (
        field.dtype.kind in NUMERIC_KINDS
        or is_text(field)
        or (bfloat16 and is_bfloat16(field.dtype))
    )
    if not is_known or field.dtype.char in "gG":
        remedy = "leave it out with output=, or use gl.ops.Cast"
        if field.dtype.kind == "V" and field.dtype.itemsize == 2:
            remedy = 'numpy.save writes bfloat16 so: gl.npy(..., dtype="bfloat16"); or leave it out with output='
        refuse(field, kind, f"{field.dtype} has no tensor", remedy)
    if not field.uniform and not (ragged and field.ragged):
        refuse(
            field,
            kind,
            "its shape varies from record to record",
            "bring it to one shape, with gl.ops.Resize for images",
        )


def _cast_of_dates(field: Field) -> str:
    """Return the remedy for a field of dates or times: numbers of its own unit, or of one that it
    names."""
    unit = np.datetime_data(field.dtype)[0]
    call = exact_cast(field)
    if "unit=" in call:
        return f"put {call} into ops="
    return f"put {call} into ops=: numbers of {unit!r}, or of those that unit= says"


def is_text(field: Field) -> bool:
    """Return whether the values of a field are text or bytes, of a fixed length or of any."""
    return field.dtype.kind in TEXT_KINDS or bool(field.text)


def is_bfloat16(dtype: Any) -> bool:
    """Return whether a NumPy dtype is bfloat16 of the package ml_dtypes; DLPack of NumPy does not
    know it."""
    return bool(
        dtype.kind == "V" and dtype.name == "bfloat16"
    )  # NumPy needs 4 microseconds for a name


def refuse(field: Field, kind: str, cause: str, remedy: str) -> NoReturn:
    """Raise ``SpecError`` for a field that has no form in a framework."""
    raise SpecError(f"field {field.name!r} ({field}) cannot be {kind}", cause=cause, remedy=remedy)


def shareable(array: Any, *, align_bytes: int = 1) -> bool:
    """Return whether a framework can take the memory of a NumPy or CuPy array as it is, by
    DLPack."""
    if array.dtype.kind not in NUMERIC_KINDS or array.size == 0 or not array.flags.c_contiguous:
        return False
    # DLPack (before 1.0) cannot say that memory is read-only, so NumPy refuses to export it.
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        return False
    if align_bytes == 1:
        return True
    return bool(
        (array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr) % align_bytes == 0
    )


def count_tensor(loader: Loader, *, shared: bool) -> None:
    """Count a tensor in ``loader.stats()``: one that is the memory of its batch, or a copy."""
    if shared:
        loader.port.count("tensors_shared")
    else:
        loader.port.count("tensors_copied")


def rebased(values: Ragged) -> Ragged:
    """Return ragged values with offsets that begin at 0 of their payload, without a copy."""
    return values.with_payload(values.flat)
