"""Preview: records before and behind ops, to be looked at: a page of HTML, or a picture.

    gl.preview(loader)                              in a notebook: the page
    gl.preview(loader, records=[3, 14], epochs=3).save("page.html")

Rows     are records: as the source has them (image files decoded), and behind all ops in the first
         epochs, with the draws of the ops for the record. Other fields are texts.
Pixels   of uint8 are shown as they are, and behind Normalize as they would be without it. Others
         are stretched, each image by itself, from its least value to its greatest, which is written
         below. Of other than 3 channels the first one is shown, of a volume the middle slice;
         labels of masks are colours. Small images are enlarged by a whole factor; of large ones
         each pixel is the mean of a square.
Boxes    and points that are marked (``source.mark``) are drawn into their image, a box with its
         label.
Pairs    MixUp and CutMix mix a record with its partner in the loader's order, and the page names
         that.
Formats  PNG (`preview.pictures`) and HTML with PNGs in it; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.batch import Batch
from gpuload.display import markup
from gpuload.display.pictures import Pixels, png
from gpuload.display.values import image_axes
from gpuload.errors import FileError, SpecError
from gpuload.graph.graph import Graph
from gpuload.loader import Loader
from gpuload.ops import Copy, Decode, Normalize
from gpuload.ops.base import is_random
from gpuload.order import check_count
from gpuload.preview.pictures import empty, grid, image_pixels, text_pixels, wrap
from gpuload.progress import Progress
from gpuload.sources.reading import record_numbers
from gpuload.spec import INSTANCES, NUMBERS, is_whole

MAX_TEXT = 200  # characters of a value beside a picture
TITLE_SCALE, LEAST_TITLE = (
    2,
    120,
)  # of letters above columns, in a picture, and pixels that they may take
TEXT_WIDTH = 320  # pixels of a cell without pictures, in a picture
MOST_WEIGHTS, LEAST_CLASSES = (
    4,
    8,
)  # a vector with no more numbers other than 0 is shown as these, if it is so long


@dataclass(frozen=True)
class Cell:
    """A record at one point of its way.

    Attributes:
        pictures: for each image its name, pixels ``[height, width, 3]``, and a note about it.
        texts: the other fields, a line each.
        draws: the draws of the ops for the record, a line for each op.
    """

    pictures: tuple[tuple[str, Pixels, str], ...]
    texts: tuple[str, ...]
    draws: tuple[str, ...] = ()

    def to_html(self) -> str:
        """Return the cell of a table."""
        parts = []
        for name, pixels, note in self.pictures:
            caption = markup.escape(f"{name}: {note}")
            parts.append(
                f"<figure>{markup.image(pixels, name)}<figcaption>{caption}</figcaption></figure>"
            )
        texts, draws = (
            "".join(f"{markup.escape(line)}<br>" for line in lines)
            for lines in (self.texts, self.draws)
        )
        return f'{"".join(parts)}<div>{texts}</div><div class="notes">{draws}</div>'

    def to_pixels(self) -> Pixels:
        """Return pictures and texts in one."""
        figures = [
            grid([[pixels], [text_pixels([f"{name}: {note}"], pixels.shape[1])]], gap=2)
            for name, pixels, note in self.pictures
        ]
        picture, width = empty(), TEXT_WIDTH
        if figures:
            picture = wrap(figures)
            width = picture.shape[1]
        lines = (*self.texts, *self.draws)
        return grid([[picture], [text_pixels(lines, max(picture.shape[1], width))]], gap=2)


@dataclass(frozen=True, repr=False)
class Preview:
    """Records before and behind ops; ``save`` writes it, and a notebook shows it.

    Attributes:
        titles: the titles of the columns.
        records: the record numbers, one a row.
        rows: for each record its cells, one a column.
        ops: the ops, a line each.
    """

    titles: tuple[str, ...]
    records: tuple[int, ...]
    rows: tuple[tuple[Cell, ...], ...]
    ops: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (``.html``), or the same without the list of ops as a picture (``.png``).

        Raises:
            SpecError: the name ends in something else.
            FileError: the file cannot be written; one of this name stays as it was.
        """
        suffix = check_page_name(path)
        if suffix == ".html":
            content = self.to_html().encode()
        else:
            content = png(self.to_pixels())
        write_file(path, content)

    def __repr__(self) -> str:
        return f"<gl.preview: records {list(self.records)}; {', '.join(self.titles)}; save(path) writes it>"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return self._table()

    def to_html(self) -> str:
        """Return the page."""
        return f'<!doctype html><meta charset="utf-8"><title>gpuload preview</title>{self._table()}'

    def to_pixels(self) -> Pixels:
        """Return the table as one picture, uint8 ``[height, width, 3]``: records from top to
        bottom."""
        cells = [[cell.to_pixels() for cell in row] for row in self.rows]
        numbers = [text_pixels([f"record {record}"], TEXT_WIDTH) for record in self.records]
        widths = [max(cell.shape[1] for cell in column) for column in zip(*cells, strict=True)]
        titles = [
            text_pixels([title], max(width, LEAST_TITLE), TITLE_SCALE)
            for title, width in zip(self.titles, widths, strict=True)
        ]
        rows = [[number, *row] for number, row in zip(numbers, cells, strict=True)]
        return grid([[empty(), *titles], *rows])

    def _table(self) -> str:
        rows = [
            (str(record), *(cell.to_html() for cell in row))
            for record, row in zip(self.records, self.rows, strict=True)
        ]
        return markup.block(
            markup.numbered_list(self.ops), markup.table(("record", *self.titles), rows)
        )


