"""The verdict on AMP in one backend, from its process pairs: repetitions and further seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.records import Record
from harness.verdict import Verdict, judge
from reports.cells import Cell
from reports.fairness import confounding, differences
from reports.formats import precision as precision_name
from reports.speedup import ONE_AFTER_THE_OTHER, ProcessPair, process_pair

# What another seed changes, and nothing else does between two process pairs.
_OF_THE_SEED = ("seed", "first batches", "order of images")


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
        """What else a reader must know of the pairs: which do not count, and longer warm-ups."""
        return (*self.left_out, *(pair.warm_up for pair in self.counted if pair.warm_up))

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


def judge_arms(arms: Mapping[str, Cell], further: Mapping[str, Mapping[str, Cell]]) -> Judged:
    """Judge the cells ``fp32`` and ``amp`` of a backend.

    Args:
        arms: precision → cell, of the pair that the tables show. It decides whether there is a
            speedup at all.
        further: label → the same of repetitions and further seeds, which count as further pairs.
    """
    reason = _no_result(arms)
    if reason is not None:
        return Judged(verdict=judge([], unavailable=reason), pairs=(), left_out=())
    main = _records(arms)
    pairs, left_out = [process_pair(*main)], []
    if differing := confounding(differences(*main)):
        verdict = judge([pairs[0].windows], differences=differing)
        return Judged(verdict=verdict, pairs=tuple(pairs), left_out=())
    for label, cells in further.items():
        if reason := _no_result(cells) or _another(main, _records(cells)):
            left_out.append(f"the pair {label} does not count: {reason}")
        else:
            pairs.append(process_pair(*_records(cells)))
    verdict = with_pair_warnings(judge([pair.windows for pair in pairs]), pairs)
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


def _records(arms: Mapping[str, Cell]) -> tuple[Record, Record]:
    fp32, amp = arms["fp32"].record, arms["amp"].record
    assert fp32 is not None
    assert amp is not None
    return fp32, amp


def gap_of(cell: Cell) -> str | None:
    """Why an arm has no result, in words; None where it has one."""
    if cell.status == "ok":
        return None
    reason = f": {cell.reason}" if cell.reason else ""
    return f"{precision_name(cell.precision)} {cell.status.replace('_', ' ')}{reason}"


def _no_result(arms: Mapping[str, Cell]) -> str | None:
    gaps = []
    for name in ("fp32", "amp"):
        cell = arms.get(name)
        gap = f"{precision_name(name)} not planned" if cell is None else gap_of(cell)
        gaps += [gap.rstrip(".")] if gap else []
    if gaps:
        return f"{'; '.join(gaps)}."
    for record in _records(arms):
        if reason := _not_as_asked(record):
            return reason
    return None


def _not_as_asked(record: Record) -> str | None:
    precision = record.precision
    name = precision_name(precision.requested)
    if record.training is None:
        return f"The settings of {name} were not recorded."
    if precision.effective is None:
        return f"Nothing shows that {name} ran in {precision.dtype}."
    if precision.effective != precision.dtype:
        return f"{name} asked for {precision.dtype}, and {precision.effective} is what ran."
    return None


def _another(main: tuple[Record, Record], pair: tuple[Record, Record]) -> str | None:
    """Why a pair is no repetition of the main one, or is confounded in itself."""
    found = confounding(differences(*pair))
    for one, other in zip(main, pair, strict=True):
        found += [
            f"{d.setting}: {d.left} | {d.right}"
            for d in differences(one, other)
            if d.role not in ("length", "outcome") and d.setting not in _OF_THE_SEED
        ]
    return f"it differs in {'; '.join(dict.fromkeys(found))}" if found else None
