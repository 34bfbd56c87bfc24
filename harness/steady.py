"""Where a series of window or step times becomes steady: detected, not assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

TOLERANCE: Final = 0.02
"""Relative change of level that does not matter; the margin within which a verdict sees none."""
MIN_STEADY: Final = 6
"""Steady values that there must be: two in each third of them."""

_OUTLIER_SDS = 3.0
_STANDARD_ERRORS = 2.0
_MEDIAN_EFFICIENCY = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean
_NORMAL_MAD = 1.4826  # standard deviation of a normal distribution over its MAD


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """From where on a series is steady, or why it never is."""

    first: int | None
    """Index of the first steady value; all before it are warm-up. None: not steady."""
    level_s: float | None
    """Median time from there on, in the unit of the series (seconds). None: not steady."""
    reason: str | None
    """Why it is not steady, in one sentence; None where it is."""


def steady_state(
    times_s: Sequence[float], *, tolerance: float = TOLERANCE, min_steady: int = MIN_STEADY
) -> SteadyState:
    """Find the first index from which on the times keep one level.

    The series is steady from index i where at least ``min_steady`` values and half of the series
    remain (a few noisy values are level by chance) and, with m the median of these, s their noise
    (from the second differences, which neither a drift nor a step enlarges) and n the size of a
    third of them,

    1. value i itself lies within tolerance * m + 3 s of m, and
    2. the medians of the first and the last third differ by no more than
       tolerance * m + 2 * sqrt(pi / 2) * s * sqrt(2 / n).

    The first such i is the answer. A lone outlier moves no median and passes; a warm-up that decays
    slowly fails (1) or (2) until it is within the tolerance; after a lasting change of level the
    series is steady from that change on, if enough of it remains.

    Args:
        times_s: time of each window (of equal steps) or step, in order, seconds, above 0.
        tolerance: relative change of level that does not matter.
        min_steady: values that must remain, 6 at least. They also make half of the series.

    Raises:
        ValueError: a time is not a positive number, or ``min_steady`` is below 6.
    """
    if min_steady < MIN_STEADY:
        raise ValueError(f"min_steady is {min_steady}; thirds of {MIN_STEADY} values are needed")
    if not all(math.isfinite(time) and time > 0 for time in times_s):
        raise ValueError("times must be finite and above 0")
    times_s = [float(time) for time in times_s]
    if len(times_s) < min_steady:
        reason = f"Too short: {len(times_s)} times, and {min_steady} are needed to see a level."
        return SteadyState(first=None, level_s=None, reason=reason)
    for first in range(min(len(times_s) - min_steady, len(times_s) // 2) + 1):
        rest = times_s[first:]
        level = median(rest)
        noise = _noise(rest)
        begins_level = abs(rest[0] - level) <= tolerance * level + _OUTLIER_SDS * noise
        if begins_level and abs(_change(rest)) <= _allowed_change(rest, tolerance):
            return SteadyState(first=first, level_s=level, reason=None)
    return SteadyState(first=None, level_s=None, reason=_reason(times_s, tolerance, min_steady))


def _noise(times_s: Sequence[float]) -> float:
    """Standard deviation about a level that may move, from the second differences."""
    bends = [abs(a - 2 * b + c) for a, b, c in zip(times_s, times_s[1:], times_s[2:], strict=False)]
    return _NORMAL_MAD * median(bends) / math.sqrt(6)


def _change(times_s: Sequence[float]) -> float:
    """Median of the last third minus median of the first, seconds."""
    third = len(times_s) // 3
    return median(times_s[-third:]) - median(times_s[:third])


def _allowed_change(times_s: Sequence[float], tolerance: float) -> float:
    standard_error = _MEDIAN_EFFICIENCY * _noise(times_s) * math.sqrt(2 / (len(times_s) // 3))
    return tolerance * median(times_s) + _STANDARD_ERRORS * standard_error


def _reason(times_s: Sequence[float], tolerance: float, min_steady: int) -> str:
    """Name the shape of the shortest part that could have been steady and still moved."""
    start = min(len(times_s) - min_steady, len(times_s) // 2)
    rest = times_s[start:]
    percent = _change(rest) / median(rest) * 100
    at = _step(rest)
    if at is not None:
        size = (median(rest[at:]) / median(rest[:at]) - 1) * 100
        return (
            f"Step change: the times change by {size:+.1f} % at index {start + at} of "
            f"{len(times_s)}, and what follows is too short to be the steady part."
        )
    return (
        f"Drift: from the first to the last third of the last {len(rest)} the times still change "
        f"by {percent:+.1f} %, of which {tolerance * 100:g} % are tolerated."
    )


def _step(times_s: Sequence[float]) -> int | None:
    """Index at which two levels explain the times better than a straight line, if one does."""
    import numpy as np

    values = np.asarray(times_s, dtype=np.float64)
    places = range(2, len(values) - 1)
    misfits = [
        np.abs(part - np.median(part)).sum()
        for place in places
        for part in (values[:place], values[place:])
    ]
    two_levels = [left + right for left, right in zip(misfits[::2], misfits[1::2], strict=True)]
    index = np.arange(len(values))
    line = np.abs(values - np.polyval(np.polyfit(index, values, 1), index)).sum()
    return places[int(np.argmin(two_levels))] if min(two_levels) < 0.8 * line else None
