"""Recipe: how a step becomes a batch. Made once when a loader is made; frozen, and shared by all
threads.

Two lanes, and a recipe is for one of them:

    rows       the array executor on a CPU runs on any rows of a step, in the worker that has just
               read them; when the workers are done, the slot holds the batch. Also a CPU without
               ops.
    batches    the DALI executor, and everything on a GPU, runs on whole batches, one after the
               other; when the workers are done, the slot holds the inputs of the executor. For a
               GPU these are the raw bytes of the records, which are uploaded once and decoded
               there, and of fields that ops on the host act on their results.

In the second lane the graph may be cut: ops that run on NumPy alone, those that decode images on
the host and give them one size, and the ops before either on the same fields, run on rows in the
workers, as in the first lane; the others on the results of these (`executors.choose`). Rows that
lie in the GPU's memory already are in no slot (`card.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.batch import Output
from gpuload.errors import RecordIndexError, SpecError
from gpuload.executors.base import RowExecutor
from gpuload.graph.graph import Graph
from gpuload.order import MAX_LENGTH, Plan
from gpuload.pipeline.ring import ALIGN_BYTES, Slot, aligned
from gpuload.sources.base import Source
from gpuload.sources.card import card_groups_of, stays_on_card
from gpuload.sources.leaf import Group
from gpuload.spec import Field, Layout, Part, Spec
from gpuload.storage.direct import DirectReader

JOINED_BYTES, MAX_JOINED_STEPS = (
    13 << 19,
    16,
)  # short steps are done together up to this size and number
RESULT_BYTES = (
    4  # of results on a GPU, for a byte that is uploaded there: steps done together have no more
)
# Steps that are only copied: twice as much is in memory, which should stay in the cache until it is
# taken.
COPIED_BYTES, MAX_COPIED_STEPS, COPIED_AHEAD = 8 << 20, 64, 1
PIECE_BYTES = 1 << 18  # of these that a thread copies at a time
COPIED_RECORDS = 1 << 14  # of these it is found out at once where they lie; others have draws, too
STRETCH_RECORDS = (
    4096  # the records of a stretch: their numbers, places and draws are computed at once
)
SMALL_BYTES = (
    4096  # arrays up to this size are copied to where they are aligned; larger ones must lie so
)
SMALL_PART = 16  # a field of at most this part of a record is small
SHARED_BYTES = (
    8 << 20
)  # a step of more is shared by all threads, so that few of them are in memory at once


@dataclass(frozen=True)
class SlotRegion:
    """The place of one array in a slot: dtype, and shape without the axis of the records."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def num_bytes(self, count: int) -> int:
        """Return the bytes of ``count`` rows."""
        return count * self.dtype.itemsize * prod(self.shape)


