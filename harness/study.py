"""A comparison: several arms on one dataset, each saved as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import harness
from datasets import Progress, cache_root
from harness.budget import Budget
from harness.config import RunConfig
from harness.environment import describe_environment
from harness.forecast import Paces
from harness.inputs import PreparedInput, prepare_input
from harness.plan import in_turn
from harness.record_files import UnreadableRecord, read_record, read_study, write_json
from harness.records import Record, Study
from harness.runner import OnEvent
from harness.turns import run_arms


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
    return _run_missing(study, runs, data, directory, studio)


def resume_study(directory: Path, *, studio: Studio) -> list[Record]:
    """Run the arms that have no record yet.

    Raises:
        StudyError: there is no study, or the code, machine or data are no longer the same.
        datasets.DataError: the data cannot be used any more.
    """
    try:
        study = read_study(directory / "study.json")
    except UnreadableRecord as error:
        raise StudyError(f"there is no study to continue: {error}") from error
    runs = [RunConfig.model_validate(arm) for arm in study.arms]
    data = _Inputs(directory, studio, keep_manifest=True)
    if changes := _changes(study, data.of(runs[0])):
        raise StudyError(
            f"{directory} cannot be continued, since its arms would not be comparable: "
            f"{'; '.join(changes)}. Start anew with another --out."
        )
    return _run_missing(study, runs, data, directory, studio)


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
    study: Study, runs: list[RunConfig], data: _Inputs, directory: Path, studio: Studio
) -> list[Record]:
    records: dict[str, Record] = {}
    left_out: dict[str, str] = {}
    by_arm = {run.arm: run for run in runs}
    budget = Budget(study.budget_s)
    paces_path = cache_root(studio.cache_dir) / "paces.json"
    paces = Paces.read(paces_path)

    def keep(record: Record) -> None:
        _refuse_other_versions(record, records.values())
        write_json(record_path(directory, record.arm), record)
        records[record.arm] = record
        paces.add(by_arm[record.arm], record, paces_path)
        _refuse_other_data(records.values())

    groups = [*in_turn(runs)]
    for place, group in enumerate(groups):
        missing = []
        for run in group:
            path = record_path(directory, run.arm)
            if path.exists():
                records[run.arm] = _finished(path)
            else:
                missing.append(run)
        if not missing:
            continue
        firsts = [records.get(run.model_copy(update={"label": ""}).arm) for run in group]
        reason = _needless(group, firsts) or budget.refuses(group, firsts)
        if reason is not None:
            left_out |= {run.arm: reason for run in missing}
            continue
        measured = (w.arm_position for record in records.values() for w in record.windows)
        run_arms(
            missing,
            data.of(missing[0]),
            python=studio.pythons[missing[0].backend],
            log=lambda run: directory / "logs" / f"{run.arm}.log",
            command=studio.repeat_command,
            on_event=studio.on_event,
            on_record=keep,
            arm_position=1 + max(measured, default=-1),
            time_s=budget.share_s(len(groups) - place),
        )
    done = study.model_copy(update={"finished": True, "left_out": left_out})
    write_json(directory / "study.json", done)
    return [records[run.arm] for run in runs if run.arm in records]


def _needless(group: Sequence[RunConfig], firsts: Sequence[Record | None]) -> str | None:
    """Why there is no point in repeating these arms."""
    if not group[0].label:
        return None
    for first in firsts:
        if first is not None and first.status != "ok" and not group[0].variant.startswith("rung"):
            return f"there is no ratio to repeat: {first.arm} is {first.status.replace('_', ' ')}"
    return None


def _refuse_other_versions(record: Record, before: Iterable[Record]) -> None:
    """Stop a study that goes on in another environment of a framework than it began in."""
    for other in before:
        if other.backend != record.backend or not (other.environment and record.environment):
            continue
        was, now = other.environment.packages, record.environment.packages
        if changed := sorted(name for name in was | now if was.get(name) != now.get(name)):
            told = ", ".join(f"{name} was {was.get(name)}, is {now.get(name)}" for name in changed)
            raise StudyError(
                f"{record.arm} is not comparable with {other.arm}: {told}. Install what was there "
                "before, or start anew with another --out."
            )


def _refuse_other_data(records: Iterable[Record]) -> None:
    """Stop a study whose arms were given different batches: nothing in it can be compared."""
    given: dict[tuple[object, ...], Record] = {}
    for record in records:
        if record.status != "ok" or record.data is None or record.training is None:
            continue
        same = (record.variant, record.training.seed)
        for name, key in (
            ("batch_sha256", same),
            ("order_sha256", (*same, record.training.steps)),
        ):
            first = given.setdefault((name, *key), record)
            assert first.data is not None
            if getattr(record.data, name) != getattr(first.data, name):
                raise StudyError(
                    f"{first.arm} and {record.arm} were given different images ({name} differs), "
                    "so they cannot be compared; this is a fault of the harness or of a changed "
                    "cache: start anew with another --out and --cache-dir"
                )


def _finished(path: Path) -> Record:
    try:
        return read_record(path)
    except UnreadableRecord as error:
        raise StudyError(f"{error}; delete the file to have that arm run again") from error


def _changes(study: Study, data: PreparedInput) -> list[str]:
    now = describe_environment()
    was = study.environment
    compared = {
        "harness": (study.harness_version, harness.__version__),
        "CPU": (was.cpu, now.cpu),
        "usable CPUs": (was.cpus_usable, now.cpus_usable),
        "Python": (was.python, now.python),
        "data": (study.data.manifest_sha256, data.data.manifest_sha256),
        **{
            name: (was.packages.get(name), now.packages.get(name))
            for name in sorted(was.packages.keys() | now.packages.keys())
        },
    }
    return [f"{name} was {old}, is {new}" for name, (old, new) in compared.items() if old != new]
