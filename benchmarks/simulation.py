"""A year of 10^12 records on 10^4 ranks, which are lost and added daily:
`python -m benchmarks.simulation`.

What is simulated is the cluster: when nodes fail, when they come back, and how far each attempt to
train comes. What the ranks do then is not: loaders save and load their states, and `Plan.span` says
which records a step has.

Cluster    1,250 nodes of 8 ranks. Crashes come at random, 8 a day, and take a node along, or at
           times a rack of 16. Repairs take half a day to two days. The training starts again at
           each crash, and once a day for the nodes that are back
Ranks      as many as divide the global batch, which stays the same; the others wait as spares
Rollback   to the latest checkpoint that was written: a crash loses the steps since then, at most
           ``checkpoint_steps + write_steps``, and these are trained again from the model of that
           checkpoint
Reading    a rank reads whole windows of `gl.Blocks`, one window ahead in each lane of the order,
           and has none of them after a restart; ranks that share a lane both read all of it. So
           this is the most that loaders ask for

Checks, each of which ends the program if it fails:
  seams    the committed steps of an epoch are intervals of its order; each begins where the one
           before ended, from position 0 to the end: no position twice, none left out
  ranks    of each number of ranks, all ranks together have the positions of a step, each once; of a
           step in the middle of an epoch, and of the last, shorter one
  records  of each epoch some records, drawn at random, and those at both ends of each interval: the
           inverse of the order (which is here, and nowhere in gpuload) says at which position a
           record stands, so which rank has it at which step of which attempt; and `Plan.span` of
           that rank and step has it
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from benchmarks.folders import RESULTS
from gpuload import order, rng
from gpuload.order import Plan, Position

Numbers = NDArray[np.int64]
NUMBER_0 = np.zeros(1, np.int64)  # of a permutation that is the only one of its stream
STEPS_AHEAD = 64  # that a loader's threads are ahead of the training


@dataclass(frozen=True)
class Training:
    """What is trained on, by which cluster.

    Attributes:
        blocks: the shuffle; the global batch is ``lanes * chunk`` records, whatever the number of
            ranks.
        checkpoint_steps: from one checkpoint to the next.
        write_steps: until a checkpoint is written, during which training goes on.
        restart_steps: which would be trained in the time that a restart takes.
    """

    num_records: int
    num_nodes: int
    ranks_per_node: int
    blocks: gl.Blocks
    steps_per_day: int
    checkpoint_steps: int
    write_steps: int
    restart_steps: int
    crashes_per_day: float
    rack_nodes: int = 16
    rack_share: float = 0.05  # of the crashes
    seed: int = 7

    @cached_property
    def lanes(self) -> order.Lanes:
        """How the order interleaves sequences of windows."""
        return order.Lanes(self.num_records, self.blocks.lanes, self.blocks.chunk or 1)

    @cached_property
    def global_batch(self) -> int:
        """The records of a step of all ranks."""
        return self.lanes.row

    @property
    def max_rollback(self) -> int:
        """The most steps that a crash loses."""
        return self.checkpoint_steps + self.write_steps

    @cached_property
    def rank_counts(self) -> list[int]:
        """The numbers of ranks that divide the global batch, in ascending order."""
        most = min(self.num_nodes * self.ranks_per_node, self.global_batch)
        return [count for count in range(1, most + 1) if self.global_batch % count == 0]

    def plan(self, num_ranks: int, rank: int = 0, *, shuffle: bool = True) -> Plan:
        """Return the plan of a rank; without shuffling its records are the positions of the
        order."""
        blocks = self.blocks if shuffle else False
        return Plan(
            self.num_records, self.global_batch // num_ranks, blocks, self.seed, rank, num_ranks
        )

    def loader(self, num_ranks: int, rank: int) -> gl.Loader:
        """Return the loader of a rank."""
        source = gl.records(self.num_records, _numbers, fields={"x": ("i8", ())}, version="1")
        return gl.Loader(
            source, self.global_batch // num_ranks, shuffle=self.blocks, seed=self.seed, shard_id=rank,
            num_shards=num_ranks, device="cpu",
        )  # fmt: skip


def _numbers(records: Numbers) -> dict[str, Numbers]:
    return {"x": records}


YEAR = Training(
    num_records=10**12,
    num_nodes=1250,
    ranks_per_node=8,
    blocks=gl.Blocks(1024, 16, lanes=277_200, chunk=12),  # 28 lanes for each of 9,900 ranks
    steps_per_day=3 * 86_400,
    checkpoint_steps=1800,  # ten minutes
    write_steps=180,
    restart_steps=900,
    crashes_per_day=8,
)


# --- the cluster


class Attempt(NamedTuple):
    """What is trained from one start to the next.

    Attributes:
        day: counted from 0.
        num_healthy: ranks that could train.
        num_ranks: ranks that do.
        num_steps: until the end.
        is_crash: it ends by a crash; else at a checkpoint, for nodes that were added or as the
            simulation ends.
    """

    day: int
    num_healthy: int
    num_ranks: int
    num_steps: int
    is_crash: bool


def attempts(training: Training, num_days: int) -> Iterator[Attempt]:
    """Yield the attempts of some days; time is counted in steps."""
    random = np.random.default_rng(training.seed)
    clock, end, day_end = 0, num_days * training.steps_per_day, training.steps_per_day
    num_nodes, repairs = training.num_nodes, list[tuple[int, int]]()
    while clock < end:
        num_nodes += sum(count for at, count in repairs if at <= clock)
        repairs = [repair for repair in repairs if repair[0] > clock]
        num_healthy = num_nodes * training.ranks_per_node
        num_ranks = training.rank_counts[bisect_right(training.rank_counts, num_healthy) - 1]
        crash = (
            clock + 1 + int(random.exponential(training.steps_per_day / training.crashes_per_day))
        )
        stop = min(crash, max(day_end, clock + 1), end)
        yield Attempt(
            clock // training.steps_per_day, num_healthy, num_ranks, stop - clock, stop == crash
        )
        if stop == crash:
            count = min(
                training.rack_nodes if random.random() < training.rack_share else 1, num_nodes - 1
            )
            num_nodes -= count
            repairs.append((stop + int(random.uniform(0.5, 2) * training.steps_per_day), count))
        if stop >= day_end:
            day_end += training.steps_per_day
        clock = stop + training.restart_steps


# --- the training


class Leg(NamedTuple):
    """The steps of an attempt in one epoch.

    Attributes:
        begin: where they begin.
        num_steps: all of them.
        num_committed: those before the checkpoint from which the next attempt goes on.
    """

    attempt: Attempt
    begin: Position
    num_steps: int
    num_committed: int


def train(training: Training, num_days: int) -> Iterator[Leg]:
    """Yield the legs of some days; each attempt begins with the state that the one before saved, as
    JSON."""
    loader = lru_cache(maxsize=128)(training.loader)
    text = json.dumps(loader(1, 0).state_dict())
    for attempt in attempts(training, num_days):
        loaders = [loader(attempt.num_ranks, rank) for rank in sorted({0, attempt.num_ranks - 1})]
        for rank_loader in loaders:
            rank_loader.load_state_dict(json.loads(text))
        begin, num_committed = loaders[0].position, attempt.num_steps
        assert {rank_loader.position for rank_loader in loaders} == {begin}
        if attempt.is_crash:
            num_checkpoints = (
                max(0, attempt.num_steps - training.write_steps) // training.checkpoint_steps
            )
            num_committed = num_checkpoints * training.checkpoint_steps
        states = [
            json.dumps(rank_loader.port.state_at(rank_loader.port.after(begin, num_committed)))
            for rank_loader in loaders
        ]
        assert len(set(states)) == 1, "any rank may save the state"
        text = states[0]
        yield from _legs(training.plan(attempt.num_ranks), attempt, begin, num_committed)


def _legs(plan: Plan, attempt: Attempt, begin: Position, num_committed: int) -> Iterator[Leg]:
    """Yield the legs of an attempt: it may go through the ends of epochs."""
    num_left = attempt.num_steps
    while num_left:
        num_steps = min(num_left, plan.end(begin) - begin.step)
        yield Leg(attempt, begin, num_steps, min(num_steps, num_committed))
        begin = plan.normalize(plan.later(begin, begin.step + num_steps))
        num_left, num_committed = (
            num_left - num_steps,
            num_committed - min(num_steps, num_committed),
        )


# --- what is read


def num_read(training: Training, leg: Leg, *, steps_ahead: int = STEPS_AHEAD) -> int:
    """Return how many records all ranks together read in a leg, lost steps and windows ahead with
    them."""
    lanes, window, length = training.lanes, training.blocks.window_records, training.num_records
    begin = leg.begin.offset
    end = begin + (leg.num_steps + steps_ahead) * training.global_batch
    until = min(length, end + max(window * lanes.lanes, training.global_batch))
    first, last = _lane_places(lanes, begin), _lane_places(lanes, until)
    num_windows = np.where(last > first, -(-last // window) - first // window, 0)
    count = (
        int(num_windows @ _num_readers(lanes, training.global_batch // leg.attempt.num_ranks))
        * window
    )
    if (
        end > lanes.whole
    ):  # of what is left behind the lanes each rank has neighbours, in two windows at most
        count += min(2 * window, length) * leg.attempt.num_ranks
    return count


def _lane_places(lanes: order.Lanes, position: int) -> Numbers:
    """Return for each lane the first of its places that is not before a position, int64
    ``[lanes]``."""
    numbers = np.arange(lanes.lanes)
    rows, within = divmod(min(position, lanes.whole), lanes.row)
    return (
        numbers * lanes.lane_length
        + rows * lanes.chunk
        + np.clip(within - numbers * lanes.chunk, 0, lanes.chunk)
    )


@lru_cache(maxsize=64)
def _num_readers(lanes: order.Lanes, batch_size: int) -> Numbers:
    """Return for each lane how many ranks have positions in it."""
    begins = np.arange(lanes.lanes) * lanes.chunk
    return (begins + lanes.chunk - 1) // batch_size - begins // batch_size + 1


# --- the inverse of the order


def positions_of(training: Training, records: Numbers, epoch: int) -> Numbers:
    """Return where records stand in the order of an epoch."""
    length, blocks, seed = training.num_records, training.blocks, training.seed
    rotation = rng.bits(1, seed=seed, epoch=epoch, records=NUMBER_0, stream=order.ROTATION_STREAM)[
        0, 0
    ]
    block, within = np.divmod((records - int(rotation) % length) % length, blocks.block_records)
    is_whole = block < length // blocks.block_records
    block[is_whole] = _inverse(
        block[is_whole], length // blocks.block_records, seed, epoch, order.BLOCKS_STREAM
    )
    places = block * blocks.block_records + within
    windows, inside = np.divmod(places, blocks.window_records)
    sizes = np.minimum(blocks.window_records, length - windows * blocks.window_records)
    for size in np.unique(sizes).tolist():
        is_size = sizes == size
        inside[is_size] = _inverse(
            inside[is_size], size, seed, epoch, order.WINDOW_STREAM, windows[is_size]
        )
    return training.lanes.positions(windows * blocks.window_records + inside)


def _inverse(
    values: Numbers, length: int, seed: int, epoch: int, stream: int, numbers: Numbers = NUMBER_0
) -> Numbers:
    """Return where values stand in the permutations of one length with these numbers: all rounds
    backwards."""
    words = rng.bits(
        order.num_rounds(length), seed=seed, epoch=epoch, records=numbers, stream=stream
    )
    keys = np.stack([words.T >> np.uint64(32), words.T & np.uint64(0xFFFFFFFF)], axis=1).astype(
        np.uint32
    )
    keys = np.broadcast_to(keys, (*keys.shape[:2], values.size)) if values.size else keys
    network = order.Permutation(length, ())
    out, is_left = values.copy(), np.ones(values.size, np.bool_)
    while is_left.any():
        out[is_left] = _backwards(out[is_left], network.high, network.low, keys[:, :, is_left])
        is_left &= out >= length
    return out


def _backwards(x: Numbers, high: int, low: int, keys: NDArray[np.uint32]) -> Numbers:
    a, b = x // low, x % low
    for even, odd in zip(keys[-2::-2], keys[::-2], strict=True):
        b = (b - order._mix(a.astype(np.uint32), odd, np.uint32(low)).astype(np.int64)) % low
        a = (a - order._mix(b.astype(np.uint32), even, np.uint32(high)).astype(np.int64)) % high
    return a * low + b


# --- the checks


@dataclass
class Account:
    """What was trained and read, and what was looked at.

    Attributes:
        epoch, offset: up to where the records are committed.
        legs: the committed ones of this epoch.
        days: for each day the ranks that trained, least and most, the committed records, those
            read, the crashes, and the steps that each of them lost.
    """

    training: Training
    records_per_epoch: int
    epoch: int = 0
    offset: int = 0
    legs: list[Leg] = field(default_factory=list)
    num_legs: int = 0
    num_traced: int = 0
    days: dict[int, dict[str, Any]] = field(default_factory=dict)
    rank_counts: set[int] = field(default_factory=set)

    def add(self, leg: Leg) -> None:
        """Check a leg, and take it into the account."""
        training, attempt = self.training, leg.attempt
        num_committed = 0
        if leg.num_committed:
            assert (leg.begin.epoch, leg.begin.offset) == (self.epoch, self.offset), (
                "a gap, or a record twice"
            )
            end = min(
                training.num_records, leg.begin.offset + leg.num_committed * training.global_batch
            )
            num_committed, self.offset = end - self.offset, end
            self.legs.append(leg)
        if attempt.num_ranks not in self.rank_counts:
            self.rank_counts.add(attempt.num_ranks)
            check_ranks(training, attempt.num_ranks)
        day = self.days.setdefault(
            attempt.day, {"ranks": [], "healthy": [], "committed": 0, "read": 0, "rollbacks": []}
        )
        day["ranks"].append(attempt.num_ranks)
        day["healthy"].append(attempt.num_healthy)
        day["committed"] += num_committed
        day["read"] += num_read(training, leg)
        self.num_legs += 1
        if self.offset == training.num_records:
            self.num_traced += check_records(training, self.legs, self.records_per_epoch)
            self.epoch, self.offset, self.legs = self.epoch + 1, 0, []

    def add_attempt(self, attempt: Attempt, num_lost: int) -> None:
        """Check how far an attempt was rolled back."""
        assert num_lost <= self.training.max_rollback, "more steps are lost than stated"
        if attempt.is_crash:
            self.days[attempt.day]["rollbacks"].append(num_lost)


def check_ranks(training: Training, num_ranks: int) -> None:
    """Check that so many ranks together have the positions of a step, each once."""
    plans = [training.plan(num_ranks, rank, shuffle=False) for rank in range(num_ranks)]
    last = plans[0].end() - 1
    for step in sorted({last // 2, last}):
        begin = plans[0].at(Position(), step)
        end = min(training.num_records, begin.offset + training.global_batch)
        parts = [
            positions[is_valid] for positions, is_valid, _ in (plan.span(begin) for plan in plans)
        ]
        assert np.array_equal(np.concatenate(parts), np.arange(begin.offset, end)), (
            f"{num_ranks} ranks, step {step}"
        )


def check_records(training: Training, legs: list[Leg], count: int) -> int:
    """Check that records of an epoch are where the inverse of the order says; return how many were
    looked for.

    Args:
        training: what is trained.
        legs: that committed steps of the epoch, in their order.
        count: of records that are drawn; those at both ends of each leg come with them.
    """
    epoch = legs[0].begin.epoch
    begins = [leg.begin.offset for leg in legs]
    seams = np.array([*begins, *(begin - 1 for begin in begins[1:]), training.num_records - 1])
    single = Plan(training.num_records, 1, training.blocks, training.seed)
    at_seams = [single.span(single.start_at(epoch, seam))[0] for seam in seams.tolist()]
    random = np.random.default_rng((training.seed, epoch))
    records = np.concatenate([random.integers(0, training.num_records, count), *at_seams])
    positions = positions_of(training, records, epoch)
    assert np.array_equal(positions[count:], seams), "the inverse and the order disagree"
    for record, position in zip(records.tolist(), positions.tolist(), strict=True):
        leg = legs[bisect_right(begins, position) - 1]
        step, rank = place_of(training, leg, position)
        plan = training.plan(leg.attempt.num_ranks, rank)
        batch, is_valid, _ = plan.span(plan.at(leg.begin, step))
        assert step < leg.begin.step + leg.num_committed, "the step was lost"
        assert np.count_nonzero((batch == record) & is_valid) == 1, (
            f"record {record} of epoch {epoch}"
        )
    return int(records.size)


def place_of(training: Training, leg: Leg, position: int) -> tuple[int, int]:
    """Return which step and rank of a leg have a position of the order."""
    num_ranks = leg.attempt.num_ranks
    num_steps, within = divmod(position - leg.begin.offset, training.global_batch)
    num_left = training.num_records - (position - within)
    if num_left >= training.global_batch:
        return leg.begin.step + num_steps, within // (training.global_batch // num_ranks)
    share, rest = divmod(num_left, num_ranks)  # the first ranks have one record more
    rank = (
        within // (share + 1)
        if within < rest * (share + 1)
        else rest + (within - rest * (share + 1)) // share
    )
    return leg.begin.step + num_steps, rank


# --- the program


def simulate(training: Training, num_days: int, records_per_epoch: int) -> Account:
    """Return the account of some days; a check that fails is an AssertionError."""
    account = Account(training, records_per_epoch)
    legs = list[Leg]()
    for leg in train(training, num_days):
        if legs and leg.attempt is not legs[0].attempt:
            _close(account, legs)
        legs.append(leg)
        account.add(leg)
    _close(account, legs)
    return account


def _close(account: Account, legs: list[Leg]) -> None:
    account.add_attempt(legs[0].attempt, sum(leg.num_steps - leg.num_committed for leg in legs))
    legs.clear()


def results_of(account: Account) -> dict[str, Any]:
    """Return the results, for JSON."""
    training, days = account.training, [account.days[day] for day in sorted(account.days)]
    rollbacks = [steps for day in days for steps in day["rollbacks"]]
    committed, read = (sum(day[name] for day in days) for name in ("committed", "read"))
    return {
        "records": training.num_records,
        "ranks": training.num_nodes * training.ranks_per_node,
        "shuffle": repr(training.blocks),
        "global_batch": training.global_batch,
        "max_rollback_steps": training.max_rollback,
        "steps_per_day": training.steps_per_day,
        "num_days": len(days),
        "epochs": account.epoch,
        "committed_records": committed,
        "read_per_committed": round(read / committed, 4),
        "crashes": len(rollbacks),
        "rollback_steps": {"most": max(rollbacks), "mean": round(float(np.mean(rollbacks)), 1)},
        "lost_share": round(sum(rollbacks) * training.global_batch / committed, 4),
        "rank_counts": sorted(account.rank_counts),
        "starts": sum(len(day["ranks"]) for day in days),
        "records_looked_for": account.num_traced,
        "days": {
            "healthy": [[min(day["healthy"]), max(day["healthy"])] for day in days],
            "ranks": [[min(day["ranks"]), max(day["ranks"])] for day in days],
            "read_per_committed": [round(day["read"] / day["committed"], 4) for day in days],
            "most_rollback": [max(day["rollbacks"], default=0) for day in days],
        },
    }


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    low, high = results["rank_counts"][0], results["rank_counts"][-1]
    rows = [
        ("records, ranks", f"{results['records']:,}, {results['ranks']:,}"),
        ("shuffle", f"`{results['shuffle']}`, a global batch of {results['global_batch']:,}"),
        ("days, epochs", f"{results['num_days']}, {results['epochs']} whole ones"),
        ("committed records", f"{results['committed_records']:,}"),
        ("crashes", f"{results['crashes']:,}"),
        (
            "ranks that train",
            f"{low:,} to {high:,}, {len(results['rank_counts'])} different numbers",
        ),
        ("records committed twice, or left out", "0"),
        ("records looked for, and at their place", f"{results['records_looked_for']:,}"),
        (
            "most steps lost by a crash",
            f"{results['rollback_steps']['most']:,} of {results['max_rollback_steps']:,}",
        ),
        ("steps that were trained again", f"{results['lost_share']:.2%}"),
        ("bytes read for each byte of a committed step", f"{results['read_per_committed']:.3f}"),
        (
            "the same of single days",
            "{:.3f} to {:.3f}".format(*_bounds(results["days"]["read_per_committed"])),
        ),
    ]
    head = [
        "# A year of 10^12 records on 10^4 ranks",
        "",
        "`python -m benchmarks.simulation`, about two minutes of one core. The chart is on",
        "[the page about scale](../../docs/scale.md).",
        "",
        "| | |",
        "|---|---|",
    ]
    return "\n".join([*head, *(f"| {name} | {value} |" for name, value in rows)]) + "\n"


def write(path: Path) -> str:
    """Write the table beside a JSON of results, and return it."""
    text = table(json.loads(path.read_text(encoding="utf-8")))
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    return text


def _bounds(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def main() -> None:
    """Simulate, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument(
        "--records", type=int, default=100, help="that are looked for in each epoch  [default: 100]"
    )
    parser.add_argument("--seed", type=int, default=YEAR.seed)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = results_of(simulate(replace(YEAR, seed=options.seed), options.days, options.records))
    path = options.results / "simulation.json"
    path.write_text(json.dumps(results) + "\n", encoding="utf-8")
    print(write(path))


if __name__ == "__main__":
    main()
