"""Image folders: the encoded images of a source as files, unchanged, with their labels.

    photos/cat/0000017.jpg      where labels are whole numbers that name the classes of the source:
                                a folder a class, and photos/classes.json with the names of all
                                classes, also of those without an image
    photos/0000017.jpg          without labels, or with others, which stand in photos/labels.csv:
                                file,label

Names   the number of the record, filled up with zeros, and the suffix of the image's format. A
        reader has the records in the order of their paths: in the same order without class folders,
        class by class with them.
Labels  gl.images(folder, classes="folder/classes.json") has the same classes, gl.images(folder,
        labels="folder/labels.csv") the other labels, and `gl.open` finds both files.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.errors import FormatError, RecordError, SpecError
from gpuload.formats.images.classfolders import CLASSES
from gpuload.formats.images.source import images
from gpuload.formats.writing import FolderWriter, Records, check_texts
from gpuload.images.head import FORMATS, LOOKED_AT_BYTES, kind_of
from gpuload.sources.base import Source
from gpuload.sources.classnames import in_order
from gpuload.spec import Field, Spec

TABLE = "labels.csv"
log = logging.getLogger("gpuload")


def open_folder(folder: str) -> Source:
    """Return the images of a folder, with the labels that it states.

    Raises:
        MissingFileError: it holds no image.
    """
    labels = os.path.join(folder, TABLE)
    unlabelled = images(folder, labels=None)
    if signalsafe.is_file(labels):
        log.info(
            "%s: found images and a table of labels; opened by gl.images(labels='%s')",
            folder,
            TABLE,
        )
        return images(folder, labels=labels)
    names = os.path.join(folder, CLASSES)
    if signalsafe.is_file(names):
        try:
            source = images(folder, labels="folder", classes=names)
        except (SpecError, FormatError) as error:
            # A file of this name may be of someone else, and say something else.
            log.warning(
                "%s is no list of the class folders beside it, and is not used: %s",
                names,
                error.what,
            )
        else:
            log.info(
                "%s: found images and names of classes; opened by gl.images(classes='%s')",
                folder,
                CLASSES,
            )
            return source
    has_loose = any(os.sep not in unlabelled.where(number) for number in range(len(unlabelled)))
    argument = None if has_loose else "'folder'"
    log.info("%s: found images; opened by gl.images(labels=%s)", folder, argument)
    if has_loose:
        return unlabelled
    return images(folder, labels="folder")


def writer() -> FolderWriter:
    """Return the writer of folders of images."""
    return FolderWriter(call, about, write, first_difference, finish)


def parts_of(spec: Spec) -> tuple[Field, Field | None]:
    """Return the field of the images, and the field of the labels or None.

    Raises:
        SpecError: there is not one field of encoded images, or more than one other field.
    """
    encoded_fields = [field for field in spec if field.encoded]
    label_fields = [field for field in spec if not field.encoded]
    if len(encoded_fields) != 1:
        raise SpecError(
            f"a source of {spec} cannot be written as a folder of images",
            cause=f"it has {len(encoded_fields)} fields of encoded images, and a folder holds one "
            "file for each record",
            remedy="end the name in .tfrecord, .npy, .npz or .bin for a file; bytes of image files "
            "that a source holds "
            "are marked by source.mark(image='encoded')",
        )
    if len(label_fields) > 1:
        raise SpecError(
            f"field {label_fields[1]} cannot be written to a folder of images",
            cause=f"beside the image a folder holds one label, and {label_fields[0].name!r} is one "
            "already",
            remedy="choose TFRecord, which holds any number of fields",
        )
    label = None
    if label_fields:
        label = label_fields[0]
    if label is not None and (label.shape != () or label.dtype.kind not in "biufU"):
        raise SpecError(
            f"field {label} cannot be written to a folder of images",
            cause="a label is one number or text, which a class folder or a line of labels.csv "
            "holds",
            remedy="choose TFRecord",
        )
    return encoded_fields[0], label


def class_folders(source: Source, label: Field | None) -> tuple[str, ...]:
    """Return the name of the folder of each class; empty where labels stand in a table, or there
    are none.

    Folders are read without their file of classes, too, so the classes must be in the order that
    they have then.

    Raises:
        SpecError: a class has a name that no folder can have.
    """
    classes = source.classes
    if label is None or label.dtype.kind not in "iu" or not classes or classes != in_order(classes):
        return ()
    for name in classes:
        if name in ("", ".", "..") or name.startswith(".") or set(name) & set("/\\\0"):
            raise SpecError(
                f"class {name!r} cannot be the name of a folder",
                cause="it is empty, begins with a point, or holds a separator of paths",
                remedy="choose TFRecord",
            )
    return classes


def write(folder: str, records: Records) -> None:
    """Write some images into a folder; files of the same names are written anew."""
    image, label = parts_of(records.spec)
    classes = class_folders(records.source, label)
    for name in classes:
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    if not classes:
        label = None
    for number, value, class_number in _images(records, image, label):
        if classes and not 0 <= class_number < len(classes):
            raise RecordError(
                f"{records.source.where(number)}: its label is {class_number}",
                cause=f"the source has classes 0 to {len(classes) - 1}",
                remedy="repair the label, or leave the record out with source.filter(...)",
            )
        name = _name(number, value, records.source)
        if classes:
            name = os.path.join(classes[class_number], name)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(value)


def first_difference(folder: str, records: Records) -> int | None:
    """Return the number of the first record that differs from its file; None if all are equal."""
    image, label = parts_of(records.spec)
    classes = class_folders(records.source, label)
    if not classes:
        label = None
    for number, value, class_number in _images(records, image, label):
        name = _name(number, value, records.source)
        if classes:
            name = os.path.join(classes[class_number], name)
        with open(os.path.join(folder, name), "rb") as file:
            if file.read() != value:
                return number
    return None


def _images(
    records: Records, image: Field, label: Field | None
) -> Iterator[tuple[int, bytes, int]]:
    """Yield number, bytes and label of each record; the label is 0 where ``label`` is None."""
    for numbers, fields in records.chunks():
        if label is None:
            labels = np.zeros(numbers.size, np.int64)
        else:
            labels = np.asarray(fields[label.name])
        for number, value, class_number in zip(
            numbers.tolist(), fields[image.name], labels.tolist(), strict=True
        ):
            yield number, value.tobytes(), class_number


def table(folder: str, source: Source, label: Field) -> bytes:
    """Return the bytes of labels.csv for the images in a folder.

    Labels of texts are the texts; whole numbers that name classes stand there as numbers.
    """
    # The suffix of each image is known to its file alone; the number in front of it is the record.
    names = {int(os.path.splitext(name)[0]): name for name in os.listdir(folder) if name != TABLE}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("file", "label"))
    for numbers, fields in Records(source, 0, len(source), (label.name,)).chunks():
        values = np.asarray(fields[label.name])
        # Read again, labels of a table are numbers or texts: True would become a class of that
        # name.
        if values.dtype.kind == "b":
            values = values.astype(np.int64)
        if values.dtype.kind == "U":
            check_texts(source, numbers.tolist(), values.tolist())
        lines.writerows(
            zip((names[number] for number in numbers.tolist()), values.tolist(), strict=True)
        )
    return text.getvalue().encode()


def about(source: Source) -> Mapping[str, Any]:
    """Return the properties, besides the records, that decide about the files of a folder."""
    return {"classes": list(source.classes)}


def finish(folder: str, source: Source) -> None:
    """Write the names of the classes beside their folders, or the table of labels, where there are
    any."""
    _, label = parts_of(source.spec)
    if label is None:
        return
    classes = class_folders(source, label)
    if classes:
        name, content = (CLASSES, json.dumps(classes).encode())
    else:
        name, content = (TABLE, table(folder, source, label))
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content)


def call(folder: str, source: Source) -> str:
    """Return the call that reads the folder again.

    Raises:
        SpecError: a folder cannot hold the records of the source.
    """
    _, label = parts_of(source.spec)
    if label is None:
        return f"gl.images({folder!r}, labels=None)"
    if class_folders(source, label):
        return f"gl.images({folder!r}, labels='folder', classes={os.path.join(folder, CLASSES)!r})"
    return f"gl.images({folder!r}, labels={os.path.join(folder, TABLE)!r})"


def _name(number: int, value: bytes, source: Source) -> str:
    return f"{number:0{len(str(len(source) - 1))}d}{_suffix(value, source, number)}"


def _suffix(value: bytes, source: Source, number: int) -> str:
    kind = kind_of(value[:LOOKED_AT_BYTES])
    if kind is not None:
        return FORMATS[kind].suffixes[0]
    raise RecordError(
        f"{source.where(number)}: its bytes are no image, they begin with {value[:12]!r}",
        cause="the record is damaged, or holds something else",
        remedy="leave it out with source.filter(...), or choose another format",
    )
