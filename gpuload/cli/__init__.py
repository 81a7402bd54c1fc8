"""The command line, ``gpuload VERB``: one verb a module, errors are messages, exit statuses are in
`STATUSES`.

To add a verb: one module ``gpuload/cli/NAME.py`` with a ``command``, made by ``@verb`` (`base.py`
shows how), one line in `VERBS`, and its lines in ``docs/command-line.md``. A module is imported
when its verb is called. The options --json and --debug, messages, exit statuses and completion come
from here. Long work shows progress by `gpuload.progress`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import json
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

import click

import gpuload
from gpuload import progress
from gpuload.cli.base import (
    COMMAND,
    HELP,
    Output,
    as_paths,
    common_options,
    print_document,
    wrapped,
)
from gpuload.errors import GpuloadError
from gpuload.redaction import message

VERBS = {
    "bench": "Measure how fast files come as batches, and find what slows them.",
    "check": "Read all records, and list the damaged ones.",
    "convert": "Write records to files of another format.",
    "demo": "Train, resume and compare on real data, in about a minute.",
    "doctor": "Check packages, GPUs and limits here, and give remedies to type.",
    "health": "Run a small epoch and check each value, for containers.",
    "index": "Write a manifest of files, which opens them in a moment.",
    "inspect": "Show the contents of files, and the Python that loads them.",
    "parity": "Compare each op and image format on each executor.",
    "preview": "Write a page of records before and after ops.",
}
SUCCESS, DENIAL, ERROR, INTERRUPT, CLOSED_PIPE = 0, 1, 2, 130, 141
STATUSES = {
    SUCCESS: "done",
    DENIAL: "the verb found a fault: damaged records, a failed check",
    ERROR: "an error, or a wrong command line",
    INTERRUPT: "Ctrl-C",
    CLOSED_PIPE: "the reader of the output ended first, as `| head` does",
}
USAGE = "Try '{} --help' for help.\n\n"  # where click does not say it
COMPLETE = "_GPULOAD_COMPLETE"  # set by a shell that asks for its script, or for completions
UNLISTED = (
    "gl.concat(",
    "gl.Loader(",
)  # calls around that of files, of which no manifest is written
IN_PYTHON = (
    ". A verb has no option for that. Have the call write a manifest, and give this to the verb:"
)
MANIFEST = "x.manifest"  # of these lines


class Verbs(click.Group):
    """The group of verbs, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb; None if there is none of that name."""
        if cmd_name not in VERBS:
            return None
        # Only the verb that is called is imported: some need a second for their packages, and each
        # completion in a shell starts this program anew.
        if cmd_name == "demo":  # an example
            module = importlib.import_module("gpuload_demo.command")
        else:
            module = importlib.import_module(f"gpuload.cli.{cmd_name}")
        command: click.Command = module.command
        command.name, command.short_help = cmd_name, VERBS[cmd_name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the first argument names, or say which one is meant."""
        name = args[0]
        # While a shell completes, click parses words that are not yet whole; those are no slips.
        if name not in VERBS and not name.startswith("-") and not ctx.resilient_parsing:
            if name == "help":
                near = ["--help"]
            else:
                near = difflib.get_close_matches(name, VERBS, n=1, cutoff=0.5)
            if near:
                advice = f"Did you mean '{near[0]}'?"
            else:
                advice = f"The verbs are: {', '.join(VERBS)}."
            raise click.UsageError(f"No such verb '{name}'. {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, none of which is imported for that, and the exit statuses."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), text) for status, text in STATUSES.items()])


@click.command(
    cls=Verbs, subcommand_metavar="VERB ...", no_args_is_help=False, context_settings=HELP
)
@click.version_option(gpuload.__version__, message="gpuload %(version)s")
def group() -> None:
    """Records on disk to device tensors for training.

    Start with: gpuload inspect PATH, then gpuload doctor. Each verb has its own help: gpuload
    inspect --help.
    """


