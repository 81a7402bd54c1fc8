"""Copies of deflated arrays that are read by rows: inflated once, one after the other, in files of
the cache folder.

Why      A row of a deflated array has no place in the archive: all before it would be inflated for
         each.
Layout   The elements of a field's arrays, in the order of the archives, each array from a multiple
         of ALIGN_BYTES on. The arrays of many small archives share a file, of about GROUP_BYTES;
         that of a large one has its own.
Names    A copy is named by the archives and the field (`storage/derivedfiles.py`): each field has
         copies of its own.
Bounds   A copy is made only if it fits into nine tenths of the free space; its size is known
         before.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from gpuload.errors import FileError, FormatError, RecordError
from gpuload.formats.npz.contents import Array, Contents
from gpuload.sources.leaf import Indices
from gpuload.storage.derivedfiles import FOLDER, folder, key_of
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files
from gpuload.storage.keptfile import KeptWriter, look_at
from gpuload.storage.unpack import FREE_PART, FileCopy, keep, stem

ALIGN_BYTES = 64
GROUP_BYTES = 1 << 28
COPY = 2  # counted up when copies are made in another way
log = logging.getLogger("gpuload")


def unpack_arrays(
    files: Files, fields: Sequence[tuple[str, Sequence[Array]]], storage: Storage
) -> tuple[Files, list[tuple[Indices, Indices]]]:
    """Return files that hold all arrays unpacked, with their places: the archives, and copies of
    deflated arrays.

    Args:
        files: the archives.
        fields: of each field its name, and its array in each archive.
        storage: of the archives.

    Returns:
        The files, and for each field two int64 ``[num_archives]``: the file of each array, and its
        first byte there.

    Raises:
        FormatError: a member is damaged.
        FileError: a file changed or cannot be read, or there is no place or no space for copies.
    """
    copies, locations, keys = list[FileCopy](), list[tuple[Indices, Indices]](), dict[int, str]()
    for name, arrays in fields:
        places = np.arange(len(files), dtype=np.int64)
        offsets = np.array([array.offset_bytes for array in arrays], np.int64)
        contents = Contents(storage, arrays, files.paths.__getitem__)
        for numbers in _groups(arrays):
            for number in numbers:
                # The key has a read of the file in it: once for all fields of an archive.
                if number not in keys:
                    keys[number] = key_of(files, number, "deflated rows", COPY)
            lengths = [arrays[number].header.data_bytes for number in numbers]
            begins = _begins(lengths)
            digest = hashlib.sha256(
                repr((name, [keys[number] for number in numbers])).encode(
                    "utf-8", "surrogateescape"
                )
            )
            num_bytes = begins[-1] + lengths[-1]
            places[numbers], offsets[numbers] = len(files) + len(copies), begins
            write = partial(_write, contents, files.paths[numbers[0]], numbers, num_bytes)
            copies.append(
                FileCopy(digest.hexdigest()[:32], stem(files.paths[numbers[0]]), num_bytes, write)
            )
        locations.append((places, offsets))
    if not copies:
        return files, locations
    copy_files, _ = look_at(keep(copies), 0, lambda path, size, head: None)
    log.info(
        "deflated arrays of %d archives are read from unpacked copies in %s", len(keys), folder()
    )
    seals = (None,) * len(files) + copy_files.seals
    return Files(
        (*files.paths, *copy_files.paths),
        np.concatenate([files.stamps, copy_files.stamps]),
        seals=seals,
    ), locations


def _groups(arrays: Sequence[Array]) -> Iterator[list[int]]:
    """Yield the numbers of the archives with deflated arrays in one copy."""
    group, total_bytes = list[int](), 0
    for number, array in enumerate(arrays):
        if array.is_stored:
            continue
        # A file for each array of thousands of archives would cost a map each; one for all would be
        # made by one thread.
        if group and total_bytes + array.header.data_bytes > GROUP_BYTES:
            yield group
            group, total_bytes = [], 0
        group.append(number)
        total_bytes += array.header.data_bytes
    if group:
        yield group


def _begins(lengths: Sequence[int]) -> list[int]:
    """Return where in a copy arrays of these lengths begin."""
    begins, begin = [], 0
    for length in lengths:
        begins.append(begin)
        begin += -(-length // ALIGN_BYTES) * ALIGN_BYTES
    return begins


def _write(
    contents: Contents,
    path: str,
    numbers: Sequence[int],
    num_bytes: int,
    to: KeptWriter,
    show: Callable[[int], None],
) -> None:
    """Write the elements of deflated arrays one after the other into a copy, each at a multiple of
    ``ALIGN_BYTES``.

    Args:
        contents: inflates the arrays.
        path: the first archive, for errors.
        numbers: the archives with arrays in the copy.
        num_bytes: the size of the copy.
        to: the copy.
        show: is told how many bytes are written.

    Raises:
        FileError: the disk has too little room.
        FormatError: an archive is damaged.
    """
    free = shutil.disk_usage(os.path.dirname(to.path)).free
    if num_bytes > FREE_PART * free:
        raise FileError(
            f"{path}{' and others' * (len(numbers) > 1)}: {num_bytes} bytes are needed in "
            f"{folder()} for unpacked rows",
            cause=f"the disk has {free} free, of which {FREE_PART:.0%} may be used",
            remedy=f"make room, set {FOLDER} to a folder on a disk with room, or write the arrays "
            "with numpy.savez, "
            "which leaves them as they are",
        )
    for number in numbers:
        to.align(ALIGN_BYTES)
        try:
            for piece in contents.data(number):
                to.write(piece)
                show(to.num_bytes)
        except RecordError as error:
            raise FormatError(error.what, cause=error.cause, remedy="copy the file again") from None
