"""The files of a report: what they say, that they stand alone, and that strangers cannot write in
them."""

import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from report_records import (
    data_part,
    ok_record,
    study_of,
    unavailable_record,
    write_study,
)

from harness.record_files import UnreadableRecord, write_json
from harness.records import EpochPart, QuarantinedFile, Record
from reports import write_report

VOID = {"meta", "link", "br", "hr", "img", "input", "line", "path", "i"}
HOSTILE = (
    "<script>alert(1)</script> a|b *c* [d](http://evil.example) `e` \"f\" 'g' &amp; \x00\u202e"
)


class Page(HTMLParser):
    """An HTML page as a list of tags with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.unclosed: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.unclosed.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.unclosed and self.unclosed[-1] != "style":
            self.text += data


def table_rows(markdown: str, heading: str) -> list[list[str]]:
    """Cells of the first table under a heading, as a Markdown renderer reads them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    titles = [i for i, token in enumerate(tokens) if token.content == heading]
    rows: list[list[str]] = []
    for token in tokens[titles[0] :]:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append("".join(child.content for child in token.children or []))
        elif token.type == "table_close":
            break
    return rows


@pytest.fixture
def six_cells(tmp_path: Path) -> Path:
    """A study of three frameworks on a machine where Paddle cannot run AMP."""
    names = [f"{b}-{p}" for b in ("torch", "tensorflow", "paddle") for p in ("fp32", "amp")]
    records = [
        ok_record("torch", rates=[39, 40, 44]),
        ok_record("torch", "amp", rates=[19.5, 20, 22], skipped_at=[1]),
        ok_record("tensorflow", rates=[20, 20, 20], losses=[2.002, 1.9, 1.8]),
        ok_record("tensorflow", "amp", rates=[30, 30, 30]),
        ok_record("paddle", rates=[10, 10, 10]),
        unavailable_record("paddle", "float16 has no kernels on a CPU; use an NVIDIA GPU"),
    ]
    return write_study(tmp_path, study_of(*names), *records)


def written(folder: Path) -> tuple[Page, str]:
    """Write the report of a folder; return its page and its Markdown."""
    files = write_report(folder)
    return Page(files.html.read_text("utf-8")), files.markdown.read_text("utf-8")


def test_a_report_is_three_files_and_nothing_else(six_cells: Path):
    files = write_report(six_cells)

    assert files.html == six_cells / "report.html"
    names = {path.name for path in six_cells.iterdir()}
    assert names == {"study.json", "records", "report.html", "report.md", "results.csv"}


def test_the_headline_and_the_verdicts_say_what_was_measured(six_cells: Path):
    page, markdown = written(six_cells)

    for text in (page.text, markdown):
        assert "AMP pays in tensorflow and is slower in torch" in text
        assert "no comparison could be made in paddle" in text
        plain = text.replace("\\", "")
        assert "AMP ran at 1.500 times the images/s of fp32 (95 % interval [" in plain
        assert "AMP ran at 0.500 times the images/s of fp32 (95 % interval [" in plain
        assert "Fewer than 6 process pairs hardly show how processes differ" in plain
        assert "paddle.amp: not yet executed on a GPU by this project" in text


def test_an_arm_that_skipped_every_step_of_a_window_has_no_speedup(tmp_path: Path):
    amp = ok_record(precision="amp", rates=[5, 5, 5, 5, 5], skipped_at=[3, 4, 5, 6])
    records = [ok_record(rates=[10, 10, 10]), amp]
    page, _ = written(write_study(tmp_path, study_of("torch-fp32", "torch-amp"), *records))

    assert "A timed window of AMP has no images: all its steps were skipped." in page.text
    assert "No comparison could be made in torch." in page.text


def test_the_markdown_table_has_a_row_for_each_backend(six_cells: Path):
    _, markdown = written(six_cells)

    head, torch, tensorflow, paddle = table_rows(markdown, "Comparison")

    assert head[:4] == ["Backend", "images/s fp32", "images/s AMP", "Speedup"]
    assert torch[:3] == ["torch", "40.0", "20.0"]
    # The 97.5 % quantile of the product of two standard normal variables is 2.18: the interval
    # is about 1.5 exp(±2.18 × 0.05) where windows do not vary.
    assert tensorflow[:5] == ["tensorflow", "20.0", "30.0", "×1.50 [1.34, 1.67]", "pays"]
    assert paddle[:5] == ["paddle", "10.0", "–", "–", "unavailable"]
    assert paddle[-2:] == ["ok", "unavailable"]


def test_a_cell_without_a_result_has_its_reason_on_the_page(six_cells: Path):
    page, markdown = written(six_cells)

    assert "float16 has no kernels on a CPU; use an NVIDIA GPU" in page.text
    rows = table_rows(markdown, "Cells without a result")
    assert rows[1][:2] == ["paddle-amp", "unavailable"]


def test_first_losses_are_compared_with_the_first_framework(six_cells: Path):
    _, markdown = written(six_cells)

    rows = table_rows(markdown, "First-step loss of the float32 arms (the same within 0.001):")

    # (2.002 − 2) / 2
    assert rows[1:] == [
        ["torch", "2.000000", "reference"],
        ["tensorflow", "2.002000", "0.0010"],
        ["paddle", "2.000000", "0"],
    ]


