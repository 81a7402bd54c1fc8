"""Zarr as a format: folders with a file of metadata, which says so by its name."""

from __future__ import annotations

from gpuload import lazy
from gpuload.errors import MissingFileError
from gpuload.formats.base import Folder, Format
from gpuload.formats.zarr import METADATA
from gpuload.sources.base import Source
from gpuload.storage.handles import exists
from gpuload.storage.wildcards import join

zarr = lazy.function("gpuload.formats.zarr.source", "zarr")


def _is_store(folder: str) -> bool:
    return any(exists(join(folder, name)) for name in METADATA)


def _open_folder(folder: str) -> Source:
    if not _is_store(folder):
        raise MissingFileError(
            f"{folder} is no Zarr group", cause=f"it has none of {METADATA}", remedy="check it"
        )
    source: Source = zarr(folder)
    return source


ZARR = Format(
    "zarr",
    zarr,
    records={
        'gl.zarr(paths, fields=None, group="/", fill=None, mask_and_scale=None)': "element i of the "
        "first axis of arrays of Zarr groups, formats 2 and 3 ([guide](guides/hdf5.md#zarr))"
    },
    folder=Folder(_open_folder, (), recognize=_is_store),
)
