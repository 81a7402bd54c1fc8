"""Format: all that gpuload knows of one format of files, in one place.

    call, open_paths, folder    its reader
    sniff                       how its files are recognized by their bytes
    records                     the meaning of a record, for the pages of the docs
    open_for_check, salvage     how damage in its files is listed
    writer                      its writer, which also compares a file with the values written to it

`gl.open`, `gl.check` and `gl.convert` are loops over `FORMATS` of `formats/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuload.errors import FileError, FormatError, RecordError, SpecError
from gpuload.sources.base import Source
from gpuload.sources.leaf import Fields
from gpuload.spec import Spec
from gpuload.storage.wildcards import Paths

if TYPE_CHECKING:
    from gpuload.formats.writing import FolderWriter, Writer

ImagesIn = Callable[[Fields, int], Iterator[Any]]
MakeWriter: TypeAlias = "Callable[..., Writer | FolderWriter]"


@dataclass(frozen=True)
class Beginning:
    """The beginning of a file, by which its format is recognized.

    Attributes:
        path: of the file.
        num_bytes: the size of the file; of a compressed file some number above ``len(head)``.
        head: the first bytes; of a compressed file those of its content.
        compression: ``"gzip"``, ``"zlib"``, or "" for a plain file.
    """

    path: str
    num_bytes: int
    head: bytes
    compression: str = ""


@dataclass(frozen=True)
class Match:
    """The answer of a format that recognized the beginning of a file as its own.

    Attributes:
        title: the kind of the file, in words.
        call: the call that opens it, for people: ``"gl.csv(delimiter=',')"``.
        options: the keyword arguments of `Format.open`.
    """

    title: str
    call: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Salvage:
    """A record of a file that cannot be opened as a whole.

    Attributes:
        number: which record, counted from 0.
        offset_bytes: the byte where it begins.
        cause: the reason why it is damaged; "" if it is not.
    """

    number: int
    offset_bytes: int
    cause: str = ""


@dataclass(frozen=True)
class Folder:
    """The reader of folders of files of a format.

    Attributes:
        open: returns the source of a folder; raises ``MissingFileError`` if no file of the format
            is in it.
        suffixes: of the files that it takes, in small letters.
        recognize: returns True for a folder that is of the format as a whole, with any files in it.
    """

    open: Callable[[str], Source]
    suffixes: tuple[str, ...]
    recognize: Callable[[str], bool] = lambda folder: False


@dataclass(frozen=True)
class Format:
    """One format of files.

    Attributes:
        name: ``gl.<name>`` opens its files, and it is the ``format`` of `gl.convert`.
        call: ``gl.<name>`` itself, or `lazy.function` of it. It opens manifests of its files, too.
        sniff: returns a match for the beginning of a file that it recognizes; None if the file is
            of another format.
        known_by: ``"bytes"``: a magic or a checksum. ``"description"``: a file that stands beside
            the file, which decides before any bytes do. ``"text"``: the file is text, which is
            looked at last.
        records: for the pages of the docs: ways to write the call, as ``"gl.text(paths)"``, and the
            meaning of one record then, in Markdown.
        open_paths: returns the source of paths where ``call`` has other arguments.
        compressions: the compressions of whole files that ``open`` unpacks.
        hint: the call for a file of this format that was not recognized, in words; "" if its files
            always are.
        folder: the reader of a folder of its files; None if folders are not opened. Folders of
            tables are opened by `storage/folders.py`.
        open_for_check: returns a source of paths in which only damage is an error, and a function
            that gives the encoded images of a record beyond the fields that the source marks as
            encoded (or None). By default the source that ``open`` returns.
        salvage: returns, from path and first bytes of a file that ``open`` refuses, a source or the
            single records that `gl.check` reads; None if none can be read.
        suffixes: of the files that `gl.convert` writes; none if it writes a folder.
        beside: suffixes, put behind the name of a file that `gl.convert` writes, of small files
            that belong to it.
        writer: makes the writer, with ``writer_options`` as keyword arguments; None if the format
            is not written.
        writer_options: arguments of `gl.convert` that are for this format alone.
        has_blank_parts: True if one of several files may be empty: it holds no records.
        suggest: returns a remedy if `gl.convert` could write fields to this format that another one
            refuses; "" if not.
    """

    name: str
    call: Callable[..., Source]
    sniff: Callable[[Beginning], Match | None] = lambda beginning: None
    known_by: Literal["bytes", "description", "text"] = "bytes"
    records: Mapping[str, str] = field(default_factory=dict)
    open_paths: Callable[..., Source] | None = None
    compressions: tuple[str, ...] = ()
    hint: str = ""
    folder: Folder | None = None
    open_for_check: Callable[..., tuple[Source, ImagesIn | None]] | None = None
    salvage: Callable[[str, bytes], Source | Iterator[Salvage] | None] = lambda path, head: None
    suffixes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    writer: MakeWriter | None = None
    writer_options: tuple[str, ...] = ()
    suggest: Callable[[Spec], str] = lambda spec: ""
    has_blank_parts: bool = False

    def open(self, paths: Paths, **options: Any) -> Source:
        """Return the source of paths; ``options`` are those of the match for the first of them."""
        return (self.open_paths or self.call)(paths, **options)


def salvage_array_file(
    call: Callable[..., Source], magic: bytes
) -> Callable[[str, bytes], Source | None]:
    """Return a function for `Format.salvage` that reads a file as the one record of a source.

    `gl.check` needs it for files without records: an array without axes has no rows, and arrays of
    one archive need not have as many. The function returns None for other files, and for those that
    cannot be read so either.

    Args:
        call: the reader, which takes ``record="file"``.
        magic: the first bytes of a file of the format.
    """

    def salvage(path: str, head: bytes) -> Source | None:
        if head.startswith(magic):
            with suppress(FormatError, RecordError, SpecError, FileError):
                return call([path], record="file")
        return None

    return salvage
