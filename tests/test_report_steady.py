"""Windows before the steady state count as warm-up, for both arms of a pair."""

from collections.abc import Sequence

import pytest
from report_records import ok_record

from harness.records import Record
from reports.cells import study_cells
from reports.comparison import ComparisonRow, comparison_rows
from reports.speedup import process_pair


def row_of(fp32: Sequence[float], amp: Sequence[float]) -> ComparisonRow:
    """The row of two arms whose windows ran at these images/s."""
    (row,) = comparison_rows(study_cells(None, both(fp32, amp)))
    return row


def both(fp32: Sequence[float], amp: Sequence[float]) -> tuple[Record, Record]:
    return ok_record(rates=fp32), ok_record(precision="amp", rates=amp)


def unsteady_of(row: ComparisonRow) -> list[str]:
    return [text for text in row.verdict.warnings if "steady" in text]


def test_windows_before_the_steady_state_of_one_arm_are_left_out_of_both():
    # A window of 32 images: 20 and 30 images/s are 100 % and 33 % longer than the later ones.
    pair = process_pair(*both([40, 41] + [40] * 8, [20, 30] + [60] * 8))

    assert pair.windows.baseline_images_per_s == pytest.approx([40] * 8)
    assert pair.windows.candidate_images_per_s == pytest.approx([60] * 8)
    assert pair.in_turn
    assert pair.cut == (
        "the first 2 timed windows do not count, while torch-amp had not reached its later level"
    )
    assert pair.unsteady == ()


def test_the_later_of_two_steady_states_counts():
    pair = process_pair(*both([10] + [40] * 9, [20, 20, 30] + [60] * 7))

    assert pair.windows.matched == 7
    assert pair.cut is not None
    assert "torch-fp32 and torch-amp had not reached their later level" in pair.cut


def test_what_counts_as_warm_up_is_told_beside_the_row():
    row = row_of([40] * 9, [20] + [60] * 8)

    assert row.verdict.speedup is not None
    assert row.verdict.speedup.ratio == pytest.approx(1.5)
    assert row.notes == (
        "the first timed window does not count, while torch-amp had not reached its later level",
    )
    assert unsteady_of(row) == []


def test_steady_windows_all_count():
    pair = process_pair(*both([40] * 8, [60] * 8))

    assert pair.windows.matched == 8
    assert (pair.cut, pair.unsteady) == (None, ())


def test_a_lone_outlier_is_no_warm_up():
    pair = process_pair(*both([40] * 5 + [10] + [40] * 6, [60] * 12))

    assert pair.windows.matched == 12
    assert (pair.cut, pair.unsteady) == (None, ())


def test_an_arm_that_drifts_to_its_end_brings_a_warning_with_the_reason():
    # From 1 to 2 in equal steps: 32 images in 0.5, 0.55, ... s.
    drifting = [32 / (0.5 + 0.05 * k) for k in range(12)]
    row = row_of([40] * 12, drifting)

    assert row.verdict.speedup is not None
    assert row.verdict.speedup.windows == 12
    (warning,) = unsteady_of(row)
    assert warning.startswith("torch-amp did not become steady: Drift: ")
    assert not warning.endswith(".")


def test_a_machine_that_drifts_under_both_arms_alike_brings_no_warning():
    # As above in both arms, AMP always 1.5 times as fast: the ratio of each pair is 1.5.
    drifting = [32 / (0.5 + 0.05 * k) for k in range(12)]
    row = row_of(drifting, [1.5 * rate for rate in drifting])

    assert row.verdict.speedup is not None
    assert row.verdict.speedup.ratio == pytest.approx(1.5)
    assert row.verdict.speedup.windows == 12
    assert unsteady_of(row) == []


def test_a_change_of_level_too_late_to_be_the_steady_part_brings_a_warning():
    row = row_of([40] * 12, [60] * 9 + [40] * 3)

    (warning,) = unsteady_of(row)
    # 60 to 40 images/s is 50 % longer, from the tenth window on.
    assert warning.startswith("torch-amp did not become steady: Step change: the times change by")
    assert "+50.0 % at index 9 of 12" in warning


def test_a_change_of_level_in_the_first_half_is_warm_up():
    pair = process_pair(*both([40] * 12, [40] * 4 + [60] * 8))

    assert pair.windows.candidate_images_per_s == pytest.approx([60] * 8)


def test_a_series_too_short_to_show_a_level_is_used_as_it_is():
    row = row_of([40] * 5, [20, 30, 60, 60, 60])

    assert row.verdict.speedup is not None
    assert row.verdict.speedup.windows == 5
    assert row.notes == ()
    assert unsteady_of(row) == []


def test_windows_without_a_partner_do_not_decide_where_the_steady_state_begins():
    # Of AMP's own 12 windows the first 3 could be left out; of the 6 matched ones, none.
    pair = process_pair(*both([40] * 6, [20] * 3 + [60] * 9))

    assert pair.windows.matched == 6
    assert pair.cut is None
    assert [text.split(":")[0] for text in pair.unsteady] == ["torch-amp did not become steady"]
