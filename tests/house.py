"""The house rules as checks on source text: what each module of the package may import and use.

Each check takes the modules of a package and returns one line for every violation, file and line
first. Nothing is imported: the text is parsed, so that imports inside functions count, as do those
of packages that are not installed.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

PACKAGE = "gpuload"

# A room may import from rooms on lines below its own. Rooms on one line do not know each other.
LINES = (
    ("cli", "testing"),
    ("bridges",),
    ("convert", "check", "preview"),
    ("open",),
    ("loader",),
    ("pipeline", "formats", "journal"),
    ("sources", "executors", "state", "recipes"),
    ("graph",),
    ("ops", "order", "batch", "rawdecode", "strings"),
    ("display",),
    ("kernels",),
    ("storage", "images"),
    ("spec", "rng", "device", "ragged", "lazy"),
    ("signalsafe", "stats", "tracebacks"),
    ("core", "driver", "functions", "synonyms", "threads"),
    ("errors", "progress"),
    ("redaction",),
)
ENTRY = {"__main__": "cli"}  # a module that is another room's door

# The files that may import each package, besides the bridge of its name; * stands for any
# characters.
OWNERS = {
    "numpy": ("*",),
    "PIL": ("images/decode.py", "images/recompress.py", "cli/parity*"),
    "click": ("cli/*",),
    "cupy": ("device/library.py",),
    "cv2": ("cli/parity_images.py",),
    "gpuload_demo": ("cli/__init__.py",),
    "gpuload_peers": ("cli/bench.py", "cli/parity*"),
    "cupy_backends": ("device/library.py",),
    "cupyx": ("device/library.py",),
    "h5py": ("formats/hdf5/*",),
    "hdf5plugin": ("formats/hdf5/*",),
    "isal": ("storage/inflate.py",),
    "keras": ("bridges/tensorflow/*",),
    "ml_dtypes": ("ops/value/cast.py", "formats/npy/source.py"),
    "pyarrow": (
        "formats/csv/parse.py",
        "formats/columnar.py",
        "formats/parquet/*",
        "formats/arrow/*",
    ),
    "pytest": ("testing/*",),
    "kvikio": ("storage/direct.py",),
    "obstore": ("storage/retries.py", "storage/stores.py"),
    "nvidia": (
        "executors/dali/*",
        "images/decode.py",
        "bridges/dali/*",
        "bridges/tensorflow/*",
        "cli/parity*",
    ),
    "rich": ("cli/*",),
    "typing_extensions": ("recipes/*",),  # for type checkers alone
    "tifffile": ("images/tiffs.py",),
    "zarr": ("formats/zarr/*",),
}

# What reads files takes the exceptions of libraries from one function, which knows those of signal
# handlers apart.
LIBRARY_ROOMS = ("formats", "images", "sources")
BROAD_ERRORS = {"BaseException", "Exception", "ERRORS", "ArrowException"}
PASS_ON = "gpuload.signalsafe.pass_on"

THREAD_OWNERS = ("threads.py",)
THREADS = {"_thread", "asyncio", "concurrent.futures", "threading.Thread", "threading.Timer"}
PROCESSES = {"multiprocessing", "os.fork", "concurrent.futures.ProcessPoolExecutor"}

PROGRESS = "progress.py"  # writes the one line on a terminal
PRINTS = {"builtins.print", "sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}

PURE = (
    "order.py",
    "rng.py",
    "spec.py",
    "ragged.py",
    "images/head.py",
    "images/heads/*",
    "graph/*",
    "kernels/*",
    "ops/*",
    "pipeline/settings.py",
)
OWN_FILES = "kernels/sources.py"  # reads files of the package, the texts of kernels, and no others
EFFECTS = {
    *(
        "builtins.open",
        "builtins.input",
        "io.open",
        "io.FileIO",
        "sys.stdin",
        "sys.stdout",
        "sys.argv",
    ),
    *(
        "os",
        "pathlib",
        "glob",
        "mmap",
        "shutil",
        "tempfile",
        "fsspec",
        "socket",
        "subprocess",
        "urllib",
    ),
    *("time", "datetime", "random", "secrets", "uuid", "platform", "numpy.lib.format.open_memmap"),
    *(
        f"numpy.{name}"
        for name in (
            "load",
            "save",
            "savez",
            "fromfile",
            "memmap",
            "loadtxt",
            "genfromtxt",
            "random",
        )
    ),
}

UNSAFE = {
    *("builtins.eval", "builtins.exec", "builtins.compile", "code", "codeop"),
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "runpy"),
}

# The one door to pickles: NPY files of Python objects that the user trusts, and who may open it.
PICKLES, PICKLE_USERS = "formats/npy/pickles.py", ("convert/__init__.py", "cli/convert.py")

# The loops over all formats, and what they may import of the room of formats.
FORMAT_LOOPS = ("open.py", "check.py", "convert/*")
FORMAT_BASES = tuple(
    f"{PACKAGE}.formats.{name}" for name in ("FORMATS", "base", "writing", "foreign")
)

# An import in the main thread may be broken off by a signal handler, and leave Python's lock of
# imports locked.
IMPORT_PACKAGE = "gpuload.signalsafe.import_package"
LAZY, LAZY_FUNCTION = (
    "lazy.py",
    "gpuload.lazy.function",
)  # modules of gpuload, by tables; and by name
IMPORTERS = ("importlib.import_module", "builtins.__import__", IMPORT_PACKAGE, LAZY_FUNCTION)
# A command ends on Ctrl-C, so it may import by itself; contracts are tests.
IMPORT_THEMSELVES = ("cli/*", "testing/*")

# Words that say nothing of the thing that they name: participles, pronouns, adverbs. No name ends
# in one of them.
PARTICIPLES = (
    "asked began begun came checked chosen coded come converted copied counted cut damaged decoded delivered "
    "described done drawn dropped encoded ended failed filled finished folded found given got held joined kept "
    "known lent listed loaded looked made mapped marked measured merged mirrored mixed moved named needed noted "
    "opened ordered packed padded parsed passed placed planned put reached referred refused renamed restored "
    "resumed returned said sampled saved scanned seen sent settled shifted shown started stopped stored taken "
    "told trained typed unpacked unread unseen uploaded used walked wanted withdrawn written zipped "
)
PRONOUNS = (
    "all alone another any anything apart both each either everyone everything few here how it its itself many "
    "mine more most much nobody none nothing one other others ours own same several so some somebody someone "
    "something such that their theirs them themselves there these they this those together what when where "
    "which who whoever whom whose why "
)
NO_NAMES = frozenset((PARTICIPLES + PRONOUNS).split())
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
# Names that the documentation has (hooks of sources and leaves), or that a file has because they
# are public, or are part of saved fingerprints.
DOCUMENTED = {"_where", "how", "__all__"}
PUBLIC = {
    "bridges/common.py": {"saved"},
    "bridges/torch.py": {"saved"},
    "batch.py": {"drawn"},
    "check.py": {"where", "given"},
    "core/face.py": {
        "COPIED",
        "FAILED",
        "MAPPED",
        "REFUSED",
        "DONE",
        "NOT_DONE",
        "any_refused",
    },  # states, as in C++
    "device/tracks.py": {"done"},  # of CuPy's events, too
    "errors.py": {"what"},
    "loader.py": {"drawn", "saved"},
    "ops/crop/crop.py": {"pad_if_needed"},
    "pipeline/damage.py": {"where"},
    "pipeline/tray.py": {"put"},  # the verb, as of queues
    "spec.py": {"encoded", "stored"},
    "sources/base.py": {"where", "Renamed", "Marked", "Sampled"},
    "sources/reading.py": {"where"},
    "sources/compose.py": {"Zipped"},
    "sources/mix.py": {"Mixed"},
    "testing/ops.py": {"refused"},
    "testing/sources.py": {"assert_same", "open_other"},
    "tests/simdevice.py": {"done"},  # of CuPy's events
}
# In scripts and tests only the words that say least are no names.
SCRIPTS = ("benchmarks", "docker", "examples", "tests", "website")
LEAST = frozenset(
    [
        "done",
        "found",
        "given",
        "got",
        "kept",
        "made",
        "mine",
        "one",
        "ours",
        "own",
        "said",
        "seen",
        "theirs",
        "told",
    ]
)
# A flag is an adjective: ``is_known``; a count is of what it counts: ``num_done``.
FLAGS = ("is", "are", "has", "was", "were", "can", "num")

# Width: a name means one thing, and an interface, a function and a line are no wider than this.
MOST_MEMBERS, MOST_PATHS, MOST_LINE = 20, 20, 100
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)

# Packages by which threads meet, or lifetimes, or memory of others; and words that tell of that.
MEETINGS = {"threading", "weakref", "mmap", "ctypes"}
THREAD_WORDS = re.compile(
    r"thread|lock|lives|alive|lifetime|garbage|collect|for ever|fork", re.IGNORECASE
)

BUILTINS = ("open", "input", "eval", "exec", "compile", "print", "__import__")


@dataclass(frozen=True)
class Module:
    """One source file of the package: ``path`` is relative to the package,
    ``formats/npy/source.py``."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def room(self) -> str:
        """The first part of the path: a folder's name or a file's; ``__init__`` is the package
        itself."""
        first = PurePosixPath(self.path).parts[0].removesuffix(".py")
        return ENTRY.get(first, first)

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """Line and dotted name of all that is imported, ``from a import b`` as ``a.b``."""
        return [(line, name) for node in self.nodes for line, name in self._imported(node)]

    @cached_property
    def uses(self) -> list[tuple[int, str]]:
        """Line and dotted name of every import, and of every name or attribute that leads to one or
        to a builtin."""
        parts = [node for node in self.nodes if isinstance(node, ast.Name | ast.Attribute)]
        return sorted(
            {(node.lineno, name) for node in parts if (name := self._dotted(node))}
            | set(self.imports)
        )

    @cached_property
    def bindings(self) -> list[tuple[int, str]]:
        """Line and name of each variable, argument, attribute, function and class that the module
        binds."""
        return [(line, name) for node in self.nodes for line, name in _bound(node)]

    @cached_property
    def for_type_checkers(self) -> set[int]:
        """The ids of the nodes that never run."""
        return {
            id(inner) for node in self.nodes if _is_type_checking(node) for inner in ast.walk(node)
        }

    @cached_property
    def _aliases(self) -> dict[str, str]:
        names = {name: f"builtins.{name}" for name in BUILTINS}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.pop(node.name, None)  # the module means its own function of that name
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names.update(
                    (a.asname, a.name) if a.asname else (a.name.partition(".")[0],) * 2
                    for a in node.names
                )
            elif isinstance(node, ast.ImportFrom):
                names.update(
                    (a.asname or a.name, f"{self._base(node)}.{a.name}") for a in node.names
                )
        return names

    def _dotted(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Attribute):
            left = self._dotted(node.value)
            return left and f"{left}.{node.attr}"
        return self._aliases.get(node.id) if isinstance(node, ast.Name) else None

    def _base(self, node: ast.ImportFrom) -> str:
        package = [PACKAGE, *PurePosixPath(self.path).parts[:-1]]
        parts = package[: len(package) + 1 - node.level] if node.level else []
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _imported(self, node: ast.AST) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{self._base(node)}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and self._dotted(node.func) in IMPORTERS:
            yield node.lineno, _literal_start(node.args[0]) if node.args else "?"


