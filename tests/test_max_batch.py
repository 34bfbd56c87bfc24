"""The largest batch, on needs that are known; the limit, on processes that really allocate."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result
from fake_runs import fake_run

from harness import max_batch as searching
from harness.cli import main
from harness.config import RunConfig
from harness.max_batch import find_max_batch, largest_batch, most_images
from harness.max_batch_command import ByteSize
from harness.max_batch_result import LARGEST_BATCH, MaxBatch, MaxBatchStudy, Trial, gains
from harness.memory_limit import MemoryLimit
from harness.networks import build_network
from harness.worker_process import WorkerFailed

MIB = 2**20
linux_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


# The search, on a made-up need.


@pytest.mark.parametrize(
    ("most", "step", "found"),
    [
        # Doubling ends at 256, whose sixteenth is 16: 256, 272, 288, 304 …
        (300, None, (288, 16)),
        (288, None, (288, 16)),
        (287, None, (272, 16)),
        (511, None, (496, 16)),
        (512, None, (512, 32)),
        (300, 1, (300, 1)),
        (300, 100, (300, 100)),
        (8, None, (8, 1)),
        (5, None, (5, 1)),
        (2, None, (2, 1)),
        (1, None, (None, 1)),
    ],
)
def test_the_largest_batch_is_found_to_within_a_step(
    most: int, step: int | None, found: tuple[int | None, int]
):
    assert largest_batch(lambda batch: batch <= most, step=step) == found


@pytest.mark.parametrize("most", range(2, 600, 7))
def test_a_step_more_than_what_is_found_does_not_fit(most: int):
    tried: dict[int, bool] = {}

    def fits(batch: int) -> bool:
        assert batch not in tried, "tried twice"
        tried[batch] = batch <= most
        return tried[batch]

    found, step = largest_batch(fits, step=None)
    assert found is not None
    assert found <= most < found + step
    assert tried[found]
    assert step <= max(1, found / 16)


def test_the_search_ends_at_the_largest_batch_that_a_run_may_have():
    RunConfig(backend="fake", steps=1, batch_size=LARGEST_BATCH)
    with pytest.raises(ValueError, match="batch_size"):
        RunConfig(backend="fake", steps=1, batch_size=LARGEST_BATCH + 1)
    assert largest_batch(lambda batch: True, step=None) == (LARGEST_BATCH, None)


@pytest.mark.parametrize("step", [None, 1, 4096])
@pytest.mark.parametrize("most", [2, 7, 8, 100, 32_767])
def test_no_more_is_tried_than_the_most_and_nothing_is_bisected_below_it(
    most: int, step: int | None
):
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return True

    assert largest_batch(fits, step=step, most=most) == (most, None)
    assert max(tried) == most


def test_below_the_most_the_search_is_the_same():
    # Doubling ends at 64 of 100, and 64 + 4 is the next: the most itself is tried but does not fit.
    assert largest_batch(lambda batch: batch <= 67, step=None, most=100) == (64, 4)


@pytest.mark.parametrize(
    ("model", "image_size", "most"),
    [
        # The first convolution makes 64 x 32 x 32 = 2^16 values an image: 2^31 are 32,768 of them.
        ("resnet18", 64, 32_767),
        # 64 x 112 x 112 = 802,816: 2,674 of them are 2,146,729,984, and 2^31 is 2,147,483,648.
        ("resnet18", 224, 2_674),
        # In the bottlenecks' 256 x 56 x 56 channels there are as many values again.
        ("resnet50", 224, 2_674),
    ],
)
def test_no_activation_reaches_2_to_the_31_elements(model: str, image_size: int, most: int):
    assert most_images(build_network(model, classes=5, image_size=image_size)) == most


# The search, in worker processes.


@pytest.fixture
def imitate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say how the fake backend of the workers behaves."""

    def behave(**behaviour: Any) -> None:
        monkeypatch.setenv("AMP_HARNESS_FAKE", json.dumps(behaviour))

    return behave


def search(folder: Path, *, limit_mib: int = 4096, step: int | None = 64, **run: Any) -> MaxBatch:
    return find_max_batch(
        fake_run(input="synthetic", **run),
        python=sys.executable,
        log=folder / "worker.log",
        limit_bytes=limit_mib * MIB,
        step=step,
        on_trial=lambda run, trial: None,
    )


