"""The package keeps the rules of the house, and the checks of them notice when it does not."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpuload
from gpuload import formats
from tests import house

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
MODULES = house.read(ROOT / house.PACKAGE)
SCRIPTS = house.read_scripts(ROOT)


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_collection():
    """The trees of a thousand files stay. Collections walk all of them, and parsing takes three
    times as long."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("check", house.CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_the_rule(check):
    assert list(check(MODULES)) == []


def test_all_lists_the_public_names_sorted_and_exactly():
    init = next(module for module in MODULES if module.path == "__init__.py")

    listed, bound = house.public_names(init)

    assert listed == sorted(bound)
    assert [*listed, *formats.__all__] == gpuload.__all__
    assert [name for name in listed if not hasattr(gpuload, name)] == []


def test_importing_the_package_loads_numpy_only_and_starts_no_thread():
    code = f"""
        import sys, threading
        import numpy
        before = set(sys.modules)
        import {house.PACKAGE}
        print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
        print(threading.active_count())
    """

    new, num_threads = _run(code).splitlines()

    foreign = set(new.split()) - sys.stdlib_module_names - {house.PACKAGE, "numpy"}
    heavy = {"asyncio", "multiprocessing"} & set(new.split())
    assert (foreign, heavy, num_threads) == (set(), set(), "1")


def test_the_walk_of_one_batch_names_what_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    walk = text[text.index("## One batch") : text.index("## Where things are")]
    defined = {node.name for module in MODULES for node in module.nodes if hasattr(node, "name")}

    named = {
        name
        for code in re.findall(r"`([^`\n]+)`", walk)
        for name in re.findall(r"[A-Za-z_]\w*", code)
    }
    files = {name.rpartition("/")[2] for name in re.findall(r"[\w/]+\.py", walk)}

    assert len(named) > 25
    assert files - {Path(module.path).name for module in MODULES} == set()
    assert (
        named - defined - {Path(module.path).stem for module in MODULES} - ROOMS_AND_WORDS == set()
    )


def test_the_table_of_rooms_is_that_of_the_checks():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[
        text.index("| line | what it is |") : text.index("`import gpuload` loads NumPy only")
    ]
    rows = [line.split("|")[1] for line in table.splitlines()[2:] if line.startswith("|")]
    files = {path.name for path in (ROOT / house.PACKAGE).iterdir()}

    paths = [[path.removesuffix("/") for path in re.findall(r"`([^`]+)`", row)] for row in rows]

    assert [{path.removesuffix(".py") for path in line} for line in paths] == [
        set(line) for line in house.LINES
    ]
    assert {path for line in paths for path in line} - files == set()


ROOMS_AND_WORDS = {
    "pipeline",
    "executors",
    "sources",
    "storage",
    "ops",
    "array",
    "for",
    "batch",
    "in",
    "loader",
}


def test_every_extra_that_is_named_exists():
    extras = _project()["optional-dependencies"]
    texts = [*ROOT.glob("*.md"), ROOT / "pyproject.toml", *(ROOT / house.PACKAGE).rglob("*.py")]

    named = {
        (path.name, extra)
        for path in texts
        for group in re.findall(
            r"\bgpuload\[([\w, -]+)\]|\bextra=\"([\w-]+)\"", path.read_text(encoding="utf-8")
        )
        for extra in re.split(r"\s*,\s*", "".join(group))
    }

    assert {(path, extra) for path, extra in named if extra not in extras} == set()