def _bound(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of what one node binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.attr
    elif isinstance(node, ast.arg):
        yield node.lineno, node.arg
    elif (
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler)
        and node.name
    ):
        yield node.lineno, node.name
    elif isinstance(node, ast.alias) and node.asname:
        yield node.lineno, node.asname


def _literal_start(node: ast.expr) -> str:
    """Return a string constant, or what an f-string begins with; "?" for what only the running
    program knows."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) else node
    return str(first.value).rstrip(".") if isinstance(first, ast.Constant) else "?"


def read(package: Path) -> list[Module]:
    """Return the modules of a package folder, in the order of their paths."""
    paths = sorted(package.rglob("*.py"))
    return [
        Module(path.relative_to(package).as_posix(), path.read_text(encoding="utf-8"))
        for path in paths
    ]


def imports_go_downwards(modules: list[Module]) -> Iterator[str]:
    """A room imports only from rooms on lower lines."""
    height = {room: -number for number, line in enumerate(LINES) for room in line} | {"__init__": 1}
    for module in modules:
        if module.room not in height:
            yield f"{module.path}: the room {module.room!r} is on no line of the house"
            continue
        for line, name in module.imports:
            room = _room_of_import(name)
            if room in (None, module.room) or (module.room, room) == ("cli", "__init__"):
                continue
            if height[room] >= height[module.room] or (module.room, room) == ("__init__", "cli"):
                yield f"{module.path}:{line}: {module.room} imports {name}, which is not below it"


def _room_of_import(name: str) -> str | None:
    """Return the room that a dotted name lies in, ``__init__`` for the package's own names, None
    for other packages."""
    package, _, rest = name.partition(".")
    if package != PACKAGE:
        return None
    first = rest.partition(".")[0]
    room = ENTRY.get(first, first)
    return room if any(room in line for line in LINES) else "__init__"


def modules_import_in_no_circle(modules: list[Module]) -> Iterator[str]:
    """No module leads back to itself by imports, also within a room, and also by imports for type
    checkers alone."""
    names = {_dotted_name(module.path): module for module in modules}
    leads = {name: sorted(_imported_modules(module, names)) for name, module in names.items()}
    safe_names: set[str] = set()
    circles: set[frozenset[str]] = set()
    for name in names:
        circle = _circle(name, leads, [], safe_names)
        if circle is not None and frozenset(circle) not in circles:
            circles.add(frozenset(circle))
            first = circle.index(max(circle))
            ring = [*circle[first:-1], *circle[:first], circle[first]]
            yield f"{names[ring[0]].path}: a circle of imports: {' -> '.join(ring)}"


def _dotted_name(path: str) -> str:
    return ".".join([PACKAGE, *PurePosixPath(path).with_suffix("").parts]).removesuffix(".__init__")


def _imported_modules(module: Module, names: dict[str, Module]) -> set[str]:
    """Return the modules of the package that a module imports, wherever in its text."""
    targets = set()
    for node in module.nodes:
        for _, name in module._imported(node):
            target = name if name in names else name.rpartition(".")[0]
            targets.add(target)
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.JoinedStr):
                # The end of the name is known to the running program alone: it may be any module of
                # that package.
                targets.update(other for other in names if other.rpartition(".")[0] == name)
    return targets & names.keys() - {_dotted_name(module.path)}


def _is_type_checking(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _circle(
    name: str, leads: dict[str, list[str]], path: list[str], safe_names: set[str]
) -> list[str] | None:
    """Return a circle that can be reached from a module, None if there is none; depth first."""
    if name in path:
        return [*path[path.index(name) :], name]
    if name in safe_names:
        return None
    for target in leads[name]:
        if (circle := _circle(target, leads, [*path, name], safe_names)) is not None:
            return circle
    safe_names.add(name)
    return None


def loops_over_formats_name_none(modules: list[Module]) -> Iterator[str]:
    """What opens, checks and converts files of any format imports no format, but for the door to
    pickles."""
    for module in modules:
        if not any(fnmatchcase(module.path, loop) for loop in FORMAT_LOOPS):
            continue
        allowed = (*FORMAT_BASES, *([_dotted_name(PICKLES)] if module.path in PICKLE_USERS else []))
        for line, name in module.imports:
            if name.startswith(f"{PACKAGE}.formats.") and not name.startswith(allowed):
                yield f"{module.path}:{line}: imports {name}; it is a loop over FORMATS, and names none of them"


def packages_have_one_importer(modules: list[Module]) -> Iterator[str]:
    """Each package that is not Python's own is imported by its owner alone."""
    # A bridge owns the package of its name: bridges/jax.py, bridges/tensorflow/*.
    parts = [PurePosixPath(module.path).parts for module in modules if module.room == "bridges"]
    files = {path[1]: f"bridges/{path[1]}" + "/*" * (len(path) > 2) for path in parts}
    bridges = {name.removesuffix(".py"): (owner,) for name, owner in files.items()}
    for module in modules:
        for line, name in module.imports:
            package = name.partition(".")[0]
            if (
                package == PACKAGE
                or package in sys.stdlib_module_names
                or (package, module.path) == ("?", LAZY)
            ):
                continue
            owners = (*OWNERS.get(package, ()), *bridges.get(package, ()))
            if not any(fnmatchcase(module.path, owner) for owner in owners):
                yield f"{module.path}:{line}: imports {name}, which belongs to {' and '.join(owners) or 'nobody'}"


