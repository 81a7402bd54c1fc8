"""State: where a run is, as a small JSON, and whether a saved one belongs to this loader.

A state names what was *delivered*, not what was read ahead, so a run that was killed goes on with the next batch. It
holds a position in the global order, so it fits any number of shards and any batch size; everything else that decides
what a batch holds must be the same, and is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuload.errors import StateError
from gpuload.order import Plan, Position

VERSION = 1
IDENTITY = {
    "source": "the source's files, lengths or fields",
    "records": "the number of records",
    "seed": "the seed",
    "shuffle": "the kind of shuffle",
    "ops": "the ops",
}


def identity(fingerprint: str, ops: tuple[Any, ...], plan: Plan) -> dict[str, Any]:
    """Return what must be the same for a state to be taken up again."""
    return {
        "source": fingerprint,
        "records": plan.length,
        "seed": plan.seed,
        "shuffle": repr(plan.shuffle),
        "ops": [repr(op) for op in ops],
    }


def save(plan: Plan, position: Position, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state in which a position is the next to be delivered; the end of an epoch is the next one's start."""
    if position.step >= plan.end(position):
        position = Position(position.epoch + 1)
    return {
        "version": VERSION,
        "epoch": position.epoch,
        "step": position.step,
        "position": position.offset,
        **known,
    }


def load(state: object, plan: Plan, known: Mapping[str, Any]) -> Position:
    """Return where a state goes on under this plan.

    Raises:
        StateError: it is no state, of another version, or of other data, seed or ops; says what differs.
    """
    given = _of_this_version(state)
    differing = [name for name in IDENTITY if given.get(name) != known[name]]
    if differing:
        lines = "; ".join(f"{IDENTITY[name]}: saved {given.get(name)!r}, here {known[name]!r}" for name in differing)
        raise StateError(
            "the state belongs to another run",
            cause=lines,
            remedy="load it into a loader of the same data, ops, shuffle and seed; batch size and shards may differ",
        )
    return plan.start_at(_count(given, "epoch", 2**64 - 1), _count(given, "position", plan.length))


def _of_this_version(state: object) -> Mapping[str, Any]:
    if isinstance(state, Mapping) and state.get("version") == VERSION:
        return state
    raise StateError(
        f"no state of this version: {state.get('version') if isinstance(state, Mapping) else type(state).__name__!r}",
        cause=f"this is version {VERSION}, as loader.state_dict() returns it",
        remedy="pass what state_dict() returned, whole",
    )


def _count(state: Mapping[str, Any], name: str, most: int) -> int:
    value = state.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise StateError(
        f"{name} = {value!r}",
        cause=f"it is a whole number from 0 to {most}",
        remedy="pass what state_dict() returned, unchanged",
    )
