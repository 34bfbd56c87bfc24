"""The section that tells whether arms were the same experiment, and what a comparison changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from harness.records import Record
from reports import formats
from reports.blocks import Block, Details, Paragraph, Section, Table
from reports.cells import Results
from reports.comparison import ComparisonRow, confounded
from reports.fairness import (
    SAME_START_TOLERANCE,
    Difference,
    confounds,
    data_groups,
    differences,
    first_losses,
    same_data,
)
from reports.formats import number
from reports.speedup import speedup, window_rates


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
            ratio=_ratio(row.speedup.ratio, row.speedup.low, row.speedup.high, row.speedup.reason),
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
        reason = confounded("framework", differing)
        if reason is None:
            gain = speedup(window_rates(left), window_rates(right), (left.arm, right.arm))
            ratio = _ratio(gain.ratio, gain.low, gain.high, gain.reason)
        else:
            ratio = _ratio(None, None, None, reason)
        found.append(
            Comparison(
                name=f"fp32: {right.backend} over {left.backend}",
                left=left.arm,
                right=right.arm,
                differences=tuple(differing),
                ratio=ratio,
            )
        )
    return found


def _ratio(value: float | None, low: float | None, high: float | None, reason: str | None) -> str:
    if value is not None:
        return f"{formats.ratio(value)} {formats.interval(low, high)}"
    confounded_pair = (reason or "").startswith("confounded")
    return "none: confounded" if confounded_pair else f"none: {reason}"


def _manifest(compared: Sequence[Comparison]) -> list[Block]:
    rows = tuple(
        (
            item.name,
            item.ratio,
            "; ".join(f"{d.setting}: {d.left} | {d.right}" for d in confounds(item.differences))
            or "nothing",
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
    seeds = data_groups(records)
    unknown = [r.arm for r in records if r.data is not None and r.data.batch_sha256 is None]
    blocks: list[Block] = [
        Paragraph(text=_given_the_same(records, seed if len(seeds) > 1 else None, given, arms))
        for seed, groups in seeds.items()
        if len(groups) == 1
        for given, arms in groups.items()
    ]
    for seed, groups in seeds.items():
        if len(groups) > 1:
            parts = "; ".join(
                f"{', '.join(arms)}: {' in the order '.join(given)}"
                for given, arms in groups.items()
            )
            text = f"The arms of seed {seed} were NOT given the same first batches in the same "
            text += f"order of images (SHA-256): {parts}."
            blocks.append(Paragraph(text=text, kind="warning"))
    if not seeds:
        text = "Whether the arms were given the same batches was not recorded."
        blocks.append(Paragraph(text=text))
    elif unknown:
        blocks.append(Paragraph(text=f"Not recorded for {', '.join(unknown)}."))
    return blocks


def _given_the_same(
    records: Sequence[Record], seed: int | None, given: tuple[str, ...], arms: Sequence[str]
) -> str:
    of_seed = "" if seed is None else f" of seed {seed}"
    if len(arms) == 1:
        return f"First batches of {arms[0]}: SHA-256 {given[0]}."
    text = (
        f"All {len(arms)} arms{of_seed} with a recorded hash were given the same first batches "
        f"(SHA-256 over pixels, labels and ids: {given[0]})"
    )
    finished = [r for r in records if r.arm in arms and r.status == "ok" and r.data is not None]
    orders = {(len(r.steps.loss), r.data.order_sha256) for r in finished if r.data is not None}
    ordered = [(steps, order) for steps, order in orders if order is not None]
    if len(finished) < 2 or len(ordered) != len(orders):
        return f"{text}. Whether the order of all images was the same was not recorded."
    if len(ordered) > 1:
        return (
            f"{text}. They took different numbers of steps; those of equal length were given all "
            "images in the same order."
        )
    return (
        f"{text}, and the {len(finished)} that finished were given all images in the same order "
        f"(SHA-256 over their ids: {ordered[0][1]})."
    )
