"""Cache: what Numba has compiled is kept in files, and no fault of these files stops a batch.

It is Numba's own cache but for three things.

Stamp     Numba's is that of the one file that a kernel stands in, so that a kernel which calls functions of another
          module keeps their old code when that module changes. Here it is a digest of all modules of this folder and of
          the package's version, equal for equal contents: who installs the same version again compiles nothing.
Files     one a kernel and signature, named by a digest of all that it depends on except the stamp, which is inside. In
          Numba's index two processes that save two signatures at once can both take the same number; here a file is
          whole and is what its name says, or it is a miss. A changed kernel's file is overwritten.
Folders   all of them are looked through, the first that can be written is written to: ``NUMBA_CACHE_DIR`` where it is
          set, ``__pycache__`` beside the modules, the user's cache folder. So what was compiled when a container image
          was built is used there by everybody, although nobody can write it.

Faults    A file that is empty, cut or something else is a miss: the kernel is compiled and the file written anew. Where
          no folder can be written (rights, a full disk), each process compiles for itself. The first of each kind is
          a line in the log. Numba writes to a temporary file and renames it, so that no process sees half a file.
Trust     These are pickles, as in Numba: whoever can write these folders can run code here.
Numba     0.61 to 0.68 are known to have what is used here. `compile` takes Numba's own cache where it is missing.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, compiler

HERE = Path(__file__).parent
USED = (
    (caching.FunctionCache, "_index_key"),
    (caching.IndexDataCacheFile, "_load_data"),
    (caching.IndexDataCacheFile, "_save_data"),
    (caching, "AppDirs"),
    (compiler.CompileResult, "_reduce"),
    (compiler.CompileResult, "_rebuild"),
)
for _owner, _name in USED:
    if not callable(getattr(_owner, _name, None)):
        raise ImportError(f"Numba {numba.__version__} has no {_owner.__name__}.{_name}")

log = logging.getLogger("gpuload")
_told: set[str] = set()  # the kinds of faults that are in the log


class KernelCache(caching.FunctionCache):  # type: ignore[misc]
    """The cache of one kernel, in place of Numba's ``FunctionCache``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._py_func = function  # all that Numba's ``_index_key`` asks for
        self._name = repr(function)  # and its ``__repr__``
        name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._base = name.replace("<", "").replace(">", "")
        self._stamp, self._folders = stamp(), folders()
        self._cache_path = self._folders[0]
        self.enable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled form for a signature, None where there is none that can be used."""
        target_context.refresh()
        name = self._file_name(sig, target_context.codegen())
        for folder in self._folders:
            try:
                made_of, made_for, saved = self._files(folder)._load_data(name)
                if (made_of, made_for) == (self._stamp, name):
                    return compiler.CompileResult._rebuild(target_context, *saved)
            except OSError:  # it is not there, or may not be read
                continue
            except Exception as error:  # bytes that are no pickle, or that of something else, lead to any error
                _tell(
                    "damaged",
                    f"a cached kernel cannot be used: {os.path.join(folder, name)}",
                    cause=f"the file is damaged, or no cache file ({type(error).__name__}: {error})",
                    remedy="none is needed: it is compiled and written anew, which takes some seconds",
                )
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form where that is possible."""
        if data.library.has_dynamic_globals:  # an address of this process
            return
        name, problems = self._file_name(sig, data.codegen), []
        for folder in self._folders:
            try:
                os.makedirs(folder, exist_ok=True)
                self._files(folder)._save_data(name, (self._stamp, name, data._reduce()))
                return
            except Exception as error:  # no right to write, a full disk, a file in place of a folder
                problems.append(f"{folder} ({type(error).__name__}: {error})")
        _tell(
            "unsaved",
            "compiled kernels cannot be kept: each process compiles them again, which takes some seconds",
            cause=f"no file can be written to {', nor to '.join(problems)}",
            remedy="make room there, or set NUMBA_CACHE_DIR to a folder that can be written",
        )

    def flush(self) -> None:
        """Nothing to do: a file that is out of date is a miss."""

    def _file_name(self, sig: Any, codegen: Any) -> str:
        python = sys.implementation.cache_tag, getattr(sys, "abiflags", "")
        made_for = repr((numba.__version__, python, self._index_key(sig, codegen)))
        return f"{self._base}-{hashlib.sha256(made_for.encode()).hexdigest()[:32]}.nbc"

    def _files(self, folder: str) -> Any:
        return caching.IndexDataCacheFile(cache_path=folder, filename_base=self._base, source_stamp=self._stamp)


@cache
def stamp() -> str:
    """Return the digest of what all kernels are made from, except Numba and Python.

    Raises:
        FileNotFoundError: the modules are in no files.
    """
    package = importlib.resources.files("gpuload")
    modules = [file for file in (package / "kernels").iterdir() if file.name.endswith((".py", ".pyc"))]
    version = [file for file in package.iterdir() if file.name in ("__init__.py", "__init__.pyc")]
    if not modules or not version:
        raise FileNotFoundError(f"no modules in {package}")
    digest = hashlib.sha256()
    for file in [*version, *sorted(modules, key=lambda file: file.name)]:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def folders() -> tuple[str, ...]:
    """Return where compiled kernels may lie, in the order in which they are looked for."""
    own = f"kernels_{hashlib.sha256(os.fsencode(HERE)).hexdigest()[:16]}"  # one installation does not undo another's
    asked, users = numba.config.CACHE_DIR, caching.AppDirs(appname="gpuload", appauthor=False).user_cache_dir
    found = [os.path.join(os.path.abspath(asked), own)] if asked else []
    found.append(str(HERE / "__pycache__"))
    if os.path.isabs(users):  # "~" is left as it is where there is no home
        found.append(os.path.join(users, own))
    return tuple(found)


def _tell(kind: str, what: str, *, cause: str, remedy: str) -> None:
    """Write one line for all faults of a kind."""
    if kind not in _told:
        _told.add(kind)
        log.warning("%s; cause: %s; remedy: %s", what, cause, remedy)
