"""A comparison: several arms on one dataset, each saved as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import harness
from datasets import Progress
from harness.config import RunConfig
from harness.environment import describe_environment
from harness.inputs import PreparedInput, prepare_input
from harness.pair import run_pair
from harness.records import (
    Record,
    Study,
    UnreadableRecord,
    read_record,
    read_study,
    write_json,
)
from harness.runner import OnEvent


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
    runs: list[RunConfig], directory: Path, *, command: str, preset: str | None, studio: Studio
) -> list[Record]:
    """Prepare the data, write ``study.json`` and run every arm.

    Raises:
        StudyError: ``directory`` holds a study already.
        datasets.DataError: the data cannot be used.
    """
    if (directory / "study.json").exists():
        raise StudyError(
            f"{directory} holds a study already; continue it with --resume {directory}, "
            "or name another folder with --out"
        )
    data = _prepare(runs[0], directory, studio)
    study = Study(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        harness_version=harness.__version__,
        command=command,
        preset=preset,
        arms=[run.model_dump(mode="json") for run in runs],
        data=data.data,
        environment=describe_environment(),
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
    data = _prepare(runs[0], directory, studio, keep_manifest=True)
    if changes := _changes(study, data):
        raise StudyError(
            f"{directory} cannot be continued, since its arms would not be comparable: "
            f"{'; '.join(changes)}. Start anew with another --out."
        )
    return _run_missing(study, runs, data, directory, studio)


def record_path(directory: Path, arm: str) -> Path:
    """Where the record of ``arm`` lies in a study."""
    return directory / "records" / f"{arm}.json"


def _prepare(
    run: RunConfig, directory: Path, studio: Studio, *, keep_manifest: bool = False
) -> PreparedInput:
    return prepare_input(
        run,
        manifest_csv=directory / "manifest.csv",
        cache_dir=studio.cache_dir,
        strict=studio.strict,
        keep_manifest=keep_manifest,
        progress=studio.on_data,
    )


def _run_missing(
    study: Study, runs: list[RunConfig], data: PreparedInput, directory: Path, studio: Studio
) -> list[Record]:
    records: dict[str, Record] = {}

    def keep(record: Record) -> None:
        write_json(record_path(directory, record.arm), record)
        records[record.arm] = record
        _refuse_other_data(records.values())

    for _, group in groupby(runs, key=lambda run: (run.backend, run.label)):
        missing = []
        for run in group:
            path = record_path(directory, run.arm)
            if path.exists():
                records[run.arm] = _finished(path)
            else:
                missing.append(run)
        if missing:
            measured = (w.arm_position for record in records.values() for w in record.windows)
            run_pair(
                missing,
                data,
                python=studio.pythons[missing[0].backend],
                log=lambda run: directory / "logs" / f"{run.arm}.log",
                command=studio.repeat_command,
                on_event=studio.on_event,
                on_record=keep,
                arm_position=1 + max(measured, default=-1),
            )
    write_json(directory / "study.json", study.model_copy(update={"finished": True}))
    return [records[run.arm] for run in runs]


def _refuse_other_data(records: Iterable[Record]) -> None:
    """Stop a study whose arms were given different batches: nothing in it can be compared."""
    given: dict[int, Record] = {}
    for record in records:
        if record.status != "ok" or record.data is None or record.training is None:
            continue
        first = given.setdefault(record.training.seed, record)
        assert first.data is not None
        for name in ("batch_sha256", "order_sha256"):
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
