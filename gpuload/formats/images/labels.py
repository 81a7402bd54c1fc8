"""Labels of image files that are not the folders they lie in: a list, a mapping, a CSV file.

Names   a file is named as seen from the folder of the images, as seen from where the program runs,
        or by its absolute path; in a CSV file also as seen from the folder of that file. The first
        of these that is an image is meant.
Stems   a name without a file stands for the file that has it before its suffix: ``cat/1`` for
        ``cat/1.jpg``; then for the image in any folder with this stem. A stem of two images is
        refused.
Exact   every image has one label and every label an image; nothing is left out, and the order is
        that of the images.
CSV     a header with the names of the columns, then a line for each image; quotes as in RFC 4180,
        UTF-8, with or without a byte order mark. A file has two columns, file and label, or
        `Labels` names those that are meant. Labels are whole numbers if all are, else numbers if
        all are, else texts.
Texts   become numbers of classes (`sources/classnames.py`). With ``classes=`` labels of a CSV file
        that all are names of classes are these, also where the names are numbers.
Source  https://docs.python.org/3/library/csv.html, RFC 4180
"""

from __future__ import annotations

import csv
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from gpuload.errors import FormatError, SpecError
from gpuload.sources.arrays import as_array
from gpuload.sources.classnames import (
    AnyClasses,
    check_numbers,
    class_names,
    in_order,
    log_order,
    numbers_of,
)
from gpuload.sources.leaf import Array
from gpuload.sources.names import misnumbered
from gpuload.storage.fileerrors import open_error
from gpuload.storage.handles import open_regular
from gpuload.storage.wildcards import Path

MOST_COLUMNS = 12  # in an error
LARGEST_DIGITS = 19  # of int64
INT64 = np.iinfo(np.int64)
# Names of the column of files, in small letters; where two columns have such names, or none has, it
# is the first.
FILE_NAMES = {
    "file",
    "filename",
    "file_name",
    "image",
    "image_id",
    "image_name",
    "img",
    "id",
    "path",
    "filepath",
}
FILE_NAMES |= {"file_path", "image_path", "imageid", "image_file"}
KINDS = "biuf"  # of numbers that labels can be
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
MOST_PATHS = 2  # in a line of the log
REMEDY = (
    'pass "folder", None, a list or array, a mapping from file to label, or the path of a .csv file'
)
log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class Labels:
    """Columns of a CSV file that has more than two:
    ``gl.images("train", labels=gl.Labels("train.csv", "breed"))``.

    Args:
        path: of the CSV file.
        label: the name of the column of labels; several names make a vector of numbers of each
            image.
        file: the name of the column of files, with or without their suffix. By default the column
            that is called ``id``, ``file``, ``image`` or similar, else the first.
        classes: the names of the classes, as of ``gl.images``:
            ``gl.Labels("val.csv", "breed", classes=train)``.
    """

    path: Path
    label: str | Sequence[str]
    file: str | None = None
    classes: AnyClasses | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", class_names(self.classes, "gl.Labels"))
        names: Any = (self.label,) if isinstance(self.label, str) else self.label
        if (
            not isinstance(names, (list, tuple))
            or not names
            or not all(isinstance(name, str) for name in names)
        ):
            raise SpecError(
                f"gl.Labels with label={self.label!r}"[:200],
                cause="it is the name of a column, or a list of names",
                remedy='write gl.Labels("train.csv", label="breed"), say',
            )
        if self.file is not None and not isinstance(self.file, str):
            raise SpecError(
                f"gl.Labels with file={self.file!r}"[:200],
                cause="it is the name of a column",
                remedy="leave it out",
            )
        if self.classes is not None and not isinstance(self.label, str):
            raise SpecError(
                f"gl.Labels with label={list(self.label)!r} and classes"[:200],
                cause="a class is one name for each image, and several columns are a vector of "
                "numbers",
                remedy="name one column, or leave classes= out",
            )


AnyLabels = Literal["folder"] | None | Path | ArrayLike | Mapping[Any, Any] | Labels


