"""The page and the terminal's table of ``python -m harness replicate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.replicate import VariantResult
from reports import formats
from reports.blocks import Card, Commands, Page, Paragraph, Section, Table
from reports.formats import bounds, listed, number, percent, printable, times
from reports.lessons import Lesson, lessons
from reports.pages import device_name, render_html, render_markdown, write_page
from reports.speedup import ONE_AFTER_THE_OTHER

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLUMNS = (
    *("Arm", "images/s", "Speedup", "Waited for data", "Training loss", "Validation loss"),
    *("Top-1", "Status"),
)
ARTICLE = (
    "The published experiment trained ResNet-18 on photos of five foods in 740.68 s without AMP "
    "and in 740.96 s with it. Here its defects are put back one at a time."
)


@dataclass(frozen=True, kw_only=True)
class ReplicationFiles:
    """Where the page was written."""

    html: Path
    markdown: Path


def write_replication(directory: Path, results: Sequence[VariantResult]) -> ReplicationFiles:
    """Write ``replication.html`` and ``replication.md`` into ``directory``.

    Raises:
        OSError: the folder cannot be written.
    """
    page = build_replication(results)
    files = ReplicationFiles(
        html=directory / "replication.html", markdown=directory / "replication.md"
    )
    write_page(files.markdown, render_markdown(page))
    write_page(files.html, render_html(page))
    return files


def build_replication(results: Sequence[VariantResult]) -> Page:
    """Everything the page says, before it is given a form."""
    taught = lessons(results)
    first = results[0].fp32
    training = first.training
    parts = [
        first.model.name if first.model else None,
        first.data.name if first.data else None,
        f"{training.image_size} px, batch {training.batch_size}, {training.steps} steps"
        if training
        else None,
        device_name(first),
        first.created[:10],
    ]
    return Page(
        title="What hid AMP's effect?",
        subtitle=" · ".join(part for part in parts if part),
        headline=headline(taught),
        cards=tuple(_card(lesson) for lesson in taught),
        caveat=_caveat(taught),
        warnings=(),
        rows=(),
        sections=(_figures(taught), _conclusions(taught), _sentinels(taught), _commands(results)),
        footer=f"Written by version {first.harness_version}, created {first.created}.",
    )


def headline(taught: Sequence[Lesson]) -> str:
    """Which defects hid what here, in one sentence each."""
    defective = taught[1:]
    honest = taught[0].verdict
    said = []
    for what, text in (
        ("speed", "AMP's effect on speed was hidden by"),
        ("accuracy", "its effect on accuracy by"),
        ("overflow", "overflowing gradients went unhandled with"),
    ):
        names = [f"“{lesson.title}”" for lesson in defective if what in lesson.hid]
        said.append(f"{text} {listed(names) if names else 'none of the defects tried'}")
    if honest.speedup is None:
        said[0] = (
            "what hid AMP's effect on speed cannot be told, since the corrected run has no ratio "
            f"({honest.reason.rstrip('.')})"
        )
    stopped = [f"“{lesson.title}”" for lesson in defective if lesson.stopped]
    if stopped:
        said.append(f"training stopped with {listed(stopped)}")
    return f"On this machine {'; '.join(said)}."


def render_replication(results: Sequence[VariantResult]) -> RenderableType:
    """The terminal's table and, for each variant, what it seems to say and what is the case."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    taught = lessons(results)
    table = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("variant", "", "images/s", "AMP ÷ fp32", "wait", "loss", "top-1", "status"):
        flush = "left" if column in ("variant", "", "status") else "right"
        table.add_column(column, justify=flush, no_wrap=True)
    for lesson in taught:
        for arm, gain in zip(
            lesson.arms,
            (times(lesson.verdict.speedup), bounds(lesson.verdict.speedup)),
            strict=True,
        ):
            table.add_row(
                Text(lesson.title if arm is lesson.fp32 else "", style="bold"),
                arm.precision,
                number(arm.images_per_s),
                gain,
                percent(arm.data_wait_fraction),
                number(arm.train_loss),
                percent(arm.val_top1),
                Text(arm.status, style="green" if arm.status == "ok" else "bold red"),
            )
    told = [
        Text.assemble(
            "\n",
            (lesson.title, "bold"),
            ("\n  it seems  ", "dim"),
            printable(lesson.seen),
            ("\n  in truth  ", "dim"),
            printable(lesson.truth or formats.UNKNOWN),
            ("\n  caught by ", "dim"),
            listed([s.name.lower() for s in lesson.sentinels if s.fired]) or "nothing",
        )
        for lesson in taught
    ]
    return Group(table, *told, Text(f"\n{headline(taught)}", style="bold"))


