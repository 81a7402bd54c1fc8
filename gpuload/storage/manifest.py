"""Manifests: the files of a source in one file, with all that opening them takes, so that none of
them is touched.

Layout   a kept file (`keptfile.py`) of arrays: the paths of the files (`paths.py`),
         folders below that of the manifest as seen from there; int64 ``[num_files, 3]`` with size,
         time of modification in ns, and 0 or the digest of an object's ETag; and the arrays of the
         format: counts, offsets. Names, dtypes and places of the arrays stand in its JSON, with
         values of the format.
Written  whole or not at all; under the name of a file that is no manifest nothing is written.
Trust    the checksum finds damage. The numbers of a manifest are compared with its own bounds, and
         places with the sizes that it states; a file of another size or time is refused when it is
         first read, so no byte beyond its end is touched.
Hash     a manifest holds the fingerprint of the source, so that states saved with and without it
         are alike.
Memory   the bytes of the manifest: 57 a file beside those of its name and those that the format
         adds.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import FileError, FormatError, MissingFileError, SpecError
from gpuload.storage import derivedfiles, keptfile
from gpuload.storage.fileerrors import open_error
from gpuload.storage.files import Files, Seal, any_is_remote, are_remote, look_at
from gpuload.storage.handles import Handle, close_handle, open_handle, read_at
from gpuload.storage.paths import PackedPaths, Texts
from gpuload.storage.stores import ObjectURL, Remote, check_shareable, is_remote, path_of, remote_of
from gpuload.storage.wildcards import MOST_SHARDS, Paths, check_name, warn_of_missing_shards
from gpuload.threads import num_cores, parallel_map

SUFFIX = ".manifest"
ORIGIN = ["manifest", 1]
DTYPES = ("|u1", "<u4", "<i8")
ALIGN_BYTES = 64
PIECE_BLOCKS = 256  # that a thread compares with their checksums at a time
SLASH, NUL = ord("/"), 0
FILE_ARRAYS = ("folders", "folder_bounds", "folder_of", "names", "name_bounds", "stamps")
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Manifest:
    """A manifest that was read.

    Attributes:
        path: of the manifest.
        format: of the files in the list.
        files: the files as they were when it was written.
        options: arguments that open them.
        about: values of the format; they come from the file, and its reader checks them.
        arrays: the same in arrays of the dtypes DTYPES.
    """

    path: str
    format: str
    files: Files
    options: Mapping[str, Any]
    about: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def error(self, cause: str) -> FormatError:
        """Return the error for a manifest that gpuload cannot have written."""
        return _error(self.path, cause)

    def array(self, name: str, dtype: str, *shape: int) -> NDArray[Any]:
        """Return an array of the format; an axis of -1 has any length.

        Raises:
            FormatError: it is not there, or has another dtype or shape.
        """
        array = self.arrays.get(name)
        fits = array is not None and array.dtype == np.dtype(dtype) and array.ndim == len(shape)
        if (
            array is None
            or not fits
            or any(n not in (-1, m) for n, m in zip(shape, array.shape, strict=True))
        ):
            raise self.error(f"its array {name!r} is missing, or has another kind")
        return array

    def numbers(self, name: str, least: int, after: int, dtype: str = "<i8") -> NDArray[Any]:
        """Return a number for each file, from ``least`` to ``after``, exclusive.

        Raises:
            FormatError: one lies outside, or the array is another one.
        """
        array = self.array(name, dtype, len(self.files))
        if int(array.min()) < least or int(array.max()) >= after:
            raise self.error(f"its array {name!r} holds {int(array.min())} to {int(array.max())}")
        return array


def load(paths: Paths, form: str | None = None) -> Manifest | None:
    """Return the manifest that a path names; None for other paths, which do not end in SUFFIX.

    Args:
        paths: as the user gave them.
        form: the name of the format that opens them; None: any.

    Raises:
        FormatError: it is no manifest, is damaged, or contradicts itself.
        SpecError: it is of files of another format.
        FileError: it is missing or cannot be read.
    """
    path = _path_of(paths)
    if path is None:
        return None
    content, about = _read(path)
    manifest = _parse(path, content, about)
    if len(manifest.files) <= MOST_SHARDS:
        warn_of_missing_shards(manifest.files.paths)
    if form not in (None, manifest.format):
        raise SpecError(
            f"{path} is a manifest of files of gl.{manifest.format}",
            cause=f"gl.{form} does not open these",
            remedy=f"open it with gl.{manifest.format}, or with gl.open",
        )
    return manifest


def call_of(paths: Paths) -> tuple[str, str, Mapping[str, Any]] | None:
    """Return path, format and options of the manifest that a path names, from its end alone; None
    for others.

    Raises:
        FormatError: it is no manifest, or its end is damaged.
        FileError: it is missing or cannot be read.
    """
    path = _path_of(paths)
    if path is None:
        return None
    with _open(path) as (_, _, about):
        pass
    if not isinstance(about, dict) or not isinstance(about.get("options"), dict):
        raise _error(path, "its values are not those of a manifest")
    return path, str(about.get("format")), about["options"]


def _path_of(paths: Paths) -> str | None:
    """Return the path of a manifest."""
    if isinstance(paths, (list, tuple)) and len(paths) == 1:
        [paths] = paths
    if isinstance(paths, Remote):
        [*urls] = paths.object_urls()
        if len(urls) == 1 and path_of(urls[0]).endswith(SUFFIX):
            return urls[0]
        return None
    if not isinstance(paths, (str, os.PathLike)) or not isinstance(text := os.fspath(paths), str):
        return None
    if is_remote(text):
        if path_of(text).endswith(SUFFIX):
            return ObjectURL(text, remote_of(text))
        return None
    if not text.endswith(SUFFIX):
        return None
    check_name(text)
    return os.path.abspath(os.path.expanduser(text))


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[Handle, Seal, Any]]:
    """Yield an open manifest, the seal of its content, and its JSON."""
    files, _ = look_at([path], 0, lambda path, size, head: None)
    try:
        handle = open_handle(path)
        try:
            seal, origin, about = keptfile.read_end(handle, int(files.sizes[0]))
            if origin != ORIGIN:
                raise ValueError("another origin")
            yield handle, seal, about
        finally:
            close_handle(handle)
    except OSError as error:
        raise open_error(path, error) from None
    except ValueError:
        raise _error(path, "it does not end as a manifest does") from None


def _read(path: str) -> tuple[NDArray[np.uint8], Any]:
    """Return content and JSON of a manifest, compared with their checksums."""
    with _open(path) as (handle, seal, about):
        content = np.empty(seal.content_bytes, np.uint8)
        num_read = read_at(handle, content.data, 0)
    step = PIECE_BLOCKS * keptfile.BLOCK_BYTES
    pieces = [content.data[begin : begin + step] for begin in range(0, content.size, step)]
    checksums = [
        number
        for piece in parallel_map(keptfile.checksums_of, pieces, num_cores())
        for number in piece
    ]
    if num_read != content.size or not np.array_equal(checksums, seal.checksums):
        raise _error(path, "its bytes do not have their checksum")
    # Sources keep views of these bytes for as long as they live.
    content.flags.writeable = False
    return content, about


def _parse(path: str, content: NDArray[np.uint8], about: Any) -> Manifest:
    """Return a manifest with sound arrays and paths."""
    names = ("format", "fingerprints", "options", "about", "arrays")
    kinds = (str, dict, dict, dict, list)
    if not isinstance(about, dict) or not all(
        isinstance(about.get(name), kind) for name, kind in zip(names, kinds, strict=True)
    ):
        raise _error(path, "its values are not those of a manifest")
    if not all(isinstance(text, str) for text in about["fingerprints"].values()):
        raise _error(path, "its fingerprints are no texts")
    arrays = dict(_array_of(path, content, entry) for entry in about["arrays"])
    draft = Manifest(
        path,
        about["format"],
        Files((), np.zeros((0, 3), np.int64)),
        about["options"],
        about["about"],
        arrays,
    )
    folders, names_of_files = (
        _texts(draft, "folders", "folder_bounds"),
        _texts(draft, "names", "name_bounds"),
    )
    folder_of = draft.array("folder_of", "<u4", len(names_of_files))
    stamps = draft.array("stamps", "<i8", len(names_of_files), 3)
    if not len(names_of_files) or int(folder_of.max()) >= len(folders):
        raise draft.error("it lists no files, or files of a folder that it does not list")
    if (
        bool((names_of_files.payload == SLASH).any())
        or not (np.diff(names_of_files.bounds) > 0).all()
    ):
        raise draft.error("the name of a file is empty, or holds a slash")
    # In float64: a sum of int64 could run over, and look small again.
    if int(stamps[:, 0].min()) < 0 or float(stamps[:, 0].sum(dtype=np.float64)) >= 2.0**62:
        raise draft.error("the size of a file is negative, or that of all together beyond any disk")
    # without the signature of a link, which gives rights on this object alone
    base = path_of(path)
    base = base[: base.rfind("/") + 1]
    places = [
        base + folder if _is_relative(folder) else folder
        for folder in folders.between(0, len(folders))
    ]
    if not all(place.endswith("/") for place in places):
        raise draft.error("a folder does not end in a slash")
    paths = PackedPaths(Texts.of(places), folder_of, names_of_files, remote_of(path))
    return replace(
        draft, files=Files(paths, stamps, fingerprints=about["fingerprints"], manifest=path)
    )


def _array_of(path: str, content: NDArray[np.uint8], entry: Any) -> tuple[str, NDArray[Any]]:
    """Return name and array of an entry of the list of arrays."""
    try:
        name, text, shape, offset = entry
        lengths = tuple(shape)
        # `isinstance` would take JSON's true for a number; and a view of int64 has to begin at a
        # multiple of 8.
        whole = all(type(number) is int and 0 <= number < 1 << 62 for number in (*lengths, offset))
        if not (
            isinstance(name, str)
            and text in DTYPES
            and whole
            and len(lengths) in (1, 2)
            and offset % 8 == 0
        ):
            raise ValueError
        dtype = np.dtype(text)
        end = offset + math.prod(lengths) * dtype.itemsize
        if end > content.size:
            raise ValueError
        return name, content[offset:end].view(dtype).reshape(lengths).astype(
            dtype.newbyteorder("="), copy=False
        )
    except (TypeError, ValueError):
        raise _error(path, f"it has no such array: {entry!r}"[:200]) from None


def _texts(manifest: Manifest, name: str, bounds_name: str) -> Texts:
    """Return texts of a manifest, with checked bounds."""
    payload, bounds = manifest.array(name, "|u1", -1), manifest.array(bounds_name, "<i8", -1)
    ascends = (
        bounds.size > 0
        and bounds[0] == 0
        and bounds[-1] == payload.size
        and bool((bounds[1:] >= bounds[:-1]).all())
    )
    if not ascends or bool((payload == NUL).any()):
        raise manifest.error(
            f"its array {bounds_name!r} does not go through {name!r}, or a name holds a zero"
        )
    return Texts(payload, bounds)


def _is_relative(folder: str) -> bool:
    return not folder.startswith("/") and not is_remote(folder)


def _error(path: str, cause: str) -> FormatError:
    return FormatError(
        f"{path} is no manifest that can be used",
        cause=cause,
        remedy="make it anew: gpuload index, or source.index(path); files of other kinds must not "
        "end in .manifest",
    )


def write(
    path: str | os.PathLike[str],
    form: str,
    files: Files,
    *,
    options: Mapping[str, Any],
    about: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    fingerprints: Mapping[str, str],
) -> str:
    """Write a manifest, and return its absolute path.

    Args:
        path: ends in SUFFIX; an older manifest is replaced.
        form: the name of the format.
        files: the files.
        options: arguments for `gl.open`, in values that JSON has.
        about: values of the format, in values that JSON has.
        arrays: arrays of the format, of the dtypes DTYPES.
        fingerprints: of the source, by the digest of its arguments.

    Raises:
        SpecError: the path ends in something else, or is remote; a file is a copy that gpuload
            keeps, or a link with a password or a signature.
        FileError: the manifest cannot be written, or another file has its name.
    """
    path = writable_path(path)
    if any(seal is not None for seal in files.seals):
        raise SpecError(
            f"a manifest of {files.names[0]}",
            cause="compressed files are read from copies in the cache folder, whose places a "
            "manifest cannot tell",
            remedy="unpack the files, and index these",
        )
    if any_is_remote(files.paths):
        for number in np.flatnonzero(are_remote(files.paths)).tolist():
            check_shareable(files.paths[number], "a manifest of")
    if signalsafe.exists(path, follow=False) and not keptfile.is_ours(path):
        raise FileError(
            f"{path} is there already",
            cause="it is no manifest",
            remedy="choose another name, or move it away",
        )
    try:
        # 0o666, less the umask: a manifest is for all readers of the files, unlike the content of
        # the cache folder.
        with (
            derivedfiles.whole(path, is_alone=False) as part,
            keptfile.KeptWriter(part, ORIGIN, 0o666) as writer,
        ):
            entries = []
            for name, array in {**_file_arrays(path, files), **arrays}.items():
                writer.align(ALIGN_BYTES)
                raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                entries.append([name, raw.dtype.str, list(raw.shape), writer.num_bytes])
                for piece in _pieces(raw):
                    writer.write(piece)
            writer.end(
                {
                    "format": form,
                    "fingerprints": dict(fingerprints),
                    "options": dict(options),
                    "about": dict(about),
                    "arrays": entries,
                }
            )
    except OSError as error:
        if isinstance(error, FileError):
            raise
        signalsafe.pass_on(error)
        raise FileError(
            f"{path} cannot be written",
            cause=str(error.strerror or error),
            remedy="choose a folder that can be written to, and has room",
        ) from None
    return path


def _pieces(raw: NDArray[Any]) -> Iterator[bytes]:
    view, step = raw.reshape(-1).view(np.uint8), PIECE_BLOCKS * keptfile.BLOCK_BYTES
    return (view[begin : begin + step].tobytes() for begin in range(0, view.size, step))


def writable_path(path: str | os.PathLike[str]) -> str:
    """Return where a manifest is written, as an absolute path.

    Raises:
        SpecError: it is no name of a manifest, or not on this machine.
        MissingFileError: there is no such folder.
    """
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
    else:
        text = ""
    if not isinstance(text, str) or not text.endswith(SUFFIX) or os.path.basename(text) == SUFFIX:
        raise SpecError(
            f"{path!r} as the path of a manifest",
            cause=f"the name of a manifest ends in {SUFFIX}, by which it is known",
            remedy=f"write train{SUFFIX}, say",
        )
    if is_remote(text):
        raise SpecError(
            f"{text} as the path of a manifest",
            cause="gpuload writes files of this machine alone",
            remedy="write it to a disk, and copy it there; the paths in it are complete URLs",
        )
    check_name(text)
    complete = os.path.abspath(os.path.expanduser(text))
    if not signalsafe.is_folder(os.path.dirname(complete)):
        raise MissingFileError(
            f"{complete} cannot be written",
            cause=f"there is no folder {os.path.dirname(complete)}",
            remedy="make it, or name another",
        )
    return complete


def _file_arrays(path: str, files: Files) -> Arrays:
    """Return paths and stamps of files in arrays; folders below that of the manifest as seen from
    there."""
    paths, base = PackedPaths.by_folder(files.paths), path[: path.rfind("/") + 1]
    folders = Texts.of(
        [folder.removeprefix(base) for folder in paths.folders.between(0, len(paths.folders))]
    )
    stamps = np.array(files.stamps, np.int64)
    stamps[~are_remote(paths), 2] = (
        0  # inodes differ between machines, and a copy of the folder has others
    )
    arrays = (
        folders.payload,
        folders.bounds,
        paths.folder_of,
        paths.names.payload,
        paths.names.bounds,
        stamps,
    )
    return dict(zip(FILE_ARRAYS, arrays, strict=True))
