"""Words and sentences of the verdict, and simulated studies whose answer is known."""

import dataclasses
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.speedup import PairWindows
from harness.verdict import judge

REPOSITORY = Path(__file__).resolve().parents[1]


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


# The verdict.


def test_amp_pays_where_the_deciding_interval_lies_above_one():
    verdict = judge(flat_pairs(1.41, 1.42, 1.43))
    assert verdict.outcome == "pays"
    assert verdict.remedy is None
    assert verdict.reason.startswith("AMP ran at 1.420 times the images/s of fp32 (95 % interval [")
    assert "3 process pairs, 24 windows an arm" in verdict.reason
    assert verdict.reason.endswith("that decides lies wholly above 1.")
    assert verdict.warnings == ()


def test_the_wider_interval_decides():
    """Three pairs that put the 95 % interval above 1 and leave 1 in the 99.5 % interval."""
    verdict = judge(flat_pairs(1.05, 1.08, 1.11))
    assert verdict.speedup is not None
    assert verdict.speedup.decisive.low < 1 < verdict.speedup.shown.low
    assert verdict.speedup.decisive.confidence == 0.995
    assert verdict.outcome == "too noisy"


def test_amp_is_slower_where_it_lies_below_one():
    verdict = judge(flat_pairs(0.07, 0.071, 0.07))
    assert verdict.outcome == "slower"
    assert "wholly below 1" in verdict.reason


def test_no_difference_needs_the_whole_interval_within_the_margin():
    close = flat_pairs(1.000, 1.001, 0.999, 1.000)
    assert judge(close).outcome == "no difference"
    assert "within ±2 % of 1" in judge(close).reason
    assert judge(close, margin=0.0001).outcome == "too noisy"


def test_a_difference_that_is_certain_but_too_small_to_matter_is_none():
    verdict = judge(flat_pairs(*[1.009, 1.010, 1.011] * 4))
    assert verdict.speedup is not None
    assert verdict.speedup.decisive.low > 1
    assert verdict.outcome == "no difference"


def test_too_noisy_tells_the_pairs_and_the_time_that_would_settle_it():
    verdict = judge(flat_pairs(0.96, 1.00, 1.05, time_s=90.0))
    assert verdict.outcome == "too noisy"
    assert verdict.further_pairs is not None
    assert verdict.further_time_s == 90.0 * verdict.further_pairs
    assert f"about {verdict.further_pairs} more process pairs" in verdict.reason
    # Three were measured; --repeats counts all.
    assert verdict.settling_repeats == 3 + verdict.further_pairs
    assert verdict.reason.endswith(f"would settle it (--repeats {3 + verdict.further_pairs}).")
    # By the normal rule, 1.96 * sd / sqrt(n) < 0.02 minus the distance from 1.
    logs = np.log([0.96, 1.00, 1.05])
    normal = (1.96 * logs.std(ddof=1) / (0.02 - abs(logs.mean()))) ** 2
    assert 0.6 * normal < 3 + verdict.further_pairs < 1.5 * normal


def test_more_pairs_as_foreseen_do_settle_it():
    one = flat_pairs(0.96, 1.00, 1.05)
    further = judge(one).further_pairs
    assert further is not None
    repeats = (3 + further) / 3
    assert judge(one * math.ceil(repeats * 1.3)).outcome == "no difference"
    assert judge(one * math.floor(repeats * 0.7)).outcome == "too noisy"


def test_the_time_is_unknown_where_the_pairs_do_not_tell_theirs():
    verdict = judge(flat_pairs(0.96, 1.00, 1.05))
    assert verdict.further_pairs is not None
    assert verdict.further_time_s is None


def test_a_study_beyond_hope_is_told_so():
    verdict = judge(flat_pairs(0.5, 1.0, 2.0, 1.1))
    assert verdict.outcome == "too noisy"
    assert verdict.further_pairs is None
    assert "even 64 process pairs would not settle it" in verdict.reason


