"""Metadata: the files of a Zarr store that describe its groups and arrays, read and checked before
zarr sees them.

Files    "zarr.json" of format 3; ".zarray", ".zgroup" and ".zattrs" of format 2. A store that
         cannot be listed has those of all members in one: "consolidated_metadata" of "zarr.json",
         or ".zmetadata".
Codecs   zarr makes objects of all codecs that metadata name, and any package may register some;
         pickle is one of numcodecs'. Only those of CODECS are passed on: none of them runs code
         that lies in a file.
Numbers  Shapes are whole numbers, and chunks hold not more than a file of any size may unpack to.
Source   https://zarr-specs.readthedocs.io, versions 2 and 3
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuload import signalsafe
from gpuload.errors import FormatError, SpecError, short_repr
from gpuload.storage.wildcards import join

V3, V2_ARRAY, V2_GROUP, V2_ATTRIBUTES, V2_CONSOLIDATED = (
    "zarr.json",
    ".zarray",
    ".zgroup",
    ".zattrs",
    ".zmetadata",
)
FILES = (V3, V2_ARRAY, V2_GROUP, V2_ATTRIBUTES, V2_CONSOLIDATED)
NUMCODECS = (
    "adler32", "astype", "base64", "bitround", "blosc", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset",
    "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma", "packbits", "pcodec", "quantize", "shuffle", "zfpy", "zlib",
    "zstd",
)  # fmt: skip
OWN_CODECS = ("bytes", "sharding_indexed", "transpose", "vlen-array", "vlen-bytes", "vlen-utf8")
CODECS = frozenset((*NUMCODECS, *(f"numcodecs.{name}" for name in NUMCODECS), *OWN_CODECS))
INNER = ("codecs", "index_codecs")  # of a shard
LARGEST_LENGTH = 1 << 60
MOST_LEVELS = 8  # of codecs in codecs
ReadKey = Callable[[str], "bytes | None"]


@dataclass(frozen=True)
class Node:
    """A group or an array.

    Attributes:
        path: in the store; "" for its root.
        metadata: of an array, as zarr takes them, with ``"attributes"``; None for a group.
        members: the metadata of all nodes below a group, by their paths below it, where they stand in
            one file.
    """

    path: str
    metadata: dict[str, Any] | None
    members: Mapping[str, Node] | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of an array."""
        return dict((self.metadata or {}).get("attributes") or {})

    @property
    def has_axes(self) -> bool:
        """True for an array with an axis."""
        return bool(self.metadata and self.metadata["shape"])


def read_node(read: ReadKey, folder: str, path: str) -> Node | None:
    """Return the group or array at a path; None if there is none.

    Args:
        read: returns the bytes of a file of the store; None if there is none.
        folder: of the store, for errors.
        path: in the store, without slashes around it.

    Raises:
        FormatError: its metadata are damaged.
        SpecError: an array has codecs that are not supported, or is larger than an array can be.
    """

    def values_of(name: str) -> dict[str, Any] | None:
        key = name
        if path:
            key = f"{path}/{name}"
        content = read(key)
        if content is None:
            return None
        return _parse(join(folder, key), content)

    values = values_of(V3)
    if values is not None:
        return _of_version_3(folder, path, values)
    values = values_of(V2_ARRAY)
    if values is not None:
        return _array(folder, path, 2, {**values, "attributes": values_of(V2_ATTRIBUTES) or {}})
    if values_of(V2_GROUP) is None and values_of(V2_CONSOLIDATED) is None:
        return None
    return Node(path, None, _of_version_2(folder, path, values_of(V2_CONSOLIDATED)))


