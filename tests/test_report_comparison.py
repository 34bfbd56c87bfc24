"""The rows of the comparison, worked out on paper, and how the terminal shows them."""

import io
from typing import Any

import pytest
from report_records import accuracy_part, environment_part, ok_record, study_of, unavailable_record
from rich.console import Console

from harness.records import DevicePart, MemoryPart, PrecisionPart, Record
from reports import ComparisonRow, comparison_table, render_console
from reports.comparison import PADDLE_AMP_NOTE
from reports.findings import card

PAIR = study_of("torch-fp32", "torch-amp")


def row_of(fp32: Record, amp: Record) -> ComparisonRow:
    """The one row of a study of two arms."""
    (row,) = comparison_table(study_of(fp32.arm, amp.arm), [fp32, amp])
    return row


def ratio_of(row: ComparisonRow) -> float | None:
    """The speedup of a row, where it has one."""
    return row.verdict.speedup.ratio if row.verdict.speedup else None


def shown(rows: list[ComparisonRow], width: int = 80) -> str:
    """What a terminal of `width` columns gets, without colours."""
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(render_console(rows))
    return text.getvalue()


def test_a_row_holds_both_arms_and_the_verdict():
    row = row_of(ok_record(rates=[39, 40, 44]), ok_record(precision="amp", rates=[58.5, 60, 66]))

    assert row.backend == "torch"
    assert row.fp32.images_per_s == pytest.approx(40)
    assert row.amp.images_per_s == pytest.approx(60)
    assert row.verdict.outcome == "pays"
    assert ratio_of(row) == pytest.approx(1.5)
    assert (row.fp32.val_top1, row.fp32.val_top2) == (0.55, 0.8)
    assert (row.fp32.loss_scale, row.amp.loss_scale) == (None, 65536)
    assert (row.gaps, row.notes) == ((), ())


def test_losses_are_those_of_the_last_step_that_both_arms_took():
    row = row_of(
        ok_record(losses=[2.0, 1.5, 1.0, 0.5]), ok_record(precision="amp", losses=[2.0, 1.6, 1.2])
    )

    assert row.loss_step == 3
    assert (row.fp32.loss, row.amp.loss) == (1.0, 1.2)
    assert (row.fp32.steps, row.amp.steps) == (4, 3)
    assert any("fp32 took 4 steps and AMP 3" in note for note in row.notes)


def test_losses_of_a_record_order_with_amp_first_are_told_the_right_way_round():
    amp, fp32 = ok_record(precision="amp", losses=[2.0, 1.6]), ok_record(losses=[2.0])
    (row,) = comparison_table(study_of("torch-amp", "torch-fp32"), [amp, fp32])

    assert any("fp32 took 1 steps and AMP 2" in note for note in row.notes)


def test_arms_of_unequal_length_still_give_a_speedup():
    row = row_of(ok_record(rates=[40] * 5), ok_record(precision="amp", rates=[20] * 3))

    assert ratio_of(row) == pytest.approx(0.5)


def test_an_unavailable_arm_gives_its_reason_and_no_ratio():
    row = row_of(ok_record("paddle"), unavailable_record("paddle", "no kernels here"))

    assert (row.amp.status, row.amp.reason) == ("unavailable", "no kernels here")
    assert (row.amp.images_per_s, row.amp.skipped_steps, row.amp.peak_bytes) == (None, None, None)
    assert row.verdict.outcome == "unavailable"
    assert row.verdict.reason == "AMP unavailable: no kernels here."
    assert row.gaps == ("AMP unavailable: no kernels here",)


