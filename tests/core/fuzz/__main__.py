"""Run the fuzzer: ``python -m tests.core.fuzz --seconds 60``; the status is 1 if anything was
found."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.core import programs
from tests.core.fuzz import run


def main() -> int:
    """Run the targets side by side and print what came of each, or one target on one input."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.core.fuzz", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument(
        "--target",
        action="append",
        choices=[*run.NAMES, run.PLANTED],
        help="may be given more than once",
    )
    parser.add_argument("--input", type=Path, help="run one target on this file alone")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument(
        "--width", type=int, default=os.cpu_count() or 1, help="how many run at a time"
    )
    arguments = parser.parse_args()
    names = tuple(arguments.target or run.NAMES)
    if arguments.input is not None:
        if len(names) != 1:
            parser.error("--input needs one --target")
        return run.repeat(names[0], arguments.input)
    outcomes = run.run(
        names,
        arguments.seconds,
        arguments.seed,
        programs.ROOT / "build" / "attack",
        arguments.width,
    )
    for name, outcome in outcomes.items():
        if outcome.finding:
            print(f"\n{name}: {outcome.finding}")
    print(
        f"{'target':<14}{'executions':>12}{'edges':>8}{'new':>7}{'findings':>10}  seed {arguments.seed}"
    )
    for name, outcome in outcomes.items():
        print(
            f"{name:<14}{outcome.executions:>12}{outcome.coverage:>8}{outcome.new:>7}{bool(outcome.finding):>10}"
        )
    return int(any(outcome.finding for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
