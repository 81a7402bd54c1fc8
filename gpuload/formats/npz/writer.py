"""NPZ: a file is a ZIP archive with an array for each field; numpy.load reads it.

Each member is stored as it is, so that `gl.npz` reads records where they lie.

Source  APPNOTE.TXT of PKWARE for ZIP, by Python's zipfile
"""

from __future__ import annotations

from gpuload import signalsafe
from gpuload.formats.npy.writer import write_array
from gpuload.formats.npz.source import npz
from gpuload.formats.writing import Records, Refusal, Writer, differs, uniform_only
from gpuload.spec import Field, Spec

FIRST_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of ZIP: the same records give the same bytes


def _refusal(field: Field) -> Refusal | None:
    if not field.name.strip(". ") or set(field.name) & set("/\\:\0"):
        return (
            "the name of a field is the name of a file in the archive, and this is none",
            f"rename it: source.rename(**{{{field.name!r}: 'x'}})",
        )
    if any(0xD800 <= ord(char) < 0xE000 for char in field.name):
        return (
            "its name holds half of a surrogate pair, and an archive has names in UTF-8",
            "rename it: source.rename(...)",
        )
    return uniform_only(field, "an NPZ file")


def _write(path: str, records: Records) -> None:
    zipfile = signalsafe.import_package("zipfile")
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as archive:
        for field in records.spec:
            with archive.open(
                zipfile.ZipInfo(f"{field.name}.npy", FIRST_TIME), "w", force_zip64=True
            ) as file:
                write_array(file, records, field)


def _differs(path: str, records: Records) -> str:
    with npz(path) as back:
        return differs(back, records)


def _call(path: str, spec: Spec) -> str:
    return f"gl.npz({path!r})"


def writer() -> Writer:
    """Return the writer of NPZ files."""
    return Writer(_refusal, _write, _differs, _call)
