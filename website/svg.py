"""SVG as text: shapes in the colours of the page, in light and in dark.

A picture is text, so that a change of it can be read, and one that is out of date can be found by
comparing. Its colours follow ``prefers-color-scheme``, which for an image is that of the page
around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

STYLE = """
    text { font: 14px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #24292f }
    .small { font-size: 12px } .strong { font-weight: 600 } .quiet { fill: #59636e }
    .line { stroke: #8c959f; fill: none } .frame { stroke: #59636e; fill: none; stroke-width: 1.5 }
    .a { fill: #009485 } .b { fill: #d9822b } .c { fill: #8250df } .d { fill: #0969da } .rest { fill: #b4bcc4 }
    .on { fill: #ffffff } .arrow { stroke: #ffffff; fill: none; stroke-width: 1.5 }
    @media (prefers-color-scheme: dark) {
      text { fill: #dfe3ea } .quiet { fill: #a3adba } .line { stroke: #6b7685 } .frame { stroke: #a3adba }
      .a { fill: #2fb5a6 } .b { fill: #e59a4f } .c { fill: #b18cf2 } .d { fill: #58a6ff } .rest { fill: #596373 }
      .on { fill: #14171c } .arrow { stroke: #14171c }
    }
"""


def picture(width: int, height: int, parts: Iterable[str], *, title: str) -> str:
    """Return the text of an SVG file of ``width`` x ``height`` pixels; ``title`` is for those who
    hear it."""
    lines = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img">\n  <title>{escape(title)}</title>\n  <style>{STYLE}  </style>\n{lines}\n</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> str:
    """Return words whose line stands at ``y``; ``x`` is their begin, ``"middle"`` or ``"end"``."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, *, radius: float = 3) -> str:
    """Return a rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{kind}"/>'


def path(points: str, kind: str) -> str:
    """Return a path, of SVG's commands."""
    return f'<path d="{points}" class="{kind}"/>'
