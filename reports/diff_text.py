"""The comparison of two studies on the terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.change import Change
from reports import formats
from reports.diff import ArmChange, Sides, StudyDiff

if TYPE_CHECKING:
    from rich.console import RenderableType


def diff_json(diff: StudyDiff) -> str:
    """The whole comparison as JSON; a number that JSON has no name for is a string."""
    from pydantic_core import to_json

    found = json.loads(to_json(diff, inf_nan_mode="strings"))
    found["regressions"] = diff.regressions
    return json.dumps(found)


def render_diff(diff: StudyDiff) -> RenderableType:
    """The figures of each arm, what differs, what got worse; no text from records is markup."""
    from rich.console import Group
    from rich.table import Table as ConsoleTable
    from rich.text import Text

    table = ConsoleTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("arm", "figure", "before", "after", "change"):
        flush = "right" if heading in ("before", "after") else "left"
        table.add_column(heading, justify=flush, overflow="fold")
    for arm in diff.arms:
        for i, cells in enumerate(_figures(arm)):
            name = formats.printable(arm.arm) if i == 0 else ""
            table.add_row(Text(name, style="bold"), *(Text(cell) for cell in cells))
    lines = [
        *(f"{arm.arm}: {note}" for arm in diff.arms for note in arm.notes),
        *_difference_lines(diff.arms),
        *(f"only in the first: {arm}" for arm in diff.only_before),
        *(f"only in the second: {arm}" for arm in diff.only_after),
    ]
    found = [Text(f"regression: {formats.printable(t)}", "bold red") for t in diff.regressions]
    return Group(
        table,
        *(Text(formats.printable(line)) for line in lines),
        *(found or [Text(f"no regression beyond ±{diff.margin * 100:g} % was shown")]),
    )


def _difference_lines(arms: Sequence[ArmChange]) -> Iterator[str]:
    """Each difference once, with the arms that have it."""
    by_text: dict[str, list[str]] = {}
    for arm in arms:
        for d in arm.differences:
            text = f"differs in {d.setting}: {d.left} | {d.right} ({d.role})"
            by_text.setdefault(text, []).append(arm.arm)
    for text, names in by_text.items():
        yield text if len(names) == len(arms) else f"{', '.join(names)}: {text}"


def _figures(arm: ArmChange) -> Iterator[tuple[str, str, str, str]]:
    """Name of a figure, its two values and their change, of those that one side has."""
    rate = f"{_shown(arm.change)} {arm.outcome}"
    peaks = (_mebibytes(arm.peak_bytes.before), _mebibytes(arm.peak_bytes.after))
    figures = (
        ("images/s", arm.images_per_s, rate),
        ("AMP's speedup", arm.speedups, _shown(arm.speedup)),
        ("final loss", arm.final_loss, ""),
        ("validation loss", arm.val_loss, ""),
        ("validation top-1", arm.val_top1, ""),
        ("peak MiB", Sides(before=peaks[0], after=peaks[1]), ""),
    )
    for name, sides, change in figures:
        if name == "images/s" or (sides.before, sides.after) != (None, None):
            yield name, formats.number(sides.before), formats.number(sides.after), change


def _shown(change: Change | None) -> str:
    if change is None:
        return formats.UNKNOWN
    return f"{formats.ratio(change.ratio)} {formats.interval(change.shown.low, change.shown.high)}"


def _mebibytes(value_bytes: float | None) -> float | None:
    return None if value_bytes is None else value_bytes / 2**20
