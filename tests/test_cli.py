"""The command line: exit codes, what goes to which stream, interrupts, and a light --help."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

from datasets import write_sample
from harness import __version__
from harness.cli import main
from harness.record_files import read_record, read_study, write_json

pytestmark = pytest.mark.usefixtures("no_pauses")

REPOSITORY = Path(__file__).resolve().parent.parent
SMALL = ("--input", "synthetic", "--model", "lenet", "--image-size", "16", "--batch-size", "4")
SINGLE = ("--backend", "fake", *SMALL, "--steps", "8")
COMPARE = ("compare", "--backend", "fake", *SMALL, "--steps", "8", "--window-steps", "2")


def harness(*words: str | Path) -> Result:
    """Run the command line in this process; its workers are processes of their own."""
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="harness")


def tell(monkeypatch: pytest.MonkeyPatch, **behaviour: Any) -> None:
    monkeypatch.setenv("AMP_HARNESS_FAKE", json.dumps(behaviour))


def one_line(result: Result) -> str:
    """The error that was printed, which is a single line."""
    lines = [line for line in result.stderr.splitlines() if line.startswith(("harness:", "Error:"))]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.output
    return lines[0]


# --- single runs


def test_a_run_that_succeeds_exits_0_with_its_record_and_a_summary(tmp_path: Path):
    done = harness(*SINGLE, "--out", tmp_path)

    assert done.exit_code == 0, done.output
    record = read_record(tmp_path / "record.json")
    assert (record.status, len(record.steps.loss)) == ("ok", 8)
    assert "fake" in done.stdout
    assert f"record: {tmp_path}/record.json" in done.stdout
    assert "fake-fp32: training, step 8 of 8, loss " in done.stderr
    assert "\x1b" not in done.output  # not a terminal: plain lines


def test_json_is_all_that_stands_on_standard_output(tmp_path: Path):
    done = harness(*SINGLE, "--amp", "--out", tmp_path, "--json")

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads((tmp_path / "record.json").read_text())


@pytest.mark.parametrize(
    ("how", "status"),
    [("exception", "failed"), ("nan", "diverged"), ("out_of_memory", "out_of_memory")],
)
def test_a_run_that_fails_exits_1_and_keeps_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, status: str
):
    tell(monkeypatch, failure={"how": how, "at_step": 2})

    done = harness(*SINGLE, "--out", tmp_path)

    assert done.exit_code == 1
    record = read_record(tmp_path / "record.json")
    assert record.status == status
    assert record.reason is not None
    assert record.reason.split(" (see ")[0] in done.stderr


def test_amp_that_is_not_available_exits_3_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tell(monkeypatch, amp_available=False)

    done = harness(*SINGLE, "--amp", "--out", tmp_path)

    assert done.exit_code == 3
    assert "no float16 unit; use --precision fp32" in done.stderr
    assert read_record(tmp_path / "record.json").status == "unavailable"


def test_amp_that_runs_float32_exits_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tell(monkeypatch, effective="float32")

    done = harness(*SINGLE, "--amp", "--out", tmp_path)

    assert done.exit_code == 3
    assert "float16 was asked for, but the convolutions ran in float32" in done.stderr


def test_a_gpu_that_is_not_there_exits_3(tmp_path: Path):
    done = harness(*SINGLE, "--device", "cuda", "--out", tmp_path)

    assert done.exit_code == 3
    assert "no CUDA device" in done.stderr


@pytest.mark.parametrize(
    ("framework", "words", "reason"),
    [
        ("paddle", ("--amp", "--device", "cpu"), "float16"),
        ("torch", ("--device", "cuda:99"), "CUDA|cuda:99"),
        ("tensorflow", ("--device", "cuda:99"), "GPU|CUDA|cuda:99"),
        ("paddle", ("--device", "cuda:99"), "GPU|CUDA|cuda:99"),
    ],
)
def test_what_a_framework_cannot_do_here_exits_3_with_the_reason(
    tmp_path: Path, needs_frameworks, framework: str, words: tuple[str, ...], reason: str
):
    needs_frameworks(framework)
    done = harness(
        "--backend", framework, *SMALL, "--steps", "2", *words, "--out", tmp_path, "--json"
    )

    assert done.exit_code == 3, done.output
    record = json.loads(done.stdout)
    assert record["status"] == "unavailable"
    assert re.search(reason, record["reason"])


# --- bad usage and bad input


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((*SINGLE, "--lr", "-1"), "--lr"),
        ((*SINGLE, "--image-size", "big"), "--image-size"),
        ((*SINGLE, "--loss-scale", "huge"), "--loss-scale"),
        ((*SINGLE, "--timeout", "-1"), "--timeout"),
        ((*SINGLE, "--epochs", "3"), "exactly one of --epochs, --steps and --windows"),
        ((*SINGLE, "--python", "fake=/no/such/python"), "--python"),
        ((*SINGLE, "--colour", "red"), "--colour"),
        (("--backend", "jax"), "--backend"),
        (("contrast",), "contrast"),
        ((*COMPARE, "--precision", "fp8"), "--precision"),
        ((*COMPARE, "--momentum", "1"), "--momentum"),
        (("--lr", "0.5", *COMPARE), "--lr"),
        (("--backend", "fake", "compare"), "--backend"),
        (("compare", "--resume", "nowhere", "--lr", "0.5"), "--lr"),
        (("compare", "--resume", "nowhere", "--backend", "fake"), "--backend"),
        (("compare", "--resume", "nowhere"), "nowhere"),
        (("report", "nowhere"), "nowhere"),
    ],
)
def test_bad_usage_exits_2_and_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], named: str
):
    monkeypatch.chdir(tmp_path)

    done = harness(*words)

    assert done.exit_code == 2, done.output
    assert named in one_line(done)
    assert not [*tmp_path.rglob("record.json")]


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "empty class"])
@pytest.mark.parametrize("command", [SINGLE, COMPARE])
def test_data_that_cannot_be_used_exits_2_and_is_named_in_one_line(
    tmp_path: Path, kind: str, command: tuple[str, ...]
):
    data = tmp_path / "photos"
    match kind:
        case "empty":
            data.mkdir()
        case "text":
            data.write_text("not a picture")
        case "empty class":
            (data / "pizza").mkdir(parents=True)

    done = harness(*command, "--input", "cached", "--data", data, "--out", tmp_path / "out")

    assert done.exit_code == 2, done.output
    assert "photos" in one_line(done)
    assert not [*(tmp_path / "out").rglob("*.json")]


def test_a_folder_that_cannot_be_written_exits_1_with_its_path(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")

    done = harness(*SINGLE, "--out", tmp_path / "file" / "below")

    assert done.exit_code == 1
    assert str(tmp_path / "file") in one_line(done)


def test_a_bare_call_shows_the_help():
    done = harness()

    assert done.exit_code == 0
    assert "compare" in done.stdout
    assert done.stdout == harness("--help").stdout


# --- comparisons


def test_an_unavailable_cell_is_a_result_and_a_comparison_exits_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tell(monkeypatch, amp_available=False)

    done = harness(*COMPARE, "--out", tmp_path, "--json")

    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["directory"] == str(tmp_path)
    assert [record["status"] for record in result["records"]] == ["ok", "unavailable"]
    assert "no float16 unit" in (tmp_path / "report.md").read_text()
    for name in ("report.html", "results.csv", "study.json"):
        assert (tmp_path / name).stat().st_size > 0


def test_a_killed_worker_makes_a_comparison_exit_1_with_all_records_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tell(monkeypatch, failure={"how": "kill", "at_step": 3, "arm": "fp32"})

    done = harness(*COMPARE, "--out", tmp_path)

    assert done.exit_code == 1, done.output
    assert read_record(tmp_path / "records" / "fake-fp32.json").status == "failed"
    assert read_record(tmp_path / "records" / "fake-amp.json").status == "ok"
    assert "SIGKILL" in (tmp_path / "report.md").read_text()
    assert f"report: {tmp_path}/report.html" in done.stdout


def test_a_second_comparison_into_the_same_folder_exits_2(tmp_path: Path):
    first = harness(*COMPARE, "--precision", "fp32", "--out", tmp_path, "--json")
    before = (tmp_path / "records" / "fake-fp32.json").read_bytes()

    second = harness(*COMPARE, "--precision", "fp32", "--out", tmp_path)

    assert (first.exit_code, second.exit_code) == (0, 2)
    assert "--resume" in one_line(second)
    assert (tmp_path / "records" / "fake-fp32.json").read_bytes() == before


def test_a_study_of_another_version_is_not_continued(tmp_path: Path):
    harness(*COMPARE, "--precision", "fp32", "--out", tmp_path)
    study = read_study(tmp_path / "study.json")
    write_json(tmp_path / "study.json", study.model_copy(update={"harness_version": "0.0.1"}))
    (tmp_path / "records" / "fake-fp32.json").unlink()

    done = harness("compare", "--resume", tmp_path)

    assert done.exit_code == 2
    assert "harness was 0.0.1, is " in one_line(done)
    assert not (tmp_path / "records" / "fake-fp32.json").exists()


def test_the_command_of_a_record_repeats_the_run(tmp_path: Path):
    harness(*SINGLE, "--lr", "0.0123456789", "--seed", "3", "--out", tmp_path / "first")
    first = read_record(tmp_path / "first" / "record.json")
    program, *words = first.command.split()

    harness(*words[2:], "--out", tmp_path / "second")

    second = read_record(tmp_path / "second" / "record.json")
    assert program == "python"
    assert second.training == first.training
    assert second.steps.loss == first.steps.loss
    assert second.command == first.command


# --- real processes

# Imported, they would make --help slow; the frameworks first of all.
HEAVY = (
    *("torch", "tensorflow", "keras", "paddle", "pydantic", "numpy", "pandas", "scipy"),
    *("rich", "altair", "jinja2", "PIL", "vl_convert", "psutil", "pynvml"),
)
RUN_AND_TELL = """
import runpy, sys
sys.argv = ["harness", *sys.argv[1:]]
try:
    runpy.run_module("harness", run_name="__main__")
