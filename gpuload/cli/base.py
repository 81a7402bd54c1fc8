"""The parts that all verbs share: `verb` makes a command of a function, and `Output` prints its
results.

    @verb
    @click.argument("path", metavar="PATH")
    def command(output: Output, path: str) -> int:
        "Count the records of files."
        output.say(f"{len(source):,} records")           for people: on stdout, nothing under --json
        output.result(num_records=len(source))           for programs: the document of --json
        return 0                                         the exit status

People    read lines, on stdout; `Output.draw` takes parts of Rich: tables, styled text. Rich is
          imported there, so that verbs which only print lines start without it.
Programs  read one JSON document on stdout, and nothing else is there: remarks and messages are on
          stderr.
Errors    are raised; `gpuload.cli.main` makes messages and exit statuses of them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TextIO

import click

from gpuload import progress
from gpuload.redaction import message, redact
from gpuload.tracebacks import DEBUG

Options = ParamSpec("Options")
Run = Callable[Concatenate["Output", Options], int]

HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}  # settings of click
PATH = click.Path(
    readable=False
)  # shells complete paths; whether it can be read, the verb says with a remedy
COLUMNS = 80  # where stdout is no terminal
COMMAND = " " * 4  # before a line to type, which is never wrapped


class WholeNumber(click.IntRange):
    """A whole number, from a least one on."""

    name = "integer"  # where click says "integer range"


class Number(click.FloatRange):
    """A number, from a least one on."""

    name = "number"


class Output:
    """The output of a verb, for people or as a document.

    Attributes:
        is_json: True under --json.
        is_debug: True under --debug.
    """

    def __init__(self) -> None:
        self.is_json = self.is_debug = False
        self._document: dict[str, Any] = {}

    def say(self, text: object = "", *, is_wrapped: bool = True) -> None:
        """Print lines for people on stdout; nothing under --json.

        Args:
            text: the lines.
            is_wrapped: False for lines that must stay whole, as those of a table or of a program.
        """
        if not self.is_json:
            progress.wipe()
            lines = message(str(text))
            print(wrapped(lines, sys.stdout) if is_wrapped else lines, flush=True)

    def draw(self, *parts: Any, is_wrapped: bool = True) -> None:
        """Print parts of Rich, or texts, for people on stdout; nothing under --json.

        Args:
            parts: of Rich, whose texts `message` made fit for a terminal; or texts, in which
                nothing is markup.
            is_wrapped: False for lines that must stay whole, as those of a program.
        """
        if not self.is_json:
            with (
                self.console.capture() as capture
            ):  # Rich would end the process where a pipe is closed
                texts = (message(part) if isinstance(part, str) else part for part in parts)
                self.console.print(*texts, soft_wrap=not is_wrapped)
            progress.wipe()
            print(capture.get(), end="", flush=True)

    def note(self, text: object) -> None:
        """Print a remark for people on stderr."""
        progress.wipe()
        print(message(str(text)), file=sys.stderr, flush=True)

    def result(self, **fields: Any) -> None:
        """Add fields to the document of --json; values that JSON has."""
        self._document |= fields

    def end(self) -> None:
        """Print the document, if it was asked for, and write out all that was printed."""
        if self.is_json:
            print_document(self._document)
        if sys.stdout is not None:  # a shell may start a program without it: >&-
            sys.stdout.flush()

    @cached_property
    def console(self) -> Any:
        """Rich's console on stdout, in which no text is markup; 80 columns wide where stdout is no
        terminal."""
        from rich.console import Console

        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        if is_terminal or "COLUMNS" in os.environ:
            width = None
        else:
            width = COLUMNS
        return Console(highlight=False, markup=False, emoji=False, width=width, quiet=self.is_json)


def wrapped(text: str, stream: TextIO) -> str:
    """Return lines that fit the terminal, if a stream is one; the text behind ``cause:`` has its
    own margin."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns or COLUMNS
    except (OSError, ValueError, AttributeError):
        return text
    lines = []
    for line in text.splitlines():
        if len(line) <= columns or re.match(rf"{COMMAND}\S", line):
            lines.append(line)
            continue
        match = re.match(r" +(?:\w+: +)?", line)
        indent = " " * (match.end() if match else 2)
        # A long word stays whole, to be copied.
        lines += textwrap.wrap(
            line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)


def print_document(document: dict[str, Any]) -> None:
    """Print the document of --json on stdout."""
    # Letters as numbers: a path need not be UTF-8, and the reader's encoding is not known.
    print(json.dumps(_without_secrets(document), indent=1, ensure_ascii=True), flush=True)


def _without_secrets(value: Any) -> Any:
    """Return a value of JSON with `redact` on all its texts, whose characters stay as they are."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {_without_secrets(name): _without_secrets(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(part) for part in value]
    return value


def verb(run: Run[Options]) -> click.Command:
    """Return the command that calls a function with the output and its options; its docstring is
    the help."""
    command = click.command(context_settings=HELP)(click.pass_obj(run))
    return common_options(command)


def common_options(command: click.Command) -> click.Command:
    """Add the options that the command and each of its verbs have."""
    command.params += [
        _flag("--json", "is_json", "Print one JSON document on stdout, and nothing else."),
        _flag("--debug", "is_debug", "Show the log, and with an error the place in the program."),
    ]
    return command


def _flag(name: str, attribute: str, text: str) -> click.Option:
    """Return an option that sets an attribute of the output."""

    def switch_on(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            setattr(context.obj, attribute, True)
            if attribute == "is_debug":
                show_log()

    # Eager: click heeds it before it checks the values of other options, whose errors then come as
    # it says.
    return click.Option(
        [name, attribute],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=switch_on,
        help=text,
    )


def show_log() -> None:
    """Show gpuload's log on stderr, and all frames of tracebacks."""
    os.environ[DEBUG] = "1"
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("gpuload").setLevel(logging.INFO)
