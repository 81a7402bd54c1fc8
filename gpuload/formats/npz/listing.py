"""Manifests of archives: where the arrays of each lie, in arrays, so that no directory and no
header is read.

Layout   for array k of all archives the headers (`npy/headers.py`), with names that begin with its
         number, and COLUMNS, int64 ``[num_files, 8]``.
Bounds   a member lies inside its archive, and an array inside its member. The bytes there have a
         checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.formats.listing import ListedArray, read_arrays, to_arrays
from gpuload.formats.npy.headers import Headers
from gpuload.formats.npy.npyheader import Header
from gpuload.formats.npz.contents import Array
from gpuload.storage.archive import DEFLATE, STORE, ArchiveMember
from gpuload.storage.manifest import Manifest

SUFFIX = ".npy"
COLUMNS = (
    "method",
    "crc",
    "packed_bytes",
    "num_bytes",
    "header_offset",
    "begin",
    "header_crc",
    "has_suffix",
)
LIMITS = {"crc": 1 << 32, "header_crc": 1 << 32, "has_suffix": 2}
ARRAYS = (ListedArray("members", columns=COLUMNS, inside=("begin", "packed_bytes")),)


def to_manifest(
    names: Sequence[str], columns: Sequence[Sequence[Array]]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the values and arrays of a manifest.

    Args:
        names: of the arrays.
        columns: for each name the array of each archive.
    """
    heads, arrays = [], dict[str, NDArray[Any]]()
    for number, column in enumerate(columns):
        about, header_arrays = Headers.of([array.header for array in column]).to_manifest()
        heads.append(about["heads"])
        arrays.update({f"{number} {name}": array for name, array in header_arrays.items()})
        rows = [
            (*_numbers(array.member), array.begin, array.header_crc, _has_suffix(array))
            for array in column
        ]
        arrays.update(to_arrays(ARRAYS, {"members": rows}, f"{number} "))
    return {"names": list(names), "heads": heads}, arrays


def _numbers(member: ArchiveMember) -> tuple[int, ...]:
    return member.method, member.crc, member.packed_bytes, member.num_bytes, member.header_offset


def _has_suffix(array: Array) -> bool:
    return array.member.name.endswith(SUFFIX)


def from_manifest(listing: Manifest, fields: Sequence[str] | None) -> list[dict[str, Array]]:
    """Return the arrays of each archive by their names.

    Args:
        listing: the manifest.
        fields: the names that are wanted; None: all that it lists.

    Raises:
        FormatError: a member would end behind its archive, or an array behind its member.
        SpecError: an array is not listed.
    """
    names, heads = listing.about.get("names"), listing.about.get("heads")
    is_sound = (
        isinstance(names, list)
        and bool(names)
        and all(isinstance(name, str) and name for name in names)
    )
    if not is_sound or not isinstance(heads, list) or len(heads) != len(names or ()):
        raise listing.error("it holds no names of arrays")
    all_names = [str(name) for name in names or ()]
    missing = [name for name in fields or () if name not in all_names]
    if missing:
        raise SpecError(
            f"{listing.path} lists no array {missing[0]!r}",
            cause=f"it lists {all_names}",
            remedy="use one of these names, or index the archives with more fields",
        )
    archives = [dict[str, Array]() for _ in listing.files.paths]
    for name in fields or all_names:
        number = all_names.index(name)
        for archive, array in zip(
            archives, _column(listing, name, number, heads[number]), strict=True
        ):
            archive[name] = array
    return archives


def _column(listing: Manifest, name: str, number: int, heads: Any) -> list[Array]:
    """Return the array of one name of each archive."""
    members = read_arrays(listing, ARRAYS, prefix=f"{number} ")["members"]
    columns = dict(zip(COLUMNS, members.T, strict=True))
    for title, limit in LIMITS.items():
        if int(columns[title].max()) >= limit:
            raise listing.error(f"a number {title!r} of array {name!r} lies outside of its bounds")
    is_stored = columns["method"] == STORE
    if not (is_stored | (columns["method"] == DEFLATE)).all():
        raise listing.error(f"an array {name!r} is compressed in no way that is read")
    if bool((is_stored & (columns["packed_bytes"] != columns["num_bytes"])).any()):
        raise listing.error(f"an array {name!r} that is stored has two lengths")
    if bool((columns["header_offset"] > columns["begin"]).any()):
        raise listing.error(f"an array {name!r} would lie outside of its archive")
    headers = Headers.from_manifest(listing, f"{number} ", heads, columns["num_bytes"])
    arrays = []
    for file, numbers in enumerate(members.tolist()):
        method, crc, archive_bytes, size, place, begin, header_crc, suffix = numbers
        member = ArchiveMember(name + SUFFIX * suffix, 0, method, crc, archive_bytes, size, place)
        kind = headers.heads[int(headers.head_of[file])]
        offset = int(headers.offsets[file])
        header = Header(kind.dtype, kind.fortran, headers.shape(file), offset)
        arrays.append(Array(member, begin, header, header_crc))
    return arrays
