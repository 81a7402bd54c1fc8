"""Markup: pieces of HTML that need nothing from elsewhere. Texts are escaped; cells, parts and
blocks are HTML."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable

from gpuload.display.pictures import Pixels, png
from gpuload.redaction import printable

CELL_WIDTH = (
    656  # pixels: the widest picture and its margin; a browser draws wider ones over the next cell
)
# The colours are those of the page around it, so that dark pages show it, too. A class that is
# named three times goes before the rules of JupyterLab and Notebook 7 for any table, which align
# texts at the right.
STYLE = (
    f".gpuload.gpuload.gpuload :is(td,th){{vertical-align:top;padding:4px 8px;text-align:left;max-width:{CELL_WIDTH}px;"
    "overflow-wrap:break-word}.gpuload td{font:12px monospace}.gpuload th,.gpuload p{font:bold 13px sans-serif}"
    ".gpuload p{margin:4px 8px}.gpuload figure{display:inline-block;vertical-align:top;margin:0 6px 4px 0}"
    ".gpuload img{display:block;max-width:none;image-rendering:pixelated}"
    ".gpuload .notes{opacity:.6;font-weight:normal}"
)


def escape(text: str) -> str:
    r"""Return a text for HTML: escaped, and ``\udc80`` in place of a byte that is no UTF-8, in the
    name of a file.

    Characters that steer a terminal are written as in ``repr``, except line breaks, which do
    nothing in HTML.
    """
    return html.escape(printable(text, lines=True))


def image(pixels: Pixels, label: str) -> str:
    """Return a picture inside the page, uint8 ``[height, width, 3]``."""
    data = base64.b64encode(png(pixels)).decode("ascii")
    return f'<img alt="{escape(label)}" src="data:image/png;base64,{data}">'


def lines(texts: Iterable[str]) -> str:
    """Return texts below each other."""
    return "<br>".join(map(escape, texts))


def numbered_list(texts: Iterable[str]) -> str:
    """Return texts as a list with numbers; nothing where there are none."""
    items = "".join(f"<li><code>{escape(text)}</code></li>" for text in texts)
    return f"<ol>{items}</ol>" if items else ""


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of cells below titles that are texts of one or more lines, where there are
    any."""
    head = "".join(f"<th>{lines(title.splitlines())}</th>" for title in titles)
    parts = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{part}</tr>' for part in filter(None, [head, *parts]))}</table>"


def block(*parts: str) -> str:
    """Return parts as one block with its style."""
    return f'<style>{STYLE}</style><div class="gpuload">{"".join(parts)}</div>'
