"""What a report says first: a sentence for each backend, and the warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports import formats
from reports.blocks import Card
from reports.causes import causes, explain
from reports.cells import NOT_RUN_YET, Results
from reports.comparison import ComparisonRow
from reports.fairness import SAME_START_TOLERANCE, data_groups, first_losses

_IN_WORDS = {
    "pays": "pays in {}",
    "slower": "is slower in {}",
    "no difference": "makes no difference in {}",
}
_WITHOUT_AN_ANSWER = {
    "too noisy": "the windows are too noisy to tell in {}",
    "unavailable": "no comparison could be made in {}",
    "confounded": "the arms differ in more than precision in {}",
}


def card(row: ComparisonRow, gap: str | None = None) -> Card:
    """What was measured for a backend, why it is so where that was measured, and main figures.

    ``gap`` is AMP's gap to float32, in words.
    """
    verdict = row.verdict
    return Card(
        backend=row.backend,
        kind=verdict.outcome,
        ratio=formats.times(verdict.speedup),
        interval=formats.bounds(verdict.speedup),
        sentence=f"{verdict.reason} {explain(row.judged)}".rstrip(),
        facts=(*_facts(row), *([gap] if gap else [])),
    )


def headline(rows: Sequence[ComparisonRow]) -> str:
    """All verdicts in one sentence, each with the first of its causes."""
    if not rows:
        return "No fp32 or AMP arm has been planned or run."
    backends: dict[str, list[str]] = {}
    for row in rows:
        found = causes(row.judged)
        why = f" ({found[0].short})" if found else ""
        backends.setdefault(row.verdict.outcome, []).append(f"{row.backend}{why}")

    def said(words: Mapping[str, str]) -> list[str]:
        return [
            text.format(formats.listed(backends[outcome]))
            for outcome, text in words.items()
            if outcome in backends
        ]

    shown = said(_IN_WORDS)
    parts = [f"AMP {formats.listed(shown)}"] if shown else []
    text = "; ".join([*parts, *said(_WITHOUT_AN_ANSWER)])
    return f"{text[0].upper()}{text[1:]}."


def assumptions(rows: Sequence[ComparisonRow]) -> str:
    """What stands in for the spread of processes where there were too few pairs to show it."""
    backends: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict.assumption is not None:
            backends.setdefault(row.verdict.assumption, []).append(row.backend)
    if len(backends) < 2:
        return "".join(backends)
    return " ".join(f"{formats.listed(names)}: {text}" for text, names in backends.items())


def run_headline(results: Results) -> str:
    """The sentence for a single run."""
    record = results.records[0]
    if record.status != "ok":
        return f"The run ended as {record.status}: {record.reason or 'no reason was recorded'}"
    speed = record.throughput.images_per_s if record.throughput else None
    top1 = record.accuracy.val_top1 if record.accuracy else None
    return (
        f"Trained {formats.number(speed)} images per second; "
        f"validation top-1 {formats.percent(top1)}."
    )


def warnings(results: Results, rows: Sequence[ComparisonRow]) -> list[str]:
    """What must be read before any figure of this report."""
    found: list[str] = []
    for groups in data_groups(results.records).values():
        if len(groups) > 1:
            parts = "; ".join(
                f"{formats.listed(arms)} ({', '.join(digest[:12] for digest in given)})"
                for given, arms in groups.items()
            )
            found.append(
                "The arms were not given the same first batches in the same order of images: "
                f"{parts}. Figures of arms from different groups must not be compared, "
                "and this report draws no comparison between frameworks."
            )
    far = [
        f"{first.arm} {formats.number(first.relative_difference)}"
        for first in first_losses(results.seed_records)
        if not (first.relative_difference or 0) <= SAME_START_TOLERANCE
    ]
    if far:
        found.append(
            "The float32 arms do not start from the same loss: relative difference of the first "
            f"step's loss {', '.join(far)}, above {SAME_START_TOLERANCE:g}. "
            "The frameworks did not start from the same network and data."
        )
    if results.study is not None and not results.study.finished:
        waiting = [cell.arm for cell in results.cells if cell.status == NOT_RUN_YET]
        if waiting:
            found.append(f"The study is not finished; not run yet: {formats.listed(waiting)}.")
    found += [f"{row.backend}: {text}" for row in rows for text in row.verdict.warnings]
    found += [f"{record.arm}: {text}" for record in results.records for text in record.warnings]
    return found


def _facts(row: ComparisonRow) -> list[str]:
    if row.fp32.status != "ok" or row.amp.status != "ok":
        return []
    facts = []
    if row.fp32.val_top1 is not None and row.amp.val_top1 is not None:
        facts.append(
            f"Validation top-1: {formats.percent(row.fp32.val_top1)} fp32, "
            f"{formats.percent(row.amp.val_top1)} AMP"
        )
    if row.fp32.peak_bytes is not None and row.amp.peak_source == row.fp32.peak_source:
        facts.append(
            f"Peak {row.fp32.peak_source} memory: {formats.mebibytes(row.fp32.peak_bytes)} fp32, "
            f"{formats.mebibytes(row.amp.peak_bytes)} AMP"
        )
    return facts
