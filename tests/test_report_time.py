"""The section that tells where the time goes, in the words and figures of the page."""

from pathlib import Path
from typing import Any

from report_records import ok_record, study_of, write_study
from test_report_causes import arm, live, profile

from harness.records import Record
from reports import write_report
from reports.blocks import Paragraph, Table
from reports.cells import Results, study_cells
from reports.comparison import comparison_rows
from reports.time_section import time_section


def tables_of(*records: Record) -> dict[str, list[tuple[str, ...]]]:
    """First words of the caption → rows of the section's tables."""
    results = Results(study=study_of(), cells=study_cells(None, records))
    section = time_section(results, comparison_rows(results.cells))
    assert section is not None
    return {
        block.caption.split(",")[0].split(":")[0]: list(block.rows)
        for block in section.blocks
        if isinstance(block, Table)
    }


def test_records_without_a_diagnosis_have_no_such_section():
    results = Results(study=study_of(), cells=study_cells(None, [ok_record()]))

    assert time_section(results, comparison_rows(results.cells)) is None


def test_an_arm_is_shown_end_to_end_alone_and_beside_its_loader():
    record = arm("fp32", 40, compute=100, wait=0.6, loader=live(42), training={"input": "live"})
    ((name, end, alone, ratio, wait, cached, of_live, bound, workers),) = tables_of(record)[
        "What limits each arm"
    ]
    assert (name, end, alone, wait) == ("torch-fp32", "40.0", "100", "60.0 %")
    assert ratio.startswith("×2.50 [")
    assert (cached, of_live, bound, workers) == ("100,000", "42.0", "input", "5")


def test_amp_is_judged_again_on_resident_batches():
    ((_, trained, _, fed, verdict),) = tables_of(
        arm("fp32", 40, compute=50), arm("amp", 40, compute=100)
    )["AMP's speedup as trained"]

    assert trained.startswith("×1.00 [")
    assert fed.startswith("×2.00 [")
    assert verdict == "pays"


def test_a_profiled_step_is_shown_side_by_side_with_quotients():
    rows = tables_of(
        arm(
            "fp32",
            40,
            profile=profile(
                0.4, busy_s=0.2, phases={"forward": 0.1, "backward": 0.3}, convolution=0.3
            ),
        ),
        arm(
            "amp",
            20,
            profile=profile(0.8, busy_s=0.1, convolution=0.15, cast=0.05),
        ),
    )["torch"]

    assert rows == [
        ("Whole step", "400 ms", "800 ms", "×2.00"),
        ("Phase: forward", "100 ms", "–", "–"),
        ("Phase: backward", "300 ms", "–", "–"),
        ("Operations: convolution", "300 ms", "150 ms", "×0.500"),
        ("Operations: cast", "–", "50.0 ms", "–"),
        ("A kernel ran", "200 ms", "100 ms", "×0.500"),
        ("Kernels or operations", "1,200", "1,200", "×1.00"),
    ]


def test_every_arm_that_was_diagnosed_has_a_row_by_its_first_run():
    # Compute alone AMP runs at 90 / 60 live. Two workers decode 42 images/s.
    live_input = {"training": {"input": "live"}, "variant": "live", "loader": live(42)}
    tables = tables_of(
        arm("fp32", 40, compute=50),
        arm("amp", 40, compute=100),
        arm("fp32", 30, compute=60, wait=0.5, **live_input),
        arm("amp", 30, compute=90, wait=0.6, **live_input),
        arm("fp32", 30, compute=60, wait=0.5, label="repeat1", **live_input),
    )
    limits = {row[0]: (row[4], row[6], row[7], row[8]) for row in tables["What limits each arm"]}
    assert limits == {
        "torch-fp32": ("0.0 %", "–", "compute", "–"),
        "torch-amp": ("0.0 %", "–", "compute", "–"),
        # 60 / 21 = 2.86 and 90 / 21 = 4.29 workers.
        "torch-fp32-live": ("50.0 %", "42.0", "input", "3"),
        "torch-amp-live": ("60.0 %", "42.0", "input", "5"),
    }
    fed = {row[0]: row[3].partition(" ")[0] for row in tables["AMP's speedup as trained"]}
    assert fed == {"torch": "×2.00", "torch-live": "×1.50"}


def test_arms_of_other_settings_alone_have_the_section_too():
    # As in a study of which the main settings were not diagnosed.
    tables = tables_of(
        ok_record(), arm("fp32", 40, compute=50, variant="b8"), ok_record(precision="amp")
    )
    assert [row[0] for row in tables["What limits each arm"]] == ["torch-fp32-b8"]


def test_traces_are_found_where_they_lie():
    traced = profile(0.4, convolution=0.3).model_copy(update={"trace": "torch-fp32.trace.json.gz"})
    record = arm("fp32", 40, profile=traced)
    told = []
    for study in (study_of("torch-fp32"), None):
        section = time_section(Results(study=study, cells=study_cells(study, [record])), [])
        assert section is not None
        told.append(section.blocks[-1])

    assert told == [
        Paragraph(text="Traces, in logs within the study's folder: torch-fp32.trace.json.gz."),
        Paragraph(text="Traces, in the run's folder: torch-fp32.trace.json.gz."),
    ]


def test_a_profiled_step_says_how_many_it_was_taken_from():
    record = arm("fp32", 40, profile=profile(0.4, convolution=0.3))
    section = time_section(Results(study=None, cells=study_cells(None, [record])), [])

    assert section is not None
    texts = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    # The made profiles are of three steps.
    assert any("mean of 3 steps in a row" in t and "no interval can be given" in t for t in texts)


def test_the_page_draws_the_operations_and_says_why(tmp_path: Path):
    ops: dict[str, Any] = {f"kind_{i}": 0.001 for i in range(8)}
    records = [
        arm("fp32", 400, compute=400, profile=profile(0.05, convolution=0.03, **ops)),
        arm("amp", 40, compute=40, profile=profile(0.47, convolution=0.43, **ops)),
    ]
    files = write_report(write_study(tmp_path, study_of("torch-fp32", "torch-amp"), *records))
    html, markdown = files.html.read_text("utf-8"), files.markdown.read_text("utf-8")

    for text in (html, markdown):
        assert "Where the time goes" in text
        assert "float16 convolutions took 14.3 times as long as in float32" in text
    # Eight kinds of one millisecond and the convolutions: six have a colour, three are one.
    assert "all others 3.00 ms" in html
    assert "AMP is slower in torch (float16 convolutions took 14.3 times" in markdown
