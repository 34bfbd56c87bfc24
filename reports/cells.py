"""The cells of a study: what each planned arm has to show, or why it has nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.max_batch_result import MaxBatchStudy, read_max_batch
from harness.record_files import UnreadableRecord, read_record, read_study
from harness.records import Record, Study
from harness.verdict import MARGIN

NOT_RUN_YET = "not run yet"
LEFT_OUT = "left out"
"""Of a planned repetition or seed that the study decided not to run."""
UNREADABLE = "unreadable"

_ARM = re.compile(
    r"(?P<backend>.+?)-(?P<precision>fp32|amp|float64)"
    r"(?:-(?!(?:seed|repeat)\d)(?P<variant>[a-z0-9]+))?(?:-(?P<label>[a-z0-9]+))?"
)
_REPETITION = re.compile(r"repeat\d+$")


@dataclass(frozen=True)
class _Place:
    backend: str
    precision: str
    variant: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One arm of a study."""

    arm: str
    backend: str
    precision: str
    """fp32, amp or float64."""
    variant: str
    """Which of the settings that the study compares; empty for its main ones."""
    label: str
    """Tells a repetition or further seed of the same arm apart; empty for its first run."""
    status: str
    """A record's status, or ``not run yet``, ``left out``, or ``unreadable``."""
    reason: str | None
    """Why the status is not ok."""
    record: Record | None

    @property
    def repetition(self) -> bool:
        """Whether it repeats an arm with the same seed, for its speed alone."""
        return _REPETITION.search(self.label) is not None


@dataclass(frozen=True, kw_only=True)
class Results:
    """A study folder, or the folder of a single run (then ``study`` is None), as it was read."""

    study: Study | None
    cells: tuple[Cell, ...]
    """In planned order, then those that no plan names."""
    max_batch: MaxBatchStudy | None = None
    """The largest batches, where ``max-batch`` left its result in the same folder."""
    margin: float = MARGIN
    """Of a ratio about 1, no unit: smaller differences do not matter to the reader."""
    directory: Path = Path("DIR")
    """Where they were read from, as it was given, for the commands that go on from here."""

    @property
    def records(self) -> list[Record]:
        """The readable records, in the order of the cells."""
        return [cell.record for cell in self.cells if cell.record is not None]

    @property
    def seed_records(self) -> list[Record]:
        """Those of the main settings, of all seeds; without repetitions, which train less."""
        return [
            cell.record
            for cell in self.cells
            if cell.record is not None and not cell.variant and not cell.repetition
        ]

    @property
    def main_records(self) -> list[Record]:
        """Those of the main settings' first run: no other variant, repetition or seed."""
        return [
            cell.record
            for cell in self.cells
            if cell.record is not None and not cell.variant and not cell.label
        ]


def read_results(directory: Path, *, margin: float = MARGIN) -> Results:
    """Read ``study.json`` and ``records/*.json``, or else the ``record.json`` of a single run.

    A record that cannot be read becomes an ``unreadable`` cell with its reason. ``margin`` is that
    of all verdicts on them.

    Raises:
        UnreadableRecord: the folder holds neither file, or ``study.json`` (or the single record)
            or ``max_batch.json`` cannot be read.
    """
    max_batch = read_max_batch(directory)
    if (directory / "study.json").exists():
        study = read_study(directory / "study.json")
        records, unreadable = _read_records(directory / "records")
        cells = study_cells(study, records, unreadable)
        return Results(
            study=study, cells=cells, max_batch=max_batch, margin=margin, directory=directory
        )
    if (directory / "record.json").exists():
        record = read_record(directory / "record.json")
        return Results(
            study=None,
            cells=study_cells(None, [record]),
            max_batch=max_batch,
            margin=margin,
            directory=directory,
        )
    raise UnreadableRecord(
        f"{directory}: no study.json and no record.json in it; "
        "give the folder that a comparison or a run wrote"
    )


def study_cells(
    study: Study | None,
    records: Iterable[Record],
    unreadable: Mapping[str, str] | None = None,
) -> tuple[Cell, ...]:
    """Match records, and the reasons of unreadable ones by arm, with the arms of the plan.

    Raises:
        UnreadableRecord: an arm of the plan names no backend or no precision.
    """
    read = {record.arm: record for record in records}
    broken = dict(unreadable or {})
    planned = {} if study is None else dict(_planned(arm) for arm in study.arms)
    left_out = {} if study is None else study.left_out
    arms = dict.fromkeys([*planned, *read, *broken])
    return tuple(
        _cell(arm, planned.get(arm), read.get(arm), broken.get(arm), left_out.get(arm))
        for arm in arms
    )


def _planned(arm: dict[str, object]) -> tuple[str, _Place]:
    try:
        place = _Place(
            backend=str(arm["backend"]),
            precision=str(arm["precision"]),
            variant=str(arm.get("variant") or ""),
            label=str(arm.get("label") or ""),
        )
    except KeyError as error:
        raise UnreadableRecord(f"study.json: arms: an arm has no {error}") from error
    return "-".join(filter(None, dataclasses.astuple(place))), place


def _cell(
    arm: str,
    planned: _Place | None,
    record: Record | None,
    unreadable: str | None,
    left_out: str | None,
) -> Cell:
    place = planned or _named(arm)
    if record is not None:
        place = _Place(record.backend, record.precision.requested, record.variant, record.label)
        status, reason = str(record.status), record.reason
    elif unreadable is not None:
        status, reason = UNREADABLE, unreadable
    elif left_out is not None:
        status, reason = LEFT_OUT, left_out
    else:
        status, reason = NOT_RUN_YET, None
    return Cell(arm=arm, **dataclasses.asdict(place), status=status, reason=reason, record=record)


def _named(arm: str) -> _Place:
    """What the name of a file tells whose content does not."""
    name = _ARM.fullmatch(arm)
    if name is None:
        return _Place(backend=arm, precision="", variant="", label="")
    return _Place(name["backend"], name["precision"], name["variant"] or "", name["label"] or "")


def _read_records(folder: Path) -> tuple[list[Record], dict[str, str]]:
    records: list[Record] = []
    unreadable: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            if not path.is_file():
                raise UnreadableRecord(f"{path}: not a file")
            record = read_record(path)
            if record.arm != path.stem:
                raise UnreadableRecord(f"{path}: arm: holds the record of {record.arm!r}")
            records.append(record)
        except UnreadableRecord as error:
            # The study's own place says nothing to whom it is sent: name the file within it.
            reason = str(error).removeprefix(f"{path}: ")
            unreadable[path.stem] = f"records/{path.name}: {reason}"
    return records, unreadable
