"""Sources of files: the common part of records of fixed size and of whole files.

Pickle  a source of files is pickled as the call that opened it, with absolute paths, and opened
        again where it arrives: in a worker process, on another machine. Files that are others there
        are refused.
Index   a manifest (`storage/manifest.py`) lists the files with all that opening them takes. A
        source that is opened by one touches no file before its records are read.
Close   nothing is kept open but maps, which are undone when the last thread has finished reading.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuload.errors import ChangedFileError, GpuloadError, SpecError
from gpuload.redaction import printable, redact
from gpuload.sources import calls
from gpuload.sources.base import LeafSource, Source
from gpuload.sources.leaf import Bytes, Group, Indices, Leaf
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.spec import Spec
from gpuload.storage import manifest
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files
from gpuload.storage.stores import path_of


@dataclass(frozen=True)
class Opening:
    """The call that opened a source.

    Attributes:
        function: ``gl.npy``, say.
        arguments: with absolute paths.
        paths: the name of the argument that is the paths.
    """

    function: Callable[..., Source]
    arguments: dict[str, Any]
    paths: str = "paths"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments but the paths."""
        return {name: value for name, value in self.arguments.items() if name != self.paths}

    @property
    def identity(self) -> str:
        """A text that differs for other arguments than paths; "" where no text can."""
        return calls.digest_of(
            {"function": self.function.__name__, "paths": self.paths, **self.options}
        )


@dataclass(frozen=True)
class Entries:
    """The part of a manifest that a format adds to the files.

    Attributes:
        about: values that JSON has.
        arrays: arrays of the dtypes of manifests.
        bad: a file that cannot be opened; "" if there is none.
        inferred: the names of arguments that opening the files finds out anew.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    bad: str = ""
    inferred: tuple[str, ...] = ()


class FileSource(LeafSource):
    """Records in files."""

    def __init__(
        self, files: Files, opening: Opening, groups: tuple[Group, ...], storage: Storage
    ) -> None:
        super().__init__(groups)
        self._files, self._opening, self._access = files, opening, storage.how
        # A manifest keeps a fingerprint for each set of arguments: with another dtype, or other
        # fields, the records of the same files are others.
        if files.fingerprints:
            self._fingerprint = files.fingerprints.get(opening.identity, "")

    def describe(self) -> str:
        """Return one line about how records are read."""
        return printable(redact(self._access))  # names of columns come from files

    def _title(self) -> str:
        return f"gl.{self._opening.function.__name__}"

    def _place(self) -> str:
        paths = self._files.paths
        if len(paths) == 1:
            return paths[0]
        folder, last = os.path.dirname(path_of(paths[0])), os.path.dirname(path_of(paths[-1]))
        if folder == last:
            return f"{len(paths)} files in {folder}"
        return f"{len(paths)} files, the first is {paths[0]}"

    @property
    def files(self) -> SourceFiles:
        """The files; here a record each."""
        return SourceFiles(self._files.paths, [1] * len(self._files))

    def index(self, path: str | os.PathLike[str]) -> str:
        """Write a manifest of the files, and return its absolute path; see ``Source.index``."""
        self.check_open()
        return write_index(path, self._files, self._opening, self._entries(), self.fingerprint())

    def _entries(self) -> Entries:
        """Return the part of a manifest with which opening the files reads none.

        A format that defines it opens manifests, and its ``Format.call`` is the function that does
        so.

        Raises:
            SpecError: the format has no manifests.
        """
        raise SpecError(
            f"a manifest of {self._line()}",
            cause=f"{self._title()} opens no manifests",
            remedy="open the files by their paths; gl.convert writes formats that have manifests",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        return open_again, (self._opening, self.fingerprint())


def write_index(
    path: str | os.PathLike[str], files: Files, opening: Opening, entries: Entries, fingerprint: str
) -> str:
    """Write the manifest of a source, and return its absolute path.

    Raises:
        SpecError: a file cannot be opened, or the path is none of a manifest.
        FileError: it cannot be written.
    """
    if entries.bad:
        raise SpecError(
            f"a manifest with {entries.bad}",
            cause="this file is damaged, and a manifest lists files that can be opened",
            remedy="repair the file, or leave it out of the paths",
        )
    options = {
        name: value for name, value in opening.options.items() if name not in entries.inferred
    }
    values, rest = calls.to_json(options)
    fingerprints = {}
    if opening.identity:
        fingerprints[opening.identity] = fingerprint
    return manifest.write(
        path,
        opening.function.__name__,
        files,
        options={"paths": opening.paths, "values": values, "rest": rest},
        about=entries.about,
        arrays=entries.arrays,
        fingerprints=fingerprints,
    )


def open_again(opening: Opening, fingerprint: str) -> Source:
    """Open a source again that was pickled or copied, and return it.

    Raises:
        ChangedFileError: the files changed in between, or those of this node are others.
        GpuloadError: they cannot be opened. Each of these errors names the node, for paths may mean
            others there.
    """
    node = f"on node {platform.node()}"
    try:
        source = opening.function(**opening.arguments)
    except GpuloadError as error:
        raise error.within(node) from None
    # Compared here, before the first batch: else one rank of many would train on other data, and no
    # error would say so.
    if source.fingerprint() != fingerprint:
        raise ChangedFileError(
            f"{node} the files of gl.{opening.function.__name__} are others than where the source "
            "was made",
            cause=f"their fingerprint is {source.fingerprint()}, it was {fingerprint}",
            remedy="copy the same files to the same path on each machine, or open them anew",
        )
    return source


class WholeFiles(Leaf):
    """A file a record: all of its bytes, or those from a byte on.

    Args:
        spec: the fields of a record.
        storage: of the files.
        offsets: int64 ``[num_files]``, the byte where the record of each file begins; None: it is
            byte 0 of all.
        lengths: int64 ``[num_files]``, its bytes.
    """

    def __init__(
        self, spec: Spec, storage: Storage, offsets: Indices | None, lengths: Indices
    ) -> None:
        self.spec, self.how, self.num_records = spec, storage.how, lengths.size
        self._storage, self._offsets, self._lengths = storage, offsets, lengths

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has, int64 ``[n]``."""
        return self._lengths[numbers]

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._storage.read(self._extents(numbers), out, begins)

    def _extents(self, numbers: Indices) -> Extents:
        if self._offsets is None:
            offsets = np.zeros(numbers.size, np.int64)
        else:
            offsets = self._offsets[numbers]
        return Extents(numbers, offsets, self._lengths[numbers])

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file of a record, which is all of it, and so begins at byte 0."""
        return self._storage.files.paths[number], 0

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._storage.advise(self._extents(numbers))
