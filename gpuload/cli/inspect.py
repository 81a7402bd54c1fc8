"""``gpuload inspect PATH``: the contents of files, and the lines of Python that load them.

    gpuload inspect photos                     a folder of images
    gpuload inspect 'train-*.tfrecord'         files of one format, by wildcards
    gpuload inspect data.npy --record 17       with that record in place of the first one
    gpuload inspect photos --picture one.png   its image as a file, too

A sample of records is read, spread over all: their least and greatest values and sizes are shown,
and the fields of one record; an image as blocks, in colour on a terminal. `gpuload check` reads all
records.

Exit status 0, 1 if a record of the sample is damaged, 2 if the files cannot be opened.
"""

from __future__ import annotations

import functools
import itertools
import os
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import gpuload as gl
from gpuload.cli.base import PATH, Output, as_paths, verb
from gpuload.display.pictures import Pixels, png
from gpuload.errors import GpuloadError, MissingPackageError, RecordError, SpecError
from gpuload.images import head as heads
from gpuload.open import open_with_title
from gpuload.ops.value.decode import Decode, lossless_for
from gpuload.preview import write_file
from gpuload.redaction import message, printable
from gpuload.sources.base import Source
from gpuload.spec import Field
from gpuload.storage.files import total_bytes
from gpuload.storage.manifest import call_of

NUM_SAMPLES = 64  # records, spread over all
BLOCKS = (48, 20)  # columns and lines that an image takes at most
MOST_FILES = 16  # image files of a field that are looked at for bits and alpha
RESIZABLE = ("uint8", "float32")  # dtypes of images
MARGIN, INDENT = " " * 2, " " * 4  # of an image, and of lines of Python
RAMP = " .:-=+*#%@"  # from dark to bright, where there are no colours
MOST_LABELS, MOST_LABEL_BYTES = (
    10_000_000,
    8,
)  # labels that are all read, to count them, and the bytes of one
MOST_NAMES, MAX_VALUE = 6, 200  # names of classes in a line, characters of a value
ROW_CALLS = ("gl.npy", "gl.npz")  # that take rows as records, or files
BATCH_SIZE, SIDE = 64, 224  # of the lines of Python


