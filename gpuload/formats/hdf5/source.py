"""HDF5 files: datasets of one length are the fields of records.

Layout  A file holds groups of datasets, each in one piece (contiguous), in chunks, or in its header
        (compact).
Access  Contiguous datasets, and chunks without filters that hold whole rows, are read where they
        lie, row by row, as NPY files are. Chunks behind deflate, shuffle and fletcher32 are decoded
        here (`chunks.py`), by all threads side by side. All others go through h5py: other filters,
        values of varying length, types that NumPy has not. HDF5 has one lock for all of its calls,
        so that these are decoded one after the other.
Opening h5py reads the metadata (`library.py`), of which a `Dataset` is all that is used
        (`datasets.py`). A manifest holds these (`listing.py`): a source that is opened by it needs
        h5py only for datasets that HDF5 decodes.
Links   soft links are followed. External links, virtual datasets and datasets with their bytes in
        other files are refused by name: their bytes have other names, changes and rights than the
        file.
Damage  HDF5's library ends the process for some damaged files. Metadata of files that are written
        with ``libver="v108"`` or later have checksums; others have none.
Needs   h5py; hdf5plugin for filters that HDF5 has not.
Source  https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gpuload.errors import FormatError, GpuloadError, MissingPackageError, SpecError
from gpuload.formats import members
from gpuload.formats.hdf5.datasets import (
    HDF5,
    Dataset,
    DatasetKind,
    DatasetPlace,
    check_filters,
    member_of,
    read_dataset,
    within,
)
from gpuload.formats.hdf5.library import (
    CALL,
    further_names,
    import_h5py,
    names_in,
    read_file,
    refusal,
)
from gpuload.formats.hdf5.listing import from_manifest, to_manifest
from gpuload.sources.blocks import CACHE_BYTES
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.furtherfields import log_further_fields
from gpuload.storage import manifest, open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files, look_at
from gpuload.storage.handles import by_chunks
from gpuload.storage.wildcards import Paths, expand


def hdf5(
    paths: Paths,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    *,
    group: str = "/",
    fill: bool | None = None,
    mask_and_scale: bool | None = None,
    order: Literal["C", "F"] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> ColumnSource:
    """Return the records of HDF5 files: element i of the first axis of each dataset.

        gl.hdf5("train.h5")
        gl.hdf5("shards/*.h5", ["image", "label"])                            these datasets alone
        gl.hdf5("all.h5", {"image": "x", "label": "meta/y"}, group="train")   /train/x, /train/meta/y

    ``source.describe()`` says which datasets are read where they lie, and which are decoded a block
    of rows at a time. With the latter a shuffle of all rows decodes a block for each of them,
    unless they fit into the cache: ``shuffle=gl.Blocks(1000, 4)``, with the number of rows of a
    block, decodes each once.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a
            wildcard is sorted. Or a manifest of such files (``Source.index``).
        fields: the paths of datasets in the group, in this order; or a dict from names of fields to
            these. By default all datasets of the group itself that have an axis.
        group: the path of the group.
        fill: True reads chunks that were never written as the fill value, without a warning; False:
            they are an error.
        mask_and_scale: True makes values of numbers that are packed, as netCDF's ``scale_factor``,
            ``add_offset``, ``_FillValue``, ``missing_value``, ``valid_range`` and ``_Unsigned``
            say: floats, with NaN for a missing value. False gives them as they are stored. By
            default packed numbers are an error.
        order: ``"F"`` turns the axes of datasets, as those of MATLAB (v7.3) have to be: record i is
            element i of the last axis of the dataset, which was the first one in MATLAB. ``"C"``
            takes them as stored. By default datasets of several axes that MATLAB wrote are an
            error.
        cache_bytes: of decoded blocks that are kept.

    Raises:
        SpecError: an argument is wrong; a dataset cannot be a field; datasets differ in length, or
            files in a field; chunks are not there, numbers are packed or axes are turned, and no
            argument says how they are read.
        UnknownFieldError: there is no such dataset or group.
        FormatError: a file is no HDF5 file, or is damaged.
        FileError: a file is missing, a directory, or cannot be read.
        MissingPackageError: h5py is not installed, or a filter is missing that hdf5plugin may have.
    """
    arguments = members.check_arguments(CALL, fields, group, cache_bytes, fill, mask_and_scale)
    if order is not None and (not isinstance(order, str) or order not in ("C", "F")):
        raise SpecError(
            f"{CALL}: order = {order!r}",
            cause="it says whether the axes of datasets are turned",
            remedy='write order="F", which turns them, or order="C"',
        )
    arguments["order"] = order
    listing = manifest.load(paths, "hdf5")
    if listing is None:
        import_h5py()
        names: Sequence[str] = expand(paths)
        files, _ = look_at(names, 0, lambda path, size, head: None)
        storage = open_storage(files)
        pairs, tables = _read_files(files, storage, arguments["fields"], group, order)
    else:
        names, files, storage = listing.files.paths, listing.files, open_storage(listing.files)
        pairs, tables = from_manifest(listing, arguments["fields"], group)
        _check_kinds({dataset.kind for table in tables for dataset in table}, listing.path, order)
    argument: Any = tuple(names)
    if listing is not None:
        argument = listing.path
    opening = Opening(hdf5, {"paths": argument, **arguments})
    listed_paths = [members.complete_path(group, path) for path in pairs.values()]

    def entries() -> Entries:
        return Entries(*to_manifest(listed_paths, tables))

    try:
        table_members = [
            [
                member_of(DatasetPlace(files, number, storage, group, name, path), dataset)
                for (name, path), dataset in zip(pairs.items(), table, strict=True)
            ]
            for number, table in enumerate(tables)
        ]
        return members.source_of(
            files, storage, opening, table_members, files.paths, arguments, entries
        )
    except (SpecError, FormatError) as error:
        raise (error if listing is None else error.within(listing.path)) from None


def _read_files(
    files: Files, storage: Storage, fields: Mapping[str, str] | None, group: str, order: str | None
) -> tuple[Mapping[str, str], list[list[Dataset]]]:
    """Return the paths of datasets by the names of fields, and of each file these datasets."""
    pairs, table = _read_file(files, 0, storage, fields, group, order)

    later_fields = dict[str, list[str]]()
    further = None
    if fields is None:
        further = later_fields

    def read(chunk: Sequence[int]) -> list[list[Dataset]]:
        return [
            _read_file(files, number, storage, pairs, group, order, further)[1] for number in chunk
        ]

    tables = [table, *by_chunks(read, range(1, len(files)))]
    log_further_fields(CALL, files.paths[0], list(pairs), later_fields)
    return pairs, tables


def _read_file(
    files: Files,
    number: int,
    storage: Storage,
    fields: Mapping[str, str] | None,
    group: str,
    order: str | None,
    later_fields: dict[str, list[str]] | None = None,
) -> tuple[Mapping[str, str], list[Dataset]]:
    """Return the datasets of a file that are fields (None: all of the group).

    The names of those that are none go into ``later_fields``, by the path of the file.
    """
    path = files.paths[number]

    def read(file: Any) -> tuple[Mapping[str, str], list[Dataset]]:
        pairs = dict(fields or {name: name for name in names_in(file, path, group)})
        table = list[Dataset]()
        for name, dataset_path in pairs.items():
            place = DatasetPlace(files, number, storage, group, name, dataset_path)
            try:
                table.append(read_dataset(place, file, order))
            except (SpecError, MissingPackageError) as error:
                raise within(place, [] if fields else list(pairs), error) from None
        if later_fields is not None:
            later_fields[path] = further_names(file, path, group, pairs)
        return pairs, table

    return read_file(
        files, number, read, lambda error: refusal(files, number, f"{path} is damaged", error)
    )


def _check_kinds(kinds: set[DatasetKind], path: str, order: str | None) -> None:
    """Raise ``MissingPackageError`` if HDF5 decodes one of these, and it or one of its filters is
    not there.

    Raises:
        SpecError: they were indexed with another order of axes than is asked for.
    """
    for kind in kinds:
        if (
            order is not None
            and kind.shape
            and (order == "F") != (kind.order == "F")
            and not kind.varying
        ):
            raise SpecError(
                f"{path} was written with other axes than order={order!r}",
                cause="a manifest lists the records that its source had",
                remedy="leave order= out, or index the files with it",
            )
        if kind.how == HDF5:
            try:
                check_filters([(code, name) for code, _, name in kind.filters])
            except GpuloadError as error:
                raise error.within(path) from None
