"""The speedup and its interval, against arithmetic and against an exact enumeration."""

import itertools
from statistics import median

import numpy as np
import pytest
from report_records import ok_record

from reports.speedup import MIN_WINDOWS, speedup, window_rates


def test_the_ratio_is_that_of_the_medians():
    # Medians 20 and 50, whatever the means are.
    assert speedup([10, 20, 90], [40, 50, 51]).ratio == 2.5


def test_arms_without_spread_have_an_interval_without_width():
    gain = speedup([10.0] * 4, [30.0] * 4)

    assert (gain.low, gain.ratio, gain.high) == (3, 3, 3)


def test_the_interval_is_that_of_all_resamples_of_three_windows():
    fp32, amp = [10.0, 11.0, 13.0], [20.0, 23.0, 24.0]
    every_median = [
        [median(sample) for sample in itertools.product(rates, repeat=3)] for rates in (amp, fp32)
    ]
    ratios = [a / b for a, b in itertools.product(*every_median)]
    # 729 equally likely ratios; 9,999 drawn ones put the percentiles on the same steps.
    exact = np.quantile(ratios, [0.025, 0.975], method="inverted_cdf")

    gain = speedup(fp32, amp)

    assert [gain.low, gain.high] == pytest.approx(exact, rel=1e-9)


def test_the_same_records_give_the_same_interval():
    assert speedup([10, 11, 12], [9, 10, 12]) == speedup([10, 11, 12], [9, 10, 12])


def test_the_interval_contains_the_true_ratio_about_as_often_as_it_says():
    rng = np.random.default_rng(20260101)
    trials, true_ratio = 300, 1.4
    contained = 0
    for _ in range(trials):
        fp32 = 40 * np.exp(rng.normal(0, 0.05, 8))
        amp = 40 * true_ratio * np.exp(rng.normal(0, 0.05, 8))
        gain = speedup(fp32.tolist(), amp.tolist())
        assert gain.low is not None
        assert gain.high is not None
        contained += gain.low <= true_ratio <= gain.high

    # 95 % less three standard errors of 300 trials.
    assert contained / trials > 0.95 - 3 * (0.95 * 0.05 / trials) ** 0.5


@pytest.mark.parametrize(
    ("amp", "verdict"),
    [([20, 20, 21], "faster"), ([5, 5, 6], "slower"), ([9, 10, 12], "unclear")],
)
def test_the_verdict_follows_from_where_the_interval_lies(amp: list[float], verdict: str):
    assert speedup([9, 10, 11], amp).verdict == verdict


def test_too_few_windows_give_no_ratio_but_a_reason():
    gain = speedup([10.0, 11.0, 12.0], [20.0, 21.0])

    assert (gain.ratio, gain.low, gain.high, gain.verdict) == (None, None, None, "no ratio")
    assert gain.reason is not None
    assert gain.reason.startswith(f"AMP has 2 timed windows and an interval needs {MIN_WINDOWS}")


def test_windows_of_skipped_steps_only_count_as_zero():
    gain = speedup([10.0, 10.0, 10.0], [0.0, 0.0, 5.0, 5.0, 5.0])

    assert (gain.low, gain.ratio, gain.high) == (0, 0.5, 0.5)


def test_an_fp32_window_without_images_gives_no_ratio():
    gain = speedup([10.0, 0.0, 10.0], [5.0, 5.0, 5.0])

    assert (gain.ratio, gain.reason) == (None, "a timed window of fp32 has no images that count")


def test_warm_up_windows_do_not_count():
    # The warm-up window of the made record ran at 8 images/s.
    assert window_rates(ok_record(rates=[40, 50])) == pytest.approx([40, 50])


def test_images_of_skipped_steps_do_not_count():
    # Steps 3 and 4 are the first timed window; one of the two is skipped.
    rates = window_rates(ok_record(precision="amp", rates=[40, 50], skipped_at=[4]))

    assert rates == pytest.approx([20, 50])
