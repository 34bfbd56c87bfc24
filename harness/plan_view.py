"""The plan of a comparison, shown before it is carried out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from harness.config import RunConfig
from harness.forecast import Paces
from harness.plan import in_turn, together


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Arms that are measured in turn, with their repetitions."""

    runs: list[RunConfig]
    pairs: int
    time_s: float | None
    """Of all pairs; None where it is not known."""


def plan_table(
    runs: Sequence[RunConfig], paces: Paces, budget_s: float | None, *, train_images: int | None
) -> list[Table | Text]:
    """A table of the plan and a sentence on its time."""
    table = Table("framework", "arms", "network", "batch", "length", "pairs", "time")
    lines = _lines(runs, paces, train_images)
    for line in lines:
        first = line.runs[0]
        rungs = f"{len(line.runs)} rungs" if first.variant.startswith("rung") else None
        sizes = sorted({run.batch_size for run in line.runs})
        table.add_row(
            first.backend,
            rungs or ", ".join(run.precision for run in line.runs),
            f"{first.model}, {first.image_size} px, {first.input}",
            "/".join(str(size) for size in sizes),
            _length(first),
            str(line.pairs),
            "not known" if line.time_s is None else _duration(line.time_s),
        )
    return [table, Text(_sentence(lines, budget_s))]


def plan_json(
    runs: Sequence[RunConfig], paces: Paces, budget_s: float | None, *, train_images: int | None
) -> str:
    """The plan for other programs: every arm, and the expected seconds (null: not known)."""
    lines = _lines(runs, paces, train_images)
    return json.dumps(
        {
            "arms": [run.model_dump(mode="json") | {"arm": run.arm} for run in runs],
            "budget_s": budget_s,
            "expected_s": _total_s(lines),
        }
    )


def _lines(runs: Sequence[RunConfig], paces: Paces, train_images: int | None) -> list[_Line]:
    groups = [*in_turn(runs)]
    pairs = Counter(together(group[0])[:2] for group in groups)
    times: dict[tuple[str, str], float | None] = {}
    for group in groups:
        cell = together(group[0])[:2]
        time_s, sum_s = paces.time_s(group, train_images=train_images), times.get(cell, 0.0)
        times[cell] = None if time_s is None or sum_s is None else sum_s + time_s
    return [
        _Line(runs=group, pairs=pairs[cell], time_s=times[cell])
        for group in groups
        if not group[0].label and (cell := together(group[0])[:2])
    ]


def _total_s(lines: Sequence[_Line]) -> float | None:
    times = [line.time_s for line in lines]
    return None if None in times else sum(time_s for time_s in times if time_s is not None)


def _sentence(lines: Sequence[_Line], budget_s: float | None) -> str:
    total_s = _total_s(lines)
    known = (
        "Its time is not known: nothing like it was measured on this machine before."
        if total_s is None
        else f"About {_duration(total_s)}, from the pace of earlier runs on this machine; data and "
        "the search for causes not included."
    )
    if budget_s is None:
        return known
    return (
        f"{known} Budget {_duration(budget_s)}: every cell is measured once, repetitions follow "
        "while they fit."
    )


def _length(run: RunConfig) -> str:
    if run.windows is not None:
        return f"{run.windows} windows"
    return f"{run.steps} steps" if run.steps is not None else f"{run.epochs} epochs"


def _duration(time_s: float) -> str:
    return f"{time_s:.0f} s" if time_s < 100 else f"{time_s / 60:.0f} min"
