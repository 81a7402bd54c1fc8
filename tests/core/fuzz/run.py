"""Builds the fuzzer of the core and runs its targets side by side.

Engine   libFuzzer where a clang++ has it, else `driver.cpp` with gcc; both under AddressSanitizer
         and UndefinedBehaviorSanitizer, and with the same inputs and arguments.
Corpus   what reached new code is kept in build/fuzz, and the next run begins with it.
Finding  the input is kept, and a line says how to repeat it.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuload.images import native
from tests.core import programs
from tests.core.fuzz.seeds import SEEDS

FOLDER = Path(__file__).parent
CORPUS = programs.ROOT / "build" / "fuzz"
CLANGS = ("clang++", *(f"clang++-{version}" for version in range(21, 13, -1)))
EMPTY_TARGET = (
    'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
)
SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
OPTIONS = {"UBSAN_OPTIONS": "print_stacktrace=1"}
MOST_BYTES, MOST_MB, SHOWN = 1 << 14, 4096, 6000
MOST_S = 100  # for one input; nearly all take microseconds, but a loaded machine may not come to one for a while
END_S = 60  # to read the corpus, and to end
EXECUTED = re.compile(r"stat::number_of_executed_units: +(\d+)")
NEW = re.compile(r"stat::new_units_added: +(\d+)")
COVERAGE = re.compile(r"cov: (\d+)")
CODEC = importlib.util.find_spec("nvidia") and importlib.util.find_spec(
    "nvidia.nvimgcodec"
)  # decodes for "rows"
NAMES = tuple(name for name in SEEDS if CODEC or name != "rows")
PLANTED = "planted"  # a fault that has to be found


@dataclass
class Outcome:
    """What came of a target.

    Attributes:
        executions: how many inputs were run.
        coverage: how many edges of the program's graph they reached.
        new: how many inputs reached code that none before them had.
        finding: what is wrong, with a line that repeats it; empty if nothing is.
    """

    executions: int = 0
    coverage: int = 0
    new: int = 0
    finding: str = ""


@functools.cache
def engine() -> tuple[str, list[str]] | None:
    """Return the compiler and its flags of the engine, None where there is no compiler."""
    libfuzzer = [*SANITIZERS, "-fsanitize=fuzzer"]
    for cxx in CLANGS:
        if programs.works(cxx, libfuzzer, EMPTY_TARGET):
            return cxx, libfuzzer
    cxx = programs.compiler()
    return cxx and (cxx, [*SANITIZERS, "-fsanitize-coverage=trace-pc"])


def build() -> Path:
    """Return the fuzzer.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    chosen = engine()
    if chosen is None:
        raise RuntimeError("there is no C++ compiler")
    cxx, flags = chosen
    sources = sorted(path for path in FOLDER.glob("*.cpp") if path.name != "driver.cpp")
    if "-fsanitize=fuzzer" in flags:
        return programs.build("fuzzer", sources, cxx, flags, [])
    driver = programs.compile_sources([FOLDER / "driver.cpp"], cxx, SANITIZERS)
    return programs.build("fuzzer", sources, cxx, flags, [str(path) for path in driver])


def run(
    names: Sequence[str], seconds: float, seed: int, folder: Path, width: int
) -> dict[str, Outcome]:
    """Run targets, ``width`` of them at a time, and return what came of each.

    Args:
        names: of the targets.
        seconds: for each target.
        seed: of the changes.
        folder: where the input of a finding is kept.
        width: how many processes run at a time.
    """
    program = build()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes, waiting, running = {}, list(names), []
    while waiting or running:
        while waiting and len(running) < width:
            running.append(_Process(waiting.pop(0), program, seconds, seed, folder))
        for process in [process for process in running if process.has_ended()]:
            running.remove(process)
            outcomes[process.name] = process.outcome()
        time.sleep(0.1)
    return {name: outcomes[name] for name in names}


def repeat(name: str, path: Path) -> int:
    """Run a target on one input, whose report goes to stderr; returns the status."""
    return subprocess.run(
        [build(), f"-target={name}", path], env=_environment(), check=False
    ).returncode


class _Process:
    """A target that runs."""

    def __init__(self, name: str, program: Path, seconds: float, seed: int, folder: Path) -> None:
        self.name, self._folder, self._limit_s = name, folder, seconds + MOST_S + END_S
        self._begin, self._files = time.monotonic(), Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
        corpus, seeds = (CORPUS if name in SEEDS else self._files) / name, self._files / "seeds"
        corpus.mkdir(parents=True, exist_ok=True)
        seeds.mkdir()
        for number, data in enumerate(SEEDS[name]() if name in SEEDS else [b"abc"]):
            (seeds / f"{number:04}").write_bytes(data[:MOST_BYTES])
        options = {
            "max_total_time": max(1, round(seconds)), "seed": seed % 2**32 or 1, "timeout": MOST_S,
            "max_len": MOST_BYTES, "rss_limit_mb": MOST_MB, "print_final_stats": 1,
            "artifact_prefix": f"{folder}/{name}-",
        }  # fmt: skip
        command = [str(program), f"-target={name}", str(corpus), str(seeds)]
        command += [f"-{option}={value}" for option, value in options.items()]
        self._log = open(self._files / "log", "w+", errors="replace")  # noqa: SIM115, closed in `outcome`
        environment = {**_environment(), "TMPDIR": str(self._files)}
        self._child = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)

    def has_ended(self) -> bool:
        """Return True once the process has ended; one that should have is ended here."""
        if self._child.poll() is None and time.monotonic() > self._begin + self._limit_s:
            self._child.kill()
            self._child.wait()
        return self._child.returncode is not None

    def outcome(self) -> Outcome:
        """Return what came of it."""
        with self._log:
            self._log.seek(0)
            text = self._log.read()
        shutil.rmtree(self._files, ignore_errors=True)
        outcome = Outcome(_last(EXECUTED, text), _last(COVERAGE, text), _last(NEW, text))
        if self._child.returncode or not outcome.executions:
            inputs = sorted(
                self._folder.glob(f"{self.name}-*"), key=lambda path: path.stat().st_mtime
            )
            path = inputs[-1] if inputs else self._folder / "no input"
            place = max(text.find("ERROR"), text.find("runtime error"), 0)
            outcome.finding = (
                f"status {self._child.returncode}; again by: make fuzz TARGET={self.name} INPUT={path}\n"
                + text[max(place - 200, 0) :][:SHOWN]
            )
        return outcome


def _last(pattern: re.Pattern[str], text: str) -> int:
    numbers = pattern.findall(text)
    return int(numbers[-1]) if numbers else 0


def _environment() -> dict[str, str]:
    folder = Path((CODEC and CODEC.origin) or "").parent
    codec = {"LIBRARY": str(folder / native.LIBRARY), "EXTENSIONS": str(folder / native.EXTENSIONS)}
    return {
        **programs.environment(),
        **OPTIONS,
        **{f"NVIMGCODEC_{name}": path for name, path in codec.items()},
    }
