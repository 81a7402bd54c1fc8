"""The command line: help, slips, --json and --debug, exit statuses, completion; by real processes
where it matters."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys

import numpy as np
import pytest

from gpuload import cli
from gpuload.cli.base import wrapped
from gpuload.errors import SpecError
from tests import forkserver
from tests.codeblocks import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


def gpuload(*words, folder=None, environment=None):
    """Run the command in a process; return it when it has ended."""
    code = "import runpy; runpy.run_module('gpuload', run_name='__main__', alter_sys=True)"
    return forkserver.run(
        code, *words, folder=folder, environment={**ENVIRONMENT, **(environment or {})}
    )


@pytest.fixture
def files(tmp_path):
    """Return a folder with records, and one with nothing."""
    np.save(tmp_path / "rows.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    (tmp_path / "empty").mkdir()
    return tmp_path


# help


def test_help_lists_each_verb_and_each_exit_status_and_imports_no_verb():
    code = (
        "import sys; from gpuload.cli import main; status = main(['--help']);"
        "print(status, sorted(name for name in sys.modules if name.split('.')[0] in ('rich', 'nvidia', 'PIL')"
        " or name in ('gpuload.cli.inspect', 'gpuload.cli.doctor')))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=True,
    )

    *lines, last = process.stdout.splitlines()
    assert last == "0 []"
    for name, text in {
        **cli.VERBS,
        **{str(status): text for status, text in cli.STATUSES.items()},
    }.items():
        assert any(line.split(None, 1) == [name, text] for line in lines), name
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", cli.VERBS)
def test_each_verb_has_help_and_the_common_options(name, capsys):
    assert cli.main([name, "--help"]) == 0

    text = capsys.readouterr().out
    assert text.startswith(f"Usage: gpuload {name} ")
    assert max(map(len, text.splitlines())) <= 80
    for option in ("--json", "--debug", "-h, --help"):
        assert option in text


@pytest.mark.parametrize("name", cli.VERBS)
def test_the_page_has_each_verb_and_the_fields_of_its_document(name):
    assert f"gpuload {name}" in PAGE
    assert f"| `{name}` | " in PAGE


def test_the_version_is_printed(capsys):
    assert cli.main(["--version"]) == 0

    assert capsys.readouterr().out.startswith("gpuload ")


# slips


@pytest.mark.parametrize(
    ("slip", "verb"),
    [
        ("chekc", "check"),
        ("inspekt", "inspect"),
        ("docter", "doctor"),
        ("convrt", "convert"),
        ("help", "--help"),
    ],
)
def test_a_slip_in_a_verb_is_answered_by_the_verb_that_is_meant(slip, verb, capsys):
    assert cli.main([slip, "x"]) == 2

    assert f"No such verb '{slip}'. Did you mean '{verb}'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "VERB"),
        (["qqqq"], "The verbs are: bench, check, "),
        (["check"], "Missing argument 'PATH...'"),
        (["check", "--num-threads", "two", "x"], "'two' is not a valid integer"),
        (["check", "--num-thread", "2", "x"], "--num-threads"),
        (["convert", "x", "y", "--format", "tfrecords"], "'tfrecords' is not one of"),
        (["demo", "nope"], "Got unexpected extra argument (nope)"),
        (["demo", "--seed", "nope"], "'nope' is not a valid integer."),
        (["bench", "--batch-size", "x", "rows.npy"], "'x' is not a valid integer."),
        (["bench", "--seconds", "x", "rows.npy"], "'x' is not a valid number."),
        (["preview", "--records", "x", "rows.npy"], "'x' is not a valid integer."),
        (["inspect", "rosw.npy"], "remedy: check the path; the folder has rows.npy"),
        (
            ["demo", "--epochs"],
            "Try 'gpuload demo --help' for help.\n\nError: Option '--epochs' requires an argument",
        ),
        (["health", "--executor", "dlai"], "'dlai' is not one of"),
        (["inspect", "none.npy"], "none.npy"),
        (["inspect", "empty"], "empty"),
        (["check", "empty"], "empty"),
        (["preview", "none"], "none"),
        (["convert", "none.npy", "x.npz"], "none.npy"),
        (["convert", "rows.npy"], "Missing argument 'OUT': the file that rows.npy is written to"),
        (["demo", "--seed", "-1"], "-1 is not in the range"),
        (["index", "none.npy", "-o", "x.manifest"], "none.npy is missing"),
        (["index", "rows.npy", "-o", "x.txt"], "ends in .manifest"),
        (["index", "rows.npy", "-o", "none/x.manifest"], "there is no folder"),
        (["inspect", "rows.npy", "--picture", "x.jpg"], "remedy: write --picture x.png"),
        (
            ["preview", "rows.npy", "--epochs", "0"],
            "Invalid value for '--epochs': 0 is not in the range x>=1",
        ),
        (["preview", "none.npy", "--out", "x.txt"], "'x.txt' as the name of a preview"),
        (["bench", "none.npy"], "none.npy is missing"),
        (["bench", "rows.npy", "--ops", "none/augment.py:train"], "none/augment.py is missing"),
        (["parity", "none.jpg"], "none.jpg"),
    ],
)
def test_a_wrong_command_line_is_a_message_and_status_2(words, message, files, capsys, monkeypatch):
    monkeypatch.chdir(files)

    assert cli.main(words) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert sorted(path.name for path in files.iterdir()) == ["empty", "rows.npy"]


# --json and --debug


def test_an_error_of_gpuload_is_its_message_and_status_2(monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise SpecError("what", cause="because", remedy="do this")

    monkeypatch.setattr("gpuload.check", refuse)

    assert cli.main(["check", "x"]) == 2
    assert capsys.readouterr().err == "SpecError: what\n  cause:  because\n  remedy: do this\n"

    assert cli.main(["check", "x", "--json"]) == 2
    captured = capsys.readouterr()
    error = {"type": "SpecError", "what": "what", "cause": "because", "remedy": "do this"}
    assert json.loads(captured.out) == {"error": error, "status": 2}
    assert captured.err.startswith("SpecError: what")


def test_lines_fit_the_terminal_and_a_line_to_copy_stays_whole(files, monkeypatch, capfd):
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((40, 20)))
    monkeypatch.chdir(files)

    assert cli.main(["convert", "rows.npy", "a.tfrecord"]) == 0

    *lines, call, last = capfd.readouterr().out.splitlines()
    assert all(len(line) <= 40 or " " not in line.strip() for line in [*lines, last])
    assert lines[0].startswith("from <gl.npy: ")
    assert lines[1].startswith("  ")
    assert call.startswith(f"it is read by gl.tfrecord('{files}/a.tfrecord', {{")
    margin = " " * 8  # as in the report of parity
    assert wrapped(f"{margin}{'word ' * 10}", sys.stdout) == "\n".join(
        [f"{margin}{'word ' * 6}".rstrip(), f"{margin}word word word word"]
    )


def test_a_message_fits_the_terminal_and_its_long_words_stay_whole(monkeypatch, capfd):
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((40, 20)))
    path = "/" + "x" * 50 + ".npy"

    assert cli.main(["inspect", path]) == 2
    assert capfd.readouterr().err == (
        f"MissingFileError:\n  {path}\n  is missing\n  cause:  no such file\n  remedy: check the path\n"
    )
    assert cli.main(["bench", __file__, "--ops", "a b"]) == 2
    assert capfd.readouterr().err == (
        "SpecError: --ops a b\n  cause:  it is a module and a name in\n          it, with a colon between\n"
        "  remedy: write --ops augment:train_ops\n          for the list train_ops in\n"
        "          augment.py of this folder\n"
    )


@pytest.mark.parametrize(
    "words", [["check", "--json"], ["--json", "chekc"], ["inspect", "--recod", "1", "x", "--json"]]
)
def test_a_wrong_command_line_is_a_document_under_json(words, capsys):
    assert cli.main(words) == 2

    document = json.loads(capsys.readouterr().out)
    assert document["status"] == 2
    assert document["error"]["what"]


def test_common_options_stand_before_or_behind_the_verb(files, capsys):
    assert cli.main(["--json", "check", str(files / "rows.npy")]) == 0
    before = capsys.readouterr().out
    assert cli.main(["check", str(files / "rows.npy"), "--json"]) == 0

    assert capsys.readouterr().out == before
    assert json.loads(before) == {
        "num_records": 6,
        "num_damaged": 0,
        "num_unsupported": 0,
        "num_unopened": 0,
        "damage": [],
    }


def test_the_document_of_convert_says_what_was_written(files, capsys):
    out = files / "rows.npz"
    assert cli.main(["convert", str(files / "rows.npy"), str(out), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document.pop("duration_s") > 0
    assert document == {
        "paths": [str(out)], "num_records": 6, "num_bytes": out.stat().st_size, "num_finished_before": 0,
        "call": f"gl.npz('{out}')", "is_verified": True,
    }  # fmt: skip


def test_the_document_of_health_has_both_works(capsys):
    assert cli.main(["health", "--device", "cpu", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["is_healthy"] is True
    assert [work["name"] for work in document["works"]] == ["rows", "images"]
    assert document["works"][0]["verdict"] == "right"
    assert document["works"][0]["device"].startswith("cpu")


def test_a_fault_of_code_is_a_message_and_with_debug_its_place(files):
    (files / "augment.py").write_text("def train():\n    return 1 // 0\n")
    words = ["preview", "rows.npy", "--ops", "augment:train"]

    short, long = gpuload(*words, folder=files), gpuload(*words, "--debug", folder=files)

    assert (short.returncode, long.returncode) == (2, 2)
    assert "gpuload preview: ZeroDivisionError: " in short.stderr
    assert "gpuload preview rows.npy --ops augment:train --debug" in short.stderr
    assert "Traceback" not in short.stderr
    assert 'augment.py", line 2, in train' in long.stderr


# completion


@pytest.fixture
def shell_environment(tmp_path):
    """Return the environment of a shell that finds the command."""
    program = tmp_path / "gpuload"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuload "$@"\n')
    program.chmod(0o755)
    return {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def need(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")


def test_bash_completes(shell_environment):
    need("bash")
    script = """