@dataclass(frozen=True)
class FieldReport:
    """A field, and its values in the sample.

    Attributes:
        name, dtype, shape, axes, mark: as in ``gl.Field``; None stands for a length that varies.
        is_image_file: True if its values are encoded images.
        about: the values of the sample, in words.
        value: the value in the record that is shown.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    axes: str
    mark: str
    is_image_file: bool
    about: str
    value: str


@dataclass(frozen=True)
class Inspection:
    """The contents of files.

    Attributes:
        format: in words, ``"TFRecord in gzip"``.
        call: that opens such files, ``"gl.npy"``.
        num_records, num_files, num_bytes: of all files.
        how: the way in which records are read.
        fields: a report of each.
        num_samples: records that were read.
        damage: a line for each of them that is damaged.
        record, place: the record that is shown, and where it lies.
        code: lines of Python that load the records.
        picture_problem: why the image of the record cannot be shown, and the remedy; "" if it can,
            or if it has none.
    """

    format: str
    call: str
    num_records: int
    num_files: int
    num_bytes: int
    how: str
    fields: tuple[FieldReport, ...]
    num_samples: int
    damage: tuple[str, ...]
    record: int
    place: str
    code: str
    picture_problem: str


@verb
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
@click.option(
    "--record", type=int, default=0, show_default=True, metavar="N", help="The record to show."
)
@click.option(
    "--picture", type=PATH, metavar="FILE.png", help="Write the image of the record to a PNG file."
)
def command(output: Output, paths: tuple[str, ...], record: int, picture: str | None) -> int:
    """Show the contents of files, and the Python that loads them.

    PATH: files of one format, wildcards in quotes, or a folder of them. The output has format,
    records and fields, values of a sample of records, and one whole record. The exit status is 1 if
    a record of the sample is damaged.
    """
    if picture is not None and not picture.lower().endswith(".png"):
        raise SpecError(
            f"--picture {picture}",
            cause="a picture is written as PNG, and the name ends in something else",
            remedy=f"write --picture {os.path.splitext(picture)[0]}.png",
        )
    inspection, image = inspect(as_paths(paths), record)
    if picture is not None:
        if image is None:
            raise SpecError(
                f"--picture {picture}",
                cause=inspection.picture_problem
                or f"record {inspection.record} has no image that can be shown",
                remedy="leave --picture out",
            )
        write_file(picture, png(image))
    if not output.is_json:
        from rich.text import Text

        for line, style in _lines(inspection, image, output.console.width):
            output.draw(Text(message(line), style), is_wrapped=False)
        if image is not None:
            output.draw()
            for row in _colour_blocks(image, output.console) or _gray_blocks(image):
                output.draw(row, is_wrapped=False)
        if inspection.picture_problem:
            output.draw(f"\nNo picture: {inspection.picture_problem}")
        code = message(textwrap.indent(inspection.code, INDENT))
        output.draw(Text(f"\nIn Python:\n\n{code}"), is_wrapped=False)
    output.result(**asdict(inspection))
    return 1 if inspection.damage else 0


def inspect(paths: str | list[str], record: int = 0) -> tuple[Inspection, Pixels | None]:
    """Return the contents of files, and the image of a record, uint8 ``[height, width, 3]``, if it
    has one.

    Args:
        paths: as for ``gl.open``.
        record: the number of the record to show.

    Raises:
        GpuloadError: the files cannot be opened, or there is no such record.
    """
    source, title, call = open_with_title(paths)
    with source:
        if len(source):
            place = source.where(record)
        else:
            place = ""
        records, damage = _sample(source, record)
        files = set(source.files.paths)  # an archive has several fields
        fields = tuple(_report(source, field, records, record) for field in source.spec)
        image, picture_problem = None, ""
        if record in records:
            try:
                image = _image(source, record)
            except (MissingPackageError, RecordError) as error:
                picture_problem = f"{error.what}; {error.remedy}"
        inspection = Inspection(
            title, call, len(source), len(files), total_bytes(files), source.describe(), fields,
            len(records) + len(damage), damage, record, place, _code(source, paths, call, records), picture_problem,
        )  # fmt: skip
        return inspection, image


def _sample(source: Source, record: int) -> tuple[dict[int, dict[str, Any]], tuple[str, ...]]:
    """Return some records by their numbers, that one among them, and a line for each that is
    damaged."""
    numbers = (
        np.linspace(0, len(source) - 1, min(NUM_SAMPLES, len(source))).astype(np.int64).tolist()
    )
    records, damage = {}, []
    for number in sorted({*numbers, record} if len(source) else ()):
        try:
            records[number] = source[number]
            for field in source.spec:
                if field.encoded:
                    heads.read(records[number][field.name])
        except (RecordError, heads.HeadError) as error:
            # A record may be read and its image still be damaged: it counts as damaged alone.
            records.pop(number, None)
            if isinstance(error, GpuloadError):
                message = error.what
            else:
                message = f"{source.where(number)}: {error}"
            damage.append(f"record {number}: {message}")
    return records, tuple(damage)


def _about_head(file: heads.Head) -> Iterator[str]:
    """Give the words about an image that is not usual: its numbers, its alpha, its pages."""
    if file.dtype != "uint8":
        yield f"of {file.dtype}"
    if file.surplus:
        yield f"with {file.surplus}"
    if file.pages > 1:
        yield f"of {file.pages_in_words}"


def _report(
    source: Source, field: Field, records: dict[int, dict[str, Any]], record: int
) -> FieldReport:
    values = {number: fields[field.name] for number, fields in records.items()}
    about = _about(source, field, list(values.values())) if values else ""
    value = _value(field, values[record]) if record in values else ""
    dtype = field.text or str(field.dtype)
    return FieldReport(
        field.name, dtype, field.shape, field.axes, field.mark, field.encoded, about, value
    )


def _about(source: Source, field: Field, values: list[Any]) -> str:
    """Return a line about the values of the sample."""
    if field.encoded:
        return _about_files(values)
    arrays = [np.asarray(value) for value in values]
    parts = list[str]()
    if not field.uniform:
        parts += _about_shapes([array.shape for array in arrays])
    parts += _about_elements(field, [array for array in arrays if array.size])
    if source.classes and field == _label_field(source):
        names = ", ".join(source.classes[:MOST_NAMES])
        if len(source.classes) > MOST_NAMES:
            names += " ..."
        parts += [f"{len(source.classes)} classes: {names}", *_class_counts(source, field)]
    return "; ".join(parts)


def _about_files(values: list[Any]) -> str:
    """Return a line about encoded images: formats, pixels, bytes."""
    files = [heads.read(value) for value in values]
    kinds = Counter(heads.FORMATS[file.kind].title for file in files)
    heights, widths = _span([file.height for file in files]), _span([file.width for file in files])
    least, largest = _bytes(min(map(len, values))), _bytes(max(map(len, values)))
    sizes = least
    if largest != least:
        sizes = f"{least} to {largest}"
    unusual = dict.fromkeys(word for file in files for word in _about_head(file))
    return "; ".join([", ".join(kinds), f"{heights} x {widths} pixels", sizes, *unusual])


def _about_shapes(shapes: list[tuple[int, ...]]) -> Iterator[str]:
    """Give the lengths of values of varying shape; nothing if they have several ranks."""
    if len({len(shape) for shape in shapes}) == 1:
        lengths = " x ".join(_span(list(axis)) for axis in zip(*shapes, strict=True)) or "one"
        yield f"{lengths} value{'s' * (lengths not in ('1', 'one'))}"


def _about_elements(field: Field, arrays: list[NDArray[Any]]) -> Iterator[str]:
    """Give the range of numbers, or the lengths of texts; nothing without elements."""
    if not arrays:
        return
    if field.dtype.kind in "buif":
        yield _range(np.concatenate([array.ravel().astype(np.float64) for array in arrays]))
    elif field.dtype.kind in "OSU":
        lengths = sorted({len(text) for array in arrays for text in array.ravel().tolist()})
        unit = "byte" if field.text == "bytes" or field.dtype.kind == "S" else "character"
        yield f"{_span(lengths)} {unit}{'s' * (lengths != [1])}"


def _label_field(source: Source) -> Field | None:
    """Return the field of which ``source.classes`` are the names: ``label``, or the only one that
    may be it."""
    numbers = [field for field in source.spec if field.shape == () and field.dtype.kind in "iu"]
    labels = [field for field in numbers if field.name == "label"] or numbers
    return labels[0] if len(labels) == 1 else None


def _class_counts(source: Source, field: Field) -> list[str]:
    """Return how many records the classes have, in words; nothing where that would read much."""
    number, group = next(
        (n, group) for n, group in enumerate(source.groups) if field.name in group.spec.names
    )
    numbers = np.arange(len(source))
    leaves = [share.leaf for share in source.resolve(numbers[:1]) if share.group == number]
    is_small = group.layout is not None and group.layout.record_bytes <= MOST_LABEL_BYTES
    if not is_small or len(source) > MOST_LABELS or any(leaf.block_records for leaf in leaves):
        return []
    labels = np.asarray(source.read(numbers, fields=field.name)[field.name])
    labels = labels[(labels >= 0) & (labels < len(source.classes))].astype(np.int64)
    counts = np.bincount(labels, minlength=len(source.classes))
    return [f"{_span(counts.tolist())} records of each"]


def _range(values: NDArray[np.float64]) -> str:
    """Return the least and the greatest of some values, and how many are NaN."""
    numbers = values[~np.isnan(values)]
    if numbers.size:
        low, high = (f"{number:.6g}" for number in (numbers.min(), numbers.max()))
    else:
        low, high = ("NaN", "NaN")
    span = f"all {low}" if low == high else f"{low} to {high}"
    num_gaps = values.size - numbers.size
    if num_gaps and numbers.size:
        span += f"; {num_gaps:,} NaN"
    return span


def _span(numbers: list[int]) -> str:
    """Return the least and the greatest of some numbers."""
    low, high = min(numbers), max(numbers)
    if low == high:
        return f"{low}"
    return f"{low} to {high}"


def _value(field: Field, value: Any) -> str:
    """Return the value of a record as text."""
    if field.encoded:
        file = heads.read(value)
        pixels = f"{file.height} x {file.width} pixels, {file.channels} x {file.bits} bits"
        text = f"{heads.FORMATS[file.kind].title}, {pixels}"
        if file.orientation > 1:
            text += f", EXIF orientation {file.orientation}"
        return text
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "OSU":
        text = repr(array.item())
    else:
        text = np.array2string(array, precision=4, separator=", ", threshold=12, edgeitems=3)
    text = " ".join(text.split())
    if len(text) <= MAX_VALUE:
        return text
    return f"{text[:MAX_VALUE]} ..."


def _image_field(source: Source) -> Field | None:
    """Return the first field of images."""
    return next((field for field in source.spec if field.may_be_image), None)


def _image(source: Source, record: int) -> Pixels | None:
    """Return the image of a record, None if it has none; raises ``MissingPackageError`` if nothing
    decodes it."""
    field = _image_field(source)
    if field is None:
        return None
    # One image on the CPU: to start DALI or a GPU takes seconds, and some machines have neither.
    loader = gl.Loader(
        source.select([record]), 1, device="cpu", executor="array", output=field.name
    )
    cell = gl.preview(loader, records=1).rows[0][0]
    return cell.pictures[0][1]


def _decode_forms(field: Field, records: dict[int, dict[str, Any]], on: str) -> list[str]:
    """Return the op that decodes the files of a field and loses nothing of those that were read, as
    text.

    Behind it stands a cast, if images of its dtype cannot be resized.
    """
    files = [record[field.name] for record in itertools.islice(records.values(), MOST_FILES)]
    op, plain = lossless_for(files), Decode()
    words = []
    if op.mode != plain.mode:
        words.append(repr(op.mode))
    if op.dtype != plain.dtype or op.channels is not None:
        words.append(f"dtype={op.dtype!r}")
    if op.channels is not None:
        words.append(f"channels={op.channels}")
    forms = [f"gl.ops.Decode({', '.join(filter(None, [*words, on]))})"]
    if op.dtype not in RESIZABLE:
        forms.append(f"gl.ops.Cast({', '.join(filter(None, [repr('float32'), on]))})")
    return forms


def _code(
    source: Source, paths: str | list[str], call: str, records: dict[int, dict[str, Any]]
) -> str:
    """Return lines of Python that load the records, of which some were read."""
    names = source.spec.names
    files = [field for field in source.spec if field.encoded]
    ops = []
    for field in files:
        on = "" if field.name == "image" or len(names) == 1 else f"on={field.name!r}"
        ops += [
            *_decode_forms(field, records, on),
            f"gl.ops.RandomResizedCrop({', '.join(filter(None, [str(SIDE), str(SIDE), on]))})",
        ]
    lines = [f"source = gl.open({paths!r})"]
    if call in ROW_CALLS and call_of(paths) is None and len(set(source.files.paths)) > 1:
        targets = paths
        if isinstance(paths, str) and os.path.isdir(paths):
            targets = os.path.join(paths, "*")
        lines = [
            f"{lines[0]}  # a record is a row",
            f'# {call}({targets!r}, record="file"): a record is a file',
        ]
    if ops:
        lines += ["ops = [", *(f"    {op}," for op in ops), "]"]
    batch_size = max(1, min(BATCH_SIZE, len(source)))
    words = f"batch_size={batch_size}, shuffle=True"
    if ops:
        words += ", ops=ops"
    lines += [f"loader = gl.Loader(source, {words})", "for batch in loader:"]
    lines += [f"    batch[{name!r}]" for name in names[:MOST_NAMES]]
    return "\n".join(["import gpuload as gl", "", *lines])


def _lines(inspection: Inspection, image: Pixels | None, columns: int) -> Iterator[tuple[str, str]]:
    """Give the lines of the report, at most so many columns wide, each with its style."""
    wrap = functools.partial(_wrapped, columns)
    files = f"{inspection.num_files:,} file{'s' * (inspection.num_files != 1)}"
    yield from wrap(f"{inspection.format}, opened by {inspection.call}", style="bold")
    records = f"{inspection.num_records:,} record{'s' * (inspection.num_records != 1)}"
    yield from wrap(f"{records} in {files}, {_bytes(inspection.num_bytes)}")
    yield from wrap(f"read: {inspection.how}")
    yield "", ""
    width = min(max(len(field.name) for field in inspection.fields), columns // 3)
    for field in inspection.fields:
        lengths = ["?" if n is None else str(n) for n in field.shape or ()]
        if field.shape is None:
            shape = "of varying rank"
        elif lengths:
            shape = f"[{', '.join(lengths)}]"
        else:
            shape = ""
        if field.is_image_file:
            kind = "image files"
        else:
            kind = " ".join(filter(None, [field.dtype, shape, field.axes, field.mark]))
        yield from wrap(f"{field.name:{width}}  {kind}", width + 2, "cyan")
        if field.about:
            yield from wrap(f"{'':{width}}  {field.about}", width + 2)
    yield "", ""
    if inspection.num_samples < inspection.num_records:
        yield from wrap(f"Of {inspection.num_samples} records, spread over all.")
    for line in inspection.damage:
        yield from wrap(line, 2, "bold red")
    if inspection.damage:
        yield from wrap("gpuload check lists all damaged records.", style="bold red")
    if inspection.num_records:
        yield from wrap(f"Record {inspection.record}, {inspection.place}", 2, "bold")
        for field in inspection.fields:
            if field.value:
                yield from wrap(f"{field.name:{width}}  {field.value}", width + 2)


def _wrapped(columns: int, text: str, indent: int = 0, style: str = "") -> list[tuple[str, str]]:
    """Return a text as lines of so many columns, each with its style; a long word stays whole, to
    be copied."""
    text = printable(text)  # a name with line breaks makes no lines of its own
    lines = textwrap.wrap(
        text,
        columns,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [(line, style) for line in lines or [""]]


def _bytes(count: int) -> str:
    """Return a number of bytes in three digits."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < 4:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[unit]}"


