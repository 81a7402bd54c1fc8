"""What any verb meets: files without permission, folders that are not written to, full disks,
Ctrl-C; by processes."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import forkserver
from tests.codeblocks import ROOT

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def files(tmp_path):
    """Return a folder with rows and photos."""
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).integers(0, 256, (2000, 100), np.uint8))
    (tmp_path / "photos").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 80, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture
def environment(tmp_path):
    cache = {"GPULOAD_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    return {**os.environ, **cache, "PYTHONDONTWRITEBYTECODE": "1"}


def powerless():
    """Return what a command begins with, so that root, who may read and write everywhere, may
    not."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv, and root may do everything")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


def run(words, folder, environment, before=(), setup="", **options):
    """Run the command in a process of its own, behind the lines of ``setup``; return it when it has
    ended."""
    code = (
        f"import runpy\n{setup}\nrunpy.run_module('gpuload', run_name='__main__', alter_sys=True)"
    )
    return forkserver.run(
        code, *words, before=tuple(before), folder=folder, environment=environment, **options
    )


FULL_DISK = """
import resource, signal, sys

sys.dont_write_bytecode = True  # Python would keep the part of a module that the limit allows, for all runs to come
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # no file may be longer
"""


@pytest.mark.parametrize(
    "words",
    [["inspect", "rows.npy"], ["check", "rows.npy"], ["convert", "rows.npy", "x.npz"], ["parity", "photos/0.png"],
     ["preview", "photos"], ["inspect", "photos"]],
    ids=" ".join,
)  # fmt: skip
def test_a_file_that_may_not_be_read_is_named_with_the_remedy(words, files, environment):
    for path in (files / "rows.npy", files / "photos" / "0.png"):
        path.chmod(0)

    process = run(words, files, environment, powerless())

    # Damage is the no of `check`: the rest is read. A sample with such a record is no end for
    # `inspect` either.
    assert process.returncode in ((1, 2) if words[0] in ("check", "inspect") else (2,))
    text = process.stdout + process.stderr
    assert "permission" in text.lower()
    assert "Traceback" not in text
    assert ("rows.npy" if "rows.npy" in words else "0.png") in text
    assert not (files / "x.npz").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "rows.npy", "out/x.npz"],
        ["convert", "photos", "out/x/"],
        ["preview", "photos", "--out", "out/page.html"],
        ["inspect", "photos", "--picture", "out/x.png"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("fault", ["permission", "full disk"])
def test_a_folder_that_cannot_be_written_is_an_error_and_nothing_half_written_is_there(
    words, fault, files, environment
):
    out = files / "out"
    if fault == "permission":
        out.chmod(0o555)
        process = run(words, files, environment, powerless())
    else:
        process = run(words, files, environment, setup=FULL_DISK)

    text = process.stderr
    assert process.returncode == 2, text
    assert ("Permission denied" if fault == "permission" else "File too large") in text
    assert "out/" in text
    assert "chmod +r" not in text
    assert "Traceback" not in text
    assert [path.name for path in out.iterdir() if not path.name.endswith(".convert.jsonl")] == []


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["check", "rows.npy"],
        ["inspect", "rows.npy"],
        ["inspect", "rows.npy", "--json"],
        ["health"],
    ],
    ids=" ".join,
)
def test_an_output_that_takes_nothing_is_an_error(words, files, environment):
    with open("/dev/full", "w") as full:
        process = run(words, files, environment, stdout=full.fileno())

    assert process.returncode == 2
    verb = " ".join(["gpuload", *(word for word in words[:1] if word != "--help")])
    assert process.stderr == f"{verb}: the output cannot be written: No space left on device\n"


def test_a_closed_output_is_no_fault_of_a_verb(files, environment):
    for words in (["check", "rows.npy"], ["inspect", "rows.npy"]):
        command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "gpuload", *words]
        process = subprocess.run(
            command, cwd=files, env=environment, stderr=subprocess.PIPE, text=True, check=False
        )

        assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize(
    "words", [["check", "rows.npy"], ["inspect", "rows.npy"], ["--help"]], ids=" ".join
)
def test_an_output_that_nobody_reads_any_more_is_status_141(words, files, environment):
    reader, writer = os.pipe()
    os.close(reader)

    process = run(words, files, environment, stdout=writer)

    os.close(writer)
    assert process.returncode == 141
    assert "Traceback" not in process.stderr
    assert "BrokenPipe" not in process.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_utf_8_gets_all_lines(encoding, files, environment):
    (files / "photos").rename(files / "photos-\u00fc\u4e2d")

    command = [sys.executable, "-m", "gpuload", "inspect", "photos-\u00fc\u4e2d"]
    environment["PYTHONIOENCODING"] = encoding  # Python reads it when it starts
    process = subprocess.run(
        command, cwd=files, env=environment, stdout=subprocess.PIPE, check=False
    )

    out = process.stdout.decode(encoding)
    assert process.returncode == 0
    assert r"\u4e2d" in out
    assert "In Python:" in out


INTERRUPTED = {
    "check": ["check", "big"],
    "convert": ["convert", "big", "out/x.tfrecord"],
    "preview": ["preview", "big", "--records", "3000", "--out", "out/page.html"],
    "inspect": ["inspect", "big", "--picture", "out/x.png"],
    "doctor": ["doctor"],
    "parity": ["parity"],
    "health": ["health"],
    "index": ["index", "big", "-o", "out/x.manifest"],
}


