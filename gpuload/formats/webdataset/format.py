"""WebDataset as a format: the magic of tar archives; those of before 1988 have none, and are not
recognized."""

from __future__ import annotations

from gpuload import lazy
from gpuload.formats.base import Beginning, Format, Match

MAGIC, PLACE = b"ustar", 257  # in the first header, of ustar, GNU and PAX


def _sniff(beginning: Beginning) -> Match | None:
    if beginning.head[PLACE : PLACE + len(MAGIC)] != MAGIC:
        return None
    if beginning.compression:
        kind = f"WebDataset in {beginning.compression}"
    else:
        kind = "WebDataset"
    return Match(kind, "gl.webdataset")


webdataset = lazy.function("gpuload.formats.webdataset.source", "webdataset")
WEBDATASET = Format(
    "webdataset",
    webdataset,
    _sniff,
    records={
        'gl.webdataset("train-{000..099}.tar", ["jpg", "cls"])': "the members of one name in "
        "WebDataset "
        "archives, read at random; where they lie is found once, and kept; `.cls` of words are "
        "texts, "
        "or numbers with `classes=`; gz ([guide](guides/webdataset.md))"
    },
    compressions=("gzip",),
)
