"""The section on time and energy to the same quality, fp32 against AMP and across frameworks."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Record
from reports import formats
from reports.blocks import Block, Paragraph, Section, Table
from reports.cells import Results
from reports.fairness import same_data
from reports.formats import UNKNOWN, count, number, percent, seconds
from reports.quality import (
    MEASURES,
    Measure,
    QualityPair,
    common_target,
    quality_pairs,
    reached,
    seeds_interval,
)

_HOW = (
    "The target is the worse of the arms' best values, so that all reach it. The time is that of "
    "the training steps until the first validation that is as good, warm-up included, set-up and "
    "validation not. Energy is that time at the mean power of the timed windows, idle power taken "
    "off. Arms are validated at the end of an epoch, so that the time is known within one epoch: "
    "the range beside a ratio is what that leaves open."
)
_ONE_SEED = (
    "One seed says when this one training got there, and another may differ by epochs: compare "
    "with --seeds 3 or more to see by how much."
)


def quality_section(results: Results) -> Section | None:
    """None where no backend has two finished arms that were validated."""
    pairs, left_out = quality_pairs(results.seed_records)
    across = _across_table(results.main_records) if same_data(results.records) else None
    if not pairs and not left_out:
        return None
    blocks: list[Block] = []
    if pairs:
        blocks += [_pairs_table(pairs), Paragraph(text=_HOW)]
        blocks += _over_seeds(pairs)
    if across is not None:
        blocks.append(across)
    blocks += [
        Paragraph(text=f"Nothing can be told of {'; '.join(arms)}: {reason}.", kind="note")
        for reason, arms in left_out.items()
    ]
    return Section(anchor="quality", title="Time to quality", blocks=tuple(blocks))


def _pairs_table(pairs: Sequence[QualityPair]) -> Table:
    return Table(
        caption="Until the same quality is reached; above ×1 AMP was there first",
        columns=(
            "Backend", "Seed", "Target", "Epoch fp32", "Epoch AMP", "Time fp32", "Time AMP",
            "fp32 ÷ AMP", "Range", "Energy fp32", "Energy AMP",
        ),
        rows=tuple(
            (
                pair.backend,
                str(pair.seed),
                _target(pair.measure, pair.target),
                count(pair.fp32.epoch),
                count(pair.amp.epoch),
                seconds(pair.fp32.time_s),
                seconds(pair.amp.time_s),
                formats.ratio(pair.ratio),
                formats.interval(*pair.range),
                _joules(pair.fp32.joules),
                _joules(pair.amp.joules),
            )
            for pair in pairs
        ),
        numeric=True,
    )  # fmt: skip


def _over_seeds(pairs: Sequence[QualityPair]) -> list[Block]:
    """The mean ratio over seeds of each backend and measure."""
    groups: dict[tuple[str, str], list[QualityPair]] = {}
    for pair in pairs:
        groups.setdefault((pair.backend, pair.measure.name), []).append(pair)
    if all(len(group) == 1 for group in groups.values()):
        return [Paragraph(text=_ONE_SEED, kind="note")]
    blocks: list[Block] = []
    for (backend, measure), group in groups.items():
        if (found := seeds_interval(group)) is not None:
            mean, low, high = found
            text = (
                f"{backend}, time to {measure}: fp32 ÷ AMP {formats.ratio(mean)} "
                f"{formats.interval(low, high)} (geometric mean of {len(group)} seeds, 95 % "
                "interval by Student's t)."
            )
            blocks.append(Paragraph(text=text))
    return blocks


def _across_table(records: Sequence[Record]) -> Table | None:
    """All finished arms on the way to a target that all of them reach."""
    arms = [record for record in records if record.status == "ok" and record.epochs]
    if len({record.backend for record in arms}) < 2:
        return None
    targets = [
        (measure, target)
        for measure in MEASURES
        if (target := common_target(arms, measure)) is not None
    ]
    if not targets:
        return None
    rows = []
    for record in arms:
        row = [record.arm]
        for measure, target in targets:
            found = reached(record, measure, target)
            row += [count(found.epoch), seconds(found.time_s), _joules(found.joules)]
        rows.append(tuple(row))
    headings = [
        (f"Epoch, {goal}", "Time", "Energy")
        for goal in (_target(measure, target) for measure, target in targets)
    ]
    return Table(
        caption="Until the quality that every arm of every framework reaches; frameworks differ in "
        "more than precision, see Same experiment?",
        columns=("Arm", *(heading for group in headings for heading in group)),
        rows=tuple(rows),
        numeric=True,
    )


def _target(measure: Measure, target: float) -> str:
    return f"{measure.name} {percent(target) if measure.higher_is_better else number(target)}"


def _joules(joules: float | None) -> str:
    return UNKNOWN if joules is None else f"{number(joules)} J"
