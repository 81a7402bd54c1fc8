"""Graph: a list of ops that was checked against a spec, and the draws of its ops.

graph = compile_ops(spec, ops)         errors here, when the loader is made, not at step 400
draws = graph.draw(...)                host, pure; one Draw for each op

Regions  Where an op that uses a region of its images follows the op that makes them
         (RandomResizedCrop after Decode), only that region is made: ``draw`` gives the first op the
         region and the second one its place within it. Executors need not know of this; sizes and
         draws of all other ops stay the same.
Marks    Beside an op that moves an image stands an op that moves its boxes, with the same random
         stream (`follow.py`). So a graph may have more ops than the user wrote.
Heads    of encoded images are read once, to draw: an op that decodes finds them in its draw, as
         ``"heads"``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import rng, synonyms
from gpuload.errors import RowError, SpecError, UnknownFieldError
from gpuload.images.head import COLUMNS, read_heads, without_orientation
from gpuload.kernels import walk
from gpuload.ops import beside, follow, images
from gpuload.ops.base import (
    HEADS,
    PARTNER,
    Boxes,
    Draw,
    Op,
    Sizes,
    calls_python,
    original,
    stays_on_host,
    streams,
    takes_any_size,
)
from gpuload.ops.traits import FileCodec, Follows
from gpuload.spec import INSTANCES, MASK, Field, Spec

ELSEWHERE = -1  # in place of an op's place: it is in another part of the graph


@dataclass(frozen=True)
class Graph:
    """A list of ops that fits a spec.

    Attributes:
        spec_in: the fields before the first op.
        ops: the ops, in order.
        targets: for each op the fields that it acts on.
        specs: the spec after each op.
        streams: the random stream of each op.
        crops: for each op that makes only a region of its images: the place of the op that draws
            the region, else None; `ELSEWHERE` where that op is in another part of a graph.
        by_mark: the fields that ops act on because they are marked.
        choices: for each op whether the user chose its fields by ``on=``, see
            `beside.names_fields`.
        roles: fields, each with its role beside an image as a mark or an op says, see
            `beside.role`.
    """

    spec_in: Spec
    ops: tuple[Op, ...]
    targets: tuple[tuple[str, ...], ...]
    specs: tuple[Spec, ...]
    streams: tuple[int, ...]
    crops: tuple[int | None, ...]
    by_mark: frozenset[str] = frozenset()
    choices: tuple[bool, ...] = ()
    roles: frozenset[tuple[str, str]] = frozenset()

    @property
    def marks(self) -> str:
        """The marks of the source's fields that change the results of ops, as a text; "" if there
        are none."""
        return ", ".join(
            f"{field.name}={field.mark!r}" for field in self.spec_in if field.name in self.by_mark
        )

    @property
    def spec_out(self) -> Spec:
        """The fields after the last op."""
        if self.specs:
            return self.specs[-1]
        return self.spec_in

    def op_on(self, place: int, name: str) -> Op:
        """Return the op at a place as it acts on a field."""
        return self.ops[place].of(name, self.specs[place][name])

    @cached_property
    def touched(self) -> frozenset[str]:
        """The fields of ``spec_in`` that some op acts on; the others pass through unchanged."""
        return frozenset(name for names in self.targets for name in names if name in self.spec_in)

    @cached_property
    def outputs(self) -> tuple[tuple[str, ...], ...]:
        """For each op the fields that it makes: those that it acts on, and then new ones."""
        new = (
            [name for name in spec.names if name not in self.before(n)]
            for n, spec in enumerate(self.specs)
        )
        return tuple((*on, *names) for on, names in zip(self.targets, new, strict=True))

    @cached_property
    def results(self) -> frozenset[str]:
        """The fields that the ops leave behind: ``touched``, and new ones."""
        return self.touched.union(*self.outputs)

    @cached_property
    def mixes(self) -> bool:
        """True if an op makes each record of several, so that a record's partners must be there."""
        return self.group > 1

    @cached_property
    def group(self) -> int:
        """The largest number of records that an op makes one of, 1 to 4."""
        return max((mixes.group for op in self.ops if (mixes := op.traits.mixes)), default=1)

    def label_mixers(self, ops: Sequence[Op], before: Sequence[Op]) -> list[int]:
        """Return the places of the user's ops that mix labels of ``OneHot`` without ``on=``.

        Args:
            ops: those that the graph was made of.
            before: the ops that made the records before them.
        """
        numbers = streams([*before, *ops])[len(before) :]
        pairs = zip(self.ops, self.streams, strict=True)
        by_stream = {stream: op for op, stream in pairs if op.traits.mixes}
        places = [
            place for place, op in enumerate(ops) if op.traits.mixes and not op.traits.geometric
        ]
        return [place for place in places if by_stream[numbers[place]].on != ops[place].on]

    def before(self, place: int) -> Spec:
        """Return the fields before the op at a place."""
        if place:
            return self.specs[place - 1]
        return self.spec_in

    def only(self, names: Sequence[str]) -> Graph:
        """Return the graph that makes these fields; ops that act neither on them nor beside them
        are left out.

        Fields that an op acts on beside one of these are made, too, as the op needs them all; and
        the image of boxes is. A field that an op makes beside one of them, another copy say, is
        not gone on with.
        """
        fields = set(names)
        pairs = [
            (outputs, drawing.fields)
            for outputs, drawing in zip(self.outputs, self._drawings, strict=True)
        ]
        while (
            partners := {name for on, needs in pairs if fields & set(on) for name in needs} - fields
        ):
            fields |= partners
        return self.part([place for place, on in enumerate(self.outputs) if fields & set(on)])

    @cached_property
    def without_regions(self) -> Graph:
        """The same graph with the draws of whole images: no op makes only a region of them."""
        return replace(self, crops=(None,) * len(self.ops))

    def part(self, places: Sequence[int], spec: Spec | None = None) -> Graph:
        """Return the graph of some of the ops; their draws stay the same.

        Args:
            places: the places of the ops, ascending; no op between them acts on their fields.
            spec: the fields before the first of them; ``spec_in`` if left out.
        """
        before = self.spec_in if spec is None else spec
        now, specs = before, []
        for place in places:
            now = now.including(*(self.specs[place][name] for name in self.outputs[place]))
            specs.append(now)
        crops = [self.crops[place] for place in places]
        new_places: dict[int | None, int | None] = {
            None: None,
            **{place: n for n, place in enumerate(places)},
        }
        return Graph(
            before,
            tuple(self.ops[place] for place in places),
            tuple(self.targets[place] for place in places),
            tuple(specs),
            tuple(self.streams[place] for place in places),
            tuple(new_places.get(crop, ELSEWHERE) for crop in crops),
            choices=tuple(self.choices[place] for place in places),
            roles=self.roles,
        )

    @cached_property
    def for_numpy(self) -> tuple[int, ...]:
        """The places of the ops that run on NumPy alone."""
        ops = enumerate(zip(self.ops, self.targets, strict=True))
        return tuple(
            place for place, (op, on) in ops if stays_on_host(op, self.before(place).only(on))
        )

    def is_exact(self, place: int) -> bool:
        """Return True if the op at a place makes the same numbers on a CPU and on a GPU, by its
        array forms.

        So do ops that make whole numbers, and those that only move the values of records that vary
        in length.
        """
        op, before = self.ops[place], self.before(place)
        if calls_python(op) or op.traits.execution.needs_dali:
            return False
        for name in self.outputs[place]:
            after = self.specs[place][name]
            is_move = (
                op.traits.arithmetic.takes_ragged
                and name in before
                and before[name].dtype == after.dtype
            )
            if after.dtype.kind not in "biu" and not is_move:
                return False
        return True

    def is_walk(self, place: int) -> bool:
        """Return True if the op at a place can be a part of a walk over its images, see
        `walk.Walk`."""
        spec, op = self.before(place), self.ops[place]
        for name in self.outputs[place]:
            if name in spec and spec[name].uniform:
                now = walk.begin(spec[name], 0)
            else:
                now = None
            if now is None or op.forms(spec[name]).fold(now, self.empty_draws[place]) is None:
                return False
        return True

    @cached_property
    def to_one_size(self) -> tuple[int, ...]:
        """The places of the ops that decode images, and of those behind them up to the one that
        gives one size.

        Borders, crops and flips of bytes directly behind are among them, up to the last one that
        leaves no more bytes than there were: Pad and then RandomCrop, but no Pad by itself; of
        several fields where all are done here. So are all ops before these on the same fields.

        An op on the way to one size that needs a device, an operator of DALI say, ends it: then, as
        where no op gives one size, decoding alone is among them.
        """
        decoding = [place for place, op in enumerate(self.ops) if op.traits.codec]
        places = self.with_ops_before(self._places_to_size())
        if any(_needs_device(self.ops[place]) for place in places):
            return self.with_ops_before(decoding)
        return places

    def _places_to_size(self) -> set[int]:
        """Return the places of ``to_one_size``, without the ops before them."""
        places: set[int] = set()
        waiting: dict[
            str, list[int]
        ] = {}  # images of varying size: the ops on them since they were decoded
        moves = _Moves()
        for place, (op, names) in enumerate(zip(self.ops, self.outputs, strict=True)):
            sources = {original(op, name, self.targets[place]) for name in names}.union(names)
            if not op.traits.codec and sources.isdisjoint(waiting):
                places.update(moves.add(place, self._moved_bytes(place)))
                continue
            chain = list(
                dict.fromkeys(
                    [*(earlier for name in sources for earlier in waiting.get(name, ())), place]
                )
            )
            if op.traits.codec:
                places.add(place)
            for name in names:
                field = self.specs[place][name]
                waiting.pop(name, None)
                moves.end(name)
                if _needs_device(op):
                    continue
                if not field.uniform:
                    waiting[name] = chain
                    continue
                places.update(chain)
                if field.dtype == np.uint8:
                    moves.begin(name, prod(field.fixed_shape))
        return places

    def _moved_bytes(self, place: int) -> dict[str, int | None]:
        """Return for each field of an op how many bytes an image it leaves; None where it does more
        than move them."""
        return {name: self._bytes_moved_to(place, name) for name in self.outputs[place]}

    def _bytes_moved_to(self, place: int, name: str) -> int | None:
        spec = self.before(place)
        if name not in spec or self.ops[place].traits.joint:
            return None
        op, before, after = self.op_on(place, name), spec[name], self.specs[place][name]
        if not op.traits.geometric or not after.uniform or after.dtype != before.dtype:
            return None
        begin = walk.begin(before, 0)
        # The core's visit of an image has borders of a colour for each channel, too.
        if begin is None:
            return None
        if op.forms(before).fold(begin.with_(colours=()), self.empty_draws[place]) is None:
            return None
        return prod(after.fixed_shape)

    @cached_property
    def behind_dali(self) -> frozenset[int]:
        """The places of the ops that act on results of an op that only DALI runs, but of those that
        only DALI runs."""
        places: list[int] = []
        fields: set[str] = set()
        for place, op in enumerate(self.ops):
            if op.traits.execution.needs_dali or not fields.isdisjoint(self.outputs[place]):
                fields.update(self.outputs[place])
                if op.traits.execution.needs_dali:
                    places += []
                else:
                    places += [place]
        return frozenset(places)

    def with_ops_before(self, last: Collection[int]) -> tuple[int, ...]:
        """Return the places of some ops, and of all ops before them that act on their fields."""
        places: list[int] = []
        fields: set[str] = set()
        for place in reversed(range(len(self.ops))):
            if place in last or fields.intersection(self.outputs[place]):
                places.append(place)
                fields.update(self.targets[place])
        return tuple(reversed(places))

    def draw(
        self,
        *,
        seed: int,
        epoch: int,
        records: NDArray[np.int64],
        sizes: Mapping[str, Sizes],
        partners: NDArray[np.int32] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> list[Draw]:
        """Return the draws of every op for a batch (or any part of one: each record's draws are its
        own).

        Args:
            seed: the loader's seed.
            epoch: the epoch.
            records: int64 ``[N]``.
            sizes: for each field that an op acts on, the result of ``image_sizes``.
            partners: the partners of the rows, int32 ``[N, 1]`` or ``[N, 3]``, see
                ``order.Groups``; where an op mixes.
            values: the values of ``fields_to_draw``, the records along the first axis.

        Raises:
            SpecError: an op mixes, and there are no partners.
            RowError: an op cannot draw for the size of a record's image, or refuses to decode it.
        """
        sizes = self._without_orientation(sizes)
        self._check_heads(sizes)
        for name in self._varying_images:
            images.check_pixels(name, sizes[name])
        now = {
            name: np.broadcast_to(size, (records.size, len(size)))
            for name, size in self._sizes_beside.items()
        }
        for name, size in sizes.items():
            now[name] = size
            if size.shape[1] >= len(COLUMNS):
                now[name] = size[:, :2]
        boxes = dict(values or {name: [] for name in self.fields_to_draw})  # as before each op
        draws: list[Draw] = []
        before: list[Sizes] = []
        # By stream: an op that moves boxes beside an image has the image's draw.
        leader_draws: dict[int, Draw] = {}
        # Of a field that an op makes anew, and of no other.
        unknown: Sizes = np.zeros((records.size, 2), np.int32)
        # By a size that all images have: 10 us each, for several ops the same.
        of_all_rows: dict[bytes, Sizes] = {}
        for place, drawing in enumerate(self._drawings):
            size = drawing.size_before(now, unknown)
            if drawing.stream not in leader_draws:
                u = drawing.numbers(seed, epoch, records, partners)
                leader_draws[drawing.stream] = drawing.draw(u, size, boxes)
            draw = leader_draws[drawing.stream]
            if drawing.follows is not None:
                draw = drawing.follows.complete(draw, size)
            if drawing.group and partners is not None:
                rows = partners
                if drawing.group == 2:
                    rows = partners[:, 0]
                draw = draw | {PARTNER: rows}
            heads = drawing.head_field
            if heads is not None and sizes[heads].shape[1] == len(COLUMNS):
                draw = draw | {HEADS: sizes[heads]}
            draws.append(draw)
            before.append(size)
            # Boxes are moved here only while an op behind still draws by them; else the op's
            # follower moves them.
            if place < self._last_draw_of_boxes:
                for name in boxes.keys() & set(drawing.targets):
                    boxes[name] = self.op_on(place, name).array_batch(np, boxes[name], draw)
            for name, fixed, first in drawing.sizes_after:
                if fixed is None:
                    now[name] = drawing.op.size_after(now.get(first, unknown), draw)
                    continue
                if (key := fixed.tobytes()) not in of_all_rows:
                    of_all_rows[key] = np.broadcast_to(fixed, (records.size, len(fixed)))
                now[name] = of_all_rows[key]
        return self._with_regions(draws, before)

    @cached_property
    def fields_to_draw(self) -> tuple[str, ...]:
        """The fields of boxes that ops read before they draw."""
        return tuple(dict.fromkeys(name for names in self._draw_fields for name in names))

    @cached_property
    def _draw_fields(self) -> list[tuple[str, ...]]:
        """For each op the fields of boxes that it reads to draw."""
        return [tuple(field.name for field in drawing.boxes) for drawing in self._drawings]

    @cached_property
    def _drawings(self) -> tuple[_Drawing, ...]:
        """For each op the values that `draw` needs: asked once, for all steps."""
        drawings = []
        for place, (op, on) in enumerate(zip(self.ops, self.targets, strict=True)):
            traits, spec = op.traits, self.before(place)
            leader: Op = op if traits.follows is None else traits.follows.leader
            marks, files = leader.traits.marks, self._files[place]
            boxes = () if marks.boxes is None else marks.boxes(spec)
            group = 0 if traits.mixes is None else traits.mixes.group
            drawing = _Drawing(
                op=op,
                leader=leader,
                follows=traits.follows,
                targets=on,
                stream=self.streams[place],
                num_uniforms=leader.num_uniforms,
                group=group,
                any_size=takes_any_size(op),
                size_field=_size_field(op, spec),
                head_field=files.get(on[0]) if traits.codec and len(on) == 1 else None,
                boxes=tuple(spec[name] for name in boxes),
                draw_beside=marks.draw,
                sizes_after=tuple(
                    (name, _known_size(self.specs[place][name]), original(op, name, on))
                    for name in self.outputs[place]
                ),
            )
            drawings.append(drawing)
        return tuple(drawings)

    @cached_property
    def _last_draw_of_boxes(self) -> int:
        """The place of the last op that reads boxes to draw; -1 if none does."""
        return max((place for place, names in enumerate(self._draw_fields) if names), default=-1)

    def _check_heads(self, sizes: Mapping[str, Sizes]) -> None:
        """Let ops refuse images by their heads, before they are decoded: every executor draws here
        first."""
        for codec, name in self._decoded_files:
            codec.check_heads(sizes[name][:, :3])

    @cached_property
    def _decoded_files(self) -> list[tuple[FileCodec, str]]:
        """The fields of files that ops decode, each with the codec of its op."""
        ops = zip(self.ops, self.targets, self._files, strict=True)
        return [
            (codec, files.get(name, name))
            for op, on, files in ops
            if (codec := op.traits.codec) is not None
            for name in on
        ]

    def _without_orientation(self, sizes: Mapping[str, Sizes]) -> Mapping[str, Sizes]:
        """Return the heads of files that are not turned upright with the sizes that they are
        decoded to."""
        heads = {
            name: sizes[name] for name in self._stored_files if sizes[name].shape[1] == len(COLUMNS)
        }
        if heads:
            return {**sizes, **{name: without_orientation(rows) for name, rows in heads.items()}}
        return sizes

    @cached_property
    def _stored_files(self) -> tuple[str, ...]:
        """The fields of files that ops decode as they are stored."""
        by_file: dict[str, set[bool]] = {}
        for codec, name in self._decoded_files:
            by_file.setdefault(name, set()).add(codec.is_upright)
        mixed_name = next((name for name, ways in by_file.items() if len(ways) > 1), None)
        if mixed_name is not None:
            raise SpecError(
                f"the images {mixed_name!r} are decoded upright and as they are stored",
                cause="ops behind would see images of two sizes in one record",
                remedy="give all Decode ops of a field the same orient=",
            )
        return tuple(name for name, ways in by_file.items() if ways == {False})

    @cached_property
    def _varying_images(self) -> tuple[str, ...]:
        """The decoded images of varying size: ops need their pixels, and say so by the axes behind
        them."""
        after = {name for spec in self.specs for name in spec.names if spec[name].axes}
        fields = [
            field
            for field in self.spec_in
            if field.name in self.touched and not (field.encoded or field.uniform)
        ]
        of_dali = {
            name
            for op, on in zip(self.ops, self.targets, strict=True)
            if op.traits.execution.needs_dali
            for name in on
        }
        return tuple(
            field.name for field in fields if field.name in after | of_dali and _has_sizes(field)
        )

    @cached_property
    def _sizes_beside(self) -> dict[str, Sizes]:
        """The sizes of images that ops draw for, although none acts on them, int32 ``[2]``."""
        names = {drawing.size_field for drawing in self._drawings}
        fields = [
            field
            for field in self.spec_in
            if field.name in names and field.name not in self.touched
        ]
        sizes = {field.name: _known_size(field) for field in fields}
        return {name: size for name, size in sizes.items() if size is not None}

    @cached_property
    def _files(self) -> list[dict[str, str]]:
        """For each op, for each field before it that no op has changed: the field of ``spec_in``
        that it is."""
        now = {name: name for name in self.spec_in.names}
        fields = []
        for op, on, names in zip(self.ops, self.targets, self.outputs, strict=True):
            fields.append(now)
            copies = {
                name: now[first]
                for name in names
                if (first := original(op, name, on)) != name and first in now
            }
            # a copy leaves the field itself as it is
            if copies:
                changes: tuple[str, ...] = ()
            else:
                changes = names
            now = {name: first for name, first in now.items() if name not in changes} | copies
        return fields

    @cached_property
    def empty_draws(self) -> list[Draw]:
        """The draws of a batch without records: they show the names, dtypes and ranks of all
        draws."""
        sizes = {
            name: np.empty((0, _num_sides(self.spec_in[name])), np.int32) for name in self.touched
        }
        empty = np.empty((0, max(self.group - 1, 1)), np.int32)
        return self.draw(
            seed=0, epoch=0, records=np.empty(0, np.int64), sizes=sizes, partners=empty
        )

    def _with_regions(self, draws: list[Draw], before: Sequence[Sizes]) -> list[Draw]:
        """Return the draws with regions, which crops share with the op before; ``before`` are the
        sizes at each op."""
        for crop in {crop for crop in self.crops if crop is not None}:
            makers = [place for place, crop_of_op in enumerate(self.crops) if crop_of_op == crop]
            if (
                crop == ELSEWHERE
            ):  # the whole graph draws regions; in a part alone they are whole images
                for place in makers:
                    draws[place] = draws[place] | {
                        "start": np.zeros_like(before[place]),
                        "shape": before[place],
                    }
                continue
            regional = self.ops[crop].traits.regional
            if regional is None:
                raise RuntimeError(f"{self.ops[crop]} uses whole images")
            region = regional.part(draws[crop], before[crop])
            for place in makers:
                codec = self.ops[place].traits.codec
                if codec is not None and codec.covering is not None:
                    region = codec.covering(region, before[crop])
            draws[crop] = regional.within(draws[crop], region)
            for place in makers:
                draws[place] = draws[place] | region
        return draws


@dataclass(frozen=True)
class _Drawing:
    """The values that ``Graph.draw`` needs of one op.

    Attributes:
        op: the op.
        leader: the op that draws for it.
        follows: how the draw of the leader becomes its own; None if it is the leader.
        targets: the fields that it acts on.
        stream: its random stream.
        num_uniforms: how many uniform numbers the leader needs for one record.
        group: of how many records it makes one; 0 if it does not mix.
        any_size: True if one draw serves images of any size.
        size_field: the field with the sizes that it draws for; None for those that it acts on.
        head_field: the field of files with the heads that it needs to decode; None if another op
            has changed it. An op that decodes several fields has one draw for all of them, and
            reads their heads itself.
        boxes: the fields of boxes that it reads to draw, by ``draw_beside``.
        sizes_after: for each field that it makes: its name; the size of all images after it, int32
            ``[2]``, if that is known; and the field that it begins as a copy of.
    """

    op: Op
    leader: Op
    follows: Follows | None
    targets: tuple[str, ...]
    stream: int
    num_uniforms: int
    group: int
    any_size: bool
    size_field: str | None
    head_field: str | None
    boxes: tuple[Field, ...]
    draw_beside: Callable[[NDArray[np.float64], Sizes, list[Boxes]], Draw] | None
    sizes_after: tuple[tuple[str, Sizes | None, str], ...]

    @property
    def fields(self) -> set[str]:
        """The fields that the op acts on, and those that it draws by."""
        names = {*self.targets, *(field.name for field in self.boxes)}
        return names if self.size_field is None else names | {self.size_field}

    def size_before(self, sizes: Mapping[str, Sizes], unknown: Sizes) -> Sizes:
        """Return the sizes of the images that are drawn for, int32 ``[N, 2]``.

        Args:
            sizes: of the images of each field before the op.
            unknown: stands for a size that is not known.

        Raises:
            RowError: fields that share one draw differ in size.
        """
        if self.size_field is not None:
            return sizes.get(self.size_field, unknown)
        name = self.targets[0]
        first = sizes[name]
        rest = self.targets[1:]
        if self.any_size:
            rest = ()
        for second in rest:
            if not np.array_equal(sizes[second], first):
                row = int((sizes[second] != first).any(axis=1).argmax())
                raise RowError(
                    row,
                    f"{self.op}: {name!r} is {first[row].tolist()} pixels and "
                    f"{second!r} is {sizes[second][row].tolist()}",
                    cause=follow.SAME_SIZE,
                    remedy=follow.SIZE_REMEDY,
                )
        return first

    def numbers(
        self,
        seed: int,
        epoch: int,
        records: NDArray[np.int64],
        partners: NDArray[np.int32] | None,
    ) -> NDArray[np.float64]:
        """Return the uniform numbers of the leader, float64 ``[N, num_uniforms]``.

        Raises:
            SpecError: the op mixes, and there are no partners.
        """
        keys = records
        if self.group and partners is None:
            raise no_partners(self.op)
        if self.group == 2 and partners is not None:
            # Both of a pair have the draw of the one that comes first in the order: the distance is
            # negative where the partner stands before the record.
            keys = records[np.arange(records.size) + np.minimum(partners[:, 0], 0)]
        if not self.num_uniforms:
            return np.empty((records.size, 0))
        return rng.uniform(
            self.num_uniforms, seed=seed, epoch=epoch, records=keys, stream=self.stream
        )

    def draw(self, u: NDArray[np.float64], size: Sizes, boxes: Mapping[str, Any]) -> Draw:
        """Return the draw of the leader; ``boxes`` are the boxes before it."""
        if self.draw_beside is None:
            return self.leader.draw(u, size)
        fields = [(field, boxes[field.name]) for field in self.boxes]
        return self.draw_beside(u, size, follow.corners_of_records(fields, size))


class _Moves:
    """Ops behind those that gave images of bytes one size, as long as all of them only move these
    bytes.

    An op that makes more bytes waits for one behind it that leaves no more than there were before
    both.
    """

    def __init__(self) -> None:
        self._num_bytes: dict[
            str, int
        ] = {}  # of an image that the host leaves, of each field that may go on
        self._waiting: dict[
            int, frozenset[str]
        ] = {}  # places of ops that wait, each with its fields

    def begin(self, name: str, num_bytes: int) -> None:
        """Let a field of one size go on."""
        self._num_bytes[name] = num_bytes

    def end(self, name: str) -> None:
        """Let a field go no further: ops that wait on it stay where they are."""
        self._num_bytes.pop(name, None)
        self._waiting = {
            place: names for place, names in self._waiting.items() if name not in names
        }

    def add(self, place: int, results: dict[str, int | None]) -> list[int]:
        """Take the next op, and return the places that can now be done on the host.

        Args:
            place: the op's place.
            results: its fields, each with the bytes of an image behind it; None where it does more
                than move them.
        """
        num_bytes = {
            name: count
            for name, count in results.items()
            if count is not None and name in self._num_bytes
        }
        if len(num_bytes) < len(results):
            for name in results:
                self.end(name)
            return []
        names = frozenset(results)
        waiting = [earlier for earlier, on in self._waiting.items() if on & names]
        grows = any(count > self._num_bytes[name] for name, count in num_bytes.items())
        if grows or any(not self._waiting[earlier] <= names for earlier in waiting):
            self._waiting[place] = names
            return []
        self._num_bytes |= num_bytes
        for earlier in waiting:
            del self._waiting[earlier]
        return [*waiting, place]


def compile_ops(spec: Spec, ops: Sequence[Op], before: Sequence[Op] = ()) -> Graph:
    """Return the graph of these ops on records of this spec.

    Args:
        spec: the fields before the first op.
        ops: the ops, in order.
        before: the ops that made these records; they count where ops of one class are numbered for
            their draws.

    Raises:
        SpecError: an op does not fit the fields that it acts on; the message names the op, its
            place and the field.
        UnknownFieldError: an op acts on a field that is not there.
    """
    if not isinstance(ops, (list, tuple)):
        raise SpecError(
            f"ops is {ops!r}",
            cause="ops is a list of ops, also where there is only one",
            remedy=_how_to_list(ops),
        )
    numbers = streams([*before, *ops])[len(before) :]
    spec = follow.with_slices_of_masks(spec)
    entries: list[tuple[Op, tuple[str, ...], Spec, int]] = []
    now, by_mark, changed, choices = spec, set[str](), set[str](), list[bool]()
    roles = beside.roles_before(spec, before)
    unsized: set[str] = set()  # images of varying size, known only once they are made
    for place, user_op in enumerate(ops):
        if not isinstance(user_op, Op):
            raise SpecError(
                f"ops[{place}] is {user_op!r}",
                cause="it is not an op (an instance of a class in gl.ops)",
                remedy=_how_to_make(user_op),
            )
        try:
            op = follow.with_labels(follow.with_masks(user_op, now), now, roles)
            previous = now
            # They stand before their op: its draw is made for the size that the image has before
            # it, and the first makes it.
            for follower in follow.followers(op, previous, changed):
                now = follower.spec_after(now)
                entries.append((follower, follower.targets(now), now, numbers[place]))
                choices.append(True)
                by_mark.update(follower.targets(now))
            on = op.targets(now)
            _check_draw_order(op, now, entries)
            _check_sized(op, on, now, unsized)
            _check_beside(op, on, now, changed)
            _check_same_size(op, on, now)
            beside.check_alpha(op, on, now, roles)
            now = op.spec_after(now)
            unsized = {
                field.name
                for field in now
                if _loses_size(previous, field, original(op, field.name, on), unsized)
            }
        except RowError as error:  # of images that all have one size
            problem = SpecError(error.reason, cause=error.cause, remedy=error.remedy)
            raise problem.within(f"ops[{place}]") from None
        except (SpecError, UnknownFieldError) as error:
            raise error.within(f"ops[{place}]") from None
        entries.append((op, on, now, numbers[place]))
        choices.append(beside.names_fields(user_op, previous))
        roles = beside.roles_behind(op, on, now, roles)
        changed.update(on)
        by_mark.update(
            name
            for name in on
            if previous[name].is_marked and (op is not user_op or op.traits.marks.are_read)
        )
    if entries:
        all_ops, all_targets, specs, all_streams = zip(*entries, strict=True)
    else:
        all_ops, all_targets, specs, all_streams = ((), (), (), ())
    crops = _crops(all_ops, all_targets)
    marks, all_roles = frozenset(by_mark), frozenset(roles.items())
    return Graph(
        spec, all_ops, all_targets, specs, all_streams, crops, marks, tuple(choices), all_roles
    )


def _needs_device(op: Op) -> bool:
    """Return True for an operator of DALI, and for a function that takes arrays of CuPy."""
    is_function = calls_python(op) and type(op).__module__.startswith("gpuload.")
    return op.traits.execution.needs_dali or (is_function and not op.traits.execution.needs_numpy)


def no_partners(op: Op) -> SpecError:
    """Return the error for an op that mixes records which stand in no order."""
    return SpecError(
        f"{op} of records without an order",
        cause="it mixes a record with its neighbour in the order of an epoch of a loader",
        remedy="put it into ops= of the gl.Loader that is trained from; leave it out of what is written or cached",
    )


def _loses_size(before: Spec, after: Field, original: str, unsized: set[str]) -> bool:
    """Return True if a field holds images of varying size that is known only once an op has made
    them.

    Args:
        before: the spec before the op.
        after: the field after the op.
        original: the field before the op that has the same size.
        unsized: the fields before the op with unknown sizes.
    """
    if not _has_sizes(after) or after.uniform:
        return False
    return original in unsized or original not in before or not _has_sizes(before[original])


def _check_draw_order(
    op: Op, spec: Spec, entries: Sequence[tuple[Op, tuple[str, ...], Spec, int]]
) -> None:
    """Raise ``SpecError`` if an op reads boxes to draw, and an op before it makes these together
    with other fields.

    Args:
        op: the op.
        spec: the fields before it.
        entries: the ops before it, each with the fields that it acts on.
    """
    boxes = op.traits.marks.boxes
    names = () if boxes is None else boxes(spec)
    for earlier, on, _, _ in entries:
        if earlier.traits.joint and not set(names).isdisjoint(on):
            raise SpecError(
                f"{op} behind {earlier}",
                cause=f"what the first draws depends on {list(names)}, and is drawn before any op runs; the second "
                "makes these of several fields",
                remedy=f"put {type(earlier).__name__} behind {type(op).__name__}",
            )


def _check_same_size(op: Op, on: tuple[str, ...], spec: Spec) -> None:
    """Raise ``SpecError`` if fields that share one draw are known to differ in size."""
    if takes_any_size(op):
        return
    if len({_num_sides(spec[name]) for name in on}) > 1:
        image = next(
            (
                spec[name]
                for name in on
                if not spec[name].is_volume and len(spec[name].shape or ()) == 3
            ),
            None,
        )
        if image is not None:
            mark = f"source.mark({image.name}='DHW') for slices; else "
        else:
            mark = ""
        raise SpecError(
            f"{op}: {'; '.join(str(spec[name]) for name in on)}",
            cause="images and volumes have no size in common, and one draw is for one size",
            remedy=f"{mark}give each an op of its own with on=",
        )
    sizes = {name: size.tolist() for name in on if (size := _known_size(spec[name])) is not None}
    first = next(iter(sizes), "")
    second = next((name for name in sizes if sizes[name] != sizes[first]), None)
    if second is not None:
        raise SpecError(
            f"{op}: {first!r} is {sizes[first]} pixels and {second!r} is {sizes[second]}",
            cause=follow.SAME_SIZE,
            remedy=follow.SIZE_REMEDY,
        )


def _check_sized(op: Op, on: tuple[str, ...], spec: Spec, unsized: set[str]) -> None:
    """Raise ``SpecError`` for an op that must know a size to draw, and cannot."""
    name = next((name for name in on if name in unsized), None)
    # An op that draws nothing needs no size; its draw for no records shows whether it does.
    if (
        name is None
        or op.traits.arithmetic.any_size
        or not op.draw(np.empty((0, op.num_uniforms)), np.empty((0, 2), np.int32))
    ):
        return
    raise SpecError(
        f"{op}: the size of field {name!r}, {spec[name].shape}, is not known before it is made",
        cause="what is drawn for an image depends on its size, and is drawn before any op runs",
        remedy="declare height and width in out= of the op that makes it, or put gl.ops.Resize(height, width) before "
        "this op",
    )


def check_mixes(graph: Graph, names: Sequence[str]) -> None:
    """Raise ``SpecError`` if an op makes a record of two, but does not act on the marked fields
    beside their image.

    Args:
        graph: the ops.
        names: the fields of a batch.
    """
    for place, (op, on) in enumerate(zip(graph.ops, graph.targets, strict=True)):
        before = graph.before(place)
        annotations = [
            field
            for field in before
            if field.is_marked and field.name in names and field.name not in on
        ]
        brings_marks = op.traits.geometric  # as Mosaic does
        if (
            not op.traits.mixes
            or brings_marks
            or not annotations
            or beside.image_name(before) not in on
        ):
            continue
        masks = [field.name for field in annotations if field.kind == MASK]
        remedy = "leave it out, or leave these fields out of output=, or the mark, if it does not belong to the image"
        if masks:
            remedy = f"gl.ops.CutMix(on={(*on, *masks)}) cuts masks, too; else {remedy}"
        raise SpecError(
            f"{op} beside {[f'{field.name}: {field.mark}' for field in annotations]}",
            cause="an image is mixed with that of another record, and these would still be those of one of the two",
            remedy=remedy,
        )


def _check_beside(op: Op, on: tuple[str, ...], spec: Spec, changed: set[str]) -> None:
    """Raise ``SpecError`` for an op that must know the sizes of images that nothing acts on, where
    these vary."""
    name = _size_field(op, spec)
    if name is None or name in on or name in changed or _known_size(spec[name]) is not None:
        return
    raise SpecError(
        f"{op}: the size of the images {name!r} is not known",
        cause="it varies, and is looked up only for images that an op acts on",
        remedy=f"put an op on the images before it: gl.ops.Decode(on={name!r}) of files, gl.ops.Resize of others",
    )


def _how_to_list(value: object) -> str:
    if getattr(value, "__module__", None) == "gpuload.recipes":
        return f"call the recipe: ops=gl.recipes.{getattr(value, '__name__', '')}()"
    inner = ""
    if isinstance(value, Op):
        inner = f"gl.ops.{type(value).__name__}(...)"
    return f"write ops=[{inner}]"


def _how_to_make(value: object) -> str:
    if isinstance(value, type) and issubclass(value, Op):
        return f"write gl.ops.{value.__name__}(...), with the brackets"
    if isinstance(value, (list, tuple)) and all(isinstance(op, Op) for op in value):
        return "put a star before it, as in ops=[*gl.ops.repeat(...), gl.ops.OneHot(10)]: it is a list of ops itself"
    if isinstance(value, (str, ModuleType)):
        if isinstance(value, str):
            name = value
        else:
            name = value.__name__.rpartition(".")[2]
        if name.isidentifier():
            likely = synonyms.near_names(name, sys.modules["gpuload.ops"].__all__)
        else:
            likely = []
        if likely:
            calls = " or ".join(f"gl.ops.{word}(...)" for word in likely)
            if isinstance(value, str):
                return f"write {calls}, which is no text"
            return f"write {calls}"
    elif callable(value):
        name = getattr(value, "__name__", "")
        if not name.isidentifier():
            name = "function"
        return f"write gl.ops.Python({name})"
    return "write gl.ops.RandomFlip(), say; gl.ops.__all__ names all ops"


def image_sizes(field: Field, values: Any, count: int) -> Sizes:
    """Return height and width in pixels of the images of a field, int32 ``[count, 2]``; zeros where
    it holds none.

    Of volumes the number of slices comes third, int32 ``[count, 3]``.

    A field with two axes that vary, a mask say, counts as an image that has no axis of channels
    yet.

    Of encoded images all that ``images.head.read_heads`` returns, ``[count, 6]``: ``Graph.draw``
    asks the op that decodes them whether it will.

    Raises:
        RowError: the bytes of an encoded image are damaged, as far as its header and its end can
            tell.
    """
    if field.encoded:
        return read_heads(values)
    if not _has_sizes(field):
        return np.zeros((count, 2), np.int32)
    axes = size_axes(field)
    size = _known_size(field)
    if size is not None:
        return np.broadcast_to(size, (count, len(axes)))
    return np.array([[image.shape[axis] for axis in axes] for image in values], np.int32).reshape(
        -1, len(axes)
    )


def _num_sides(field: Field) -> int:
    """Return how many numbers the size of a field's images has: height and width, and of volumes
    the slices."""
    return 3 if field.is_volume else 2


def _has_sizes(field: Field) -> bool:
    """Return True if a field holds images, encoded or not; of two axes that vary too, which lack
    that of channels."""
    if field.shape is None or field.kind == INSTANCES:
        return False
    return field.encoded or field.is_volume or len(field.shape) == 3 or field.shape == (None, None)


def _crops(ops: Sequence[Op], targets: Sequence[tuple[str, ...]]) -> tuple[int | None, ...]:
    """Return for each op the place of the op that needs a region alone of its result, or None.

    Both ops act on the same records with nothing between them: all fields of the crop come from ops
    that take a region, and these act on no other field.
    """
    crops: list[int | None] = [None] * len(ops)
    last: dict[str, int] = {}  # for each field the place of the last op that acted on it
    for place, (op, on) in enumerate(zip(ops, targets, strict=True)):
        makers = [last.get(name, -1) for name in on]
        whole = all(
            maker >= 0 and _takes_region(ops[maker]) and set(targets[maker]) <= set(on)
            for maker in makers
        )
        if op.traits.regional and whole:
            for maker in makers:
                crops[maker] = place
        last.update(dict.fromkeys(on, place))
    return tuple(crops)


def size_axes(field: Field) -> tuple[int, ...]:
    """Return the axes of height and width, and of volumes that of the slices."""
    if field.is_volume:
        return 1, 2, 0
    if field.is_channels_first:
        return (1, 2)
    return (0, 1)


def _known_size(field: Field) -> Sizes | None:
    """Return the size of the images of all records, as `image_sizes`; None where it varies or they
    are no images."""
    if field.encoded or not field.uniform or not (field.is_volume or len(field.fixed_shape) == 3):
        return None
    return np.array([field.fixed_shape[axis] for axis in size_axes(field)], np.int32)


def _size_field(op: Op, before: Spec) -> str | None:
    """Return the field with the sizes that an op draws for; None for the fields that it acts on."""
    image = op.traits.marks.image
    return None if image is None else image(before)


def _takes_region(op: Op) -> bool:
    """Return True if an op can make a region of its images alone."""
    codec = op.traits.codec
    return codec is not None and codec.covering is not None
