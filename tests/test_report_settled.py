"""What the first page says of a verdict that is not settled, and of the reader's margin."""

import csv
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_records import ok_record, study_of, write_study

from harness.cli import main
from harness.records import Record
from reports.cells import read_results
from reports.pages import build_page
from reports.undecided import undecided


def pairs(*ratios: float, spread: float = 0.0, backend: str = "torch") -> list[Record]:
    """A process pair for each ratio; every other AMP window is faster or slower by `spread`."""
    return [
        ok_record(
            backend,
            precision,
            rates=[40 * ratio * (1 + spread * (-1) ** k) for k in range(8)]
            if precision == "amp"
            else [40.0] * 8,
            label=f"repeat{n}" if n else "",
        )
        for n, ratio in enumerate(ratios)
        for precision in ("fp32", "amp")
    ]


def folder_of(tmp_path: Path, *records: Record) -> Path:
    return write_study(tmp_path, study_of(*(record.arm for record in records)), *records)


def test_even_windows_are_not_said_to_be_noisy(tmp_path: Path):
    page = build_page(read_results(folder_of(tmp_path, *pairs(1.0))))

    assert page.headline == "Not settled in torch (too few process pairs)."


def test_noisy_windows_are_named_where_they_are_what_makes_the_interval(tmp_path: Path):
    # Windows of ±60 % in three equal pairs: about ln(1.6 / 0.4) / 2 = 0.69 of standard deviation
    # over √24 windows is 14 %, beside processes of 5 % at most over √3 pairs.
    page = build_page(read_results(folder_of(tmp_path, *pairs(1.0, 1.0, 1.0, spread=0.6))))

    assert page.headline == "Not settled in torch (noisy windows)."


def test_a_verdict_that_is_not_settled_stands_beside_settled_ones(tmp_path: Path):
    records = [*pairs(1.5), *pairs(1.0, backend="paddle")]
    page = build_page(read_results(folder_of(tmp_path, *records)))

    assert page.headline == "AMP pays in torch; not settled in paddle (too few process pairs)."


def test_the_page_has_the_command_that_would_settle_it(tmp_path: Path):
    folder = folder_of(tmp_path / "my study", *pairs(1.0))
    page = build_page(read_results(folder))
    further = page.rows[0].verdict.further_pairs

    assert further is not None
    # One pair has been measured; --repeats counts it.
    assert page.caveat.endswith(
        "More process pairs would settle what is undecided in torch: python -m harness compare "
        f"--resume {shlex.quote(str(folder))} --repeats {1 + further}"
    )


def test_a_repetition_that_failed_is_one_of_the_repeats_that_there_were(tmp_path: Path):
    records = pairs(1.0, 1.0)
    records[-1] = records[-1].model_copy(update={"status": "failed", "reason": "out of luck"})
    page = build_page(read_results(folder_of(tmp_path, *records)))
    further = page.rows[0].verdict.further_pairs

    assert further is not None
    assert page.caveat.endswith(f"--repeats {2 + further}")


def test_a_settled_study_needs_no_command(tmp_path: Path):
    page = build_page(read_results(folder_of(tmp_path, *pairs(1.5, 1.5, 1.5))))

    assert "--resume" not in page.caveat


def test_the_reader_of_the_records_chooses_the_margin(tmp_path: Path):
    # Twelve pairs at ×1.04 without noise: faster for certain, and less than 10 % faster.
    folder = folder_of(tmp_path, *pairs(*[1.04] * 12))

    def verdict(*options: str) -> tuple[str, str]:
        done = CliRunner().invoke(main, ["report", str(folder), *options])
        assert done.exit_code == 0, done.output
        with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
            (said,) = [row["verdict"] for row in csv.DictReader(file) if row["verdict"]]
        return said, (folder / "report.md").read_text("utf-8")

    said, text = verdict()
    assert said == "pays"
    assert "within ±2 % of 1, the margin of this report" in text
    said, text = verdict("--margin", "0.1")
    assert said == "no difference"
    assert "lies within ±10 % of 1." in text
    assert "within ±10 % of 1, the margin of this report" in text
    assert "±2 %" not in text


@pytest.mark.parametrize("margin", ["0", "1", "-0.02", "2%"])
def test_a_margin_that_is_no_fraction_is_refused(tmp_path: Path, margin: str):
    folder = folder_of(tmp_path, *pairs(1.5))
    done = CliRunner().invoke(main, ["report", str(folder), "--margin", margin])

    assert done.exit_code == 2
    assert "--margin" in done.output
    assert not (folder / "report.html").exists()


def test_a_study_goes_on_with_what_is_open_and_with_nothing_else():
    # Six pairs at ×1.5 decide; one at ×1.0 does not, in its main setting and at another batch.
    open_pair = pairs(1.0, backend="paddle")
    other = [
        record.model_copy(update={"variant": "b8", "arm": f"{record.arm}-b8"})
        for record in open_pair
    ]
    records = [*pairs(*[1.5] * 6), *open_pair, *other]
    study = study_of(*(record.arm for record in records))

    assert undecided(study, records) == [("paddle", ""), ("paddle", "b8")]
    assert undecided(study, records[:12]) == []
