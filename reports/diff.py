"""What changed from one study to another, arm by arm, and whether anything got worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from harness.change import Change, change_of_rate, change_of_speedup
from harness.records import AccuracyPart, Record
from reports import formats
from reports.cells import NOT_RUN_YET, Cell, Results
from reports.comparison import ComparisonRow, comparison_rows, peak_of
from reports.fairness import Difference, confounding, differences
from reports.judged import gap_of
from reports.speedup import steady_rates

Outcome = Literal["slower", "faster", "unchanged", "not settled", "confounded", "not comparable"]

BIT_IDENTICAL: Final = (
    "the losses differ from step {step} on, and on this device the same settings and versions give "
    "the same losses bit by bit"
)
_MACHINE = ("cpu", "cpus_usable", "memory_bytes")


@dataclass(frozen=True, kw_only=True)
class Sides:
    """A figure of the first study and of the second; None where it is not known."""

    before: float | None
    after: float | None


@dataclass(frozen=True, kw_only=True)
class ArmChange:
    """One arm that both studies have."""

    arm: str
    outcome: Outcome
    """Of images/s."""
    images_per_s: Sides
    """Medians over the windows of all processes, each from its first steady one on."""
    change: Change | None
    """Of images/s; shown where it is confounded, too."""
    speedups: Sides
    """AMP's over fp32, of the AMP arm."""
    speedup: Change | None
    """Of :attr:`speedups`."""
    final_loss: Sides
    """Training loss at the last step that both took."""
    val_loss: Sides
    val_top1: Sides
    peak_bytes: Sides
    """Device allocator's peak, or else the host's; None where the two count different things."""
    differences: tuple[Difference, ...]
    """Of settings, versions and machine."""
    regressions: tuple[str, ...]
    """What got worse for certain."""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StudyDiff:
    """Two studies, or two single runs."""

    margin: float
    """Of a ratio about 1, no unit."""
    arms: tuple[ArmChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def regressions(self) -> list[str]:
        """All that got worse, by arm."""
        return [f"{arm.arm}: {text}" for arm in self.arms for text in arm.regressions]


def diff_results(before: Results, after: Results, *, margin: float) -> StudyDiff:
    """Compare the arms that both studies have; repetitions and further seeds count as processes.

    Raises:
        ValueError: the studies have no arm in common.
    """
    a, b = _by_arm(before), _by_arm(after)
    common = [arm for arm in a if arm in b]
    if not common:
        raise ValueError(
            f"they have no arm in common: {', '.join(a) or 'none'} in the first and "
            f"{', '.join(b) or 'none'} in the second"
        )
    rows_a, rows_b = _rows(before), _rows(after)
    moved = _machine_changes(before, after)
    return StudyDiff(
        margin=margin,
        arms=tuple(
            _change(arm, a[arm], b[arm], rows_a.get(arm), rows_b.get(arm), margin, moved)
            for arm in common
        ),
        only_before=tuple(arm for arm in a if arm not in b),
        only_after=tuple(arm for arm in b if arm not in a),
    )


def _by_arm(results: Results) -> dict[str, list[Cell]]:
    """Name of an arm → its first run, then its repetitions and further seeds."""
    arms: dict[str, list[Cell]] = {}
    for cell in sorted(results.cells, key=lambda cell: bool(cell.label)):
        name = "-".join(filter(None, (cell.backend, cell.precision, cell.variant)))
        arms.setdefault(name, []).append(cell)
    return arms


def _rows(results: Results) -> dict[str, ComparisonRow]:
    """Name of an AMP arm → its comparison with fp32, of every variant."""
    variants = dict.fromkeys(cell.variant for cell in results.cells)
    rows = [row for variant in variants for row in comparison_rows(results.cells, variant)]
    return {row.amp.arm: row for row in rows}


def _machine_changes(before: Results, after: Results) -> list[str]:
    """What a study knows of its machine even where an arm of it has no result."""
    if before.study is None or after.study is None:
        return []
    pairs = [
        (name, getattr(before.study.environment, name), getattr(after.study.environment, name))
        for name in _MACHINE
    ]
    return [f"{name.replace('_', ' ')}: {a} | {b}" for name, a, b in pairs if a != b]


def _change(
    arm: str,
    before: Sequence[Cell],
    after: Sequence[Cell],
    row_before: ComparisonRow | None,
    row_after: ComparisonRow | None,
    margin: float,
    moved: Sequence[str],
) -> ArmChange:
    a, b = before[0].record, after[0].record
    found: list[Difference] = []
    if a is not None and b is not None and a.training is not None and b.training is not None:
        # A run that ended before its first step has no settings in force, which is no difference.
        found = differences(a, b, factor="version")
    confounded = confounding(found) or list(moved)
    rates = [[steady_rates(r) for r in _ok(cells)] for cells in (before, after)]
    change = change_of_rate(*rates)
    was, now = (row.verdict.speedup if row else None for row in (row_before, row_after))
    speedup = change_of_speedup(was, now) if was is not None and now is not None else None
    regressions = list(_regressions(before[0], after[0], found, change, speedup, margin))
    notes = []
    if confounded:
        notes = [f"would be a regression: {text}" for text in regressions]
        notes.insert(0, f"confounded by {'; '.join(confounded)}")
        regressions = []
    elif gap := gap_of(after[0]) or gap_of(before[0]):
        notes.append(gap)
    return ArmChange(
        arm=arm,
        outcome="not comparable"
        if change is None
        else ("confounded" if confounded else change.outcome(margin)),
        images_per_s=Sides(before=_median(rates[0]), after=_median(rates[1])),
        change=change,
        speedups=Sides(before=was and was.ratio, after=now and now.ratio),
        speedup=speedup,
        final_loss=_final_losses(a, b),
        val_loss=_sides(a, b, lambda accuracy: accuracy.val_loss),
        val_top1=_sides(a, b, lambda accuracy: accuracy.val_top1),
        peak_bytes=_peaks(a, b),
        differences=tuple(found),
        regressions=tuple(regressions),
        notes=tuple(notes),
    )


def _regressions(
    before: Cell,
    after: Cell,
    found: Sequence[Difference],
    change: Change | None,
    speedup: Change | None,
    margin: float,
) -> Iterator[str]:
    a, b = before.record, after.record
    if before.status == "ok" and after.status not in ("ok", NOT_RUN_YET):
        yield f"was ok, and now: {gap_of(after)}"
    if a is not None and b is not None and _as_asked(a) and _as_asked(b) is False:
        yield f"computes in {b.precision.effective} and no longer in {b.precision.dtype}"
    if change is not None and change.outcome(margin) == "slower":
        yield f"images/s {_in_words(change)}"
    if speedup is not None and speedup.outcome(margin) == "slower":
        yield f"AMP's speedup over fp32 {_in_words(speedup)}"
    if a is not None and b is not None and (step := _first_other_loss(a, b, found)) is not None:
        yield BIT_IDENTICAL.format(step=step)


def _in_words(change: Change) -> str:
    decisive = formats.interval(change.decisive.low, change.decisive.high)
    return f"{formats.ratio(change.ratio)}, 99.5 % interval {decisive}"


def _as_asked(record: Record) -> bool | None:
    """Whether an arm computed in the dtype that it was asked for; None where nothing shows it."""
    effective = record.precision.effective
    return None if effective is None else effective == record.precision.dtype


def _first_other_loss(a: Record, b: Record, found: Sequence[Difference]) -> int | None:
    """The first step with another loss where all losses should be the same, from 1."""
    reproducible = a.device is not None and a.device.type == "cpu"
    if a.training is not None and a.training.deterministic:
        reproducible = True
    new_versions = any(difference.role == "under test" for difference in found)
    if not reproducible or new_versions or len(a.steps.loss) != len(b.steps.loss):
        return None
    for step, (x, y) in enumerate(zip(a.steps.loss, b.steps.loss, strict=True), start=1):
        if x != y and not (math.isnan(x) and math.isnan(y)):
            return step
    return None


def _ok(cells: Sequence[Cell]) -> list[Record]:
    return [cell.record for cell in cells if cell.record is not None and cell.status == "ok"]


def _median(processes: Sequence[Sequence[float]]) -> float | None:
    rates = [rate for process in processes for rate in process]
    return median(rates) if rates else None


def _final_losses(a: Record | None, b: Record | None) -> Sides:
    losses = [record.steps.loss if record is not None else [] for record in (a, b)]
    last = min(len(of_one) for of_one in losses)
    if last == 0:
        return Sides(before=None, after=None)
    return Sides(before=losses[0][last - 1], after=losses[1][last - 1])


def _sides(a: Record | None, b: Record | None, read: Callable[[AccuracyPart], float]) -> Sides:
    before, after = (
        None if record is None or record.accuracy is None else read(record.accuracy)
        for record in (a, b)
    )
    return Sides(before=before, after=after)


def _peaks(a: Record | None, b: Record | None) -> Sides:
    (before, source), (after, other) = peak_of(a), peak_of(b)
    if source != other:
        return Sides(before=None, after=None)
    return Sides(before=before, after=after)
