"""Further fields: fields that later files of a source have, and its first file has not."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from gpuload.sources.classnames import shorten

log = logging.getLogger("gpuload")


def log_further_fields(
    call: str, first: str, names: Collection[str], later_fields: Mapping[str, Collection[str]]
) -> None:
    """Log a warning if a later file has fields that the records do not have; the first such file is
    named.

    Args:
        call: the reader, ``"gl.parquet"``.
        first: the path of the first file.
        names: of its fields, which are those of the records.
        later_fields: the names of the fields of other files, by their paths.
    """
    for path, fields in later_fields.items():
        further = [name for name in fields if name not in names]
        if further:
            log.warning(
                "%s: %s has %s, which the first file, %s, has not: the records have no fields that "
                "the first file lacks. fields=%s says that this is meant; to read them, open such "
                "files as a source of their own",
                *(call, path, shorten(further), first, list(names)),
            )
            return
