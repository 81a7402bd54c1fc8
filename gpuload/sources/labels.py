"""Labels of image files that are not the folders they lie in: a list, a mapping, a CSV file.

Names   a file is named as seen from the folder of the images, as seen from where the program runs, or by its absolute
        path; in a CSV file also as seen from the folder of that file. The first of these that is an image is meant.
Exact   every image has one label and every label an image; nothing is left out, and the order is that of the images.
CSV     a header, then file and label in each line; quotes as in RFC 4180, UTF-8, with or without a byte order mark.
        Labels are whole numbers if all are, else numbers if all are, else texts.
Source  https://docs.python.org/3/library/csv.html, RFC 4180
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from gpuload.errors import FormatError, SpecError
from gpuload.sources.arrays import as_array
from gpuload.sources.leaf import Array
from gpuload.storage.files import Path, open_error

Labels = Literal["folder"] | None | Path | ArrayLike | Mapping[Any, Any]
KINDS = "biuf"  # of numbers that labels can be
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
REMEDY = 'pass "folder", None, a list or array, a mapping from file to label, or the path of a .csv file'


@dataclass(frozen=True)
class Found:
    """The labels of image files.

    Attributes:
        values: ``[num_files, ...]``: the labels, of texts their class numbers.
        classes: of texts the different ones, sorted.
        given: an array of the labels in the order of the files, from which the same is found again.
    """

    values: Array
    classes: tuple[str, ...]
    given: Array


def labels_of(labels: Any, root: str, paths: Sequence[str]) -> Found:
    """Return the labels of files.

    Args:
        labels: see ``gl.images``.
        root: the folder that all files lie in.
        paths: the files, absolute.

    Raises:
        SpecError: they are no labels, or not one for each file.
        FileError, FormatError: the CSV file cannot be read, or is none.
    """
    if isinstance(labels, Mapping):
        entries = [(f"labels[{str(name)!r}]", name, label) for name, label in labels.items()]
        labels = _in_order(entries, [root, os.getcwd()], paths)
    elif isinstance(labels, (str, os.PathLike)):
        labels = _of_csv(labels, root, paths)
    elif not isinstance(labels, Sequence) and not getattr(labels, "ndim", 0):
        raise SpecError(f"labels = {labels!r}", cause="it is nothing that has a label for each image", remedy=REMEDY)
    return _found(labels, len(paths))


def _found(labels: Any, count: int) -> Found:
    array = as_array("labels", labels)
    if array.dtype.kind == "U" and array is not labels and not all(isinstance(label, str) for label in labels):
        raise SpecError(
            "labels are texts and others, mixed",
            cause="labels are numbers, or class names, and NumPy would make names of both",
            remedy="pass one kind: [str(label) for label in labels]",
        )
    if len(array) != count:
        raise SpecError(
            f"labels has {len(array)} entries, there are {count} images",
            cause="the i-th label is that of the i-th image, in the order of the paths",
            remedy="pass one for each image; source.where(i) of gl.images(..., labels=None) says which image that is",
        )
    if array.dtype.kind == "U" and array.ndim == 1:
        classes = sorted(set(array.tolist()))
        number_of = {name: number for number, name in enumerate(classes)}
        return Found(np.array([number_of[name] for name in array.tolist()], np.int64), tuple(classes), array.copy())
    if array.dtype.kind not in KINDS:
        remedy = "numpy.char.decode(labels) makes texts of them" if array.dtype.kind == "S" else "pass numbers or texts"
        raise SpecError(
            f"labels of dtype {array.dtype} and shape {array.shape}",
            cause="labels are numbers, arrays of numbers, or one text for each image",
            remedy=remedy,
        )
    values = np.array(array, array.dtype.newbyteorder("="), order="C")
    return Found(values, (), values)


def _in_order(entries: Iterable[tuple[str, Any, Any]], bases: list[str], paths: Sequence[str]) -> list[Any]:
    """Return the labels in the order of the files.

    Args:
        entries: for each label where it stands, the name of the file, and the label.
        bases: the folders from which a name may be seen.
        paths: the files, absolute.
    """
    numbers = {path: number for number, path in enumerate(paths)}
    labels: list[Any] = [None] * len(paths)
    places = [""] * len(paths)
    for place, name, label in entries:
        number = _number_of(name, bases, numbers)
        if number is None:
            raise SpecError(
                f"{place}: {str(name)!r} is none of the {len(paths)} images",
                cause=f"no image has this name, as seen from {' or '.join(dict.fromkeys(bases))}",
                remedy="name the file as it is, or leave its label out",
            )
        if places[number]:
            raise SpecError(
                f"{place}: {str(name)!r} has a label already, {places[number]}",
                cause=f"both mean {paths[number]}",
                remedy="leave one of the two out",
            )
        labels[number], places[number] = label, place
    missing = [path for path, place in zip(paths, places, strict=True) if not place]
    if missing:
        raise SpecError(
            f"{missing[0]} has no label" + (f", nor have {len(missing) - 1} others" if len(missing) > 1 else ""),
            cause=f"there are {len(paths) - len(missing)} labels for {len(paths)} images",
            remedy="add its label, or name only the images that have one: gl.images([...], labels=...)",
        )
    return labels


def _number_of(name: Any, bases: list[str], numbers: Mapping[str, int]) -> int | None:
    """Return the number of the file that is meant, None where there is none."""
    if not isinstance(name, (str, os.PathLike)) or not isinstance(os.fspath(name), str):
        raise SpecError(
            f"labels: {name!r} as the name of a file", cause="a name is a text or a path", remedy="pass such a name"
        )
    text = os.path.expanduser(os.fspath(name))
    for base in bases:
        path = os.path.join(base, text)  # of an absolute path that path
        number = numbers.get(path)
        if number is None:
            number = numbers.get(os.path.normpath(path))
        if number is not None:
            return number
    return None


def _of_csv(given: Path, root: str, paths: Sequence[str]) -> list[Any]:
    """Return the labels in a CSV file, in the order of the files."""
    text = os.fspath(given)
    if not isinstance(text, str) or not text.lower().endswith(".csv"):
        raise SpecError(f"labels = {given!r}", cause="a text is 'folder' or the path of a .csv file", remedy=REMEDY)
    path = os.path.abspath(os.path.expanduser(text))
    bases = [root, os.path.dirname(path), os.getcwd()]
    return _numbers(_in_order(_rows(path, bases, paths), bases, paths))


def _rows(path: str, bases: list[str], paths: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Give the rows of a CSV file with where each stands: file and label."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            try:
                _check_header(path, next(reader, []), bases, paths)
                for row in reader:
                    if row:
                        yield _row(f"{path}, line {reader.line_num}", row)
            except (csv.Error, UnicodeDecodeError) as error:
                raise FormatError(
                    f"{path}, line {reader.line_num}: it is no CSV file in UTF-8",
                    cause=str(error),
                    remedy="write it with Python's csv module, or save it as CSV in UTF-8",
                ) from None
    except OSError as error:
        raise open_error(path, error) from None


def _check_header(path: str, header: list[str], bases: list[str], paths: Sequence[str]) -> None:
    if len(header) != 2:
        raise FormatError(
            f"{path}: its first line has {len(header)} columns, {header!r}",
            cause="there are two columns with commas between them, file and label, and the first line is their names",
            remedy="write a CSV file of these two columns",
        )
    if _number_of(header[0], bases, {one: number for number, one in enumerate(paths)}) is not None:
        raise FormatError(
            f"{path}: its first line is {header!r}",
            cause="the first line has the names of the columns, and this one has a file and its label",
            remedy="put a line 'file,label' before it",
        )


def _row(place: str, row: list[str]) -> tuple[str, str, str]:
    if len(row) != 2 or not all(row):
        raise FormatError(
            f"{place}: {row!r}",
            cause="a line has two columns, a file and its label",
            remedy='put quotes around what holds a comma: "cat, black.jpg",3',
        )
    return place, row[0], row[1]


def _numbers(labels: list[str]) -> list[Any]:
    """Return labels of a CSV file as whole numbers if all are, else as numbers if all are, else as they are."""
    if all(map(WHOLE.fullmatch, labels)):
        return list(map(int, labels))
    return list(map(float, labels)) if all(map(NUMBER.fullmatch, labels)) else labels
