"""Charts of speedups: the rungs of a ladder, and a map over batch size and image size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from harness.speedup import Speedup
from reports.charts import PRECISION_COLOURS, as_svg, colour, values

REGION_COLOURS: Final = {
    "pays": "var(--good)",
    "slower": "var(--bad)",
    "no difference": "var(--c1)",
    "undecided": "var(--muted)",
    "no result": "var(--line)",
}
_FULL_OPACITY: Final = math.log(2)
"""|ln speedup| from which a cell of a map has its full colour."""


def ladder_chart(rungs: Sequence[tuple[str, str, Speedup | None, str]]) -> str:
    """Factor over the lowest rung: a bar a rung, its 95 % interval as a line, and a rule at 1.

    Args:
        rungs: lowest first: title, precision (a key of :data:`PRECISION_COLOURS`), speedup over
            the lowest rung (None for that itself and where there is none), and text beside the bar.
    """
    import altair as alt

    lowest = rungs[0][0]
    bars = [
        {
            "rung": title,
            "precision": precision,
            "value": gain.ratio if gain else float(title == lowest),
            "low": gain.shown.low if gain else None,
            "high": gain.shown.high if gain else None,
            "place": gain.shown.high if gain else float(title == lowest),
            "text": text,
        }
        for title, precision, gain, text in rungs
    ]
    top = max(1.0, *(bar["place"] for bar in bars))
    y = alt.Y(
        "rung:N",
        sort=[bar["rung"] for bar in bars],
        title=None,
        axis=alt.Axis(ticks=False, domain=False),
    )
    scale = alt.Scale(domain=[0, top * 1.3], nice=False)
    axis = alt.Axis(tickCount=5)
    x = alt.X("value:Q", title=f"images/s over {lowest}", scale=scale, axis=axis)
    bar = alt.Chart(values(bars)).mark_bar(height=16, opacity=0.35)
    one = alt.Chart(values([{"value": 1}])).mark_rule(color="var(--muted)").encode(x=x)
    known = alt.Chart(values([item for item in bars if item["low"] is not None]))
    interval = known.mark_rule(strokeWidth=2, color="var(--ink)").encode(
        y=y, x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q"
    )
    text = (
        alt.Chart(values(bars))
        .mark_text(align="left", dx=7, fontWeight=600, color="var(--ink)")
        .encode(y=y, x=alt.X("place:Q", scale=scale, axis=axis), text="text:N")
    )
    layers = alt.layer(
        bar.encode(y=y, x=x, color=colour("precision", PRECISION_COLOURS)), one, interval, text
    )
    return as_svg(layers, height=28 * len(bars), width=260)


def map_chart(cells: Sequence[tuple[int, int, float | None, str, str]]) -> str:
    """A heat map: colour tells the region, its strength the size; the paying region is framed.

    Args:
        cells: batch size, image size (px), speedup or None, region (a key of
            :data:`REGION_COLOURS`), and the text in the cell.
    """
    import altair as alt

    points: list[dict[str, Any]] = [
        {
            "batch": str(batch),
            "image": str(image),
            "region": region,
            "text": text,
            "strength": 0.15 + 0.6 * min(abs(math.log(ratio)) / _FULL_OPACITY, 1) if ratio else 0.3,
        }
        for batch, image, ratio, region, text in cells
    ]
    batches = [str(size) for size in sorted({cell[0] for cell in cells})]
    images = [str(size) for size in sorted({cell[1] for cell in cells}, reverse=True)]
    x = alt.X("batch:N", sort=batches, title="batch size", axis=alt.Axis(labelAngle=0, ticks=False))
    y = alt.Y("image:N", sort=images, title="image size, px", axis=alt.Axis(ticks=False))
    scale = alt.Scale(domain=[0, 1], range=[0, 1])
    filled = (
        alt.Chart(values(points))
        .mark_rect()
        .encode(
            x=x,
            y=y,
            color=colour("region", REGION_COLOURS),
            opacity=alt.Opacity("strength:Q", scale=scale, legend=None),
        )
    )
    paying = alt.Chart(values([point for point in points if point["region"] == "pays"]))
    framed = paying.mark_rect(filled=False, stroke="var(--good)", strokeWidth=3).encode(x=x, y=y)
    texts = (
        alt.Chart(values(points))
        .mark_text(color="var(--ink)", fontWeight=600)
        .encode(x=x, y=y, text="text:N")
    )
    return as_svg(alt.layer(filled, framed, texts), height=46 * len(images), width=270)
