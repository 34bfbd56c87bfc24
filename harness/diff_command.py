"""``python -m harness diff``: what changed from one study to another."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.exits import EXIT_BAD_INPUT, EXIT_FAILED, fail
from harness.options import margin_option
from harness.terminal import stdout


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@margin_option("Changes of a rate smaller than this do not matter.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def diff(before: Path, after: Path, margin: float, as_json: bool) -> None:
    """Compare the studies (or single runs) in the folders BEFORE and AFTER.

    Shows for each common arm how images/s, AMP's speedup, losses and memory changed, and every
    difference of settings, versions and machine. Exits 1 if anything got worse for certain: slower
    beyond the margin, no longer ok, no longer in the precision asked for, or other losses where the
    same are expected. Where the machine or the settings differ, nothing is called a regression.
    """
    from reports.cells import read_results
    from reports.diff import diff_results
    from reports.diff_text import diff_json, render_diff

    try:
        found = diff_results(read_results(before), read_results(after), margin=margin)
    except ValueError as error:
        fail(f"{before} and {after} cannot be compared: {error}", EXIT_BAD_INPUT)
    if as_json:
        click.echo(diff_json(found))
    else:
        stdout().print(render_diff(found), highlight=False)
    sys.exit(EXIT_FAILED if found.regressions else 0)
