"""Charts of loss scaling: the scale step by step, and the gradients that it is there for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.records import GradientSizes
from reports.charts import as_svg, colour, dash, values

ROUNDS_TO_ZERO = -25
"""Half of float16's smallest number, 2**-24, as a power of two; a tie goes to the even zero."""

FLOAT16_LIMITS = (
    ("2⁻²⁴", -24.0),
    ("2⁻¹⁴", -14.0),
    ("65504", math.log2(65504)),
)
"""Smallest subnormal, smallest normal and largest number of float16 (IEEE 754-2019, Table 3.2)."""


def loss_scale_chart(
    scales: Sequence[float | None], skipped: Sequence[bool], line_colour: str
) -> str:
    """Loss scale over steps as a staircase, with a cross at each skipped step."""
    import altair as alt

    known = [(i + 1, scale) for i, scale in enumerate(scales) if scale is not None]
    turns = [
        {"step": step, "scale": scale}
        for i, (step, scale) in enumerate(known)
        if i in (0, len(known) - 1) or scale != known[i - 1][1]
    ]
    crosses = [
        {"step": step, "scale": scale}
        for step, scale in known
        if step <= len(skipped) and skipped[step - 1]
    ]
    x = alt.X(
        "step:Q",
        title="step",
        scale=alt.Scale(domain=[1, max(len(scales), 2)], nice=False),
        axis=alt.Axis(tickCount=5, format="d", tickMinStep=1),
    )
    y = alt.Y(
        "scale:Q",
        title="loss scale (powers of 2)",
        scale=alt.Scale(type="log", base=2, nice=False, domain=_scale_domain(known)),
        axis=alt.Axis(tickCount=5, format=",.0f"),
    )
    line = alt.Chart(values(turns)).mark_line(
        strokeWidth=1.8, interpolate="step-after", color=line_colour
    )
    cross = alt.Chart(values(crosses)).mark_text(
        text="×", fontSize=18, fontWeight=700, color="var(--ink)"
    )
    return as_svg(alt.layer(line.encode(x=x, y=y), cross.encode(x=x, y=y)), height=150)


def _scale_domain(known: Sequence[tuple[int, float]]) -> list[float]:
    scales = [scale for _, scale in known if scale > 0] or [1.0]
    return [min(scales) / 2, max(scales) * 2]


def histogram_chart(
    sizes: Mapping[str, GradientSizes],
    colours: Mapping[str, str],
    *,
    domain: tuple[int, int],
    loss_scale: float | None,
) -> str:
    """Share of the nonzero gradients in each power of two, with the limits of float16.

    Args:
        sizes: counts by curve.
        colours: CSS colour by curve; the second and later curves are dashed.
        domain: first and last exponent of the axis.
        loss_scale: where given, the limits are drawn a second time, as it moves them.
    """
    import altair as alt

    points = [
        {"curve": name, "exponent": of_curve.first_exponent + i, "share": 100 * count / total}
        for name, of_curve in sizes.items()
        if (total := sum(of_curve.counts))
        for i, count in enumerate(of_curve.counts)
        if domain[0] <= of_curve.first_exponent + i <= domain[1]
    ]
    top = max((point["share"] for point in points), default=1.0)
    scale = alt.Scale(domain=[domain[0], domain[1] + 1], nice=False)
    x = alt.X(
        "exponent:Q",
        title="size |g| of a gradient, power of 2",
        scale=scale,
        axis=alt.Axis(values=list(range(-60, 21, 10)), format="d", grid=False),
    )
    y = alt.Y(
        "share:Q",
        title="% of nonzero",
        scale=alt.Scale(domain=[0, top * 1.3], nice=False),
        axis=alt.Axis(tickCount=4),
    )
    curves = (
        alt.Chart(values(points))
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(x=x, y=y, color=colour("curve", colours), strokeDash=dash("curve", list(colours)))
    )
    layers = [_lost(domain[0], scale), curves, *_limits(scale, top)]
    if loss_scale is not None and loss_scale > 1:
        layers += _limits(scale, top, math.log2(loss_scale))
    return as_svg(alt.layer(*layers), height=170)


def _lost(first: int, scale: Any) -> Any:
    """The range that float16 rounds to zero without a loss scale."""
    import altair as alt

    area = values([{"from": first, "to": ROUNDS_TO_ZERO}])
    return (
        alt.Chart(area)
        .mark_rect(color="var(--flag)", opacity=0.12)
        .encode(x=alt.X("from:Q", scale=scale), x2="to:Q")
    )


def _limits(scale: Any, top: float, moved: float = 0.0) -> list[Any]:
    """Rules at float16's limits, named on top; moved by a loss scale, at its smallest number."""
    import altair as alt

    limits = FLOAT16_LIMITS[:1] if moved else FLOAT16_LIMITS
    ink = "var(--amp)" if moved else "var(--muted)"
    x = alt.X("x:Q", scale=scale)
    marks = alt.Chart(
        values(
            [
                {
                    "x": limit - moved,
                    "y": top * (1.14 if moved else 1.26),
                    "label": "scaled" if moved else label,
                }
                for label, limit in limits
            ]
        )
    )
    rules = marks.mark_rule(color=ink, strokeDash=[3, 3] if moved else [1, 0]).encode(x=x)
    texts = marks.mark_text(align="left", dx=3, fontSize=10, color=ink)
    return [rules, texts.encode(x=x, y=alt.Y("y:Q"), text="label:N")]