def preview(
    loader: Loader, records: int | Iterable[int] = 4, epochs: int | Iterable[int] = 2
) -> Preview:
    """Return records of a loader before and behind its ops, to be looked at.

    The array executor makes them on the CPU; the pixels of every other executor are equal, to the
    tolerance of the op. The loader's position stays.

    Args:
        loader: the loader with the ops.
        records: how many records from the first one on, or their numbers.
        epochs: how many epochs from the first one on, or their numbers. Without random ops one
            epoch is shown.

    Raises:
        SpecError: ``records`` or ``epochs`` are no numbers; or several epochs of a mix are asked
            for, which has other records in each.
        DeviceError: an op runs in DALI alone.
        RecordIndexError, RecordError: there is no such record, or it is damaged.
    """
    if not isinstance(loader, Loader):
        raise SpecError(
            f"gl.preview({type(loader).__name__})",
            cause="it shows what a loader's ops make of records",
            remedy="write gl.preview(gl.Loader(source, batch_size=1, ops=[...]))",
        )
    numbers = _numbers(records, "records", len(loader.source))
    loader.source.check_open()
    record_numbers(loader.source, numbers)
    draws_numbers = any(is_random(op) for op in loader.ops)
    epoch_numbers = _numbers(epochs, "epochs", None)
    titles = ["as stored", *(f"epoch {epoch}" for epoch in epoch_numbers)]
    if not draws_numbers:
        epoch_numbers, titles = [0], ["as stored", "behind the ops"]
    if loader.source.endless and any(epoch_numbers):
        raise SpecError(
            f"gl.preview of epochs {epoch_numbers} of {loader.source!r}",
            cause="a mix or a sample has other records in each epoch",
            remedy="pass epochs=1, or preview its parts",
        )
    arrays = loader.replace(
        device="cpu", executor="array", decode="auto", batch_size=1, last_batch="partial", shard_id=0, num_shards=1,
        on_error="raise", quarantine=None, drawn=True,
    )  # fmt: skip
    if not loader.port.graph.mixes:  # a record's values do not depend on the order then
        arrays = arrays.replace(shuffle=False)
    with (
        Progress("drawing") as progress,
        _decode_files(arrays.replace(ops=[], output=None)) as raw,
        _decode_files(arrays) as changed,
    ):
        count, total = itertools.count(1), len(numbers) * (1 + len(epoch_numbers))

        def cell(of: Loader, step: int, epoch: int, partners: str) -> Cell:
            result = _cell(of, of.batch_at(step, epoch), partners)
            progress.show(next(count), total, "records")
            return result

        columns = [[cell(raw, step, 0, "") for step in raw.steps_of(numbers)]]
        for epoch in epoch_numbers:
            cells = []
            for step in changed.steps_of(numbers, epoch):
                partners = ""
                if loader.port.graph.mixes:
                    partners = _partners(raw, step, epoch, loader.port.graph.group)
                cells.append(cell(changed, step, epoch, partners))
            columns.append(cells)
    return Preview(
        tuple(titles),
        tuple(numbers),
        tuple(zip(*columns, strict=True)),
        tuple(map(str, loader.ops)),
    )


