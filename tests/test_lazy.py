"""Names that are imported at their first use: which there are, and that they are as if they had
been there before."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gpuload as gl
from gpuload import formats, lazy
from gpuload.errors import SpecError
from tests import house, opnames

ROOT = Path(__file__).parents[1]
PACKAGES = ("gpuload", "gpuload.ops", "gpuload.recipes")
# A package whose module `area` has names, one of them its own, and takes its time to be imported.
INIT = """
import shapes.volume
from gpuload import lazy

__all__ = ["Square", "area", "volume"]
lazy.attach(__name__, {"area": ("Square", "area"), "volume": ("volume",)})
"""
AREA = """
import threading

from gpuload.errors import SpecError

IS_READY.wait(60)

class Square:
    def __init__(self, side):
        check(side)
        self.side = side

def area(square):
    check(square.side)
    return square.side**2

def check(side):
    if side < 0:
        raise SpecError("negative", cause="it is below 0", remedy="pass another")
"""


@pytest.fixture
def shapes(tmp_path, monkeypatch):
    """Return a package with lazy names, and an event: its module waits for it in the middle of its
    import."""
    event = threading.Event()
    event.set()
    folder = tmp_path / "shapes"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "volume.py").write_text("def volume(side):\n    return side**3\n")
    (folder / "area.py").write_text(AREA.replace("IS_READY", "__import__('builtins').shapes_event"))
    monkeypatch.setattr("builtins.shapes_event", event, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("shapes"), event
    for name in ("shapes", "shapes.area", "shapes.volume"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_read_the_names_that_a_package_attaches(package):
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if house._is_type_checking(node))

    imports = dict(_imports_of(branch, package))

    assert imports == module._lazy_names
    assert set(imports) <= set(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def _imports_of(branch, package):
    """Give the names that a branch for type checkers imports, those of a star too, each with its module."""
    for node in branch.body:
        if [alias.name for alias in node.names] == ["*"]:
            tree = ast.parse(Path(importlib.import_module(node.module).__file__).read_text("utf-8"))
            inner = next(node for node in tree.body if house._is_type_checking(node))
            yield from _imports_of(inner, package)
        else:
            module = node.module.removeprefix(f"{package}.")
            yield from ((alias.asname or alias.name, module) for alias in node.names)


def test_the_lists_of_ops_follow_from_the_line_of_each_op():
    text = opnames.INIT.read_text(encoding="utf-8")
    line = "    from gpuload.ops.value.onehot import OneHot\n"

    assert opnames.filled(text) == text
    more = opnames.filled(
        text.replace(line, f"{line}    from gpuload.ops.value.other import Other\n")
    )
    assert '    "OneOf",\n    "Op",\n    "Other",\n    "Pad",\n' in more
    assert '        "value.other": ("Other",),\n' in more


def test_the_calls_of_formats_are_those_that_type_checkers_read():
    assert sorted(form.name for form in formats.FORMATS) == formats.__all__


def test_the_import_loads_no_op_no_recipe_and_no_reader_and_a_batch_of_rows_needs_that_of_its_format_alone(
    tmp_path,
):
    code = """
        import sys
        import numpy as np
        np.save("rows.npy", np.arange(12))
        import gpuload as gl
        before = set(sys.modules)
        with gl.Loader(gl.npy("rows.npy"), batch_size=4, device="cpu") as loader:
            assert [batch["x"].tolist() for batch in loader][2] == [8, 9, 10, 11]
        print(*before)
        print(*(name for name in sys.modules if name not in before))
    """
    before, after = _run(code, tmp_path)

    lazy_modules = {
        f"{package}.{module}"
        for package in PACKAGES
        for module in sys.modules[package]._lazy_names.values()
    }
    formats_of_one_module = {
        name for name in lazy_modules if re.fullmatch(r"gpuload\.formats\.\w+", name)
    }
    assert len(lazy_modules) > 50
    assert formats_of_one_module >= {"gpuload.formats.idx", "gpuload.formats.text"}
    assert set(before) & lazy_modules == formats_of_one_module | {
        "gpuload.ops.base",
        "gpuload.sources.compose",
    }
    assert (
        set(before) & {"email", "html", "importlib.metadata", "statistics", "tempfile", "zipfile"}
        == set()
    )
    assert after == [
        "gpuload.formats.npy.headers",
        "gpuload.formats.pixels",
        "gpuload.formats.npy.source",
    ]


def test_dir_lists_the_names_and_a_star_imports_them(shapes):
    package, _ = shapes
    assert {"Square", "area"} <= set(dir(package))

    names = {}
    exec("from shapes import *", names)

    assert names["Square"](2).side == 2
    assert names["area"] is package.area


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(
        AttributeError, match=r"module 'gpuload\.ops' has no attribute '_RandomFilp'"
    ) as caught:
        gl.ops._RandomFilp  # noqa: B018

    assert (caught.value.name, caught.value.obj) == ("_RandomFilp", gl.ops)


def test_a_name_that_is_not_there_is_answered_by_those_that_look_like_it():
    with pytest.raises(AttributeError, match=r"gl\.ops\.RandomFlip"):
        gl.ops.RandomFilp  # noqa: B018
    assert not hasattr(gl, "__wrapped__")
    with pytest.raises(ImportError, match="RandomFilp"):
        exec("from gpuload.ops import RandomFilp")


def test_a_module_does_not_take_the_place_of_the_function_that_has_its_name(shapes):
    package, _ = shapes

    module = importlib.import_module("shapes.area")

    assert sys.modules["shapes.area"] is module
    assert package.area(package.Square(3)) == 9
    assert package.volume(3) == 27  # whose module was imported before the names were attached
    package.area = None  # as monkeypatch does
    assert package.area is None


def test_threads_that_are_the_first_to_use_a_name_get_the_same_object(shapes):
    package, event = shapes
    event.clear()
    barrier, values = threading.Barrier(9), []

    def use():
        barrier.wait()
        values.append((package.Square, package.area))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    barrier.wait()
    event.set()
    for thread in threads:
        thread.join()

    assert (len(values), len(set(values))) == (8, 1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals")
def test_a_signal_handler_that_raises_leaves_a_name_that_can_be_used(shapes):
    package, event = shapes
    event.clear()

    def ring(*_):
        raise TimeoutError

    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(TimeoutError):
            package.Square  # noqa: B018
    finally:
        signal.signal(signal.SIGALRM, handler)
    event.set()

    assert package.area(package.Square(4)) == 16


def test_an_error_shows_of_our_frames_the_call_and_the_place_that_raised_it_alone(shapes):
    package, _ = shapes

    assert package.Square.__init__.__wrapped__.__qualname__ == "Square.__init__"
    assert not hasattr(package.Square.__init__.__wrapped__, "__wrapped__")
    with pytest.raises(SpecError) as caught:
        gl.npy([])
    own_frames = [
        entry for entry in caught.traceback if str(entry.path).startswith(str(ROOT / "gpuload"))
    ]
    assert [entry.path.name for entry in own_frames] == ["tracebacks.py", "wildcards.py"]


def test_functions_are_pickled_by_their_public_names():
    for function in (gl.npy, gl.check, gl.ops.repeat, gl.recipes.cifar10):
        assert function.__module__ in PACKAGES
        assert pickle.loads(pickle.dumps(function)) is function


def test_a_lazy_function_takes_the_arguments_of_the_function_that_it_stands_for(shapes):
    package, _ = shapes
    area = lazy.function("shapes.area", "area")

    assert area.__name__ == "area"
    assert area(square=package.Square(side=5)) == 25


def _run(code, folder):
    """Return the words of each line that a program prints in a process that has imported
    nothing."""
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{inspect.cleandoc(code)}",
    ]
    text = subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=100
    ).stdout
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_pickled_as_its_name(name):
    package = importlib.import_module(name)

    assert pickle.loads(pickle.dumps(package)) is package
    assert copy.deepcopy({"gl": package})["gl"] is package
