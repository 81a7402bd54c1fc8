"""A training on ranks that are lost and added (`benchmarks/simulation.py`): each record of each
epoch once.

Here few records, of which every one is counted; the trillion is in the slow tests and in the
program.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from benchmarks import simulation
from benchmarks.simulation import Account, Attempt, Leg, Training
from gpuload.order import Plan, Position
from website import simulation_picture

FEW = Training(
    num_records=1009,
    num_nodes=6,
    ranks_per_node=2,
    blocks=gl.Blocks(4, 3, lanes=12, chunk=4),
    steps_per_day=60,
    checkpoint_steps=5,
    write_steps=1,
    restart_steps=2,
    crashes_per_day=3,
    rack_nodes=3,
    rack_share=0.3,
)


@pytest.mark.parametrize("seed", range(3))
def test_every_record_of_every_epoch_is_committed_once(seed: int) -> None:
    training = replace(FEW, seed=seed)
    epochs: dict[int, Counter[int]] = {}
    rank_counts = set()
    for leg in simulation.train(training, 6):
        rank_counts.add(leg.attempt.num_ranks)
        if leg.num_committed:
            for rank in range(leg.attempt.num_ranks):
                records, is_valid, _ = training.plan(leg.attempt.num_ranks, rank).span(
                    leg.begin, leg.num_committed
                )
                epochs.setdefault(leg.begin.epoch, Counter()).update(records[is_valid].tolist())

    assert len(rank_counts) > 3
    assert len(epochs) > 8
    last = epochs.pop(max(epochs))
    assert set(last.values()) == {1}
    assert list(epochs.values()) == [Counter(range(1009))] * len(epochs)


def test_the_account_is_that_of_its_legs() -> None:
    legs = list(simulation.train(FEW, 10))

    results = simulation.results_of(simulation.simulate(FEW, 10, records_per_epoch=20))

    batches = [min(48 * leg.num_committed, 1009 - leg.begin.offset) for leg in legs]
    lost = Counter[Attempt]()
    for leg in legs:
        lost[leg.attempt] += leg.num_steps - leg.num_committed
    assert results["committed_records"] == sum(batches)
    assert results["epochs"] == sum(batches) // 1009
    assert results["rollback_steps"]["most"] == max(lost.values()) <= 6
    assert results["crashes"] == sum(attempt.is_crash for attempt in lost)
    assert results["records_looked_for"] >= 20 * results["epochs"]


def test_ranks_are_lost_and_come_back() -> None:
    attempts = list(simulation.attempts(FEW, 30))

    assert all(48 % attempt.num_ranks == 0 for attempt in attempts)
    assert all(attempt.num_ranks <= attempt.num_healthy <= 12 for attempt in attempts)
    changes = {np.sign(b.num_healthy - a.num_healthy) for a, b in itertools.pairwise(attempts)}
    assert {-1, 1} <= changes
    assert {attempt.day for attempt in attempts} == set(range(30))


@pytest.mark.parametrize("num_ranks", [1, 3, 4, 6, 8, 12])
@pytest.mark.parametrize(("begin", "num_steps"), [(0, 3), (5, 10), (14, 8)])
def test_the_loaders_ask_for_no_more_than_is_counted(
    num_ranks: int, begin: int, num_steps: int
) -> None:
    """What `Plan.ahead` asks for, and each window of which a rank takes a record, whole."""
    num_windows = 0
    whole = FEW.plan(1)
    order_of = np.concatenate([whole.span(Position(), whole.end())[0]])
    window_of = np.empty(1009, np.int64)
    window_of[order_of] = FEW.lanes.places(np.arange(1009)) // 12
    for rank in range(num_ranks):
        plan = FEW.plan(num_ranks, rank)
        start = plan.at(Position(), begin)
        lanes = (
            FEW.lanes.places(plan_positions(num_ranks, rank, start, num_steps))
            // FEW.lanes.lane_length
        )
        parts = [plan.ahead(start, start.step, num_steps=num_steps), plan.span(start, num_steps)[0]]
        pairs = {
            (lane, int(window)) for lane, window in zip(lanes, window_of[parts[1]], strict=True)
        }
        num_windows += max(len(pairs), len(set(window_of[parts[0]].tolist())))
    attempt = Attempt(0, 12, num_ranks, num_steps, is_crash=True)
    leg = Leg(attempt, whole.at(Position(), begin), num_steps, 0)

    count = simulation.num_read(FEW, leg, steps_ahead=0)

    assert num_windows * 12 <= count <= 3 * num_windows * 12 + 24 * num_ranks


def plan_positions(num_ranks: int, rank: int, start: Position, num_steps: int) -> Any:
    return FEW.plan(num_ranks, rank, shuffle=False).span(start, num_steps)[0]


@pytest.mark.parametrize("length", [1, 2, 1009, 1_000_003])
def test_the_inverse_of_the_order_is_its_inverse(length: int) -> None:
    training = replace(FEW, num_records=length)
    positions = np.unique(np.linspace(0, length - 1, 500).astype(np.int64))
    plan = Plan(length, 1, training.blocks, training.seed)
    records = np.concatenate(
        [plan.span(plan.start_at(3, position))[0] for position in positions.tolist()]
    )

    assert np.array_equal(simulation.positions_of(training, records, 3), positions)


def gap(plan: Plan, epoch: int, offset: int, start_at: Any = Plan.start_at) -> Position:
    return start_at(plan, epoch, offset + (offset > 0))


def neighbour(plan: Plan, first: int, positions: Any = Plan._positions) -> Any:
    places, is_valid = positions(plan, first)
    return (places + (plan.shard_id == 2)) % plan.length, is_valid


def other_order(plan: Plan, positions: Any, epoch: int, records: Any = Plan._records) -> Any:
    return records(plan, positions, epoch + (plan.num_shards > 4))


@pytest.mark.parametrize(
    ("name", "fault"), [("start_at", gap), ("_positions", neighbour), ("_records", other_order)]
)
def test_a_fault_of_the_order_ends_the_simulation(
    name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, name, fault)

    with pytest.raises(AssertionError):
        simulation.simulate(FEW, 10, records_per_epoch=20)


def test_more_steps_than_stated_are_not_lost() -> None:
    account = Account(FEW, 0)

    with pytest.raises(AssertionError, match="than stated"):
        account.add_attempt(Attempt(0, 12, 12, 9, is_crash=True), 7)


@pytest.mark.slow
def test_a_few_days_of_a_trillion_records_on_ten_thousand_ranks(tmp_path: Path) -> None:
    results = simulation.results_of(simulation.simulate(simulation.YEAR, 4, records_per_epoch=30))

    (tmp_path / "simulation.json").write_text(json.dumps(results))
    assert "| days, epochs | 4, 3 whole ones |" in simulation.write(tmp_path / "simulation.json")
    assert results["rollback_steps"]["most"] <= 1980
    assert results["read_per_committed"] < 1.2


def test_the_results_hold_what_is_promised_and_the_picture_and_the_page_are_those_of_the_results() -> (
    None
):
    results = json.loads(simulation_picture.RESULTS.read_text(encoding="utf-8"))

    assert (results["records"], results["ranks"], results["num_days"]) == (10**12, 10**4, 365)
    assert results["rollback_steps"]["most"] <= results["max_rollback_steps"]
    assert results["read_per_committed"] < 1.2
    assert simulation_picture.RESULTS.with_suffix(".md").read_text(
        encoding="utf-8"
    ) == simulation.table(results)
    assert simulation_picture.FILE.read_text(encoding="utf-8") == simulation_picture.draw(
        results
    ), "draw it anew: python -m website.simulation_picture"
