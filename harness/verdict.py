"""What a comparison of two arms amounts to, in one of six words and one sentence."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Final, Literal

from harness.speedup import (
    DECISION_CONFIDENCE,
    DISPLAY_CONFIDENCE,
    MIN_WINDOWS,
    PRIOR_MATTERS_BELOW,
    PairWindows,
    Speedup,
    estimate_speedup,
    foreseen_speedup,
)

Outcome = Literal["pays", "slower", "no difference", "too noisy", "unavailable", "confounded"]

MARGIN: Final = 0.02
"""Differences smaller than this do not matter to the reader."""
BUSY_CPUS: Final = 0.2
"""CPUs kept busy by other processes from which on a measurement is in doubt."""
MAX_PAIRS: Final = 64
"""Pairs beyond which no forecast is made."""

_FEW_WINDOWS = 6
_UNSTABLE_SPREAD = 0.10  # as pyperf: standard deviation over mean


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome with everything it rests on; None where it was not or could not be measured."""

    outcome: Outcome
    reason: str
    """One sentence, made from the numbers."""
    margin: float
    """Of the ratio about 1, no unit: 0.02 is ±2 %."""
    speedup: Speedup | None
    """None where unavailable or confounded: a ratio of unlike things is not shown."""
    baseline_images_per_s: float | None
    """Median over the windows of all pairs, images/s."""
    candidate_images_per_s: float | None
    """As above, of the other arm. The speedup is paired, not the quotient of these two."""
    further_pairs: int | None
    """Process pairs still needed to leave ``too noisy``; None where no forecast is made."""
    further_time_s: float | None
    """Wall seconds that these would take, from the time of the pairs so far."""
    settling_repeats: int | None
    """Process pairs in all, those so far included: what ``--repeats`` is to be given; None where
    no forecast is made."""
    remedy: str | None
    """What would settle ``too noisy``, in words, as a part of :attr:`reason`; else None."""
    assumption: str | None
    """What stands in for the variation between processes where the study is too small to show it.
    """
    differences: tuple[str, ...]
    """In what the arms differ besides the thing compared."""
    warnings: tuple[str, ...]
    """What makes the measurement less sure than its interval says."""


