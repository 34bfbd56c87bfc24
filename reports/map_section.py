"""The section on the break-even map: AMP's speedup over batch size and image size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reports import formats
from reports.blocks import Block, Chart, Figure, Paragraph, Section, Table, by_text
from reports.break_even import BreakEvenMap, MapCell
from reports.formats import number
from reports.speedup_charts import REGION_COLOURS, map_chart

_HOW: Final = (
    "Each cell is a comparison of its own, fp32 and AMP in turn. AMP pays, or is slower, where the "
    "99.5 % interval of its speedup lies wholly above, or below, 1, and makes no difference where "
    "the 95 % interval lies within the margin; elsewhere the map is undecided. Nothing is said of "
    "sizes between or beyond those measured. A diagnosis is told only with the measurement that "
    "supports it."
)
_MARKS: Final = {"no difference": " =", "undecided": " ?"}


def map_section(maps: Sequence[BreakEvenMap]) -> Section | None:
    """None where no backend was measured at two batch sizes or two image sizes."""
    if not maps:
        return None
    blocks: list[Block] = [Paragraph(text=_HOW)]
    for found in maps:
        blocks.append(Paragraph(text=f"{found.name}: {'; '.join(found.break_even())}."))
    caption = (
        "AMP's speedup over batch size and image size. The colour tells the region, its strength "
        "how far the speedup is from 1 (full at a factor of 2); a frame marks where AMP pays, an "
        "equals sign where it makes no difference, and a question mark what is undecided."
    )
    blocks.append(Figure(caption=caption, charts=tuple(_chart(found) for found in maps)))
    for found in maps:
        blocks.append(_table(found))
        blocks += [
            Paragraph(text=f"{found.name}, {text}", kind="warning")
            for text in by_text(
                (cell.name, warning)
                for cell in found.cells
                # Those of the main settings stand at the head of the page.
                if cell.variant
                for warning in cell.row.verdict.warnings
            )
        ]
    return Section(anchor="map", title="Where AMP pays", blocks=tuple(blocks))


def _table(found: BreakEvenMap) -> Table:
    return Table(
        caption=f"{found.name}: speedup with its 95 % interval, and the diagnosis",
        columns=(
            "Batch size, image size",
            "images/s fp32",
            "images/s AMP",
            "Speedup",
            "Region",
            "Verdict",
            "Process pairs",
            "Diagnosis",
        ),
        rows=tuple(
            (
                cell.name,
                number(cell.row.fp32.images_per_s),
                number(cell.row.amp.images_per_s),
                _speedup(cell),
                cell.region,
                cell.verdict,
                formats.count(len(cell.row.judged.counted) or None),
                cell.diagnosis,
            )
            for cell in found.cells
        ),
    )


def _speedup(cell: MapCell) -> str:
    gain = cell.row.verdict.speedup
    return formats.gain(gain)


def _chart(found: BreakEvenMap) -> Chart:
    drawn = [
        (
            cell.batch_size,
            cell.image_size,
            gain.ratio if (gain := cell.row.verdict.speedup) else None,
            cell.region,
            # So that a reader without colours sees it too.
            f"{formats.times(gain)}{_MARKS.get(cell.region, '')}",
        )
        for cell in found.cells
    ]
    regions = [name for name in REGION_COLOURS if any(cell.region == name for cell in found.cells)]
    return Chart(
        title=found.name,
        svg=map_chart(drawn),
        alt=f"AMP's speedup in {found.name}: "
        + "; ".join(f"{cell.name} {_speedup(cell)} {cell.region}" for cell in found.cells),
        legend=tuple((name, REGION_COLOURS[name], "none") for name in regions),
    )
