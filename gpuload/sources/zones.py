"""Zones: times with a time zone and times without one have no common meaning, and are not joined.

"UTC" and "UTC"        the same instants, under any zones that the files name
"UTC" and "local"      an error: the zone of the second ones is not known
""                     a format does not say it, as arrays of NumPy: is joined with both
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuload.errors import SpecError
from gpuload.spec import Field

WORDS = {"UTC": "with a time zone", "local": "without a time zone"}  # of a field's attribute `zone`


def check_zones(parts: Iterable[tuple[str, Field]]) -> None:
    """Check a field of several parts of a source.

    Args:
        parts: the title and the field of each of them.

    Raises:
        SpecError: one part has times with a time zone, and another one times without.
    """
    first: tuple[str, Field] | None = None
    for title, field in parts:
        if not field.zone:
            continue
        if first is None:
            first = (title, field)
        elif field.zone != first[1].zone:
            raise SpecError(
                f"{title} has {field}, {WORDS[field.zone]}, {first[0]} has it "
                f"{WORDS[first[1].zone]}",
                cause="times with a zone are instants; which instants the others are is not known",
                remedy="write those without a zone anew, with theirs, "
                "pyarrow.compute.assume_timezone(column, 'UTC'), say; or open the files without "
                "the column: fields=[...]",
            )
