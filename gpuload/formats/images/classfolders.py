"""Class folders: the labels of images by the folders that they lie in.

    photos/ant/1.jpg  photos/bee/old/2.jpg      gl.images("photos")        ant, bee: the folders in the named one
    ["x/ant/1.jpg", "y/bee/2.jpg"]              gl.images([...])           ant, bee: the last folder of each file

Classes  the folders that hold an image, in the order of `sources/classnames.py`. A folder without
         one (``__MACOSX``, notes) is no class, and the log names it. Folders of the system
         (`storage/hidden.py`), such as ``@eaDir``, are none either: stores and git have no empty
         folders, and the same images have the same classes there.
Splits   where all folders are called as parts of a data set are, ``train``, ``val``, ``test``, and
         hold folders themselves, those are the classes, and the parts are opened one by one. So are
         ``seg_train`` and ``fold_0``, if they hold the same folders. Of others that do, the log
         tells.
Cost     names are looked at folder by folder; of each image one look-up.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.errors import FormatError, SpecError
from gpuload.sources.classnames import MOST_NAMES, in_order, log_order, numbers_of, shorten
from gpuload.sources.leaf import Indices
from gpuload.storage.folders import SPLITS
from gpuload.storage.hidden import SYSTEM_FOLDERS
from gpuload.storage.manifest import Manifest
from gpuload.storage.paths import PackedPaths
from gpuload.storage.stores import is_remote, path_of
from gpuload.storage.wildcards import is_folder

SPLIT = re.compile(  # the name of a part of a data set, also as train_set, val2017 and test-images
    rf"({'|'.join(SPLITS)})"
    r"([-_ ]?(set|split|data|images|imgs|\d+))*",
    re.IGNORECASE | re.ASCII,
)
PART = re.compile(  # the same behind another word, and parts of a cross-validation: seg_train, images-val, fold_0
    rf"(.*[-_. ])?({SPLIT.pattern}|(fold|split|cv)[-_ ]?\d+)",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
CLASSES = "classes.json"  # that `folder.py` writes beside class folders
BESIDE = "pass classes=[...] to state the classes and their order"
log = logging.getLogger("gpuload")


@dataclass(frozen=True, eq=False)
class ClassFolders:
    """The folders of images.

    Attributes:
        root: the folder from which the names of the images are seen.
        is_root: True if it was named, and not the images.
        folders: those that hold images themselves, as seen from ``root``; "" is ``root``.
        folder_of: int64 ``[num_images]``, the folder of each image.
        paths: of the images.
        is_listed: True if a manifest lists the images, and no folder is looked into.
    """

    root: str
    is_root: bool
    is_listed: bool
    folders: Sequence[str]
    folder_of: Indices
    paths: Sequence[str]

    @classmethod
    def of(cls, root: str, paths: Sequence[str], *, is_root: bool) -> ClassFolders:
        """Return the folders of images in a root folder, or of those that a list names.

        Raises:
            SpecError: with a root folder, an image lies in no folder of it.
        """
        is_listed = isinstance(paths, PackedPaths)
        if isinstance(paths, PackedPaths):
            places = [folder.rstrip("/") for folder in paths.folders.between(0, len(paths.folders))]
            folder_of = paths.folder_of.astype(np.int64)
        else:
            numbers: dict[str, int] = {}
            folder_numbers = (
                numbers.setdefault(os.path.dirname(path_of(path)), len(numbers)) for path in paths
            )
            folder_of = np.fromiter(folder_numbers, np.int64, len(paths))
            places = list(numbers)
        inside = [below(root, os.path.join(place, "")).rstrip("/") for place in places]
        folders = cls(root, is_root, is_listed, inside, folder_of, paths)
        if is_root and "" in inside:
            loose = np.flatnonzero(folder_of == inside.index(""))
            if loose.size > 1:
                suffix = f", nor do {loose.size - 1} others"
            else:
                suffix = ""
            raise SpecError(
                f"{paths[int(loose[0])]} lies in no class folder{suffix}",
                cause='with labels="folder", the images of a class lie in a folder of their own '
                f"in {root}",
                remedy="pass labels=None for images without labels, or sort them into folders",
            )
        return folders

    @property
    def names(self) -> list[str]:
        """The name of the class of each folder."""
        if self.is_root:
            return [folder.partition("/")[0] for folder in self.folders]
        return [os.path.basename(folder) or os.path.basename(self.root) for folder in self.folders]

    def classes(self, names: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the classes: ``names``, or those that there are.

        Raises:
            SpecError: the folders are parts of a data set, and no classes.
        """
        classes = in_order(self.names)
        if self.is_root:
            if names is None or not any(map(PART.fullmatch, names)):
                self._check_splits(classes, names)
            self._log_unused_folders(classes, names)
            if names is None and len(classes) == 1:
                self._tell_of_inner_folders(classes[0])
        if names is not None:
            return names
        log_order(classes, f"{self.root}: the class folders", BESIDE)
        return classes

    def labels(self, classes: tuple[str, ...]) -> Indices:
        """Return the label of each image, int64.

        Raises:
            SpecError: a folder is none of the classes.
        """
        names = self.names

        def place_of(number: int) -> str:
            record = int((self.folder_of == number).argmax())
            return f"{self.paths[record]}, record {record}"

        return numbers_of(names, classes, place_of, "open the images of the classes alone")[
            self.folder_of
        ]

    def _check_splits(self, classes: Sequence[str], names: Sequence[str] | None) -> None:
        """Raise ``SpecError`` if the folders are parts of a data set; log if they may be."""
        inner: dict[str, set[str]] = {name: set() for name in classes}
        for folder in self.folders:
            name, _, rest = folder.partition("/")
            if rest:
                inner[name].add(rest.partition("/")[0])
        splits = [name for name in classes if SPLIT.fullmatch(name)]
        # Of classes that are called train and val, as vehicles may be, not all have the name of a part.
        are_all = bool(splits) and len(splits) == len(classes)
        self._refuse_parts(classes, inner, splits, are_all)
        if are_all and len(classes) > 1:
            log.warning(
                "%s: the class folders are called %s, as parts of a data set are: the label of an "
                "image says which; labels=None opens images without labels",
                self.root, " and ".join(classes),
            )  # fmt: skip
        shared = _shared(inner, classes)
        are_deep = len(classes) > 1 and min(map(len, inner.values())) > 1
        if names is None and shared and are_deep:
            self._log_shared(classes, inner, shared)

    def _refuse_parts(
        self,
        classes: Sequence[str],
        inner: Mapping[str, set[str]],
        splits: Sequence[str],
        are_all: bool,
    ) -> None:
        """Raise ``SpecError`` if the folders are parts of a data set."""
        deep = [name for name in splits if inner[name]]
        if deep and (are_all or (len(deep) > 1 and _shared(inner, deep))):
            raise self._split_error(splits, deep, inner)
        parts = [name for name in classes if inner[name] and PART.fullmatch(name)]
        # Classes that are called steam_train and bullet_train may each have a folder "images".
        if len(parts) > 1 and len(_shared(inner, parts)) > 1:
            raise self._split_error(parts, parts, inner)

    def _log_shared(
        self, classes: Sequence[str], inner: Mapping[str, set[str]], shared: set[str]
    ) -> None:
        """Log that all class folders hold the same folders, which may be the classes."""
        if 2 * len(shared) <= max(map(len, inner.values())):
            return
        # Folders that differ in a number alone, as day1 and day2, are seldom classes.
        are_numbered = len({re.sub(r"\d+", "", name) for name in shared}) == 1
        form = "[...]"
        if len(classes) <= MOST_NAMES:
            form = repr(list(classes))
        log.log(
            logging.INFO if are_numbered else logging.WARNING,
            "%s: the class folders %s hold the same folders, %s: the label of an image says in "
            "which of the first it "
            "lies. If the others are the classes, open the first one by one: gl.images(%r); "
            "classes=%s says that they "
            "are not",
            self.root, shorten(classes), shorten(in_order(shared)), self._path(classes[0]),
            form,
        )  # fmt: skip

    def _split_error(
        self, parts: Sequence[str], deep: Sequence[str], inner: Mapping[str, set[str]]
    ) -> SpecError:
        """Return the error for folders that are parts of a data set.

        Args:
            parts: their names.
            deep: those of them that hold folders.
            inner: the names of the folders in each.
        """
        first = next((name for name in deep if "train" in name.lower()), deep[0])
        second = min((name for name in deep if name != first), key=_is_test, default=None)
        form = f'gl.images({self._path(first)!r}, labels="folder")'
        if second is not None:
            form = (
                f'train = {form}; gl.images({self._path(second)!r}, labels="folder", classes=train)'
            )
        return SpecError(
            f"{self.root}: its folders {shorten(parts)} are parts of a data set, and no classes",
            cause=f"{first} holds folders of its own, {shorten(in_order(inner[first]))}, which are "
            "the classes",
            remedy=f"open the parts one by one: {form}; labels=None opens all images without "
            "labels",
        )

    def _tell_of_inner_folders(self, name: str) -> None:
        """Warn if the only class folder holds several folders, which may be the classes that are
        meant."""
        inner = {folder.partition("/")[2].partition("/")[0] for folder in self.folders}
        if len(inner) > 1 and "" not in inner:
            log.warning(
                "%s: all images have one class, %r; if its folders %s are the classes, open "
                "gl.images(%r)",
                self.root, name, shorten(in_order(inner)), self._path(name),
            )  # fmt: skip

    def _path(self, name: str) -> str:
        """Return the path of a folder in the root folder; that of a store ends in a slash."""
        if is_remote(self.root):
            return f"{self.root}/{name}/"
        return os.path.join(self.root, name)

    def _log_unused_folders(self, classes: Sequence[str], names: Sequence[str] | None) -> None:
        """Log the folders that hold no image, and so are no class."""
        if self.is_listed or is_remote(self.root):
            return
        with os.scandir(self.root) as entries:
            present = {
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and is_folder(entry)
            }
        unused = sorted(present - {*classes, *(names or ())})
        empty = [
            name
            for name in unused
            if name not in SYSTEM_FOLDERS and _is_empty(os.path.join(self.root, name))
        ]
        if empty and names is None:
            path = os.path.join(self.root, CLASSES)
            form = "[...]"
            if os.path.isfile(path):
                form = repr(path)
            log.warning(
                "%s: without an image in it, a folder is no class: %s; to count such classes, pass "
                "classes=%s",
                self.root, shorten(empty), form,
            )  # fmt: skip
            unused = [name for name in unused if name not in empty]
        if unused:
            log.info(
                "%s: passed over, as they hold no image or are of the system: %s",
                self.root,
                shorten(unused),
            )


