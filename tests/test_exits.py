"""Whatever stops a command, it ends in one line on standard error and the exit code of its kind."""

from __future__ import annotations

import errno
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from datasets import DataError
from harness.cli import main
from harness.exits import Commands, interruption_keeps
from harness.record_files import UnreadableRecord
from harness.worker_process import WorkerFailed

COMMANDS = {
    "a single run": ("--backend fake --device cpu --out {out}", "harness.inputs.prepare_input"),
    "compare": ("compare --backend fake --device cpu --out {out}", "harness.study.start_study"),
    "compare --resume": ("compare --resume {out}", "harness.study.study_to_resume"),
    "parity": ("parity --backend fake", "harness.parity.check_parity"),
    "drill": ("drill --backend fake", "harness.worker_process.WorkerProcess"),
    "doctor": ("doctor --backend fake", "harness.doctor.diagnose"),
    "max-batch": (
        "max-batch --backend fake --device cpu --memory-limit 500M --out {out}",
        "harness.max_batch.find_max_batch",
    ),
    "replicate": ("replicate --device cpu --out {out}", "harness.replicate.replicate"),
    "data scan": ("data scan {out}", "datasets.scan"),
    "data sample": ("data sample {out}", "datasets.write_sample"),
    "data fetch": ("data fetch food101 {out}", "datasets.fetch_food101"),
    "diff": ("diff {out} {out}", "reports.cells.read_results"),
    "report": ("report {out}", "reports.write_report"),
    "env": ("env --backend torch", "harness.env_command.make"),
}
"""Command → its words, and a function of ours that it cannot do without."""
DISK_FULL = OSError(errno.ENOSPC, "No space left on device", "/somewhere/record.json")


def end_with(
    command: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Result:
    """Run ``command`` with ``error`` in the middle of it."""
    words, function = COMMANDS[command]

    def stop(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(function, stop)
    return CliRunner().invoke(main, words.format(out=tmp_path / "out").split())


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupted_command_exits_130(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = end_with(command, KeyboardInterrupt(), tmp_path, monkeypatch)
    assert done.exit_code == 130, done.output
    assert done.stderr.splitlines()[-1].startswith("harness: interrupted")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_told_in_one_line_with_the_file(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = end_with(command, DISK_FULL, tmp_path, monkeypatch)
    assert done.exit_code == 1, done.output
    told = done.stderr.splitlines()[-1]
    assert told == "harness: /somewhere/record.json: No space left on device"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (DataError("food: no photos"), 2, "harness: food: no photos"),
        (UnreadableRecord("a.json: broken"), 2, "harness: a.json: broken"),
        (WorkerFailed("failed", "it broke"), 1, "harness: failed: it broke"),
    ],
)
def test_the_code_tells_bad_input_from_a_failure(
    error: Exception, code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = end_with("parity", error, tmp_path, monkeypatch)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (code, told)


def test_a_programming_error_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = end_with("parity", KeyError("oops"), tmp_path, monkeypatch)
    assert isinstance(done.exception, KeyError)


@pytest.mark.parametrize("there", [False, True])
def test_an_interruption_tells_of_what_is_kept_only_where_it_is(tmp_path: Path, there: bool):
    file = tmp_path / "study.json"
    if there:
        file.touch()

    @click.group(cls=Commands)
    def group() -> None: ...

    @group.command()
    def work() -> None:
        with interruption_keeps(file, "records are kept"):
            raise KeyboardInterrupt

    done = CliRunner().invoke(group, ["work"])
    note = "; records are kept" if there else ""
    assert done.stderr.splitlines() == [f"harness: interrupted{note}"]
