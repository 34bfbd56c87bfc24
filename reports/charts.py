"""Charts as SVG text for a page: no script, no outside address, the page's own colours and fonts.

Colours are CSS variables (``var(--fp32)``), so a chart follows the page into dark mode and print.
Each chart is about 350 px wide, the width of a phone; a page sets several side by side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from reports import formats
from reports.comparison import ComparisonRow
from reports.yardstick import Gap

GAP_COLOURS = {"AMP": "var(--amp)", "framework": "var(--fp32)", "seed": "var(--muted)"}
PRECISION_COLOURS = {"fp32": "var(--fp32)", "amp": "var(--amp)"}
_SERIES_COLOURS = ("var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)")

DASHES = ("none", "5 3", "2 2", "8 3 2 3", "1 3", "6 2")
"""Line patterns in the order of curves, so that they can be told apart without colour."""

MAX_POINTS = 200
"""A longer curve is drawn as means over bins of steps."""

_PLOT_WIDTH = 290


def bin_steps(steps: int) -> int:
    """Steps that one point of a loss curve stands for, in a run of ``steps`` steps."""
    return math.ceil(steps / MAX_POINTS) if steps > 0 else 1


def series_colours(names: Sequence[str]) -> dict[str, str]:
    """A CSS colour for each backend, or for each part of a whole."""
    return dict(zip(names, cycle(_SERIES_COLOURS), strict=False))


def throughput_chart(rows: Sequence[ComparisonRow]) -> str:
    """Images/s: a dot for each timed window, a bar and a figure for their median."""
    import altair as alt

    arms, windows = [], []
    for row in rows:
        for arm in row.arms:
            name = f"{row.backend} {formats.precision(arm.precision)}"
            value = arm.images_per_s
            text = formats.number(value) if value is not None else arm.status
            arms.append(
                {"arm": name, "precision": arm.precision, "value": value or 0, "text": text}
            )
            windows += [
                {"arm": name, "precision": arm.precision, "value": rate}
                for rate in arm.window_images_per_s
            ]
    order = [arm["arm"] for arm in arms]
    top = max((item["value"] for item in windows), default=1.0)
    y = alt.Y("arm:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False))
    x = alt.X("value:Q", title="images/s", scale=alt.Scale(domain=[0, top * 1.22], nice=False))
    of_precision = colour("precision", PRECISION_COLOURS)
    bars = (
        alt.Chart(values(arms))
        .mark_bar(height=16, opacity=0.28)
        .encode(y=y, x=x, color=of_precision)
    )
    texts = (
        alt.Chart(values(_label_places(arms, windows)))
        .mark_text(align="left", dx=7, fontWeight=600, color="var(--ink)")
        .encode(y=y, x=x, text="text:N")
    )
    dots = (
        alt.Chart(values(windows))
        .mark_circle(size=26, opacity=0.85)
        .encode(y=y, x=x, color=of_precision)
    )
    return as_svg(alt.layer(bars, dots, texts), height=26 * len(arms))


def loss_chart(
    curves: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    *,
    x_domain: tuple[int, int],
    y_domain: tuple[float, float],
) -> str:
    """Training loss over steps, one line a curve; a NaN or an infinity leaves a gap.

    Args:
        curves: loss of each step, by name; the second and later lines are dashed.
        colours: CSS colour by name.
        x_domain: first and last step of the axis, so that neighbouring charts share it.
        y_domain: as :func:`loss_domain` gives it; logarithmic where it does not start at 0.
    """
    import altair as alt

    points = [
        {"curve": name, "step": step, "loss": loss}
        for name, losses in curves.items()
        for step, loss in _binned(losses, bin_steps(x_domain[1]))
    ]
    logarithmic = y_domain[0] > 0
    chart = (
        alt.Chart(values(points))
        .mark_line(strokeWidth=1.8, interpolate="linear", invalid="break-paths-show-domains")
        .encode(
            x=alt.X(
                "step:Q",
                title="step",
                scale=alt.Scale(domain=x_domain, nice=False),
                axis=alt.Axis(tickCount=5, format="d", tickMinStep=1),
            ),
            y=alt.Y(
                "loss:Q",
                title="loss (logarithmic)" if logarithmic else "loss",
                scale=alt.Scale(domain=y_domain, type="log" if logarithmic else "linear"),
                axis=alt.Axis(tickCount=5),
            ),
            color=colour("curve", colours),
            strokeDash=dash("curve", list(colours)),
        )
    )
    return as_svg(chart, height=190)


def loss_domain(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """A loss axis that all curves fit on: from 0, or logarithmic where they span 100 times."""
    width = bin_steps(max(map(len, curves), default=0))
    finite = [loss for losses in curves for _, loss in _binned(losses, width) if loss is not None]
    top = max(finite, default=1.0)
    positive = [loss for loss in finite if loss > 0]
    if positive and len(positive) == len(finite) and top > 100 * min(positive):
        return min(positive), top
    return min(0.0, *finite, 0.0), top * 1.05 or 1.0


def gap_chart(gaps: Sequence[Gap]) -> str:
    """Gaps around 0: a dot a seed, the mean and its interval as a bar, cut at the chart's edge."""
    import altair as alt

    def name(gap: Gap) -> str:
        return gap.between + {"AMP": ": AMP", "framework": "", "seed": ": seeds"}[gap.kind]

    dots = [
        {"name": name(gap), "kind": gap.kind, "value": value} for gap in gaps for value in gap.gaps
    ]
    # Of two seeds, the range between seeds is so wide that nothing else could be seen beside it.
    edges = [abs(value) for gap in gaps for value in gap.gaps]
    edges += [abs(v) for gap in gaps if gap.kind != "seed" for v in (gap.low, gap.high) if v]
    reach = max(edges, default=0.0) * 1.08 or 1.0
    bars = [
        {
            "name": name(gap),
            "kind": gap.kind,
            "low": max(gap.low, -reach),
            "high": min(gap.high, reach),
        }
        for gap in gaps
        if gap.low is not None and gap.high is not None
    ]
    means = [
        {"name": name(gap), "kind": gap.kind, "value": gap.centre}
        for gap in gaps
        if gap.kind != "seed"
    ]
    y = alt.Y(
        "name:N",
        sort=[name(gap) for gap in gaps],
        title=None,
        axis=alt.Axis(ticks=False, domain=False, orient="left", labelLimit=190),
    )
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    axis = alt.Axis(tickCount=4)
    of_kind = colour("kind", GAP_COLOURS)
    x = alt.X("value:Q", title=None, scale=scale, axis=axis)
    zero = alt.Chart(values([{"value": 0}])).mark_rule(color="var(--muted)").encode(x=x)
    interval = (
        alt.Chart(values(bars))
        .mark_bar(height=12, opacity=0.28)
        .encode(y=y, x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q", color=of_kind)
    )
    centre = (
        alt.Chart(values(means)).mark_tick(thickness=2.5, size=16).encode(y=y, x=x, color=of_kind)
    )
    points = alt.Chart(values(dots)).mark_circle(size=34, opacity=0.9)
    layers = alt.layer(zero, interval, centre, points.encode(y=y, x=x, color=of_kind))
    return as_svg(layers, height=24 * len(gaps), width=_PLOT_WIDTH - 60)


def parts_chart(
    bars: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], *, title: str
) -> str:
    """One bar a name, stacked from its parts in the order of ``colours``."""
    import altair as alt

    parts = [
        {"bar": bar, "part": part, "order": place, "value": of_bar.get(part, 0.0)}
        for bar, of_bar in bars.items()
        for place, part in enumerate(colours)
    ]
    y = alt.Y("bar:N", sort=list(bars), title=None, axis=alt.Axis(ticks=False, domain=False))
    chart = (
        alt.Chart(values(parts))
        .mark_bar(height=18)
        .encode(
            y=y,
            x=alt.X("value:Q", title=title, axis=alt.Axis(tickCount=5)),
            color=colour("part", colours),
            order=alt.Order("order:Q"),
        )
    )
    return as_svg(chart, height=28 * len(bars))


