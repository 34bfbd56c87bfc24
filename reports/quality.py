"""Time and energy until an arm first validates as well as the other one does.

The time is that of the training windows, warm-up (compilation and the like) included: what somebody
waits who trains to that quality, without the set-up before the first step and without validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from harness.records import EpochPart, Record, timed
from reports.fairness import confounds, differences, seed_of
from reports.yardstick import student_interval

MIN_EVALUATIONS: Final = 2
"""Of an arm: with one, every target is reached at the end, and its time is the run's length."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is validated."""

    name: str
    higher_is_better: bool
    read: Callable[[EpochPart], float | None]

    def best(self, values: Sequence[float]) -> float:
        """The best of some values."""
        return max(values) if self.higher_is_better else min(values)

    def worst(self, values: Sequence[float]) -> float:
        """The worst of some values: the target that all arms reach whose bests they are."""
        return min(values) if self.higher_is_better else max(values)

    def reached(self, value: float, target: float) -> bool:
        """Whether ``value`` is as good as ``target``."""
        return value >= target if self.higher_is_better else value <= target


MEASURES: Final = (
    Measure(name="validation top-1", higher_is_better=True, read=lambda e: e.val_top1),
    Measure(name="validation loss", higher_is_better=False, read=lambda e: e.val_loss),
)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """When an arm was first seen to reach a target."""

    epoch: int
    time_s: float
    """Training time until that evaluation."""
    earliest_s: float
    """Until the evaluation before it: the target was reached after that, nobody saw when."""
    joules: float | None
    """At the mean power of the timed windows, idle power taken off; None where not measured."""


@dataclass(frozen=True, kw_only=True)
class QualityPair:
    """fp32 and AMP of one backend and seed on the way to one target."""

    backend: str
    seed: int
    measure: Measure
    target: float
    """The worse of the two arms' best values, so that both reach it."""
    fp32: Reached
    amp: Reached

    @property
    def ratio(self) -> float:
        """fp32's time over AMP's: above 1 AMP was there first."""
        return self.fp32.time_s / self.amp.time_s

    @property
    def range(self) -> tuple[float, float]:
        """What the ratio may have been, as nobody looked between two evaluations."""
        return (
            self.fp32.earliest_s / self.amp.time_s,
            self.fp32.time_s / self.amp.earliest_s if self.amp.earliest_s > 0 else math.inf,
        )


def quality_pairs(records: Sequence[Record]) -> tuple[list[QualityPair], dict[str, list[str]]]:
    """The pairs of each backend, measure and seed; and reason → the arms of which none is told."""
    arms = {(r.backend, r.precision.requested, seed_of(r)): r for r in records if r.status == "ok"}
    pairs: list[QualityPair] = []
    left_out: dict[str, list[str]] = {}
    for (backend, precision, seed), amp in arms.items():
        fp32 = arms.get((backend, "fp32", seed))
        if precision != "amp" or fp32 is None:
            continue
        if others := confounds(differences(fp32, amp)):
            named = ", ".join(other.setting for other in others)
            reason = f"they differ in more than precision ({named})"
            left_out.setdefault(reason, []).append(f"{amp.arm} and {fp32.arm}")
            continue
        for measure in MEASURES:
            target = common_target((fp32, amp), measure)
            if target is None:
                names = left_out.setdefault(_too_few((fp32, amp), measure), [])
                if f"{amp.arm} and {fp32.arm}" not in names:
                    names.append(f"{amp.arm} and {fp32.arm}")
                continue
            pairs.append(
                QualityPair(
                    backend=backend,
                    seed=seed,
                    measure=measure,
                    target=target,
                    fp32=reached(fp32, measure, target),
                    amp=reached(amp, measure, target),
                )
            )
    return pairs, left_out


def common_target(records: Sequence[Record], measure: Measure) -> float | None:
    """The best value that all arms reach; None where one was not validated often enough."""
    values = [_values(record, measure) for record in records]
    if not values or any(len(of_arm) < MIN_EVALUATIONS for of_arm in values):
        return None
    return measure.worst([measure.best(of_arm) for of_arm in values])


def reached(record: Record, measure: Measure, target: float) -> Reached:
    """When ``record`` first validated as well as ``target``, which is no better than its best."""
    earliest_s = 0.0
    for epoch in record.epochs:
        value = measure.read(epoch)
        time_s = _time_until(record, epoch.steps)
        if value is not None and measure.reached(value, target):
            power_w = _power_w(record)
            return Reached(
                epoch=epoch.epoch,
                time_s=time_s,
                earliest_s=earliest_s,
                joules=None if power_w is None else power_w * time_s,
            )
        earliest_s = time_s
    raise ValueError(f"{record.arm} never reached a {measure.name} of {target}")


def seeds_interval(pairs: Sequence[QualityPair]) -> tuple[float, float, float] | None:
    """Geometric mean ratio over seeds with its 95 % interval by Student's t; None of one seed."""
    logs = [math.log(pair.ratio) for pair in pairs]
    if len(logs) < 2:
        return None
    low, high = student_interval(logs)
    return math.exp(sum(logs) / len(logs)), math.exp(low), math.exp(high)


def _values(record: Record, measure: Measure) -> list[float]:
    values = (measure.read(epoch) for epoch in record.epochs)
    return [value for value in values if value is not None and math.isfinite(value)]


def _too_few(records: Sequence[Record], measure: Measure) -> str:
    fewest = min(len(_values(record, measure)) for record in records)
    if fewest == 0:
        return "an arm was never validated"
    return "an arm was validated only once, so its time to any quality is the length of its run"


def _time_until(record: Record, steps: int) -> float:
    """Seconds of the training windows up to this step."""
    ends = accumulate(window.steps for window in record.windows)
    return sum(w.time_s for w, end in zip(record.windows, ends, strict=True) if end <= steps)


def _power_w(record: Record) -> float | None:
    """Mean power of the timed windows with the idle power taken off."""
    time_s = sum(window.time_s for window in timed(record.windows))
    if record.energy is None or record.energy.joules is None or time_s <= 0:
        return None
    return record.energy.joules / time_s
