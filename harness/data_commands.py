"""``python -m harness data``: look at a dataset, draw the sample, fetch Food-101."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.terminal import stdout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from datasets import Manifest, Progress
    from datasets.overview import Overview


@click.group()
def data() -> None:
    """Look at a dataset, draw the embedded sample, fetch Food-101."""


@data.command()
@click.argument("source", metavar="PATH")
@click.option("--seed", default=0, show_default=True, help="Seed of the split.")
@click.option("--val-fraction", default=0.2, show_default=True, help="Share that validates.")
@click.option("--fold", metavar="K/N", help="Validate on fold K of N instead.")
@click.option("--strict", is_flag=True, help="A file that cannot be used is an error.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the page.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with the photos.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for manifest.csv and quarantine.csv."
)
def scan(
    source: str,
    seed: int,
    val_fraction: float,
    fold: str | None,
    strict: bool,
    as_json: bool,
    html: Path | None,
    out: Path | None,
) -> None:
    """Read every photo of PATH and tell what is there.

    PATH is a folder of class folders, a Food-101 tree, an archive of one of these, a manifest CSV,
    or 'sample'.
    """
    import dataclasses
    import json

    import datasets
    from datasets.contact_sheet import write_contact_sheet
    from datasets.overview import summarise

    with _progress() as progress:
        found = datasets.scan(
            source,
            seed=seed,
            val_fraction=val_fraction,
            fold=_parse_fold(fold),
            strict=strict,
            progress=progress,
        )
        overview = summarise(found)
        if out is not None:
            _write_lists(found.manifest, out)
        if html is not None:
            write_contact_sheet(html, found, overview, progress=progress)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(overview), indent=2))
    else:
        print_overview(overview, stdout())
        for path in (html, out):
            if path is not None:
                click.echo(f"written: {path}")


@data.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--images-per-class", default=60, show_default=True, type=click.IntRange(2, 100_000))
@click.option("--image-size", default=96, show_default=True, type=click.IntRange(16, 1024))
@click.option("--seed", default=0, show_default=True)
def sample(folder: Path, images_per_class: int, image_size: int, seed: int) -> None:
    """Draw the embedded sample, five classes of dishes, into DIR."""
    import datasets

    with _progress() as progress:
        datasets.write_sample(
            folder,
            images_per_class=images_per_class,
            image_size=image_size,
            seed=seed,
            progress=progress,
        )
    click.echo(folder)


@data.command()
@click.argument("name", type=click.Choice(["food101"]))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def fetch(name: str, folder: Path) -> None:
    """Download a published dataset into DIR: food101 (5 GB, resumed where it broke off)."""
    import datasets

    with _progress() as progress:
        path = datasets.fetch_food101(folder, progress=progress)
    click.echo(path)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Progress on standard error; an interruption says that the work goes on from there."""
    from rich.console import Console

    from harness.progress import ProgressDisplay

    try:
        with ProgressDisplay(Console(stderr=True)) as display:
            yield display.on_data
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("what is finished is kept, run it again to go on")
        raise


def _parse_fold(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    number, _, count = text.partition("/")
    if not (number.isascii() and number.isdigit() and count.isascii() and count.isdigit()):
        raise click.BadParameter("give K/N, such as 1/5", param_hint="--fold")
    return int(number), int(count)


def _write_lists(manifest: Manifest, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    manifest.write_csv(out / "manifest.csv")
    manifest.write_quarantine_csv(out / "quarantine.csv")


def print_overview(overview: Overview, console: Console) -> None:
    """Print the page of a scan."""
    from rich.table import Table
    from rich.text import Text

    from datasets.errors import printable

    def line(label: str, text: str) -> None:
        console.print(Text(f"{label:<14}", style="bold") + Text(printable(text)), soft_wrap=True)

    def counts(of: dict[str, int]) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in of.items())

    line(overview.name, f"{overview.root}")
    line(
        "photos",
        f"{overview.images:,} in {len(overview.classes)} classes, {overview.file_bytes / 1e6:,.1f} "
        f"MB; {overview.train_images:,} train, {overview.val_images:,} val (split "
        f"{overview.split})",
    )
    table = Table(box=None, pad_edge=False)
    for column in ("class", "train", "val"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for each in overview.classes:
        table.add_row(Text(printable(each.name)), f"{each.train_images:,}", f"{each.val_images:,}")
    console.print(table)
    line("imbalance", f"largest class {overview.imbalance:.2f} times the smallest")
    smallest, median, largest = (
        "×".join(f"{side:g}" for side in size)
        for size in (overview.size_min, overview.size_median, overview.size_max)
    )
    line("sizes", f"{smallest} to {largest} pixels, median {median}")
    line("formats", counts(overview.formats))
    line("modes", counts(overview.modes))
    if overview.notes:
        line("put right", counts(overview.notes))
    mean, std = (
        " ".join(f"{value:.3f}" for value in values)
        for values in (overview.channel_mean, overview.channel_std)
    )
    line("colours", f"mean {mean}, standard deviation {std} (R G B, 0 to 1)")
    line(
        "duplicates",
        f"{overview.byte_identical} by bytes, {overview.pixel_identical} more by pixels, "
        f"{overview.near_identical} more to the eye; {overview.leaked_val_images} validation "
        "photos leaked",
    )
    line("quarantined", f"{len(overview.quarantined):,} files")
    for bad in overview.quarantined[:20]:
        line("", f"{bad['path']}: {bad['reason']}")
    if len(overview.quarantined) > 20:
        line(
            "",
            f"and {len(overview.quarantined) - 20:,} more: {counts(overview.quarantine_reasons)}",
        )
    for warning in overview.warnings:
        line("warning", warning)
    line("manifest", overview.manifest_sha256)