@linux_only
def test_a_trial_that_the_system_kills_does_not_fit(tmp_path: Path, imitate: Callable[..., None]):
    # 1000 bytes an image: 300 images fill it, so that 256 fit and 320 do not.
    imitate(image_bytes={"fp32": 1000}, memory_bytes=300_000)
    cell = search(tmp_path)
    assert (cell.status, cell.largest_batch, cell.batch_step) == ("ok", 256, 64)
    ended = {trial.batch_size: trial.reason for trial in cell.trials if not trial.fits}
    assert sorted(ended) == [320, 384, 512]
    assert all("SIGKILL" in (reason or "") for reason in ended.values())


def test_a_step_that_raises_out_of_memory_does_not_fit(
    tmp_path: Path, imitate: Callable[..., None]
):
    imitate(failure={"how": "out_of_memory", "at_step": 1})
    cell = search(tmp_path, step=2)
    assert (cell.status, cell.largest_batch) == ("ok", None)
    assert "MemoryError" in (cell.trials[-1].reason or "")


@pytest.mark.parametrize("how", ["exception", "exit"])
def test_any_other_failure_ends_the_search_with_its_reason(
    tmp_path: Path, imitate: Callable[..., None], how: str
):
    imitate(failure={"how": how, "at_step": 1})
    cell = search(tmp_path)
    assert (cell.status, cell.largest_batch, cell.trials) == ("failed", None, [])
    told = {"exception": "told to fail", "exit": "code 7"}
    assert told[how] in (cell.reason or "")


def test_a_trial_that_hangs_is_no_lack_of_memory(tmp_path: Path, imitate: Callable[..., None]):
    imitate(failure={"how": "hang", "at_step": 1})
    cell = search(tmp_path, timeout_s=10)
    assert cell.status == "failed"
    assert "no answer" in (cell.reason or "")


def test_an_unavailable_precision_is_told_as_such(tmp_path: Path, imitate: Callable[..., None]):
    imitate(amp_available=False)
    cell = search(tmp_path, precision="amp")
    assert cell.status == "unavailable"
    assert "no float16 unit" in (cell.reason or "")
    # What can be worked out without a process is told all the same.
    assert cell.estimated_bytes_per_image is not None


