"""The closing table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from reports import formats
from reports.attribution import Ladder, amp_share, ladders
from reports.break_even import BreakEvenMap, compared_settings, settings_headline
from reports.causes import explain
from reports.cells import Results
from reports.comparison import ArmFigures, ComparisonRow, comparison_rows
from reports.findings import Answer, assumptions, settling_command
from reports.formats import printable
from reports.ladder_section import rung_doubts, rung_notes

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {
    "ok": "green",
    "not run yet": "dim",
    "left out": "dim",
    "not planned": "dim",
    "unavailable": "yellow",
}

# Where the terminal is narrow this column gives way, by folding.
_FOLDING = "peak MiB"


def render_results(results: Results) -> tuple[RenderableType, str]:
    """The closing table of a study, of every setting that it compares; and how to settle what is
    undecided, which is not to be wrapped since it ends in a command. Empty where nothing is.

    Text from records is never read as markup, and terminal escapes in it are made visible.
    """
    settings = compared_settings(results)
    rows = comparison_rows(results.cells, margin=results.margin)
    climbed = ladders(results)
    answers: Sequence[Answer]
    if settings:
        answers = [cell.row for found in settings for cell in found.cells]
        shown = render_settings(settings)
    elif rows:
        answers, shown = rows, render_console(rows)
    else:
        # A ladder has no arms of main settings to put into rows.
        answers, shown = climbed, render_ladders(climbed)
    return shown, printable(settling_command(results, answers))


def render_settings(settings: Sequence[BreakEvenMap]) -> RenderableType:
    """A line for each setting of each backend, then what was found and what to know of it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("settings", "fp32 images/s", "AMP", "speedup", "verdict"):
        flush = "left" if heading in ("settings", "speedup", "verdict") else "right"
        table.add_column(heading, justify=flush, overflow="fold")
    notes: list[Text] = []
    for found in settings:
        for cell in found.cells:
            row, name = cell.row, f"{found.name} {cell.name}"
            table.add_row(
                Text(printable(name)),
                formats.number(row.fp32.images_per_s),
                formats.number(row.amp.images_per_s),
                Text(formats.gain(row.verdict.speedup)),
                Text(row.verdict.outcome),
            )
            notes += [
                Text.assemble((f"{printable(name)}: ", "bold"), printable(note))
                for note in (
                    *([row.verdict.reason] if row.verdict.speedup is None else []),
                    *([row.verdict.remedy] if row.verdict.remedy else []),
                    *row.verdict.warnings,
                    *row.warnings,
                    *row.notes,
                )
            ]
    assumed = assumptions([cell.row for found in settings for cell in found.cells])
    return Group(
        table,
        Text(printable(settings_headline(settings))),
        *notes,
        *([Text(printable(assumed), style="dim")] if assumed else []),
    )


def render_console(rows: Sequence[ComparisonRow]) -> RenderableType:
    """A table of two lines a backend (fp32, AMP), then the notes; made for 80 columns.

    Text from records is never read as markup, and terminal escapes in it are made visible.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("backend", "", *_figures_of(None, ""), "status"):
        flush = "left" if heading in ("backend", "", "status") else "right"
        table.add_column(heading, justify=flush, no_wrap=heading != _FOLDING, overflow="fold")
    for row in rows:
        gain = row.verdict.speedup
        bounds = (
            f"{formats.number(gain.shown.low)}–{formats.number(gain.shown.high)}" if gain else ""
        )
        speedups = cycle((formats.times(gain), bounds))
        for arm, speedup in zip(row.arms, speedups, strict=False):
            name = printable(row.backend) if arm is row.arms[0] else ""
            table.add_row(
                Text(name, style="bold"),
                Text(formats.precision(arm.precision)),
                *(Text(figure) for figure in _figures_of(arm, speedup).values()),
                Text(arm.status.replace("_", " "), style=_STYLES.get(arm.status, "bold red")),
            )
        if row is not rows[-1]:
            table.add_row()
    notes = [
        Text.assemble((f"{printable(row.backend)}: ", "bold"), printable(note))
        for row in rows
        for note in (*_said(row), *row.verdict.warnings, *row.warnings, *row.notes)
    ]
    assumed = assumptions(rows)
    return Group(table, *notes, *([Text(printable(assumed), style="dim")] if assumed else []))


def render_ladders(climbed: Sequence[Ladder]) -> RenderableType:
    """For the rungs of ladders: a line each, AMP's own share, and notes.

    As :func:`render_console`.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for ladder in climbed:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        headings = (ladder.backend, "images/s", "factor", "verdict", "over strict fp32", "status")
        for heading in headings:
            table.add_column(Text(printable(heading)))
        for result in ladder.rungs:
            gain, total = (
                judged and judged.verdict.speedup for judged in (result.gain, result.total)
            )
            table.add_row(
                result.rung.title,
                formats.number(result.images_per_s),
                Text(formats.gain(gain)),
                result.gain.verdict.outcome if result.gain else formats.UNKNOWN,
                Text(formats.gain(total)),
                Text(result.status.replace("_", " "), style=_STYLES.get(result.status, "bold red")),
            )
        parts += [table, Text(printable(amp_share(ladder)))]
        warned = [f"{r.rung.title}: {text}" for r in ladder.rungs for text in r.warnings]
        notes = (*rung_notes(ladder), *rung_doubts(ladder), *warned)
        parts += [Text(printable(note)) for note in notes]
    assumed = assumptions(climbed)
    return Group(*parts, *([Text(printable(assumed), style="dim")] if assumed else []))


def _said(row: ComparisonRow) -> tuple[str, ...]:
    """The verdict with its reason and cause; of one arm alone, why the other has no result."""
    verdict = row.verdict
    if len(row.arms) < 2:
        return row.gaps
    return (f"{verdict.outcome}. {verdict.reason} {explain(row.judged)}".rstrip(),)


def _figures_of(arm: ArmFigures | None, speedup: str) -> dict[str, str]:
    """An arm's figures by heading; of None, the headings alone."""
    accuracy = "" if arm is None else f"{_percent(arm.val_top1)}/{_percent(arm.val_top2)}"
    peak = "" if arm is None or arm.peak_bytes is None else f"{arm.peak_bytes / 2**20:,.0f}"
    source = {"host": " host", "device allocated": " GPU"}.get((arm and arm.peak_source) or "", "")
    return {
        "images/s": formats.number(arm and arm.images_per_s),
        "speedup": speedup,
        "top-1/2 %": formats.UNKNOWN if accuracy == "–/–" else accuracy,
        "loss": formats.number(arm and arm.loss),
        "peak MiB": f"{peak}{source}" or formats.UNKNOWN,
        "scale": formats.count(arm and arm.loss_scale),
    }


def _percent(fraction: float | None) -> str:
    return formats.UNKNOWN if fraction is None else f"{100 * fraction:.1f}"
