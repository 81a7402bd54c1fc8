"""TFRecord files: tf.train.Examples and SequenceExamples by number, their checksums verified.

Access   any record by index, one positioned read of header, payload and checksums; no index file is
         needed: the offsets of the records are found once by a walk through the files
         (`framing.py`), and stored (`spanindex.py`).
Packed   gzip and zlib files are unpacked once into the cache folder (`storage/unpack.py`), and read
         from there.
Fields   those that the user describes (`features.py`); without a description, those of the first
         records (`inference.py`).
Memory   8 bytes a record, for its place.
Needs    nothing: TensorFlow is not needed.
Limits   a file with a damaged length is refused when it is opened, since where the next record
         begins is not known, or with ``on_error`` ends there with a damaged record; a damaged
         payload is an error of that record alone.
Source   https://www.tensorflow.org/tutorials/load_data/tfrecord; record_reader.cc of TensorFlow
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpuload import strings
from gpuload.errors import RecordError, RowError, SpecError
from gpuload.formats.tfrecord import inference, sidecar
from gpuload.formats.tfrecord.features import FeatureColumn, Tensor, columns_of
from gpuload.formats.tfrecord.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    UnframedError,
    is_framed,
    offsets_in,
)
from gpuload.formats.tfrecord.leaf import TFRecordLeaf, one_record
from gpuload.order import check_flag
from gpuload.sources import spanindex
from gpuload.sources.filesource import Entries, FileSource, Opening
from gpuload.sources.gaps import GapLeaf, Origin, check_on_error
from gpuload.sources.leaf import Group, Indices
from gpuload.sources.reading import record_error
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.sources.spans import Show, bounds_of, manifest_arrays, manifest_bounds
from gpuload.spec import Spec
from gpuload.storage import keptfile, manifest, open_storage
from gpuload.storage.files import Files, look_at
from gpuload.storage.inflate import is_gzip
from gpuload.storage.unpack import unpack_files, with_names
from gpuload.storage.wildcards import Paths, expand

COMPRESSIONS = ("auto", "gzip", "zlib", None)
log = logging.getLogger("gpuload")
FIRST_RECORDS = 8  # that features are compared with when a source is opened


def tfrecord(
    paths: Paths,
    features: Any = None,
    *,
    sequence: Mapping[str, Any] | None = None,
    index: Paths | None = None,
    verify: bool = True,
    compression: str | None = "auto",
    on_error: str = "raise",
) -> TFRecordSource:
    """Return the records of TFRecord files.

        gl.tfrecord("train-*.tfrecord", {"image": gl.Image(key="image/encoded"), "label": "i8"})
        gl.tfrecord("train-*.tfrecord")                                   the fields that the first records have

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a
            wildcard is sorted. Or a manifest of such files (``Source.index``).
        features: a description of each field: a dtype, a pair of dtype and shape, ``"bytes"``,
            ``gl.Feature``, ``gl.Raw``, ``gl.Tensor``, ``gl.Image``, or a feature of ``tf.io``.
            None: the fields of the first records; the log and ``source.features`` show them. One
            ``gl.Raw``, ``gl.Tensor``, ``gl.Image`` or ``"bytes"``: it describes the whole payload,
            which is the field ``record``.
        sequence: the same for the feature lists of SequenceExamples, a description of each step. A
            field is ragged along its steps; a list that a record does not have has no steps.
        index: index files of DALI's ``tfrecord2idx``, one for each file in their order; none is
            needed.
        verify: False: checksums are not looked at, and damaged bytes are not noticed.
        compression: ``"auto"``: gzip and zlib are known by the first bytes of each file.
            ``"gzip"``, ``"zlib"``: all files are compressed so. None: none is.
        on_error: ``"raise"``: a file in which a record is cut short, or its length damaged, is an
            error. ``"replace"``, ``"skip"``: the records in front of that one are taken; that one,
            with all behind it, is one record, which cannot be read. Pass ``on_error`` to the
            loader, too. A compressed file has to be whole in any case.

    Raises:
        FileError: a file is missing, a directory, or cannot be read.
        FormatError: a file is no TFRecord file, a record is cut short, a length is damaged.
        RecordError: none of the first records fits ``features``.
        SpecError: an argument is wrong.
    """
    check_on_error(on_error)
    verify = check_flag("verify", verify)
    if not isinstance(compression, (str, type(None))) or compression not in COMPRESSIONS:
        raise SpecError(
            f"compression = {compression!r}",
            cause="it is 'auto', 'gzip', 'zlib' or None",
            remedy="leave it out",
        )
    if features is None and sequence is None:
        columns = None
    else:
        if features is None:
            named_features = {}
        else:
            named_features = _with_placeholders(features)
        columns = columns_of(named_features, sequence)
    listing = manifest.load(paths, "tfrecord")
    originals: Sequence[str] = expand(paths) if listing is None else listing.files.paths
    if index is None:
        indexes = None
    else:
        indexes = expand(index, is_quiet=True)
    if indexes is not None and len(indexes) != len(originals):
        raise SpecError(
            f"{len(indexes)} index files for {len(originals)} TFRecord files",
            cause="each file has an index of its own, in the same order",
            remedy="name as many, or leave index= out: none is needed",
        )
    errors: dict[int, UnframedError] = {}
    if listing is None:
        files, _ = keptfile.look_at(
            _plain(originals, compression), 0, lambda path, size, head: None
        )
        files = with_names(files, originals)
        bounds, starts, errors = _bounds(
            files, originals, indexes, verify=bool(verify), on_error=on_error
        )
    else:
        files, (bounds, starts) = listing.files, manifest_bounds(listing)
    argument: Any = tuple(originals)
    if listing is not None:
        argument = listing.path
    arguments = {
        "paths": argument,
        "index": indexes,
        "verify": bool(verify),
        "compression": compression,
    }
    arguments["on_error"] = on_error
    make = partial(
        TFRecordSource,
        files,
        originals,
        bounds,
        starts,
        errors,
        verify=bool(verify),
        arguments=arguments,
    )
    if columns is None:
        features, sequence = inference.infer_features(make((inference.WHOLE,), {}))
        return make(columns_of(features, sequence), {"features": features, "sequence": sequence})
    if isinstance(features, Mapping) and any(map(_is_unknown, features.values())):
        features = inference.with_tensors(features, make((inference.WHOLE,), {}))
        columns = columns_of(features, sequence)
    source = make(columns, {"features": features, "sequence": sequence})
    source.compare_first()
    return source


def _with_placeholders(features: Any) -> Any:
    """Return the features with a placeholder for dtype and shape of each tensor that has none
    yet."""
    if not isinstance(features, Mapping):
        return features
    return {
        name: replace(feature, dtype="f4", shape=()) if _is_unknown(feature) else feature
        for name, feature in features.items()
    }


def _is_unknown(feature: Any) -> bool:
    return isinstance(feature, Tensor) and feature.is_unknown


class TFRecordSource(FileSource):
    """Records of TFRecord files; made by ``gl.tfrecord``.

    Attributes:
        features: the features, as ``gl.tfrecord`` takes them.
        sequence: the same of feature lists; None if there are none.
    """

    def __init__(
        self,
        files: Files,
        originals: Sequence[str],
        bounds: Indices,
        starts: Indices,
        errors: Mapping[int, UnframedError],
        columns: Sequence[FeatureColumn],
        feature_arguments: dict[str, Any],
        *,
        verify: bool,
        arguments: dict[str, Any],
    ) -> None:
        storage = open_storage(files)
        spec = Spec(tuple(column.field for column in columns))
        groups = (Group(spec, None, is_quick=True),)
        super().__init__(
            files, Opening(tfrecord, {**arguments, **feature_arguments}), groups, storage
        )
        self.features, self.sequence = (
            feature_arguments.get("features"),
            feature_arguments.get("sequence"),
        )
        self._originals, self._columns, self._starts = originals, tuple(columns), starts
        leaf = TFRecordLeaf(columns, storage, bounds, starts, originals, verify=verify)
        self._leaf: TFRecordLeaf | None = leaf
        self._access, self._bounds = leaf.how, bounds
        self._errors = {int(starts[file + 1]) - 1: error for file, error in sorted(errors.items())}
        self._leaves = (leaf,)
        if self._errors:
            self._leaves = (
                GapLeaf(leaf, np.array(list(self._errors), np.int64), self._error, self._origin),
            )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _error(self, number: int) -> RecordError:
        """Return the error for the record of a file behind which no further one can be found."""
        error, path = self._errors[number], self._originals[self._file_of(number)]
        reason = error.what.partition(": ")[2] or error.what.replace(path, "it", 1)
        return RecordError(
            f"{self._where(number)}: {reason}", cause=error.cause, remedy=error.remedy
        )

    def _origin(self, number: int) -> Origin:
        leaf, error = self._leaf, self._errors.get(number)
        if error is not None:
            return self._originals[self._file_of(number)], int(error.offsets[-1])
        if leaf is None:
            return None
        return leaf.origin(number)

    def _file_of(self, number: int) -> int:
        return int(np.searchsorted(self._starts, number, side="right")) - 1

    def _where(self, number: int) -> str:
        file = self._file_of(number)
        return f"{self._files.names[file]}, record {number - int(self._starts[file])}"

    @property
    def files(self) -> SourceFiles:
        """The files, and how many records each has."""
        return SourceFiles(
            self._files.paths, np.diff(self._starts).tolist(), originals=self._originals
        )

    def _entries(self) -> Entries:
        if self._errors:
            bad = self._originals[self._file_of(next(iter(self._errors)))]
        else:
            bad = ""
        arrays = manifest_arrays(self._bounds, self._starts)
        return Entries(arrays=arrays, bad=bad, inferred=("features", "sequence", "index"))

    def _place(self) -> str:
        paths = self._originals
        if len(paths) == 1:
            return paths[0]
        return f"{len(paths)} files, the first is {paths[0]}"

    def _digest(self) -> str:
        about = [column.identity for column in self._columns]
        if self._errors:
            bad = [list(self._errors)]
        else:
            bad = []
        return self._files.digest("tfrecord", about, np.diff(self._starts).tolist(), *bad)

    def close(self) -> None:
        """Undo the maps, as soon as no thread reads from them any more."""
        super().close()
        self._leaf = None

    def compare_first(self) -> None:
        """Compare the first records with the fields.

        Raises:
            RecordError: none of them fits the fields. A single damaged or different record is an
                error when it is read.
        """
        leaf, errors, fitting = self._leaf, list[RecordError](), list[bytes]()
        if leaf is None:
            return
        # Several, not the first alone: that one may be damaged, or lack a feature that is optional.
        for number in range(min(FIRST_RECORDS, len(self))):
            if number in self._errors:
                continue
            raw = one_record(leaf, number)
            try:
                leaf.check(raw)
            except RowError:
                continue
            try:
                for field, values in zip(leaf.spec, leaf.parse(raw), strict=True):
                    if field.text:
                        strings.unpack(field, values)
                fitting.append(raw.payload[HEADER_BYTES:-FOOTER_BYTES].tobytes())
            except RowError as error:
                errors.append(record_error(self, number, error))
        # One record that fits is enough: the features are right then, and the others are errors
        # when they are read.
        if errors and not fitting:
            raise errors[0]
        inference.warn_of_missing(self._columns, self._line(), fitting)


def _plain(originals: Sequence[str], compression: str | None) -> list[keptfile.Place]:
    """Return the place of the uncompressed bytes of each file."""
    if compression is None:
        return list(originals)
    if compression != "auto":
        return unpack_files(originals, compression)
    _, kinds = look_at(originals, HEADER_BYTES, _compression_of)
    places = list[keptfile.Place](originals)
    for kind in ("gzip", "zlib"):
        compressed = [number for number, file_kind in enumerate(kinds) if file_kind == kind]
        if compressed:
            for number, place in zip(
                compressed,
                unpack_files([originals[number] for number in compressed], kind),
                strict=True,
            ):
                places[number] = place
    return places


def _compression_of(path: str, size: int, head: bytes) -> str:
    """Return how a file is compressed, by its first bytes; "" for one that is not."""
    # First: the length of a first record may begin with the bytes of gzip or zlib, but no gzip file
    # has its checksum.
    if is_framed(head, size):
        return ""
    if is_gzip(head):
        return "gzip"
    # RFC 1950: the first two bytes, as a number, are a multiple of 31.
    if head[:1] == b"\x78" and int.from_bytes(head[:2], "big") % 31 == 0:
        return "zlib"
    return ""


def _bounds(
    files: Files,
    originals: Sequence[str],
    indexes: Sequence[str] | None,
    *,
    verify: bool,
    on_error: str,
) -> tuple[Indices, Indices, dict[int, UnframedError]]:
    """Return where the records of each file begin and the last ends, and the number of the first of
    each file.

    Also the error of each file that has bytes behind its last record; that record is empty.
    """
    errors = dict[int, UnframedError]()

    def look(number: int, show: Show, go_on: Callable[[], None]) -> Indices:
        if indexes is not None:
            return sidecar.of_dali(files, number, originals[number], indexes[number])
        walk = partial(
            offsets_in, files, number, originals[number], verify=verify, show=partial(show, number)
        )
        try:
            return spanindex.load_or_walk(files, number, "tfrecord", walk, go_on)
        except UnframedError as error:
            if on_error == "raise":
                error.remedy += (
                    '; gl.tfrecord(..., on_error="skip") takes the records that are whole'
                )
                raise
            errors[number] = error
            # The damaged rest is an empty record at its place, so that the numbers of all others
            # depend on the files alone.
            return np.append(error.offsets, error.offsets[-1])

    bounds, starts = bounds_of(files, "looking for records", look)
    if errors:
        first = errors[min(errors)]
        if len(errors) == starts[-1]:
            raise first
        log.warning(
            "gl.tfrecord: %d of %d files are damaged, and each ends with a damaged record; the "
            "first is %s (%s)",
            *(len(errors), len(files), first.what, first.cause),
        )
    return bounds, starts, errors
