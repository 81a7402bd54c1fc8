"""Preview: what ops make of records, to be looked at: a page of HTML, or a picture.

    gl.preview(loader)                              in a notebook: the page
    gl.preview(loader, records=[3, 14], epochs=3).save("page.html")

Rows     are records: as the source has them (image files decoded), and behind all ops in the first epochs.
Pixels   of uint8 are shown as they are. Others are stretched, each image by itself, from its least value to its
         greatest, which the page says. Of other than 3 channels the first one is shown; labels of masks are colours.
Boxes    and points that are marked (``source.mark``) are drawn into their image.
Formats  PNG (https://www.w3.org/TR/png/) and HTML with PNGs in it; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import base64
import html
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.loader import Loader
from gpuload.ops import Decode, boxes, follow, images
from gpuload.order import check_count
from gpuload.sources.base import Source
from gpuload.spec import MASK, Field, Spec, is_whole

Pixels = NDArray[np.uint8]
LEAST_SIDE, LARGEST_SIDE, GAP = 160, 640, 6  # pixels of a picture on the page, and between pictures
MAX_TEXT = 200  # characters of a value beside a picture
BOX_COLOUR, POINT_COLOUR = (255, 64, 32), (32, 224, 255)
LABEL_STEP = 0.618033988749895  # of the hue from one label of a mask to the next


@dataclass(frozen=True)
class Cell:
    """A record at one point of its way.

    Attributes:
        pictures: for each image its name, pixels ``[height, width, 3]``, and what is to say of it.
        texts: the other fields, a line each.
    """

    pictures: tuple[tuple[str, Pixels, str], ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Preview:
    """Records before and behind ops; ``save`` writes it, and a notebook shows it.

    Attributes:
        titles: of the columns.
        records: the record numbers, one a row.
        rows: for each record its cells, one a column.
        ops: the ops, a line each.
    """

    titles: tuple[str, ...]
    records: tuple[int, ...]
    rows: tuple[tuple[Cell, ...], ...]
    ops: tuple[str, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (``.html``), or the pictures alone (``.png``).

        Raises:
            SpecError: the name ends in something else.
        """
        suffix = PurePath(path).suffix.lower()
        if suffix not in (".html", ".png"):
            raise SpecError(
                f"preview.save({os.fspath(path)!r})",
                cause="a preview is a page of HTML, or a picture",
                remedy='write preview.save("page.html"), or "page.png" for the pictures alone',
            )
        content = self.to_html().encode() if suffix == ".html" else png(self.to_pixels())
        with open(path, "wb") as file:
            file.write(content)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self._table()

    def to_html(self) -> str:
        """Return the page."""
        return f'<!doctype html><meta charset="utf-8"><title>gpuload preview</title>{self._table()}'

    def to_pixels(self) -> Pixels:
        """Return all pictures in one, uint8 ``[height, width, 3]``: records from top to bottom."""
        return _stack([_stack([_cell_pixels(cell) for cell in row], axis=1) for row in self.rows], axis=0)

    def _table(self) -> str:
        style = (
            "<style>.gpuload td{vertical-align:top;padding:4px;font:12px monospace;text-align:left}"
            ".gpuload img{display:block;image-rendering:pixelated}.gpuload th{font:bold 13px sans-serif}</style>"
        )
        ops = "".join(f"<li><code>{html.escape(op)}</code></li>" for op in self.ops)
        head = "".join(f"<th>{html.escape(title)}</th>" for title in ("record", *self.titles))
        lines = [
            f"<tr><td>{record}</td>{''.join(map(_cell_html, row))}</tr>"
            for record, row in zip(self.records, self.rows, strict=True)
        ]
        return f'{style}<div class="gpuload"><ol>{ops}</ol><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def preview(loader: Loader, records: int | Iterable[int] = 4, epochs: int | Iterable[int] = 2) -> Preview:
    """Return records of a loader before and behind its ops, to be looked at.

    They are made by the array executor on the CPU, whose pixels are those of every executor, to the tolerance of the
    op. The loader does not move.

    Args:
        loader: with the ops.
        records: how many from the first one on, or the numbers of the records.
        epochs: of how many epochs the draws are shown, or the numbers of the epochs. Without random ops it is one.

    Raises:
        SpecError: the loader has no field of images, or these are no numbers.
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
    is_random = any(op.is_random for op in loader.ops)
    epoch_numbers = _numbers(epochs, "epochs", None) if is_random else [0]
    loader = loader.replace(device="cpu", executor="array", shard_id=0, num_shards=1)
    spec_before, before = _read_pixels(loader.replace(ops=[], output=None), 0, numbers)
    columns = [(spec_before, before)]
    columns += [_read_pixels(loader, epoch, numbers) for epoch in epoch_numbers]
    rows = tuple(tuple(_cell(spec, values, row) for spec, values in columns) for row in range(len(numbers)))
    if not any(cell.pictures for row in rows for cell in row):
        raise SpecError(
            f"gl.preview of {', '.join(map(str, loader.source.spec))}",
            cause="none of the fields holds images: encoded files, or numbers along height, width and channels",
            remedy="mark encoded images, source.mark(image='encoded'), or reshape the field with gl.ops.Reshape",
        )
    titles = ("as stored", *(f"epoch {epoch}" if is_random else "behind the ops" for epoch in epoch_numbers))
    return Preview(titles, tuple(numbers), rows, tuple(map(str, loader.ops)))


def _numbers(value: object, name: str, length: int | None) -> list[int]:
    """Return the numbers that ``records`` or ``epochs`` stands for; ``length`` is how many there are."""
    if isinstance(value, (list, tuple, range, np.ndarray)) and len(value) and all(map(is_whole, value)):
        return [int(number) for number in value]
    count = check_count(name, value)  # type: ignore[arg-type]  # which refuses what is no number
    return list(range(count if length is None else min(count, length)))


def _read_pixels(loader: Loader, epoch: int, numbers: Sequence[int]) -> tuple[Spec, dict[str, Any]]:
    """Return records behind the ops of a loader, image files decoded, and their spec."""
    files = [field.name for field in loader.spec_out if field.encoded]
    if files:
        loader = loader.replace(ops=[*loader.ops, *(Decode(on=name) for name in files)])
    source: Source = loader.to_source(epoch=epoch)
    return source.spec, source.read(list(numbers))


def _cell(spec: Spec, values: dict[str, Any], row: int) -> Cell:
    pictures, texts = [], []
    image = follow.image_name(spec)
    for field in spec:
        value = np.asarray(values[field.name][row])
        if images.may_be_image(field) and not field.encoded:
            pixels, scale, note = _pixels(field, value)
            if field.name == image:
                _draw_annotations(pixels, spec, values, row, scale)
            pictures.append((field.name, pixels, note))
        else:
            text = np.array2string(value, precision=4, separator=", ", threshold=40)
            texts.append(f"{field.name}: {text[:MAX_TEXT]}")
    return Cell(tuple(pictures), tuple(texts))


def _pixels(field: Field, value: NDArray[Any]) -> tuple[Pixels, float, str]:
    """Return an image as it is shown, its scale, and what is to say of it."""
    image = np.moveaxis(value, 0, -1) if images.channels_first(field) else value
    note = f"{value.dtype} {' x '.join(map(str, value.shape))}"
    if field.kind == MASK:
        rgb = _label_colours(image[..., 0])
        labels = np.unique(image[..., 0])
        note += f", labels {', '.join(map(str, labels[:8].tolist()))}{' ...' if labels.size > 8 else ''}"
    else:
        rgb = image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)
        if rgb.dtype != np.uint8:
            low, high = float(np.nanmin(rgb)), float(np.nanmax(rgb))
            rgb = np.nan_to_num((rgb.astype(np.float64) - low) / max(high - low, 1e-12)) * 255
            note += f", {low:.4g} to {high:.4g}"
    height, width = rgb.shape[:2]
    times = max(1, -(-LEAST_SIDE // max(height, width, 1)))
    step = max(1, -(-max(height, width) // LARGEST_SIDE))
    pixels = np.ascontiguousarray(rgb[::step, ::step].astype(np.uint8).repeat(times, 0).repeat(times, 1))
    return pixels, times / step, note


def _label_colours(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return a colour for each label of a mask, black for 0, float64 ``[height, width, 3]``."""
    hue = (labels.astype(np.float64)[..., None] * LABEL_STEP + (0, 1 / 3, 2 / 3)) % 1
    colours = 255 * (0.5 + 0.5 * np.cos(2 * np.pi * hue))
    return np.where(labels[..., None] == 0, 0, colours)


