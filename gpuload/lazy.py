"""Lazy names: attributes of a package that are imported from their modules at their first use.

To import everything takes longer than to open a file of rows and to read its first batch. So
`gpuload`, `gpuload.ops` and `gpuload.recipes` import a module when one of its names is used, and a
format its reader when it opens a file.

Types     Type checkers read the names of a package as imports under ``if TYPE_CHECKING``.
          `tests/test_lazy.py` compares these, ``__all__`` and the names that a package attaches.
Signals   The import is out of the reach of signal handlers (`signalsafe`).
Threads   Any number of threads may be the first to use a name: all get the same object.
Modules   Python binds a module in its package when it has imported it. A name of the package that
          is a module's name, too, keeps its meaning in the package: ``gpuload.check`` is the
          function.
Workers   All that a loader needs to make batches is imported with it: nothing here runs in its
          threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from gpuload import signalsafe, synonyms, tracebacks
from gpuload.errors import UnknownAttributeError


class Package(ModuleType):
    """The type of a package with lazy names."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that is not there yet; it is there from now on."""
        namespace = vars(self)
        if name not in namespace.get("_lazy_names", ()):
            owner = self.__name__.replace("gpuload", "gl", 1)
            synonyms.answer(owner, name, namespace.get("_lazy_forms", {}))
            if not name.startswith("_") and (
                likely := synonyms.near_names(name, _public_names(namespace))
            ):
                raise UnknownAttributeError(
                    f"{owner}.{name}",
                    cause="there is no such name",
                    remedy=f"write {' or '.join(f'{owner}.{word}' for word in likely)}",
                )
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self
            )
        module = signalsafe.import_package(f"{self.__name__}.{namespace['_lazy_names'][name]}")
        return namespace.setdefault(
            name, tracebacks.published(getattr(module, name), self.__name__)
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a module does not take the place of a lazy name, and one that is called
        says so."""
        if isinstance(value, ModuleType) and name in vars(self).get("_lazy_names", ()):
            return
        if type(value) is ModuleType and vars(self).get("_lazy_names"):
            value.__class__ = Submodule
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """A package is pickled as its name: Ray pickles functions of a script with the modules that
        they use.

        cloudpickle knows modules by their exact type, and so does not know these.
        """
        return signalsafe.import_package, (self.__name__,)

    def __dir__(self) -> list[str]:
        """Return the names that are there, and those that will be."""
        return sorted({*super().__dir__(), *vars(self).get("_lazy_names", ())})


class Submodule(ModuleType):
    """The type of a module in such a package: it stands among public names, and looks like a
    function of them."""

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        """Raise ``UnknownAttributeError`` with the names that were meant."""
        package, _, name = self.__name__.rpartition(".")
        owner, namespace = package.replace("gpuload", "gl", 1), vars(sys.modules[package])
        names = namespace.get("_lazy_names", {})
        likely = [
            word for word, module in names.items() if module.partition(".")[0] == name
        ] or synonyms.near_names(name, names)
        remedy = f"help({owner})"
        if likely:
            remedy = f"write {' or '.join(f'{owner}.{word}(...)' for word in likely)}"
        raise UnknownAttributeError(
            f"{owner}.{name}(...)", cause=f"{owner}.{name} is a module", remedy=remedy
        )

    __reduce__ = Package.__reduce__


def _public_names(namespace: Mapping[str, Any]) -> list[str]:
    """Return the public names of a package."""
    return [*namespace.get("__all__", ()), *namespace.get("_lazy_names", ())]


def attach(
    package: str, modules: Mapping[str, Sequence[str]], forms: dict[str, str] | None = None
) -> None:
    """Give a package names that are imported, and made public (`tracebacks.published`), at their
    first use.

    Args:
        package: its name; it is being imported.
        modules: the modules below it, each with the names that are taken from it.
        forms: names that other libraries have, see `synonyms`.
    """
    module = sys.modules[package]
    namespace = vars(module)
    namespace["_lazy_names"] = {name: path for path, names in modules.items() for name in names}
    namespace["_lazy_forms"] = forms or {}
    for name in namespace["_lazy_names"]:
        if isinstance(namespace.get(name), ModuleType):
            del namespace[name]  # a module that was imported before
    module.__class__ = Package


def function(module: str, name: str) -> Callable[..., Any]:
    """Return a function that stands for one of a module of gpuload, which is imported at the first
    call."""

    def call(*args: Any, **arguments: Any) -> Any:
        return getattr(signalsafe.import_package(module), name)(*args, **arguments)

    call.__name__ = call.__qualname__ = name
    call.__module__ = module
    return call