@dataclass(frozen=True)
class Route:
    """The way of one group of the source's fields (see ``sources.leaf.Group``) from its records to
    a batch.

    Attributes:
        group: its number in the source.
        spec: its fields.
        layout: of its raw records; None where they vary in length.
        direct: the region that takes the raw bytes as they are, or None where they are decoded from
            scratch memory.
        to_slot: the parts of a record that are decoded into regions.
        to_ops: the parts of a record that are handed to the ops at once.
        is_direct: True if the raw bytes go straight from files to a GPU, and the host does nothing.
        card_fields: the fields with rows that may lie on the GPU already, each with its place in the
            group.
    """

    group: int
    spec: Spec
    layout: Layout | None
    direct: str | None
    to_slot: Layout
    to_ops: Layout
    is_direct: bool = False
    card_fields: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Recipe:
    """All that the threads need to know of a step.

    Attributes:
        source, graph, plan: the records, the ops, and the order.
        names: the fields of a batch.
        output: how batches are arranged.
        device: ``"cpu"`` or ``"gpu:N"``.
        on_host: the places of the ops that run on rows in the workers.
        host, rest: the graph of these ops, and that of the others, which are run on whole batches
            behind them.
        executor: runs ``host``; None where it has no ops.
        any_length: True if the executor of ``rest`` takes batches of any length, and so several
            short steps at once.
        routes: for each group of the source that is needed, the way of its fields.
        regions: the arrays of a slot, by name.
        is_copied: True if threads of the core do steps alone: they copy records from maps of files,
            and do the ops while they read.
        num_parts: into how many parts a step is cut, which workers do side by side.
        num_joined: how many short steps are done together.
        num_ahead: how many of these are begun before the first of them is taken.
        num_stretched: of how many of these records and draws are found out at once.
        labels: of the ops, by their streams, where batches carry their draws; else None.
        reader: reads the routes that are direct.
    """

    source: Source
    graph: Graph
    plan: Plan
    names: tuple[str, ...]
    output: Output
    device: str
    on_host: tuple[int, ...]
    host: Graph
    rest: Graph
    executor: RowExecutor | None
    routes: tuple[Route, ...]
    regions: dict[str, SlotRegion]
    any_length: bool = False
    is_copied: bool = False
    num_parts: int = 1
    num_joined: int = 1
    num_ahead: int = 2
    num_stretched: int = 1
    labels: dict[int, str] | None = None
    reader: DirectReader | None = None

    @cached_property
    def on_rows(self) -> bool:
        """True if the workers finish a step, so that no executor of whole batches follows."""
        return self.device == "cpu" and not self.rest.ops

    @cached_property
    def is_cut(self) -> bool:
        """True if a slot holds all that batches are made of."""
        return self.on_rows and self.regions.keys() >= set(self.names)

    @cached_property
    def copied_parts(self) -> dict[int, list[tuple[int, int, str]]]:
        """For each group, the parts of a record that are copied: where each begins, its bytes, and
        its region."""
        copied_parts: dict[int, list[tuple[int, int, str]]] = {}
        for route in self.routes:
            if route.layout is None:
                continue
            parts = [
                (part.offset_bytes, part.num_bytes, part.field.name)
                for part in (*route.to_slot.parts, *route.to_ops.parts)
            ]
            if route.direct is not None:
                parts = [(0, route.layout.record_bytes, route.direct)]
            copied_parts[route.group] = parts
        return copied_parts

    @cached_property
    def layouts_on_device(self) -> dict[int, tuple[Layout, Layout]]:
        """For each group whose raw records go to a GPU its layout, with the parts that are needed
        of them there.

        The first has parts of host-only fields, which are decoded on the host, the second those
        that the GPU decodes.
        """
        names = self.rest.touched.union(self.names) - self.host.touched - self.regions.keys()
        layouts: dict[int, tuple[Layout, Layout]] = {}
        for route in self.routes:
            if route.layout is not None:
                parts = [part for part in route.layout.parts if part.field.name in names]
                host_parts = tuple(part for part in parts if part.field.host_only)
                device_parts = tuple(part for part in parts if not part.field.host_only)
                host_layout, layout = (
                    replace(route.layout, parts=group) for group in (host_parts, device_parts)
                )
                layouts[route.group] = host_layout, layout
        return layouts

    @cached_property
    def record_bytes(self) -> int:
        """The bytes of the parts of a record that are read, of groups of fixed size."""
        return sum(num_bytes for parts in self.copied_parts.values() for _, num_bytes, _ in parts)

    @cached_property
    def piece_rows(self) -> int:
        """How many rows a thread of the core copies at a time: what it reads is bounded as what it
        writes is."""
        read_bytes = self.num_rows * sum(
            route.layout.record_bytes for route in self.routes if route.layout is not None
        )
        return max(1, PIECE_BYTES * self.num_rows // max(self.slot_bytes, read_bytes, 1))

    @cached_property
    def draws_ahead(self) -> bool:
        """True if draws depend on nothing that only the records themselves tell: no image of
        unknown size."""
        graph = self.graph
        is_uniform = all(graph.spec_in[name].uniform for name in graph.touched)
        return bool(graph.ops) and is_uniform and not graph.fields_to_draw

    @cached_property
    def row_bytes(self) -> tuple[tuple[str, int], ...]:
        """The fields of a batch, where a slot holds them all, and the bytes of a row of each."""
        return tuple((name, self.regions[name].num_bytes(1)) for name in self.names)

    @cached_property
    def num_rows(self) -> int:
        """The rows of a slot."""
        return self.plan.most_rows(self.graph.group) * self.num_joined

    @cached_property
    def slot_bytes(self) -> int:
        """The bytes of a slot."""
        return self.end(self.num_rows)

    @property
    def batch_bytes(self) -> int:
        """The bytes of a batch after all ops, of the fields of a known size."""
        fields = [self.graph.spec_out[name] for name in self.names]
        return sum(
            SlotRegion(field.dtype, field.fixed_shape).num_bytes(self.plan.most_records)
            for field in fields
            if field.has_rows
        )

    @cached_property
    def is_shared(self) -> bool:
        """True if all threads work on the same step, or on the same steps that are done together,
        each on a part."""
        return not self.is_copied and (self.decodes or self.slot_bytes > SHARED_BYTES)

    def goes_up(self, field: Field) -> bool:
        """Return True if the values of a field of the source are uploaded as they are read."""
        is_wanted = field.name in self.names or field.name in self.rest.touched
        return is_wanted and not (
            field.encoded or field.host_only or field.name in self.host.touched
        )

    @cached_property
    def decodes(self) -> bool:
        """True if the workers decode images."""
        return any(op.traits.codec for op in self.host.ops)

    def divided(self, num_threads: int, num_ahead: int) -> Recipe:
        """Return the recipe for another number of threads and of steps ahead; batches are the
        same."""
        whole = self.is_copied or _hands_out_ragged(self)
        # With fewer steps ahead than threads, several threads share a step, so that none is idle.
        if self.is_shared:
            parts = num_threads
        else:
            parts = -(-num_threads // num_ahead)
        return replace(self, num_parts=1 if whole else parts, num_ahead=num_ahead)

    def numbered(self, records: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return records of an epoch as the source numbers them, which are other ones in each epoch
        of a mix.

        Raises:
            RecordIndexError: the source has no numbers for so late an epoch.
        """
        if not self.source.endless or not epoch:
            return records
        first = epoch * self.plan.length
        if first + self.plan.length > MAX_LENGTH:
            raise RecordIndexError(
                f"epoch {epoch} of {self.plan.length} records",
                cause=f"a mix has {MAX_LENGTH} numbers",
                remedy="begin with epoch 0",
            )
        return records + first

    @cached_property
    def on_card(self) -> dict[str, Field]:
        """The fields with rows that may lie on the GPU already."""
        names = [name for route in self.routes for name, _ in route.card_fields]
        return {name: self.source.spec[name] for name in names}

    @cached_property
    def _card_regions(self) -> frozenset[str]:
        """The regions that hold only the rows that are uploaded: the others lie on the GPU
        already."""
        groups = {raw_region(route.group) for route in self.routes if route.card_fields}
        return frozenset(groups.union(self.on_card).intersection(self.regions))

    def arrays(
        self, slot: Slot, count: int, num_uploads: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays of a slot, ``[count, ...]`` each, every one aligned.

        Args:
            slot: the memory.
            count: the rows of the step.
            num_uploads: the rows of fields that may lie on the GPU already, which do not; None:
                all.
        """
        begins, counts = self.begins(count, num_uploads), dict.fromkeys(self.regions, count)
        if num_uploads is not None:
            counts |= dict.fromkeys(self._card_regions, num_uploads)
        return {
            name: slot.array(begins[name], region.dtype, (counts[name], *region.shape))
            for name, region in self.regions.items()
        }

    def begins(self, count: int, num_uploads: int | None = None) -> dict[str, int]:
        """Return the byte of a slot where each region begins, one behind the other; see
        `arrays`."""
        if num_uploads is None and count == self.num_rows:
            return self._begins
        return self._begins_of(count, num_uploads)

    def end(self, count: int, num_uploads: int | None = None) -> int:
        """Return the byte of a slot behind all regions; see `arrays`."""
        return sum(map(aligned, self._region_bytes(count, num_uploads)))

    @cached_property
    def _begins(self) -> dict[str, int]:
        return self._begins_of(self.num_rows, None)

    def _begins_of(self, count: int, num_uploads: int | None) -> dict[str, int]:
        sizes = map(aligned, self._region_bytes(count, num_uploads))
        return dict(zip(self.regions, accumulate(sizes, initial=0), strict=False))

    def _region_bytes(self, count: int, num_uploads: int | None) -> list[int]:
        regions = self.regions.items()
        return [
            region.num_bytes(self._rows_of(name, count, num_uploads)) for name, region in regions
        ]

    def _rows_of(self, name: str, count: int, num_uploads: int | None) -> int:
        """Return how many rows a region has; see `arrays`."""
        if num_uploads is None or name not in self._card_regions:
            return count
        return num_uploads


def make_recipe(
    source: Source, graph: Graph, plan: Plan, *, names: tuple[str, ...], output: Output, device: str,
    on_host: tuple[int, ...], executor: RowExecutor | None, num_threads: int, prefetch: int | None,
    any_length: bool = False, mends: bool = False, labels: dict[int, str] | None = None,
    reader: DirectReader | None = None,
) -> Recipe:  # fmt: skip
    """Return the recipe for a loader.

    Args:
        source: the records.
        graph: the ops.
        plan: the order.
        names: the fields of a batch.
        output: how batches are arranged.
        device: ``"cpu"`` or ``"gpu:N"``.
        on_host: the places of the ops that run on rows in the workers.
        executor: runs them; None where there are none.
        num_threads: how many workers there are.
        prefetch: how many steps the user wants to be ahead; None to choose.
        any_length: as of the recipe.
        mends: True if other records are to stand for damaged ones.
        labels: of the ops, by their streams, where batches carry their draws; else None.
        reader: reads records of fixed size straight to the GPU; None to read them by way of the
            host.

    Raises:
        SpecError: there is a reader, and fields that it cannot read.
    """
    needed_fields = frozenset(names) | graph.touched
    host = graph.part(on_host)
    rest = graph.part(
        [place for place in range(len(graph.ops)) if place not in on_host], host.spec_out
    )
    groups = [
        (number, group)
        for number, group in enumerate(source.groups)
        if not needed_fields.isdisjoint(group.spec.names)
    ]
    regions: dict[str, SlotRegion] = {}
    if reader:
        routes = tuple(
            _direct_route(number, group, needed_fields, host) for number, group in groups
        )
    else:
        regions = _regions(source, host, rest, names, device)
        routes = tuple(
            _route(number, group.spec, group.layout, needed_fields, host, regions)
            for number, group in groups
        )
    if device != "cpu":
        card_groups = card_groups_of(source)
        on_host_fields = host.touched.union(graph.fields_to_draw)
        cards = [
            _card_fields(route, card_groups, needed_fields, on_host_fields) for route in routes
        ]
        routes = tuple(
            replace(route, card_fields=card) for route, card in zip(routes, cards, strict=True)
        )
    recipe = Recipe(
        source, graph, plan, names, output, device, on_host, host, rest, executor, routes, regions, any_length,
        reader=reader,
    )  # fmt: skip
    recipe = replace(
        recipe, is_copied=not mends and labels is None and _is_copied(recipe), labels=labels
    )
    return _divided(recipe, num_threads, prefetch)


def _card_fields(
    route: Route, groups: Collection[int], needed_fields: Collection[str], on_host: Collection[str]
) -> tuple[tuple[str, int], ...]:
    """Return the fields of a route with rows that may lie on the GPU already, each with its place
    in the group.

    All or none: a record of which one field is needed on the host is read as a whole.
    """
    fields = [
        (field, place) for place, field in enumerate(route.spec) if field.name in needed_fields
    ]
    may_stay = all(stays_on_card(field) and field.name not in on_host for field, _ in fields)
    if route.group not in groups or not may_stay:
        return ()
    return tuple((field.name, place) for field, place in fields)


def raw_region(group: int) -> str:
    """Return the name of the region that holds the raw records of a group for a GPU."""
    return f"group {group}"


def _regions(
    source: Source, host: Graph, rest: Graph, names: tuple[str, ...], device: str
) -> dict[str, SlotRegion]:  # fmt: skip
    """Return the regions of a slot: those of the batch, or of the input of an executor of whole
    batches."""
    later_names = rest.touched.union(names)
    if device != "cpu":
        raw, field_names = {}, later_names & host.results
        for number, group in enumerate(source.groups):
            if group.layout:
                parts = [
                    part
                    for part in group.layout.parts
                    if part.field.name in later_names - host.touched
                ]
            else:
                parts = []
            if parts and group.layout is not None:
                raw[raw_region(number)] = SlotRegion(
                    np.dtype(np.uint8), (group.layout.record_bytes,)
                )
                field_names |= _beside(group.layout, parts)
        fields = [field for field in host.spec_out if field.name in field_names]
        fields.sort(key=lambda field: field.host_only)  # those behind are not uploaded
    else:
        raw, fields = {}, [field for field in host.spec_out if field.name in later_names]
    return raw | {
        field.name: SlotRegion(field.dtype, field.fixed_shape) for field in fields if field.has_rows
    }


def _beside(layout: Layout, parts: Sequence[Part]) -> set[str]:
    """Return the fields that are decoded on the host although raw records go to a GPU: labels
    beside an image.

    They cost the host next to nothing there, and on a GPU a kernel each.
    """
    small = {
        p.field.name
        for p in parts
        if p.num_bytes * SMALL_PART <= layout.record_bytes and not p.field.host_only
    }
    if len(small) < len(parts):
        return small
    return set()


def _route(
    number: int, spec: Spec, layout: Layout | None, needed_fields: frozenset[str], host: Graph,
    regions: dict[str, SlotRegion],
) -> Route:  # fmt: skip
    """Return the way of a group of the source: which fields go to the slot, which to the ops on
    rows."""
    no_parts = Layout(0, ())
    if layout is None:
        return Route(number, spec, None, None, no_parts, no_parts)
    parts = [part for part in layout.parts if part.field.name in needed_fields]
    to_ops = tuple(part for part in parts if part.field.name in host.touched)
    if raw_region(number) in regions:
        beside = tuple(part for part in parts if part.field.name in regions and part not in to_ops)
        slot_parts, op_parts = replace(layout, parts=beside), replace(layout, parts=to_ops)
        return Route(number, spec, layout, raw_region(number), slot_parts, op_parts)
    to_slot = tuple(
        part for part in parts if part.field.name not in host.touched and part.field.name in regions
    )
    if layout.is_direct and to_slot:
        direct = to_slot[0].field.name
    else:
        direct = None
    if direct is not None:
        to_slot = ()
    return Route(
        number, spec, layout, direct, replace(layout, parts=to_slot), replace(layout, parts=to_ops)
    )


def _direct_route(number: int, group: Group, needed_fields: frozenset[str], host: Graph) -> Route:
    """Return the way of a group of the source straight to a GPU; SpecError if some of its fields
    cannot go there."""
    fields = [field for field in group.spec if field.name in needed_fields]
    problems = [
        *(
            f"{field.name} comes from Python, or varies in size"
            for field in fields
            if group.layout is None
        ),
        *(f"{field.name} stays on the host: {field}" for field in fields if field.host_only),
        *(
            f"an op on {field.name} runs on NumPy alone"
            for field in fields
            if field.name in host.touched
        ),
    ]
    if group.layout is None or problems:
        raise SpecError(
            f"direct=True with {', '.join(field.name for field in fields)}",
            cause="only numbers of a fixed size, and ops that run on the GPU, need no host: "
            f"{problems[0]}",
            remedy="leave direct=True out, or name the fields that fit by output=",
        )
    no_parts = Layout(0, ())
    return Route(number, group.spec, group.layout, None, no_parts, no_parts, is_direct=True)


def _is_copied(recipe: Recipe) -> bool:
    """Return True if steps are only copied from maps of files.

    This is asked of the leaves of the first record. Where the others are not mapped, steps are done
    without the core.
    """
    if core.native is None or not recipe.on_rows or not recipe.slot_bytes or not len(recipe.source):
        return False
    names = {name for parts in recipe.copied_parts.values() for _, _, name in parts}
    if not all(_is_plain(route) for route in recipe.routes) or names != recipe.regions.keys():
        return False
    if recipe.graph.ops and not (
        recipe.draws_ahead and recipe.executor is not None and recipe.executor.has_makers
    ):
        return False
    return all(share.leaf.is_mapped for share in recipe.source.resolve(np.zeros(1, np.int64)))


def _is_plain(route: Route) -> bool:
    """Return True if the bytes of all parts that are needed are those of numbers in memory."""
    if route.layout is None or route.layout.texts:
        return False
    parts = (*route.to_slot.parts, *route.to_ops.parts)
    return route.direct is not None or all(part.is_native and part.is_c_order for part in parts)


def _divided(recipe: Recipe, num_threads: int, prefetch: int | None) -> Recipe:
    """Return the recipe with steps cut into parts, or joined, and how many are ahead.

    Steps that cost much (images are decoded, or a slot is large) are shared by all threads, so that
    few are in memory. Of large ones a single step is ahead: it takes so long that no thread waits
    for the next. Steps of some hundred kilobytes are done by one thread each. Steps that take no
    longer than waking a thread are done several at a time.
    """
    if recipe.is_copied:
        most_bytes, max_steps = (COPIED_BYTES, MAX_COPIED_STEPS)
    else:
        most_bytes, max_steps = (JOINED_BYTES, MAX_JOINED_STEPS)
    # On a GPU a launch and an upload serve all steps of a group, also where their images were
    # decoded on the host.
    can_be_joined = not recipe.is_shared or (recipe.decodes and not recipe.on_rows)
    if can_be_joined:
        num_joined = _num_joined(recipe, most_bytes, max_steps, prefetch)
    else:
        num_joined = 1
    if recipe.is_copied and not recipe.graph.ops:
        stretch_records = COPIED_RECORDS
    else:
        stretch_records = STRETCH_RECORDS
    if recipe.is_shared:
        stretched = 1
    else:
        stretched = max(1, stretch_records // (num_joined * recipe.plan.batch_size))
    if prefetch:
        ahead = max(1, prefetch // num_joined)
    elif recipe.is_copied:
        ahead = COPIED_AHEAD
    elif recipe.is_shared:
        if recipe.on_rows and recipe.slot_bytes > SHARED_BYTES:
            ahead = 1
        else:
            ahead = 2
    else:
        ahead = num_threads + 1
    return replace(recipe, num_joined=num_joined, num_stretched=stretched).divided(
        num_threads, ahead
    )


def _num_joined(recipe: Recipe, most_bytes: int, max_steps: int, prefetch: int | None) -> int:
    """Return how many steps are done together: of so many bytes and so many steps at most."""
    if not _can_be_joined(recipe):
        return 1
    # At least two groups of the steps that the user wants ahead: one is made while the other is
    # taken.
    if prefetch is not None:
        max_steps = max(1, prefetch // 2)
    step_bytes = max(
        recipe.slot_bytes, 0 if recipe.on_rows else recipe.batch_bytes // RESULT_BYTES, 1
    )
    return max(1, min(most_bytes // step_bytes, max_steps, recipe.plan.end()))


def _can_be_joined(recipe: Recipe) -> bool:
    """Return True if steps can be cut out of several done together: all arrays in the slot, and
    aligned there.

    Records that take their time, as those of the user's own reader may, are not kept waiting for
    one another. For a GPU it is asked of the results of the ops on the host: of files of images
    nothing is left but pixels.
    """
    groups = [recipe.source.groups[route.group] for route in recipe.routes]
    quick = all(group.layout is not None or group.is_quick for group in groups)
    if not recipe.on_rows:  # a GPU copies arrays that are not aligned in no time
        uploads = recipe.host.spec_out
        needed_names = recipe.rest.touched.union(recipe.names).intersection(uploads.names)
        fields = [uploads[name] for name in needed_names]
        fields += [recipe.graph.spec_out[name] for name in recipe.names]
        return quick and recipe.any_length and all(field.has_rows for field in fields)
    needed_fields = recipe.graph.touched.union(recipe.names)
    fixed = all(
        field.has_rows for group in groups for field in group.spec if field.name in needed_fields
    )
    uniform = fixed and all(recipe.graph.spec_out[name].has_rows for name in recipe.names)
    sizes = [region.num_bytes(recipe.plan.most_records) for region in recipe.regions.values()]
    return quick and uniform and all(n % ALIGN_BYTES == 0 or n <= SMALL_BYTES for n in sizes)


def _hands_out_ragged(recipe: Recipe) -> bool:
    """Return True if a ragged field stays as it was read, which parts would have to be copied
    together for."""
    names = frozenset(recipe.names)
    fields = [field for route in recipe.routes for field in route.spec]
    outputs = [field for field in fields if field.name in names or not recipe.on_rows]
    return any(
        field.ragged and not field.text and field.name not in recipe.host.touched
        for field in outputs
    )
