"""Write ``report.html``, ``report.md`` and ``results.csv`` into a study's folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.records import Record
from harness.verdict import MARGIN
from harness.whole_files import replaced
from reports import formats
from reports.attribution import ladders
from reports.blocks import Page
from reports.break_even import (
    break_even_maps,
    compared_settings,
    main_settings,
    settings_headline,
)
from reports.cast_policy import cast_policy_section
from reports.cells import Results, read_results
from reports.comparison import comparison_rows
from reports.efficiency_section import efficiency_section
from reports.findings import (
    assumptions,
    card,
    headline,
    left_out,
    run_headline,
    settling_command,
    warnings,
)
from reports.ladder_section import ladder_card, ladder_section
from reports.loss_scaling import gradient_section, loss_scale_section
from reports.map_section import map_section
from reports.measured import (
    accuracy_section,
    loss_section,
    missing_section,
    speed_section,
)
from reports.memory_section import memory_section
from reports.provenance import (
    commands_section,
    data_section,
    glossary_section,
    machine_section,
    settings_section,
)
from reports.quality_section import quality_section
from reports.results_csv import results_csv
from reports.same_experiment import same_experiment_section
from reports.settings_compared import settings_compared_section
from reports.time_section import time_section
from reports.yardstick_section import amp_gap_facts, yardstick_section

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """Where a report was written."""

    html: Path
    markdown: Path
    csv: Path


def write_report(directory: Path, *, margin: float = MARGIN) -> ReportFiles:
    """Write the report of a study, or of a single run, into its folder.

    Missing and unreadable records are shown as such. Each file is replaced as a whole. A speedup
    within ``margin`` (a fraction) of 1 is no difference.

    Raises:
        UnreadableRecord: the folder holds no readable ``study.json`` or ``record.json``.
        OSError: the folder cannot be written.
    """
    results = read_results(directory, margin=margin)
    page = build_page(results)
    files = ReportFiles(
        html=directory / "report.html",
        markdown=directory / "report.md",
        csv=directory / "results.csv",
    )
    write_page(files.csv, results_csv(results))
    write_page(files.markdown, render_markdown(page))
    write_page(files.html, render_html(page))
    return files


def write_page(path: Path, text: str) -> None:
    """Write a file of a report as a whole, UTF-8, with the same line ends everywhere.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old file is untouched.
    """
    with replaced(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def build_page(results: Results) -> Page:
    """Everything the report says, before it is given a form."""
    rows = tuple(comparison_rows(results.cells, margin=results.margin))
    climbed = ladders(results)
    # A ladder has no arms of main settings; what it says of AMP then stands in their place.
    answers = rows or climbed
    settings = compared_settings(results)
    everywhere = [cell.row for found in settings for cell in found.cells] or answers
    sections = (
        missing_section(results),
        ladder_section(climbed),
        map_section(break_even_maps(results)),
        settings_compared_section(results),
        speed_section(results, rows),
        time_section(results, rows),
        efficiency_section(results),
        loss_section(results),
        yardstick_section(results),
        accuracy_section(results),
        quality_section(results),
        memory_section(results),
        cast_policy_section(results),
        loss_scale_section(results),
        gradient_section(results),
        same_experiment_section(results, rows),
        data_section(results),
        machine_section(results),
        settings_section(results),
        commands_section(results),
        glossary_section(results),
    )
    gaps = amp_gap_facts(results.seed_records)
    main = main_settings(settings)
    cards = tuple(card(row, gaps.get(row.backend), main) for row in rows)
    cards = cards or tuple(ladder_card(ladder) for ladder in climbed)
    single = results.study is None
    record = results.records[0] if results.records else None
    source = results.study or record
    assert source is not None
    title = "Does mixed precision pay here?"
    if single and record is not None:
        name = formats.precision(record.precision.requested)
        title = f"One run: {record.backend}, {name}"
    return Page(
        title=title,
        subtitle=_subtitle(results),
        headline=run_headline(results)
        if single
        else (settings_headline(settings) if settings else headline(answers)),
        cards=() if single else cards,
        caveat=" ".join(
            filter(
                None,
                (
                    assumptions(everywhere),
                    left_out(results, answers),
                    settling_command(results, everywhere),
                ),
            )
        ),
        warnings=tuple(warnings(results, answers)),
        rows=rows,
        settings=main,
        sections=tuple(section for section in sections if section is not None),
        footer=f"Written from records of version {source.harness_version}, "
        f"created {source.created}.",
    )


def render_html(page: Page) -> str:
    """One file that needs no other: styles and charts are inside, and there is no script."""
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        if isinstance(value, str) and not isinstance(value, Markup):
            return formats.printable(value)
        return value

    environment = _environment(autoescape=True, finalize=finalize)
    style = Markup((TEMPLATES / "report.css").read_text(encoding="utf-8"))
    return environment.get_template("report.html").render(page=page, style=style)


def render_markdown(page: Page) -> str:
    """The same text for places that show Markdown, without the charts."""
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else escape_markdown(str(value))

    environment = _environment(autoescape=False, finalize=finalize)
    environment.filters["verbatim"] = lambda text: Markup(formats.printable(text))
    return environment.get_template("report.md").render(page=page)


def escape_markdown(text: str) -> str:
    """``text`` as Markdown that shows it literally, on one line, HTML included."""
    text = formats.printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", text)


def _environment(**options: Any) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    names = ("number", "count", "times", "bounds", "percent", "mebibytes", "precision")
    environment.filters |= {name: getattr(formats, name) for name in names}
    environment.filters["peak"] = lambda arm: formats.peak(arm.peak_bytes, arm.peak_source)
    return environment


def _subtitle(results: Results) -> str:
    devices = dict.fromkeys(device_name(record) for record in results.records)
    study, records = results.study, results.records
    data = study.data if study else next((r.data for r in records if r.data), None)
    models = dict.fromkeys(record.model.name for record in records if record.model is not None)
    created = study.created if study else records[0].created
    parts = [*models, data.name if data else None, *devices, created[:10]]
    return " · ".join(part for part in parts if part)


def device_name(record: Record) -> str | None:
    """The GPU's name, or else the processor's."""
    if record.device is not None and record.device.type == "cpu" and record.environment:
        return record.environment.cpu
    return None if record.device is None else record.device.name
