"""Worker processes: what dies, hangs or talks nonsense becomes a status and a reason.

Real processes: the fake backend's, or a shell script in the place of the interpreter.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fake_runs import fake_run, synthetic_input

from harness import worker_process
from harness.records import Status
from harness.worker import PARENT_GONE, describe_failure
from harness.worker_process import WorkerFailed, WorkerProcess

REPOSITORY = Path(__file__).resolve().parent.parent
PREPARE = {
    "run": fake_run(input="synthetic").model_dump(mode="json"),
    "spec": synthetic_input().spec.model_dump(mode="json"),
}
WINDOW = {"steps": 2, "warmup": False, "arm_position": 0}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "worker.log"


@pytest.fixture
def stand_in(tmp_path: Path):
    """A function that makes an interpreter of a shell script."""

    def make(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def is_gone(pid: int) -> bool:
    """Whether the process has ended (or is about to be collected by whoever adopted it)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_gone(pid)


def failure_of(python: str, log: Path, *, timeout_s: float = 60) -> WorkerFailed:
    """How asking a worker that `python` runs fails; the process is gone afterwards."""
    with WorkerProcess(fake_run(timeout_s=timeout_s), python=python, log=log) as worker:
        pid = worker._process.pid
        with pytest.raises(WorkerFailed) as caught:
            worker.ask("prepare", **PREPARE)
    assert is_gone(pid)
    return caught.value


# --- stand-ins that misbehave


@pytest.mark.parametrize(
    "answer",
    [
        "Segmentation fault",
        '{"ok": ',
        "5",
        "null",
        "[]",
        '"error"',
        "{}",
        '{"error": {}}',
        '{"error": "text"}',
        '{"ok": 5}',
        "\\377\\376\\000",
        "",
    ],
)
def test_an_answer_that_is_none_is_a_failure_that_shows_it(stand_in, log: Path, answer: str):
    failure = failure_of(stand_in(f"printf '{answer}\\n'; exec sleep 1000"), log)

    assert failure.status == "failed"
    assert "the worker's answer is unreadable" in failure.reason


def test_a_deeply_nested_answer_is_a_failure(stand_in, log: Path):
    many = "head -c 200000 /dev/zero | tr '\\0' '['; echo; exec sleep 1000"
    failure = failure_of(stand_in(many), log)

    assert "unreadable" in failure.reason
    assert len(failure.reason) < 300


def test_an_endless_answer_is_cut_off_and_shown_in_part(
    stand_in, log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_process, "_LINE_LIMIT_BYTES", 4096)
    failure = failure_of(stand_in("exec tr '\\0' x </dev/zero"), log)

    assert failure.status == "failed"
    assert "unreadable: 'xxxx" in failure.reason
    assert len(failure.reason) < 300


def test_a_worker_that_ends_without_a_word_is_told_by_its_code(stand_in, log: Path):
    failure = failure_of(stand_in("exit 0"), log)

    assert failure.status == "failed"
    assert failure.reason == f"the worker exited with code 0 (see {log})"


def test_the_last_words_of_a_worker_are_told_and_the_rest_is_in_its_log(stand_in, log: Path):
    failure = failure_of(stand_in("echo first >&2; echo libcuda.so not found >&2; exit 3"), log)

    assert failure.reason == (
        f"the worker exited with code 3; its last words: libcuda.so not found (see {log})"
    )
    assert log.read_text() == "first\nlibcuda.so not found\n"


def test_last_words_are_short_and_readable_whatever_was_written(stand_in, log: Path):
    script = "head -c 9000 /dev/urandom >&2; head -c 9000 /dev/zero | tr '\\0' y >&2; exit 1"
    failure = failure_of(stand_in(script), log)

    assert len(failure.reason) < 500 + len(str(log))
    assert "yyy" in failure.reason


@pytest.mark.parametrize("name", ["KILL", "SEGV", "ABRT", "TERM"])
def test_a_signal_is_told_by_its_name(stand_in, log: Path, name: str):
    failure = failure_of(stand_in(f"ulimit -c 0; kill -{name} $$"), log)

    assert failure.status == "failed"
    assert f"ended by SIG{name}" in failure.reason
    assert ("memory ran out" in failure.reason) == (name == "KILL")