def _label_places(
    arms: Sequence[dict[str, Any]], windows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each arm's figure right of its bar and of all its dots."""
    return [
        {**arm, "value": max([w["value"] for w in windows if w["arm"] == arm["arm"]], default=0)}
        for arm in arms
    ]


def _binned(losses: Sequence[float], width: int) -> list[tuple[float, float | None]]:
    points: list[tuple[float, float | None]] = []
    for start in range(0, len(losses), width):
        part = losses[start : start + width]
        # Divided before they are added, so that losses near the largest float do not overflow.
        mean = sum(loss / len(part) for loss in part)
        points.append((start + (len(part) + 1) / 2, mean if math.isfinite(mean) else None))
    return points


def values(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows as the data of a chart."""
    import altair as alt

    return alt.Data(values=list(rows))


def colour(field: str, colours: Mapping[str, str]) -> Any:
    """The colour of each value of a field, without a legend."""
    import altair as alt

    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{field}:N", scale=scale, legend=None)


def dash(field: str, names: Sequence[str]) -> Any:
    """The dash pattern of each value of a field, in the order of :data:`DASHES`."""
    import altair as alt

    patterns = [[1, 0] if d == "none" else [int(part) for part in d.split()] for d in DASHES]
    scale = alt.Scale(domain=list(names), range=[p for p, _ in zip(cycle(patterns), names)])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=None)


def as_svg(chart: Any, height: int, width: int = _PLOT_WIDTH) -> str:
    """A chart as SVG in the page's own colours and fonts; the width is that of its plot alone."""
    import altair as alt
    import vl_convert

    chart = chart.properties(width=width, height=height).configure(
        aria=False,
        background="transparent",
        padding={"left": 14, "right": 6, "top": 4, "bottom": 2},
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(
            labelColor="var(--muted)",
            titleColor="var(--muted)",
            titleFontWeight="normal",
            gridColor="var(--line)",
            domainColor="var(--line)",
            tickColor="var(--line)",
            labelFontSize=11,
            titleFontSize=11,
            labelLimit=150,
        ),
        text=alt.MarkConfig(fontSize=11),
    )
    svg = vl_convert.vegalite_to_svg(chart.to_dict(), allowed_base_urls=[])
    # Inside an HTML page the namespaces go without saying, and fonts are the page's.
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    return re.sub(r' font-family="[^"]*"', "", svg)
