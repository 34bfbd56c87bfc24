"""How large AMP's gap to float32 is beside the gaps that come from the framework and the seed.

A gap is a difference of two finished arms that took equal numbers of steps. Gaps of AMP and of
frameworks are paired by seed: the two arms of a pair saw the same batches in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, stdev
from typing import Literal

from harness.records import Record
from harness.speedup import DISPLAY_CONFIDENCE
from reports.fairness import confounds, data_groups, differences, seed_of

Kind = Literal["AMP", "framework", "seed"]
ByArm = Mapping[tuple[str, str, int], Record]
"""Backend, precision and seed → record."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A result whose gaps are looked at."""

    name: str
    unit: str
    read: Callable[[Record], float | None]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """One quantity's gap between two kinds of arms."""

    kind: Kind
    between: str
    """The backend, or for kind ``framework`` the two: ``tensorflow − torch``."""
    gaps: tuple[float, ...]
    """One a seed; of kind ``seed``, the difference of each two seeds."""
    centre: float
    """Mean of :attr:`gaps`; 0 for kind ``seed``, where neither of two seeds comes first."""
    low: float | None
    """None with one seed, or where all seeds gave the same: nothing tells how much it varies."""
    high: float | None
    seeds: int

    @property
    def name(self) -> str:
        """What is taken from what."""
        return {
            "AMP": f"{self.between}: AMP − fp32",
            "framework": f"fp32: {self.between}",
            "seed": f"fp32: seed − seed, {self.between}",
        }[self.kind]

    @property
    def df(self) -> int:
        """Degrees of freedom of Student's t."""
        return self.seeds - 1


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """All gaps of one quantity."""

    quantity: Quantity
    gaps: tuple[Gap, ...]


def yardsticks(records: Sequence[Record]) -> tuple[list[Yardstick], list[str]]:
    """The gaps of each quantity, and what was left out and why.

    Only ``ok`` records count. A pair whose arms were given different data or took different
    numbers of steps is left out, and so is AMP against float32 where more than precision differs.
    """
    arms: dict[tuple[str, str, int], Record] = {}
    for record in records:
        if record.status == "ok" and record.training is not None:
            key = (record.backend, record.precision.requested, seed_of(record))
            arms.setdefault(key, record)
    pairs, left_out = _pairs(arms, _data_of(records))
    found = []
    for quantity in QUANTITIES:
        gaps = [
            gap
            for (kind, between), of_seed in pairs.items()
            if (gap := _paired(kind, between, of_seed, quantity.read)) is not None
        ]
        backends = dict.fromkeys(backend for backend, _, _ in arms)
        gaps += [
            gap
            for backend in backends
            if (gap := _between_seeds(backend, arms, quantity.read)) is not None
        ]
        if any(gap.kind == "AMP" for gap in gaps):
            found.append(Yardstick(quantity=quantity, gaps=tuple(gaps)))
    return found, left_out


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of two or more paired differences, by Student's t."""
    half = _t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def seed_interval(values: Sequence[float]) -> tuple[float, float]:
    """Interval around 0 that holds 95 % of the differences of two further runs.

    ``values`` are two or more runs that differ in the seed alone. The difference of two normal
    values of standard deviation s has s·√2, and s is estimated: hence Student's t.
    """
    half = _t(len(values) - 1) * stdev(values) * math.sqrt(2)
    return -half, half


def _t(df: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + DISPLAY_CONFIDENCE) / 2, df))


def _pairs(
    arms: ByArm, data: Mapping[str, tuple[str, ...]]
) -> tuple[dict[tuple[Kind, str], list[tuple[Record, Record]]], list[str]]:
    """Pairs (reference, other) by what they compare, one a seed."""
    pairs: dict[tuple[Kind, str], list[tuple[Record, Record]]] = {}
    left_out: list[str] = []
    for (backend, precision, seed), amp in arms.items():
        fp32 = arms.get((backend, "fp32", seed))
        if precision == "amp" and fp32 is not None:
            others = ", ".join(d.setting for d in confounds(differences(fp32, amp)))
            reason = f"they differ in more than precision ({others})" if others else None
            if reason := reason or _unequal(fp32, amp, data):
                left_out.append(f"{amp.arm} and {fp32.arm}: {reason}")
            else:
                pairs.setdefault(("AMP", backend), []).append((fp32, amp))
    fp32_arms = [record for (_, precision, _), record in arms.items() if precision == "fp32"]
    for a, b in combinations(fp32_arms, 2):
        if a.backend == b.backend or seed_of(a) != seed_of(b):
            continue
        if reason := _unequal(a, b, data):
            left_out.append(f"{b.arm} and {a.arm}: {reason}")
        else:
            pairs.setdefault(("framework", f"{b.backend} − {a.backend}"), []).append((a, b))
    return pairs, left_out


def _data_of(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    return {
        arm: given
        for groups in data_groups(records).values()
        for given, arms in groups.items()
        for arm in arms
    }


def _unequal(a: Record, b: Record, data: Mapping[str, tuple[str, ...]]) -> str | None:
    if len(a.steps.loss) != len(b.steps.loss):
        return f"{len(b.steps.loss)} and {len(a.steps.loss)} steps"
    if data.get(a.arm) != data.get(b.arm):
        return "they were not given the same batches"
    return None


def _paired(
    kind: Kind,
    between: str,
    pairs: Sequence[tuple[Record, Record]],
    read: Callable[[Record], float | None],
) -> Gap | None:
    gaps = []
    for reference, other in pairs:
        a, b = read(reference), read(other)
        if a is not None and b is not None and math.isfinite(b - a):
            gaps.append(b - a)
    if not gaps:
        return None
    low, high = student_interval(gaps) if len(set(gaps)) > 1 else (None, None)
    return Gap(
        kind=kind,
        between=between,
        gaps=tuple(gaps),
        centre=mean(gaps),
        low=low,
        high=high,
        seeds=len(gaps),
    )


def _between_seeds(backend: str, arms: ByArm, read: Callable[[Record], float | None]) -> Gap | None:
    runs = [r for (name, precision, _), r in arms.items() if (name, precision) == (backend, "fp32")]
    equal = [r for r in runs if len(r.steps.loss) == len(runs[0].steps.loss)]
    values = [v for r in equal if (v := read(r)) is not None and math.isfinite(v)]
    if len(values) < 2:
        return None
    low, high = seed_interval(values) if len(set(values)) > 1 else (None, None)
    return Gap(
        kind="seed",
        between=backend,
        gaps=tuple(b - a for a, b in combinations(values, 2)),
        centre=0.0,
        low=low,
        high=high,
        seeds=len(values),
    )


def _top1_points(record: Record) -> float | None:
    return None if record.accuracy is None else 100 * record.accuracy.val_top1


QUANTITIES = (
    Quantity(
        name="Validation loss",
        unit="",
        read=lambda r: None if r.accuracy is None else r.accuracy.val_loss,
    ),
    Quantity(name="Validation top-1", unit="percentage points", read=_top1_points),
    Quantity(
        name="Training loss, last step",
        unit="",
        read=lambda r: r.steps.loss[-1] if r.steps.loss else None,
    ),
)
