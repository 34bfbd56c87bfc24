"""The plan of a comparison, shown before it is carried out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from harness.config import RunConfig
from harness.forecast import Paces
from harness.plan import Comparison, comparison, in_turn


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Arms that are measured in turn, with their repetitions."""

    runs: list[RunConfig]
    pairs: int
    first_s: float | None
    """Seconds of the first pair; None where they are not known."""
    time_s: float | None
    """Seconds of all pairs."""


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
            "expected_s": _sum([line.time_s for line in lines]),
        }
    )


def _lines(runs: Sequence[RunConfig], paces: Paces, train_images: int | None) -> list[_Line]:
    of: dict[Comparison, list[list[RunConfig]]] = {}
    for group in in_turn(runs):
        of.setdefault(comparison(group[0]), []).append(group)
    lines = []
    for pairs in of.values():
        times = [paces.time_s(group, train_images=train_images) for group in pairs]
        lines.append(_Line(runs=pairs[0], pairs=len(pairs), first_s=times[0], time_s=_sum(times)))
    return lines


def _sum(times: Sequence[float | None]) -> float | None:
    return None if None in times else sum(time_s for time_s in times if time_s is not None)


def _sentence(lines: Sequence[_Line], budget_s: float | None) -> str:
    total_s = _sum([line.time_s for line in lines])
    known = (
        "Its time is not known: nothing like it was measured on this machine before."
        if total_s is None
        else f"About {_duration(total_s)}, from the pace of earlier runs on this machine; data and "
        "the search for causes not included."
    )
    if budget_s is None:
        return known
    first_s = _sum([line.first_s for line in lines])
    once = "every cell is measured once"
    if first_s is not None and first_s > budget_s:
        once += f", though that takes longer ({_duration(first_s)})"
    return f"{known} Budget {_duration(budget_s)}: {once}; repetitions follow while they fit."


def _length(run: RunConfig) -> str:
    if run.windows is not None:
        return f"{run.windows} windows"
    return f"{run.steps} steps" if run.steps is not None else f"{run.epochs} epochs"


def _duration(time_s: float) -> str:
    return f"{time_s:.0f} s" if time_s < 100 else f"{time_s / 60:.0f} min"
