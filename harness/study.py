"""A comparison: several arms on one dataset, each saved as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import harness
from datasets import Progress, cache_root
from harness.budget import Budget
from harness.comparability import changes_since, other_batches, other_worker
from harness.config import RunConfig
from harness.environment import describe_environment
from harness.forecast import Paces
from harness.inputs import PreparedInput, prepare_input
from harness.plan import Comparison, further_pairs, in_turn, process_pairs
from harness.record_files import UnreadableRecord, read_record, read_study, write_json
from harness.records import Record, Study
from harness.runner import OnEvent
from harness.turns import run_arms
from harness.verdict import MAX_PAIRS

Undecided = Callable[[Study, Sequence[Record]], Collection[Comparison]]
"""The comparisons whose verdict is open, from the records so far."""


class StudyError(Exception):
    """The study cannot be started or continued; the text tells why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Studio:
    """What every arm of a study needs beside its configuration."""

    cache_dir: Path | None
    strict: bool
    pythons: Mapping[str, str]
    """Backend → interpreter of its environment."""
    repeat_command: Callable[[RunConfig], str]
    on_event: OnEvent
    on_data: Progress


def start_study(
    runs: list[RunConfig],
    directory: Path,
    *,
    command: str,
    preset: str | None,
    studio: Studio,
    budget_s: float | None = None,
    undecided: Undecided | None = None,
) -> list[Record]:
    """Prepare the data, write ``study.json`` and run every arm.

    Args:
        runs: from :func:`harness.plan.plan`.
        directory: of the study; made where it is missing.
        command: as the user gave it.
        preset: likewise.
        studio: what every arm needs.
        budget_s: wall time of all arms, set-up of the data not included. Every cell is measured
            once, in windows as short as it takes; then repetitions follow while they fit.
        undecided: where given, process pairs beyond the plan follow for the comparisons that it
            names, while they fit into ``budget_s``.

    Raises:
        StudyError: ``directory`` holds a study already.
        datasets.DataError: the data cannot be used.
    """
    if (directory / "study.json").exists():
        raise StudyError(
            f"{directory} holds a study already; continue it with --resume {directory}, "
            "or name another folder with --out"
        )
    data = _Inputs(directory, studio)
    main = data.of(runs[0])
    study = Study(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        harness_version=harness.__version__,
        command=command,
        preset=preset,
        arms=[run.model_dump(mode="json") for run in runs],
        data=main.data,
        environment=describe_environment(),
        budget_s=budget_s,
    )
    write_json(directory / "study.json", study)
    return _run_missing(study, runs, data, directory, studio, undecided)


def study_to_resume(
    directory: Path, *, repeats: int | None = None, budget_s: float | None = None
) -> Study:
    """The study in ``directory``, as it is to be completed; nothing is written.

    Args:
        directory: of the study.
        repeats: process pairs that each comparison is to have; there is no budget then. None: as
            planned.
        budget_s: wall time from now on; None: that of the study, anew.

    Raises:
        StudyError: there is none.
    """
    try:
        study = read_study(directory / "study.json")
    except UnreadableRecord as error:
        raise StudyError(f"there is no study to continue: {error}") from error
    changes: dict[str, object] = {}
    if budget_s is not None:
        changes["budget_s"] = budget_s
    if repeats is not None:
        more = further_pairs(_runs(study), repeats)
        changes["arms"] = [*study.arms, *(run.model_dump(mode="json") for run in more)]
        changes["budget_s"] = None
    return study.model_copy(update=changes)


def missing_runs(study: Study, directory: Path) -> list[RunConfig]:
    """The arms that have no record yet."""
    return [run for run in _runs(study) if not record_path(directory, run.arm).exists()]


def resume_study(
    study: Study, directory: Path, *, studio: Studio, undecided: Undecided | None = None
) -> list[Record]:
    """Run the arms that have no record yet.

    Args:
        study: from :func:`study_to_resume`.
        directory: of the study.
        studio: what every arm needs.
        undecided: as for :func:`start_study`.

    Raises:
        StudyError: the code, machine or data are no longer the same.
        datasets.DataError: the data cannot be used any more.
    """
    runs = _runs(study)
    data = _Inputs(directory, studio, keep_manifest=True)
    if changes := changes_since(study, data.of(runs[0]).data, describe_environment()):
        raise StudyError(
            f"{directory} cannot be continued, since its arms would not be comparable: "
            f"{'; '.join(changes)}. Start anew with another --out."
        )
    study = study.model_copy(update={"finished": False})
    write_json(directory / "study.json", study)
    return _run_missing(study, runs, data, directory, studio, undecided)


def _runs(study: Study) -> list[RunConfig]:
    return [RunConfig.model_validate(arm) for arm in study.arms]


def record_path(directory: Path, arm: str) -> Path:
    """Where the record of ``arm`` lies in a study."""
    return directory / "records" / f"{arm}.json"