@dataclass(frozen=True)
class ImageLabels:
    """The labels of image files.

    Attributes:
        values: ``[num_files, ...]``: the labels, of texts their class numbers.
        classes: the names of the classes: those that were stated, else of texts the different ones;
            see `in_order`.
        argument: the labels in the order of the files: as argument of ``labels_of`` it gives the
            same.
    """

    values: Array
    classes: tuple[str, ...]
    argument: InOrder


@dataclass(frozen=True, eq=False)
class InOrder:
    """Labels that are known to be in the order of the files, as a source is pickled with them."""

    values: Array


def stated_classes(labels: Any, classes: AnyClasses | None) -> tuple[str, ...] | None:
    """Return the names of the classes that the arguments of ``gl.images`` state; None if they state
    none.

    Raises:
        SpecError: they are no names, two arguments state them, or there are no labels.
    """
    names = class_names(classes, "gl.images")
    if names is not None and labels is None:
        raise SpecError(
            "gl.images with classes= and labels=None",
            cause="classes are the names of labels, and there are none",
            remedy='pass labels="folder", or other labels, or leave classes= out',
        )
    if not isinstance(labels, Labels) or labels.classes is None:
        return names
    if names is not None:
        raise SpecError(
            "classes= of gl.images and of gl.Labels",
            cause="both state the classes of the labels",
            remedy="pass one of them",
        )
    return class_names(labels.classes, "gl.Labels")


def labels_of(
    labels: Any,
    root: str,
    paths: Sequence[str],
    classes: tuple[str, ...] | None = None,
    *,
    is_sorted: bool = False,
) -> ImageLabels:
    """Return the labels of files.

    Args:
        labels: see ``gl.images``.
        root: the folder of all files.
        paths: the files, absolute.
        classes: the names of the classes that were stated.
        is_sorted: True if the order of the files is that of their names, which the log may explain.

    Raises:
        SpecError: the argument is no labels, or has not one label for each file.
        FileError, FormatError: the CSV file cannot be read, or is no CSV file.
    """
    source = "labels"
    if isinstance(labels, InOrder):
        labels = labels.values
    elif isinstance(labels, Mapping):
        entries = [(f"labels[{str(name)!r}]", name, label) for name, label in labels.items()]
        labels = _in_order(entries, [root, os.getcwd()], paths)
    elif isinstance(labels, (str, os.PathLike)):
        source, labels = str(labels), _of_csv(labels, None, root, paths, classes)
    elif isinstance(labels, Labels):
        source, labels = str(labels.path), _of_csv(labels.path, labels, root, paths, classes)
    elif not isinstance(labels, Sequence) and not getattr(labels, "ndim", 0):
        raise SpecError(
            f"labels = {labels!r}",
            cause="it is nothing that has a label for each image",
            remedy=REMEDY,
        )
    elif is_sorted:
        _log_order(root, paths)
    return _image_labels(labels, paths, classes, source)


def _log_order(root: str, paths: Sequence[str]) -> None:
    """Warn if files are numbered, and the order of their names is not that of the numbers: 0, 1,
    10, 11, 2."""
    number = misnumbered(paths)
    if number:
        names = [
            name[len(root) :].lstrip("/")
            for name in (*paths[:MOST_PATHS], *paths[number - 1 : number + 1])
        ]
        log.warning(
            "%s: the labels are matched to the images in the order of their names, which is not "
            "that of their "
            "numbers: %s ... %s, %s ...; if they are in another order, pass a mapping from file to "
            "label, or list "
            "the files: gl.images([...], labels=...)",
            root, ", ".join(names[:-2]), *names[-2:],
        )  # fmt: skip