def test_a_different_first_loss_is_a_warning(tmp_path: Path):
    records = [ok_record("torch"), ok_record("paddle", losses=[2.01])]
    page, _ = written(write_study(tmp_path, study_of("torch-fp32", "paddle-fp32"), *records))

    assert "do not start from the same loss" in page.text


def test_equal_first_batches_are_stated_with_their_hash(six_cells: Path):
    page, _ = written(six_cells)

    assert "were given the same first batches" in page.text
    assert "bb" * 32 in page.text
    assert "fp32 in all frameworks" in page.text


def test_unequal_first_batches_are_a_warning_and_end_the_comparison(tmp_path: Path):
    other = ok_record("paddle", data={"batch_sha256": "cc" * 32})
    page, markdown = written(
        write_study(tmp_path, study_of("torch-fp32", "paddle-fp32"), ok_record(), other)
    )

    for text in (page.text, markdown):
        assert "The arms were not given the same first batches" in text
        assert "First-step loss" not in text
    assert "fp32 in all frameworks" not in page.text


def test_the_page_needs_nothing_from_outside(six_cells: Path):
    html = write_report(six_cells).html.read_text("utf-8")
    page = Page(html)

    assert "://" not in html
    assert "@import" not in html
    assert "url(" not in html
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object", "embed", "img"}
    for _, attributes in page.tags:
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
        assert "src" not in attributes


def test_every_tag_is_closed_and_every_table_and_chart_can_be_read_aloud(six_cells: Path):
    page, _ = written(six_cells)

    assert page.unclosed == []
    assert ("html", {"lang": "en"}) in page.tags
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")
    drawings = [attributes for _, attributes in page.tags if attributes.get("role") == "img"]
    # Throughput, three frameworks, fp32 together, three kinds of gaps, and two loss scales.
    assert len(drawings) == 10
    assert all(attributes["aria-label"] for attributes in drawings)
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {a["href"] for tag, a in page.tags if tag == "a"}
    assert links == {f"#{anchor}" for anchor in anchors}


def test_hostile_text_shows_as_text_and_as_nothing_else(tmp_path: Path):
    data = {
        "name": HOSTILE,
        "classes": [HOSTILE, "红烧肉"],
        "quarantined": [QuarantinedFile(path=f"{HOSTILE}.jpg", reason=HOSTILE)],
        "warnings": [HOSTILE],
    }
    records = [
        ok_record(data=data, warnings=[HOSTILE], command=HOSTILE, framework_version=HOSTILE),
        unavailable_record("torch", HOSTILE),
    ]
    study = study_of("torch-fp32", "torch-amp", data=data_part(**data), command=HOSTILE)
    page, markdown = written(write_study(tmp_path, study, *records))

    clean = HOSTILE.replace("\x00", r"\x00").replace("\u202e", r"\u202e")
    assert page.text.count(clean) >= 10
    assert not {tag for tag, _ in page.tags} & {"script", "em"}
    assert page.unclosed == []
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    inline = [child for token in tokens for child in token.children or []]
    assert {token.type for token in tokens} & {"html_block", "fence"} == set()
    assert {child.type for child in inline} & {"html_inline", "link_open", "em_open"} == set()
    rows = table_rows(markdown, "Cells without a result")
    assert rows[1] == ["torch-amp", "unavailable", clean, rows[1][3]]


def test_a_class_in_chinese_is_text_of_the_page(tmp_path: Path):
    record = ok_record(data={"classes": ["红烧肉", "ramen"]})
    page, markdown = written(write_study(tmp_path, study_of("torch-fp32"), record))

    assert "红烧肉" in page.text
    assert ["红烧肉", "55.0 %"] in table_rows(markdown, "Accuracy")


def test_an_interrupted_study_shows_what_has_not_run(tmp_path: Path):
    study = study_of("torch-fp32", "torch-amp", finished=False)
    page, markdown = written(write_study(tmp_path, study, ok_record()))

    assert "The study is not finished; not run yet: torch-amp." in page.text
    assert table_rows(markdown, "Comparison")[1][-1] == "not run yet"


def test_a_study_without_any_record_has_a_report(tmp_path: Path):
    page, _ = written(write_study(tmp_path, study_of("torch-fp32", "torch-amp", finished=False)))

    assert "not run yet" in page.text


@pytest.mark.parametrize("content", ["", "{", '{"arm": "torch-amp"}', "[]", "null"])
def test_an_unreadable_record_is_shown_with_its_reason(tmp_path: Path, content: str):
    write_study(tmp_path, study_of("torch-fp32", "torch-amp"), ok_record())
    (tmp_path / "records" / "torch-amp.json").write_text(content)
    _, markdown = written(tmp_path)

    row = table_rows(markdown, "Cells without a result")[1]
    assert row[:2] == ["torch-amp", "unreadable"]
    assert row[2].startswith("records/torch-amp.json: ")
    assert str(tmp_path) not in markdown


