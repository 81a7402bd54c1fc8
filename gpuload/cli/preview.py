"""``gpuload preview PATH``: writes a page of records, before and behind ops; see ``gpuload.preview``.

Exit status 0, or 2 if there is no such path, or nothing to look at.
"""

from __future__ import annotations

import pkgutil
import sys

import click

import gpuload as gl
from gpuload.cli.base import Output, verb
from gpuload.errors import SpecError


@verb
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option("--ops", "ops_name", metavar="MODULE:NAME", help="A list of ops in a Python module: augment:train_ops.")
@click.option("--records", type=int, default=4, show_default=True, help="How many records.")
@click.option("--epochs", type=int, default=2, show_default=True, help="Of how many epochs the draws are shown.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option("--out", default="preview.html", show_default=True, type=click.Path(), help="The page, .html or .png.")
def command(
    output: Output, paths: tuple[str, ...], ops_name: str | None, records: int, epochs: int, seed: int, out: str
) -> int:
    """Write a page of records before and behind ops, to be looked at.

    PATH: files of one format, wildcards in quotes, or a folder of images. The page shows records as they are stored,
    and what the ops make of them in the first epochs.
    """
    ops = _find_ops(ops_name) if ops_name else []
    source = gl.open(paths[0] if len(paths) == 1 else list(paths))
    loader = gl.Loader(source, 1, ops=ops, seed=seed, device="cpu")
    page = gl.preview(loader, records=records, epochs=epochs)
    page.save(out)
    output.say(f"{out}: {len(page.records)} records, {', '.join(page.titles)}")
    output.result(path=out, records=page.records, columns=page.titles, ops=page.ops)
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
