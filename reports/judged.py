"""The verdict on two arms of one backend, AMP over fp32 as a rule, from all their process pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.records import Record
from harness.verdict import MARGIN, Verdict, judge
from reports.cells import LEFT_OUT, Cell
from reports.fairness import Factor, confounding, differences
from reports.formats import precision as precision_name
from reports.speedup import ONE_AFTER_THE_OTHER, ProcessPair, process_pair

# What another seed changes, and nothing else does between two process pairs.
_OF_THE_SEED = ("seed", "first batches", "order of images")

Arms = tuple[Cell | None, Cell | None]
"""Baseline and candidate; None where an arm was not planned."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict with the pairs it rests on."""

    verdict: Verdict
    pairs: tuple[ProcessPair, ...]
    left_out: tuple[str, ...]
    """Further pairs that do not count, each with the reason."""

    @property
    def counted(self) -> list[ProcessPair]:
        """The pairs behind :attr:`Verdict.speedup`, in the order of its ratios."""
        return [pair for pair in self.pairs if pair.counted] if self.verdict.speedup else []

    @property
    def notes(self) -> tuple[str, ...]:
        """What else a reader must know of the pairs: pairs or first windows that do not count."""
        return (*self.left_out, *(pair.cut for pair in self.counted if pair.cut))

    @property
    def in_turn(self) -> bool | None:
        """Whether all counted pairs were measured in turn; None where there is no speedup."""
        return all(pair.in_turn for pair in self.counted) if self.counted else None


def judge_cells(cells: Iterable[Cell]) -> Judged:
    """Judge the fp32 and AMP cells of one backend and one variant, all labels."""
    labels = by_label(cells)
    return judge_arms(labels.pop("", {}), labels)


def by_label(cells: Iterable[Cell]) -> dict[str, dict[str, Cell]]:
    """Label → precision → cell; the arms of a label are those of one pair of processes."""
    labels: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        if cell.precision in ("fp32", "amp"):
            labels.setdefault(cell.label, {}).setdefault(cell.precision, cell)
    return labels


def judge_arms(
    arms: Mapping[str, Cell],
    further: Mapping[str, Mapping[str, Cell]],
    *,
    margin: float = MARGIN,
) -> Judged:
    """Judge the cells ``fp32`` and ``amp`` of a backend; as :func:`judge_pairs`."""
    return judge_pairs(
        (arms.get("fp32"), arms.get("amp")),
        {label: (cells.get("fp32"), cells.get("amp")) for label, cells in further.items()},
        margin=margin,
    )


def judge_pairs(
    main: Arms,
    further: Mapping[str, Arms],
    *,
    names: tuple[str, str] = ("fp32", "AMP"),
    factor: Factor | tuple[Factor, ...] = "precision",
    margin: float = MARGIN,
) -> Judged:
    """Judge two arms.

    Args:
        main: the pair that the tables show. It decides whether there is a speedup at all.
        further: label → the same of repetitions and further seeds, which count as further pairs.
        names: of baseline and candidate, for the sentences.
        factor: in what the two may differ.
        margin: of a ratio about 1 that does not matter.
    """
    records = _records(main, names)
    if isinstance(records, str):
        verdict = judge([], unavailable=records, names=names, margin=margin)
        return Judged(verdict=verdict, pairs=(), left_out=())
    pairs, left_out = [process_pair(*records)], []
    if differing := confounding(differences(*records, factor=factor)):
        verdict = judge([pairs[0].windows], differences=differing, names=names, margin=margin)
        return Judged(verdict=verdict, pairs=tuple(pairs), left_out=())
    for label, arms in further.items():
        if all(cell is not None and cell.status == LEFT_OUT for cell in arms):
            continue  # It is told of with all others that were left out.
        found = _records(arms, names)
        reason = found if isinstance(found, str) else _another(records, found, factor)
        if isinstance(found, str) or reason is not None:
            left_out.append(f"the pair {label} does not count: {reason}")
        else:
            pairs.append(process_pair(*found))
    verdict = judge([pair.windows for pair in pairs], names=names, margin=margin)
    verdict = with_pair_warnings(verdict, pairs)
    return Judged(verdict=verdict, pairs=tuple(pairs), left_out=tuple(left_out))


def with_pair_warnings(verdict: Verdict, pairs: Sequence[ProcessPair]) -> Verdict:
    """``verdict`` with a warning of each arm that never became steady, and where pairs behind its
    speedup were not measured in turn."""
    counted = [pair for pair in pairs if pair.counted]
    if verdict.speedup is None:
        return verdict
    warnings = [text.rstrip(".") for pair in counted for text in pair.unsteady]
    if apart := sum(not pair.in_turn for pair in counted):
        of_some = f" of {apart} of {len(counted)} process pairs" if apart < len(counted) else ""
        warnings.append(f"the arms{of_some} were {ONE_AFTER_THE_OTHER}")
    return dataclasses.replace(verdict, warnings=(*verdict.warnings, *warnings))


def gap_of(cell: Cell, name: str | None = None) -> str | None:
    """Why an arm has no result, in words; None where it has one."""
    if cell.status == "ok":
        return None
    reason = f": {cell.reason}" if cell.reason else ""
    return f"{name or precision_name(cell.precision)} {cell.status.replace('_', ' ')}{reason}"


def _records(arms: Arms, names: tuple[str, str]) -> tuple[Record, Record] | str:
    """The records of both arms, or why there is no result to compare."""
    gaps = []
    for name, cell in zip(names, arms, strict=True):
        gap = f"{name} not planned" if cell is None else gap_of(cell, name)
        gaps += [gap.rstrip(".")] if gap else []
    if gaps:
        return f"{'; '.join(gaps)}."
    baseline, candidate = (cell.record if cell is not None else None for cell in arms)
    assert baseline is not None
    assert candidate is not None
    for name, record in zip(names, (baseline, candidate), strict=True):
        if reason := _not_as_asked(name, record):
            return reason
    return baseline, candidate


def _not_as_asked(name: str, record: Record) -> str | None:
    precision = record.precision
    if record.training is None:
        return f"The settings of {name} were not recorded."
    if precision.effective is None:
        return f"Nothing shows that {name} ran in {precision.dtype}."
    if precision.effective != precision.dtype:
        return f"{name} asked for {precision.dtype}, and {precision.effective} is what ran."
    return None


def _another(
    main: tuple[Record, Record],
    pair: tuple[Record, Record],
    factor: Factor | tuple[Factor, ...],
) -> str | None:
    """Why a pair is no repetition of the main one, or is confounded in itself."""
    found = confounding(differences(*pair, factor=factor))
    for one, other in zip(main, pair, strict=True):
        found += [
            f"{d.setting}: {d.left} | {d.right}"
            for d in differences(one, other)
            if d.role not in ("length", "outcome") and d.setting not in _OF_THE_SEED
        ]
    return f"it differs in {'; '.join(dict.fromkeys(found))}" if found else None