common_options(group)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status, one of `STATUSES`.

    Ctrl-C raises KeyboardInterrupt while the verb runs, and only once. Before the verb, after it,
    and from the first Ctrl-C on, the system ends the process without a word. So Ctrl-C shows a
    traceback at no moment.

    Args:
        argv: the words behind ``gpuload``; None for those of this process, which ends after this
            call.
    """
    try:
        if argv is not None:
            return _main(list(argv))
        end_at_interrupt()
        _print_all_characters()  # if it was broken off, the streams would have no encoding any more
        _raise_at_interrupt()
        status = _main(sys.argv[1:], is_process=True)
        end_at_interrupt()
        return status
    except KeyboardInterrupt:  # before the verb, behind it, or while its error was printed
        _print_error("interrupted")
        return INTERRUPT


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once; a program that ignores it, or handles it in a way of its
    own, still does."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _interrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _raise_at_interrupt() -> None:
    """Let the first Ctrl-C raise KeyboardInterrupt in the main thread, and the second one end the
    process at once."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        # Python drops an exception in a finalizer or a callback of C, and with it the Ctrl-C that
        # happened to arrive there.
        sys.unraisablehook = _report
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # First: a verb that is stuck in C after this Ctrl-C ends with the next one.
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _report(unraisable: sys.UnraisableHookArgs) -> None:
    """Report an exception that Python can raise nowhere, as one in a finalizer; end the process if
    it is Ctrl-C."""
    if unraisable.exc_type is KeyboardInterrupt:
        signal.raise_signal(signal.SIGINT)
    sys.__unraisablehook__(unraisable)


def _main(words: list[str], is_process: bool = False) -> int:
    """Run a verb and return the exit status; its errors are messages.

    Args:
        words: the words behind ``gpuload``.
        is_process: whether they are those of this process, which a shell may have started for
            completions.
    """
    output = Output()
    try:
        if is_process and COMPLETE in os.environ:
            from gpuload.cli.completion import complete

            return complete(group, output, COMPLETE)
        if not words:
            _print_error(click.Context(group, info_name="gpuload", **HELP).get_help())
            return ERROR
        with group.make_context("gpuload", words, obj=output) as context:
            status = int(group.invoke(context))
        output.end()
        return status
    except click.exceptions.Exit as ending:  # after --help and --version
        return ending.exit_code
    except (Exception, KeyboardInterrupt) as error:
        # The progress line has no line break: the message would stand behind it.
        progress.wipe()
        return _fail(error, output, words)


def _fail(error: BaseException, output: Output, words: list[str]) -> int:
    """Print the message of an error and return the exit status."""
    if isinstance(error, BrokenPipeError):
        _leave_stdout()
        return CLOSED_PIPE
    if isinstance(error, KeyboardInterrupt):
        status = INTERRUPT
    else:
        status = ERROR
    _leave_full_stdout()
    if isinstance(error, GpuloadError):
        lines = _in_python(error.remedy, words)
    else:
        lines = ""
    if output.is_debug:
        _print_error(message("".join(traceback.format_exception(error)).rstrip() + lines))
    else:
        _print_error(wrapped(message(_message(error, words) + lines), sys.stderr))
    if isinstance(error, GpuloadError):
        error.remedy += lines
    # Where click cannot parse the words it has not yet heeded --json among them.
    if output.is_json or (isinstance(error, click.UsageError) and "--json" in words):
        with contextlib.suppress(OSError):
            print_document({"error": _document(error), "status": status})
    return status