def packages_are_imported_safely(modules: list[Module]) -> Iterator[str]:
    """Packages, and modules that functions need, are imported by ``signalsafe``, where no signal
    handler runs.

    This holds for modules of gpuload, too: `gpuload.lazy` imports many at their first use.
    """
    for module in modules:
        if any(fnmatchcase(module.path, free) for free in IMPORT_THEMSELVES):
            continue
        typed = module.for_type_checkers
        functions = [node for node in module.nodes if isinstance(node, ast.FunctionDef)]
        late = {id(inner) for function in functions for inner in ast.walk(function)}
        for node in module.nodes:
            if id(node) in typed or (
                isinstance(node, ast.Call) and module._dotted(node.func) == IMPORT_PACKAGE
            ):
                continue
            for line, name in module._imported(node):
                package = name.partition(".")[0]
                is_early = id(node) not in late and (
                    package == PACKAGE or package in sys.stdlib_module_names
                )
                is_lazy = isinstance(node, ast.Call) and package == PACKAGE
                if package != "numpy" and not is_early and not is_lazy:
                    yield f"{module.path}:{line}: imports {name}; write signalsafe.import_package({name!r})"


def calls_of_libraries_have_one_wrapper(modules: list[Module]) -> Iterator[str]:
    """What reads files catches all exceptions of a library by ``signalsafe.call_library`` alone.

    An ``except`` around the call would also catch what a signal handler raises, and call it damage.
    It may stand where it passes that on, or where it ends by raising the same exception again.
    """
    for module in modules:
        if module.room not in LIBRARY_ROOMS:
            continue
        for node in module.nodes:
            if not isinstance(node, ast.ExceptHandler):
                continue
            names = {ast.unparse(part).rpartition(".")[2] for part in _parts_of(node.type)}
            last, calls = (
                node.body[-1],
                {module._dotted(part) for part in ast.walk(node) if isinstance(part, ast.expr)},
            )
            is_passed_on = PASS_ON in calls or (isinstance(last, ast.Raise) and last.exc is None)
            if names & BROAD_ERRORS and not is_passed_on:
                title = " and ".join(sorted(names))
                yield f"{module.path}:{node.lineno}: except {title}; write signalsafe.call_library"