def test_a_record_under_the_name_of_another_arm_is_not_taken_for_it(tmp_path: Path):
    write_study(tmp_path, study_of("torch-fp32", "torch-amp"), ok_record())
    write_json(tmp_path / "records" / "torch-amp.json", ok_record())
    _, markdown = written(tmp_path)

    assert (
        "holds the record of 'torch-fp32'" in table_rows(markdown, "Cells without a result")[1][2]
    )


def test_a_single_run_has_a_report_of_one_arm(tmp_path: Path):
    write_json(tmp_path / "record.json", ok_record("torch", "amp", rates=[20, 20, 20]))
    page, markdown = written(tmp_path)

    assert "One run: torch, AMP" in page.text
    assert "Trained 20.0 images per second; validation top-1 55.0 %." in page.text
    assert "not planned" not in page.text
    assert markdown.startswith("# One run: torch, AMP\n")


def test_a_single_run_that_failed_gives_its_reason(tmp_path: Path):
    write_json(tmp_path / "record.json", unavailable_record("paddle", "no GPU here"))
    page, _ = written(tmp_path)

    assert "The run ended as unavailable: no GPU here" in page.text


def test_a_folder_without_a_study_is_an_error_that_says_what_to_give(tmp_path: Path):
    with pytest.raises(UnreadableRecord, match=r"no study\.json .* give the folder"):
        write_report(tmp_path)


def test_losses_that_are_not_numbers_leave_gaps_and_no_broken_page(tmp_path: Path):
    nan, inf = math.nan, math.inf
    records: list[Record] = [
        ok_record(losses=[2.0, nan, 1.5, inf, 1.2]),
        ok_record(precision="amp", losses=[nan] * 5, status="diverged", reason="loss NaN"),
    ]
    study = study_of("torch-fp32", "torch-amp")
    page, markdown = written(write_study(tmp_path, study, *records))

    assert page.unclosed == []
    assert "NaN" in table_rows(markdown, "Comparison")[1]


def test_a_very_long_run_is_drawn_as_means_and_says_so(tmp_path: Path):
    losses = [1.0, 3.0] * 2000
    page, _ = written(write_study(tmp_path, study_of("torch-fp32"), ok_record(losses=losses)))

    # 4,000 steps on at most 200 points.
    assert "Each point is the mean of 20 steps." in page.text
    assert (tmp_path / "report.html").stat().st_size < 200_000


def test_what_was_left_out_of_the_data_is_named(tmp_path: Path):
    data = data_part(
        quarantined=[QuarantinedFile(path="ramen/1.jpg", reason="truncated after 8,192 bytes")],
        warnings=["class ramen has one image"],
    )
    _, markdown = written(write_study(tmp_path, study_of("torch-fp32", data=data), ok_record()))

    assert "| ramen/1.jpg | truncated after 8,192 bytes |" in markdown
    assert "**Warning:** class ramen has one image" in markdown


def test_commands_settings_and_machine_are_told(six_cells: Path):
    page, markdown = written(six_cells)

    for text in (page.text, markdown):
        assert "python -m harness --backend torch --amp" in text
        assert "python -m harness compare" in text
        assert "Example CPU" in text
        assert "numpy 2.4.6" in text
    assert ["threads", "2", "2", "2", "2", "2"] in table_rows(markdown, "Settings")
    speed = table_rows(markdown, "Speed")
    assert speed[0][-2:] == ["Threads asked", "Threads in use"]
    assert speed[1][-2:] == ["2", "1.50"]


def test_epochs_are_listed(tmp_path: Path):
    epoch = EpochPart(epoch=1, steps=5, train_loss=1.5, val_loss=None, val_top1=0.25, val_top2=0.5)
    _, markdown = written(write_study(tmp_path, study_of("torch-fp32"), ok_record(epochs=[epoch])))

    assert "| torch-fp32 | 1 | 5 | 1.50 | – | 25.0 % | 50.0 % |" in markdown


def test_a_report_that_cannot_be_written_leaves_the_old_one(
    six_cells: Path, monkeypatch: pytest.MonkeyPatch
):
    old = write_report(six_cells).html.read_text("utf-8")

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(six_cells)

    assert (six_cells / "report.html").read_text("utf-8") == old
    assert not list(six_cells.glob(".*"))


def test_the_same_records_give_the_same_files(six_cells: Path):
    first = [path.read_bytes() for path in vars(write_report(six_cells)).values()]
    second = [path.read_bytes() for path in vars(write_report(six_cells)).values()]

    assert first == second


def test_importing_reports_loads_no_library_that_draws_or_computes():
    code = "import reports, sys; print(*(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )

    heavy = {"pandas", "altair", "vl_convert", "scipy", "jinja2", "numpy", "rich"}
    assert not heavy & set(done.stdout.split())


def test_every_colour_of_a_chart_is_defined_by_the_page(six_cells: Path):
    html = write_report(six_cells).html.read_text("utf-8")

    used = set(re.findall(r"var\((--[\w-]+)\)", html))
    defined = set(re.findall(r"(--[\w-]+):", html))
    assert used <= defined
