"""Time until the same quality, worked out on paper.

The made records have a warm-up window of 4 s (32 images at 8 images/s) and then windows of two
steps: at 32 images/s one second each, at 16 two.
"""

import math
from pathlib import Path
from typing import Any

import pytest
from report_records import data_part, ok_record, study_of, write_study

from harness.records import EnergyPart, EpochPart, Record
from reports import write_report
from reports.quality import MEASURES, common_target, quality_pairs, reached, seeds_interval

TOP1, LOSS = MEASURES


def trained(
    precision: str,
    rate: float,
    top1: list[float],
    loss: list[float] | None = None,
    backend: str = "torch",
    **changes: Any,
) -> Record:
    """An arm with one epoch a window of two steps; the first ends with the first timed window."""
    losses = loss or [1 - value for value in top1]
    epochs = [
        EpochPart(
            epoch=i + 1, steps=4 + 2 * i, train_loss=1.0, val_loss=b, val_top1=a, val_top2=1.0
        )
        for i, (a, b) in enumerate(zip(top1, losses, strict=True))
    ]
    return ok_record(backend, precision, rates=[rate] * len(top1), epochs=epochs, **changes)


def test_the_target_is_the_worse_of_the_best():
    arms = [trained("fp32", 32, [0.4, 0.6, 0.5]), trained("amp", 32, [0.3, 0.5, 0.55])]

    assert common_target(arms, TOP1) == 0.55
    assert common_target(arms, LOSS) == pytest.approx(0.45)


def test_the_time_counts_the_warm_up_and_every_window_until_the_target():
    # Warm-up 4 s, then two windows of one second.
    found = reached(trained("fp32", 32, [0.4, 0.6, 0.7]), TOP1, 0.55)

    assert found.epoch == 2
    assert found.time_s == pytest.approx(6)
    assert found.earliest_s == pytest.approx(5)
    assert found.joules is None


def test_energy_is_the_time_at_the_mean_power_of_the_timed_windows():
    # 30 J in three timed seconds are 10 W; six seconds of training then took 60 J.
    energy = EnergyPart(joules=30.0, source="counter")
    record = trained("fp32", 32, [0.4, 0.6, 0.7], energy=energy)

    assert reached(record, TOP1, 0.55).joules == pytest.approx(60)


def test_fp32_and_amp_are_compared_with_what_one_epoch_leaves_open():
    # fp32 reaches 0.55 at its second epoch: 4 + 2·2 = 8 s, not before 6 s.
    # AMP reaches it at its third: 4 + 3·1 = 7 s, not before 6 s.
    pairs, left_out = quality_pairs(
        [trained("fp32", 16, [0.4, 0.6, 0.5]), trained("amp", 32, [0.3, 0.5, 0.55])]
    )
    of_top1 = next(pair for pair in pairs if pair.measure is TOP1)

    assert left_out == {}
    assert of_top1.ratio == pytest.approx(8 / 7)
    assert of_top1.range == pytest.approx((6 / 7, 8 / 6))


def test_a_target_reached_at_the_first_look_may_have_been_reached_at_once():
    pairs, _ = quality_pairs([trained("fp32", 16, [0.5, 0.5]), trained("amp", 32, [0.5, 0.5])])

    # fp32 4 + 2 = 6 s, AMP 4 + 1 = 5 s.
    assert pairs[0].ratio == pytest.approx(6 / 5)
    assert pairs[0].range == (0.0, math.inf)


def test_one_evaluation_tells_nothing():
    pairs, left_out = quality_pairs([trained("fp32", 16, [0.5]), trained("amp", 32, [0.5])])

    assert pairs == []
    assert left_out == {
        "an arm was validated only once, so its time to any quality is the length of its run": [
            "torch-amp and torch-fp32"
        ]
    }


def test_arms_that_differ_in_more_than_precision_are_not_compared():
    pairs, left_out = quality_pairs(
        [
            trained("fp32", 16, [0.5, 0.6]),
            trained("amp", 32, [0.5, 0.6], training={"layout": "nhwc"}),
        ]
    )
    assert pairs == []
    assert left_out == {"they differ in more than precision (layout)": ["torch-amp and torch-fp32"]}


def test_seeds_are_paired_and_their_ratios_averaged_in_logarithms():
    # At both epochs 0.5 and 0.6: (4 + 2·2) / (4 + 2·1) = 4/3 and, the other way round, 3/4.
    records = [
        record
        for seed, fp32, amp in ((0, 16, 32), (1, 32, 16))
        for record in (
            trained("fp32", fp32, [0.5, 0.6], seed=seed),
            trained("amp", amp, [0.5, 0.6], seed=seed),
        )
    ]
    pairs, _ = quality_pairs(records)
    found = seeds_interval([pair for pair in pairs if pair.measure is TOP1])

    assert found is not None
    mean, low, high = found
    assert mean == pytest.approx(1)
    # Two logs ±ln(4/3): standard error ln(4/3), and t of one degree of freedom is 12.706.
    assert math.log(high) == pytest.approx(12.706 * math.log(4 / 3), rel=1e-4)
    assert math.log(low) == pytest.approx(-math.log(high))


def test_the_page_compares_the_frameworks_at_a_target_that_all_reach(tmp_path: Path):
    records = [
        trained("fp32", 16, [0.4, 0.6, 0.7]),
        trained("amp", 32, [0.4, 0.6, 0.7]),
        trained("fp32", 16, [0.2, 0.3, 0.5], backend="tensorflow"),
    ]
    study = study_of("torch-fp32", "torch-amp", "tensorflow-fp32")
    text = write_report(write_study(tmp_path, study, *records)).markdown.read_text("utf-8")

    assert "## Time to quality" in text
    # 0.5 is reached at the second epoch by torch and at the third by TensorFlow.
    assert "Epoch, validation top-1 50.0 %" in text
    assert "| torch-fp32 | 2 | 8.00 s | – | 2 | 8.00 s | – |" in text
    assert "| torch-amp | 2 | 6.00 s | – | 2 | 6.00 s | – |" in text
    assert "| tensorflow-fp32 | 3 | 10.0 s | – | 3 | 10.0 s | – |" in text


def test_arms_given_different_data_are_not_compared_across_frameworks(tmp_path: Path):
    other = data_part(batch_sha256="cc" * 32)
    records = [
        trained("fp32", 16, [0.4, 0.6]),
        trained("amp", 32, [0.4, 0.6]),
        trained("fp32", 16, [0.2, 0.3], backend="tensorflow").model_copy(update={"data": other}),
    ]
    study = study_of("torch-fp32", "torch-amp", "tensorflow-fp32")
    text = write_report(write_study(tmp_path, study, *records)).markdown.read_text("utf-8")

    assert "| torch | 0 | validation top-1 60.0 % | 2 | 2 | 8.00 s | 6.00 s | ×1.33 |" in text
    assert "that every arm of every framework reaches" not in text
