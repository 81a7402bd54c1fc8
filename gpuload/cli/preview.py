"""``gpuload preview PATH``: writes a page of records, before and behind ops; see ``gpuload.preview``.

Exit status 0, or 2 if there is no such path, or nothing to look at.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from typing import Any

import gpuload as gl
from gpuload.errors import SpecError


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "preview",
        help="write a page of records before and behind ops, to be looked at",
        description="Writes one page of HTML (or a PNG) with records of files as they are stored, and behind the ops "
        "of a Python module in the first epochs.",
    )
    parser.add_argument("path", metavar="PATH", help="as for gl.open: a file, a folder of images, wildcards")
    parser.add_argument("--ops", metavar="MODULE:NAME", help="a list of ops in a module of Python: augment:train_ops")
    parser.add_argument("--records", type=int, default=4, help="how many records (default: 4)")
    parser.add_argument("--epochs", type=int, default=2, help="of how many epochs the draws are shown (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--out", default="preview.html", help="the page, .html or .png (default: preview.html)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and return the exit status."""
    ops = _find_ops(arguments.ops) if arguments.ops else []
    loader = gl.Loader(gl.open(arguments.path), 1, ops=ops, seed=arguments.seed, device="cpu")
    page = gl.preview(loader, records=arguments.records, epochs=arguments.epochs)
    page.save(arguments.out)
    print(f"{arguments.out}: {len(page.records)} records, {', '.join(page.titles)}")
    return 0


def _find_ops(text: str) -> list[gl.ops.Op]:
    """Return the list of ops that a text names, or that the function that it names returns.

    Raises:
        SpecError: there is no such module or name, or it is something else.
    """
    module_name, is_split, name = text.partition(":")
    remedy = "write --ops augment:train_ops for the list train_ops in augment.py of this folder"
    if not is_split or not module_name or not name:
        raise SpecError(f"--ops {text}", cause="it is a module and a name in it, with a colon between", remedy=remedy)
    if "" not in sys.path:
        sys.path.insert(0, "")  # the working folder, as `python -m` has it
    try:
        value = pkgutil.resolve_name(text)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(f"--ops {text}", cause=str(error), remedy=remedy) from None
    ops = value() if callable(value) and not isinstance(value, gl.ops.Op) else value
    ops = [ops] if isinstance(ops, gl.ops.Op) else ops
    if not isinstance(ops, (list, tuple)):
        raise SpecError(f"--ops {text}", cause=f"it is {type(ops).__name__}, and no list of ops", remedy=remedy)
    return list(ops)
