"""The report of the demo: parts, facts, checks that must hold, the table of rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table


@dataclass(frozen=True)
class Rate:
    """Records a second of one part of the work, through gpuload and through tf.data.

    Attributes:
        work: the name of the work.
        table: of the benchmarks, which has the same work.
        gpuload: records per second.
        tf_data: records per second.
    """

    work: str
    table: str
    gpuload: float
    tf_data: float


@dataclass
class Report:
    """Prints the results of the demo's parts, and remembers which checks failed.

    Attributes:
        console: to print on.
        facts, failures: the observations, and those that are wrong.
        table: the rates.
        duration_s: of the demo.
    """

    console: Console = field(default_factory=lambda: Console(highlight=False))
    facts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    table: list[Rate] = field(default_factory=list)
    duration_s: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        rates = [asdict(rate) for rate in self.table]
        return {
            "facts": self.facts,
            "failures": self.failures,
            "rates": rates,
            "duration_s": self.duration_s,
        }

    def title(self, text: str, detail: str) -> None:
        """Print the heading."""
        self.console.print(
            Panel(f"[bold]{text}[/]\n[dim]{detail}[/]", box=box.ROUNDED, border_style="cyan")
        )

    @contextmanager
    def part(self, title: str) -> Iterator[Any]:
        """Print a part's heading and a status line while it works; yields ``say(text)``, which sets
        that line."""
        self.console.print(f"\n[bold cyan]{title}[/]")
        with self.console.status("[dim]working[/]", spinner="dots") as status:
            yield lambda text: status.update(f"[dim]{text}[/]")

    def fact(self, text: str) -> None:
        """Print something seen."""
        self.facts.append(text)
        self._line("[dim]·[/]", escape(text))

    def check(self, holds: bool, text: str, *, otherwise: str) -> None:
        """Print a check; if it does not hold, print and remember ``otherwise``, the failure in
        words."""
        if holds:
            self.facts.append(text)
            self._line("[green]✓[/]", escape(text))
        else:
            self._line("[bold red]✗[/]", escape(otherwise))
            self.failures.append(otherwise)

    def rates(self, rates: list[Rate], notes: Sequence[str]) -> None:
        """Print the table of rates, and notes below it."""
        self.table += rates
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
        table.add_column("work")
        for heading in ("gpuload", "tf.data", "ratio"):
            table.add_column(heading, justify="right")
        # In a narrow terminal the first column is folded: this name stays whole, to be found.
        table.add_column("same work", min_width=max((len(rate.table) for rate in rates), default=0))
        for rate in rates:
            ratio = rate.gpuload / rate.tf_data
            if ratio >= 1:
                colour = "green"
            else:
                colour = "yellow"
            numbers = f"{rate.gpuload:,.0f}", f"{rate.tf_data:,.0f}", f"[{colour}]{ratio:.1f} x[/]"
            table.add_row(rate.work, *numbers, rate.table)
        self.console.print(table)
        for note in notes:
            self.fact(note)

    def end(self, seconds: float) -> int:
        """Print the last line and return the exit status: 0 if every check held."""
        self.duration_s = seconds
        if self.failures:
            lines = "\n".join(f"[red]✗[/] {escape(text)}" for text in self.failures)
            self.console.print(
                Panel(f"[bold red]It did not all hold.[/]\n{lines}", border_style="red")
            )
            return 1
        self.console.print(
            Panel(f"[bold green]All of it held[/], in {seconds:.0f} seconds.", border_style="green")
        )
        return 0

    def _line(self, mark: str, text: str) -> None:
        """Print a line, so that its continuation stands under its first word."""
        line = Table.grid(padding=(0, 1))
        line.add_column(width=3, justify="right")
        line.add_column()
        line.add_row(mark, text)
        self.console.print(line)
