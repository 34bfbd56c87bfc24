"""The section that puts AMP's gap to float32 beside those between frameworks and seeds."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Record
from harness.speedup import DISPLAY_CONFIDENCE
from reports import charts, formats
from reports.blocks import Block, Chart, Figure, Paragraph, Section, Table
from reports.cells import Results
from reports.yardstick import Gap, Yardstick, yardsticks

ONE_SEED = (
    "Only one seed was run, so nothing says whether a gap is larger than noise. "
    "To find out, repeat the comparison with --seeds 3 or more."
)


def yardstick_section(results: Results) -> Section | None:
    """None where no backend has a finished pair of fp32 and AMP."""
    found, left_out = yardsticks(results.seed_records)
    if not found:
        return None
    several = any(gap.seeds > 1 for item in found for gap in item.gaps)
    blocks: list[Block] = [Paragraph(text=text) for text in sentences(found)]
    if not several:
        blocks.append(Paragraph(text=ONE_SEED, kind="note"))
    blocks.append(Figure(caption=_caption(several), charts=tuple(_chart(item) for item in found)))
    blocks.append(_table(found))
    if several:
        intervals = sum(
            gap.kind != "seed" and gap.low is not None for item in found for gap in item.gaps
        )
        chance = formats.number(intervals * (1 - DISPLAY_CONFIDENCE), digits=2)
        text = (
            "An interval that contains 0 does not show a gap, nor that there is none. Of "
            f"{intervals} such intervals, about {chance} leave out 0 by chance."
        )
        blocks.append(Paragraph(text=text))
    blocks += [Paragraph(text=f"Left out: {text}.", kind="note") for text in left_out]
    return Section(
        anchor="yardstick", title="Is AMP's gap larger than noise?", blocks=tuple(blocks)
    )


def sentences(found: Sequence[Yardstick]) -> list[str]:
    """What the first quantity's gaps say of each backend."""
    yardstick = found[0]
    others = [gap for gap in yardstick.gaps if gap.kind != "AMP"]
    return [_sentence(yardstick, gap, others) for gap in yardstick.gaps if gap.kind == "AMP"]


def amp_gap_facts(records: Sequence[Record]) -> dict[str, str]:
    """AMP's gap of each backend in one line, for its card."""
    found, _ = yardsticks(records)
    facts = {}
    for gap in found[0].gaps if found else ():
        if gap.kind == "AMP":
            seeds = "one seed" if gap.seeds == 1 else f"{gap.seeds} seeds"
            ends = f"({seeds})" if gap.low is None else f"{_bounds(gap)}, {seeds}"
            name = found[0].quantity.name
            facts[gap.between] = f"{name}, AMP − fp32: {_signed(gap.centre)} {ends}"
    return facts


def _sentence(yardstick: Yardstick, gap: Gap, others: Sequence[Gap]) -> str:
    text = f"{gap.between}: AMP moved the {yardstick.quantity.name.lower()} by "
    text += f"{_signed(gap.centre)} against fp32"
    if gap.low is None or gap.high is None:
        frameworks = [other for other in others if other.kind == "framework"]
        if gap.seeds > 1:
            text += f" in each of {gap.seeds} seeds"
        beside = ", ".join(f"{_signed(o.centre)} ({o.between})"
                           for o in frameworks)  # fmt: skip
        return f"{text}; between frameworks in fp32 it is {beside}." if beside else f"{text}."
    text += f", 95 % interval {_bounds(gap)} ({gap.seeds} seeds)"
    if gap.low <= 0 <= gap.high:
        text += ": the interval contains 0, so no gap was shown"
    else:
        text += ": it leaves out 0, so a gap was shown"
    own = next((o for o in others if (o.kind, o.between) == ("seed", gap.between)), None)
    if own is not None and own.high is not None:
        text += (
            f". Of two fp32 runs that differ in the seed alone, 95 % differ by {_size(own.high)} "
            "or less"
        )
    return f"{text}."


def _table(found: Sequence[Yardstick]) -> Table:
    """A row a comparison, a column a quantity."""
    names = dict.fromkeys(gap.name for item in found for gap in item.gaps)
    by_name = [{gap.name: gap for gap in item.gaps} for item in found]
    rows = []
    for name in names:
        gaps = [of_quantity.get(name) for of_quantity in by_name]
        seeds = max(gap.seeds for gap in gaps if gap is not None)
        cells = (formats.UNKNOWN if gap is None else _cell(gap, seeds) for gap in gaps)
        rows.append((name, *cells, formats.count(seeds), formats.count(seeds - 1)))
    units = (f", {item.quantity.unit}" if item.quantity.unit else "" for item in found)
    quantities = (f"{item.quantity.name}{unit}" for item, unit in zip(found, units, strict=True))
    return Table(
        caption="Mean gap with its 95 % interval; between seeds, the range of 95 % of differences",
        columns=("Gap", *quantities, "Seeds (n)", "df"),
        rows=tuple(rows),
        numeric=True,
    )


def _cell(gap: Gap, seeds: int) -> str:
    if gap.kind == "seed" and gap.high is not None:
        text = f"±{_size(gap.high)}"
    elif gap.low is None and gap.seeds > 1:
        text = f"{_signed(gap.centre)} in each"
    else:
        text = f"{_signed(gap.centre)} {_bounds(gap)}".rstrip()
    return text if gap.seeds == seeds else f"{text} (n = {gap.seeds})"


def _chart(item: Yardstick) -> Chart:
    spoken = "; ".join(f"{gap.name} {_signed(gap.centre)} {_bounds(gap)}" for gap in item.gaps)
    unit = f", {item.quantity.unit}" if item.quantity.unit else ""
    title = f"{item.quantity.name}{unit}"
    return Chart(title=title, svg=charts.gap_chart(item.gaps), alt=f"{title}, gaps: {spoken}")


def _caption(several: bool) -> str:
    text = "“AMP” is AMP less fp32; the other gaps are between fp32 arms. A dot is one seed's gap."
    if not several:
        return text
    return (
        f"{text} A bar is the 95 % interval of the mean gap (Student's t over the seeds' "
        "differences). Between seeds it is the range that holds 95 % of the differences of two "
        "further runs, and a dot is the difference of two seeds; where it runs to the edge it goes "
        "on beyond, and the table has its ends."
    )


def _bounds(gap: Gap) -> str:
    if gap.low is None or gap.high is None:
        return ""
    return f"[{_signed(gap.low)}, {_signed(gap.high)}]"


def _signed(value: float) -> str:
    text = formats.number(abs(value))
    return text if value == 0 else f"{'−' if value < 0 else '+'}{text}"


def _size(value: float) -> str:
    return formats.number(abs(value))