def _parts_of(node: ast.expr | None) -> list[ast.expr]:
    """Return the exceptions of an ``except``; one without any catches all."""
    if node is None:
        return [ast.Name("BaseException")]
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def threads_start_in_one_place(modules: list[Module]) -> Iterator[str]:
    """Threads start in one module, processes nowhere."""
    for module in modules:
        if module.room == "testing":  # contracts: they are tests
            continue
        forbidden = PROCESSES if module.path in THREAD_OWNERS else THREADS | PROCESSES
        yield from _forbidden(
            module, forbidden, f"threads start in {' and '.join(THREAD_OWNERS)}, processes nowhere"
        )


def pure_modules_have_no_effects(modules: list[Module]) -> Iterator[str]:
    """The pure modules open no file and read no clock, environment or global generator."""
    for module in modules:
        is_pure = any(fnmatchcase(module.path, pure) for pure in PURE)
        if is_pure and module.path != OWN_FILES:
            yield from _forbidden(module, EFFECTS, f"{module.path} is pure")


def nothing_is_unpickled_or_executed(modules: list[Module]) -> Iterator[str]:
    """No pickle, no eval, no exec: not from a file, not at all."""
    for module in modules:
        if module.room == "testing":  # contracts: they look whether sources can be pickled
            continue
        yield from _forbidden(module, UNSAFE, "nothing is unpickled or executed")
        if module.path not in PICKLE_USERS:
            yield from _forbidden(
                module, {_dotted_name(PICKLES)}, f"only {' and '.join(PICKLE_USERS)} unpickle"
            )
        keywords = [
            node
            for node in module.nodes
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle"
        ]
        for keyword in keywords:
            if ast.unparse(keyword.value) != "False" and module.path != PICKLES:
                yield f"{module.path}:{keyword.value.lineno}: allow_pickle; nothing is unpickled or executed"


