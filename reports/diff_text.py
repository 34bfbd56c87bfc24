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
    """A line an arm, then what differs and what got worse; text from records is never markup."""
    from rich.console import Group
    from rich.table import Table as ConsoleTable
    from rich.text import Text

    columns = (
        "arm", "images/s", "change", "AMP's speedup", "outcome", "final loss", "val. loss",
        "peak MiB",
    )  # fmt: skip
    table = ConsoleTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for arm in diff.arms:
        mebibytes = Sides(
            before=_mebibytes(arm.peak_bytes.before), after=_mebibytes(arm.peak_bytes.after)
        )
        cells = (
            arm.arm,
            _both(arm.images_per_s),
            _shown(arm.change),
            _shown(arm.speedup),
            arm.outcome,
            _both(arm.final_loss),
            _both(arm.val_loss),
            _both(mebibytes),
        )
        table.add_row(*(Text(formats.printable(cell)) for cell in cells))
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


def _both(sides: Sides) -> str:
    if sides.before is None and sides.after is None:
        return formats.UNKNOWN
    return f"{formats.number(sides.before)} → {formats.number(sides.after)}"


def _shown(change: Change | None) -> str:
    if change is None:
        return formats.UNKNOWN
    return f"{formats.ratio(change.ratio)} {formats.interval(change.shown.low, change.shown.high)}"


def _mebibytes(value_bytes: float | None) -> float | None:
    return None if value_bytes is None else value_bytes / 2**20