except SystemExit as end:
    print("exit code:", end.code)
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def imported_by(*words: str, ends_with: int = 0) -> set[str]:
    """The packages that a command line imports in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_TELL, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == f"exit code: {ends_with}"
    return set(done.stderr.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("words", [("--help",), ("compare", "--help"), ("report", "--help")])
def test_help_imports_nothing_heavy(words: tuple[str, ...]):
    assert not imported_by(*words) & set(HEAVY)


def test_the_check_of_imports_sees_what_a_command_imports(tmp_path: Path):
    # Reading records needs pydantic; the command ends before it needs more.
    (tmp_path / "study.json").write_text("{}")

    assert "pydantic" in imported_by("report", str(tmp_path), ends_with=2)


def test_the_version_is_that_of_the_code():
    assert harness("--version").stdout == f"{__version__}\n"


def start(*words: str | Path, **behaviour: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "harness", *map(str, words)],
        cwd=REPOSITORY,
        env=os.environ | {"AMP_HARNESS_FAKE": json.dumps(behaviour)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], path: Path) -> list[psutil.Process]:
    """Wait until `path` is there and a worker runs; returns the workers."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        workers = psutil.Process(process.pid).children(recursive=True)
        if path.exists() and workers:
            return workers
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"{path} did not come: {process.communicate()}")