def judge(
    pairs: Sequence[PairWindows],
    *,
    differences: Sequence[str] = (),
    unavailable: str | None = None,
    margin: float = MARGIN,
    names: tuple[str, str] = ("fp32", "AMP"),
) -> Verdict:
    """Weigh the windows of two arms.

    Args:
        pairs: one for each pair of processes that were alive together.
        differences: what differs between the arms besides the thing compared, in words.
        unavailable: why an arm has no result.
        margin: half-width of the range about 1 that counts as no difference, 0 to 1, exclusive.
        names: of baseline and candidate, for the sentences.

    Raises:
        ValueError: the margin is out of range.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin {margin} is out of range; give a fraction such as 0.02")
    whole = [pair for pair in pairs if pair.matched >= MIN_WINDOWS]
    speedup = None
    further = None
    remedy = None
    pair_time_s = _pair_time_s(pairs)
    if unavailable is None:
        unavailable = _no_ratio(pairs, whole, names)
    if unavailable is not None:
        outcome, reason = "unavailable", unavailable
    elif differences:
        outcome = "confounded"
        listed = "; ".join(differences)
        reason = f"No ratio is shown, since {names[1]} and {names[0]} also differ in: {listed}."
    else:
        speedup = estimate_speedup(whole)
        outcome = outcome_of(speedup, margin)
        if outcome == "too noisy":
            further = _further_pairs(speedup, margin)
            remedy = _remedy(further, len(pairs), pair_time_s)
        reason = _reason(outcome, speedup, margin, names, remedy)
    return Verdict(
        outcome=outcome,
        reason=reason,
        margin=margin,
        speedup=speedup,
        baseline_images_per_s=_median(pair.baseline_images_per_s for pair in pairs),
        candidate_images_per_s=_median(pair.candidate_images_per_s for pair in pairs),
        further_pairs=further,
        further_time_s=None if further is None or pair_time_s is None else further * pair_time_s,
        settling_repeats=None if further is None else len(pairs) + further,
        remedy=remedy,
        assumption=_assumption(speedup),
        differences=tuple(differences),
        warnings=tuple(_warnings(pairs, whole, names)),
    )


def outcome_of(speedup: Speedup, margin: float) -> Outcome:
    """The word for a measured speedup: pays, slower, no difference or too noisy."""
    # First: a difference that is certain, and certainly too small to matter, is none.
    if 1 - margin <= speedup.shown.low and speedup.shown.high <= 1 + margin:
        return "no difference"
    if speedup.decisive.low > 1:
        return "pays"
    return "slower" if speedup.decisive.high < 1 else "too noisy"


def _no_ratio(
    pairs: Sequence[PairWindows], whole: Sequence[PairWindows], names: tuple[str, str]
) -> str | None:
    if not pairs:
        return "Nothing was measured."
    if not whole:
        most = max(pair.matched for pair in pairs)
        return (
            f"No process pair has more than {most} timed windows an arm and a ratio needs "
            f"{MIN_WINDOWS}; take more steps or shorter windows."
        )
    for pair in whole:
        arms = (pair.baseline_images_per_s, pair.candidate_images_per_s)
        for name, rates in zip(names, arms, strict=True):
            if 0 in rates:
                return f"A timed window of {name} has no images: all its steps were skipped."
    return None


def _further_pairs(speedup: Speedup, margin: float) -> int | None:
    def settled(pairs: int) -> bool:
        return outcome_of(foreseen_speedup(speedup, pairs), margin) != "too noisy"

    had = len(speedup.pair_ratios)
    candidates = range(had + 1, MAX_PAIRS + 1)
    place = bisect_left(candidates, True, key=settled)
    return candidates[place] - had if place < len(candidates) else None


def _reason(
    outcome: Outcome,
    speedup: Speedup,
    margin: float,
    names: tuple[str, str],
    remedy: str | None,
) -> str:
    baseline, candidate = names
    pairs = len(speedup.pair_ratios)
    shown = f"{DISPLAY_CONFIDENCE * 100:g} % interval {speedup.shown}"
    decisive = f"{DECISION_CONFIDENCE * 100:g} % interval {speedup.decisive}"
    measured = (
        f"{candidate} ran at {speedup.ratio:.3f} times the images/s of {baseline} ({shown}, "
        f"{_count(pairs, 'process pair')}, {_count(speedup.windows, 'window')} an arm)"
    )
    if outcome == "no difference":
        return f"{measured}, and the whole of that interval lies within ±{margin * 100:g} % of 1."
    if outcome != "too noisy":
        side = "above" if outcome == "pays" else "below"
        return f"{measured}, and the {decisive} that decides lies wholly {side} 1."
    return (
        f"{measured}, but the {decisive} that decides contains 1 and the other reaches beyond "
        f"±{margin * 100:g} %; {remedy}."
    )


def _remedy(further: int | None, pairs: int, pair_time_s: float | None) -> str:
    if further is None:
        return f"even {MAX_PAIRS} process pairs would not settle it: give each more windows"
    time = "" if pair_time_s is None else f", {_duration(further * pair_time_s)},"
    return (
        f"about {_count(further, 'more process pair')}{time} would settle it "
        f"(--repeats {pairs + further})"
    )


def _assumption(speedup: Speedup | None) -> str | None:
    if speedup is None or not speedup.rests_on_prior:
        return None
    scale = speedup.process_sd_scale
    return (
        f"Fewer than {PRIOR_MATTERS_BELOW} process pairs hardly show how processes differ; "
        f"the interval assumes that their ratios differ by a standard deviation of less than "
        f"{0.674 * scale * 100:.1f} % as likely as more, and of less than "
        f"{1.960 * scale * 100:.1f} % with 95 % probability."
    )


def _warnings(
    pairs: Sequence[PairWindows], whole: Sequence[PairWindows], names: tuple[str, str]
) -> Iterable[str]:
    if whole and len(whole) < len(pairs):
        left_out = _count(len(pairs) - len(whole), "process pair")
        yield f"{left_out} left out: fewer than {MIN_WINDOWS} windows an arm"
    fewest = min((pair.matched for pair in whole), default=_FEW_WINDOWS)
    if fewest < _FEW_WINDOWS:
        yield f"only {fewest} windows an arm in a process pair; {_FEW_WINDOWS} or more are advised"
    for index, name in enumerate(names):
        spreads = [
            stdev(rates) / fmean(rates)
            for pair in whole
            if fmean(rates := (pair.baseline_images_per_s, pair.candidate_images_per_s)[index]) > 0
        ]
        if (worst := max(spreads, default=0.0)) >= _UNSTABLE_SPREAD:
            yield (
                f"{name} is unstable: the windows of one process vary by {worst * 100:.0f} % "
                "(standard deviation over mean); close other programs or take longer windows"
            )
    reasons = dict.fromkeys(reason for pair in pairs for reason in pair.throttled)
    if reasons:
        yield f"the device lowered its clock during the windows: {', '.join(reasons)}"
    loads = [pair.background_cpus for pair in pairs if pair.background_cpus is not None]
    if (busiest := max(loads, default=0.0)) >= BUSY_CPUS:
        yield f"other processes kept {busiest:.1f} CPUs busy during the windows of a process pair"


def _median(rates: Iterable[tuple[float, ...]]) -> float | None:
    values = [rate for windows in rates for rate in windows]
    return median(values) if values else None


def _pair_time_s(pairs: Sequence[PairWindows]) -> float | None:
    times = [pair.time_s for pair in pairs if pair.time_s is not None]
    return fmean(times) if times else None


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _duration(time_s: float) -> str:
    return f"{time_s:.0f} s" if time_s < 100 else f"{time_s / 60:.0f} min"