def _parse(title: str, content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
        if not isinstance(values, dict):
            raise ValueError("it is no object of JSON")
    except (ValueError, RecursionError) as error:
        signalsafe.pass_on(error)
        raise _damage(title, str(error).partition("\n")[0] or "its values lie too deep") from None
    return values


def _damage(title: str, cause: str) -> FormatError:
    return FormatError(f"{title}: its metadata are damaged", cause=cause, remedy="copy it again")


def _of_version_3(folder: str, path: str, values: dict[str, Any]) -> Node:
    if values.get("node_type") == "array":
        return _array(folder, path, 3, values)
    if values.get("node_type") != "group" or values.get("zarr_format") != 3:
        kind, version = (short_repr(values.get(name)) for name in ("node_type", "zarr_format"))
        place = folder
        if path:
            place = join(folder, path)
        raise _damage(
            place,
            f"it is a {kind} of version {version}, and no group",
        )
    shared = values.get("consolidated_metadata")
    if isinstance(shared, dict):
        entries = shared.get("metadata")
    else:
        entries = None
    if not isinstance(entries, dict):
        return Node(path, None)
    # Those that are named are checked when they are asked for (`child`), as if each stood in a file
    # of its own.
    return Node(
        path,
        None,
        _Consolidated(folder, path, {name: [3, entry] for name, entry in entries.items()}),
    )


def _of_version_2(
    folder: str, path: str, values: dict[str, Any] | None
) -> Mapping[str, Node] | None:
    if values is None:
        entries = None
    else:
        entries = values.get("metadata")
    if not isinstance(entries, dict):
        return None
    nodes = dict[str, Any]()
    for key, entry in entries.items():
        name, _, kind = str(key).rpartition("/")
        if name and kind in (V2_ARRAY, V2_GROUP) and isinstance(entry, dict):
            attributes = entries.get(f"{name}/{V2_ATTRIBUTES}") or {}
            array_entry = None
            if kind == V2_ARRAY:
                array_entry = {**entry, "attributes": attributes}
            nodes[name] = [2, array_entry]
    return _Consolidated(folder, path, nodes)


class _Consolidated(Mapping[str, Node]):
    """The members of a group, each checked when it is looked up."""

    def __init__(self, folder: str, path: str, entries: dict[str, list[Any]]) -> None:
        self._folder, self._path, self._entries = folder, path, entries

    def __getitem__(self, name: str) -> Node:
        version, values = self._entries[name]
        if self._path:
            path = f"{self._path}/{name}"
        else:
            path = name
        if values is None:
            return Node(path, None)
        if not isinstance(values, dict):
            raise _damage(join(self._folder, path), "it is no object of JSON")
        if version == 3:
            return _of_version_3(self._folder, path, values)
        return _array(self._folder, path, 2, values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _array(folder: str, path: str, version: int, values: dict[str, Any]) -> Node:
    title = folder
    if path:
        title = join(folder, path)
    if values.get("zarr_format") != version:
        raise _damage(
            title,
            f"its version is {short_repr(values.get('zarr_format'))}, in a file of version "
            f"{version}",
        )
    try:
        check_array(values)
    except SpecError as error:
        raise error.within(title) from None
    except ValueError as error:
        raise _damage(title, str(error)) from None
    return Node(path, values)


def check_array(metadata: Mapping[str, Any]) -> None:
    """Check the metadata of an array before zarr makes codecs of them.

    Raises:
        SpecError: a codec is not supported.
        ValueError: they cannot be those of an array.
    """
    is_old = metadata.get("zarr_format") == 2
    shape = _lengths("shape", metadata.get("shape"))
    if is_old:
        names = list(
            _names_of(
                [metadata.get("compressor"), *_list("filters", metadata.get("filters"))], "id"
            )
        )
        chunks = _lengths("chunks", metadata.get("chunks"))
    else:
        names = list(_names_of(_list("codecs", metadata.get("codecs")), "name"))
        grid = metadata.get("chunk_grid")
        if isinstance(grid, Mapping):
            settings = grid.get("configuration")
        else:
            settings = None
        if (
            not isinstance(grid, Mapping)
            or grid.get("name") != "regular"
            or not isinstance(settings, Mapping)
        ):
            raise SpecError(
                "its chunks are not of one shape",
                cause=f"a grid of chunks {short_repr(grid)} is not supported",
                remedy="write it anew with chunks of one shape",
            )
        chunks = _lengths("chunk_shape", settings.get("chunk_shape"))
    if len(chunks) != len(shape) or any(
        step == 0 and length for step, length in zip(chunks, shape, strict=True)
    ):
        raise ValueError(f"its chunks are {short_repr(chunks)}, and its shape {short_repr(shape)}")
    if math.prod(chunks) >= LARGEST_LENGTH:
        raise ValueError(f"a chunk of it has {short_repr(chunks)} elements")
    for name in names:
        if name not in CODECS:
            contents = f"encoded by the codec {name!r}"
            cause = "this codec is not supported: it may belong to any package"
            if "pickle" in name:
                contents, cause = "pickles", "they could run any code when they are read"
            raise SpecError(
                f"its values are {contents}",
                cause=cause,
                remedy="store arrays of numbers or texts, with codecs of zarr's own",
            )


def chunk_counts(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the grid of chunks or shards of an array that was checked."""
    is_old = metadata["zarr_format"] == 2
    if is_old:
        chunks = metadata["chunks"]
    else:
        chunks = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    return tuple(
        -(-length // max(step, 1)) for length, step in zip(metadata["shape"], chunks, strict=True)
    )


def chunk_places(metadata: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[int, int]]:
    """Return those of some files that are chunks: number of the chunk in the grid, in C order, and
    index of the file.

    Args:
        metadata: of the array, checked.
        keys: the names of files, from the folder of the array on.

    Raises:
        SpecError: the names of its chunks are of a kind that is not supported.
    """
    counts = chunk_counts(metadata)
    prefix, separator = _key_form(metadata)
    places = list[tuple[int, int]]()
    for index, key in enumerate(keys):
        if key.startswith(prefix):
            parts = key[len(prefix) :].split(separator)
        else:
            parts = []
        if len(parts) != len(counts):
            continue
        number = 0
        for part, count in zip(parts, counts, strict=True):
            is_place = (
                part.isascii()
                and part.isdecimal()
                and (part == "0" or part[0] != "0")
                and len(part) < 20
            )
            if not is_place or int(part) >= count:
                break
            number = number * count + int(part)
        else:
            places.append((number, index))
    return sorted(places)


def _key_form(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the beginning of the names of chunks, and the text between their numbers."""
    if metadata["zarr_format"] == 2:
        return "", str(metadata.get("dimension_separator") or ".")
    encoding = metadata.get("chunk_key_encoding")
    name, settings = encoding, None
    if isinstance(encoding, Mapping):
        name, settings = encoding.get("name"), encoding.get("configuration")
    usual = {"default": "/", "v2": "."}.get(str(name))
    if usual is None:
        raise SpecError(
            "its chunks have names of another kind",
            cause=f"chunk_key_encoding {short_repr(encoding)} is not supported",
            remedy='write it anew with the encoding "default"',
        )
    separator = str((settings or {}).get("separator") or usual)
    if name == "default":
        return f"c{separator}", separator
    return "", separator


def _names_of(codecs: Sequence[Any], key: str, level: int = 0) -> Iterator[str]:
    """Yield the names of codecs, and of those in their settings."""
    for codec in codecs:
        if codec is None:
            continue
        name, settings = codec, None
        if isinstance(codec, Mapping):
            name, settings = codec.get(key), codec.get("configuration")
        if not isinstance(name, str) or level > MOST_LEVELS:
            raise ValueError(f"{short_repr(codec)} is no codec")
        yield name
        if isinstance(settings, Mapping):
            for inner in INNER:
                yield from _names_of(_list(inner, settings.get(inner)), key, level + 1)


def _list(name: str, value: Any) -> list[Any]:
    if value is not None and not isinstance(value, (list, tuple)):
        raise ValueError(f"its {name} are {short_repr(value)}, and no list")
    return list(value or ())


def _lengths(name: str, value: Any) -> list[int]:
    lengths = _list(name, value)
    if value is None or not all(type(n) is int and 0 <= n < LARGEST_LENGTH for n in lengths):
        raise ValueError(f"its {name} is {short_repr(value)}, and no list of lengths")
    return lengths
