"""Sections about loss scaling: the scales and skips of each run, and the gradients behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.records import GradientHistogramPart, GradientSizes, Record
from reports import charts, formats, scaling_charts
from reports.blocks import Block, Chart, Figure, Paragraph, Section, Table
from reports.cells import Results
from reports.formats import count, number
from reports.measured import legend
from reports.scaling_charts import ROUNDS_TO_ZERO

NAMED_STEPS = 6
"""Skipped steps that the ledger names; the chart marks them all."""

LEDGER = (
    "Scale of the first, the lowest and the last step. A policy dynamic:N starts at N, doubles "
    "after 2,000 clean steps and halves at an overflow"
)

_ABOUT = (
    "How large the gradients of the unscaled loss are (after Micikevicius et al., Mixed Precision "
    "Training, 2018, Figure 3). In float16 a gradient of at most 2⁻²⁵ becomes 0, and one below "
    "2⁻¹⁴ is held with fewer than 11 bits. A loss scale of 2ᵏ multiplies every gradient by 2ᵏ, "
    "so that both limits lie k powers of two lower, and so does 65504, above which it overflows."
)

_HOW_TO_READ = (
    "Share of the nonzero ones in each power of two. Lines: the smallest number of float16, its "
    "smallest with all 11 bits, and its largest. Shaded: lost without a loss scale. Dashed line: "
    "where the scale of the AMP arm moves the first of them."
)


def loss_scale_section(results: Results) -> Section | None:
    """Loss scale and skipped steps of each arm that used a scaler."""
    scaled = [
        record
        for record in results.records
        if any(scale is not None for scale in record.steps.loss_scale)
    ]
    if not scaled:
        return None
    main = results.main_records
    figure = Figure(
        caption="Loss scale of each step. A cross is a step whose update was skipped on overflow.",
        charts=tuple(
            Chart(
                title=record.arm,
                svg=scaling_charts.loss_scale_chart(
                    record.steps.loss_scale, record.steps.skipped, charts.PRECISION_COLOURS["amp"]
                ),
                alt=_spoken_scale(record),
            )
            for record in scaled
            if record in main
        ),
    )
    rows = tuple((*_scale_row(record), _skipped_at(record)) for record in scaled)
    columns = ("Arm", "Policy", "First", "Lowest", "Final", "Steps", "Skipped", "Skipped at step")
    table = Table(caption=LEDGER, columns=columns, rows=rows, numeric=True)
    blocks: list[Block] = [figure] if figure.charts else []
    return Section(anchor="loss-scale", title="Loss scale", blocks=(*blocks, table))


def _scale_row(record: Record) -> tuple[str, ...]:
    scales = [scale for scale in record.steps.loss_scale if scale is not None]
    policy = record.training.loss_scale_policy if record.training else None
    skipped = sum(record.steps.skipped) if record.steps.skipped else None
    return (
        record.arm,
        policy or formats.UNKNOWN,
        count(scales[0]),
        number(min(scales)) if min(scales) < 1 else count(min(scales)),
        count(scales[-1]),
        count(len(record.steps.loss)),
        count(skipped),
    )


def _spoken_scale(record: Record) -> str:
    _, policy, first, lowest, final, steps, skipped = _scale_row(record)
    return (
        f"Loss scale of {record.arm}, policy {policy}: first {first}, lowest {lowest}, "
        f"final {final}; {skipped} of {steps} steps skipped"
    )


def _skipped_at(record: Record) -> str:
    steps = [count(i + 1) for i, skipped in enumerate(record.steps.skipped) if skipped]
    more = len(steps) - NAMED_STEPS
    named = ", ".join(steps[:NAMED_STEPS]) or formats.UNKNOWN
    return f"{named} and {count(more)} more" if more > 0 else named


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What float16 does to some gradients: fractions of those that are finite and not zero."""

    nonzero: int
    without_scale: float
    """Become 0."""
    fewer_bits: float
    """Are held with fewer than 11 bits."""
    with_scale: float | None
    """Become 0 all the same; None where no scale is known."""
    overflow: float | None
    """Exceed float16's largest number because of the scale; powers of two above 2**15 counted."""


def lost(sizes: GradientSizes, loss_scale: float | None) -> Lost | None:
    """None where no gradient is finite and not zero.

    A scale moves the limits by log2 of it. Where that is no whole number, the counted powers of
    two that lie wholly beyond a limit are counted.
    """
    nonzero = sum(sizes.counts)
    if nonzero <= 0:
        return None
    with_scale = overflow = None
    if loss_scale is not None and loss_scale > 0:
        moved = math.log2(loss_scale)
        exponents = range(sizes.first_exponent, sizes.first_exponent + len(sizes.counts))
        placed = list(zip(exponents, sizes.counts, strict=True))
        with_scale = sum(n for e, n in placed if e + 1 <= ROUNDS_TO_ZERO - moved) / nonzero
        overflow = sum(n for e, n in placed if e >= 16 - moved) / nonzero
    return Lost(
        nonzero=nonzero,
        without_scale=sizes.below_float16 / nonzero,
        fewer_bits=sizes.subnormal_float16 / nonzero,
        with_scale=with_scale,
        overflow=overflow,
    )