def _draw_annotations(pixels: Pixels, spec: Spec, values: dict[str, Any], row: int, scale: float) -> None:
    """Draw the marked boxes and points of a record into its image, which was scaled."""
    size = np.array([pixels.shape[:2]]) / scale
    for field in spec:
        numbers = np.asarray(values[field.name][row])
        if not (field.holds_boxes or field.holds_points) or numbers.ndim < 1:
            continue
        numbers = numbers.reshape(-1, numbers.shape[-1])
        sizes = np.broadcast_to(np.rint(size).astype(np.int32), (len(numbers), 2))
        if field.holds_boxes:
            for corners in boxes.to_corners(numbers, field.kind, sizes) * scale:
                _draw_box(pixels, corners)
        else:
            for x, y in boxes.to_pixels(numbers, field.kind, sizes) * scale:
                if np.isfinite([x, y]).all():
                    _fill(pixels, x - 2, y - 2, x + 3, y + 3, POINT_COLOUR)


def _draw_box(pixels: Pixels, corners: NDArray[np.float64]) -> None:
    """Draw the outline of a box, two pixels wide, inside of it."""
    if not np.isfinite(corners).all():
        return
    left, top, right, bottom = corners
    for area in (
        (left, top, right, top + 2), (left, bottom - 2, right, bottom),
        (left, top, left + 2, bottom), (right - 2, top, right, bottom),
    ):  # fmt: skip
        _fill(pixels, *area, BOX_COLOUR)


