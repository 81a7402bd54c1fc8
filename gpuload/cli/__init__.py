"""The command line, ``gpuload VERB``: one verb a module; an error of gpuload is a message and exit status 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import gpuload
from gpuload.errors import GpuloadError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status.

    0 done, 1 the verb's own no, 2 an error or a wrong command line,
    130 after Ctrl-C, 141 where nobody reads the output any more.
    """
    arguments = _parser().parse_args(argv)
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where a pipe that is closed is met
        return status
    except GpuloadError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who read the output, `head` say, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes at its end
        return 141
    except OSError as error:  # of a file that a verb writes: a full disk, a folder without permission
        print(f"gpuload {arguments.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    from gpuload.cli import check, convert, demo, doctor, health, inspect, parity, preview

    parser = argparse.ArgumentParser(prog="gpuload", description="Records on disk to device tensors for training.")
    parser.add_argument("--version", action="version", version=f"gpuload {gpuload.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    check.add_parser(verbs)
    convert.add_parser(verbs)
    demo.add_parser(verbs)
    doctor.add_parser(verbs)
    health.add_parser(verbs)
    inspect.add_parser(verbs)
    parity.add_parser(verbs)
    preview.add_parser(verbs)
    return parser
