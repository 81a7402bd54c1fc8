"""The format of a conversion: by its name or the suffix of the path, and the arguments of its writer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from gpuload.errors import SpecError, short_repr
from gpuload.formats import FORMATS
from gpuload.formats.base import Format, MakeWriter
from gpuload.formats.writing import Writer, check_fields
from gpuload.sources.base import Source
from gpuload.spec import Spec


def find_format(path: str, name: str | None) -> tuple[Format, MakeWriter]:
    """Return the format to write, that of a name or of the suffix of the path, and a function that
    makes its writer."""
    formats = {form.name: (form, form.writer) for form in FORMATS if form.writer is not None}
    if name is not None:
        if not isinstance(name, str) or name not in formats:
            raise SpecError(
                f"format = {name!r}"[:200],
                cause="it is not known",
                remedy=f"use one of {', '.join(formats)}",
            )
        return formats[name]
    suffixes = {suffix: entry for entry in formats.values() for suffix in entry[0].suffixes}
    suffix = os.path.splitext(path)[1].lower()
    if path.endswith(os.sep) or not suffix:
        return next(entry for entry in formats.values() if not entry[0].suffixes)
    if suffix in suffixes:
        return suffixes[suffix]
    if suffix in (".gz", ".zip", ".zlib"):
        cause = "compressed files are not written: records are read by their place"
        remedy = "leave that suffix out"
    else:
        cause = f"the suffix {suffix!r} names no format"
        remedy = (
            f"end it in {', '.join(suffixes)}; a folder of images has no suffix; "
            "or pass format=... (--format)"
        )
    raise SpecError(f"out = {path!r}", cause=cause, remedy=remedy)


def select_options(
    form: Format, source: Source, options: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Return the arguments for the writer of a format: lists of fields, each of which is held in
    one way.

    Raises:
        SpecError: the format does not take one that lists fields, or it is no list, or a field
            stands in two.
        UnknownFieldError: there is no such field.
    """
    for name, fields in options.items():
        _check_list(name, fields)
    if any(fields and name not in form.writer_options for name, fields in options.items()):
        formats = [entry for entry in FORMATS if set(options) & set(entry.writer_options)]
        arguments = ", ".join(f"{name}={list(fields)!r}" for name, fields in options.items())
        raise SpecError(
            f"{arguments} with format {form.name!r}",
            cause=f"they say how {' or '.join(entry.name for entry in formats)} holds a field",
            remedy=f"leave them out, or write {' or '.join(entry.suffixes[0] for entry in formats)}",
        )
    counts = Counter(field for fields in options.values() for field in dict.fromkeys(fields))
    for field in counts:
        source.spec[field]
    if twice := sorted(field for field, count in counts.items() if count > 1):
        raise SpecError(
            f"{twice} in both {' and '.join(f'{name}=' for name in options)}",
            cause="a field is held in one way",
            remedy="name it once",
        )
    return {name: fields for name, fields in options.items() if name in form.writer_options}


def _check_list(name: str, fields: Sequence[str]) -> None:
    """Raise ``SpecError`` if an argument is not a list of names of fields."""
    if isinstance(fields, (list, tuple)) and all(isinstance(field, str) for field in fields):
        return
    remedy = 'write ["image"], say, or leave it out'
    if isinstance(fields, str):
        remedy = f"write [{fields!r}]"
    raise SpecError(f"{name} = {short_repr(fields)}", cause="it is a list of fields", remedy=remedy)


def check_format(form: Format, writer: Writer, spec: Spec) -> None:
    """Raise ``SpecError`` if a format cannot hold one of the fields; names the call of a format
    that holds all."""
    try:
        check_fields(form.name, writer, spec)
    except SpecError as error:
        remedies = (error.remedy, *(entry.suggest(spec) for entry in FORMATS))
        error.remedy = "; ".join(filter(None, remedies))
        raise