def test_a_silent_worker_is_killed_when_its_time_is_up(stand_in, log: Path):
    failure = failure_of(stand_in("exec sleep 1000"), log, timeout_s=0.2)

    assert failure.status == "failed"
    assert "no answer to 'prepare' within 0.2 s" in failure.reason
    assert "--timeout" in failure.reason


def test_a_worker_that_closes_its_answers_and_lives_on_is_killed(
    stand_in, log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_process, "_GRACE_S", 0.2)
    failure = failure_of(stand_in("exec >&-; exec sleep 1000"), log)

    assert failure.status == "failed"
    assert "closed its answers" in failure.reason


def test_an_interpreter_that_is_not_there_is_a_failure_with_its_path(tmp_path: Path, log: Path):
    with pytest.raises(WorkerFailed, match=r"cannot start .*/nowhere: No such file"):
        WorkerProcess(fake_run(), python=str(tmp_path / "nowhere"), log=log)


def test_a_file_that_is_no_interpreter_is_a_failure(tmp_path: Path, log: Path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(WorkerFailed, match=r"cannot start .*/text: Permission denied"):
        WorkerProcess(fake_run(), python=str(tmp_path / "text"), log=log)


def test_the_children_of_a_worker_end_with_it(stand_in, log: Path, tmp_path: Path):
    script = f"sleep 1000 & echo $! > {tmp_path}/child; wait"
    failure_of(stand_in(script), log, timeout_s=1)

    assert wait_until_gone(int((tmp_path / "child").read_text()))


def test_leaving_the_block_by_an_error_ends_the_worker_at_once(stand_in, log: Path):
    with (
        pytest.raises(KeyboardInterrupt),
        WorkerProcess(fake_run(), python=stand_in("exec sleep 1000"), log=log) as worker,
    ):
        raise KeyboardInterrupt

    assert is_gone(worker._process.pid)


def test_a_worker_is_out_of_reach_of_ctrl_c_on_the_terminal(stand_in, log: Path):
    with WorkerProcess(fake_run(), python=stand_in("exec sleep 1000"), log=log) as worker:
        assert os.getpgid(worker._process.pid) != os.getpgid(0)
        worker.kill()


def test_only_the_listed_environment_reaches_a_worker(
    stand_in, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setenv("SOME_SECRET", "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    seen = tmp_path / "seen"
    run = fake_run(threads=3)
    with (
        WorkerProcess(run, python=stand_in(f"env > {seen}"), log=log) as worker,
        pytest.raises(WorkerFailed),
    ):
        worker.ask("prepare")

    variables = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["CUDA_VISIBLE_DEVICES"] == "3"
    assert not {"NVIDIA_TF32_OVERRIDE", "SOME_SECRET"} & set(variables)


# --- the real worker with the fake backend


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch):
    """A function that tells the fake backend what to do."""

    def tell(behaviour: str) -> None:
        monkeypatch.setenv("AMP_HARNESS_FAKE", behaviour)

    return tell


def test_a_worker_serves_its_commands_and_leaves(log: Path):
    with WorkerProcess(fake_run(), python=sys.executable, log=log) as worker:
        prepared = worker.ask("prepare", **PREPARE)
        result = worker.ask("window", **WINDOW)["result"]
        accuracy = worker.ask("evaluate")["accuracy"]
        finished = worker.ask("conclude")
        worker.ask("close")

    assert prepared["prepared"]["steps_per_epoch"] == 20
    assert prepared["prepared"]["in_force"]["device_type"] == "cpu"
    # The fake starts from zeros: five classes, equal probabilities.
    assert result["loss"][0] == pytest.approx(1.6094379)
    assert accuracy is None  # synthetic input has nothing to validate on
    assert len(finished["batch_sha256"]) == 64
    assert finished["memory"]["host_peak_bytes"] > 10_000_000
    assert finished["memory"]["device_allocated_peak_bytes"] is None
    assert worker._process.returncode == 0


def test_what_a_library_prints_goes_to_the_log_and_not_among_the_answers(fake, log: Path):
    fake('{"failure": {"how": "garbage"}}')
    with WorkerProcess(fake_run(), python=sys.executable, log=log) as worker:
        worker.ask("prepare", **PREPARE)
        assert len(worker.ask("window", **WINDOW)["result"]["loss"]) == 2
        worker.ask("close")

    assert log.read_bytes().count(b"\xff\xfenot json\n") == 2


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("exception", "failed", "RuntimeError: the fake backend was told to fail"),
        ("out_of_memory", "out_of_memory", "MemoryError: .*; choose a smaller --batch-size"),
        ("kill", "failed", r"ended by SIGKILL \(by a person, or .* memory ran out\)"),
        ("exit", "failed", "exited with code 7"),
        ("hang", "failed", "no answer to 'window' within 0.3 s"),
    ],
)
def test_a_failing_step_is_told_with_status_and_reason(
    fake, log: Path, how: str, status: Status, reason: str
):
    fake(f'{{"failure": {{"how": "{how}"}}}}')
    with WorkerProcess(fake_run(), python=sys.executable, log=log) as worker:
        worker.ask("prepare", **PREPARE)
        if how == "hang":
            worker._run = fake_run(timeout_s=0.3)
        with pytest.raises(WorkerFailed, match=reason) as caught:
            worker.ask("window", **WINDOW)

    assert caught.value.status == status
    assert is_gone(worker._process.pid)


