"""The section on settings that one study compares: networks, inputs, batch and image sizes."""

from __future__ import annotations

from reports import formats
from reports.blocks import Paragraph, Section, Table, by_text
from reports.break_even import compared_cells
from reports.cells import Results


def settings_compared_section(results: Results) -> Section | None:
    """None where the study has one set of settings, or where maps show all of them."""
    groups = compared_cells(results)
    unmapped = [
        (key, cell)
        for key, cells in groups.items()
        for cell in cells
        if len({(c.batch_size, c.image_size) for c in cells}) == 1
    ]
    if not unmapped or not any(cell.variant for _, cell in unmapped):
        return None
    rows = tuple(
        (
            f"{backend}: {model}, {read}, batch {cell.batch_size}, {cell.image_size} px",
            formats.number(cell.row.fp32.images_per_s),
            formats.number(cell.row.amp.images_per_s),
            formats.gain(cell.row.verdict.speedup),
            cell.verdict,
            formats.count(len(cell.row.judged.counted) or None),
            cell.diagnosis,
        )
        for (backend, model, read), cell in unmapped
    )
    table = Table(
        caption="Each line is a comparison of its own, fp32 and AMP in turn",
        columns=(
            "Settings",
            "images/s fp32",
            "images/s AMP",
            "Speedup",
            "Verdict",
            "Process pairs",
            "Diagnosis",
        ),
        rows=rows,
    )
    warnings = [
        Paragraph(text=text, kind="warning")
        for text in by_text(
            (f"{backend} {cell.variant}", warning)
            for (backend, _, _), cell in unmapped
            # Those of the main settings stand at the head of the page.
            if cell.variant
            for warning in cell.row.verdict.warnings
        )
    ]
    return Section(anchor="settings-compared", title="By setting", blocks=(table, *warnings))
