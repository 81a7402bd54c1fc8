"""Tables of batches, of objects with fields, and of stats, for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from gpuload.display import markup, values
from gpuload.spec import Spec
from gpuload.stats import LOOP_TITLES, STAGE_TITLES, Stats

MOST_RECORDS, MOST_FIELDS = 6, 12  # of a batch
MOST_LINES = 64  # fields of a spec
MOST_NAME, MOST_NOTE = 200, 500  # characters


def batch_table(
    title: str,
    fields: Mapping[str, Any],
    spec: Spec | None,
    records: NDArray[Any],
    valid: NDArray[Any],
) -> str:
    """Return the first records of a batch as a table: a record a row, a field a column.

    Args:
        title: the words above the table.
        fields: its values by name, the records along the first axis.
        spec: of the fields, where it is known.
        records: which records these are.
        valid: False for each that is not to count.
    """
    columns = [
        (name, part, values.field_of(name, part, spec))
        for name, part in list(fields.items())[:MOST_FIELDS]
    ]
    rows = []
    for row, (record, is_valid) in enumerate(
        zip(records[:MOST_RECORDS].tolist(), valid.tolist(), strict=False)
    ):
        if is_valid:
            number = f"{record}"
        else:
            number = f"{record}, not valid"
        rows.append((number, *(values.cell(part, row, field) for _, part, field in columns)))
    heads = [
        f"{name[:MOST_NAME]}\n{values.field_text(part, field)}" for name, part, field in columns
    ]
    rest = [_rest(len(records) - len(rows), "record"), _rest(len(fields) - len(columns), "field")]
    notes = ", ".join(filter(None, rest))
    return markup.block(
        _paragraph(title), markup.table(("record", *heads), rows), _paragraph(notes, "notes")
    )


def spec_table(title: str, spec: Spec, notes: Mapping[str, str], ops: Iterable[str] = ()) -> str:
    """Return fields as a table with a title, a row for each field.

    Args:
        title: the object with these fields.
        spec: the fields.
        notes: more of it, by name.
        ops: that make the fields.
    """
    titles = ("field", "dtype", "shape", "axes", "is")
    rows = []
    for field in spec.fields[:MOST_LINES]:
        if field.encoded:
            dtype = "encoded image"
        else:
            dtype = field.text or str(field.dtype)
        if field.encoded:
            shape = ""
        elif field.shape is None:
            shape = "varies"
        else:
            shape = str(field.shape)
        rows.append(
            [
                markup.escape(text[:MOST_NAME])
                for text in (field.name, dtype, shape, field.axes, field.mark)
            ]
        )
    rest = _paragraph(_rest(len(spec) - len(rows), "field"), "notes")
    lines = markup.table(
        (),
        (
            (markup.escape(name), markup.escape(note[:MOST_NOTE]))
            for name, note in notes.items()
            if note
        ),
    )
    return markup.block(
        _paragraph(title),
        markup.table(titles, rows),
        rest,
        markup.numbered_list(op[:MOST_NOTE] for op in list(ops)[:MOST_LINES]),
        lines,
    )


def stats_table(stats: Stats) -> str:
    """Return the sentence about a loop, the time of each stage and of the loop, and the counters,
    as tables."""
    tables = {
        STAGE_TITLES: stats.stage_rows(),
        LOOP_TITLES: stats.loop_rows(),
        ("counter", "", "meaning"): stats.count_rows(),
    }
    parts = (
        markup.table(titles, (map(markup.escape, row) for row in rows))
        for titles, rows in tables.items()
        if rows
    )
    return markup.block(_paragraph(str(stats.bottleneck())), *parts)


def _paragraph(text: str, name: str = "") -> str:
    if text:
        return f'<p class="{name}">{markup.escape(text[:MOST_NOTE])}</p>'
    return ""


def _rest(count: int, noun: str) -> str:
    if count > 0:
        return f"{count} more {noun}{'s' * (count > 1)}"
    return ""
