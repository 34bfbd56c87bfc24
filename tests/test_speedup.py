"""The estimate beside SciPy, published formulas and draws from its own model."""

import math

import numpy as np
import pytest
from scipy import stats

from harness.speedup import PairWindows, estimate_speedup


def pair(log_ratios, baseline=100.0, **about):
    """A pair whose windows have these log ratios."""
    return PairWindows(
        baseline_images_per_s=(baseline,) * len(log_ratios),
        candidate_images_per_s=tuple(baseline * math.exp(value) for value in log_ratios),
        **about,
    )


def flat_pairs(*ratios, windows=8, **about):
    """Pairs without noise: every window of a pair shows the same ratio."""
    return [pair([math.log(ratio)] * windows, **about) for ratio in ratios]


def test_pairs_that_agree_give_their_ratio():
    speedup = estimate_speedup(flat_pairs(1.42, 1.42, 1.42))
    assert speedup.ratio == pytest.approx(1.42)
    assert speedup.pair_ratios == pytest.approx((1.42, 1.42, 1.42))
    assert speedup.window_sd == pytest.approx(0, abs=1e-12)


def test_windows_are_compared_with_their_neighbours():
    """A machine that gets ten times slower leaves the ratio of neighbours as it is."""
    rates = (100.0, 80.0, 60.0, 40.0, 20.0, 10.0)
    made = PairWindows(
        baseline_images_per_s=rates, candidate_images_per_s=tuple(1.2 * rate for rate in rates)
    )
    assert made.log_ratios == pytest.approx([math.log(1.2)] * 6)


def test_a_last_window_without_partner_is_left_out():
    made = PairWindows(baseline_images_per_s=(2.0,) * 4, candidate_images_per_s=(3.0,) * 3)
    assert made.matched == 3
    assert made.log_ratios == pytest.approx([math.log(1.5)] * 3)


def test_a_pair_counts_with_its_trimmed_mean():
    values = [0.01, 0.02, 0.03, 0.04, 0.05, 0.9, 0.02, 0.03, 0.04, -0.7]
    speedup = estimate_speedup([pair(values)])
    assert math.log(speedup.pair_ratios[0]) == pytest.approx(stats.trim_mean(values, 0.2))


def test_the_noise_of_windows_is_the_winsorized_variance():
    values = [0.01, -0.02, 0.03, 0.05, 0.02, 0.9, 0.00, 0.03, 0.04, -0.7]
    # scipy's standard error of a trimmed mean; n = 10 keeps 6.
    error = stats.mstats.trimmed_stde(values, limits=(0.2, 0.2), inclusive=(True, True))
    winsorized = np.sort(values).clip(0.00, 0.04)
    by_hand = math.sqrt(((winsorized - winsorized.mean()) ** 2).sum() / (6 * 5))
    assert estimate_speedup([pair(values)]).window_sd == pytest.approx(by_hand * math.sqrt(6))
    # scipy divides by (1 - 2 * 0.2) sqrt(n) with n - 1 degrees of freedom: the same up to that.
    assert by_hand == pytest.approx(error * math.sqrt(9 * 6 / (10 * 5)), rel=1e-6)


def test_without_process_variation_the_interval_is_students_t():
    values = [0.00, 0.03, 0.05, 0.02]  # too few to trim
    speedup = estimate_speedup([pair(values)], process_sd_scale=1e-6)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert math.log(speedup.shown.low) == pytest.approx(low, abs=1e-3)
    assert math.log(speedup.shown.high) == pytest.approx(high, abs=1e-3)


def test_with_many_pairs_the_interval_is_students_t_of_the_pairs():
    made = np.random.default_rng(0).normal(0.1, 0.03, 60)
    speedup = estimate_speedup(flat_pairs(*np.exp(made)), process_sd_scale=1.0)
    for interval in (speedup.shown, speedup.decisive):
        low, high = stats.t.interval(interval.confidence, 59, made.mean(), stats.sem(made))
        half = (high - low) / 2
        assert math.log(interval.low) == pytest.approx(low, abs=0.05 * half)
        assert math.log(interval.high) == pytest.approx(high, abs=0.05 * half)
    assert speedup.process_sd == pytest.approx(made.std(ddof=1), rel=0.05)


def test_one_pair_rests_on_the_assumed_spread_of_processes():
    """Drawn from the model itself: the pair's bias and its windows' error, a million times."""
    values = [0.01, 0.06, 0.03, 0.05, 0.10]  # keeps three of five
    speedup = estimate_speedup([pair(values)])
    rng = np.random.default_rng(1)
    spread = np.abs(rng.normal(0, 0.05, 1_000_000))
    error = speedup.window_sd / math.sqrt(3) * rng.standard_t(2, 1_000_000)
    drawn = stats.trim_mean(values, 0.2) + spread * rng.normal(size=1_000_000) + error
    for interval in (speedup.shown, speedup.decisive):
        tail = (1 - interval.confidence) / 2
        low, high = np.quantile(drawn, [tail, 1 - tail])
        half = (high - low) / 2
        assert math.log(interval.low) == pytest.approx(low, abs=0.04 * half)
        assert math.log(interval.high) == pytest.approx(high, abs=0.04 * half)


def test_three_pairs_agree_with_the_posterior_by_importance_sampling():
    """Prior draws of the spread weighted by the likelihood of the pairs, the ratio integrated."""
    made = np.array([0.02, 0.05, 0.11])
    speedup = estimate_speedup(flat_pairs(*np.exp(made)))
    rng = np.random.default_rng(2)
    spread = np.abs(rng.normal(0, 0.05, 1_000_000))
    squares = ((made - made.mean()) ** 2).sum()
    weight = spread**-2.0 * np.exp(-squares / (2 * spread**2))
    drawn = rng.choice(spread, 1_000_000, p=weight / weight.sum())
    log_ratio = made.mean() + drawn / math.sqrt(3) * rng.normal(size=1_000_000)
    assert speedup.process_sd == pytest.approx(np.median(drawn), rel=0.03)
    for interval in (speedup.shown, speedup.decisive):
        tail = (1 - interval.confidence) / 2
        expected = np.quantile(log_ratio, [tail, 1 - tail])
        found = [math.log(interval.low), math.log(interval.high)]
        assert found == pytest.approx(expected, abs=0.002)


def test_swapping_the_arms_inverts_the_ratio_and_its_interval():
    rng = np.random.default_rng(3)
    made = [pair(rng.normal(0.2, 0.05, 9)) for _ in range(3)]
    swapped = [
        PairWindows(
            baseline_images_per_s=one.candidate_images_per_s,
            candidate_images_per_s=one.baseline_images_per_s,
        )
        for one in made
    ]
    one, other = estimate_speedup(made), estimate_speedup(swapped)
    assert other.ratio == pytest.approx(1 / one.ratio)
    assert other.shown.low == pytest.approx(1 / one.shown.high)


def test_more_windows_do_not_make_up_for_pairs():
    """What a process keeps for its life is not averaged away."""
    biased = [1.00, 1.03, 1.06]
    few, many = (
        estimate_speedup(flat_pairs(*biased, windows=windows)).shown for windows in (6, 600)
    )
    assert many.high - many.low == pytest.approx(few.high - few.low, rel=1e-6)


def test_a_study_without_windows_has_no_estimate():
    with pytest.raises(ValueError, match="needs a pair"):
        estimate_speedup([])
    with pytest.raises(ValueError, match="3 windows"):
        estimate_speedup(flat_pairs(1.0, windows=2))


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="finite and not negative"):
        PairWindows(baseline_images_per_s=(1.0,), candidate_images_per_s=(rate,))
