"""Arms that a study left out: told with the reason, and not as failures."""

from typing import Any

from report_records import ok_record, study_of, unavailable_record

from reports.blocks import Details, Table
from reports.cells import Results, study_cells
from reports.measured import missing_section
from reports.pages import build_page


def left_out_study(**changes: Any) -> Results:
    """Two repetitions that the budget left out, and one of an arm that cannot run."""
    no_time = "it takes 40 s at least, and 12 s of the budget of 600 s were left"
    no_point = "there is no ratio to repeat: paddle-amp is unavailable"
    arms = [f"torch-{p}{r}" for r in ("", "-repeat1", "-repeat2") for p in ("fp32", "amp")]
    arms += [f"paddle-{p}{r}" for r in ("", "-repeat1") for p in ("fp32", "amp")]
    values: dict[str, Any] = {
        "budget_s": 600.0,
        "left_out": {
            **{f"torch-{p}-repeat{n}": no_time for n in (1, 2) for p in ("fp32", "amp")},
            **{f"paddle-{p}-repeat1": no_point for p in ("fp32", "amp")},
        },
    }
    study = study_of(*arms, **values | changes)
    records = [
        ok_record(rates=[40] * 6),
        ok_record(precision="amp", rates=[60] * 6),
        ok_record("paddle", rates=[40] * 6),
        unavailable_record(),
    ]
    return Results(study=study, cells=study_cells(study, records))


def test_an_arm_that_was_left_out_is_neither_waiting_nor_failed():
    section = missing_section(left_out_study())
    assert section is not None
    failed, folded, _ = section.blocks
    assert isinstance(failed, Table)
    assert isinstance(folded, Details)
    assert folded.summary.startswith("6 arms were left out")
    (left_out,) = folded.blocks
    assert isinstance(left_out, Table)

    assert [row[0] for row in failed.rows] == ["paddle-amp"]
    assert left_out.rows == (
        (
            "torch-fp32-repeat1, torch-amp-repeat1, torch-fp32-repeat2 and torch-amp-repeat2",
            "it takes 40 s at least, and 12 s of the budget of 600 s were left",
        ),
        (
            "paddle-fp32-repeat1 and paddle-amp-repeat1",
            "there is no ratio to repeat: paddle-amp is unavailable",
        ),
    )


def test_the_first_page_tells_what_the_budget_left_out():
    page = build_page(left_out_study())

    assert (
        "The budget of 600 s left time for fewer process pairs than were planned (torch 1)."
    ) in page.caveat
    assert (
        "Left out (listed below): 4 arms (it takes 40 s at least, and 12 s of the budget of 600 s "
        "were left); 2 arms (there is no ratio to repeat: paddle-amp is unavailable)."
    ) in page.caveat
    assert not any("not run yet" in text for text in page.warnings)
    assert all("left out" not in note for row in page.rows for note in row.notes)


def test_without_a_budget_nothing_is_put_down_to_it():
    page = build_page(left_out_study(budget_s=None))
    assert "The budget" not in page.caveat
    assert "Left out (listed below): " in page.caveat


def test_a_finished_study_says_nothing_of_arms_left_out():
    records = [ok_record(rates=[40] * 6), ok_record(precision="amp", rates=[60] * 6)]
    study = study_of("torch-fp32", "torch-amp")
    page = build_page(Results(study=study, cells=study_cells(study, records)))
    assert "eft out" not in page.caveat
