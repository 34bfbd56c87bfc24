"""results.csv, read back by other readers than the one that wrote it."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import ok_record, study_of, unavailable_record, write_study

from harness.records import Record
from reports import write_report
from reports.cells import Results, study_cells
from reports.results_csv import results_csv


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The rows of a study's results.csv as the standard library reads them."""
    with write_report(folder).csv.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_arm_is_a_row_and_what_nobody_measured_is_empty(tmp_path: Path):
    study = study_of("torch-fp32", "torch-amp", "paddle-amp", "fake-fp32")
    records = [
        ok_record(rates=[39, 40, 44]),
        ok_record(precision="amp", rates=[60, 60, 60]),
        unavailable_record("paddle", "no kernels"),
    ]
    fp32, amp, paddle, fake = rows_of(write_study(tmp_path, study, *records))

    assert [row["arm"] for row in (fp32, amp, paddle, fake)] == [
        "torch-fp32",
        "torch-amp",
        "paddle-amp",
        "fake-fp32",
    ]
    # (39 + 40 + 44) / 3 is the record's own figure; 40 is the median of its windows.
    assert float(fp32["images_per_s"]) == pytest.approx(41)
    assert float(fp32["window_median_images_per_s"]) == pytest.approx(40)
    # Ratios 60/39, 60/40 and 60/44, too few to trim: their geometric mean.
    assert float(amp["speedup"]) == pytest.approx(60 / (39 * 40 * 44) ** (1 / 3), rel=1e-6)
    assert float(amp["speedup_low"]) < float(amp["speedup"]) < float(amp["speedup_high"])
    assert (amp["verdict"], amp["speedup_pairs"], amp["speedup_windows"]) == ("too noisy", "1", "3")
    assert amp["speedup_measured_in_turn"] == "True"
    assert (fp32["verdict"], fp32["speedup"]) == ("", "")
    assert fp32["parameters"] == "11179077"
    assert fp32["host_peak_bytes"] == str(300 * 2**20)
    assert (fp32["loss_scale_final"], amp["loss_scale_final"]) == ("", "65536.0")
    assert json.loads(fp32["val_top1_fraction_by_class_json"])["ramen"] == 0.55
    assert (paddle["status"], paddle["reason"]) == ("unavailable", "no kernels")
    assert (paddle["verdict"], paddle["speedup"], paddle["speedup_pairs"]) == (
        "unavailable",
        "",
        "",
    )
    assert (paddle["images_per_s"], paddle["skipped_steps"]) == ("", "")
    assert (fake["status"], fake["timed_windows"]) == ("not run yet", "")


def test_every_setting_and_every_rung_has_its_verdict_and_speedup(tmp_path: Path):
    fp32, amp, at_32, rung = "torch-fp32", "torch-amp", "torch-amp-b32", "torch-amp-rung2"
    records = [
        ok_record(rates=[40] * 6),
        ok_record(precision="amp", rates=[60] * 6),
        ok_record(rates=[40] * 6, variant="b32"),
        ok_record(precision="amp", rates=[20] * 6, variant="b32"),
        ok_record(rates=[50] * 6, variant="rung0"),
        ok_record(precision="amp", rates=[100] * 6, variant="rung2"),
    ]
    study = study_of(*(record.arm for record in records))
    rows = {row["arm"]: row for row in rows_of(write_study(tmp_path, study, *records))}

    # 60 / 40, 20 / 40, and 100 / 50 over strict fp32.
    assert float(rows[amp]["speedup"]) == pytest.approx(1.5)
    assert float(rows[at_32]["speedup"]) == pytest.approx(0.5)
    assert float(rows[rung]["speedup"]) == pytest.approx(2)
    assert [rows[arm]["verdict"] for arm in (amp, at_32, rung)] == ["pays", "slower", "pays"]
    assert [rows[arm]["speedup_over"] for arm in (amp, at_32, rung)] == [
        "torch-fp32",
        "torch-fp32-b32",
        "torch-fp32-rung0",
    ]
    assert [rows[arm]["speedup"] for arm in (fp32, "torch-fp32-b32", "torch-fp32-rung0")] == [
        ""
    ] * 3


def test_a_loss_that_is_not_a_number_is_not_mistaken_for_one_that_is_missing(tmp_path: Path):
    record = ok_record(losses=[2.0, float("nan")])
    (row,) = rows_of(write_study(tmp_path, study_of("torch-fp32"), record))

    assert row["final_loss"] == "NaN"


@pytest.mark.parametrize("start", [*"=+-@＝", " =", "\t=", "\r=", "\n="])
def test_text_that_a_spreadsheet_would_run_is_prefixed(start: str):
    (row,) = parsed(unavailable_record("paddle", f"{start}cmd|' /C calc'!A0"))

    assert row["reason"].startswith("'")


@given(reason=st.text(alphabet=st.characters(categories=["L", "N", "P", "S"]), min_size=1))
def test_any_reason_comes_back_as_it_was_but_for_the_prefix(reason: str):
    (row,) = parsed(unavailable_record("paddle", reason))

    assert row["reason"].removeprefix("'") == reason.removeprefix("'")


def test_a_reason_of_several_lines_stays_in_its_row():
    (row,) = parsed(unavailable_record("paddle", "one\rtwo\nthree"))

    assert row["reason"] == "one two three"


def parsed(record: Record) -> list[dict[str, str]]:
    """Write and read back one record."""
    results = Results(study=None, cells=study_cells(None, [record]))
    text = results_csv(results)
    return list(csv.DictReader(io.StringIO(text, newline="")))