def test_ctrl_c_exits_130_keeps_finished_records_and_tells_how_to_go_on(tmp_path: Path):
    hang = {"how": "hang", "arm": "fake-amp-seed1"}
    process = start(*COMPARE, "--seeds", "2", "--out", tmp_path, failure=hang)
    finished = tmp_path / "records" / "fake-amp.json"
    workers = wait_for(process, finished)
    before = finished.read_bytes()

    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)

    assert process.returncode == 130, told
    assert f"python -m harness compare --resume {tmp_path}" in told.splitlines()[-1]
    assert "Traceback" not in told
    assert not psutil.wait_procs(workers, timeout=30)[1]
    kept = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert kept == ["fake-amp.json", "fake-fp32.json"]
    assert not [*tmp_path.rglob("*.part")]

    # The command that was told goes on from there.
    done = harness("compare", "--resume", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    assert [record["status"] for record in json.loads(done.stdout)["records"]] == ["ok"] * 8
    assert finished.read_bytes() == before


def test_ctrl_c_in_a_single_run_exits_130_and_leaves_no_worker(tmp_path: Path):
    process = start(*SINGLE, "--out", tmp_path, failure={"how": "hang"})
    workers = wait_for(process, tmp_path / "worker.log")

    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)

    assert process.returncode == 130, told
    assert told.splitlines()[-1] == "harness: interrupted"
    assert not psutil.wait_procs(workers, timeout=30)[1]
    assert not (tmp_path / "record.json").exists()


