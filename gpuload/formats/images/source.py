"""Image files: encoded images of any format that is decoded, a file a record, with the class of
each as its label.

Folder  all files below it with a suffix of such a format (`images.head.FORMATS`), in any case and
        depth, hidden ones and those of systems (`storage/hidden.py`) left out, sorted by path;
        formats may stand side by side. A folder to which links lead is read once. The log lists the
        other files; images of formats that are not decoded are a warning. A list is taken in its
        order, a wildcard is sorted; they may name images with another suffix. The first bytes of a
        file decide how it is read, not its suffix.
Labels  the number of the folder that an image lies in: of those in a root folder, or of the last
        ones that the files of a list lie in (`classfolders.py`). Others: `labels.py`.
Access  whole files, the bytes untouched; `images/head.py` reads their headers later. When the
        source is opened only the first bytes of files with other suffixes are looked at, and of
        very large ones, so that no gigabytes of something else are read into memory.
Memory  the files of one read lie side by side in one piece of memory (`Ragged`).
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuload.errors import FormatError, MissingFileError
from gpuload.formats.images.classfolders import (
    ClassFolders,
    below,
    check_rule,
    manifest_names,
    top_folders,
)
from gpuload.formats.images.labels import AnyLabels, labels_of, stated_classes
from gpuload.images.head import LOOKED_AT_BYTES, SUFFIXES, TITLES, foreign_of, kind_of, other_form
from gpuload.progress import Progress
from gpuload.redaction import printable
from gpuload.sources.arrays import ArrayLeaf
from gpuload.sources.classnames import AnyClasses, shorten
from gpuload.sources.filesource import Entries, FileSource, Opening, WholeFiles
from gpuload.sources.gaps import BadFiles, bad_files, check_on_error, tolerant
from gpuload.sources.leaf import Array, Group, Leaf
from gpuload.spec import Field, Spec
from gpuload.storage import manifest, objects, open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.fileerrors import gzip_error, open_error
from gpuload.storage.files import Files, any_is_remote, look_at
from gpuload.storage.handles import by_chunks, read_bytes
from gpuload.storage.hidden import is_hidden_name
from gpuload.storage.paths import PackedPaths
from gpuload.storage.stores import is_remote, like, path_of
from gpuload.storage.wildcards import Paths, as_folder, expand, is_folder, leads_above

# Suffixes of images in formats that are not decoded. The user most likely wanted these files, so
# the log warns of them.
OTHER_SUFFIXES = {
    ".heic",
    ".heif",
    ".jxl",
    ".jxr",
    ".tga",
    ".ico",
    ".psd",
    ".exr",
    ".hdr",
    ".dds",
    ".svg",
    ".eps",
}
OTHER_SUFFIXES |= {
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".dng",
    ".raf",
    ".orf",
    ".rw2",
    ".dcm",
    ".pcx",
    ".sgi",
}
LARGEST_BYTES = (
    1 << 30
)  # of one file: the largest images that are decoded have 0.8 GB without any compression
USUAL_BYTES = 1 << 26  # a file with more is looked at: few images are as large
IMAGE = Field("image", np.dtype(np.uint8), (None,), encoded=True)
LABEL = "label"
MOST_KINDS = 6  # of other files that are told apart
log = logging.getLogger("gpuload")


def images(
    root_or_paths: Paths,
    labels: AnyLabels = "folder",
    *,
    classes: AnyClasses | None = None,
    on_error: str = "raise",
) -> ImagesSource:
    """Return the records of image files: ``image``, the encoded bytes, and with labels ``label``.

    The logger ``gpuload`` says how many files of a folder are left out.

        gl.images("photos")                          the folder of an image names its class
        gl.images("photos", labels=[3, 1, 4])        of each image, in the order of the paths
        gl.images("photos", labels={"cat/1.jpg": 3, ...})
        gl.images("photos", labels="labels.csv")     file,label; names may have no suffix: id,label
        gl.images("photos", labels=gl.Labels("train.csv", label="breed"))     of more columns
        gl.images("val", classes=train)              the numbers of the classes in the source train

    Args:
        root_or_paths: a folder, a path, a string with wildcards, or a list of paths and wildcards;
            or a manifest of images (``Source.index``).
        labels: None: no labels. ``"folder"``: the number of the folder. An array or list: numbers,
            arrays of one shape, or texts. A mapping from file (as seen from the folder, as given,
            or absolute) to label. The path of a CSV file with a header and two columns, file and
            label; files may also be as seen from its folder. ``gl.Labels`` names columns of a CSV
            file that has more. The suffix of a file may be left out where that leaves one image.
            Each image has one label there, and each label an image. Where labels are texts,
            ``label`` is their number among the sorted different texts, which ``source.classes``
            has. Names that are all whole numbers are sorted as numbers. A folder without an image
            is no class; the log names it.
        classes: the names of the classes, that of label 0 first, in place of those that the images
            have: a list; a source, for its ``classes``; a mapping from name to number; or the path
            of a ``.json`` file with a list or a mapping, as ``json.dump(source.classes, file)``
            writes it. A class may have no image here; a class that is not among the names is an
            error. Labels that are numbers already are checked.
        on_error: ``"raise"``: a file that is empty, too large or no image at all is an error.
            ``"replace"``, ``"skip"``: it is a record, which cannot be read; pass ``on_error`` to
            the loader, too.

    Raises:
        FileError: a file or folder is missing, cannot be read, or a folder holds no image.
        FormatError: a file is empty, or too large for an image, or has another suffix or is large,
            and is no image of a format that is decoded; a CSV file that is none.
        SpecError: with ``labels="folder"``, an image that lies in no class folder, or folders that
            are parts of a data set (``train``, ``val``) and no classes; labels that are not one for
            each image; a class that is none of ``classes``.
    """
    by_folder = isinstance(labels, str) and labels == "folder"
    check_on_error(on_error)
    names = stated_classes(labels, classes)
    listing = manifest.load(root_or_paths, "images")
    if listing is None:
        content = _read(root_or_paths, on_error)
    else:
        content = _from_manifest(listing)
        if by_folder and names is None:
            names = manifest_names(listing)
    argument: Any = labels
    if by_folder:
        folders = ClassFolders.of(content.root, content.files.paths, is_root=content.is_root)
        rule = folders.classes(names)
        if listing is not None and names is None:
            check_rule(listing, rule)
        content = replace(content, labels=folders.labels(rule), classes=rule)
    elif labels is not None:
        image_labels = labels_of(
            labels, content.root, content.files.paths, names, is_sorted=content.is_sorted
        )
        content = replace(content, labels=image_labels.values, classes=image_labels.classes)
        argument = image_labels.argument
    # Only where it was passed: calls of before have the identity that they had, by which manifests
    # find fingerprints.
    if names is None:
        options = {}
    else:
        options = {"classes": names}
    arguments = {
        "root_or_paths": content.argument,
        "on_error": on_error,
        "labels": argument,
        **options,
    }
    return ImagesSource(content, Opening(images, arguments, "root_or_paths"))


@dataclass(frozen=True, eq=False)
class Content:
    """Image files, and their labels.

    Attributes:
        files: the files.
        root: the folder from which their names are seen.
        is_root: True if it was named, and not the files.
        is_sorted: True if the order of the files is that of their names, and not that of a list.
        argument: the absolute paths that open them.
        bad: the files that cannot be opened.
        labels: ``[num_files, ...]``; None where there are none.
        classes: the names of the classes.
        other_files: the files of the folder that are no images, by suffix, as text; "" if there is
            none.
    """

    files: Files
    root: str
    is_root: bool
    is_sorted: bool
    argument: str | Sequence[str]
    bad: BadFiles
    labels: Array | None = None
    classes: tuple[str, ...] = ()
    other_files: str = ""


def _read(root_or_paths: Paths, on_error: str) -> Content:
    """Return the images in a folder, or those that paths name."""
    folder, other_files = as_folder(root_or_paths), ""
    if folder is None:
        paths = expand(root_or_paths)
        root = _common_folder(paths)
    else:
        if is_remote(folder):
            root = like(folder, folder.rstrip("/"))
        else:
            root = folder
        paths, other_files = _images_below(root)
    files, results = look_at(paths, 0, tolerant(_check_file, on_error, "gl.images", len(paths)))
    bad = bad_files(files, results, "gl.images")
    if folder is None:
        argument = files.paths
    else:
        argument = folder
    # Wildcards are sorted; in a list of paths alone there are as many files as paths.
    is_sorted = not isinstance(root_or_paths, (list, tuple)) or len(root_or_paths) != len(paths)
    return Content(
        files, root, folder is not None, is_sorted, argument, bad, other_files=other_files
    )


def _from_manifest(listing: manifest.Manifest) -> Content:
    """Return the images that a manifest lists, folder by folder."""
    files, paths = listing.files, listing.files.paths
    depth, is_root = listing.about.get("depth"), listing.about.get("classes") is not None
    if not isinstance(paths, PackedPaths) or not isinstance(depth, int) or not 0 <= depth < 1 << 16:
        raise listing.error("it does not say where the folder of the images is")
    folders = [folder.rstrip("/") for folder in paths.folders.between(0, len(paths.folders))]
    root = folders[0].rsplit("/", depth)[0]
    if not all(f"{folder}/".startswith(f"{root}/") for folder in folders):
        raise listing.error("a file lies outside the folder of the images")
    return Content(files, root, is_root, is_root, listing.path, BadFiles(files, {}))


class ImagesSource(FileSource):
    """Encoded image files; made by ``gl.images``.

    Attributes:
        classes: the names of the classes, that of label 0 first; empty without labels.
    """

    def __init__(self, content: Content, opening: Opening) -> None:
        files, bad = content.files, content.bad
        storage, groups = (
            open_storage(files),
            [Group(Spec((IMAGE,)), None, not any_is_remote(files.paths))],
        )
        if bad:
            names = tuple(below(content.root, path) for path in files.paths)
            bad = BadFiles(replace(files, names=names), bad.errors, behind="")
        self._leaves: tuple[Leaf, ...] = (
            bad.gaps(ImageFiles(files, storage), bad.numbers, bad.numbers),
        )
        if content.labels is not None:
            leaf = ArrayLeaf(LABEL, content.labels)
            groups.append(Group.of(leaf.layout))
            self._leaves += (leaf,)
        super().__init__(files, opening, tuple(groups), storage)
        self._content, self.classes = content, content.classes

    def __len__(self) -> int:
        return len(self._files)

    def describe(self) -> str:
        """Return one line about how records are read, and which files of the folder are none."""
        other_files = self._content.other_files
        if other_files:
            return f"{super().describe()}; left out: {printable(other_files)}"
        return super().describe()

    def _where(self, number: int) -> str:
        return below(self._content.root, self._files.paths[number])

    def _digest(self) -> str:
        root, labels, bad = self._content.root, self._content.labels, self._content.bad
        names = [below(root, path) for path in self._files.paths]
        if labels is None:
            about = None
        else:
            about = _fingerprint_of(labels)
        parts = [names, self.classes, about]
        if bad:
            parts.append(bad.numbers)
        return self._files.digest(*parts)

    def _place(self) -> str:
        return self._content.root

    def _entries(self) -> Entries:
        root, bad = self._content.root, self._content.bad
        first = self._files.paths[0]
        names = self._opening.arguments.get("classes")
        if self._content.is_root:
            folders = top_folders(root, self._files.paths)
        else:
            folders = None
        bad_path = ""
        if bad:
            bad_path = self._files.paths[bad.numbers[0]]
        return Entries(
            {
                "depth": below(root, first).count("/"),
                "classes": folders,
                "names": names and list(names),
            },
            bad=bad_path,
        )


class ImageFiles(WholeFiles):
    """Image files; their bytes are the field."""

    is_direct = True

    def __init__(self, files: Files, storage: Storage) -> None:
        super().__init__(Spec((IMAGE,)), storage, None, files.sizes)


def _fingerprint_of(labels: Array) -> object:
    """Return labels for a fingerprint."""
    # In this form since the first version: states that were saved with class numbers stay valid.
    if labels.dtype == np.int64 and labels.ndim == 1:
        return labels.tolist()
    array = np.ascontiguousarray(labels, labels.dtype.newbyteorder("<"))
    return array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()


def _common_folder(paths: list[str]) -> str:
    """Return the deepest folder in which all paths lie; of URLs, too."""
    folders = [os.path.dirname(path_of(path)) for path in paths]
    if not any(map(is_remote, paths)):
        return os.path.commonpath(folders)
    # A beginning that the first and the last in order share is one of all between them, too.
    first, last = (
        min(folders).split("/"),
        max(folders).split("/"),
    )  # commonpath makes one slash of those at the store
    return "/".join(
        part
        for part, _ in itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(first, last, strict=False)
        )
    )


def _remote_images_below(root: str) -> list[str]:
    """Return the URLs of all images in a folder of a store and its folders, sorted."""
    paths = [
        url for url in objects.names_of(like(root, f"{root}/**")) if url.lower().endswith(SUFFIXES)
    ]
    if not paths:
        raise MissingFileError(
            f"{root} holds no image",
            cause=f"no object in it ends in {' '.join(SUFFIXES)}",
            remedy="check the folder, or name the objects: gl.images([...])",
        )
    return paths


def _images_below(root: str) -> tuple[list[str], str]:
    """Return the paths of all images in a folder and its folders, sorted, and a text about the other files."""
    if is_remote(root):
        return _remote_images_below(root), ""
    listing = _FolderListing(root)
    listing.walk()
    listing.tell()
    # Sorted as a whole: the order in which folders list their files differs from machine to machine.
    return sorted(listing.paths), _kinds(listing.other_suffixes)


class _FolderListing:
    """The images in a folder and its folders, and the files and links that are left out."""

    def __init__(self, root: str) -> None:
        self.root, self.paths = root, list[str]()
        self.other_suffixes: Counter[str] = Counter()
        # As seen from the root. A link that leads nowhere may have been a class folder; one that is
        # called as an image is an error later.
        self.repeats, self.loops, self.broken_links = list[str](), list[str](), list[str]()

    def walk(self) -> None:
        """List all folders, those of one depth at a time."""
        root = self.root
        # By real paths: a link to a folder above would be followed for ever, and another to the same
        # folder counted twice.
        folders, visited = [root], {os.path.realpath(root)}
        with Progress("listing folders") as progress:
            while folders:
                inner: list[str] = []
                for entry in _entries_of(folders, progress):
                    if is_folder(entry):
                        inner.append(entry.path)
                    elif entry.name.lower().endswith(SUFFIXES):
                        self.paths.append(entry.path)
                    elif entry.is_symlink() and not os.path.exists(entry.path):
                        self.broken_links.append(below(root, entry.path))
                    else:
                        self.other_suffixes[os.path.splitext(entry.name)[1].lower()] += 1
                folders = list(_first_visits(inner, visited))
                repeats = sorted(set(inner) - set(folders))
                self.repeats += [below(root, folder) for folder in repeats]
                outer = {folder for folder in folders if leads_above(folder, root)}
                folders = [folder for folder in folders if folder not in outer]
                self.loops += [below(root, folder) for folder in outer]

    def tell(self) -> None:
        """Log the files and links that are left out; raise ``MissingFileError`` if there is no image."""
        root, suffixes = self.root, self.other_suffixes
        if self.repeats:
            log.warning(
                "%s: folders that are read already under another name, a link, are left out: %s",
                *(root, shorten(self.repeats)),
            )
        if self.loops:
            log.warning(
                "%s: links to a folder above it are not followed: %s",
                *(root, shorten(sorted(self.loops))),
            )
        if self.broken_links:
            log.warning(
                "%s: links lead nowhere, and are left out: %s",
                *(root, shorten(sorted(self.broken_links))),
            )
        if not self.paths:
            suffix_text = ""
            if suffixes:
                suffix_text = f"; there are {_kinds(suffixes)}"
            raise MissingFileError(
                f"{root} holds no image",
                cause=f"no file in it or in its folders ends in {' '.join(SUFFIXES)}{suffix_text}",
                remedy="check the folder, or name the files: gl.images([...])",
            )
        if not suffixes:
            return
        count = suffixes.total()
        are = "file is no image that is decoded, and is"
        if count > 1:
            are = "files are no images that are decoded, and are"
        if OTHER_SUFFIXES & suffixes.keys():
            level = logging.WARNING
        else:
            level = logging.INFO
        log.log(level, "%s: %d %s left out: %s", root, count, are, _kinds(suffixes))


def _kinds(suffixes: Counter[str]) -> str:
    """Return the number of files of each suffix as text, the most frequent suffix first."""
    kinds = sorted(suffixes.items(), key=lambda kind: (-kind[1], kind[0]))
    texts = [f"{count} {suffix or 'without suffix'}" for suffix, count in kinds[:MOST_KINDS]]
    num_rest = sum(count for _, count in kinds[MOST_KINDS:])
    return ", ".join(
        [*texts, f"{num_rest} of {len(kinds) - MOST_KINDS} other kinds"] if num_rest else texts
    )


def _entries_of(folders: list[str], progress: Progress) -> Iterator[os.DirEntry[str]]:
    folder_entries = by_chunks(
        lambda chunk: [_entries(folder) for folder in chunk],
        folders,
        lambda num_done: progress.show(num_done, len(folders), "folders"),
    )
    return (entry for entries in folder_entries for entry in entries)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not is_hidden_name(entry.name)]
    except OSError as error:
        raise open_error(folder, error) from None


def _first_visits(folders: list[str], visited: set[str]) -> Iterator[str]:
    """Yield the folders that were not visited yet: a link may lead back."""
    for folder in sorted(folders):
        real = os.path.realpath(folder)
        if real not in visited:
            visited.add(real)
            yield folder


def _check_file(path: str, size: int, head: bytes) -> None:
    """Raise ``FormatError`` for a file that is empty, too large, or no image by its first bytes.

    A file of usual size with the suffix of an image is not opened here: its header is read when it
    is decoded.
    """
    if size == 0:
        raise FormatError(
            f"{path} is empty", cause="it has 0 bytes", remedy="copy it again, or remove it"
        )
    if size > LARGEST_BYTES:
        raise FormatError(
            f"{path} has {size} bytes",
            cause=f"an image file has at most {LARGEST_BYTES}",
            remedy="remove it, or store the image in another form, as NPY say",
        )
    is_named = path_of(path).lower().endswith(SUFFIXES)
    # Not opened: that is one open less for each file, of which there may be a million.
    if is_named and size <= USUAL_BYTES:
        return
    beginning = read_bytes(path, LOOKED_AT_BYTES)
    if kind_of(beginning) is not None:
        return
    if (error := gzip_error(path, beginning)) is not None:
        raise error
    if foreign := foreign_of(beginning):
        raise FormatError(
            f"{path} is a file of the format {foreign}",
            cause=f"that is not supported; the formats are {TITLES}",
            remedy=f"convert it; or read it by another library: {other_form(foreign)}",
        )
    message = f"{path} is no image of the formats {TITLES}; it begins with {beginning!r}"
    if is_named:
        raise FormatError(
            message,
            cause="something else has its name, or the bytes were never written (a sparse file)",
            remedy="copy it again, or remove it",
        )
    raise FormatError(
        message,
        cause="images of other formats are not decoded, and a file that is named is not left out "
        "silently",
        remedy="name images alone, as in gl.images('photos/*.jpg'); of a folder other files are "
        "left out",
    )
