"""MATLAB: the meaning of attributes of the arrays of a MAT file of version 7.3, which is HDF5.

    MATLAB_class            "double", "int8", ...: numbers as they are stored; "logical": bytes 0
                            and 1; "char": the numbers of characters; "cell": references; others
                            with MATLAB_object_decode: objects
    MATLAB_empty            the dataset holds the sizes of an empty array
    MATLAB_sparse           a group: the number of rows of a sparse matrix; its parts are the
                            datasets

Axes    MATLAB's are turned in the file (`datasets.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuload.errors import SpecError

CLASS, EMPTY, OBJECT, SPARSE = (
    "MATLAB_class",
    "MATLAB_empty",
    "MATLAB_object_decode",
    "MATLAB_sparse",
)
NAMES = (CLASS, EMPTY, OBJECT)  # of attributes of a dataset
PARTS = ("data", "ir", "jc")  # of a sparse matrix
log = logging.getLogger("gpuload")


def class_of(attributes: Mapping[str, Any]) -> str:
    """Return the class of an array of MATLAB; "" for others."""
    value = attributes.get(CLASS, "")
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return str(value)


def check_class(attributes: Mapping[str, Any], dataset: Any, path: str) -> None:
    """Check that the values of an array of MATLAB are in its dataset.

    Args:
        attributes: of the dataset, those of NAMES at least.
        dataset: of h5py.
        path: by which it was asked for.

    Raises:
        SpecError: they are not.
    """
    name = class_of(attributes)
    if path.rpartition("/")[2] in PARTS and SPARSE in dataset.parent.attrs:
        raise SpecError(
            "it is a part of a sparse matrix of MATLAB",
            cause="its numbers, their rows and its columns are three datasets, and none has its "
            "rows",
            remedy="write full(X) in MATLAB; or scipy.sparse.csc_matrix((data, ir, jc)) in Python, "
            "and gl.arrays",
        )
    if attributes.get(EMPTY):
        raise SpecError(
            "it is an empty array of MATLAB",
            cause="what is stored are its sizes, and no values",
            remedy="name others by fields=",
        )
    if name == "cell":
        raise SpecError(
            "it is a cell array of MATLAB",
            cause="what is stored are references to other datasets, which may be of any kind",
            remedy="make one array of it in MATLAB, cat(1, c{:}), or read it by h5py: "
            "file[reference]",
        )
    if OBJECT in attributes:
        raise SpecError(
            f"it is an object of MATLAB, of the class {name}",
            cause="what is stored are numbers by which MATLAB finds its values in other places",
            remedy="save an array of numbers in MATLAB, double(x) or table2array(x), say",
        )


def dtype_of(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the elements of an array of a stored dtype: boolean for logical ones of
    MATLAB."""
    if class_of(attributes) == "logical" and dtype == np.uint8:
        return np.dtype(bool)
    return dtype


def tell_characters(attributes: Mapping[str, Any], title: str, dtype: np.dtype[Any]) -> None:
    """Warn of characters of MATLAB, which come as their numbers."""
    if class_of(attributes) == "char" and dtype.kind == "u":
        log.warning(
            "%s: its elements are characters of MATLAB, and come as their numbers (%s): "
            '"".join(map(chr, row)) is the text of a row',
            *(title, dtype),
        )


def is_stored_as(dtype: np.dtype[Any], stored_dtype: np.dtype[Any]) -> bool:
    """Return True if HDF5 has one dtype for the elements of an array of the other: bytes for
    logical ones."""
    return dtype == stored_dtype or (dtype == np.dtype(bool) and stored_dtype == np.dtype(np.uint8))


def tell_sparse(path: str, nodes: Mapping[str, Any], is_alone: bool) -> None:
    """Warn of sparse matrices of MATLAB among the members of a group, which are no fields.

    Raises:
        SpecError: nothing else is there.
    """
    names = [name for name, node in nodes.items() if SPARSE in getattr(node, "attrs", ())]
    if names and is_alone:
        raise SpecError(
            f"{path}: {names[0]!r} is a sparse matrix of MATLAB",
            cause="no dataset has its rows",
            remedy="write full(X) in MATLAB; or scipy.sparse.csc_matrix((data, ir, jc)) in Python, "
            "and gl.arrays",
        )
    if names:
        log.warning(
            "%s: sparse matrices of MATLAB are left out: %s. full(X) in MATLAB makes arrays",
            path,
            names[:8],
        )
