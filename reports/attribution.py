"""What each rung of the ladder adds to the speed of a backend, and AMP's own share of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from harness.ladder import LADDER, Rung, compared_with
from harness.speedup import Speedup
from harness.verdict import Verdict, judge
from reports import formats
from reports.cells import NOT_RUN_YET, Cell, Results
from reports.fairness import Factor, differences
from reports.judged import Judged, judge_pairs
from reports.speedup import window_rates

RUNGS: Final = {rung.variant: rung for rung in LADDER}
STRICT: Final = LADDER[0]
"""fp32 without TF32, which all rungs are compared with at last."""

_CHANGES: Final[Mapping[str, Factor]] = {
    "rung1": "tf32",
    "rung2": "precision",
    "rung3": "precision",
    "rung4": "layout",
    "rung5": "batch size",
    "rung6": "compile",
}
_AMP_RUNGS: Final = {"float16": "rung2", "bfloat16": "rung3"}


@dataclass(frozen=True, kw_only=True)
class Share:
    """AMP's part of the logarithm of a whole gain, a fraction of 1; below 0 it takes from it."""

    value: float
    low: float
    high: float
    """Bounds from the far ends of both factors' 95 % intervals: right wherever these both are,
    which is in at least 90 % of studies."""


@dataclass(frozen=True, kw_only=True)
class RungResult:
    """One rung of a backend."""

    rung: Rung
    status: str
    """Of its first run."""
    reason: str | None
    """Why the status is not ok."""
    images_per_s: float | None
    """Median of the timed windows of its first run and of its repetitions."""
    below: Rung | None
    """With which it is compared; None for strict fp32."""
    gain: Judged | None
    """Over :attr:`below`, from which it differs in one setting; None for strict fp32."""
    total: Judged | None
    """Over strict fp32; None for strict fp32."""
    warnings: tuple[str, ...]
    """What the runner warned of in its first run."""

    @property
    def notes(self) -> list[str]:
        """What its figures alone do not say, in sentences: why it has no result or no factor, why a
        factor is undecided, and which pairs do not count."""
        if self.status != "ok":
            reason = self.reason or "no reason was recorded"
            return [f"{self.status.replace('_', ' ')}: {_sentence(reason)}"]
        told = [judged for judged in (self.gain, self.total) if judged is not None]
        undecided = [
            judged.verdict.reason
            for judged in told
            if judged.verdict.speedup is None or judged.verdict.outcome == "too noisy"
        ]
        # The lowest rung above strict fp32 is compared with it twice, in the same words.
        return [
            *dict.fromkeys(undecided),
            *(_sentence(note) for judged in told[:1] for note in judged.notes),
        ]

    @property
    def doubts(self) -> list[str]:
        """What makes its factors less sure than their intervals say."""
        told = [judged for judged in (self.gain, self.total) if judged is not None]
        return [*dict.fromkeys(text for judged in told for text in judged.verdict.warnings)]


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """All rungs of a backend, lowest first."""

    backend: str
    rungs: tuple[RungResult, ...]
    amp: Rung
    """In the dtype that the rungs above keep."""
    amp_below: Rung
    """fp32 as the AMP rung has it: TF32, or strict fp32 where there is no TF32."""
    judged: Judged
    """AMP over fp32, nothing else changed."""

    @property
    def verdict(self) -> Verdict:
        """Whether AMP by itself pays."""
        return self.judged.verdict

    @property
    def top(self) -> RungResult | None:
        """The highest rung, AMP or above it, that changed something and has its factors."""
        place = LADDER.index(self.amp)
        higher = [result for result in self.rungs if LADDER.index(result.rung) >= place]
        measured = [r for r in higher if r.gain is not None and r.gain.verdict.speedup is not None]
        return measured[-1] if measured else None


def ladders(results: Results) -> list[Ladder]:
    """The ladder of each backend that has one, in planned order."""
    by_backend: dict[str, dict[str, dict[str, Cell]]] = {}
    for cell in results.cells:
        if cell.variant in RUNGS:
            rungs = by_backend.setdefault(cell.backend, {})
            rungs.setdefault(cell.variant, {})[cell.label] = cell
    return [_ladder(backend, rungs, results.margin) for backend, rungs in by_backend.items()]


def share_of(own: Speedup, whole: Speedup) -> Share | None:
    """ln(own) ÷ ln(whole), since factors multiply; None where the whole may be no gain at all."""
    if whole.shown.low <= 1:
        return None
    least, most = math.log(whole.shown.low), math.log(whole.shown.high)
    low, high = math.log(own.shown.low), math.log(own.shown.high)
    return Share(
        value=math.log(own.ratio) / math.log(whole.ratio),
        # What is divided by more comes nearer to 0, from either side.
        low=low / (most if low > 0 else least),
        high=high / (least if high > 0 else most),
    )


