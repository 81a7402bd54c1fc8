"""The picture of a simulated year, from ``benchmarks/results/simulation.json``.

``python -m website.simulation_picture`` writes ``docs/assets/simulation.svg``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from website import svg

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "simulation.json"
FILE = ROOT / "docs" / "assets" / "simulation.svg"
WIDTH, LEFT, RIGHT, TOP, PANEL, ROW = 720, 64, 16, 92, 110, 168  # pixels


class Panel(NamedTuple):
    """Where a panel stands, and which values are at its bottom and top."""

    y: float
    low: float
    high: float
    num_days: int

    def at(self, day: float, value: float) -> tuple[float, float]:
        """Return the point of a value."""
        x = LEFT + day / self.num_days * (WIDTH - LEFT - RIGHT)
        return round(x, 1), round(self.y + PANEL * (self.high - value) / (self.high - self.low), 1)

    def area(self, lows: Sequence[float], highs: Sequence[float], kind: str) -> str:
        """Return the area between two values of each day."""
        x, y = self.at(0, highs[0])
        there = [self.at(day + 1, value) for day, value in enumerate(highs)]
        back = [self.at(day, value) for day, value in enumerate(lows)][::-1]
        steps = "".join(f"V{y:g}H{x:g}" for x, y in there + back)
        return svg.path(f"M{x:g} {y:g}{steps}Z", kind)

    def rule(self, value: float, words: str, kind: str = "line") -> list[str]:
        """Return a line at a value, with what it is on its left."""
        x, y = self.at(0, value)
        return [
            svg.path(f"M{x:g} {y:g} H{WIDTH - RIGHT}", kind),
            svg.text(LEFT - 6, y + 4, words, "small quiet", anchor="end"),
        ]


def draw(results: dict[str, Any]) -> str:
    """Return the picture."""
    days, num_days = results["days"], results["num_days"]
    zeros, ones = [0] * num_days, [1] * num_days
    parts = [
        svg.text(16, 28, f"A year of {results['records']:,} records on {results['ranks']:,} ranks", "strong"),
        svg.text(
            16, 50,
            f"{results['epochs']} epochs, {results['crashes']:,} crashes; each record of each epoch once, "
            "no record twice, none left out",
            "small quiet",
        ),
    ]  # fmt: skip
    ranks = Panel(TOP, 9000, 10_000, num_days)
    parts += [
        svg.text(
            16,
            TOP - 14,
            "Ranks, the least of a day: that could train (grey), and that trained (green)",
            "small",
        ),
        ranks.area([9000] * num_days, [low for low, _ in days["healthy"]], "rest"),
        ranks.area([9000] * num_days, [low for low, _ in days["ranks"]], "a"),
        *ranks.rule(10_000, "10,000"),
        *ranks.rule(9000, "9,000"),
    ]
    most = results["max_rollback_steps"]
    rollback = Panel(TOP + ROW, 0, most, num_days)
    parts += [
        svg.text(
            16,
            TOP + ROW - 14,
            "Steps lost by the worst crash of a day, and the stated limit",
            "small",
        ),
        rollback.area(zeros, days["most_rollback"], "b"),
        *rollback.rule(most, f"{most:,}", "frame"),
        *rollback.rule(0, "0"),
    ]
    read = Panel(TOP + 2 * ROW, 1, 1.4, num_days)
    mean = results["read_per_committed"]
    parts += [
        svg.text(
            16, TOP + 2 * ROW - 14,
            f"Bytes read for each byte that was trained on, day by day; {mean:.3f} in the year, and the limit of 1.2",
            "small",
        ),
        read.area(ones, days["read_per_committed"], "d"),
        *read.rule(1.2, "1.2", "frame"),
        *read.rule(1, "1.0"),
        *(
            svg.text(read.at(day, 1)[0], TOP + 2 * ROW + PANEL + 18, f"day {day}", "small quiet", anchor="middle")
            for day in range(60, num_days, 60)
        ),
    ]  # fmt: skip
    title = f"{results['crashes']} crashes in a year: each loses at most {most} steps, and reading grows to {mean:.2f}"
    return svg.picture(WIDTH, TOP + 2 * ROW + PANEL + 30, parts, title=title)


if __name__ == "__main__":
    FILE.write_text(draw(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
