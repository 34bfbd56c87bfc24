"""The change of an arm's speed from one study to another (docs/method.md, "Two studies").

Nothing pairs the windows of two studies: they were taken at other times, by other processes. Three
things vary: windows, processes, and sessions, that is all that two studies on the same machine have
not in common and that no number of processes within a study averages away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from harness.speedup import (
    MIN_WINDOWS,
    Interval,
    PairWindows,
    Speedup,
    estimate_speedup,
)

SESSION_SD: Final = 0.02
"""Assumed standard deviation of ln(after / before) between two sessions on one machine in which
nothing has changed (temperature, neighbours, memory layout). Two studies cannot show it."""

Outcome = Literal["slower", "faster", "unchanged", "not settled"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A figure after, over the same figure before; no unit."""

    ratio: float
    shown: Interval
    """At 95 %."""
    decisive: Interval
    """At 99.5 %."""
    processes: int
    """Of each study, or process pairs of the smaller one."""

    def outcome(self, margin: float) -> Outcome:
        """Decisive beyond the margin, or within it, or neither."""
        if self.decisive.high < 1 - margin:
            return "slower"
        if self.decisive.low > 1 + margin:
            return "faster"
        if 1 - margin <= self.shown.low and self.shown.high <= 1 + margin:
            return "unchanged"
        return "not settled"


def change_of_rate(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]
) -> Change | None:
    """The change of images/s between independent processes.

    The k-th process of one study is put beside the k-th of the other, whose windows are matched in
    their order: the difference of two independent values has the sum of their variances, as it
    should. What differs between sessions is added to the interval. None where no two processes have
    :data:`~harness.speedup.MIN_WINDOWS` windows, or a window has no images.

    Args:
        before: images/s of the timed windows of each process.
        after: as above, of the other study.
    """
    usable = [
        [rates for rates in study if len(rates) >= MIN_WINDOWS and min(rates) > 0]
        for study in (before, after)
    ]
    pairs = [
        PairWindows(baseline_images_per_s=tuple(a), candidate_images_per_s=tuple(b))
        for a, b in zip(*usable, strict=False)
    ]
    if not pairs:
        return None
    estimate = estimate_speedup(pairs)
    return Change(
        ratio=estimate.ratio,
        shown=_widened(estimate.ratio, estimate.shown),
        decisive=_widened(estimate.ratio, estimate.decisive),
        processes=len(pairs),
    )


def change_of_speedup(before: Speedup, after: Speedup) -> Change:
    """The change of a paired ratio, from two independent studies.

    Each was measured in alternating windows, so that what differs between sessions cancels in it.
    The distances of the bounds from the ratio, in logarithms, are added in quadrature, as for
    normal values.
    """
    ratio = after.ratio / before.ratio
    intervals = [
        _combined(ratio, (before.ratio, a), (after.ratio, b))
        for a, b in ((before.shown, after.shown), (before.decisive, after.decisive))
    ]
    return Change(
        ratio=ratio,
        shown=intervals[0],
        decisive=intervals[1],
        processes=min(len(before.pair_ratios), len(after.pair_ratios)),
    )


def _widened(ratio: float, interval: Interval) -> Interval:
    """``interval`` with the spread between sessions added in quadrature."""
    from scipy.stats import norm

    session = float(norm.ppf((1 + interval.confidence) / 2)) * SESSION_SD
    return Interval(
        confidence=interval.confidence,
        low=ratio * math.exp(-math.hypot(math.log(ratio / interval.low), session)),
        high=ratio * math.exp(math.hypot(math.log(interval.high / ratio), session)),
    )


def _combined(
    ratio: float, before: tuple[float, Interval], after: tuple[float, Interval]
) -> Interval:
    (a, of_a), (b, of_b) = before, after
    down = math.hypot(math.log(b / of_b.low), math.log(of_a.high / a))
    up = math.hypot(math.log(of_b.high / b), math.log(a / of_a.low))
    return Interval(
        confidence=of_a.confidence, low=ratio * math.exp(-down), high=ratio * math.exp(up)
    )