def only_the_command_line_prints(modules: list[Module]) -> Iterator[str]:
    """The library does not print; the one line of progress on a terminal has a module of its
    own."""
    for module in modules:
        if module.room != "cli" and module.path != PROGRESS:
            yield from _forbidden(module, PRINTS, "only the command line prints")


def _forbidden(module: Module, names: set[str], reason: str) -> Iterator[str]:
    reported = set()
    for line, name in module.uses:
        hit = next((bad for bad in names if name == bad or name.startswith(f"{bad}.")), None)
        if hit and (line, hit) not in reported:
            reported.add((line, hit))
            yield f"{module.path}:{line}: {hit.removeprefix('builtins.')}; {reason}"


def modules_say_what_they_are(modules: list[Module]) -> Iterator[str]:
    """Every module begins with a docstring."""
    for module in modules:
        if not ast.get_docstring(module.tree):
            yield f"{module.path}: no docstring"


def names_are_nouns_and_verbs(modules: list[Module]) -> Iterator[str]:
    """No variable, argument, attribute, function or class has a name that ends in a participle or a
    pronoun."""
    for module in modules:
        for line, name in module.bindings:
            if _is_no_name(name, NO_NAMES) and name not in PUBLIC.get(module.path, ()):
                yield f"{module.path}:{line}: {name} is a participle or a pronoun; say what it is"