# --- what would be lost, or have no effect


@pytest.mark.parametrize("there", ["record.json", "study.json"])
def test_a_single_run_does_not_write_over_results(tmp_path: Path, there: str):
    (tmp_path / there).write_text("{}")

    done = harness(*SINGLE, "--out", tmp_path)

    assert done.exit_code == 2
    assert f"holds results already ({there})" in one_line(done)
    assert [path.name for path in tmp_path.iterdir()] == [there]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--amp",), "--amp needs --backend"),
        (("--data", "photos"), "--data needs --backend"),
        (("compare", "--resume", ""), "the name of the folder is empty"),
        ((*SINGLE, "--out", " "), "the name of the folder is empty"),
        ((*COMPARE, "--batch-sizes", "4,8"), "--batch-size has no effect beside --batch-sizes"),
        ((*SINGLE, "--gradient-histogram", "9"), "comes after the last of 8 steps"),
        ((*SINGLE, "--lr", "nan"), "--lr: Input should be a finite number"),
        ((*SINGLE, "--python", "fake=/nowhere"), "there is no file /nowhere"),
    ],
)
def test_what_would_have_no_effect_or_no_meaning_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
):
    monkeypatch.chdir(tmp_path)

    done = harness(*words)

    assert done.exit_code == 2, done.output
    assert told in one_line(done)
    assert not [*tmp_path.iterdir()]


def test_photos_that_cannot_be_used_are_told_on_standard_error(tmp_path: Path):
    photos = write_sample(tmp_path / "photos", images_per_class=4, image_size=16)
    kind = next(path for path in sorted(photos.iterdir()) if path.is_dir())
    (kind / "torn.jpg").write_bytes(b"")
    (photos / "loose.jpg").write_bytes(next(kind.glob("*.jpg")).read_bytes())
    words = ("--backend", "fake", "--model", "lenet", "--image-size", "16", "--batch-size", "4")

    done = harness(
        *(*words, "--steps", "3", "--data", photos),
        *("--out", tmp_path / "out", "--cache-dir", tmp_path / "cache"),
    )

    assert done.exit_code == 0, done.output
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings[0] == (
        f"warning: 1 file cannot be used; the first is {kind.name}/torn.jpg: empty file "
        "(all are in quarantine.csv)"
    )
    assert "loose.jpg" in warnings[1]


def test_more_threads_than_cpus_are_warned_of(tmp_path: Path):
    done = harness(*SINGLE, "--threads", "1024", "--out", tmp_path, "--json")

    (record,) = [json.loads(done.stdout)]
    assert any("1024 threads share " in warning for warning in record["warnings"])
