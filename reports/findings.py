"""What a report says first: a sentence for each backend, and the warnings."""

from __future__ import annotations

from collections.abc import Sequence

from reports import formats
from reports.blocks import Verdict
from reports.cells import NOT_RUN_YET, Results
from reports.comparison import ComparisonRow
from reports.fairness import SAME_START_TOLERANCE, data_groups, first_losses

WITHIN_ONE_PAIR = (
    "Each speedup compares one fp32 process with one AMP process; its 95 % interval comes from "
    "the windows within them. How much processes differ from each other was not measured and is "
    "not included."
)

SEVERAL_PAIRS = (
    "Each speedup compares one fp32 process with one AMP process; its 95 % interval comes from "
    "the windows within them and does not include how much processes differ. The pairs of the "
    "further seeds, under Speed, show that."
)


def verdict(row: ComparisonRow, gap: str | None = None) -> Verdict:
    """One sentence of what was measured for a backend, and its main figures.

    ``gap`` is AMP's gap to float32, in words.
    """
    gain = row.speedup
    return Verdict(
        backend=row.backend,
        kind=gain.verdict,
        ratio=formats.ratio(gain.ratio),
        interval="" if gain.low is None else formats.interval(gain.low, gain.high),
        sentence=_sentence(row),
        facts=(*_facts(row), *([gap] if gap else [])),
    )


def headline(rows: Sequence[ComparisonRow]) -> str:
    """All verdicts in one sentence."""
    if not rows:
        return "No fp32 or AMP arm has been planned or run."
    by_verdict: dict[str, list[str]] = {}
    for row in rows:
        by_verdict.setdefault(row.speedup.verdict, []).append(row.backend)
    moved = [f"{word} in {_listed(by_verdict[word])}" for word in ("faster", "slower")
             if word in by_verdict]  # fmt: skip
    said = [f"AMP was {' and '.join(moved)}"] if moved else []
    if "unclear" in by_verdict:
        said.append(f"no difference was shown in {_listed(by_verdict['unclear'])}")
    if "no ratio" in by_verdict:
        said.append(f"no comparison could be made in {_listed(by_verdict['no ratio'])}")
    text = "; ".join(said) + "."
    return text[0].upper() + text[1:]


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


def warnings(results: Results) -> list[str]:
    """What must be read before any figure of this report."""
    found: list[str] = []
    for groups in data_groups(results.records).values():
        if len(groups) > 1:
            parts = "; ".join(
                f"{_listed(arms)} ({', '.join(digest[:12] for digest in given)})"
                for given, arms in groups.items()
            )
            found.append(
                "The arms were not given the same first batches in the same order of images: "
                f"{parts}. Figures of arms from different groups must not be compared, "
                "and this report draws no comparison between frameworks."
            )
    far = [
        f"{first.arm} {formats.number(first.relative_difference)}"
        for first in first_losses(results.records)
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
            found.append(f"The study is not finished; not run yet: {_listed(waiting)}.")
    found += [f"{record.arm}: {text}" for record in results.records for text in record.warnings]
    return found


def _sentence(row: ComparisonRow) -> str:
    gain, amp = row.speedup, f"AMP ({row.amp.dtype or 'dtype not known'})"
    windows = f"medians of {gain.fp32_windows} fp32 and {gain.amp_windows} AMP windows"
    if gain.ratio is None or gain.low is None or gain.high is None:
        reason = "; ".join(row.gaps) or gain.reason or ""
        return f"No speedup can be given: {reason.rstrip('.')}."
    # An interval that reaches 0 (every step of a window skipped) cannot be turned round.
    if gain.verdict == "slower" and gain.low > 0:
        return (
            f"{amp} was slower: fp32 trained {formats.number(1 / gain.ratio)} times as many images "
            f"per second (95 % interval {formats.number(1 / gain.high)} to "
            f"{formats.number(1 / gain.low)}; {windows})."
        )
    times = (
        f"{formats.number(gain.ratio)} times as many images per second as fp32 (95 % interval "
        f"{formats.number(gain.low)} to {formats.number(gain.high)}; {windows})"
    )
    if gain.verdict == "unclear":
        return f"{amp} trained {times}: the interval contains 1, so no difference was shown."
    slower = "was slower: it " if gain.verdict == "slower" else ""
    return f"{amp} {slower}trained {times}."


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


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
