"""Card: the rows of a step that lie in the GPU's memory already, and those that are uploaded and
then stay there.

    places = find_rows(routes, shares, count, streams)    a worker: which rows it has to read
    fields = places.fields(uploads, lane)                 the thread of batches: where all rows of
                                                          the step lie
    places.keep(shares, lane)                             and the uploaded ones are copied to where
                                                          they stay

A batch with all of its rows there is one upload, of their addresses beside the draws of ops, and no
record is read. Of other batches the slot holds the rows that are missing, and the kernels read each
row where it lies: nothing is put together before. A row that was copied to the cache is read from
there by later steps, in the order of the stream, or behind an event where another loader has copied
it (`sources/card.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload.errors import DeviceError, SpecError
from gpuload.kernels.addresses import RowAddresses, move_rows, word_bytes
from gpuload.pipeline.recipe import Recipe, Route
from gpuload.sources.card import (
    CardCache,
    CardColumn,
    CardLeaf,
    leaves_on_card,
    row_bytes,
    stays_on_card,
)
from gpuload.sources.leaf import Share
from gpuload.spec import Field

Indices = NDArray[np.int64]


class CardShare(NamedTuple):
    """Some rows of a field, as one source has them on the GPU.

    Attributes:
        name: of the field.
        column: where rows of it lie.
        numbers: int64 ``[n]``, their records in the column.
        rows: int64 ``[n]``, which rows of the step they are; ascending.
    """

    name: str
    column: CardColumn
    numbers: Indices
    rows: Indices


class CardPlaces:
    """Where the rows of a step lie.

    Attributes:
        uploads: int64 ``[k]``, the rows that are uploaded, ascending; the others lie on the GPU.
        addresses: of each field that can lie there, int64 ``[n]``: 0 for rows that do not.
    """

    def __init__(
        self, shares: Sequence[CardShare], names: Collection[str], count: int, streams: Indices
    ) -> None:
        self._caches = tuple(dict.fromkeys(share.column.cache for share in shares))
        self.addresses: dict[str, Indices] = {name: np.zeros(count, np.int64) for name in names}
        for share in shares:
            self.addresses[share.name][share.rows] = share.column.addresses[share.numbers]
        is_missing = np.zeros(count, np.bool_)
        is_missing[streams] = True
        for addresses in self.addresses.values():
            is_missing |= addresses == 0
        self.uploads: Indices = np.flatnonzero(is_missing)
        self._rows = list[
            Any
        ]()  # uploaded, of each field: kernels know them by their addresses alone

    @property
    def has_rows(self) -> bool:
        """True if rows lie on the GPU, so that a smaller budget would leave more to batches."""
        return any(cache.num_records for cache in self._caches)

    def fields(
        self, uploads: Mapping[str, Any], recipe: Recipe, lane: devices.Lane
    ) -> dict[str, RowAddresses]:
        """Return the fields of all rows; those that were uploaded are read where they are.

        Args:
            uploads: of each field the rows that were uploaded, on the GPU.
            recipe: of the step.
            lane: on its stream the rows will be read.
        """
        for cache in self._caches:
            _wait_for_writers(cache, lane)
        if self.uploads.size:
            for name, addresses in self.addresses.items():
                rows = _side_by_side(uploads[name])
                self._rows.append(rows)
                places = rows.data.ptr + rows.strides[0] * np.arange(
                    self.uploads.size, dtype=np.int64
                )
                addresses[self.uploads] = places
        table = np.stack(list(self.addresses.values()))
        devices.open_bundle()
        on_device = devices.parameters(table.view(np.int32))
        fields = [recipe.on_card[name] for name in self.addresses]
        return {
            field.name: RowAddresses(addresses, words, field.dtype, field.fixed_shape)
            for field, addresses, words in zip(fields, table, on_device, strict=True)
        }

    def keep(self, shares: Sequence[CardShare], lane: devices.Lane) -> None:
        """Copy the rows that were uploaded to where they stay, as far as there is room.

        Args:
            shares: of the records that stand in the rows now.
            lane: on its stream they were uploaded.
        """
        for cache in self._caches:
            with cache.lock:
                columns = dict.fromkeys(
                    share.column for share in shares if share.column.cache is cache
                )
                copies = [
                    copy for column in columns if (copy := self._copy(column, shares)) is not None
                ]
                if not copies:
                    continue
                # One upload for all fields.
                words = [np.concatenate([origins, targets]) for _, _, origins, targets in copies]
                on_device, begin = devices.cupy().asarray(np.concatenate(words).view(np.int32)), 0
                for (column, _, origins, targets), pair in zip(copies, words, strict=True):
                    size = word_bytes(column.row_bytes, origins, targets)
                    move_rows(
                        on_device[begin : begin + 2 * pair.size],
                        column.row_bytes,
                        size,
                        origins.size,
                    )
                    begin += 2 * pair.size
                # The event first: a thread that finds an address waits for it.
                cache.events[_key(lane)] = lane.mark()
                for column, numbers, _, targets in copies:
                    column.addresses[numbers] = targets
        # Not before: the memory of rows without an owner would be taken for the addresses above,
        # and written to.
        self._rows.clear()

    def _copy(
        self, column: CardColumn, shares: Sequence[CardShare]
    ) -> tuple[CardColumn, Indices, Indices, Indices] | None:
        """Return which records of a column are to be copied, from where and to where; None if there
        are none."""
        numbers, origins = list[Indices](), list[Indices]()
        for share in shares:
            if share.column is column:
                is_upload = np.isin(share.rows, self.uploads, assume_unique=True)
                is_new = is_upload & (column.addresses[share.numbers] == 0)
                numbers.append(share.numbers[is_new])
                origins.append(self.addresses[share.name][share.rows[is_new]])
        # A record may stand in several rows, of steps that are done together or that were filled
        # up, and in fields of pairs.
        records, first = np.unique(np.concatenate(numbers), return_index=True)
        targets = column.take(records.size)
        if not targets.size:
            return None
        return (
            column,
            records[: targets.size],
            np.concatenate(origins)[first][: targets.size],
            targets,
        )


def caches_of(recipe: Recipe) -> tuple[CardCache, ...]:
    """Return the rows on the GPU that a recipe uses; a source that had no loader there before has
    none yet.

    Raises:
        TooLargeError: the GPU has not so much memory that is free.
    """
    if not recipe.on_card:
        return ()
    groups = {route.group for route in recipe.routes if route.card_fields}
    leaves = [leaf for group, leaf in leaves_on_card(recipe.source) if group in groups]
    return tuple(dict.fromkeys(leaf.cache_on(recipe.device) for leaf in leaves))


def no_card(reason: str) -> DeviceError:
    """Return the error for a cache on the GPU of a loader that is on a CPU, for a reason."""
    return DeviceError(
        "cache(device=True) of a loader on the CPU",
        cause=f"batches are made on the CPU ({reason}), and records would stay in the memory of a "
        "GPU",
        remedy='write cache(memory="8GB") in its place, or make the loader with device="gpu"',
    )


def check_card(recipe: Recipe, device_reason: str) -> None:
    """Raise an error if a source keeps rows on a GPU, and this loader cannot use one of them.

    Args:
        recipe: of the loader.
        device_reason: why it is on its device.

    Raises:
        DeviceError: it is on the CPU.
        SpecError: its fields vary in size, are for the host alone, or go through ops on the host.
    """
    leaves = leaves_on_card(recipe.source)
    if not leaves:
        if recipe.source._has_card and len(recipe.source):
            raise SpecError(
                f"a source that is made of one with cache(device=True): {recipe.source._line()}",
                cause="the bytes of its records are changed on the host, and cannot be taken from "
                "the GPU",
                remedy="write cache(device=True) last, behind mark() and the like",
            )
        return
    if recipe.device == "cpu":
        raise no_card(device_reason)
    if recipe.reader is not None:
        raise SpecError(
            "direct=True with cache(device=True)",
            cause="records that stay on the GPU are uploaded once, by way of the host",
            remedy="leave direct=True out",
        )
    needed_fields = recipe.graph.touched.union(recipe.names)
    groups = {group for group, _ in leaves}
    fields = [
        field
        for route in recipe.routes
        if route.group in groups
        for field in route.spec
        if field.name in needed_fields
    ]
    _check_sizes(recipe, fields)
    _check_groups(recipe, groups, needed_fields)
    if not recipe.on_card:
        raise SpecError(
            "cache(device=True) without a field that can stay on the GPU",
            cause=f"none of {', '.join(map(str, fields))} has rows of one size, of a dtype that a "
            "GPU has",
            remedy='write cache(memory="8GB")',
        )


def _check_sizes(recipe: Recipe, fields: Sequence[Field]) -> None:
    """Raise ``SpecError`` if images have sizes of their own, or ops on the host act on most bytes
    of a record."""
    images = next(
        (field for field in fields if field.encoded or (field.may_be_image and not field.uniform)),
        None,
    )
    if images is not None:
        raise SpecError(
            f"cache(device=True) of {images}",
            cause="image files, and images of sizes of their own, have no rows of one size that "
            "could stay on the GPU",
            remedy="have one size before the first random op: ops=[gl.ops.Decode(), "
            "gl.ops.Resize(shorter=256), gl.ops.CenterCrop(256, 256), gl.ops.RandomCrop(224, 224), "
            "...], and loader.cache(device=True) keeps what Decode, Resize and CenterCrop make; or "
            "write loader.cache(path=...)",
        )
    on_host = [
        field for field in fields if field.name in recipe.host.touched and stays_on_card(field)
    ]
    if on_host and 2 * row_bytes(on_host) > row_bytes(filter(stays_on_card, fields)):
        raise SpecError(
            f"cache(device=True) of {', '.join(field.name for field in on_host)}",
            cause="an op that runs on the host acts on it in each epoch, so that it cannot stay on "
            "the GPU",
            remedy="put the op before the first random one, to be done once; or write "
            "gl.ops.Python(function, "
            'on_device=True), whose function takes arrays of CuPy; or write cache(memory="8GB")',
        )


def _check_groups(recipe: Recipe, groups: Collection[int], needed_fields: Collection[str]) -> None:
    """Raise ``SpecError`` if a field that can stay on the GPU comes out of one record with one that
    cannot."""
    for route in recipe.routes:
        fields = [
            field for field in route.spec if field.name in needed_fields and route.group in groups
        ]
        by_ops = recipe.host.touched.union(recipe.graph.fields_to_draw)
        on_host = [field.name for field in fields if field.name in by_ops]
        blockers = on_host or [field.name for field in fields if not stays_on_card(field)]
        rows = [
            field.name for field in fields if field.name not in blockers and stays_on_card(field)
        ]
        if not blockers or not rows:
            continue
        names = ", ".join(blockers)
        if on_host:
            reason = f"ops on the host act on {names}"
        else:
            reason = f"{names} has no rows of one size"
        padding = ""
        if not on_host and all(_can_pad(route.spec[name]) for name in blockers):
            padding = f"give it one length before the first random op, gl.ops.PadTo(100, on={blockers!r}); or "
        raise SpecError(
            f"cache(device=True) of {', '.join(rows)} beside {names}",
            cause=f"{reason}, and comes out of the same record: that would be read, and its images "
            "decoded, again in each epoch",
            remedy=f"{padding}leave {names} out, output={tuple(rows)!r}, or write "
            'cache(memory="8GB"), which keeps all fields',
        )


def _can_pad(field: Field) -> bool:
    """Return True if the first axis of a field alone may vary, so that ``PadTo`` gives it one
    length."""
    shape = field.shape
    return not field.encoded and shape is not None and len(shape) > 0 and None not in shape[1:]


def card_line(recipe: Recipe, caches: Sequence[CardCache]) -> str:
    """Return how many records lie on the GPU, and which fields never do, in one line."""
    lines = [cache.describe() for cache in caches]
    needed_fields = recipe.graph.touched.union(recipe.names)
    names = [name for route in recipe.routes for name in route.spec.names if name in needed_fields]
    streams = [name for name in names if name not in recipe.on_card]
    if streams:
        lines.append(f"{', '.join(streams)}: read in each epoch")
    return "; ".join(lines)


def find_rows(
    routes: Sequence[Route], shares: Sequence[Share], count: int, streams: Indices, device: str
) -> CardPlaces:  # fmt: skip
    """Return where the rows of a step lie.

    Args:
        routes: the ways of its fields.
        shares: which leaf has which of its records.
        count: how many rows there are.
        streams: int64 ``[k]``, rows that are read and uploaded in any case.
        device: ``"gpu:N"``.
    """
    names = [name for route in routes for name, _ in route.card_fields]
    return CardPlaces(card_shares(routes, shares, device), names, count, streams)


def card_shares(routes: Sequence[Route], shares: Sequence[Share], device: str) -> list[CardShare]:
    """Return the rows of each field that can lie on the GPU."""
    fields = {route.group: route.card_fields for route in routes if route.card_fields}
    specs = {route.group: route.spec for route in routes}
    result: list[CardShare] = []
    for share in shares:
        leaf = share.leaf
        if share.group not in fields or not isinstance(leaf, CardLeaf):
            continue
        if share.rows is None:
            rows = np.arange(share.numbers.size, dtype=np.int64)
        else:
            rows = share.rows
        for name, place in fields[share.group]:
            if share.picks is None:
                number = place
            else:
                number = share.picks[place]
            field, of_group = leaf.spec.fields[number], specs[share.group][name]
            # Where sources of several dtypes are joined, rows are converted on the host.
            if (field.dtype, field.shape) == (of_group.dtype, of_group.shape):
                column = leaf.cache_on(device).column(leaf.number, number, field)
                result.append(CardShare(name, column, share.numbers, rows))
    return result


def _wait_for_writers(cache: CardCache, lane: devices.Lane) -> None:
    """Have a lane wait for the rows that other lanes copy."""
    if not cache.events or cache.events.keys() == {_key(lane)}:
        return
    with cache.lock:
        for writer, event in list(cache.events.items()):
            if event.done:
                del cache.events[writer]
            elif writer != _key(lane):
                event.hold_back(lane.stream)


def _key(lane: devices.Lane) -> int:
    """Return the handle of a lane's stream: the next lane on that stream is in order with this
    one."""
    return int(lane.stream.ptr)


def _side_by_side(values: Any) -> Any:
    """Return rows with elements side by side and where their dtype needs them; a copy only
    if need be."""
    row = values[0]
    is_placed = (values.data.ptr | values.strides[0]) % values.itemsize == 0
    if row.flags.c_contiguous and is_placed:
        return values
    devices.settle()
    return devices.cupy().ascontiguousarray(values)