def gradient_section(results: Results) -> Section | None:
    """Histograms of activation and weight gradients, and what float16 would lose of them."""
    counted = [
        (record, record.gradient_histogram)
        for record in results.main_records
        if record.gradient_histogram is not None
    ]
    if not counted:
        return None
    scales = {r.backend: h.loss_scale for r, h in counted if h.loss_scale is not None}
    backends = list(dict.fromkeys(record.backend for record, _ in counted))
    blocks: list[Block] = [Paragraph(text=_ABOUT)]
    blocks += [
        Paragraph(text=text)
        for backend in backends
        for text in _words(backend, counted, scales.get(backend))
    ]
    for part in ("activations", "weights"):
        found = (_chart(name, part, counted, scales.get(name)) for name in backends)
        drawn = tuple(chart for chart in found if chart is not None)
        if drawn:
            blocks.append(Figure(caption=f"Gradients of {part}. {_HOW_TO_READ}", charts=drawn))
    rows = tuple(
        _row(record, histogram, part, scales.get(record.backend))
        for record, histogram in counted
        for part in ("activations", "weights")
    )
    columns = (
        "Arm", "Gradients of", "After step", "Nonzero", "Zero", "Not finite", "Become 0",
        "Fewer bits", "Scale", "Become 0 with it", "Overflow with it",
    )  # fmt: skip
    table = Table(
        caption="What float16 would lose; in % of the nonzero finite gradients",
        columns=columns,
        rows=rows,
        numeric=True,
    )
    return Section(anchor="gradients", title="Why a loss scale", blocks=(*blocks, table))


def _sizes(histogram: GradientHistogramPart, part: str) -> GradientSizes:
    return histogram.activations if part == "activations" else histogram.weights


def _words(
    backend: str,
    counted: Sequence[tuple[Record, GradientHistogramPart]],
    loss_scale: float | None,
) -> list[str]:
    """The float32 arm's gradients in a sentence, for float16 has lost some of its own; or AMP's."""
    own = [(record, histogram) for record, histogram in counted if record.backend == backend]
    record, histogram = min(own, key=lambda pair: pair[0].precision.requested != "fp32")
    found = lost(histogram.activations, loss_scale)
    weights = lost(histogram.weights, loss_scale)
    if found is None:
        return []
    text = (
        f"{record.arm}, after {count(histogram.step)} steps: of {count(found.nonzero)} nonzero "
        f"activation gradients float16 without a loss scale would turn "
        f"{_share(found.without_scale)} into 0 and hold {_share(found.fewer_bits)} with fewer bits"
    )
    if weights is not None:
        text += f"; of the weight gradients, {_share(weights.without_scale)} and "
        text += _share(weights.fewer_bits)
    if found.with_scale is not None and loss_scale is not None:
        text += (
            f". With the scale of {count(loss_scale)} it would turn {_share(found.with_scale)} "
            "of the activation gradients into 0"
        )
        if found.overflow:
            text += f", and {_share(found.overflow)} would overflow"
    return [f"{text}."]


def _chart(
    backend: str,
    part: str,
    counted: Sequence[tuple[Record, GradientHistogramPart]],
    loss_scale: float | None,
) -> Chart | None:
    sizes = {
        record.precision.requested: _sizes(histogram, part)
        for record, histogram in counted
        if record.backend == backend and sum(_sizes(histogram, part).counts) > 0
    }
    colours = charts.PRECISION_COLOURS
    drawn = {name: of_arm for name, of_arm in sizes.items() if name in colours}
    if not drawn:
        return None
    svg = scaling_charts.histogram_chart(
        drawn, colours, domain=_domain(counted), loss_scale=loss_scale
    )
    spoken = "; ".join(
        f"{formats.precision(name)}: {_share(found.without_scale)} become 0 without a scale"
        for name, of_arm in drawn.items()
        if (found := lost(of_arm, loss_scale)) is not None
    )
    title = f"{backend}: gradients of {part}"
    return Chart(title=title, svg=svg, alt=f"{title}: {spoken}", legend=legend(colours, drawn))


def _domain(counted: Sequence[tuple[Record, GradientHistogramPart]]) -> tuple[int, int]:
    """First and last exponent of all axes: every filled bin, and float16's limits."""
    filled = [
        sizes.first_exponent + i
        for _, histogram in counted
        for sizes in (histogram.activations, histogram.weights)
        for i, n in enumerate(sizes.counts)
        if n > 0
    ]
    return max(min(filled, default=-26), -60), min(max(18, *filled), 60)


def _row(
    record: Record, histogram: GradientHistogramPart, part: str, loss_scale: float | None
) -> tuple[str, ...]:
    sizes = _sizes(histogram, part)
    found = lost(sizes, loss_scale)
    shares = (formats.UNKNOWN,) * 2 if found is None else (found.without_scale, found.fewer_bits)
    scaled = (None, None) if found is None else (found.with_scale, found.overflow)
    return (
        record.arm,
        part,
        count(histogram.step),
        count(sum(sizes.counts)),
        count(sizes.zeros),
        count(sizes.not_finite),
        *(share if isinstance(share, str) else _share(share) for share in shares),
        count(loss_scale),
        *(formats.UNKNOWN if share is None else _share(share) for share in scaled),
    )


def _share(fraction: float) -> str:
    return f"{number(100 * fraction)} %"