EACH_MOMENT = """
import codecs, gc, os, signal, sys, traceback
from gpuload import cli
from gpuload.cli import base

FILES = (cli.__file__, base.__file__, codecs.__file__)  # codecs has a part in the encoding of stdout and stderr


def run(moment, report):
    num_events = 0

    def trace(frame, event, argument):
        nonlocal num_events
        if frame.f_code.co_filename in FILES:
            num_events += 1
            if num_events == moment:
                os.write(report, f"{frame.f_code.co_name}, line {frame.f_lineno}, {event}".encode())
                signal.raise_signal(signal.SIGINT)
        return trace

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as __main__ does, before the imports
    sys.argv[0] = "gpuload"
    sys.settrace(trace)
    try:
        status = cli.main()
    except BaseException:
        sys.settrace(None)
        status = 1
        os.write(2, traceback.format_exc().encode())
    sys.settrace(None)
    os._exit(status)  # Python's end takes more time than all else


def answer(moment):
    report, report_end = os.pipe()
    errors, errors_end = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(errors_end, 2)
        run(moment, report_end)
    os.close(report_end)
    os.close(errors_end)
    with os.fdopen(report) as place, os.fdopen(errors) as text:
        line = place.read(), text.read()
    return (*line, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


gc.freeze()
moment, place = 0, "first"
answers = []
while place:
    moment += 1
    place, text, status = answer(moment)
    answers.append((place, text, status))
print(repr(answers), file=sys.__stderr__)
"""


@pytest.mark.parametrize(
    ("words", "status"), [(["--version"], 0), (["nonsense", "--json"], 2)], ids=str
)
def test_ctrl_c_at_each_line_of_the_command_line_shows_no_traceback(
    words, status, files, environment
):
    process = forkserver.run(
        EACH_MOMENT, *words, folder=files, environment=environment, warnings="ignore"
    )

    assert process.returncode == 0, process.stderr
    *answers, (_, _, last) = ast.literal_eval(process.stderr)
    assert last == status  # this one ran to its end
    assert len(answers) > 40
    for place, text, number in answers:
        is_end_by_signal = (number, "interrupted" in text) == (-signal.SIGINT, False)
        is_end_by_message = (number, text.splitlines()[-1:]) == (130, ["interrupted"])
        assert is_end_by_signal or is_end_by_message, (place, text, number)
        assert "Traceback" not in text, (place, text)


COMMANDS = {
    "gpuload": ["-c", "import gpuload_command; gpuload_command.main()"],
    "python -m gpuload": ["-m", "gpuload", "--version"],
    "python -mgpuload": ["-X", "utf8", "-mgpuload", "-m", "gpuload"],
}
# Python imports it by itself before a program begins; it sends Ctrl-C when a module is looked for.
SENDER = """
import signal, sys

class Finder:
    @staticmethod
    def find_spec(name, *rest):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


def interrupt_imports(module: str, words: list[str], folder: Path, environment: dict[str, str]):
    """Run Python with Ctrl-C at the import of a module."""
    (folder / "sitecustomize.py").write_text(SENDER.format(module=module))
    paths = [str(folder), *filter(None, [environment.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder, timeout=100,
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("module", ["numpy", "gpuload.ops", "gpuload.cli", "click"])
def test_ctrl_c_during_the_imports_of_the_command_ends_them_without_a_word(
    module, command, files, environment
):
    process = interrupt_imports(module, COMMANDS[command], files, environment)

    assert (process.returncode, process.stdout, process.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    "words", [["-c", "import gpuload", "-m", "gpuload"], ["-m", "trainer", "gpuload"]], ids=str
)
def test_ctrl_c_during_the_import_of_gpuload_by_a_program_is_the_programs(
    words, files, environment
):
    (files / "trainer.py").write_text("import gpuload\n")
    process = interrupt_imports("numpy", words, files, environment)

    assert "KeyboardInterrupt" in process.stderr


# The thousandth call of `doctor` is behind its trials of decoders, which take 20 s.
@pytest.mark.parametrize(
    ("verb", "num_calls"),
    [
        pytest.param(
            verb, calls, marks=[pytest.mark.slow] if (verb, calls) == ("doctor", 1000) else []
        )
        for verb in INTERRUPTED
        for calls in (30, 1000)
    ],
)
def test_ctrl_c_ends_each_verb_with_status_130_and_nothing_half_written(
    verb, num_calls, files, environment
):
    (files / "big").mkdir()
    data = (files / "photos" / "0.png").read_bytes()
    for number in range(400):
        (files / "big" / f"{number:04}.png").write_bytes(data)
    program = """
import os, signal, sys
from gpuload import cli

FOLDER = os.path.dirname(os.path.dirname(cli.__file__))

class Output(cli.Output):  # the first thing that a verb needs
    def __init__(self):
        super().__init__()
        sys.setprofile(profile)

def profile(frame, event, argument):
    global num_calls
    code = frame.f_code
    num_calls -= event == "call" and code.co_filename.startswith(FOLDER) and code.co_name != "<module>"
    if num_calls == 0:
        sys.setprofile(None)
        print("now", flush=True)
        signal.raise_signal(signal.SIGINT)

num_calls = int(sys.argv.pop(1))
cli.Output = Output
sys.exit(cli.main())
"""
    process = forkserver.run(
        program, num_calls, *INTERRUPTED[verb], folder=files, environment=environment
    )

    assert "now\n" in process.stdout
    assert "Traceback" not in process.stderr
    assert process.returncode in (130, -signal.SIGINT), process.stderr
    if process.returncode == 130:
        assert process.stderr.splitlines()[-1] == "interrupted"
    names = {path.name for path in (files / "out").iterdir()}
    assert not any(".part" in name for name in names if verb != "convert"), names
