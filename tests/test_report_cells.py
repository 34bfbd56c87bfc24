"""Which arms of a study belong together: variants of the settings, repetitions, further seeds."""

from pathlib import Path
from typing import Any

import pytest
from report_records import accuracy_part, data_part, ok_record, study_of, write_study

from harness.config import RunConfig
from harness.records import Record
from reports.blocks import Table
from reports.cells import Results, read_results, study_cells
from reports.comparison import comparison_rows
from reports.fairness import same_data
from reports.judged import judge_cells
from reports.measured import missing_section
from reports.yardstick import yardsticks

PAIR = ("fp32", "amp")


def pair(amp_rate: float = 60, *, seed: int = 0, windows: int = 3, **place: Any) -> list[Record]:
    """fp32 at 40 images/s and AMP at another rate."""
    rates = {"fp32": 40.0, "amp": amp_rate}
    return [
        ok_record(precision=name, rates=[rates[name]] * windows, seed=seed, **place)
        for name in PAIR
    ]


def results_of(*records: Record) -> Results:
    return Results(study=None, cells=study_cells(None, records))


@pytest.mark.parametrize(
    ("variant", "label"),
    [("", ""), ("b32", ""), ("", "repeat2"), ("", "seed1repeat2"), ("rung3", "seed1")],
)
def test_a_planned_arm_has_the_name_that_its_record_will_have(variant: str, label: str):
    run = RunConfig(backend="torch", precision="amp", steps=4, variant=variant, label=label)
    (cell,) = study_cells(study_of().model_copy(update={"arms": [run.model_dump()]}), [])

    assert cell.arm == run.arm
    assert (cell.backend, cell.precision) == ("torch", "amp")
    assert (cell.variant, cell.label) == (variant, label)


@pytest.mark.parametrize(
    ("name", "variant", "label"),
    [
        ("torch-amp", "", ""),
        ("torch-amp-b32", "b32", ""),
        ("torch-amp-repeat1", "", "repeat1"),
        ("torch-amp-seed1repeat1", "", "seed1repeat1"),
        ("torch-amp-b32-seed2", "b32", "seed2"),
    ],
)
def test_an_unreadable_record_is_placed_by_its_name(
    name: str, variant: str, label: str, tmp_path: Path
):
    folder = write_study(tmp_path, study_of())
    (folder / "records").mkdir()
    (folder / "records" / f"{name}.json").write_text("{")
    (cell,) = read_results(folder).cells

    assert cell.status == "unreadable"
    assert (cell.backend, cell.precision) == ("torch", "amp")
    assert (cell.variant, cell.label) == (variant, label)


def test_repetitions_and_further_seeds_are_process_pairs_of_one_speedup():
    (row,) = comparison_rows(
        results_of(
            *pair(60),
            *pair(58, label="repeat1"),
            *pair(62, seed=1, label="seed1"),
            *pair(64, seed=1, label="seed1repeat1"),
        ).cells
    )
    assert row.verdict.speedup is not None
    assert row.verdict.speedup.pair_ratios == pytest.approx((1.5, 1.45, 1.55, 1.6))
    names = [pair.name for pair in row.judged.counted]
    assert names == ["first", "repeat1", "seed1", "seed1repeat1"]


def test_a_shorter_repetition_counts_in_the_speedup_and_in_no_table_of_losses():
    results = results_of(*pair(60, windows=4), *pair(60, label="repeat1"))
    (row,) = comparison_rows(results.cells)

    assert row.verdict.speedup is not None
    assert len(row.verdict.speedup.pair_ratios) == 2
    assert (row.fp32.steps, row.amp.steps) == (10, 10)
    assert [record.label for record in results.seed_records] == ["", ""]


def test_the_gap_between_seeds_is_that_of_seeds_and_not_of_repetitions():
    # The repetition's validation loss of 9 would be a gap of 7 beside one of 0.1.
    records = [
        record.model_copy(update={"accuracy": accuracy_part(loss, 0.5)})
        for record, loss in zip(
            [*pair(), *pair(seed=1), *pair(label="repeat1")],
            [2.0, 2.0, 2.1, 2.1, 9.0, 9.0],
            strict=True,
        )
    ]
    found, _ = yardsticks(results_of(*records).seed_records)
    (seeds,) = [gap for gap in found[0].gaps if gap.kind == "seed"]

    assert seeds.gaps == pytest.approx((0.1,))


def test_each_variant_is_judged_by_itself():
    cells = results_of(
        *pair(60), *pair(80, variant="b32"), *pair(84, variant="b32", label="repeat1")
    )
    of_b32 = [cell for cell in cells.cells if cell.variant == "b32"]
    (main,) = comparison_rows(cells.cells)
    (row,) = comparison_rows(cells.cells, "b32")
    judged = judge_cells(of_b32)

    assert main.verdict.speedup is not None
    assert main.verdict.speedup.pair_ratios == pytest.approx((1.5,))
    assert judged.verdict.speedup is not None
    assert judged.verdict.speedup.pair_ratios == pytest.approx((2.0, 2.1))
    assert row.judged == judged
    assert [record.variant for record in cells.main_records] == ["", ""]


def test_a_variant_may_be_given_other_batches():
    small = pair(variant="b8")
    other = [r.model_copy(update={"data": data_part(batch_sha256="cc" * 32)}) for r in small]

    assert same_data([*pair(), *other])
    assert not same_data([*pair(), other[0].model_copy(update={"variant": ""})])


def remedies(results: Results) -> dict[str, str]:
    section = missing_section(results)
    assert section is not None
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    return {row[0]: row[3] for row in table.rows}


def test_a_failed_arm_is_repeated_within_its_study(tmp_path: Path):
    # What a study does with a folder: an arm whose record is gone is run again.
    failed = ok_record(precision="amp").model_copy(update={"status": "failed", "reason": "killed"})
    study = study_of("torch-fp32", "torch-amp", "paddle-fp32")
    folder = write_study(tmp_path, study, failed)
    (folder / "records" / "paddle-fp32.json").write_text("{")
    resume = "python -m harness compare --resume DIR, DIR being the study's folder."

    assert remedies(read_results(folder)) == {
        "torch-fp32": f"Continue the study: {resume}",
        "torch-amp": f"Delete records/torch-amp.json and continue the study: {resume} "
        "Its command (below) runs it alone, into another folder.",
        "paddle-fp32": f"Delete records/paddle-fp32.json and continue the study: {resume}",
    }


def test_a_failed_single_run_has_no_study_to_continue():
    failed = ok_record().model_copy(update={"status": "failed", "reason": "killed"})

    assert remedies(results_of(failed)) == {"torch-fp32": "Repeat it with its command (below)."}