def _caveat(taught: Sequence[Lesson]) -> str:
    """What the intervals assume, and that drift is in them where it is."""
    verdicts = [lesson.verdict for lesson in taught]
    apart = [text for v in verdicts for text in v.warnings if text.endswith(ONE_AFTER_THE_OTHER)]
    said = [f"Speed: {text}." for text in apart]
    return " ".join(dict.fromkeys([*said, *(v.assumption for v in verdicts if v.assumption)]))


def _card(lesson: Lesson) -> Card:
    return Card(
        backend=lesson.title,
        kind=lesson.verdict.outcome,
        ratio=times(lesson.verdict.speedup),
        interval=bounds(lesson.verdict.speedup),
        sentence=lesson.truth,
        facts=(f"Hides AMP's effect on: {', '.join(lesson.hid)}",) if lesson.hid else (),
    )


def _figures(taught: Sequence[Lesson]) -> Section:
    rows = tuple(
        (
            f"{lesson.title}, {arm.precision}",
            number(arm.images_per_s),
            f"{times(lesson.verdict.speedup)} {bounds(lesson.verdict.speedup)}"
            if arm is lesson.amp
            else "",
            percent(arm.data_wait_fraction),
            number(arm.train_loss),
            number(arm.val_loss),
            percent(arm.val_top1),
            arm.status,
        )
        for lesson in taught
        for arm in lesson.arms
    )
    caption = (
        "images/s is the median of the timed windows; the training loss is the mean over the last "
        "quarter of the steps; top-1 is over all validation images, in float32; the validation "
        "loss is over those whose class the head has an output for"
    )
    table = Table(caption=caption, columns=_COLUMNS, rows=rows, numeric=True)
    return Section(
        anchor="figures", title="Figures", blocks=(Paragraph(text=ARTICLE, kind="note"), table)
    )


def _conclusions(taught: Sequence[Lesson]) -> Section:
    rows = tuple(
        (lesson.title, lesson.seen, lesson.truth, ", ".join(lesson.hid) or formats.UNKNOWN)
        for lesson in taught
    )
    table = Table(
        caption="Each sentence follows from the figures above and below",
        columns=("Variant", "It seems", "In truth", "Hides AMP's"),
        rows=rows,
    )
    return Section(anchor="conclusions", title="What it seems, and what it is", blocks=(table,))


def _sentinels(taught: Sequence[Lesson]) -> Section:
    marks = {True: "caught", False: "quiet", None: "could not look"}
    rows = tuple(
        (lesson.title, sentinel.name, marks[sentinel.fired], sentinel.text)
        for lesson in taught
        for sentinel in lesson.sentinels
    )
    table = Table(
        caption="The checks of this program, in every variant",
        columns=("Variant", "Check", "", "Measured"),
        rows=rows,
    )
    return Section(anchor="sentinels", title="What catches it", blocks=(table,))


def _commands(results: Sequence[VariantResult]) -> Section:
    commands = tuple((result.variant.title, result.fp32.command) for result in results)
    return Section(anchor="commands", title="Commands", blocks=(Commands(commands=commands),))