class _Inputs:
    """The data of a study's arms, decoded once for each size of the images."""

    def __init__(self, directory: Path, studio: Studio, *, keep_manifest: bool = False) -> None:
        self._directory = directory
        self._studio = studio
        self._keep_manifest = keep_manifest
        self._prepared: dict[tuple[object, ...], PreparedInput] = {}

    def of(self, run: RunConfig) -> PreparedInput:
        """What ``run`` trains on."""
        key = (run.input, run.image_size, run.resize, run.batch_size)
        if key not in self._prepared:
            self._prepared[key] = prepare_input(
                run,
                manifest_csv=self._directory / "manifest.csv",
                cache_dir=self._studio.cache_dir,
                strict=self._studio.strict,
                # All arms of a study share the split of its first one.
                keep_manifest=self._keep_manifest or bool(self._prepared),
                progress=self._studio.on_data,
            )
        return self._prepared[key]


def _run_missing(
    study: Study,
    runs: list[RunConfig],
    data: _Inputs,
    directory: Path,
    studio: Studio,
    undecided: Undecided | None,
) -> list[Record]:
    progress = _Progress(study, runs, directory, studio)
    groups = [*in_turn(runs)]
    for place, group in enumerate(groups):
        progress.run(group, data, share=len(groups) - place)
    if undecided is not None and study.budget_s is not None:
        while more := progress.next_pair(undecided):
            group, open_comparisons = more
            progress.run(group, data, share=open_comparisons)
    return progress.finish()


class _Progress:
    """Which arms of a study have their record, and what is left of its budget."""

    def __init__(
        self, study: Study, runs: list[RunConfig], directory: Path, studio: Studio
    ) -> None:
        self._study = study
        self._runs = runs
        self._directory = directory
        self._studio = studio
        self._budget = Budget(study.budget_s)
        self._paces_path = cache_root(studio.cache_dir) / "paces.json"
        self._paces = Paces.read(self._paces_path)
        self._records: dict[str, Record] = {}
        self._left_out: dict[str, str] = {}

    def run(self, group: Sequence[RunConfig], data: _Inputs, *, share: int) -> None:
        """Measure what is missing of arms that take turns, or note why it is left out.

        Args:
            group: of the plan.
            data: of the study.
            share: groups among which the rest of the budget is divided.
        """
        missing = []
        for run in group:
            path = record_path(self._directory, run.arm)
            if path.exists():
                self._records[run.arm] = _finished(path)
            else:
                missing.append(run)
        if not missing:
            return
        firsts = self._firsts(group)
        reason = _needless(group, firsts) or self._budget.refuses(group, firsts)
        if reason is not None:
            self._left_out |= {run.arm: reason for run in missing}
            return
        by_arm = {run.arm: run for run in missing}

        def keep(record: Record) -> None:
            if (reason := other_worker(record, self._records.values())) is not None:
                raise StudyError(reason)
            write_json(record_path(self._directory, record.arm), record)
            self._records[record.arm] = record
            self._paces.add(by_arm[record.arm], record, self._paces_path)
            if (reason := other_batches(self._records.values())) is not None:
                raise StudyError(reason)

        measured = (w.arm_position for record in self._records.values() for w in record.windows)
        run_arms(
            missing,
            data.of(missing[0]),
            python=self._studio.pythons[missing[0].backend],
            log=lambda run: self._directory / "logs" / f"{run.arm}.log",
            command=self._studio.repeat_command,
            on_event=self._studio.on_event,
            on_record=keep,
            arm_position=1 + max(measured, default=-1),
            time_s=self._budget.share_s(share),
        )

    def next_pair(self, undecided: Undecided) -> tuple[list[RunConfig], int] | None:
        """One more process pair of the open comparison that has the fewest, added to the plan.

        Returns:
            Its arms, and how many comparisons are open that a further pair fits; None where there
            is no such comparison.
        """
        fitting = []
        planned = process_pairs(self._runs)
        for of in undecided(self._study, [*self._records.values()]):
            pairs = planned[of]
            group = further_pairs(self._runs, pairs + 1, of=[of])
            firsts = self._firsts(group)
            if pairs < MAX_PAIRS and not (
                _needless(group, firsts) or self._budget.refuses(group, firsts)
            ):
                fitting.append((pairs, group))
        if not fitting:
            return None
        _, group = min(fitting, key=lambda item: item[0])
        self._runs += group
        self._study = self._study.model_copy(
            update={"arms": [run.model_dump(mode="json") for run in self._runs]}
        )
        # On disk before it starts: a study that is cut short knows what it set out to do.
        write_json(self._directory / "study.json", self._study)
        return group, len(fitting)

    def finish(self) -> list[Record]:
        """Note in ``study.json`` that nothing is left to do; returns the records as planned."""
        done = {"finished": True, "left_out": self._left_out}
        write_json(self._directory / "study.json", self._study.model_copy(update=done))
        return [self._records[run.arm] for run in self._runs if run.arm in self._records]

    def _firsts(self, group: Sequence[RunConfig]) -> list[Record | None]:
        return [self._records.get(run.model_copy(update={"label": ""}).arm) for run in group]


def _needless(group: Sequence[RunConfig], firsts: Sequence[Record | None]) -> str | None:
    """Why there is no point in repeating these arms."""
    if not group[0].label:
        return None
    for first in firsts:
        if first is not None and first.status != "ok" and not group[0].variant.startswith("rung"):
            return f"there is no ratio to repeat: {first.arm} is {first.status.replace('_', ' ')}"
    return None


def _finished(path: Path) -> Record:
    try:
        return read_record(path)
    except UnreadableRecord as error:
        raise StudyError(f"{error}; delete the file to have that arm run again") from error
