"""Made series whose first steady value is known by construction."""

import math

import numpy as np
import pytest

from harness.steady import steady_state


def noisy(levels, sd, seed=0):
    return list(np.asarray(levels) * np.exp(np.random.default_rng(seed).normal(0, sd, len(levels))))


def test_a_constant_series_is_steady_from_the_start():
    found = steady_state([0.25] * 10)
    assert (found.first, found.level_s, found.reason) == (0, 0.25, None)


def test_fewer_than_six_times_are_too_short():
    found = steady_state([1.0] * 5)
    assert found.first is None
    assert found.level_s is None
    assert found.reason is not None
    assert found.reason.startswith("Too short: 5 times")


def test_six_times_are_enough():
    assert steady_state([1.0] * 6).first == 0


def test_compilation_and_autotuning_are_left_out():
    found = steady_state([5.0, 2.0, 1.3] + [1.0] * 10)
    assert (found.first, found.level_s) == (3, 1.0)


def test_a_burst_of_speed_at_the_start_is_left_out_too():
    assert steady_state([0.8, 0.8] + [1.0] * 10).first == 2


def test_a_warm_up_that_decays_is_steady_where_it_comes_within_the_tolerance():
    # 1 + exp(-i / 2) is within 2 % of its end from i = 2 ln 50 = 7.8 on.
    found = steady_state([1 + math.exp(-i / 2) for i in range(30)])
    assert found.first == 8


def test_a_warm_up_that_has_not_ended_by_half_of_the_series_is_a_drift():
    found = steady_state([1 + 2 * math.exp(-i / 5) for i in range(20)])
    assert found.first is None
    assert found.reason is not None
    # Medians of thirds of the last ten values, i = 10..19: at i = 11 and 18.
    first, last = (1 + 2 * math.exp(-i / 5) for i in (11, 18))
    middle = 1 + (math.exp(-14 / 5) + math.exp(-15 / 5))
    assert found.reason.startswith("Drift")
    assert f"{(last - first) / middle * 100:+.1f} %" in found.reason


@pytest.mark.parametrize("sd", [0.0, 0.01])
def test_a_steady_drift_is_not_steady(sd):
    found = steady_state(noisy(np.linspace(1, 1.3, 20), sd))
    assert found.first is None
    assert found.reason is not None
    assert found.reason.startswith("Drift")


def test_a_drift_is_seen_through_noise():
    # 10 % between the thirds of the last half, and 2 % + 2 standard errors are 5.2 %.
    drift = np.linspace(1, 1.3, 30)
    firsts = [steady_state(noisy(drift, 0.02, seed)).first for seed in range(100)]
    assert firsts.count(None) >= 80


def test_a_few_last_values_do_not_make_up_for_a_series_that_moved():
    # Of 20 values only the last 8 keep a level.
    assert steady_state([*np.linspace(2, 1.1, 12), *[1.0] * 8]).first is None


def test_a_drift_within_the_tolerance_is_steady():
    # The medians of the thirds lie two thirds of 2.7 % apart: 1.8 %.
    assert steady_state(list(np.linspace(1, 1.027, 31))).first == 0


def test_after_a_lasting_step_the_series_is_steady_from_there():
    found = steady_state([1.0] * 8 + [1.1] * 12)
    assert (found.first, found.level_s) == (8, 1.1)


def test_a_noisy_step_is_found_where_it_is():
    found = steady_state(noisy([1.0] * 10 + [1.3] * 20, 0.02))
    assert found.first == 10


def test_a_late_step_is_named_with_its_size_and_place():
    found = steady_state([1.0] * 10 + [1.1] * 5)
    assert found.first is None
    assert found.reason is not None
    assert found.reason.startswith("Step change: the times change by +10.0 % at index 10 of 15")


def test_lone_outliers_do_not_matter():
    times = [1.0] * 20
    times[5] = 3.0
    times[14] = 4.0
    assert steady_state(times).first == 0


def test_an_outlier_at_the_very_start_counts_as_warm_up():
    assert steady_state([3.0] + [1.0] * 10).first == 1


def test_noise_of_five_percent_is_steady_from_the_start_nearly_always():
    firsts = [steady_state(noisy([2.0] * 20, 0.05, seed)).first for seed in range(200)]
    assert firsts.count(0) >= 190
    assert None not in firsts


def test_the_order_of_magnitude_of_the_times_does_not_matter():
    times = noisy([3.0, 2.0] + [1.0] * 15, 0.01)
    found = steady_state(times)
    assert found.first == steady_state([time * 1e-4 for time in times]).first == 2


def test_more_steady_values_can_be_asked_for():
    times = [2.0] * 5 + [1.0] * 8
    assert steady_state(times).first == 5
    assert steady_state(times, min_steady=9).first is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="finite and above 0"):
        steady_state([1.0] * 6 + [bad])


def test_too_few_values_for_thirds_cannot_be_asked_for():
    with pytest.raises(ValueError, match="min_steady is 5"):
        steady_state([1.0] * 6, min_steady=5)