def test_a_diverged_arm_is_not_compared_although_it_has_windows():
    row = row_of(
        ok_record(), ok_record(precision="amp", status="diverged", reason="loss NaN at step 5")
    )

    assert ratio_of(row) is None
    assert row.gaps == ("AMP diverged: loss NaN at step 5",)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training": {"layout": "nhwc"}}, "layout: nchw | nhwc"),
        ({"training": {"threads": 1}}, "threads: 2 | 1"),
        ({"training": {"optimizer_implementation": "fused"}}, "foreach | fused"),
        ({"data": {"batch_sha256": "cc" * 32}}, "first batches"),
        ({"data": {"order_sha256": "cc" * 32}}, "order of images"),
        ({"training": {"seed": 3}}, "seed: 0 | 3"),
        (
            {"environment": environment_part(packages={"numpy": "1.0"})},
            "package numpy: 2.4.6 | 1.0",
        ),
        ({"framework_version": "9.9"}, "framework version: 1.2.3 | 9.9"),
        ({"device": DevicePart(type="cpu", name="Other")}, "device name: Example CPU | Other"),
    ],
)
def test_arms_that_differ_in_more_than_precision_give_no_ratio(changes: dict[str, Any], named: str):
    row = row_of(ok_record(), ok_record(precision="amp", **changes))

    assert ratio_of(row) is None
    assert row.verdict.outcome == "confounded"
    assert named in row.verdict.reason
    assert [difference.role for difference in row.differences].count("confounds") == 1


def test_an_amp_arm_that_ran_in_float32_gives_no_ratio():
    pretended = PrecisionPart(requested="amp", dtype="float16", effective="float32", tf32=False)

    row = row_of(ok_record(), ok_record(precision="amp", precision_in_force=pretended))

    assert row.verdict.reason == "AMP asked for float16, and float32 is what ran."


def test_an_amp_arm_that_nothing_shows_to_have_run_gives_no_ratio():
    unknown = PrecisionPart(requested="amp", dtype="float16", effective=None, tf32=False)

    row = row_of(ok_record(), ok_record(precision="amp", precision_in_force=unknown))

    assert row.verdict.reason == "Nothing shows that AMP ran in float16."


def test_a_float32_arm_that_ran_in_float16_gives_no_ratio():
    pretended = PrecisionPart(requested="fp32", dtype="float32", effective="float16", tf32=False)

    row = row_of(ok_record(precision_in_force=pretended), ok_record(precision="amp"))

    assert row.verdict.reason == "fp32 asked for float32, and float16 is what ran."


def test_the_loss_scale_policy_is_a_part_of_amp():
    row = row_of(ok_record(), ok_record(precision="amp"))

    assert [(d.setting, d.role) for d in row.differences] == [
        ("precision", "under test"),
        ("dtype asked", "under test"),
        ("dtype that ran", "under test"),
        ("loss scale policy", "under test"),
    ]


def test_further_seeds_count_in_images_per_second_and_never_overwrite_the_row():
    records = [
        ok_record(rates=[40, 40, 40]),
        ok_record(precision="amp", rates=[60, 60, 60]),
        ok_record(rates=[42, 42, 42], seed=1),
        ok_record(precision="amp", rates=[70, 70, 70], seed=1),
    ]
    for study in (study_of(*(record.arm for record in records)), None):
        for order in (records, records[::-1]):
            (row,) = comparison_table(study, order)

            assert (row.fp32.arm, row.amp.arm) == ("torch-fp32", "torch-amp")
            # Medians of three windows of each seed.
            assert row.fp32.images_per_s == pytest.approx(41)
            assert row.amp.images_per_s == pytest.approx(65)


def test_peak_memory_is_the_allocators_where_known_and_says_so():
    on_device = MemoryPart(
        host_peak_bytes=900,
        device_allocated_peak_bytes=700,
        device_reserved_peak_bytes=None,
        device_used_delta_bytes=None,
    )

    row = row_of(ok_record(memory=on_device), ok_record(precision="amp"))

    assert (row.fp32.peak_bytes, row.fp32.peak_source) == (700, "device allocated")
    assert (row.amp.peak_bytes, row.amp.peak_source) == (300 * 2**20, "host")


def test_skipped_steps_are_counted():
    row = row_of(ok_record(), ok_record(precision="amp", skipped_at=[1, 2]))

    assert (row.fp32.skipped_steps, row.amp.skipped_steps) == (0, 2)


def test_a_card_tells_how_far_apart_chance_alone_puts_the_accuracies():
    data = {"val_images": 60}
    (fact, *_) = card(
        row_of(
            ok_record(data=data, accuracy=accuracy_part(1.0, 0.55)),
            ok_record(precision="amp", data=data, accuracy=accuracy_part(1.0, 0.65)),
        )
    ).facts

    # 1.96 · sqrt((0.55 · 0.45 + 0.65 · 0.35) / 60) = 17.4 points.
    assert fact == (
        "Validation top-1: 55.0 % fp32, 65.0 % AMP; of 60 images, up to 17 points apart by chance"
    )


