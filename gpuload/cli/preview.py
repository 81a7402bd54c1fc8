"""``gpuload preview PATH``: writes a page of records, before and behind ops; see
``gpuload.preview``.

Exit status 0, or 2 if there is no such path, or nothing to look at.
"""

from __future__ import annotations

import click

import gpuload as gl
from gpuload.cli.base import PATH, Output, WholeNumber, as_paths, verb
from gpuload.cli.userops import find_ops
from gpuload.preview import check_page_name


@verb
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
@click.option(
    "--ops",
    "ops_name",
    metavar="MODULE:NAME",
    help="A list of ops in a Python module: augment:train_ops.",
)
@click.option(
    "--records",
    type=WholeNumber(1),
    default=4,
    show_default=True,
    metavar="N",
    help="Number of records.",
)
@click.option(
    "--epochs",
    type=WholeNumber(1),
    default=2,
    show_default=True,
    metavar="N",
    help="Epochs whose draws are shown.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the draws."
)
@click.option(
    "--out",
    default="preview.html",
    show_default=True,
    type=PATH,
    metavar="FILE",
    help="The page, .html or .png.",
)
def command(
    output: Output,
    paths: tuple[str, ...],
    ops_name: str | None,
    records: int,
    epochs: int,
    seed: int,
    out: str,
) -> int:
    """Write a page that shows records before and after ops.

    PATH: files of one format, wildcards in quotes, or a folder of them. The page shows stored
    records, and the results of the ops in the first epochs.
    """
    # Before the files are read: a slip in the name must not cost that time.
    check_page_name(out)
    ops = find_ops(ops_name) if ops_name else []
    source = gl.open(as_paths(paths))
    loader = gl.Loader(source, 1, ops=ops, seed=seed, device="cpu")
    page = gl.preview(loader, records=records, epochs=epochs)
    page.save(out)
    num_records = len(page.records)
    output.say(
        f"wrote {out}: {num_records} record{'s' * (num_records != 1)}; columns: {', '.join(page.titles)}"
    )
    output.result(path=out, records=page.records, columns=page.titles, ops=page.ops)
    return 0