def test_a_pair_cut_short_is_one_of_the_repetitions_that_there_are():
    verdict = judge([*flat_pairs(0.96, 1.00, 1.05), *flat_pairs(1.0, windows=2)])
    assert verdict.further_pairs is not None
    assert verdict.settling_repeats == 4 + verdict.further_pairs


@pytest.mark.parametrize("pairs", [1, 2, 3, 5])
def test_fewer_than_six_pairs_say_what_is_assumed_of_processes(pairs):
    verdict = judge(flat_pairs(*[1.5] * pairs))
    assert verdict.outcome == "pays"
    assert verdict.assumption is not None
    assert verdict.assumption.startswith("Fewer than 6 process pairs hardly show how processes ")
    # Quartile and 97.5 % point of a normal distribution with standard deviation 5 %.
    assert f"{5 * stats.norm.ppf(0.75):.1f} %" in verdict.assumption
    assert f"{5 * stats.norm.ppf(0.975):.1f} %" in verdict.assumption


def test_from_six_pairs_on_nothing_is_said_of_the_assumption():
    assert judge(flat_pairs(*[1.5] * 6)).assumption is None


def test_one_pair_cannot_show_that_there_is_no_difference():
    assert judge(flat_pairs(1.0, windows=100)).outcome == "too noisy"


def test_the_medians_are_over_the_windows_of_all_pairs():
    first = PairWindows(
        baseline_images_per_s=(1.0, 2.0, 3.0), candidate_images_per_s=(2.0, 4.0, 6.0)
    )
    second = PairWindows(
        baseline_images_per_s=(10.0, 11.0, 12.0), candidate_images_per_s=(20.0, 22.0, 24.0)
    )
    verdict = judge([first, second])
    assert verdict.baseline_images_per_s == 6.5
    assert verdict.candidate_images_per_s == 13.0


def test_an_arm_without_result_makes_it_unavailable():
    verdict = judge([], unavailable="paddle has no float16 kernels for the CPU.")
    assert verdict.outcome == "unavailable"
    assert verdict.reason == "paddle has no float16 kernels for the CPU."
    assert verdict.speedup is None
    assert verdict.baseline_images_per_s is None


def test_nothing_measured_is_unavailable():
    assert judge([]).reason == "Nothing was measured."


def test_too_few_windows_are_unavailable_with_the_remedy():
    verdict = judge(flat_pairs(1.0, 1.0, windows=2))
    assert verdict.outcome == "unavailable"
    assert "needs 3; take more steps" in verdict.reason


def test_a_window_whose_steps_were_all_skipped_is_unavailable():
    made = PairWindows(
        baseline_images_per_s=(9.0, 9.0, 9.0), candidate_images_per_s=(9.0, 0.0, 9.0)
    )
    verdict = judge([made])
    assert verdict.outcome == "unavailable"
    assert "AMP has no images" in verdict.reason


def test_arms_that_differ_otherwise_are_confounded_and_get_no_ratio():
    verdict = judge(
        flat_pairs(2.0, 2.0, 2.0), differences=["layout: nchw | nhwc", "threads: 1 | 2"]
    )
    assert verdict.outcome == "confounded"
    assert "layout: nchw | nhwc; threads: 1 | 2" in verdict.reason
    assert verdict.speedup is None
    assert verdict.differences == ("layout: nchw | nhwc", "threads: 1 | 2")
    assert verdict.candidate_images_per_s == pytest.approx(200)


def test_other_arms_are_called_by_their_names():
    verdict = judge(flat_pairs(1.5, 1.5, 1.5), names=("strict fp32", "TF32"))
    assert verdict.reason.startswith("TF32 ran at 1.500 times the images/s of strict fp32")


@pytest.mark.parametrize("margin", [0.0, -0.1, 1.0])
def test_a_margin_out_of_range_is_refused(margin):
    with pytest.raises(ValueError, match="out of range"):
        judge(flat_pairs(1.0), margin=margin)


# The warnings.


def test_a_pair_cut_short_is_left_out_and_told():
    verdict = judge([*flat_pairs(1.5, 1.5, 1.5), *flat_pairs(0.5, windows=2)])
    assert verdict.outcome == "pays"
    assert verdict.warnings == ("1 process pair left out: fewer than 3 windows an arm",)


