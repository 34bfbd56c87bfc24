"""What a report says first: a sentence for each backend, and the warnings."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final, Protocol

from harness.speedup import Speedup
from harness.verdict import Verdict
from reports import formats
from reports.blocks import Card
from reports.causes import causes, explain
from reports.cells import LEFT_OUT, NOT_RUN_YET, Results
from reports.comparison import ComparisonRow
from reports.fairness import SAME_START_TOLERANCE, data_groups, first_losses
from reports.judged import Judged

_IN_WORDS = {
    "pays": "pays in {}",
    "slower": "is slower in {}",
    "no difference": "makes no difference in {}",
}
_WITHOUT_AN_ANSWER = {
    "too noisy": "not settled in {}",
    "unavailable": "no comparison could be made in {}",
    "confounded": "the arms differ in more than precision in {}",
}

_MAX_REASONS: Final = 3
"""Reasons for leaving arms out that the first page tells one by one."""


class Answer(Protocol):
    """Whether AMP pays in a backend: a row of the comparison, or a ladder."""

    @property
    def backend(self) -> str: ...
    @property
    def judged(self) -> Judged: ...
    @property
    def verdict(self) -> Verdict: ...


def card(row: ComparisonRow, gap: str | None = None, settings: str = "") -> Card:
    """What was measured for a backend, why it is so where that was measured, and main figures.

    ``gap`` is AMP's gap to float32, in words; ``settings`` those of the row, where there are more.
    """
    verdict = row.verdict
    return Card(
        backend=", ".join(filter(None, (row.backend, settings))),
        kind=verdict.outcome,
        ratio=formats.times(verdict.speedup),
        interval=formats.bounds(verdict.speedup),
        sentence=f"{verdict.reason} {explain(row.judged)}".rstrip(),
        facts=(*_facts(row), *([gap] if gap else [])),
    )


def headline(answers: Sequence[Answer]) -> str:
    """All verdicts in one sentence, each with the first of its causes."""
    if not answers:
        return "No fp32 or AMP arm has been planned or run."
    backends: dict[str, list[str]] = {}
    for answer in answers:
        why = [cause.short for cause in causes(answer.judged)[:1]]
        if answer.verdict.outcome == "too noisy" and answer.verdict.speedup is not None:
            why.insert(0, _unsettled_by(answer.verdict.speedup))
        told = f" ({'; '.join(why)})" if why else ""
        backends.setdefault(answer.verdict.outcome, []).append(f"{answer.backend}{told}")

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


def _unsettled_by(speedup: Speedup) -> str:
    """Which of the two spreads makes most of the interval: of windows, or of processes."""
    of_windows = speedup.window_sd**2 / speedup.windows
    of_processes = speedup.process_sd**2 / len(speedup.pair_ratios)
    return "noisy windows" if of_windows > of_processes else "too few process pairs"


def settling_command(results: Results, answers: Sequence[Answer]) -> str:
    """The command that measures the process pairs which would settle what is undecided, if any."""
    # A pair that does not count was a repetition all the same.
    needed = [
        (answer.backend, answer.verdict.settling_repeats + len(answer.judged.left_out))
        for answer in answers
        if answer.verdict.settling_repeats is not None
    ]
    if results.study is None or not needed:
        return ""
    backends = formats.listed([*dict.fromkeys(backend for backend, _ in needed)])
    folder = shlex.quote(str(results.directory))
    return (
        f"More process pairs would settle what is undecided in {backends}: "
        f"python -m harness compare --resume {folder} --repeats "
        f"{max(repeats for _, repeats in needed)}"
    )


def assumptions(answers: Sequence[Answer]) -> str:
    """What stands in for the spread of processes where there were too few pairs to show it."""
    backends: dict[str, list[str]] = {}
    for answer in answers:
        if answer.verdict.assumption is not None:
            names = backends.setdefault(answer.verdict.assumption, [])
            if answer.backend not in names:
                names.append(answer.backend)
    if len(backends) < 2:
        return "".join(backends)
    return " ".join(f"{formats.listed(names)}: {text}" for text, names in backends.items())


def left_out(results: Results, answers: Sequence[Answer]) -> str:
    """How many planned arms were not run, and why; and where the budget cost process pairs.

    Empty where all were run. It is no failure: a study decides it by its budget and first results.
    """
    by_reason = Counter(
        cell.reason or "no reason was recorded" for cell in results.cells if cell.status == LEFT_OUT
    )
    if not by_reason:
        return ""
    commonest = by_reason.most_common(_MAX_REASONS)
    told = [f"{arms} arms ({reason})" for reason, arms in commonest]
    if more := by_reason.total() - sum(arms for _, arms in commonest):
        told.append(f"{more} more")
    return f"{_few_pairs(results, answers)}Left out (listed below): {'; '.join(told)}."


def _few_pairs(results: Results, answers: Sequence[Answer]) -> str:
    budget_s = results.study.budget_s if results.study is not None else None
    shortened = {cell.backend for cell in results.cells if cell.status == LEFT_OUT}
    few = [
        f"{answer.backend} {len(answer.judged.counted)}"
        for answer in answers
        if answer.backend in shortened and answer.judged.counted
    ]
    if budget_s is None or not few:
        return ""
    return (
        f"The budget of {budget_s:,.0f} s left time for fewer process pairs than were planned "
        f"({formats.listed(few)}). "
    )


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


def warnings(results: Results, answers: Sequence[Answer]) -> list[str]:
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
    found += [f"{answer.backend}: {text}" for answer in answers for text in answer.verdict.warnings]
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
            f"{_chance(row.fp32.val_top1, row.amp.val_top1, row.fp32.val_images)}"
        )
    if row.fp32.peak_bytes is not None and row.amp.peak_source == row.fp32.peak_source:
        facts.append(
            f"Peak {row.fp32.peak_source} memory: {formats.mebibytes(row.fp32.peak_bytes)} fp32, "
            f"{formats.mebibytes(row.amp.peak_bytes)} AMP"
        )
    return facts


def _chance(one: float, other: float, images: int | None) -> str:
    """How far apart chance alone puts two shares of so few images, in 95 of 100 cases.

    The normal approximation for two independent samples. Both arms look at the same images, so
    that it is rather too wide; which of them each arm knew is not recorded.
    """
    if not images:
        return ""
    variance = (one * (1 - one) + other * (1 - other)) / images
    points = 100 * NormalDist().inv_cdf(0.975) * math.sqrt(variance)
    return f"; of {images:,} images, up to {points:.0f} points apart by chance"