def check_page_name(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a page, ``".html"`` or ``".png"``.

    Raises:
        SpecError: the name ends in something else.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix not in (".html", ".png"):
        raise SpecError(
            f"{os.fspath(path)!r} as the name of a preview",
            cause="a preview is a page of HTML, or a picture",
            remedy="end the name in .html or .png",
        )
    return suffix


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file as a whole: under another name first, so that no half-written file is left.

    Raises:
        FileError: the file cannot be written.
    """
    draft = f"{os.fspath(path)}.part"
    try:
        with open(draft, "wb") as file:
            file.write(content)
        os.replace(draft, path)
    except BaseException as error:  # also Ctrl-C
        with signalsafe.suppress(OSError):
            os.unlink(draft)
        if not isinstance(error, OSError):
            raise
        raise FileError(
            f"{os.fspath(path)} is not written",
            cause=error.strerror or str(error),
            remedy="check the folder, its permissions, and the space on the disk",
        ) from None


def _numbers(value: object, name: str, length: int | None) -> list[int]:
    """Return the numbers that ``records`` or ``epochs`` stands for; ``length`` is the number of
    records there are."""
    if (
        isinstance(value, (list, tuple, range, np.ndarray))
        and len(value)
        and all(map(is_whole, value))
    ):
        return [int(number) for number in value]
    count = check_count(name, value)  # type: ignore[arg-type]  # check_count refuses all but numbers
    return list(range(count if length is None else min(count, length)))


def _decode_files(loader: Loader) -> Loader:
    """Return the loader with an op behind its own that decodes the fields of image files."""
    files = [Decode(on=field.name) for field in loader.spec_out if field.encoded]
    if files:
        return loader.replace(ops=[*loader.ops, *files])
    return loader


def _partners(raw: Loader, step: int, epoch: int, group: int) -> str:
    """Return a line about the partners of the record at a step of an epoch, as ``order.Groups`` has
    them."""
    steps = [step ^ number for number in range(1, group) if step ^ number < len(raw)]
    numbers = [str(raw.batch_at(partner, epoch).records[0]) for partner in steps]
    if numbers:
        return f"partner: record{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
    return "no partner"


def _cell(loader: Loader, batch: Batch, note: str = "") -> Cell:
    """Return the cell of a batch of one record."""
    spec, values = loader.spec_out, {name: np.asarray(column[0]) for name, column in batch.items()}
    normalized = _normalized(loader.port.graph)
    pictures, texts = [], []
    for field in spec:
        value = values[field.name]
        # An image may have no masks of objects: only the shape of each mask counts.
        has_pixels = 0 not in value.shape[field.kind == INSTANCES :]
        if has_pixels and value.dtype.kind in NUMBERS and image_axes(value, field):
            pictures.append(
                (field.name, *image_pixels(spec, values, field, normalized.get(field.name)))
            )
        else:
            texts.append(f"{field.name}: {_text(values[field.name])[:MAX_TEXT]}")
    draws = [note] if note else []
    for label, draw in batch.drawn.items():
        values_text = ", ".join(f"{name} {_numbers_text(rows[0])}" for name, rows in draw.items())
        draws.append(f"{label}: {values_text}"[:MAX_TEXT])
    return Cell(tuple(pictures), tuple(texts), tuple(draws))


def _normalized(graph: Graph) -> dict[str, Normalize]:
    """Return by name the op that normalized bytes of a field."""
    ops: dict[str, Normalize] = {}
    specs = (graph.spec_in, *graph.specs)
    for op, names, before in zip(graph.ops, graph.targets, specs, strict=False):
        if isinstance(op, Copy):
            ops.update({copy: ops[name] for name in names if name in ops for copy in op.to})
        elif isinstance(op, Normalize):
            ops.update({name: op for name in names if before[name].dtype == np.uint8})
    return ops


def _text(value: NDArray[Any]) -> str:
    """Return the value of a field that is no image; of a soft label the classes that have a
    weight."""
    if value.ndim == 1 and value.dtype.kind == "f" and value.size >= LEAST_CLASSES:
        places = np.flatnonzero(value)
        if 0 < places.size <= MOST_WEIGHTS:
            weights = ", ".join(f"{value[place]:.4g} of {place}" for place in places.tolist())
            return f"{weights} ({value.size} classes)"
    if value.ndim == 0:
        return str(value[()])
    return _numbers_text(value)


def _numbers_text(value: NDArray[Any]) -> str:
    return " ".join(
        np.array2string(np.asarray(value), precision=4, separator=", ", threshold=40).split()
    )