def names_of_scripts_say_what_they_are(modules: list[Module]) -> Iterator[str]:
    """No name of a script or a test ends in one of the words that say least."""
    for module in modules:
        for line, name in module.bindings:
            if _is_no_name(name, LEAST) and name not in PUBLIC.get(module.path, ()):
                yield f"{module.path}:{line}: {name} says nothing of the thing that it names"


def read_scripts(root: Path) -> list[Module]:
    """Return the modules beside the package, their paths from the root of the repository."""
    paths = sorted(path for room in SCRIPTS for path in (root / room).rglob("*.py"))
    return [
        Module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in paths
    ]


@cache
def _is_no_name(name: str, no_names: frozenset[str]) -> bool:
    """Return True if the last word of a name is in a set, but for flags, counts, tests and
    documented names."""
    words = [word.lower() for word in WORD.findall(name)]
    is_free = not words or name in DOCUMENTED or words[0] in (*FLAGS, "test")
    return not is_free and words[-1] in no_names


def interfaces_are_narrow(modules: list[Module]) -> Iterator[str]:
    """A class that another one names as its base has at most 20 public members."""
    bases = {
        part.rpartition(".")[2]
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
        for part in map(ast.unparse, node.bases)
    }
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and node.name in bases:
                count = len(members(module, node.name))
                if count > MOST_MEMBERS:
                    yield f"{module.path}:{node.lineno}: {node.name} has {count} public members"


