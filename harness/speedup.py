"""The speedup of one arm over another from paired windows, with its interval (docs/method.md).

A pair is two worker processes alive together whose windows alternate A B B A ..., so that the
k-th window of one arm stands beside the k-th of the other and what slows the machine for a while
slows both. Windows vary within a pair, and pairs vary among themselves: a process keeps for its
whole life a bias that no number of its windows averages away. The interval covers both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

DISPLAY_CONFIDENCE: Final = 0.95
"""Of the interval that is shown."""
DECISION_CONFIDENCE: Final = 0.995
"""Of the interval that must exclude 1 before an arm is called faster or slower."""
PROCESS_SD_SCALE: Final = 0.05
"""Scale of the half-normal prior of the spread between pairs: half below 3.4 %, 95 % below 9.8 %.

Meant for processes whose bias is 0.5 to 3 %, so that the ratios of pairs differ by 0.7 to 4.2 %.
"""
MIN_WINDOWS: Final = 3
"""Matched windows without which a pair says nothing about how windows vary."""
PRIOR_MATTERS_BELOW: Final = 6
"""Pairs below which the interval rests much on :data:`PROCESS_SD_SCALE`: between scales of 2.5 and
10 % the deciding one changes by a factor of 2.5 with three pairs and 1.4 with six
(docs/method.md)."""

_TRIM = 0.2
_SD_STEPS = 60
_NOISE_STEPS = 48


@dataclass(frozen=True, kw_only=True)
class PairWindows:
    """The timed windows of two workers that were alive together, in the order of measuring."""

    baseline_images_per_s: tuple[float, ...]
    """One value a timed window of the arm that is compared with, images/s; 0 where every step of
    the window was skipped."""
    candidate_images_per_s: tuple[float, ...]
    """As above, of the arm whose speedup is asked for."""
    time_s: float | None = None
    """Wall seconds that this pair took, start of the processes and warm-up included."""
    throttled: tuple[str, ...] = ()
    """Reasons for which the device lowered its clock during the windows, in the device's words."""
    background_cpus: float | None = None
    """CPUs that other processes kept busy during the windows, on average."""

    def __post_init__(self) -> None:
        for rate in (*self.baseline_images_per_s, *self.candidate_images_per_s):
            if not (math.isfinite(rate) and rate >= 0):
                raise ValueError(f"a window's images/s must be finite and not negative, not {rate}")

    @property
    def matched(self) -> int:
        """Windows of an arm that have a partner in the other."""
        return min(len(self.baseline_images_per_s), len(self.candidate_images_per_s))

    @property
    def log_ratios(self) -> list[float]:
        """ln(candidate / baseline) of each matched window; a last one without partner is left out.

        Raises:
            ValueError: a window has no images.
        """
        both = zip(self.baseline_images_per_s, self.candidate_images_per_s, strict=False)
        return [math.log(candidate) - math.log(baseline) for baseline, candidate in both]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Bounds of a ratio (no unit) at a confidence."""

    confidence: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """Candidate images/s over baseline images/s; above 1 the candidate was faster."""

    ratio: float
    """Posterior median, no unit."""
    shown: Interval
    """At :data:`DISPLAY_CONFIDENCE`."""
    decisive: Interval
    """At :data:`DECISION_CONFIDENCE`."""
    pair_ratios: tuple[float, ...]
    """Of each process pair: exp of the trimmed mean of its log ratios."""
    windows: int
    """Matched windows of an arm, over all pairs."""
    window_sd: float
    """Standard deviation of the log ratio of two neighbouring windows (0.05 is about 5 %)."""
    process_sd: float
    """Posterior median of the standard deviation of the log ratio between pairs."""
    process_sd_scale: float
    """Scale of the prior of :attr:`process_sd`."""

    @property
    def rests_on_prior(self) -> bool:
        """Whether so few pairs leave the interval to what is assumed of processes."""
        return len(self.pair_ratios) < PRIOR_MATTERS_BELOW


def estimate_speedup(
    pairs: Sequence[PairWindows], *, process_sd_scale: float = PROCESS_SD_SCALE
) -> Speedup:
    """Random-effects estimate: pairs first, the windows within them second.

    Each pair gives the 20 % trimmed mean of its log ratios and its standard error from the
    winsorized variance (Tukey & McLaughlin 1963), pooled over the pairs. The pairs' values are
    normal about ln(speedup) with variance process_sd² + standard error²; process_sd has a
    half-normal prior, which is what makes an interval possible from few pairs (Röver et al. 2021).

    Args:
        pairs: one at least, each with :data:`MIN_WINDOWS` matched windows of more than 0 images/s.
        process_sd_scale: of the half-normal prior, in units of the log ratio.

    Raises:
        ValueError: no pair, too few windows in one, or a window without images.
    """
    if not pairs or min(pair.matched for pair in pairs) < MIN_WINDOWS:
        raise ValueError(f"a speedup needs a pair, and each pair {MIN_WINDOWS} windows an arm")
    means, kept, variances = zip(*(_trimmed(pair.log_ratios) for pair in pairs), strict=True)
    freedom = sum(kept) - len(kept)
    pooled = sum((h - 1) * v for h, v in zip(kept, variances, strict=True)) / freedom
    errors = [pooled / h for h in kept]
    posterior = _Posterior(means, errors, freedom=freedom, scale=process_sd_scale)
    return Speedup(
        ratio=math.exp(posterior.quantile(0.5)),
        shown=posterior.interval(DISPLAY_CONFIDENCE),
        decisive=posterior.interval(DECISION_CONFIDENCE),
        pair_ratios=tuple(math.exp(mean) for mean in means),
        windows=sum(pair.matched for pair in pairs),
        window_sd=math.sqrt(pooled),
        process_sd=posterior.process_sd,
        process_sd_scale=process_sd_scale,
    )


def foreseen_speedup(measured: Speedup, pairs: int) -> Speedup:
    """What ``pairs`` process pairs would show if they vary as ``measured`` says they do.

    The pairs' values are placed at normal scores about the measured ratio, scaled to the spread
    that process_sd and the windows' noise make together.
    """
    import numpy as np
    from scipy.stats import norm

    windows = measured.windows / len(measured.pair_ratios)
    error = measured.window_sd**2 / windows
    scores = norm.ppf((np.arange(pairs) + 0.5) / pairs)
    spread = math.sqrt(measured.process_sd**2 + error)
    scores *= spread / scores.std(ddof=1) if pairs > 1 else 0.0
    posterior = _Posterior(
        math.log(measured.ratio) + scores,
        [error] * pairs,
        freedom=max(1, round(pairs * (windows - 1))),
        scale=measured.process_sd_scale,
    )
    return Speedup(
        ratio=measured.ratio,
        shown=posterior.interval(DISPLAY_CONFIDENCE),
        decisive=posterior.interval(DECISION_CONFIDENCE),
        pair_ratios=tuple(np.exp(math.log(measured.ratio) + scores).tolist()),
        windows=round(pairs * windows),
        window_sd=measured.window_sd,
        process_sd=posterior.process_sd,
        process_sd_scale=measured.process_sd_scale,
    )


def _trimmed(values: Sequence[float]) -> tuple[float, int, float]:
    """Trimmed mean, values kept (h), and h times the squared standard error of that mean.

    Tukey & McLaughlin (1963): the standard error is sqrt(SSW / (h (h - 1))), SSW the winsorized sum
    of squares, with h - 1 degrees of freedom.
    """
    import numpy as np

    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = int(_TRIM * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    winsorized = np.clip(ordered, kept[0], kept[-1])
    squares = float(np.square(winsorized - winsorized.mean()).sum())
    return float(kept.mean()), len(kept), squares / (len(kept) - 1)


class _Posterior:
    """Posterior of the log ratio as a mixture of normals over a grid of the two variances.

    Given both variances the log ratio is normal. The grid holds process_sd at geometric steps,
    weighted by its prior, and the windows' variance, which is scaled inverse chi² distributed; the
    pairs' own likelihood weights both.
    """

    def __init__(
        self,
        pair_values: Sequence[float] | np.ndarray,
        squared_errors: Sequence[float],
        *,
        freedom: int,
        scale: float,
    ) -> None:
        import numpy as np
        from scipy.stats import chi2

        values = np.asarray(pair_values, dtype=np.float64)
        sd = np.geomspace(1e-3 * scale, 8 * scale, _SD_STEPS)
        least, most = chi2.ppf(1e-6, freedom), chi2.ppf(1 - 1e-6, freedom)
        quantity = np.geomspace(least, most, _NOISE_STEPS)
        precision = 1 / (
            np.square(sd)[:, None, None]
            + (freedom / quantity)[None, :, None] * np.asarray(squared_errors)
        )
        total = precision.sum(axis=-1)
        centre = (precision * values).sum(axis=-1) / total
        # The log ratio has a flat prior and is integrated out: hence the term in total. Steps are
        # equal in the logarithms of sd and quantity: hence each density times its variable.
        log_weight = 0.5 * (
            np.log(precision).sum(axis=-1)
            - np.log(total)
            - (precision * np.square(values - centre[..., None])).sum(axis=-1)
        )
        log_weight += (np.log(sd) - 0.5 * np.square(sd / scale))[:, None]
        log_weight += np.log(quantity) + chi2.logpdf(quantity, freedom)
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        share = weight.sum(axis=1)
        self.process_sd = float(np.interp(0.5, share.cumsum() - share / 2, sd))
        used = weight > 1e-9
        self._weight = weight[used] / weight[used].sum()
        self._centre = centre[used]
        self._sd = 1 / np.sqrt(total[used])

    def quantile(self, probability: float) -> float:
        """Log ratio below which the posterior holds ``probability``."""
        import numpy as np
        from scipy.optimize import brentq
        from scipy.special import ndtr, ndtri

        def excess(log_ratio: float) -> float:
            below = ndtr((log_ratio - self._centre) / self._sd)
            return float(np.dot(self._weight, below)) - probability

        # The quantile of a mixture lies between the least and the greatest of its parts.
        parts = self._centre + ndtri(probability) * self._sd
        low, high = float(parts.min()), float(parts.max())
        room = 1e-9 + 1e-6 * (high - low)
        root, _ = brentq(excess, low - room, high + room, xtol=1e-9, full_output=True)
        return root

    def interval(self, confidence: float) -> Interval:
        """Equal-tailed, of the ratio."""
        tail = (1 - confidence) / 2
        low, high = (math.exp(self.quantile(p)) for p in (tail, 1 - tail))
        return Interval(confidence=confidence, low=low, high=high)