def test_the_terminal_shows_what_the_runner_warned_of():
    row = row_of(ok_record(), ok_record(precision="amp", warnings=["2 of 8 steps were skipped"]))

    assert row.warnings == ("AMP: 2 of 8 steps were skipped",)
    assert "torch: AMP: 2 of 8 steps were skipped" in shown([row])


def test_a_planned_arm_without_a_record_has_not_run_yet():
    (row,) = comparison_table(PAIR, [ok_record()])

    assert (row.fp32.status, row.amp.status) == ("ok", "not run yet")


def test_an_unreadable_record_is_a_status_with_its_reason():
    (row,) = comparison_table(PAIR, [ok_record()], unreadable={"torch-amp": "cut off"})

    assert (row.amp.status, row.amp.reason) == ("unreadable", "cut off")


def test_an_arm_that_nobody_planned_is_left_out():
    (row,) = comparison_table(None, [ok_record()])

    assert [arm.precision for arm in row.arms] == ["fp32"]
    assert "AMP" not in shown([row])


def test_backends_keep_the_order_of_the_plan():
    study = study_of("paddle-fp32", "fake-fp32", "torch-fp32")

    rows = comparison_table(study, [ok_record("torch"), ok_record("paddle")])

    assert [row.backend for row in rows] == ["paddle", "fake", "torch"]


def test_paddle_amp_is_said_to_be_unproved_until_it_ran_on_a_gpu():
    gpu = DevicePart(type="cuda", name="Example GPU")
    fp32 = ok_record("paddle", device=gpu)

    unavailable = row_of(fp32, unavailable_record("paddle"))
    on_cpu = row_of(ok_record("paddle"), ok_record("paddle", "amp"))
    on_gpu = row_of(fp32, ok_record("paddle", "amp", device=gpu))

    assert PADDLE_AMP_NOTE in unavailable.notes
    assert PADDLE_AMP_NOTE in on_cpu.notes
    assert PADDLE_AMP_NOTE not in on_gpu.notes


def test_the_terminal_shows_each_figure_on_80_columns():
    row = row_of(ok_record(rates=[39, 40, 44]), ok_record(precision="amp", rates=[58.5, 60, 66]))
    text = shown([row])

    for figure in ("40.0", "60.0", "×1.50", "55.0/80.0", "65,536", "ok"):
        assert figure in text
    assert "host" in text
    assert "process" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_terminal_says_the_verdict_its_reason_and_what_it_assumes():
    row = row_of(ok_record(rates=[40] * 3), ok_record(precision="amp", rates=[60] * 3))
    text = " ".join(shown([row]).split())

    assert "torch: pays. AMP ran at 1.500 times the images/s of fp32 (95 % interval [" in text
    assert (
        "Fewer than 6 process pairs hardly show how processes differ; the interval assumes" in text
    )
    assert "torch: only 3 windows an arm in a process pair" in text


def test_the_terminal_says_what_would_settle_a_comparison_that_is_too_noisy():
    """One pair with a ratio of 1.1: its deciding interval is about ±20 % wide."""
    row = row_of(ok_record(rates=[40] * 6), ok_record(precision="amp", rates=[44] * 6))
    text = " ".join(shown([row]).split())

    assert row.verdict.further_pairs is not None
    assert "torch: too noisy. AMP ran at 1.100 times" in text
    assert f"about {row.verdict.further_pairs} more process pair" in text
    assert "would settle it" in text


def test_the_terminal_gives_the_reason_of_a_missing_arm_once():
    row = row_of(ok_record("paddle"), unavailable_record("paddle", "no kernels"))

    assert shown([row]).count("no kernels") == 1


def test_no_figure_is_cut_where_a_cell_is_unavailable():
    row = row_of(ok_record("tensorflow"), unavailable_record("tensorflow"))

    assert "unavailable" in shown([row])
    assert "…" not in shown([row])


def test_foreign_text_on_the_terminal_is_neither_markup_nor_a_command():
    hostile = "[red]x[/red] \x1b[2J\x07 \u202eback"
    text = shown([row_of(ok_record("paddle"), unavailable_record("paddle", hostile))])

    assert r"[red]x[/red] \x1b[2J\x07 \u202eback" in text.replace("\n", " ")
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