def class_names_mean_one_thing(modules: list[Module]) -> Iterator[str]:
    """A class name stands in one module alone."""
    places = defaultdict(set)
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(module.path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"{min(paths)}: the class {name} is also in {', '.join(sorted(paths)[1:])}"


def functions_have_few_paths(modules: list[Module]) -> Iterator[str]:
    """A function has at most 20 paths, with those of functions inside it."""
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = complexity(node)
                if count > MOST_PATHS:
                    yield f"{module.path}:{node.lineno}: {node.name} has {count} paths"


def conditions_stand_in_short_lines(modules: list[Module]) -> Iterator[str]:
    """No conditional expression stands in a line of more than 100 characters."""
    for module in modules:
        lines = module.text.split("\n")
        for node in module.nodes:
            if isinstance(node, ast.IfExp) and len(lines[node.lineno - 1]) > MOST_LINE:
                yield f"{module.path}:{node.lineno}: a conditional expression in a wide line"


def complexity(function: ast.AST) -> int:
    """Return the number of paths through a function, with those of functions inside it (McCabe)."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1
        if isinstance(node, ast.comprehension):
            count += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        if isinstance(node, ast.For | ast.While | ast.Try) and node.orelse:
            count += 1
    return count


def members(module: Module, name: str) -> list[str]:
    """Return the public names that the body of a class binds, sorted."""
    bodies = [n.body for n in module.tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    names = {member for body in bodies for node in body for member in _names_bound(node)}
    return sorted(name for name in names if not name.startswith(("_", "test_")))


def _names_bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def threads_and_lifetimes_have_words(modules: list[Module]) -> Iterator[str]:
    """A module that meets threads, lifetimes or memory of others says how, in a comment or docstring."""
    for module in modules:
        names = MEETINGS.intersection(name.partition(".")[0] for _, name in module.imports)
        if names and not THREAD_WORDS.search(" ".join(_prose(module))):
            yield f"{module.path}: uses {min(names)}, and no comment tells of threads or lifetimes"


def _prose(module: Module) -> list[str]:
    """Return the docstrings and comments of a module."""
    return [*docstring_lines(module).values(), *comments(module).values()]


def docstring_lines(module: Module) -> dict[int, str]:
    """Return number and text of each line of all docstrings, also of those behind attributes."""
    lines = module.text.split("\n")
    numbers: set[int] = set()
    for node in module.nodes:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr) and isinstance(getattr(value, "value", None), str):
            numbers.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return {number: lines[number - 1] for number in numbers}


def comments(module: Module) -> dict[int, str]:
    """Return the comment of each line that has one."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


WIDTH = (
    class_names_mean_one_thing,
    functions_have_few_paths,
    interfaces_are_narrow,
    conditions_stand_in_short_lines,
)
CHECKS = (
    imports_go_downwards,
    modules_import_in_no_circle,
    loops_over_formats_name_none,
    packages_have_one_importer,
    packages_are_imported_safely,
    calls_of_libraries_have_one_wrapper,
    threads_start_in_one_place,
    pure_modules_have_no_effects,
    nothing_is_unpickled_or_executed,
    only_the_command_line_prints,
    modules_say_what_they_are,
    names_are_nouns_and_verbs,
    threads_and_lifetimes_have_words,
    *WIDTH,
)


def public_names(init: Module) -> tuple[list[str], set[str]]:
    """Return what ``__all__`` lists and the names without an underscore that ``__init__.py``
    binds."""
    listed: list[str] = []
    bound: set[str] = set()
    branches = [
        node for node in init.tree.body if isinstance(node, ast.If) and _is_type_checking(node)
    ]  # lazy names
    for node in [*init.tree.body, *(part for branch in branches for part in branch.body)]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            bound.update(names)
            if "__all__" in names and node.value is not None:
                listed = list(ast.literal_eval(node.value))
    return listed, {name for name in bound if not name.startswith("_")} - {
        "annotations",
        "TYPE_CHECKING",
        "*",
    }


if __name__ == "__main__":
    from tests import figures

    figures.main(sys.argv[1:])
