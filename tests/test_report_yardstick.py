"""AMP's gap to float32 beside the gaps of frameworks and seeds, worked out on paper."""

import math
from pathlib import Path

import pytest
from report_records import accuracy_part, ok_record, study_of, write_study

from harness.records import Record
from reports import write_report
from reports.yardstick import Gap, student_interval, yardsticks

# Student's t for a two-sided 95 % interval, from the printed tables (Fisher and Yates, Table III).
T_DF1, T_DF2 = 12.706, 4.303

FP32 = [1.0, 1.1, 1.2]
AMP = [1.1, 1.3, 1.5]


def run(backend: str, precision: str, seed: int, val_loss: float, top1: float = 0.5) -> Record:
    """A finished arm of a seed with this validation."""
    return ok_record(backend, precision, seed=seed, accuracy=accuracy_part(val_loss, top1))


def seeds_of(backend: str, precision: str, losses: list[float]) -> list[Record]:
    """One run a seed, with these validation losses."""
    return [run(backend, precision, seed, loss) for seed, loss in enumerate(losses)]


def gap_of(records: list[Record], name: str, quantity: int = 0) -> Gap:
    """The gap of this name in the first quantity, the validation loss."""
    return next(gap for gap in yardsticks(records)[0][quantity].gaps if gap.name == name)


def test_amps_gap_is_paired_by_seed_and_has_students_interval():
    records = seeds_of("torch", "fp32", FP32) + seeds_of("torch", "amp", AMP)[::-1]

    gap = gap_of(records, "torch: AMP − fp32")

    # Differences 0.1, 0.2 and 0.3: mean 0.2, standard deviation 0.1.
    assert sorted(gap.gaps) == pytest.approx([0.1, 0.2, 0.3])
    half = T_DF2 * 0.1 / math.sqrt(3)
    assert (gap.low, gap.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-4)
    assert (gap.centre, gap.seeds, gap.df) == (pytest.approx(0.2), 3, 2)


def test_two_runs_have_one_degree_of_freedom():
    # Differences 1 and 3: mean 2, standard deviation √2, over √2 runs.
    assert student_interval([1, 3]) == pytest.approx((2 - T_DF1, 2 + T_DF1), abs=1e-3)


def test_the_gap_between_seeds_is_the_range_of_the_difference_of_two_runs():
    records = seeds_of("torch", "fp32", FP32) + seeds_of("torch", "amp", AMP)

    gap = gap_of(records, "fp32: seed − seed, torch")

    half = T_DF2 * 0.1 * math.sqrt(2)
    assert (gap.low, gap.high) == pytest.approx((-half, half), abs=1e-4)
    assert sorted(gap.gaps) == pytest.approx([0.1, 0.1, 0.2])


def test_frameworks_are_compared_in_float32_and_paired_by_seed():
    records = [
        *seeds_of("torch", "fp32", FP32),
        *seeds_of("torch", "amp", AMP),
        *seeds_of("tensorflow", "fp32", [1.5, 1.8, 2.1]),
    ]

    gap = gap_of(records, "fp32: tensorflow − torch")

    assert gap.gaps == pytest.approx((0.5, 0.7, 0.9))
    # Runs of different seeds are no pairs, and nothing has to be said of them.
    assert yardsticks(records)[1] == []


def test_accuracy_is_compared_in_percentage_points():
    records = [run("torch", "fp32", 0, 1.0, top1=0.5), run("torch", "amp", 0, 1.0, top1=0.45)]

    gap = gap_of(records, "torch: AMP − fp32", quantity=1)

    assert gap.centre == pytest.approx(-5)


def test_one_seed_gives_a_gap_without_an_interval():
    gap = gap_of([run("torch", "fp32", 0, 1.0), run("torch", "amp", 0, 1.25)], "torch: AMP − fp32")

    assert (gap.centre, gap.low, gap.high, gap.seeds) == (0.25, None, None, 1)


def test_seeds_that_all_give_the_same_gap_pretend_to_no_interval():
    records = seeds_of("torch", "fp32", [1.0, 1.0]) + seeds_of("torch", "amp", [1.5, 1.5])

    gap = gap_of(records, "torch: AMP − fp32")

    assert (gap.centre, gap.low, gap.seeds) == (0.5, None, 2)


def test_a_seed_with_one_finished_arm_has_no_pair():
    records = seeds_of("torch", "fp32", FP32) + seeds_of("torch", "amp", AMP[:2])
    records.append(
        ok_record("torch", "amp", seed=2, status="diverged", accuracy=accuracy_part(9.0, 0.1))
    )

    assert gap_of(records, "torch: AMP − fp32").seeds == 2


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (ok_record(precision="amp", losses=[2.0, 1.0]), "2 and 8 steps"),
        (ok_record(precision="amp", data={"batch_sha256": "cc" * 32}), "first batches"),
        (ok_record(precision="amp", training={"layout": "nhwc"}), "layout"),
    ],
)
def test_arms_that_are_not_alike_give_no_gap_and_say_why(other: Record, reason: str):
    found, left_out = yardsticks([ok_record(), other])

    assert found == []
    assert len(left_out) == 1
    assert reason in left_out[0]


def test_a_loss_that_is_not_a_number_gives_no_gap():
    found, _ = yardsticks([run("torch", "fp32", 0, math.nan), run("torch", "amp", 0, 1.0)])

    assert "Validation loss" not in [item.quantity.name for item in found]


def report_of(folder: Path, records: list[Record]) -> str:
    """The Markdown report of a study of these records."""
    study = study_of(*(record.arm for record in records))
    return write_report(write_study(folder, study, *records)).markdown.read_text("utf-8")


def test_with_one_seed_the_report_says_how_to_learn_more(tmp_path: Path):
    text = report_of(tmp_path, [run("torch", "fp32", 0, 1.0), run("torch", "amp", 0, 1.25)])

    assert "AMP moved the validation loss by +0.250 against fp32." in text
    assert "nothing says whether a gap is larger than noise" in text
    assert "--seeds 3" in text


def test_with_three_seeds_the_report_gives_the_interval_and_its_size(tmp_path: Path):
    records = seeds_of("torch", "fp32", FP32) + seeds_of("torch", "amp", AMP)
    text = report_of(tmp_path, records)

    assert "+0.200 against fp32, 95 % interval \\[−0.0484, +0.448\\] (3 seeds)" in text
    assert "the interval contains 0, so no gap was shown" in text
    assert "95 % differ by 0.608 or less" in text
    assert "nothing says" not in text
    assert "| torch: AMP − fp32 | +0.200 \\[−0.0484, +0.448\\] | 0 in each |" in text
    assert "| torch | seed2 | ×1.00 |" in text


def test_a_clear_gap_is_called_one(tmp_path: Path):
    records = seeds_of("torch", "fp32", FP32) + seeds_of("torch", "amp", [2.0, 2.1, 2.21])
    text = report_of(tmp_path, records)

    # Differences 1, 1 and 1.01.
    assert "it leaves out 0, so a gap was shown" in text