def test_a_search_that_ends_before_memory_does_tells_why(
    tmp_path: Path, imitate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    imitate(image_bytes={"fp32": 1000})
    network = build_network(fake_run().model, classes=5, image_size=fake_run().image_size)
    elements = searching.MOST_ELEMENTS // most_images(network)
    most = 21 * elements + 1
    monkeypatch.setattr(searching, "MOST_ELEMENTS", most)
    cell = search(tmp_path, step=None)
    assert (cell.status, cell.largest_batch, cell.batch_step) == ("ok", 21, None)
    assert [trial.batch_size for trial in cell.trials] == [8, 16, 21]
    told = f"batch 21 fits, and with more a tensor of the network would have more than {most:,}"
    assert told in (cell.reason or "")
    assert "--model" in (cell.reason or "")


def test_a_run_may_have_no_more_than_its_most_and_that_is_told(
    tmp_path: Path, imitate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    imitate(image_bytes={"fp32": 1000})
    monkeypatch.setattr(searching, "LARGEST_BATCH", 16)
    cell = search(tmp_path, step=None)
    assert (cell.status, cell.largest_batch) == ("ok", 16)
    assert "the most that a run may have" in (cell.reason or "")


def test_what_fitted_before_a_failure_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def tried(search: Any, run: RunConfig) -> Trial:
        if run.batch_size == 24:
            raise WorkerFailed("failed", "an illegal address")
        return Trial(batch_size=run.batch_size, fits=run.batch_size <= 16, peak_bytes=None)

    monkeypatch.setattr(searching._Search, "_try", tried)
    cell = search(tmp_path, step=None)
    assert (cell.status, cell.largest_batch, cell.batch_step) == ("failed", 16, None)
    assert cell.reason == "batch 24: an illegal address"
    assert [(t.batch_size, t.fits) for t in cell.trials] == [(8, True), (16, True), (32, False)]


@pytest.mark.slow
def test_memory_that_a_trial_really_takes_is_held_below_the_limit(
    tmp_path: Path, imitate: Callable[..., None]
):
    imitate(image_bytes={"fp32": 2 * MIB})
    cell = search(tmp_path, limit_mib=500, step=16)
    assert cell.status == "ok"
    assert cell.largest_batch is not None
    assert cell.peak_bytes is not None
    # What the process takes beside the images is the same in each trial, give or take some MiB.
    assert cell.peak_bytes <= 500 * MIB
    assert cell.peak_bytes + 16 * 2 * MIB > (500 - 8) * MIB
    assert cell.bytes_per_image == pytest.approx(2 * MIB, rel=0.1)
    beside = cell.peak_bytes - cell.largest_batch * 2 * MIB
    assert cell.runtime_bytes == pytest.approx(beside, abs=30 * MIB)


# The figures of a result.


def trial(batch_size: int, peak_mib: int | None, *, fits: bool = True) -> Trial:
    peak_bytes = None if peak_mib is None else peak_mib * MIB
    return Trial(batch_size=batch_size, fits=fits, peak_bytes=peak_bytes)


def cell(backend: str = "torch", precision: Any = "fp32", **changes: Any) -> MaxBatch:
    """96 images take 700 MiB, 32 take 380: 5 MiB an image."""
    values: dict[str, Any] = {
        "dtype": "float32",
        "status": "ok",
        "largest_batch": 96,
        "batch_step": 8,
        "estimated_batch": 120,
        "trials": [
            trial(16, 310),
            trial(32, 380),
            trial(64, 540),
            trial(128, 800, fits=False),
            trial(96, 700),
        ],
    }
    return MaxBatch(backend=backend, precision=precision, **values | changes)


def test_bytes_per_image_are_a_slope_over_two_measured_peaks():
    assert cell().peak_bytes == 700 * MIB
    assert cell().bytes_per_image == (700 - 380) * MIB / (96 - 32)


def test_bytes_per_image_are_unknown_without_two_peaks():
    assert cell(trials=[trial(96, 700)]).bytes_per_image is None
    assert cell(trials=[trial(48, None), trial(96, 700)]).bytes_per_image is None
    assert cell(largest_batch=None, trials=[]).bytes_per_image is None


def test_an_estimate_is_off_by_its_excess_over_what_was_found():
    assert cell().estimate_off == pytest.approx(0.25)
    assert cell(estimated_batch=None).estimate_off is None
    assert cell(largest_batch=None).estimate_off is None


def test_the_gain_is_the_ratio_of_the_batches_of_one_backend():
    cells = [
        cell(),
        cell(precision="amp", largest_batch=144),
        cell("tensorflow"),
        cell("paddle", "amp", largest_batch=10),
    ]
    assert gains(cells) == {"torch": 1.5}


def test_what_memory_did_not_end_gives_no_ratio():
    failed = cell(status="failed", reason="batch 128: an illegal address")
    ended = cell(precision="amp", reason="batch 144 fits, the most that a run may have")
    assert gains([cell(), ended]) == {}
    assert gains([failed, cell(precision="amp")]) == {}
    assert failed.estimate_off is None
    assert ended.estimate_off is None


# The limit.

TAKE_1500_MIB = """
import time
taken = []
for _ in range(50):
    taken.append(bytearray(b'x') * (30 << 20))
    time.sleep(0.02)
time.sleep(60)
"""


@pytest.mark.parametrize("where", ["the process", "a child of it"])
def test_a_process_tree_that_passes_the_limit_is_killed(where: str):
    words = [sys.executable, "-c", TAKE_1500_MIB]
    if where != "the process":
        # Its answer tells the child's number.
        script = (
            f"import subprocess; child = subprocess.Popen({words!r}); "
            "print(child.pid, flush=True); child.wait()"
        )
        words = [sys.executable, "-c", script]
    child = None
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if where != "the process":
                child = psutil.Process(int(process.stdout.readline()))
            with MemoryLimit(process.pid, 300 * MIB) as memory:
                process.wait(timeout=50)
            assert memory.exceeded
            # One sample late at most, and a turn in it; far from what it would have taken.
            assert 300 * MIB < memory.peak_bytes < 900 * MIB
            if sys.platform != "win32":
                assert process.returncode == -signal.SIGKILL
            assert child is None or is_gone(child)
        finally:
            process.kill()
            if child is not None and not is_gone(child):
                child.kill()


def is_gone(process: psutil.Process) -> bool:
    gone, _ = psutil.wait_procs([process], timeout=5)
    return bool(gone) or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("limit_mib", [None, 3000])
def test_a_process_below_the_limit_is_left_alone(limit_mib: int | None):
    script = "taken = bytearray(b'x') * (200 << 20); import time; time.sleep(0.5)"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        limit_bytes = None if limit_mib is None else limit_mib * MIB
        with MemoryLimit(process.pid, limit_bytes) as memory:
            assert process.wait(timeout=60) == 0
    assert not memory.exceeded
    assert memory.peak_bytes > 200 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps the parent's peak")
def test_a_workers_peak_is_its_own_and_not_that_of_its_parent():
    script = "from harness.worker import host_peak_bytes; print(host_peak_bytes())"
    parent = (
        "import subprocess, sys; taken = bytearray(b'x') * (400 << 20); "
        f"subprocess.run([sys.executable, '-c', {script!r}], check=True)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    told = subprocess.run(
        [sys.executable, "-c", parent], check=True, capture_output=True, text=True, env=environment
    )
    assert 10 * MIB < int(told.stdout) < 300 * MIB


# The command.


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["max-batch", *words])


@pytest.mark.parametrize(
    ("text", "value"),
    [("2G", 2**31), ("1500M", 1500 * 2**20), ("1.5g", 3 * 2**29), ("64MiB", 2**26)],
)
def test_a_size_is_read_with_its_unit(text: str, value: int):
    assert ByteSize().convert(text, None, None) == value


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--device", "cpu"], "give --memory-limit, such as 2G"),
        (["--device", "cpu", "--memory-limit", "900T"], "choose less"),
        (["--device", "cpu", "--memory-limit", "2000"], "a number with its unit"),
        (["--device", "cuda", "--memory-limit", "2G"], "leave it out, or add --device cpu"),
        (["--device", "moon", "--memory-limit", "2G"], "auto, cpu, cuda"),
        (["--device", "cpu", "--memory-limit", "1G", "--image-size", "8", "--model", "lenet"],
         "choose a larger image size"),
        (["--device", "cpu", "--memory-limit", "1G", "--timeout", "-1"], "--timeout"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_the_remedy(words: list[str], remedy: str):
    result = run("--backend", "fake", *words)
    assert result.exit_code == 2
    assert remedy in result.output


@linux_only
def test_both_precisions_are_compared_and_kept(tmp_path: Path, imitate: Callable[..., None]):
    imitate(image_bytes={"fp32": 1000, "amp": 500}, memory_bytes=100_000)
    words = ("--backend", "fake", "--model", "lenet", "--image-size", "16", "--device", "cpu")
    out = tmp_path / "out"
    result = run(*words, "--memory-limit", "1G", "--step", "50", "--out", str(out), "--json")
    assert result.exit_code == 0, result.output
    told = MaxBatchStudy.model_validate_json(result.stdout)
    assert told == MaxBatchStudy.model_validate_json((out / "max_batch.json").read_bytes())
    assert [cell.largest_batch for cell in told.cells] == [100, 200]
    assert gains(told.cells) == {"fake": 2.0}
    assert "fake-amp: batch 250" in result.stderr

    again = run(*words, "--memory-limit", "1G", "--out", str(out))
    assert again.exit_code == 2
    assert "holds a result already" in again.output


@pytest.mark.parametrize(("precisions", "code"), [(["amp"], 3), (["fp32", "amp"], 0)])
def test_unavailable_is_a_result_unless_nothing_else_was_asked(
    tmp_path: Path, imitate: Callable[..., None], precisions: list[str], code: int
):
    imitate(amp_available=False, failure={"how": "out_of_memory"})
    words = [word for precision in precisions for word in ("--precision", precision)]
    result = run(
        *("--backend", "fake", "--device", "cpu", "--memory-limit", "1G", "--step", "2"),
        *("--out", str(tmp_path / "out"), *words),
    )
    assert result.exit_code == code, result.output
    assert "no float16 unit" in result.stdout


def test_a_search_that_fails_exits_1(tmp_path: Path, imitate: Callable[..., None]):
    imitate(failure={"how": "exception"})
    result = run(
        *("--backend", "fake", "--device", "cpu", "--memory-limit", "1G"),
        *("--out", str(tmp_path / "out")),
    )
    assert result.exit_code == 1
    assert "the fake backend was told to fail" in result.stdout