def test_few_windows_are_warned_of():
    verdict = judge(flat_pairs(1.5, 1.5, 1.5, windows=5))
    assert verdict.warnings == ("only 5 windows an arm in a process pair; 6 or more are advised",)


def test_an_arm_whose_windows_vary_by_a_tenth_is_unstable():
    # 80 and 120 in turn: mean 100, standard deviation 20 * sqrt(8 / 7) = 21.4.
    made = PairWindows(baseline_images_per_s=(100.0,) * 8, candidate_images_per_s=(80.0, 120.0) * 4)
    (warning,) = judge([made]).warnings
    assert warning.startswith("AMP is unstable: the windows of one process vary by 21 %")


def test_throttling_and_background_load_are_told():
    made = flat_pairs(1.5, 1.5, throttled=("SW power cap",), background_cpus=0.7)
    assert judge(made).warnings == (
        "the device lowered its clock during the windows: SW power cap",
        "other processes kept 0.7 CPUs busy during the windows of a process pair",
    )


def test_the_verdict_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        judge([]).outcome = "pays"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_same_windows_give_the_same_verdict():
    rng = np.random.default_rng(5)
    made = [pair(rng.normal(0, 0.05, 8)) for _ in range(3)]
    assert judge(made) == judge(made)


# Simulated studies with a known answer; the full tables stand in docs/method.md.


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY))
    monkeypatch.delitem(sys.modules, "benchmarks.verdict_simulation", raising=False)
    from benchmarks import verdict_simulation

    return verdict_simulation


def test_simulated_studies_are_judged_right_in_small(simulation):
    scenario = simulation.Scenario(pairs=6, windows=20, process_sd=0.01)
    result = simulation.tally(scenario, studies=30, seed=0)
    # 60 intervals that cover in 95 % do so 51 times or more with a probability of 99.8 %.
    assert result.coverage >= 51 / 60
    assert result.false_alarm <= 1 / 30
    assert result.found >= 0.5


def test_the_simulation_has_the_ratio_and_the_noise_that_it_says(simulation):
    quiet = simulation.Scenario(
        pairs=1, windows=20_000, process_sd=0.0, drift=0.0, step=0.0, outliers=0.0
    )
    (made,) = simulation.simulate(quiet, np.random.default_rng(0), speedup=0.95)
    ratios = np.array(made.log_ratios)
    assert ratios.mean() == pytest.approx(math.log(0.95), abs=0.002)
    assert ratios.std() == pytest.approx(0.05 * math.sqrt(2), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "process_sd"),
    [(1, None), (2, None), (3, None), (6, None), (3, 0.005), (3, 0.03), (6, 0.01), (6, 0.02)],
)
def test_500_simulated_studies_cover_and_do_not_cry_wolf(simulation, pairs, process_sd):
    scenario = simulation.Scenario(pairs=pairs, windows=10, process_sd=process_sd)
    result = simulation.tally(scenario, studies=500, seed=1)
    assert result.coverage >= 0.93
    assert result.false_alarm <= 0.01


@pytest.mark.slow
def test_an_arm_slowed_by_5_percent_is_found_in_studies_of_reasonable_size(simulation):
    scenario = simulation.Scenario(pairs=10, windows=20, process_sd=0.01)
    assert simulation.tally(scenario, studies=500, seed=1).found >= 0.9


def test_the_confidences_of_the_documentation_are_those_of_the_code():
    from harness.speedup import DECISION_CONFIDENCE, DISPLAY_CONFIDENCE, PROCESS_SD_SCALE

    text = (REPOSITORY / "docs" / "method.md").read_text(encoding="utf-8")
    stated = re.findall(r"\*\*([\d.]+) %\*\* (shown|deciding|scale)", text)
    assert {name: float(value) for value, name in stated} == {
        "shown": DISPLAY_CONFIDENCE * 100,
        "deciding": DECISION_CONFIDENCE * 100,
        "scale": PROCESS_SD_SCALE * 100,
    }