def test_the_traceback_of_a_failure_is_in_the_log(fake, log: Path):
    fake('{"failure": {"how": "exception"}}')
    with WorkerProcess(fake_run(), python=sys.executable, log=log) as worker:
        worker.ask("prepare", **PREPARE)
        with pytest.raises(WorkerFailed):
            worker.ask("window", **WINDOW)

    assert "Traceback (most recent call last)" in log.read_text()


def test_a_run_that_the_backend_cannot_do_is_unavailable_with_the_remedy(log: Path):
    run = fake_run(device="cuda")
    with (
        WorkerProcess(run, python=sys.executable, log=log) as worker,
        pytest.raises(WorkerFailed, match="no CUDA device; use --device cpu") as caught,
    ):
        worker.ask("prepare", run=run.model_dump(mode="json"), spec=PREPARE["spec"])

    assert caught.value.status == "unavailable"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (MemoryError("bad\nalloc"), "out_of_memory", "MemoryError: bad; choose a smaller"),
        (ValueError("images too small"), "failed", "images too small"),
        (RuntimeError("first\nsecond"), "failed", "RuntimeError: first"),
        (KeyError("x"), "failed", "KeyError: 'x'"),
        (SystemExit(3), "failed", "SystemExit: 3"),
    ],
)
def test_an_error_becomes_one_line(error: BaseException, status: str, reason: str):
    told = describe_failure(error, None)

    assert told["status"] == status
    assert told["reason"].startswith(reason)
    assert "\n" not in told["reason"]


def test_a_worker_leaves_when_its_parent_closes_the_pipe_even_while_it_hangs(fake, log: Path):
    fake('{"failure": {"how": "hang"}}')
    with WorkerProcess(fake_run(), python=sys.executable, log=log) as worker:
        worker.ask("prepare", **PREPARE)
        stdin = worker._process.stdin
        assert stdin is not None
        stdin.write(
            b'{"command": "window", "arguments": {"steps": 1, "warmup": false, '
            b'"arm_position": 0}}\n'
        )
        stdin.close()
        assert worker._process.wait(timeout=60) == PARENT_GONE


# Starts a worker whose first step hangs, tells its process number, then waits to be killed.
PARENT = """
import sys
from pathlib import Path
from fake_runs import fake_run
from test_worker import PREPARE, WINDOW
from harness.worker_process import WorkerProcess

with WorkerProcess(fake_run(), python=sys.executable, log=Path(sys.argv[1])) as worker:
    worker.ask("prepare", **PREPARE)
    print(worker._process.pid, flush=True)
    worker.ask("window", **WINDOW)
"""


def test_no_worker_outlives_a_parent_that_is_killed(fake, log: Path):
    fake('{"failure": {"how": "hang"}}')
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(log)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "tests")])},
        cwd=REPOSITORY,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert not is_gone(worker)

    parent.send_signal(signal.SIGKILL)
    parent.wait(timeout=30)
    parent.stdout.close()

    assert wait_until_gone(worker)
