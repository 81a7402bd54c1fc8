"""Completion in shells, by Click's scripts. That for fish is mended here: it cuts a description at
its first comma."""

from __future__ import annotations

import os

import click
from click.shell_completion import FishComplete, add_completion_class, shell_complete

from gpuload.cli.base import Output


@add_completion_class
class Fish(FishComplete):
    """Completion in fish; each line that the script reads is a kind, a comma and a text (Click 8.1
    to 8.5)."""

    source_template = FishComplete.source_template.replace(
        'string split ","', 'string split --max 1 ","'
    )


def complete(group: click.Group, output: Output, variable: str) -> int:
    """Print the script or the completions that an environment variable asks for; return the exit
    status."""
    return shell_complete(group, {"obj": output}, "gpuload", variable, os.environ[variable])