def _image_labels(
    labels: Any, paths: Sequence[str], classes: tuple[str, ...] | None, source: str
) -> ImageLabels:
    """Return the labels that are given image by image: class names, or numbers, or an array for
    each."""
    count = len(paths)
    array = as_array("labels", labels)
    if (
        array.dtype.kind == "U"
        and array is not labels
        and not all(isinstance(label, str) for label in labels)
    ):
        raise SpecError(
            "labels are texts and others, mixed",
            cause="labels are numbers, or class names, and NumPy would make names of both",
            remedy="pass one kind: [str(label) for label in labels]",
        )
    if len(array) != count:
        raise SpecError(
            f"labels has {len(array)} entries, there are {count} images",
            cause="the i-th label is that of the i-th image, in the order of the paths",
            remedy="pass one for each image; source.where(i) of gl.images(..., labels=None) says "
            "which image that is",
        )

    def place_of(number: int) -> str:
        return f"{source}: {paths[number]}, record {number}"

    if array.dtype.kind == "U" and array.ndim == 1:
        names = array.tolist()
        if classes is None:
            order = in_order(names)
        else:
            order = classes
        numbers = numbers_of(
            names, order, place_of, "open the images of the classes alone, gl.images([...])"
        )
        if classes is None:
            log_order(
                order,
                f"{source}: the labels are texts that",
                "pass numbers, or classes=[...] in their order",
            )
        return ImageLabels(numbers, order, InOrder(array.copy()))
    if array.dtype.kind not in KINDS:
        if array.dtype.kind == "S":
            remedy = "numpy.char.decode(labels) makes texts of them"
        else:
            remedy = "pass numbers or texts"
        raise SpecError(
            f"labels of dtype {array.dtype} and shape {array.shape}",
            cause="labels are numbers, arrays of numbers, or one text for each image",
            remedy=remedy,
        )
    values = np.array(array, array.dtype.newbyteorder("="), order="C")
    if classes is not None:
        check_numbers(values, classes, place_of)
    return ImageLabels(values, classes or (), InOrder(values))


def _in_order(
    entries: Iterable[tuple[str, Any, Any]], bases: list[str], paths: Sequence[str]
) -> list[Any]:
    """Return the labels in the order of the files.

    Args:
        entries: for each label its place in the argument, the name of the file, and the label.
        bases: the folders that a name may be relative to.
        paths: the files, absolute.
    """
    images = _Images(bases, paths)
    labels: list[Any] = [None] * len(paths)
    places = [""] * len(paths)
    for place, name, label in entries:
        number = images.number_of(place, name)
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
        suffix = ""
        if len(missing) > 1:
            suffix = f", nor have {len(missing) - 1} others"
        raise SpecError(
            f"{missing[0]} has no label" + suffix,
            cause=f"there are {len(paths) - len(missing)} labels for {len(paths)} images",
            remedy="add its label, or name only the images that have one: gl.images([...], "
            "labels=...)",
        )
    return labels


class _Images:
    """The images by their names.

    Args:
        bases: the folders from which a name may be seen.
        paths: of the images, absolute.
    """

    def __init__(self, bases: list[str], paths: Sequence[str]) -> None:
        self._bases, self._paths = bases, paths
        self._numbers = {path: number for number, path in enumerate(paths)}
        self._stems: dict[str, list[int]] | None = (
            None  # by path without suffix, and by name without suffix
        )

    def number_of(self, place: str, name: Any) -> int | None:
        """Return the number of the image that a name means, None where there is none.

        Raises:
            SpecError: it is no name, or means several images.
        """
        number = self.exact(name)
        if number is not None:
            return number
        text = os.path.expanduser(os.fspath(name))
        numbers = next(
            filter(None, (self._of_stem(os.path.join(base, text)) for base in self._bases)), []
        )
        if not numbers and not os.path.dirname(text):
            numbers = self._of_stem(text)
        if len(numbers) > 1:
            raise SpecError(
                f"{place}: {str(name)!r} is the name of {len(numbers)} images without their suffix "
                "or folder",
                cause=f"{self._paths[numbers[0]]} and {self._paths[numbers[1]]} are two of them",
                remedy="write the names with suffix and folder, or open the images of one folder "
                "alone",
            )
        return numbers[0] if numbers else None

    def exact(self, name: Any) -> int | None:
        """Return the number of the image with a name, suffix and folder included; None where there
        is none."""
        if not isinstance(name, (str, os.PathLike)) or not isinstance(os.fspath(name), str):
            raise SpecError(
                f"labels: {name!r} as the name of a file",
                cause="a name is a text or a path",
                remedy="pass such a name",
            )
        text = os.path.expanduser(os.fspath(name))
        for base in self._bases:
            path = os.path.join(base, text)  # of an absolute path that path
            # As it is first: ``normpath`` takes longer than the look-up, and few names need it.
            number = self._numbers.get(path)
            if number is None:
                number = self._numbers.get(os.path.normpath(path))
            if number is not None:
                return number
        return None

    def _of_stem(self, name: str) -> list[int]:
        if self._stems is None:
            self._stems = {}
            for number, path in enumerate(self._paths):
                stem = os.path.splitext(path)[0]
                for key in (stem, os.path.basename(stem)):
                    self._stems.setdefault(key, []).append(number)
        return self._stems.get(name) or self._stems.get(os.path.normpath(name), [])


