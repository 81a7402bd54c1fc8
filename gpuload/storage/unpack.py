"""Unpacked copies: compressed files, unpacked once into the cache folder, so that records have a
place in a file.

    originals = expand("train-*.gz")
    files, heads = keptfile.look_at(unpack_files(originals), head_bytes, use)   copies, and plain files
    files = with_names(files, originals)                                        for messages and fingerprints

Formats  gzip and zlib, with all checks of `inflate.py`. A copy is kept when the whole file passed
         them.
Bounds   Memory: a few MiB a thread. Disk: the limit of `inflate.py`, and FREE_PART of the free
         space; a file that needs more is refused, and its unfinished copy is removed.
Where    `derivedfiles.py`: ``GPULOAD_CACHE``. A file that changed is unpacked anew; old copies may
         be removed.
Trust    `keptfile.py`: a copy has checksums of its own, and one that is damaged is made anew.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpuload import signalsafe
from gpuload.errors import FileError, FormatError, GpuloadError, SpecError
from gpuload.progress import Progress
from gpuload.storage.derivedfiles import FOLDER, cache_path, folder, key_of, load_or_make
from gpuload.storage.files import Files, look_at
from gpuload.storage.inflate import BITS, HEAD_BYTES, inflate_file, is_gzip
from gpuload.storage.keptfile import KeptFile, KeptWriter, Place, is_small, open_kept_file
from gpuload.storage.packers import packer_of
from gpuload.storage.stores import path_of
from gpuload.threads import num_cores, parallel_map

FREE_PART = 0.9  # of the free space of the disk
MIB = 1 << 20
NAME_LENGTH = 40  # of a file's name, that a copy's ends in; names have at most 255 bytes
COPY = 2  # counted up when copies are made in another way
COMPRESSIONS = {"auto", *BITS}
log = logging.getLogger("gpuload")


def unpack_files(paths: Sequence[str], compression: str = "auto") -> list[Place]:
    """Return the place of the unpacked bytes of each file: a copy, or the path of the file if it is
    not compressed.

    Missing copies are made now: by all cores, file by file, with progress. The log says where they
    are.

    Args:
        paths: absolute paths, from ``expand``.
        compression: ``"auto"``: a file that begins as gzip does is unpacked, any other is taken as
            it is. ``"gzip"``: all must be of gzip. ``"zlib"``: all are zlib streams, which no magic
            tells from other files.

    Raises:
        FormatError: a file is cut short or damaged, something else follows its last stream, it
            unpacks to very much more than it has, it is not of the compression that was named, or
            it is a ZIP archive.
        FileError: a file is missing or cannot be read; copies can be written nowhere, or there is
            no space.
        SpecError: there is no such compression.
    """
    if not isinstance(compression, str) or compression not in COMPRESSIONS:
        raise SpecError(
            f"compression = {compression!r}",
            cause=f"it is one of {sorted(COMPRESSIONS)}",
            remedy='pass "gzip", say',
        )
    files, heads = look_at(paths, HEAD_BYTES, lambda path, size, head: head)
    if compression == "auto":
        packers = [packer_of(path, head) for path, head in zip(files.paths, heads, strict=True)]
        kinds = {number: kind for number, kind in enumerate(packers) if kind}
        if kinds:
            return _copies(files, kinds)
        return list(files.paths)
    if compression == "gzip" and not all(map(is_gzip, heads)):
        raw = next(number for number, head in enumerate(heads) if not is_gzip(head))
        raise FormatError(
            f"{files.paths[raw]} is not compressed with gzip",
            cause="such a file begins with 1f 8b 08, this one with "
            f"{heads[raw].hex(' ') or 'nothing: it is empty'}",
            remedy="leave the compression out, or pass the right one",
        )
    return _copies(files, dict.fromkeys(range(len(files)), compression))


def with_names(files: Files, originals: Sequence[str]) -> Files:
    """Return files with the names of their compressed originals, for messages and fingerprints."""
    return replace(files, names=tuple(os.path.basename(path_of(path)) for path in originals))


@dataclass(frozen=True)
class FileCopy:
    """A derived file of unpacked bytes.

    Attributes:
        key: the digest of its origin.
        name: the part of its file's name behind the key.
        work_bytes: the number of bytes to read or write, for progress.
        write: writes its content; called with the writer, and with a function that it calls with
            the number of bytes that are done, again and again.
    """

    key: str
    name: str
    work_bytes: int
    write: Callable[[KeptWriter, Callable[[int], None]], None]

    @property
    def place(self) -> str:
        """The path of the copy."""
        return cache_path(f"{self.key}-{self.name}")


def keep(copies: Sequence[FileCopy]) -> list[KeptFile]:
    """Return the copies. Missing ones are made by as many threads as there are cores, with
    progress.

    Raises:
        FileError: they can be written nowhere, or there is no space. Exceptions of ``write`` are
            not caught.
    """
    done_bytes, stop_flags = [0] * len(copies), list[bool]()
    total = sum(copy.work_bytes for copy in copies)
    eager = is_small([copy.place for copy in copies])

    with Progress("unpacking") as progress:

        def go_on() -> None:
            if stop_flags:
                raise _BrokenOff(
                    "unpacking was broken off",
                    cause="Python is ending",
                    remedy="open the files again",
                )

        def show(number: int, num_bytes: int) -> None:
            go_on()
            # Each thread has an element of its own: no lock.
            done_bytes[number] = num_bytes
            progress.show(sum(done_bytes) // MIB, max(total // MIB, 1), "MiB")

        def load_or_unpack(number: int) -> KeptFile:
            copy = copies[number]
            made_of = ["unpacked", copy.key]

            def write(path: str) -> None:
                with KeptWriter(path, made_of) as writer:
                    copy.write(writer, partial(show, number))
                    writer.end()

            return load_or_make(
                [copy.place], lambda path: open_kept_file(path, made_of, eager=eager), write, go_on
            )

        return parallel_map(
            load_or_unpack, range(len(copies)), num_cores(), lambda: stop_flags.append(True)
        )


class _BrokenOff(GpuloadError):
    """A thread was asked to end."""


def _copies(files: Files, kinds: Mapping[int, str]) -> list[Place]:
    """Return all files, with copies in the place of the packed ones, of which the kind is known."""
    places, copies = list[Place](files.paths), list[FileCopy]()
    for number, kind in kinds.items():
        key = key_of(files, number, "unpacked", COPY, kind)
        unpack = partial(_unpack, files, number, kind)
        copies.append(FileCopy(key, stem(files.paths[number]), int(files.sizes[number]), unpack))
    for number, copy in zip(kinds, keep(copies), strict=True):
        places[number] = copy
    log.info(
        "%d of %d files are compressed; their unpacked copies are in %s",
        len(kinds),
        len(files),
        folder(),
    )
    return places


def stem(path: str) -> str:
    """Return the part of a copy's name behind its key."""
    name = os.path.basename(path_of(path)).partition("?")[0]
    return (name[:-3] if name.lower().endswith(".gz") else name)[:NAME_LENGTH]


def _unpack(
    files: Files, number: int, kind: str, to: KeptWriter, show: Callable[[int], None]
) -> None:
    """Write the unpacked bytes of a file."""
    free = int(
        FREE_PART * signalsafe.import_package("shutil").disk_usage(os.path.dirname(to.path)).free
    )
    for at, piece in inflate_file(files, number, kind):
        # Before each piece: its size is not known in advance, and the disk must not run full for
        # other programs.
        if to.num_bytes + len(piece) > free:
            raise _no_space(files.paths[number], to.num_bytes + len(piece))
        to.write(piece)
        show(at)


def _no_space(path: str, num_bytes: int) -> FileError:
    return FileError(
        f"{path} needs more than {num_bytes} bytes to be unpacked to {folder()}",
        cause=f"that is more than {FREE_PART:.0%} of the disk's free space",
        remedy=f"make room, or set {FOLDER} to a folder on a disk with room, or unpack it yourself "
        f"(gunzip -c {shlex.quote(path)} > ...) and open the result",
    )