def _fill(pixels: Pixels, left: float, top: float, right: float, bottom: float, colour: tuple[int, int, int]) -> None:
    x, y, end_x, end_y = (max(0, round(float(side))) for side in (left, top, right, bottom))
    pixels[y:end_y, x:end_x] = colour


def _cell_html(cell: Cell) -> str:
    parts = []
    for name, pixels, note in cell.pictures:
        data = base64.b64encode(png(pixels)).decode("ascii")
        parts.append(
            f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">{html.escape(name)}: {note}<br>'
        )
    parts += [f"{html.escape(text)}<br>" for text in cell.texts]
    return f"<td>{''.join(parts)}</td>"


def _cell_pixels(cell: Cell) -> Pixels:
    return _stack([pixels for _, pixels, _ in cell.pictures] or [np.full((1, 1, 3), 255, np.uint8)], axis=1)


def _stack(pictures: Sequence[Pixels], axis: int) -> Pixels:
    """Return pictures beside (axis 1) or below (axis 0) one another, with white around them."""
    across = 1 - axis
    side = max(picture.shape[across] for picture in pictures) + GAP
    framed = []
    for picture in pictures:
        pads = [(0, 0), (0, 0), (0, 0)]
        pads[across], pads[axis] = (0, side - picture.shape[across]), (0, GAP)
        framed.append(np.pad(picture, pads, constant_values=255))
    return np.concatenate(framed, axis=axis)


def png(pixels: Pixels) -> bytes:
    """Return pixels, uint8 ``[height, width, 3]``, as a PNG file."""
    height, width = pixels.shape[:2]
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter, 0 for none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
