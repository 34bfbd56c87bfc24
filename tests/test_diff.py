"""What ``python -m harness diff`` says of two studies, and what it calls a regression."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from report_records import (
    accuracy_part,
    environment_part,
    ok_record,
    study_of,
    unavailable_record,
    write_study,
)
from scipy.stats import norm

from harness.change import SESSION_SD, change_of_rate, change_of_speedup
from harness.cli import main
from harness.record_files import write_json
from harness.records import Record, Study
from harness.speedup import PairWindows, estimate_speedup


def arms(fp32: float, amp: float, processes: int = 4, **changes: Any) -> list[Record]:
    """Even windows of both arms, in this many pairs of processes."""
    labels = ["", *(f"repeat{i}" for i in range(1, processes))]
    return [
        ok_record(precision=precision, rates=[rate] * 6, label=label, **changes)
        for label in labels
        for precision, rate in (("fp32", fp32), ("amp", amp))
    ]


def study(folder: Path, records: Sequence[Record], **changes: Any) -> Path:
    return write_study(folder, study_of(*(r.arm for r in records), **changes), *records)


def diffed(
    tmp_path: Path,
    before: Sequence[Record],
    after: Sequence[Record],
    *options: str,
    **changes: Any,
) -> Result:
    a = study(tmp_path / "a", before)
    b = study(tmp_path / "b", after, **changes)
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["diff", str(a), str(b), *options])


# The interval.


def test_the_interval_of_a_change_holds_what_sessions_may_differ_by():
    rates = [[40.0, 41.0, 39.0, 40.5]] * 3
    faster = [[2 * rate for rate in process] for process in rates]
    change = change_of_rate(rates, faster)
    pairs = [
        PairWindows(baseline_images_per_s=tuple(a), candidate_images_per_s=tuple(b))
        for a, b in zip(rates, faster, strict=True)
    ]
    alone = estimate_speedup(pairs)

    assert change is not None
    assert change.ratio == pytest.approx(2)
    session = norm.ppf(0.975) * SESSION_SD
    half = math.hypot(math.log(alone.shown.high / 2), session)
    assert math.log(change.shown.high / 2) == pytest.approx(half, rel=1e-4)
    assert change.decisive.low < change.shown.low < 2 < change.shown.high < change.decisive.high


def test_more_processes_never_bring_the_interval_below_the_spread_of_sessions():
    many = change_of_rate([[40.0] * 6] * 60, [[40.0] * 6] * 60)

    assert many is not None
    assert math.log(many.shown.high) >= norm.ppf(0.975) * SESSION_SD
    assert many.outcome(0.02) == "not settled"
    assert many.outcome(0.05) == "unchanged"


def test_too_few_windows_or_one_without_images_give_no_change():
    assert change_of_rate([[40.0, 40.0]], [[40.0] * 3]) is None
    assert change_of_rate([[40.0, 0.0, 40.0]], [[40.0] * 3]) is None


def test_the_change_of_a_speedup_adds_both_intervals_in_quadrature():
    pair = PairWindows(
        baseline_images_per_s=(40.0, 41.0, 39.0, 40.0), candidate_images_per_s=(60.0,) * 4
    )
    speedup = estimate_speedup([pair] * 3)
    change = change_of_speedup(speedup, speedup)
    shown = speedup.shown
    up = math.log(shown.high / speedup.ratio)
    down = math.log(speedup.ratio / shown.low)

    assert change.ratio == pytest.approx(1)
    assert math.log(change.shown.high) == pytest.approx(math.hypot(up, down))
    assert math.log(change.shown.low) == pytest.approx(-math.hypot(up, down))


# The command.


def test_two_equal_studies_show_no_regression(tmp_path: Path):
    result = diffed(tmp_path, arms(40, 60), arms(40, 60))

    assert result.exit_code == 0
    assert "no regression beyond ±2 % was shown" in result.output
    assert "differs" not in result.output


def test_an_arm_that_became_much_slower_is_a_regression(tmp_path: Path):
    result = diffed(tmp_path, arms(40, 60), arms(40, 45))

    assert result.exit_code == 1
    assert "regression: torch-amp: images/s ×0.750, 99.5 % interval [0." in result.output
    # 45 / 40 over 60 / 40 is 0.75 as well.
    assert "regression: torch-amp: AMP's speedup over fp32 ×0.750, 99.5 %" in result.output
    assert "torch-fp32: images/s" not in result.output


def test_windows_before_a_process_is_steady_do_not_count(tmp_path: Path):
    slow_start = [
        ok_record(rates=[60, 70, *[100] * 6], label=label) for label in ("", "repeat1", "repeat2")
    ]
    level = [ok_record(rates=[100] * 8, label=label) for label in ("", "repeat1", "repeat2")]
    result = diffed(tmp_path, slow_start, level, "--json")
    (arm,) = json.loads(result.output)["arms"]

    assert arm["images_per_s"] == {"before": pytest.approx(100), "after": pytest.approx(100)}
    assert arm["change"]["ratio"] == pytest.approx(1)
    # Three equal processes without noise: what two levels of 8 windows each would give.
    even = change_of_rate([[100.0] * 6] * 3, [[100.0] * 6] * 3)
    assert even is not None
    assert arm["change"]["decisive"]["low"] == pytest.approx(even.decisive.low, rel=1e-6)


def test_an_arm_that_became_faster_is_none(tmp_path: Path):
    result = diffed(tmp_path, arms(40, 60), arms(40, 90), "--json")
    of_amp = {arm["arm"]: arm for arm in json.loads(result.output)["arms"]}["torch-amp"]

    assert result.exit_code == 0
    assert of_amp["outcome"] == "faster"
    assert of_amp["change"]["ratio"] == pytest.approx(1.5)
    assert of_amp["images_per_s"] == {"before": 60.0, "after": 90.0}


def test_a_change_within_what_one_process_may_differ_by_is_not_settled(tmp_path: Path):
    result = diffed(tmp_path, arms(40, 60, 1), arms(38, 57, 1), "--json")

    assert result.exit_code == 0
    assert {arm["outcome"] for arm in json.loads(result.output)["arms"]} == {"not settled"}


def test_on_another_machine_nothing_is_called_a_regression(tmp_path: Path):
    elsewhere = environment_part(cpu="Other CPU")
    result = diffed(
        tmp_path,
        arms(40, 60),
        arms(20, 30, environment=elsewhere),
        environment=elsewhere,
    )
    assert result.exit_code == 0
    assert "differs in CPU: Example CPU | Other CPU (confounds)" in result.output
    assert "confounded by CPU: Example CPU | Other CPU" in result.output
    assert "would be a regression: images/s ×0.500" in result.output


def test_other_settings_confound_and_other_versions_do_not(tmp_path: Path):
    slower_version = arms(20, 30, framework_version="1.2.4")
    result = diffed(tmp_path / "versions", arms(40, 60), slower_version)
    assert result.exit_code == 1
    assert "differs in framework version: 1.2.3 | 1.2.4 (under test)" in result.output

    result = diffed(tmp_path / "settings", arms(40, 60), arms(20, 30, training={"threads": 1}))
    assert result.exit_code == 0
    assert "confounded by threads: 2 | 1" in result.output


def test_an_arm_that_was_ok_and_is_not_is_a_regression(tmp_path: Path):
    fp32, amp = arms(40, 60, 1)
    lost = unavailable_record("torch", "no kernels")
    result = diffed(tmp_path, [fp32, amp], [fp32, lost])

    assert result.exit_code == 1
    assert "regression: torch-amp: was ok, and now: AMP unavailable: no kernels" in result.output


def test_an_arm_that_is_not_ok_on_another_machine_is_no_regression(tmp_path: Path):
    amp = ok_record(precision="amp")
    lost = unavailable_record("torch", "no kernels")
    elsewhere = environment_part(cpus_usable=8)
    result = diffed(tmp_path, [amp], [lost], environment=elsewhere)

    assert result.exit_code == 0
    assert "confounded by cpus usable: 2 | 8" in result.output


def test_amp_that_computes_in_float32_is_a_regression(tmp_path: Path):
    fp32, amp = arms(40, 60, 1)
    other = amp.precision.model_copy(update={"effective": "float32"})
    result = diffed(tmp_path, [fp32, amp], [fp32, amp.model_copy(update={"precision": other})])

    assert result.exit_code == 1
    assert "torch-amp: computes in float32 and no longer in float16" in result.output


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, 1), ({"framework_version": "1.2.4"}, 0), ({"harness_version": "0.2.0"}, 0)],
)
def test_other_losses_are_a_regression_where_nothing_else_changed(
    changes: dict[str, Any], code: int, tmp_path: Path
):
    before = ok_record(losses=[2.0, 1.5, 1.25, 1.0, 1.0, 1.0, 1.0, 1.0])
    after = ok_record(losses=[2.0, 1.5, 1.25, 1.125, 1.0, 1.0, 1.0, 1.0], **changes)
    result = diffed(tmp_path, [before], [after])

    assert result.exit_code == code
    assert ("the losses differ from step 4 on" in result.output) == (code == 1)


def test_figures_of_the_final_weights_stand_side_by_side(tmp_path: Path):
    before = ok_record(accuracy=accuracy_part(1.5, 0.5))
    after = ok_record(accuracy=accuracy_part(1.25, 0.625))
    result = diffed(tmp_path, [before], [after], "--json")
    (arm,) = json.loads(result.output)["arms"]

    assert arm["val_loss"] == {"before": 1.5, "after": 1.25}
    assert arm["val_top1"] == {"before": 0.5, "after": 0.625}
    assert arm["peak_bytes"] == {"before": 300 * 2**20, "after": 300 * 2**20}


def test_two_single_runs_can_be_compared(tmp_path: Path):
    for name, rate in (("a", 40.0), ("b", 20.0)):
        write_json(tmp_path / name / "record.json", ok_record(rates=[rate] * 6))
    result = CliRunner().invoke(main, ["diff", str(tmp_path / "a"), str(tmp_path / "b")])

    assert result.exit_code == 1
    assert "images/s ×0.500" in result.output.replace("\n", " ")


def test_arms_of_one_study_alone_are_named(tmp_path: Path):
    fp32, amp = arms(40, 60, 1)
    result = diffed(tmp_path, [fp32, amp], [fp32])

    assert result.exit_code == 0
    assert "only in the first: torch-amp" in result.output


def test_what_cannot_be_read_or_compared_is_bad_input(tmp_path: Path):
    a = study(tmp_path / "a", [ok_record()])
    other = study(tmp_path / "b", [ok_record("tensorflow")])
    for second, said in ((tmp_path / "none", "no study.json"), (other, "no arm in common")):
        result = CliRunner().invoke(main, ["diff", str(a), str(second)])
        assert result.exit_code == 2
        assert said in result.output


def test_a_study_of_nothing_but_a_plan_is_compared_by_its_plan(tmp_path: Path):
    a = study(tmp_path / "a", [ok_record()])
    plan: Study = study_of("torch-fp32", finished=False)
    b = write_study(tmp_path / "b", plan)
    result = CliRunner().invoke(main, ["diff", str(a), str(b)])

    assert result.exit_code == 0
    assert "fp32 not run yet" in result.output