eval "$(_GPULOAD_COMPLETE=bash_source gpuload)" || exit 3
function=$(complete -p gpuload | sed 's/.*-F \\([^ ]*\\).*/\\1/')
while IFS= read -r line; do
  read -r -a COMP_WORDS <<< "$line"
  [ "${line: -1}" != " " ] || COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  "$function" gpuload
  echo "${COMPREPLY[@]}"
done
"""
    lines = {
        "gpuload ": list(cli.VERBS),
        "gpuload check --num": ["--num-threads"],
        "gpuload health --executor ": ["auto", "array", "dali"],
    }
    process = subprocess.run(
        ["bash", "--norc", "-c", script], input="".join(f"{line}\n" for line in lines), capture_output=True, text=True,
        env=shell_environment, timeout=100, check=False,
    )  # fmt: skip

    assert process.returncode == 0, process.stderr
    assert [line.split() for line in process.stdout.splitlines()] == list(lines.values())


def test_fish_completes_with_whole_descriptions(files, shell_environment):
    need("fish")
    lines = {
        "gpuload ins": f"inspect\t{cli.VERBS['inspect']}",
        "gpuload health --executor da": "dali",
        "gpuload check r": "rows.npy",
    }
    script = "_GPULOAD_COMPLETE=fish_source gpuload > script; or exit 3; source script"
    script += "".join(f"; complete --do-complete '{line}'" for line in lines)
    process = subprocess.run(
        ["fish", "--no-config", "-c", script], capture_output=True, text=True, env=shell_environment, cwd=files,
        timeout=100, check=False,
    )  # fmt: skip

    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.splitlines() == list(lines.values())


def test_zsh_completes_on_a_terminal(files, shell_environment):
    """The Tab key is pressed behind each line; then Ctrl-X writes it to a file, and Ctrl-D ends the
    shell."""
    need("zsh")
    lines = {
        "gpuload insp": "gpuload inspect ",
        "gpuload check --num": "gpuload check --num-threads ",
        "gpuload check r": "gpuload check rows.npy ",
    }
    setup = """