def _in_python(remedy: str, words: list[str]) -> str:
    """Return the lines to type for a remedy that opens files by a call in Python; "" for another
    remedy."""
    from gpuload.formats import FORMATS

    if any(call in remedy for call in UNLISTED):
        return ""
    # Formats without `call` open no manifest: the advice would not help there.
    forms = {form.name: form for form in FORMATS}
    # With its arguments: gl.npz(..., record="file"); a name alone is one of several calls to choose
    # from. A call with a path of its own opens other files than those of the verb.
    whole_path = r"""\(['"](?:/|\w+://)"""
    calls = re.findall(
        rf"\bgl\.({'|'.join(forms)})\b(?!{whole_path})(\((?:\.\.\.|paths?)(?:, ((?:[^()]|\([^()]*\))*))?\))?",
        remedy,
    )
    if calls:
        inputs, manifest, command = _manifest_words(words)
    else:
        inputs, manifest, command = ([], "", [])
    if not inputs:
        return ""
    name, _, arguments = next((call for call in calls if call[1]), calls[0])
    if len(inputs) == 1 and os.path.isdir(inputs[0]) and forms[name].folder is None:
        inputs = [os.path.join(inputs[0], "*")]
    if '"' not in arguments:
        arguments = arguments.replace("'", '"')  # the shell's quotes stand around all of it
    target = json.dumps(as_paths(inputs))  # a text is the same in Python
    call = (
        f"gl.{name}({', '.join(filter(None, [target, arguments]))}).index({json.dumps(manifest)})"
    )
    lines = [["python", "-c", f"import gpuload as gl; {call}"], command]
    return "\n".join([IN_PYTHON, *(COMMAND + shlex.join(line) for line in lines if line)])


def _manifest_words(words: list[str]) -> tuple[list[str], str, list[str]]:
    """Return the paths that a verb reads, a manifest of them, and the command that reads that; none
    for `index`."""
    place = next(place for place, word in enumerate(words) if word in VERBS)
    verb: click.Command = importlib.import_module(f"gpuload.cli.{words[place]}").command
    options = verb.make_context(
        words[place], words[place + 1 :], obj=Output(), resilient_parsing=True
    ).params
    paths = options.get("paths") or ()
    inputs = list(paths)
    if words[place] == "convert":
        inputs = inputs[:-1]
    if words[place] == "index" or not inputs:
        return inputs, options.get("out") or MANIFEST, []
    first = words.index(inputs[0], place + 1)
    rest = (word for word in words[first + 1 :] if word not in inputs)
    return inputs, MANIFEST, ["gpuload", *words[:first], MANIFEST, *rest]


def _message(error: BaseException, words: list[str]) -> str:
    """Return an error as lines for people."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, GpuloadError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, click.ClickException):
        text = io.StringIO()
        error.show(text)
        has_usage = getattr(error, "ctx", None) is not None
        return f"{'' if has_usage else USAGE.format(_program(words))}{text.getvalue().rstrip()}"
    if isinstance(
        error, OSError
    ):  # of a file that a verb writes, or of stdout, which has no name: a full disk
        if error.filename:
            message = str(error)
        else:
            message = f"the output cannot be written: {error.strerror or error}"
        return f"{_program(words)}: {message}"
    command = shlex.join(["gpuload", *words, "--debug"])
    return (
        f"{_program(words)}: {type(error).__name__}: {error}\n"
        "  cause:  a fault of gpuload, of a package, or of code of yours that it called\n"
        f"  remedy: {command} shows the place in the program"
    )


def _document(error: BaseException) -> dict[str, str]:
    """Return an error for programs."""
    if isinstance(error, GpuloadError):
        texts = error.what, error.cause, error.remedy
    elif isinstance(error, click.ClickException):
        texts = error.format_message(), "", ""
    else:
        texts = str(error) or "interrupted", "", ""
    return {
        "type": type(error).__name__,
        **dict(zip(("what", "cause", "remedy"), texts, strict=True)),
    }


def _print_error(text: str) -> None:
    """Print lines on stderr; no error if stderr is closed, or is a pipe without a reader."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _program(words: list[str]) -> str:
    return " ".join(["gpuload", *[word for word in words if word in VERBS][:1]])


def _print_all_characters() -> None:
    """Have characters that a terminal has not printed as their numbers, and not raise an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # the verb meets it again when it prints
                stream.reconfigure(errors="backslashreplace")


def _leave_full_stdout() -> None:
    """Drop text that cannot be written to stdout: Python would try again at its end, and print an
    error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _leave_stdout()


def _leave_stdout() -> None:
    """Have nothing more written to stdout."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        # Under Python's own stream: what is still in its buffer is flushed when the interpreter
        # ends, and must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
