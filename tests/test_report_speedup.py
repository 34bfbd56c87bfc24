"""From records to the windows that a verdict is made of; the statistics have tests of their own."""

import math
from typing import Any

import pytest
from report_records import ok_record, turns, unavailable_record

from harness.records import Record
from reports.cells import study_cells
from reports.comparison import ComparisonRow, comparison_rows
from reports.speedup import process_pair, window_rates


def row_of(*records: Record) -> ComparisonRow:
    """The one row of the records of a backend."""
    (row,) = comparison_rows(study_cells(None, records))
    return row


def pair_of_seed(seed: int, fp32: float, amp: float, **changes: Any) -> list[Record]:
    """Two arms of three windows each, all at one rate."""
    return [
        ok_record(rates=[fp32] * 3, seed=seed, **changes),
        ok_record(precision="amp", rates=[amp] * 3, seed=seed, **changes),
    ]


def placed(record: Record, places: list[int]) -> Record:
    """`record` with its timed windows at these places in the order of measuring."""
    warmup, *timed = record.windows
    moved = [
        window.model_copy(update={"arm_position": place})
        for window, place in zip(timed, places, strict=True)
    ]
    return record.model_copy(update={"windows": [warmup, *moved]})


# Windows.


def test_warm_up_windows_do_not_count():
    # The warm-up window of the made record ran at 8 images/s.
    assert window_rates(ok_record(rates=[40, 50])) == pytest.approx([40, 50])


def test_the_untimed_step_before_each_window_does_not_count():
    record = ok_record(rates=[40, 50, 60])
    settled = [
        part
        for window in record.windows
        for part in (window.model_copy(update={"warmup": True, "time_s": 9.0}), window)
    ]
    assert window_rates(record.model_copy(update={"windows": settled})) == pytest.approx(
        [40, 50, 60]
    )


def test_images_of_skipped_steps_do_not_count():
    # Steps 3 and 4 are the first timed window; one of the two is skipped.
    rates = window_rates(ok_record(precision="amp", rates=[40, 50], skipped_at=[4]))

    assert rates == pytest.approx([20, 50])


# Pairs.


def test_the_made_arms_are_measured_a_b_b_a():
    assert turns("fp32", 4) == [0, 3, 4, 7]
    assert turns("amp", 4) == [1, 2, 5, 6]


def test_windows_are_matched_in_the_order_in_which_they_were_measured():
    fp32 = ok_record(rates=[10, 20, 30])
    shuffled = fp32.model_copy(update={"windows": fp32.windows[::-1]})
    pair = process_pair(shuffled, ok_record(precision="amp", rates=[20, 40, 60]))

    assert pair.in_turn
    assert pair.windows.log_ratios == pytest.approx([math.log(2)] * 3)


def test_a_machine_that_slows_down_leaves_the_speedup_as_it_is():
    verdict = row_of(
        ok_record(rates=[80, 40, 20, 10]), ok_record(precision="amp", rates=[120, 60, 30, 15])
    ).verdict

    assert verdict.speedup is not None
    assert verdict.speedup.ratio == pytest.approx(1.5)
    assert verdict.speedup.window_sd == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("fp32", "amp"),
    [
        ([0, 0, 0], [1, 1, 1]),  # each arm as a whole
        ([0, 1, 2], [3, 4, 5]),  # an arm that was run anew alone, after the other
        ([0, 1, 2], [0, 3, 4]),  # and one whose places were counted from 0 again
        ([0, 1, 2], [1, 2, 5]),
        ([0, 3, 4], [1, 2, 7]),  # a turn that only one arm took
    ],
)
def test_arms_whose_windows_do_not_alternate_were_not_measured_in_turn(
    fp32: list[int], amp: list[int]
):
    row = row_of(placed(ok_record(), fp32), placed(ok_record(precision="amp"), amp))

    assert row.judged.in_turn is False
    assert row.verdict.warnings[-1] == (
        "the arms were measured one after the other: drift is not cancelled"
    )


def in_rounds(arms: int, rounds: int) -> list[list[int]]:
    """Places of each arm's windows where the arms take turns, each round reversed."""
    return [
        [r * arms + (place if r % 2 == 0 else arms - 1 - place) for r in range(rounds)]
        for place in range(arms)
    ]


def test_any_two_of_several_arms_that_take_turns_were_measured_in_turn():
    # A B C D D C B A A B C D.
    places = in_rounds(4, 3)
    assert places == [[0, 7, 8], [1, 6, 9], [2, 5, 10], [3, 4, 11]]

    for i, first in enumerate(places):
        for second in places[i + 1 :]:
            arms = placed(ok_record(), first), placed(ok_record(precision="amp"), second)
            assert process_pair(*arms).in_turn


def test_an_arm_between_them_that_ends_early_leaves_two_arms_in_turn():
    # A B C, C B A, and then without B: A C, C A.
    a, c = [0, 5, 6, 9], [2, 3, 7, 8]
    arms = (
        placed(ok_record(rates=[40] * 4), a),
        placed(ok_record(precision="amp", rates=[60] * 4), c),
    )
    assert process_pair(*arms).in_turn


def test_windows_after_the_end_of_the_other_arm_have_no_partner_and_do_no_harm():
    pair = process_pair(
        placed(ok_record(rates=[40] * 5), [0, 3, 4, 6, 7]),
        placed(ok_record(precision="amp"), [1, 2, 5]),
    )
    assert pair.in_turn
    assert pair.windows.matched == 3