def _thumbnail(image: Pixels, width: int, height: int) -> NDArray[np.int64]:
    """Return the means of the parts of an image, int64 ``[height, width, 3]``."""
    edges = [
        np.linspace(0, image.shape[axis], count + 1).astype(np.int64)
        for axis, count in enumerate((height, width))
    ]
    total = np.zeros((image.shape[0] + 1, image.shape[1] + 1, 3))
    total[1:, 1:] = image.astype(np.float64).cumsum(axis=0).cumsum(axis=1)
    # The sum of a part of any size is that of four corners of the running sums; no loop over parts.
    corners = total[edges[0]][:, edges[1]]
    sums = corners[1:, 1:] - corners[1:, :-1] - corners[:-1, 1:] + corners[:-1, :-1]
    areas = np.diff(edges[0])[:, None] * np.diff(edges[1])
    means: NDArray[np.int64] = (sums / np.maximum(areas, 1)[..., None]).astype(np.int64)
    return means


def _size(image: Pixels, across: int, down: int) -> tuple[int, int]:
    """Return how many parts an image has across and down: so many at most, in its proportions."""
    height, width = image.shape[:2]
    scale = min(across / width, down / height)
    return max(1, min(round(width * scale), width)), max(1, min(round(height * scale), height))


def _colour_blocks(image: Pixels, console: Any) -> list[Any]:
    """Return lines of half blocks, two pixels in each letter; none on a terminal without colours or
    these letters."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    has_colours = console.is_terminal and console.color_system and not console.no_color
    if not has_colours or not console.encoding.startswith("utf"):
        return []
    columns, lines = BLOCKS
    width, height = _size(image, min(columns, console.width - len(MARGIN)), 2 * lines)
    # A letter shows two lines of pixels; an odd one would be lost.
    if height < image.shape[0]:
        height += height % 2
    elif height > 1:
        height -= height % 2
    pixels = _thumbnail(image, width, height)
    rows = []
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=False):
        styles = (
            Style(color=Color.from_rgb(*a), bgcolor=Color.from_rgb(*b))
            for a, b in zip(upper.tolist(), lower.tolist(), strict=True)
        )
        rows.append(Text.assemble(MARGIN, *(("\u2580", style) for style in styles)))
    return rows


def _gray_blocks(image: Pixels) -> list[str]:
    """Return lines of letters from dark to bright; a letter is about twice as high as wide."""
    columns, lines = BLOCKS
    height, width = image.shape[:2]
    across = min(columns, round(2 * lines * width / max(height, 1)) or 1)
    down = max(1, min(lines, round(across * height / width / 2), height))
    gray = _thumbnail(image, min(across, width), down).mean(axis=2)
    low, high = gray.min(), gray.max()
    levels = ((gray - low) * (len(RAMP) - 1) / max(high - low, 1)).round().astype(np.int64)
    return [
        f"{MARGIN}{''.join(RAMP[level] for level in line)}".rstrip() for line in levels.tolist()
    ]