def test_every_package_that_is_asked_for_is_pinned():
    project = _project()
    wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
    pinned = {
        line.partition("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }

    names = {re.match(r"[\w.-]+", line)[0].lower() for line in wanted}

    assert names - pinned == {house.PACKAGE}


CLEAN = {
    "__init__.py": '"""All."""\nfrom gpuload.formats.npy import npy\n__all__ = ["npy"]',
    "__main__.py": '"""Run."""\nfrom gpuload.cli import main\nprint(main)',
    "cli/__init__.py": '"""Verbs."""\nimport gpuload as gl\nfrom rich import table\nprint(gl.npy, table)',
    "cli/parity_images.py": '"""Show."""\nimport cv2\nimport PIL.Image',
    "loader.py": '"""Join."""\nfrom gpuload.pipeline.epoch import x\nfrom . import device as devices',
    "pipeline/epoch.py": '"""One pass."""\nfrom gpuload.pipeline import ring\nfrom gpuload.pipeline.ring import Ring',
    "pipeline/ring.py": '"""Memory."""\nif TYPE_CHECKING:\n    from gpuload.stats import x',
    "formats/csv/parse.py": (
        '"""CSV."""\nfrom gpuload import signalsafe\nsignalsafe.import_package("pyarrow.csv")'
    ),
    "sources/__init__.py": '"""Formats."""\nfrom .npy import npy\ndef open(path): return npy\nopen(1)',
    "formats/npy/source.py": '"""NPY."""\nimport numpy as np\nnp.load("x", allow_pickle=False)\nopen("x")',
    "convert/__init__.py": '"""Write."""\nfrom gpuload.formats import FORMATS\nfrom gpuload.formats.npy import pickles',
    "ops/crop.py": '"""Cut."""\nimport re\nre.compile("print(open)")\nclass Row:\n    pass',
    "core/__init__.py": '"""Fast."""\nimport importlib\nimportlib.import_module(f"gpuload.core.{1}")',
    "threads.py": '"""Threads."""\nimport threading\nthreading.Thread()',
    "progress.py": '"""One line."""\nimport sys\nsys.stderr.fileno()',
    "errors.py": '"""Errors."""\ndef f():\n    """Long.\n' + "\n" * 40 + '    """\n    return 1',
}


@pytest.mark.parametrize("check", house.CHECKS, ids=lambda check: check.__name__)
def test_a_clean_tree_breaks_no_rule(tmp_path, check):
    assert list(check(_tree(tmp_path, CLEAN))) == []


# A file that breaks one rule, put into the clean tree, and a part of the line that says so.
BROKEN = {
    "imports_go_downwards": [
        (
            "formats/npy/format.py",
            "from gpuload import lazy\nopen = lazy.function('gpuload.loader', 'Loader')",
            "formats imports gpuload.loader",
        ),
        ("errors.py", "from gpuload.spec import Spec", "errors imports gpuload.spec.Spec"),
        ("order.py", "from gpuload import sources", "order imports gpuload.sources"),
        ("ops/crop.py", "from ..order import plan", "ops imports gpuload.order.plan"),
        ("ops/crop.py", "from .. import batch", "ops imports gpuload.batch"),
        (
            "state.py",
            "def f():\n    import gpuload.loader",
            "state.py:3: state imports gpuload.loader",
        ),
        (
            "storage/pread.py",
            "from gpuload.formats.idx import E",
            "storage imports gpuload.formats.idx.E",
        ),
        (
            "spec.py",
            "from importlib import import_module as load\nload('gpuload.order')",
            "spec imports gpuload.order",
        ),
        ("rng.py", "import gpuload", "rng imports gpuload, "),
        ("loader.py", "from gpuload import npy", "loader imports gpuload.npy"),
        ("__init__.py", "from gpuload import cli", "__init__ imports gpuload.cli"),
        ("helpers.py", "", "the room 'helpers' is on no line"),
    ],
    "modules_import_in_no_circle": [
        (
            "pipeline/ring.py",
            "from .epoch import x",
            "gpuload.pipeline.ring -> gpuload.pipeline.epoch",
        ),
        (
            "pipeline/ring.py",
            "def f():\n    import gpuload.pipeline.epoch",
            "gpuload.pipeline.ring -> gpuload.pipeline",
        ),
        (
            "pipeline/ring.py",
            "if TYPE_CHECKING:\n    from gpuload.pipeline.epoch import x",
            "gpuload.pipeline.ring -> gpuload.pipeline",
        ),
        (
            "pipeline/ring.py",
            "from gpuload import lazy\nStep = lazy.function('gpuload.pipeline.epoch', 'Step')",
            "gpuload.pipeline.ring -> gpuload.pipeline.epoch",
        ),
        (
            "pipeline/ring.py",
            "import importlib\ndef f(name):\n    importlib.import_module(f'gpuload.pipeline.{name}')",
            "gpuload.pipeline.ring -> gpuload.pipeline.epoch",
        ),
    ],
    "loops_over_formats_name_none": [
        (
            "open.py",
            "from gpuload.formats.npy import npy",
            "open.py:2: imports gpuload.formats.npy.npy; ",
        ),
        (
            "check.py",
            "from gpuload.formats.npy import pickles",
            "check.py:2: imports gpuload.formats.npy.pickles; ",
        ),
    ],
    "packages_have_one_importer": [
        (
            "loader.py",
            "def f():\n    import tensorflow.dlpack",
            "loader.py:3: imports tensorflow.dlpack",
        ),
        (
            "ops/decode.py",
            "from nvidia import dali",
            "nvidia.dali, which belongs to executors/dali/*",
        ),
        ("order.py", "import pyarrow as pa", "belongs to formats/csv/parse.py"),
        ("batch.py", "import cupy", "belongs to device/library.py"),
        ("cli/bench.py", "import sklearn", "belongs to nobody"),
        (
            "formats/images/source.py",
            "import PIL.Image",
            "belongs to images/decode.py and images/recompress.py and",
        ),
        ("stats.py", "import pandas", "belongs to nobody"),
        (
            "loader.py",
            "import importlib\nimportlib.import_module('cv2')",
            "loader.py:3: imports cv2",
        ),
        ("loader.py", "__import__('ds'[::-1])", "imports ?, which belongs to nobody"),
    ],
    "packages_are_imported_safely": [
        (
            "loader.py",
            "def f():\n    from gpuload.images import head",
            "loader.py:3: imports gpuload.images.head",
        ),
        (
            "formats/csv/parse.py",
            "def f():\n    import pyarrow.csv",
            "parse.py:3: imports pyarrow.csv; write signalsafe.",
        ),
        (
            "images/decode.py",
            "from PIL import Image",
            "PIL.Image; write signalsafe.import_package('PIL.Image')",
        ),
        (
            "device/library.py",
            "import importlib as i\ni.import_module('cupy')",
            "device/library.py:3: imports cupy; ",
        ),
        ("open.py", "def f():\n    import zipfile", "imports zipfile; "),
    ],
    "calls_of_libraries_have_one_wrapper": [
        (
            "formats/npy/source.py",
            "def f(g):\n    try:\n        g()\n    except Exception as error:\n        raise ValueError from error",
            "source.py:5: except Exception; write signalsafe.call_library",
        ),
        (
            "images/decode.py",
            "def f(g, pa):\n    try:\n        g()\n    except (OSError, pa.ArrowException):\n        pass",
            "except ArrowException and OSError; write signalsafe",
        ),
        (
            "formats/npy/source.py",
            "try:\n    x = 1\nexcept:\n    pass",
            "except BaseException; write signalsafe",
        ),
    ],
    "threads_start_in_one_place": [
        ("loader.py", "import threading as t\nt.Thread()", "loader.py:3: threading.Thread; "),
        ("stats.py", "from threading import Timer", "threading.Timer; "),
        ("formats/npy/source.py", "import concurrent.futures as f", "concurrent.futures; "),
        ("threads.py", "import multiprocessing", "multiprocessing; "),
        ("storage/files.py", "import os\nos.fork()", "os.fork; "),
    ],
    "pure_modules_have_no_effects": [
        ("order.py", "open('x')", "open; order.py is pure"),
        ("rng.py", "from time import time", "time; rng.py is pure"),
        ("spec.py", "import os", "os; spec.py is pure"),
        (
            "ops/flip.py",
            "import numpy as np\nnp.random.rand()",
            "numpy.random; ops/flip.py is pure",
        ),
        ("images/head.py", "from numpy import load", "numpy.load; images/head.py is pure"),
    ],
    "nothing_is_unpickled_or_executed": [
        ("state.py", "from pickle import loads", "pickle; "),
        ("formats/npy/source.py", "x = eval('1')", "eval; "),
        ("ops/python.py", "f = exec", "exec; "),
        (
            "formats/npy/source.py",
            "import numpy\nnumpy.load('x', allow_pickle=True)",
            "source.py:3: allow_pickle; ",
        ),
        (
            "loader.py",
            "from gpuload.formats.npy import pickles",
            "gpuload.formats.npy.pickles; only convert/__init__.py and cli/convert",
        ),
    ],
    "only_the_command_line_prints": [
        ("loader.py", "def f():\n    print(1)", "loader.py:3: print; "),
        ("core/copy.py", "import sys\nsys.stderr.write('x')", "core/copy.py:3: sys.stderr; "),
    ],
    "modules_say_what_they_are": [("stats.py", None, "stats.py: no docstring")],
    "names_are_nouns_and_verbs": [
        ("formats/text.py", "made = 1", "formats/text.py:2: made is a participle or a pronoun"),
        ("formats/text.py", "def f(given): pass", "formats/text.py:2: given "),
        ("formats/text.py", "class _Kept: pass", "formats/text.py:2: _Kept "),
        ("formats/text.py", "def most_told(): pass", "formats/text.py:2: most_told "),
        ("formats/text.py", "x = [one for one in 'ab']", "formats/text.py:2: one "),
        ("formats/text.py", "class A:\n    def f(self): self._own = 1", "formats/text.py:3: _own "),
        ("formats/text.py", "try: pass\nexcept OSError as seen: pass", "formats/text.py:3: seen "),
        ("formats/text.py", "import math as what", "formats/text.py:2: what "),
    ],
    "threads_and_lifetimes_have_words": [
        ("formats/text.py", "import weakref", "uses weakref, and no comment tells"),
    ],
    "class_names_mean_one_thing": [
        (
            "formats/text.py",
            "class Row:\n    pass",
            "the class Row is also in",
        ),
    ],
    "functions_have_few_paths": [
        ("formats/text.py", f"def f(x):\n    return {' or '.join(['x'] * 21)}", "f has 21 paths"),
    ],
    "interfaces_are_narrow": [
        (
            "formats/text.py",
            "class A:\n" + "".join(f"    x{n} = 1\n" for n in range(21)) + "class B(A):\n    pass",
            "A has 21 public members",
        ),
    ],
    "conditions_stand_in_short_lines": [
        (
            "formats/text.py",
            f"{'x' * 90} = 1 if 2 else 3",
            "a conditional expression in a wide line",
        ),
    ],
}


@pytest.mark.parametrize(
    ("check", "path", "text", "message"),
    [(check, *case) for check, cases in BROKEN.items() for case in cases],
)
def test_a_broken_rule_is_told_once_with_its_file(tmp_path, check, path, text, message):
    broken = _tree(tmp_path, {**CLEAN, path: "x = 1" if text is None else f'"""Some."""\n{text}'})

    violations = list(getattr(house, check)(broken))

    assert len(violations) == 1
    assert violations[0].startswith(path)
    assert message in violations[0]


def test_flags_counts_and_documented_names_are_free(tmp_path):
    text = "is_known = num_done = cached_file = 1\ndef _where(header): pass\ndef test_a_row_is_found(): pass"

    modules = _tree(tmp_path, {"formats/text.py": f'"""Text."""\n{text}'})

    assert list(house.names_are_nouns_and_verbs(modules)) == []


@pytest.mark.parametrize(("path", "names"), house.PUBLIC.items())
def test_each_exception_names_what_its_file_binds(path, names):
    (module,) = [module for module in MODULES + SCRIPTS if module.path == path]

    assert names <= {name for _, name in module.bindings}


def test_scripts_and_tests_call_nothing_by_words_that_say_nothing(tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/loop.py").write_text(
        "found = 1\nfor _next_one in found: found_rows = 1\nseen_by = 2\n"
    )

    assert len(SCRIPTS) > 150
    assert list(house.names_of_scripts_say_what_they_are(SCRIPTS)) == []
    assert [
        line.split(" says")[0]
        for line in house.names_of_scripts_say_what_they_are(house.read_scripts(tmp_path))
    ] == [
        "examples/loop.py:1: found",
        "examples/loop.py:2: _next_one",
    ]


def test_every_rule_has_been_seen_broken():
    assert set(BROKEN) == {check.__name__ for check in house.CHECKS}


def test_names_that_are_bound_but_not_listed_are_found():
    imports = "from __future__ import annotations\nfrom gpuload.a import b as c, _d"
    text = f"{imports}\ndef e(): pass\nF: int = 1\n__all__ = ['c']"

    assert house.public_names(house.Module("__init__.py", text)) == (["c"], {"F", "c", "e"})


def _tree(folder: Path, files: dict[str, str]) -> list[house.Module]:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return house.read(folder)


def _run(code: str) -> str:
    lines = "\n".join(line.strip() for line in code.splitlines())
    return subprocess.run(
        [sys.executable, "-c", lines], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