def test_arms_measured_in_turn_bring_no_warning():
    row = row_of(*pair_of_seed(0, 40, 60))

    assert row.judged.in_turn is True
    assert not any("drift" in warning for warning in row.verdict.warnings)


def test_the_time_of_workers_alive_together_counts_once():
    # Window k starts k seconds after the worker: the third ends at 3 + 32 / 20 = 4.6 s. Of the
    # other arm the warm-up window of 32 images at 8 images/s ends last, at 4 s.
    fp32, amp = pair_of_seed(0, 40, 20)
    assert process_pair(fp32, amp).windows.time_s == pytest.approx(4.6)

    apart = ok_record(precision="amp", rates=[20] * 3, in_turn=False)
    assert process_pair(fp32, apart).windows.time_s == pytest.approx(8.6)


# The verdict on them.


def test_a_window_whose_steps_were_all_skipped_leaves_no_speedup_and_says_so():
    # Steps 3 and 4 are the first timed window: it has 0 images/s, and 0 has no logarithm.
    row = row_of(
        ok_record(rates=[40] * 4), ok_record(precision="amp", rates=[60] * 4, skipped_at=[3, 4])
    )
    assert row.amp.window_images_per_s[0] == 0
    assert row.verdict.outcome == "unavailable"
    assert row.verdict.speedup is None
    assert row.verdict.reason == (
        "A timed window of AMP has no images: all its steps were skipped."
    )


def test_too_few_windows_give_no_ratio_but_a_reason():
    row = row_of(ok_record(), ok_record(precision="amp", rates=[20, 21]))

    assert (row.verdict.outcome, row.verdict.speedup) == ("unavailable", None)
    assert "No process pair has more than 2 timed windows an arm" in row.verdict.reason


def test_each_seed_is_a_process_pair():
    row = row_of(*pair_of_seed(0, 40, 60), *pair_of_seed(1, 40, 58), *pair_of_seed(2, 50, 80))
    gain = row.verdict.speedup

    assert gain is not None
    assert gain.pair_ratios == pytest.approx((1.5, 1.45, 1.6))
    assert gain.windows == 9
    assert [pair.name for pair in row.judged.counted] == ["first", "seed1", "seed2"]
    assert row.verdict.assumption is not None
    assert row.notes == ()


def test_with_one_pair_the_assumption_about_processes_is_told():
    assumption = row_of(*pair_of_seed(0, 40, 60)).verdict.assumption

    assert assumption is not None
    assert assumption.startswith("Fewer than 6 process pairs hardly show how processes differ")


def test_a_seed_that_failed_is_left_out_and_named():
    fp32, amp = pair_of_seed(2, 40, 60)
    failed = amp.model_copy(update={"status": "failed", "reason": "out of luck"})
    row = row_of(*pair_of_seed(0, 40, 60), *pair_of_seed(1, 40, 60), fp32, failed)

    assert row.verdict.speedup is not None
    assert len(row.verdict.speedup.pair_ratios) == 2
    assert row.notes == ("the pair seed2 does not count: AMP failed: out of luck.",)


def test_a_seed_with_other_settings_is_no_repetition():
    row = row_of(*pair_of_seed(0, 40, 60), *pair_of_seed(1, 40, 60, training={"threads": 1}))

    assert row.verdict.speedup is not None
    assert len(row.verdict.speedup.pair_ratios) == 1
    assert row.notes == ("the pair seed1 does not count: it differs in threads: 2 | 1",)


def test_a_seed_whose_own_arms_differ_is_left_out():
    fp32, _ = pair_of_seed(1, 40, 60)
    amp = ok_record(precision="amp", seed=1, training={"layout": "nhwc"})
    row = row_of(*pair_of_seed(0, 40, 60), fp32, amp)

    assert row.notes == ("the pair seed1 does not count: it differs in layout: nchw | nhwc",)


def test_a_seed_whose_arms_were_given_different_batches_is_left_out():
    fp32, _ = pair_of_seed(1, 40, 60)
    amp = ok_record(precision="amp", rates=[60] * 3, seed=1, data={"batch_sha256": "cc" * 32})
    row = row_of(*pair_of_seed(0, 40, 60), fp32, amp)

    (note,) = row.notes
    assert note.startswith("the pair seed1 does not count: it differs in first batches: ")


def test_a_seed_of_another_length_is_a_repetition_all_the_same():
    longer = [
        ok_record(rates=[40] * 5, seed=1),
        ok_record(precision="amp", rates=[60] * 5, seed=1),
    ]
    gain = row_of(*pair_of_seed(0, 40, 60), *longer).verdict.speedup

    assert gain is not None
    assert gain.windows == 3 + 5


def test_further_seeds_give_no_speedup_where_the_shown_arms_have_none():
    fp32, _ = pair_of_seed(0, 40, 60)
    missing = unavailable_record("torch", "no kernels")
    row = row_of(fp32, missing, *pair_of_seed(1, 40, 60))

    assert row.verdict.outcome == "unavailable"
    assert row.verdict.reason == "AMP unavailable: no kernels."


def test_pairs_measured_in_different_ways_are_told_apart():
    apart = [
        ok_record(rates=[40] * 3, seed=1, in_turn=False),
        ok_record(precision="amp", rates=[60] * 3, seed=1, in_turn=False),
    ]
    row = row_of(*pair_of_seed(0, 40, 60), *apart)

    assert row.verdict.warnings[-1] == (
        "the arms of 1 of 2 process pairs were measured one after the other: drift is not cancelled"
    )
