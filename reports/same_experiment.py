"""The section that tells whether arms were the same experiment, and what a comparison changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from harness.records import Record
from harness.verdict import Verdict, judge
from reports import formats
from reports.blocks import Block, Details, Paragraph, Section, Table
from reports.cells import Results
from reports.comparison import ComparisonRow
from reports.fairness import (
    SAME_START_TOLERANCE,
    Difference,
    confounding,
    confounds,
    data_groups,
    differences,
    first_losses,
    same_data,
)
from reports.formats import number
from reports.speedup import ONE_AFTER_THE_OTHER, process_pair


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two arms that a reader may want to compare."""

    name: str
    left: str
    right: str
    differences: tuple[Difference, ...]
    ratio: str
    """Images/s of the right arm over that of the left, with its interval; or why there is none."""


def same_experiment_section(results: Results, rows: Sequence[ComparisonRow]) -> Section:
    """Same data, same first loss, and the manifest of what differs between any two arms."""
    blocks: list[Block] = _same_data(results.records)
    first = first_losses(results.main_records)
    if len(first) > 1 and same_data(results.records):
        caption = f"First-step loss of the float32 arms (the same within {SAME_START_TOLERANCE:g})"
        table = Table(
            caption=caption,
            columns=("Backend", "Loss", "Relative difference"),
            rows=tuple(
                (
                    item.backend,
                    number(item.loss, digits=7),
                    "reference"
                    if item.relative_difference is None
                    else number(item.relative_difference, digits=2),
                )
                for item in first
            ),
            numeric=True,
        )
        blocks.append(table)
    compared = [*amp_comparisons(rows), *framework_comparisons(results.main_records)]
    if compared:
        blocks += [*_manifest(compared)]
    return Section(anchor="same", title="Same experiment?", blocks=tuple(blocks))


def amp_comparisons(rows: Sequence[ComparisonRow]) -> list[Comparison]:
    """AMP against fp32 of each backend that has a record of both."""
    return [
        Comparison(
            name=f"{row.backend}: AMP over fp32",
            left=row.fp32.arm,
            right=row.amp.arm,
            differences=row.differences,
            ratio=_ratio(row.verdict, in_turn=row.judged.in_turn),
        )
        for row in rows
        if row.differences
    ]


def framework_comparisons(records: Sequence[Record]) -> list[Comparison]:
    """Any two float32 arms of different backends."""
    fp32 = [r for r in records if r.precision.requested == "fp32" and r.status == "ok"]
    found = []
    for left, right in combinations(fp32, 2):
        differing = differences(left, right, factor="framework")
        pair = process_pair(left, right)
        verdict = judge(
            [pair.windows], differences=confounding(differing), names=(left.arm, right.arm)
        )
        found.append(
            Comparison(
                name=f"fp32: {right.backend} over {left.backend}",
                left=left.arm,
                right=right.arm,
                differences=tuple(differing),
                ratio=_ratio(verdict, in_turn=pair.in_turn),
            )
        )
    return found


def _ratio(verdict: Verdict, *, in_turn: bool | None) -> str:
    if verdict.speedup is not None:
        text = formats.gain(verdict.speedup)
        return text if in_turn else f"{text}; {ONE_AFTER_THE_OTHER}"
    return f"none: {verdict.reason if verdict.outcome == 'unavailable' else verdict.outcome}"


def _manifest(compared: Sequence[Comparison]) -> list[Block]:
    rows = tuple(
        (
            item.name,
            item.ratio,
            "; ".join(confounding(item.differences)) or "nothing",
            _names(item.differences, "under test"),
            _names(item.differences, "by necessity"),
            _names(item.differences, "length", "outcome"),
        )
        for item in compared
    )
    columns = (
        "Comparison", "Ratio of images/s", "Confounds", "Under test", "Differs by necessity",
        "Length and outcome",
    )  # fmt: skip
    caption = "What differs in each comparison; a ratio is given only where nothing confounds it"
    full = tuple(
        (item.name, d.setting, d.left, d.right, d.role)
        for item in compared
        for d in item.differences
    )
    listing = Table(
        caption="The first value is that of the arm in the denominator",
        columns=("Comparison", "Setting", "First", "Second", "Role"),
        rows=full,
    )
    blocks: list[Block] = [Table(caption=caption, columns=columns, rows=rows)]
    if any(confounds(item.differences) for item in compared):
        blocks.append(
            Paragraph(
                text="What confounds can often be made equal: --layout, --compile, --threads and "
                "--optimizer mean the same in every framework."
            )
        )
    summary = f"Every difference with its values ({len(full)})"
    return [*blocks, Details(summary=summary, blocks=(listing,))]


def _names(found: Sequence[Difference], *roles: str) -> str:
    return ", ".join(d.setting for d in found if d.role in roles) or "nothing"


def _same_data(records: Sequence[Record]) -> list[Block]:
    places = data_groups(records)
    if not places:
        return [Paragraph(text="Whether the arms were given the same batches was not recorded.")]
    unequal = [_place(*place) for place, groups in places.items() if len(groups) > 1]
    if unequal:
        listed = ", ".join(unequal)
        text = f"The arms of seed {listed} were NOT given the same first batches in the same order "
        first = Paragraph(text=f"{text}of images.", kind="warning")
    else:
        of_seed = "Of each seed, all" if len(places) > 1 else "All"
        text = f"{of_seed} arms with a recorded hash were given the same first batches"
        first = Paragraph(text=f"{text}{_same_order(records)}.")
    rows = tuple(
        (_place(*place), ", ".join(arms), given[0], _order(records, arms))
        for place, groups in places.items()
        for given, arms in groups.items()
    )
    columns = ("Seed", "Arms", "First batches", "Order of all images")
    caption = "SHA-256 of what the adapters were given: pixels, labels and ids; ids alone"
    blocks: list[Block] = [first, Table(caption=caption, columns=columns, rows=rows)]
    unknown = [r.arm for r in records if r.data is not None and r.data.batch_sha256 is None]
    if unknown:
        blocks.append(Paragraph(text=f"Not recorded for {', '.join(unknown)}."))
    return blocks


def _place(variant: str, seed: int) -> str:
    return f"{seed} ({variant})" if variant else str(seed)


def _same_order(records: Sequence[Record]) -> str:
    """The end of the sentence about equal batches; the order is compared at equal lengths."""
    finished = [record for record in records if record.status == "ok" and record.data is not None]
    if any(record.data and record.data.order_sha256 is None for record in finished):
        return "; whether the order of all images was the same was not recorded"
    if len({len(record.steps.loss) for record in finished}) > 1:
        return ", and those that took equal numbers of steps all images in the same order"
    return ", and those that finished all images in the same order" if finished else ""


def _order(records: Sequence[Record], arms: Sequence[str]) -> str:
    found = [
        record.data.order_sha256
        for record in records
        if record.arm in arms and record.status == "ok" and record.data is not None
    ]
    digests = dict.fromkeys(digest or formats.UNKNOWN for digest in found)
    return ", ".join(digests) or formats.UNKNOWN