def amp_share(ladder: Ladder) -> str:
    """AMP's own part of the whole gain of a backend, in one sentence.

    Factors multiply, so that shares of a gain are shares of its logarithm.
    """
    own, top = ladder.verdict, ladder.top
    name, below = ladder.amp.title, ladder.amp_below.title
    if own.speedup is None:
        return f"{name} has no factor of its own: {own.reason}"
    text = f"{name} by itself gives {formats.gain(own.speedup)} over {below} ({own.outcome})"
    if top is None or top.total is None or top.total.verdict.speedup is None:
        return f"{text}; no rung has a factor over {STRICT.title}."
    whole = top.total.verdict.speedup
    text += (
        f"; all changes up to {top.rung.title} together give {formats.gain(whole)} "
        f"over {STRICT.title} ({top.total.verdict.outcome})"
    )
    share = share_of(own.speedup, whole)
    if share is None or top.total.verdict.outcome != "pays":
        return f"{text}, so that no gain is shown to have a share in."
    if own.outcome not in ("pays", "slower"):
        return f"{text}; no share in that gain is seen of AMP."
    bounds = f"{_percent(share.value)} [{_percent(share.low)}, {_percent(share.high)}]"
    if share.value < 0:
        return (
            f"{text}; AMP has no share in that gain, it takes from it: {bounds} of its logarithm."
        )
    text += f"; AMP's share in that gain is {bounds} (of its logarithm)"
    if share.low > 1:
        return f"{text}: the other changes took from it."
    if share.value > 1:
        return (
            f"{text}: above 100 % the other changes would have taken from it, which is not shown."
        )
    return f"{text}."


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %".replace("-", "−")


def _ladder(backend: str, rungs: Mapping[str, Mapping[str, Cell]], margin: float) -> Ladder:
    measured = [
        variant for variant, cells in rungs.items() if "" in cells and cells[""].status == "ok"
    ]
    dtype = _kept_dtype(rungs)
    amp = RUNGS[_AMP_RUNGS[dtype]]
    amp_below = RUNGS["rung1" if "rung1" in measured else STRICT.variant]
    return Ladder(
        backend=backend,
        rungs=tuple(
            _result(rung, rungs, below=_below(rung, measured, dtype), margin=margin)
            for rung in LADDER
            if rung.variant in rungs
        ),
        amp=amp,
        amp_below=amp_below,
        judged=_judge(amp, amp_below, rungs, ("precision",), margin),
    )


def _kept_dtype(rungs: Mapping[str, Mapping[str, Cell]]) -> str:
    """Dtype of the rungs above the two AMP ones; float16 where none of them has a record."""
    found = {
        cell.record.precision.dtype
        for variant in ("rung4", "rung5", "rung6")
        for cell in rungs.get(variant, {}).values()
        if cell.record is not None
    }
    return "bfloat16" if found == {"bfloat16"} else "float16"


def _below(rung: Rung, measured: list[str], dtype: str) -> Rung | None:
    variant = compared_with(rung, measured, dtype)
    return None if variant is None else RUNGS[variant]


def _result(
    rung: Rung, rungs: Mapping[str, Mapping[str, Cell]], *, below: Rung | None, margin: float
) -> RungResult:
    cells = rungs[rung.variant]
    first = cells.get("")
    rates = [
        rate
        for cell in cells.values()
        if cell.record is not None and cell.status == "ok"
        for rate in window_rates(cell.record)
    ]
    # Between strict fp32 and a rung, whatever the ladder changes may have been changed.
    lower = LADDER[1 : LADDER.index(rung) + 1]
    changed: tuple[Factor, ...] = tuple(dict.fromkeys(_CHANGES[step.variant] for step in lower))
    return RungResult(
        rung=rung,
        status=NOT_RUN_YET if first is None else first.status,
        reason=None if first is None else first.reason,
        images_per_s=median(rates) if rates else None,
        below=below,
        gain=None
        if below is None
        else _judge(rung, below, rungs, (_CHANGES[rung.variant],), margin),
        total=None if below is None else _judge(rung, STRICT, rungs, changed, margin),
        warnings=() if first is None or first.record is None else tuple(first.record.warnings),
    )


def _judge(
    rung: Rung,
    below: Rung,
    rungs: Mapping[str, Mapping[str, Cell]],
    factors: tuple[Factor, ...],
    margin: float,
) -> Judged:
    a, b = rungs.get(below.variant, {}), rungs.get(rung.variant, {})
    labels = {label: (a.get(label), b.get(label)) for label in dict.fromkeys([*a, *b])}
    main = labels.pop("", (None, None))
    names = (below.title, rung.title)
    if len(factors) == 1 and _unchanged(main, factors):
        reason = f"{rung.title} changes nothing here: {below.title} ran with the same settings."
        verdict = judge([], unavailable=reason, names=names, margin=margin)
        return Judged(verdict=verdict, pairs=(), left_out=())
    return judge_pairs(main, labels, names=names, factor=factors, margin=margin)


def _unchanged(cells: Iterable[Cell | None], factors: tuple[Factor, ...]) -> bool:
    """Whether two finished arms do not differ in what one of them was to change."""
    records = [cell.record for cell in cells if cell is not None and cell.status == "ok"]
    known = [record for record in records if record is not None and record.training is not None]
    if len(known) < 2:
        return False
    found = differences(known[0], known[1], factor=factors)
    return not any(difference.role == "under test" for difference in found)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
