"""Sections about what was measured: speed, loss, accuracy, and the cells without a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from statistics import median

from harness.records import Record, ThroughputPart
from reports import charts, formats
from reports.blocks import Block, Chart, Details, Figure, Paragraph, Section, Table
from reports.cells import LEFT_OUT, NOT_RUN_YET, UNREADABLE, Cell, Results
from reports.comparison import ComparisonRow
from reports.fairness import same_data
from reports.formats import count, number, percent, seconds
from reports.speedup import window_rates

_MORE_TIME = (
    "compare --resume with the study's folder gives it its budget anew, and measures what then "
    "fits."
)
_RESUME = "python -m harness compare --resume DIR, DIR being the study's folder"


def legend(
    colours: Mapping[str, str], drawn: Iterable[str], *, dashed: bool = True
) -> tuple[tuple[str, str, str], ...]:
    """Label, colour and dash pattern of each curve that is drawn."""
    dashes = cycle(charts.DASHES if dashed else ("none",))
    return tuple(
        (formats.precision(name), colour, dash)
        for (name, colour), dash in zip(colours.items(), dashes, strict=False)
        if name in drawn
    )


def missing_section(results: Results) -> Section | None:
    """Cells that are not ok, each with its reason and what to do about it; and those left out."""
    missing = [cell for cell in results.cells if cell.status not in ("ok", LEFT_OUT)]
    blocks: list[Block] = []
    if missing:
        in_study = results.study is not None
        rows = tuple(
            (c.arm, c.status, c.reason or formats.UNKNOWN, _remedy(c, in_study=in_study))
            for c in missing
        )
        columns = ("Cell", "Status", "Reason", "Remedy")
        caption = "Why there is none, and what to do"
        blocks.append(Table(caption=caption, columns=columns, rows=rows))
    reasons: dict[str, list[str]] = {}
    for cell in results.cells:
        if cell.status == LEFT_OUT:
            reasons.setdefault(cell.reason or formats.UNKNOWN, []).append(cell.arm)
    if reasons:
        rows = tuple((formats.listed(arms), reason) for reason, arms in reasons.items())
        left_out = sum(len(arms) for arms in reasons.values())
        blocks.append(
            Details(
                summary=f"{left_out} arms were left out: repetitions that had no time or no point",
                blocks=(
                    Table(caption="Why they were left out", columns=("Cells", "Reason"), rows=rows),
                ),
            )
        )
        if results.study is not None and results.study.budget_s is not None:
            blocks.append(Paragraph(text=_MORE_TIME))
    if not blocks:
        return None
    return Section(anchor="missing", title="Cells without a result", blocks=tuple(blocks))


def _remedy(cell: Cell, *, in_study: bool) -> str:
    if cell.status == NOT_RUN_YET:
        return f"Continue the study: {_RESUME}."
    if cell.status == "unavailable":
        return "See the reason; the other cells do not depend on this one."
    if not in_study:
        return "Repeat it with its command (below)."
    again = f"Delete records/{cell.arm}.json and continue the study: {_RESUME}."
    if cell.status == UNREADABLE:
        return again
    return f"{again} Its command (below) runs it alone, into another folder."


def speed_section(results: Results, rows: Sequence[ComparisonRow]) -> Section | None:
    """Throughput chart and the figures behind it."""
    measured = [(r, r.throughput) for r in results.records if r.throughput is not None]
    if not measured:
        return None
    spoken = "; ".join(
        f"{row.backend} {formats.precision(arm.precision)} "
        f"{f'{number(arm.images_per_s)} images/s' if arm.images_per_s else arm.status}"
        for row in rows
        for arm in row.arms
    )
    blocks: list[Block] = []
    if any(row.fp32.window_images_per_s or row.amp.window_images_per_s for row in rows):
        keys = legend(charts.PRECISION_COLOURS, charts.PRECISION_COLOURS, dashed=False)
        svg = charts.throughput_chart(rows)
        chart = Chart(title="Throughput", svg=svg, alt=spoken, legend=keys)
        caption = (
            "Images per second. A dot is one timed window, of all process pairs; the bar is their "
            "median."
        )
        blocks.append(Figure(caption=caption, charts=(chart,)))
    blocks.append(
        Table(
            caption="Throughput of each arm",
            columns=(
                "Arm",
                "Windows",
                "Steps",
                "Median images/s",
                "Lowest",
                "Highest",
                "Prepare",
                "Warm-up",
                "Waited for data",
                "Threads asked",
                "Threads in use",
            ),
            rows=tuple(_speed_row(record, throughput) for record, throughput in measured),
            numeric=True,
        )
    )
    if any(len(row.judged.counted) > 1 for row in rows):
        blocks.append(_pairs_table(rows))
    return Section(anchor="speed", title="Speed", blocks=tuple(blocks))


def _pairs_table(rows: Sequence[ComparisonRow]) -> Table:
    """Each pair has processes of its own, so that their speedups show how processes differ."""
    return Table(
        caption="The single values from which speedup and interval are made: one for each pair of "
        "processes, without an interval of its own; a repetition keeps the seed",
        columns=("Backend", "Process pair", "Speedup", "Windows an arm", "Measured in turn"),
        rows=tuple(
            (
                row.backend,
                pair.name,
                formats.ratio(pair_ratio),
                count(pair.windows.matched),
                "yes" if pair.in_turn else "no",
            )
            for row in rows
            if row.verdict.speedup is not None
            for pair, pair_ratio in zip(
                row.judged.counted, row.verdict.speedup.pair_ratios, strict=True
            )
        ),
        numeric=True,
    )


def _speed_row(record: Record, throughput: ThroughputPart) -> tuple[str, ...]:
    rates = window_rates(record)
    return (
        record.arm,
        count(len(rates)),
        count(throughput.timed_steps),
        number(median(rates) if rates else None),
        number(min(rates, default=None)),
        number(max(rates, default=None)),
        seconds(throughput.prepare_s),
        seconds(throughput.warmup_s),
        percent(throughput.data_wait_fraction),
        count(record.training.threads if record.training else None),
        number(throughput.threads_in_use),
    )


def loss_section(results: Results) -> Section | None:
    """Loss curves fp32 against AMP, the fp32 arms together, and the epochs."""
    curves: dict[str, dict[str, Sequence[float]]] = {}
    for record in results.main_records:
        if record.steps.loss and record.precision.requested in charts.PRECISION_COLOURS:
            curves.setdefault(record.backend, {})[record.precision.requested] = record.steps.loss
    if not curves:
        return None
    fp32 = {backend: arms["fp32"] for backend, arms in curves.items() if "fp32" in arms}
    drawn = [losses for arms in curves.values() for losses in arms.values()]
    longest = max(len(losses) for losses in drawn)
    x_domain, y_domain = (1, max(longest, 2)), charts.loss_domain(drawn)

    def chart(
        title: str, lines: Mapping[str, Sequence[float]], colours: Mapping[str, str]
    ) -> Chart:
        svg = charts.loss_chart(lines, colours, x_domain=x_domain, y_domain=y_domain)
        keys = legend(colours, lines)
        return Chart(title=title, svg=svg, alt=_spoken(title, lines), legend=keys)

    drawings = [chart(name, arms, charts.PRECISION_COLOURS) for name, arms in curves.items()]
    if len(fp32) > 1 and same_data(results.records):
        drawings.append(chart("fp32 in all frameworks", fp32, charts.series_colours(list(fp32))))
    caption = f"Training loss of each step; all charts share their scales.{_binned(longest)}"
    blocks: list[Block] = [Figure(caption=caption, charts=tuple(drawings))]
    epochs = _epochs(results.main_records)
    if epochs:
        blocks.append(epochs)
    return Section(anchor="loss", title="Loss", blocks=tuple(blocks))


def _binned(steps: int) -> str:
    width = charts.bin_steps(steps)
    return f" Each point is the mean of {width} steps." if width > 1 else ""


def _spoken(title: str, curves: Mapping[str, Sequence[float]]) -> str:
    parts = [
        f"{formats.precision(name)} from {number(losses[0])} at step 1 to {number(losses[-1])} "
        f"at step {len(losses)}"
        for name, losses in curves.items()
    ]
    return f"Training loss, {title}: {'; '.join(parts)}"


def _epochs(records: Sequence[Record]) -> Table | None:
    rows = tuple(
        (
            record.arm,
            count(epoch.epoch),
            count(epoch.steps),
            number(epoch.train_loss),
            number(epoch.val_loss),
            percent(epoch.val_top1),
            percent(epoch.val_top2),
        )
        for record in records
        for epoch in record.epochs
    )
    columns = ("Arm", "Epoch", "Steps", "Train loss", "Val. loss", "Val. top-1", "Val. top-2")
    caption = "At the end of each epoch, or of the run"
    return Table(caption=caption, columns=columns, rows=rows, numeric=True) if rows else None


def accuracy_section(results: Results) -> Section | None:
    """Validation accuracy of the final weights, by class."""
    measured = [(r, r.accuracy) for r in results.main_records if r.accuracy is not None]
    if not measured:
        return None
    names = [name for _, accuracy in measured for name in accuracy.per_class]
    rows = [
        ("All: top-1", *(percent(accuracy.val_top1) for _, accuracy in measured)),
        ("All: top-2", *(percent(accuracy.val_top2) for _, accuracy in measured)),
        ("All: loss", *(number(accuracy.val_loss) for _, accuracy in measured)),
    ]
    rows += [
        (name, *(percent(accuracy.per_class.get(name)) for _, accuracy in measured))
        for name in dict.fromkeys(names)
    ]
    table = Table(
        caption="Validation of the final weights; by class, top-1",
        columns=("", *(record.arm for record, _ in measured)),
        rows=tuple(rows),
        numeric=True,
    )
    text = "Evaluated in float32 in every arm, whatever the precision of the training."
    images = next((r.data.val_images for r, _ in measured if r.data and r.data.val_images), None)
    classes = next((len(r.data.classes) for r, _ in measured if r.data and r.data.classes), None)
    if images and classes:
        text += (
            f" One of the {count(images)} validation images is {number(100 / images)} percentage "
            f"points; guessing scores {percent(1 / classes)} in top-1."
        )
    return Section(anchor="accuracy", title="Accuracy", blocks=(Paragraph(text=text), table))
