"""The section that tells where the time goes: input, compute, and the operations of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.records import ProfilePart, Record
from reports import charts, formats
from reports.blocks import Block, Chart, Figure, Paragraph, Section, Table
from reports.causes import causes
from reports.cells import Results
from reports.comparison import ComparisonRow, comparison_rows
from reports.feed import feed_of, judge_fed, loader_rate, loader_workers
from reports.formats import UNKNOWN, count, duration, number, percent

MAX_KINDS = 6
"""Kinds of operation with a colour of their own in a chart; the smaller ones are drawn as one."""
REST = "all others"
_SHARES_NOT_SPEEDS = (
    "A profiler slows what it watches, short operations most: the profiled steps are part of no "
    "window, and their shares are to be read, not their speed."
)
_HOW_FED = (
    "End to end is the training; compute alone takes the same steps on one batch that stays on the "
    "device; loader alone fetches batches for no step. An arm is bound by its input where compute "
    "alone is faster beyond its 95 % interval and the arm waited for data at least 10 % of the "
    "time, or, where it decodes on the CPUs that compute, where compute alone is faster by a ninth "
    "at the lower end of that interval; it is not shown where an interval leaves that open. The "
    "workers that would feed compute alone are reckoned from what one decodes now, as if each had "
    "a CPU to itself."
)
_NO_INTERVAL = (
    "A profiled step is the mean of {steps} steps in a row, taken once in each arm, so that no "
    "interval can be given: AMP ÷ fp32 says in what the two differ, and the speedup by how much."
)


def time_section(results: Results, rows: Sequence[ComparisonRow]) -> Section | None:
    """None where no arm was measured in more ways than end to end.

    Args:
        results: all cells; the first run of each arm is shown.
        rows: of the main settings.
    """
    first = [cell for cell in results.cells if not cell.label]
    records = [cell.record for cell in first if cell.record is not None]
    if not any(r.compute_windows or r.loader or r.profile for r in records):
        return None
    blocks: list[Block] = [
        Paragraph(text=f"{row.backend}: {cause.sentence}")
        for row in rows
        for cause in causes(row.judged)
    ]
    if diagnosed := [record for record in records if record.compute_windows or record.loader]:
        blocks += [_feed_table(diagnosed), Paragraph(text=_HOW_FED)]
    named = [(row.backend, row) for row in rows]
    for variant in dict.fromkeys(cell.variant for cell in first if cell.variant):
        of_variant = comparison_rows(results.cells, variant)
        named += [(f"{row.backend}-{variant}", row) for row in of_variant]
    fed = _fed_table(named)
    if fed is not None:
        blocks.append(fed)
    blocks += _profiles(results.main_records)
    traces = [record.profile.trace for record in records if record.profile and record.profile.trace]
    if traces:
        where = "logs within the study's folder" if results.study else "the run's folder"
        blocks.append(Paragraph(text=f"Traces, in {where}: {', '.join(traces)}."))
    return Section(anchor="time", title="Where the time goes", blocks=tuple(blocks))


def _feed_table(records: Sequence[Record]) -> Table:
    return Table(
        caption="What limits each arm, images/s",
        columns=(
            "Arm",
            "End to end",
            "Compute alone",
            "Compute ÷ end to end",
            "Waited for data",
            "Loader, cached",
            "Loader, live",
            "Bound by",
            "Decoding workers to feed it",
        ),
        rows=tuple(_feed_row(record) for record in records),
        numeric=True,
    )


def _feed_row(record: Record) -> tuple[str, ...]:
    feed = feed_of(record)
    workers = None
    if feed.compute_images_per_s is not None:
        workers = loader_workers(record, feed.compute_images_per_s)
    return (
        record.arm,
        number(feed.images_per_s),
        number(feed.compute_images_per_s),
        formats.gain(feed.starved),
        percent(feed.wait_fraction),
        number(loader_rate(record, "cached")),
        number(loader_rate(record, "live")),
        feed.bound_by or UNKNOWN,
        count(workers),
    )


def _fed_table(named: Sequence[tuple[str, ComparisonRow]]) -> Table | None:
    """AMP over fp32 where neither arm waits for images; rows by backend and setting."""
    found = [
        (name, row, fed)
        for name, row in named
        if (fed := judge_fed(row.judged)).speedup is not None or row.judged.counted
    ]
    if not any(fed.speedup for _, _, fed in found):
        return None
    return Table(
        caption="AMP's speedup as trained, and if the input never made a step wait",
        columns=("Backend, setting", "End to end", "Verdict", "If fed", "Verdict if fed"),
        rows=tuple(
            (
                name,
                formats.gain(row.verdict.speedup),
                row.verdict.outcome,
                formats.gain(fed.speedup),
                fed.outcome,
            )
            for name, row, fed in found
        ),
        numeric=True,
    )


def _profiles(records: Sequence[Record]) -> list[Block]:
    """Of each backend a bar of its operations in each arm, and a table with quotients."""
    by_backend: dict[str, dict[str, ProfilePart]] = {}
    for record in records:
        if record.profile is not None and record.precision.requested in charts.PRECISION_COLOURS:
            of_backend = by_backend.setdefault(record.backend, {})
            of_backend[record.precision.requested] = record.profile
    if not by_backend:
        return []
    drawn = tuple(
        _chart(backend, profiles)
        for backend, profiles in by_backend.items()
        if any(profile.operations_s for profile in profiles.values())
    )
    blocks: list[Block] = [Paragraph(text=_SHARES_NOT_SPEEDS)]
    if drawn:
        caption = "Operations of one profiled step by kind; each chart has its own scale."
        blocks.append(Figure(caption=caption, charts=drawn))
    blocks += [_profile_table(backend, profiles) for backend, profiles in by_backend.items()]
    steps = {profile.steps for profiles in by_backend.values() for profile in profiles.values()}
    told = formats.listed([str(one) for one in sorted(steps)])
    blocks.append(Paragraph(text=_NO_INTERVAL.format(steps=told)))
    sources = {
        f"{backend}: {profile.source}"
        for backend, profiles in by_backend.items()
        for profile in profiles.values()
    }
    blocks += [Paragraph(text=f"Profile of {source}.") for source in sorted(sources)]
    return blocks


def _profile_table(backend: str, profiles: Mapping[str, ProfilePart]) -> Table:
    a, b = profiles.get("fp32"), profiles.get("amp")
    both = [profile for profile in (a, b) if profile is not None]
    # One arm that cannot tell its phases apart leaves nothing to put beside the other's.
    phases = dict.fromkeys(name for profile in both for name in profile.phases_s or {})
    kinds = _by_size(both)

    def row(name: str, times: Sequence[float | None]) -> tuple[str, ...]:
        fp32, amp = times
        quotient = amp / fp32 if fp32 and amp is not None else None
        return (name, duration(fp32), duration(amp), formats.ratio(quotient))

    rows = [row("Whole step", [p and p.step_s for p in (a, b)])]
    rows += [
        row(f"Phase: {name}", [p and (p.phases_s or {}).get(name) for p in (a, b)])
        for name in phases
    ]
    rows += [
        row(f"Operations: {kind}", [p and p.operations_s.get(kind) for p in (a, b)])
        for kind in kinds
    ]
    rows.append(row("A kernel ran", [p and p.device_busy_s for p in (a, b)]))
    kernels = [p and p.kernels for p in (a, b)]
    quotient = kernels[1] / kernels[0] if kernels[0] and kernels[1] else None
    rows.append(
        ("Kernels or operations", count(kernels[0]), count(kernels[1]), formats.ratio(quotient))
    )
    return Table(
        caption=f"{backend}: a profiled step; operations are summed over threads or streams",
        columns=("", "fp32", "AMP", "AMP ÷ fp32"),
        rows=tuple(r for r in rows if r[1:3] != (UNKNOWN, UNKNOWN)),
        numeric=True,
    )


def _by_size(profiles: Sequence[ProfilePart]) -> list[str]:
    """Kinds of operation, the one that takes most time in any arm first."""
    most: dict[str, float] = {}
    for profile in profiles:
        for kind, time_s in profile.operations_s.items():
            most[kind] = max(time_s, most.get(kind, 0.0))
    return sorted(most, key=lambda kind: -most[kind])


def _chart(backend: str, profiles: Mapping[str, ProfilePart]) -> Chart:
    kinds = _by_size(list(profiles.values()))
    shown, rest = kinds[:MAX_KINDS], kinds[MAX_KINDS:]
    bars: dict[str, dict[str, float]] = {}
    for precision in charts.PRECISION_COLOURS:
        if precision in profiles:
            times = profiles[precision].operations_s
            parts = {kind: times.get(kind, 0.0) for kind in shown}
            if rest:
                parts[REST] = sum(times.get(kind, 0.0) for kind in rest)
            bars[formats.precision(precision)] = parts
    colours = charts.series_colours(shown)
    if rest:
        colours[REST] = "var(--muted)"
    spoken = "; ".join(
        f"{arm}: {', '.join(f'{kind} {duration(time_s)}' for kind, time_s in parts.items())}"
        for arm, parts in bars.items()
    )
    return Chart(
        title=backend,
        svg=charts.parts_chart(bars, colours, title="seconds a step"),
        alt=f"Operations of a profiled step, {backend}: {spoken}",
        legend=tuple((kind, colour, "none") for kind, colour in colours.items()),
    )