unsetopt zle_bracketed_paste
autoload -U compinit
compinit -u -D
eval "$(_GPULOAD_COMPLETE=zsh_source gpuload)"
finish() { print -r -- "$BUFFER" >> lines; BUFFER=""; print -n re''ady }
zle -N finish
bindkey '^X' finish
"""
    (files / ".zshrc").write_text(f"{setup}print re''ady\n")
    terminal, program_end = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-d", "-i"], stdin=program_end, stdout=program_end, stderr=program_end, start_new_session=True,
        cwd=files, env={**shell_environment, "TERM": "dumb", "ZDOTDIR": str(files)},
    ):  # fmt: skip
        os.close(program_end)
        text = b""
        for count, key in enumerate([*(f"{line}\t\x18" for line in lines), "\x04"], start=1):
            while text.count(b"ready") < count:
                text += os.read(terminal, 1000)
            os.write(terminal, key.encode())
        with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
            while data := os.read(terminal, 1000):
                text += data
    os.close(terminal)

    assert (files / "lines").read_text().splitlines() == list(lines.values()), text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell, tmp_path):
    process = gpuload(environment={"_GPULOAD_COMPLETE": f"{shell}_source"})

    assert process.returncode == 0
    assert f"_GPULOAD_COMPLETE={shell}_complete" in process.stdout
    if shutil.which(shell) is not None:
        check = subprocess.run(
            [shell, "-n"], input=process.stdout, text=True, capture_output=True, check=False
        )
        assert (check.returncode, check.stderr) == (0, "")