def _of_csv(
    argument: Path,
    columns: Labels | None,
    root: str,
    paths: Sequence[str],
    classes: tuple[str, ...] | None,
) -> Any:
    """Return the labels in a CSV file, in the order of the files."""
    if isinstance(argument, (str, os.PathLike)):
        text = os.fspath(argument)
    else:
        text = None
    if not isinstance(text, str) or not text.lower().endswith(".csv"):
        raise SpecError(
            f"labels = {argument!r}",
            cause="a text is 'folder' or the path of a .csv file",
            remedy=REMEDY,
        )
    path = os.path.abspath(os.path.expanduser(text))
    bases = [root, os.path.dirname(path), os.getcwd()]
    rows = _in_order(_rows(path, columns, _Images(bases, paths)), bases, paths)
    if classes is not None and len(rows[0][1]) == 1:
        texts = [label[0] for _, label in rows]
        # Names first: of classes that are called 1, 2 and 10, the text 10 is the last one.
        if set(texts) <= set(classes):
            return texts
    vectors = [
        _numbers([(place, label[at]) for place, label in rows]) for at in range(len(rows[0][1]))
    ]
    if columns is None or isinstance(columns.label, str):
        return vectors[0]
    for name, vector in zip(columns.label, vectors, strict=True):
        if isinstance(vector[0], str):
            raise SpecError(
                f"{path}, column {name!r} holds texts, "
                f"{next(text for text in vector if _is_word(text))!r} is one",
                cause="several columns make a vector of numbers of each image",
                remedy="name columns of numbers, or one column of texts",
            )
    return np.array(vectors).T


def _rows(
    path: str, columns: Labels | None, images: _Images
) -> Iterator[tuple[str, str, tuple[str, tuple[str, ...]]]]:
    """Yield the rows of a CSV file: (place, file, (place, texts of the label)); ``place`` is path
    and line."""
    descriptor = open_regular(path)
    try:
        # -sig: spreadsheets write a byte order mark in front. newline="": line ends inside quotes
        # are csv's to decide.
        with open(descriptor, encoding="utf-8-sig", newline="") as file:
            # strict: without it, a quote in the wrong place swallows the lines behind it, and no
            # error says so.
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            try:
                header = next(reader, [])
                file_column, label_columns = _columns(path, header, columns, images)
                for row in reader:
                    if row:
                        place = f"{path}, line {reader.line_num}"
                        _check_row(place, row, header, (file_column, *label_columns))
                        yield (
                            place,
                            row[file_column],
                            (place, tuple(row[column] for column in label_columns)),
                        )
            except (csv.Error, UnicodeDecodeError) as error:
                raise FormatError(
                    f"{path}, line {reader.line_num}: it is no CSV file in UTF-8",
                    cause=str(error),
                    remedy="write it with Python's csv module, or save it as CSV in UTF-8",
                ) from None
    except OSError as error:
        raise open_error(path, error) from None