def _shared(inner: Mapping[str, set[str]], names: Sequence[str]) -> set[str]:
    """Return the names of folders that lie in each of some folders."""
    if names:
        return set.intersection(*(inner[name] for name in names))
    return set()


def _is_test(name: str) -> bool:
    return "test" in name.lower()


def _is_empty(folder: str) -> bool:
    """Return True if a folder holds nothing but files such as ``.gitkeep``: someone may mean it as
    a class."""
    for _, _, names in os.walk(folder):
        # A Mac puts files of names with ._ beside others on foreign disks, and into archives, under __MACOSX.
        if any(not name.startswith(".") or name.startswith("._") for name in names):
            return False
    return not os.path.islink(folder)


def below(root: str, path: str) -> str:
    """Return an absolute path as seen from a folder that it lies in; `os.path.relpath` takes 30
    times as long."""
    return path_of(path)[len(os.path.join(root, "")) :]


# --- manifests


def top_folders(root: str, paths: Sequence[str]) -> list[str]:
    """Return the folders in a root folder that hold images, as a manifest lists them."""
    inside = {os.path.dirname(below(root, path)) for path in paths}
    return list(in_order(folder.partition("/")[0] for folder in inside if folder))


def manifest_names(listing: Manifest) -> tuple[str, ...] | None:
    """Return the names of ``classes=`` that the source was opened with which a manifest lists; None
    without.

    Raises:
        FormatError: they are no names.
    """
    names = listing.about.get("names")
    if names is None:
        return None
    _check_names(listing, names)
    return tuple(names)


def check_rule(listing: Manifest, classes: tuple[str, ...]) -> None:
    """Raise ``FormatError`` if a manifest lists other classes than its images have by the rule of
    today.

    Before, class folders were always in the order of their characters, and empty ones counted.
    """
    names = listing.about.get("classes")
    if names is None:
        return
    _check_names(listing, names)
    if tuple(names) != classes:
        raise FormatError(
            f"{listing.path}: an earlier gpuload wrote this manifest, with the classes "
            f"{shorten(names)}",
            cause=f"today they are {shorten(classes)}: numbers in their order, and no folder "
            "without an image",
            remedy="make it anew with source.index(path); or pass classes=[...], the names in the "
            "manifest",
        )


def _check_names(listing: Manifest, names: object) -> None:
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or len(set(names)) < len(names):  # type: ignore[arg-type,call-overload]
        raise listing.error("its classes are no list of names")
