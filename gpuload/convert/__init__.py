"""Convert: the records of any source to files of another format, by threads, so that a conversion
that ended goes on.

    gl.convert(source, "out/train-{shard:05d}.tfrecord", num_shards=16)
    gl.convert("data/*.npy", "out.npz")
    gl.convert(source, "out/{field}-{shard}.npy", num_shards=2)         a file for each field
    gl.convert(gl.images("photos"), "copy/", format="images")
    gl.convert(loader, "out.npz")                                       the fields of its batches, behind its ops

Shards   shard i of k holds the records ``n * i // k`` to ``n * (i + 1) // k``, so the order of the
         records stays.
Whole    A file is written under another name (``.part-`` and random digits), flushed, read back and
         compared with the source, and renamed.
Going on Finished files stand in a journal beside the files (`journal.py`), with all that they
         depend on: source, format, arguments. The same call goes on behind them; another call is
         refused. The source's fingerprint tells whether it is the same (`Source.fingerprint`); that
         of ``gl.records`` sees its ``version=`` alone.
Memory   some tens of megabytes for each thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuload import threads
from gpuload.batch import Batch
from gpuload.convert.files import check_path, plan_parts
from gpuload.convert.folder import write_folder
from gpuload.convert.shards import write_shards
from gpuload.convert.target import find_format, select_options
from gpuload.convert.work import Conversion, ConversionWork
from gpuload.errors import SpecError
from gpuload.formats.npy import pickles
from gpuload.formats.writing import Writer
from gpuload.loader import Loader
from gpuload.open import open as open_paths
from gpuload.order import check_count, check_flag
from gpuload.pipeline.epoch import Epoch
from gpuload.sources.base import Source
from gpuload.storage.wildcards import Paths

__all__ = ["Conversion", "convert", "convert_part", "plan_parts"]


def convert(
    source: Source | Loader | Paths,
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    format: str | None = None,
    raw: Sequence[str] = (),
    tensors: Sequence[str] = (),
    num_threads: int | None = None,
    verify: bool = True,
    overwrite: bool = False,
    allow_pickle: bool = False,
    record: str | None = None,
    epoch: int | None = None,
) -> Conversion:
    """Write the records of a source to files; the same call goes on with a conversion that ended
    before its end.

    Args:
        source: a source, or the paths of files, which `gl.open` opens; or a loader: its fields,
            behind all ops, of all records in the order of its source (`Loader.to_source`).
        out: the file, with ``{shard}`` where there are several, and ``{field}`` for a file of each
            field: ``"out/train-{shard:05d}-of-{num_shards:05d}.tfrecord"``. Of a folder of images
            the folder.
        num_shards: into how many files the records go; of a mix those of the first epoch.
        format: ``"tfrecord"``, ``"npy"``, ``"npz"``, ``"fixed"`` or ``"images"``; by default that
            of the suffix.
        raw: fields that a TFRecord holds as the bytes of their elements, for decode_raw and
            ``gl.Raw``.
        tensors: fields that a TFRecord holds as serialized tensors, for parse_tensor and
            ``gl.Tensor``.
        num_threads: by default the cores that this process may use.
        verify: read every file back and compare it with the source before it gets its name.
        overwrite: files of these names that are not this conversion's own are replaced, and those
            that the journal of another conversion names are removed. Finished files of this very
            conversion are kept all the same.
        allow_pickle: ``source`` is the path of NPY or NPZ files of Python objects that you trust:
            reading them runs the code that their writer put there (`formats/npy/pickles.py`).
        record: of files of Python objects: ``"file"``: each file is one record; ``"row"``: each
            item of a file is one. By default the content of a file decides: a dict or a tuple is
            one record, an array of dicts has many.
        epoch: of a loader with random ops: the epoch of the draws that are written.

    Raises:
        SpecError: an argument does not fit, or a format cannot hold a field; the remedy names one
            that can.
        FileError: files are there already, another process writes them, the disk is full, or cannot
            be written.
        RecordError: a record cannot be read, or a file does not hold it when it is read back.
    """
    if num_shards is not None:
        num_shards = check_count("num_shards", num_shards)
    if num_threads is None:
        num_threads = threads.num_cores()
    num_threads = check_count("num_threads", num_threads)
    verify, overwrite = check_flag("verify", verify), check_flag("overwrite", overwrite)
    allow_pickle = check_flag("allow_pickle", allow_pickle)
    records_source = _open_source(source, trusts_pickles=allow_pickle, record=record, epoch=epoch)
    path = check_path(out)
    form, make_writer = find_format(path, format)
    if not len(records_source):
        raise SpecError(
            "a source without records",
            cause="there is nothing to convert",
            remedy="check the files, or the selection",
        )
    options = select_options(form, records_source, {"raw": raw, "tensors": tensors})
    work = ConversionWork(records_source, num_threads, verify=verify, overwrite=overwrite)
    writer = make_writer(**options)
    if isinstance(writer, Writer):
        return write_shards(work, path, form, writer, num_shards)
    if num_shards not in (None, 1):
        raise SpecError(
            f"num_shards = {num_shards} of a folder of {form.name}",
            cause="each record is a file of its own",
            remedy="leave num_shards out",
        )
    return write_folder(work, path, form.name, writer)


def convert_part(
    source: Source, path: str, begin: int, end: int, options: Mapping[str, Any]
) -> Conversion:
    """Write one file of those that `plan_parts` gave; a whole file stays, and parts that a killed
    call left are removed."""
    folder, name = os.path.split(path)
    pattern = name.replace("{", "{{").replace("}", "}}")
    return convert(source[begin:end], os.path.join(folder, pattern), **options)


def _open_source(
    source: Source | Loader | Paths, *, trusts_pickles: bool, record: str | None, epoch: int | None
) -> Source:
    """Return the source to convert: the argument itself, that of a loader, or that of files."""
    if isinstance(source, (Source, Loader)) and trusts_pickles:
        raise SpecError(
            f"allow_pickle=True with a {type(source).__name__}",
            cause="it is for the path of an NPY file of Python objects; a source is open already",
            remedy="leave allow_pickle out, or pass the path",
        )
    if record is not None and not trusts_pickles:
        raise SpecError(
            f"record={record!r} without allow_pickle=True",
            cause="it is about files of Python objects: it says whether an item or a file is a record",
            remedy='open the files and pass the source: gl.convert(gl.npy(paths, record="file"), out)',
        )
    if isinstance(source, Loader):
        return source.to_source(epoch)
    if epoch is not None:
        raise SpecError(
            f"epoch={epoch!r} with a {type(source).__name__}",
            cause="a source has the same records in each epoch; the random ops of a loader have not",
            remedy="leave epoch= out, or convert the loader",
        )
    if isinstance(source, Source):
        return source
    _check_paths(source)
    if trusts_pickles:
        return pickles.trusted(source, record)
    return open_paths(source)


def _check_paths(source: object) -> None:
    """Raise ``SpecError`` for a value that is neither a source nor paths, with the form that
    works."""
    if isinstance(source, (str, os.PathLike)):
        return
    advice = _advise(source)
    if advice is not None:
        cause, remedy = advice
        raise SpecError(f"gl.convert of a {type(source).__name__}", cause=cause, remedy=remedy)


def _advise(source: object) -> tuple[str, str] | None:
    """Return cause and remedy for a value that cannot be the source; None for paths."""
    items = source if isinstance(source, (list, tuple)) else ()
    in_memory = "arrays in memory are records as soon as they are a source"
    if isinstance(source, Mapping):
        return in_memory, "write gl.arrays(**fields)"
    if isinstance(source, np.ndarray) and source.ndim and source.dtype.kind not in "OU":
        return in_memory, "write gl.arrays(x=array)"
    if any(isinstance(item, Mapping) for item in items):
        return (
            "a list of dicts is not read: records lie in files, or in arrays",
            "write gl.arrays(x=[record['x'] for record in records], ...), "
            "or gl.records(len(records), read)",
        )
    if any(isinstance(item, Source) for item in items):
        return (
            "a conversion has one source",
            "join them: gl.concat(a, b), or gl.zip(a, b) for their fields",
        )
    if items and not any(isinstance(item, (str, os.PathLike)) for item in items):
        return (
            "the items of a list are the paths of files",
            "write gl.arrays(x=array, label=labels) for arrays in memory",
        )
    if isinstance(source, Epoch):
        return (
            "it is an iterator, and a conversion writes the records of a whole source",
            "pass the loader",
        )
    if isinstance(source, Batch):
        return (
            "its records are in memory",
            "pass gl.arrays(**batch), or the loader, for the records of all batches",
        )
    if not isinstance(source, Iterable):
        return "it is neither a source nor the path of files", "pass a path, or gl.arrays(x=array)"
    return None