def _columns(
    path: str, header: list[str], columns: Labels | None, images: _Images
) -> tuple[int, list[int]]:
    """Return the number of the column of files, and those of the label."""
    if len(header) < 2 or (columns is None and len(header) > 2):
        hint = f'gl.Labels({os.path.basename(path)!r}, label="...", file="...") says which of more columns are meant'
        remedy = "write a CSV file of these two columns"
        if len(header) > 2:
            remedy = f"labels={hint}"
        raise FormatError(
            f"{path}: its first line has {len(header)} columns, {_shorten(header)}",
            cause="there are two columns with commas between them, file and label, and the first "
            "line is their names",
            remedy=remedy,
        )
    if any(name and images.exact(name) is not None for name in header):
        raise FormatError(
            f"{path}: its first line is {_shorten(header)}",
            cause="the first line has the names of the columns, and this one has a file and its "
            "label",
            remedy="put a line 'file,label' before it",
        )
    candidates = [
        number for number, name in enumerate(header) if name.strip().lower() in FILE_NAMES
    ]
    if len(candidates) == 1:
        file_column = candidates[0]
    else:
        file_column = 0
    if columns is None:
        return file_column, [1 - file_column]
    if columns.file is not None:
        file_column = _column(path, header, columns.file)
    names = [columns.label] if isinstance(columns.label, str) else columns.label
    return file_column, [_column(path, header, name) for name in names]


def _column(path: str, header: list[str], name: str) -> int:
    if header.count(name) == 1:
        return header.index(name)
    columns_text = "two columns"
    if name not in header:
        columns_text = "no column"
    raise SpecError(
        f"{path} has {columns_text} {name!r}",
        cause=f"its first line names the columns {_shorten(header)}",
        remedy="name one of these, each once",
    )


def _shorten(values: Sequence[str]) -> str:
    """Return the first MOST_COLUMNS values of a line, for a message, and how many more there
    are."""
    if len(values) > MOST_COLUMNS:
        suffix = f" and {len(values) - MOST_COLUMNS} more"
    else:
        suffix = ""
    return f"{list(values[:MOST_COLUMNS])!r}{suffix}"


def _check_row(place: str, row: list[str], header: list[str], selection: Sequence[int]) -> None:
    if len(row) != len(header) or not all(row[number] for number in selection):
        if len(header) == 2:
            cause = "a line has two columns, a file and its label"
        else:
            cause = f"the first line has {len(header)} columns, this one {len(row)}, and file and label are not empty"
        raise FormatError(
            f"{place}: {_shorten(row)}",
            cause=cause,
            remedy='put quotes around a value that holds a comma: "cat, black.jpg",3',
        )


def _numbers(labels: Sequence[tuple[str, str]]) -> list[Any]:
    """Return labels of a CSV file as whole numbers if all are, else as numbers if all are, else as
    they are.

    Args:
        labels: place (path and line) and text of each.
    """
    texts = [text for _, text in labels]
    if any(map(_is_word, texts)):
        return texts
    if all(map(WHOLE.fullmatch, texts)):
        numbers = [_whole(place, text) for place, text in labels]
        _check_codes(labels, numbers)
        return numbers
    return [_float(place, text) for place, text in labels]


def _check_codes(labels: Sequence[tuple[str, str]], numbers: Sequence[int]) -> None:
    """Raise ``FormatError`` if labels that differ as texts are one number: codes such as 01 and
    1."""
    text_of: dict[int, str] = {}
    for (place, text), number in zip(labels, numbers, strict=True):
        if text_of.setdefault(number, text) != text:
            raise FormatError(
                f"{place}: the labels {text_of[number]!r} and {text!r} are the same number",
                cause="all labels are whole numbers, and a number has no zeros before it",
                remedy=f'if they are two classes, pass classes=["{text_of[number]}", "{text}", '
                "...]; "
                "else write one form",
            )


def _is_word(text: str) -> bool:
    return NUMBER.fullmatch(text) is None


def _whole(place: str, text: str) -> int:
    # Cut to one digit more than an int64 has: Python's ``int`` refuses, or takes long for,
    # thousands of digits.
    digits = text.lstrip("+-").lstrip("0") or "0"
    number = int(digits[: LARGEST_DIGITS + 1]) * (-1 if text.startswith("-") else 1)
    if not INT64.min <= number <= INT64.max:
        raise _too_large(place, text, f"labels are {INT64.min} to {INT64.max}")
    return number


def _float(place: str, text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _too_large(place, text, "the largest float64 is 1.8e308")
    return number


def _too_large(place: str, text: str, cause: str) -> FormatError:
    return FormatError(
        f"{place}: the label {text[:40]!r}{' ...' * (len(text) > 40)}",
        cause=f"no number of a label holds it: {cause}",
        remedy="repair it, or write names of classes, not all of which are numbers",
    )
