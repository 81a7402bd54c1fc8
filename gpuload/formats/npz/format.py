"""NPZ as a format: a ZIP archive of NPY files alone; `gl.check` reads an archive without rows as
one record."""

from __future__ import annotations

from gpuload import lazy, signalsafe
from gpuload.errors import FormatError
from gpuload.formats.base import Beginning, Format, Match, salvage_array_file
from gpuload.storage.archive import MAGIC, files_in, unpacking
from gpuload.storage.handles import open_binary

npz = lazy.function("gpuload.formats.npz.source", "npz")
writer = lazy.function("gpuload.formats.npz.writer", "writer")

EMPTY = b"PK\x05\x06"  # the first bytes of an archive without members


def _sniff(beginning: Beginning) -> Match | None:
    """Return a match for an archive that holds NPY files.

    Raises:
        FormatError: the archive is damaged, or holds something else.
    """
    if not beginning.head.startswith((MAGIC, EMPTY)):
        return None
    path, zipfile = beginning.path, signalsafe.import_package("zipfile")
    try:
        with open_binary(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        signalsafe.pass_on(error)
        raise FormatError(
            f"{path} is a damaged ZIP archive",
            cause=str(error),
            remedy="it was cut short: copy it again",
        ) from None
    foreign_names = [name for name in names if not name.endswith(".npy")]
    if foreign_names or not names:
        if foreign_names:
            content = f"it holds {foreign_names[0]!r}"
        else:
            content = "it holds nothing"
        raise FormatError(
            f"{path} is a ZIP archive and no NPZ",
            cause=f"an NPZ holds .npy files alone, and {content}",
            remedy=unpacking(path, names)
            + '; if the one file in it is a table: gl.csv(path, compression="zip")'
            * (len(files_in(names)) == 1),
        )
    return Match("NPZ", "gl.npz")


NPZ = Format(
    "npz",
    npz,
    _sniff,
    records={
        'gl.npz(paths, record="row")': "a row of the arrays of one of many NPZ files, whose names "
        "are "
        "the fields; or a whole file"
    },
    salvage=salvage_array_file(npz, MAGIC),
    suffixes=(".npz",),
    writer=writer,
)
