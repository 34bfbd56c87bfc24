"""One arm from the parent's side: windows, epochs, divergence, and what the record says."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_runs import fake_run, synthetic_input

from harness import runner
from harness.config import RunConfig
from harness.environment import describe_environment
from harness.records import Record, Status
from harness.runner import Event
from harness.turns import run_arm
from harness.worker_process import WorkerFailed

NAN = float("nan")


class ScriptedWorker:
    """Answers as a worker would, with figures known beforehand."""

    steps_per_epoch = 6
    step_time_s = 0.5
    effective = "float32"
    val_loss: float | None = 0.7

    def __init__(self, run: RunConfig, **_: Any) -> None:
        self._run = run
        self._steps = 0
        self.windows: list[SimpleNamespace] = []
        self.commands: list[str] = []
        self.killed = False

    def __enter__(self) -> "ScriptedWorker":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        self.killed = True

    def loss(self, step: int) -> float:
        return 2.0 - 0.1 * step

    def skipped(self, step: int) -> bool:
        return False

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.commands.append(command)
        return getattr(self, f"_{command}")(**arguments)

    def _prepare(self, *, run: Any, spec: Any) -> dict[str, Any]:
        total = self._run.steps or (self._run.epochs or 0) * self.steps_per_epoch or None
        prepared = {
            "in_force": {
                "framework_version": "1.2",
                "device_type": "cpu",
                "device_name": "CPU",
                "device_uuid": None,
                "layout": "nchw",
                "compile": "eager",
                "threads": 2,
                "tf32": None,
                "loss_scale_policy": None,
            },
            "model": {"name": "lenet", "parameters": 10, "forward_flops_per_image": 20},
            "steps_per_epoch": self.steps_per_epoch,
            "total_steps": total,
            "prepare_s": 3.0,
        }
        energy = {"joules": None, "source": None, "reason": "no counter"}
        environment = describe_environment().model_dump()
        return {"prepared": prepared, "energy": energy, "environment": environment}

    def _window(self, *, steps: int, warmup: bool, arm_position: int) -> dict[str, Any]:
        places = range(self._steps, self._steps + steps)
        skipped = [self.skipped(step) for step in places]
        # The first step takes ten times as long, as a compiling one does.
        time_s = sum(self.step_time_s * (10 if step == 0 else 1) for step in places)
        window = {
            "index": len(self.windows),
            "arm_position": arm_position,
            "started_s": 3.0,
            "steps": steps,
            "images": (steps - sum(skipped)) * self._run.batch_size,
            "time_s": time_s,
            "cpu_s": 2 * time_s,
            "data_wait_s": time_s / 4,
            "warmup": warmup,
        }
        self.windows.append(SimpleNamespace(first=self._steps, **window))
        self._steps += steps
        result = {
            "window": window,
            "loss": [self.loss(step) for step in places],
            "loss_scale": [1024.0 if self._run.scales_loss else None] * steps,
            "skipped": skipped,
            "broken_statistics": [],
        }
        return {"result": result}

    def _evaluate(self) -> dict[str, Any]:
        if self.val_loss is None:
            return {"accuracy": None}
        accuracy = {
            "val_top1": self._steps / 100,
            "val_top2": 0.9,
            "val_loss": self.val_loss,
            "per_class": {"a": 0.5, "b": None},
        }
        return {"accuracy": accuracy}

    def _evidence(self) -> dict[str, Any]:
        evidence = {
            "source": "the script",
            "effective": self.effective,
            "optimizer_implementation": "fused",
        }
        return {"evidence": evidence}

    def _conclude(self) -> dict[str, Any]:
        memory = {
            "host_peak_bytes": 1000,
            "device_allocated_peak_bytes": None,
            "device_reserved_peak_bytes": None,
            "device_used_delta_bytes": None,
        }
        return {"memory": memory, "batch_sha256": "ab" * 32, "order_sha256": "cd" * 32}

    def _compute_window(self, *, steps: int, arm_position: int) -> dict[str, Any]:
        window = {
            "index": len(self.windows),
            "arm_position": arm_position,
            "started_s": 9.0,
            "steps": steps,
            "images": steps * self._run.batch_size,
            "time_s": steps * self.step_time_s * 0.8,
            "cpu_s": steps * self.step_time_s,
            "data_wait_s": 0.0,
            "warmup": False,
        }
        return {"window": window}

    def _loader(self, *, spec: Any) -> dict[str, Any]:
        return {"loader": [{"input": "cached", "images_per_s": [500.0], "workers": 1}]}

    def _profile(self, *, steps: int, trace: str | None) -> dict[str, Any]:
        profile = {
            "source": "the script",
            "steps": steps,
            "step_s": 0.6,
            "phases_s": None,
            "operations_s": {"convolution": 0.4},
            "device_busy_s": None,
            "kernels": 7,
            "trace": trace,
        }
        return {"profile": profile}

    def _close(self) -> dict[str, Any]:
        return {}


Scripted = Callable[..., tuple[Record, ScriptedWorker]]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Run an arm against a scripted worker; returns its record and the worker."""

    def run_scripted(
        run: RunConfig, kind: type[ScriptedWorker] = ScriptedWorker, on_event: Any = None
    ) -> tuple[Record, ScriptedWorker]:
        workers: list[ScriptedWorker] = []

        def start(*args: Any, **options: Any) -> ScriptedWorker:
            workers.append(kind(*args, **options))
            return workers[0]

        monkeypatch.setattr(runner, "WorkerProcess", start)
        record = run_arm(
            run,
            synthetic_input(),
            python="python",
            log=tmp_path / "log",
            command="repeat",
            on_event=on_event or (lambda event: None),
            arm_position=3,
        )
        return record, workers[0]

    return run_scripted


# --- windows and epochs


def test_a_record_says_what_ran_and_where(scripted: Scripted):
    run = fake_run(steps=24, optimizer="sgd", lr=0.25, weight_decay=0.01, seed=7)

    record, _ = scripted(run)

    assert (record.status, record.reason, record.arm) == ("ok", None, "fake-fp32")
    assert (record.command, record.backend, record.framework_version) == ("repeat", "fake", "1.2")
    assert record.precision.dtype == record.precision.effective == "float32"
    assert record.training is not None
    assert (
        record.training.model_dump()
        | {
            "steps": 24,
            "optimizer": "sgd",
            "optimizer_implementation": "fused",
            "lr": 0.25,
            "weight_decay": 0.01,
            "momentum": 0.9,
            "seed": 7,
            "batch_size": 4,
            "image_size": 16,
            "layout": "nchw",
            "compile": "eager",
            "threads": 2,
        }
        == record.training.model_dump()
    )
    assert record.data is not None
    assert record.data.batch_sha256 == "ab" * 32
    assert record.memory is not None
    assert record.memory.device_allocated_peak_bytes is None
    assert record.energy is not None
    assert (record.energy.joules, record.energy.reason) == (None, "no counter")
    assert record.steps.step_time_s is None
    places = [window.arm_position for window in record.windows if not window.warmup]
    assert places == [*range(3, 3 + len(places))]


def test_the_steps_that_were_asked_for_are_taken_to_the_last_one(scripted: Scripted):
    record, worker = scripted(fake_run(steps=23))

    assert record.steps.loss == pytest.approx([2.0 - 0.1 * step for step in range(23)])
    assert sum(window.steps for window in record.windows) == 23
    assert worker.commands[-1] == "close"


def test_no_window_reaches_across_the_end_of_an_epoch(scripted: Scripted):
    _, worker = scripted(fake_run(epochs=4))

    for window in worker.windows:
        assert window.first // 6 == (window.first + window.steps - 1) // 6


def test_every_epoch_ends_with_a_validation_and_the_mean_of_its_losses(scripted: Scripted):
    record, worker = scripted(fake_run(epochs=3))

    assert [(epoch.epoch, epoch.steps) for epoch in record.epochs] == [(0, 6), (1, 12), (2, 18)]
    # Means of 2.0 … 1.5, 1.4 … 0.9 and 0.8 … 0.3.
    assert [epoch.train_loss for epoch in record.epochs] == pytest.approx([1.75, 1.15, 0.55])
    assert [epoch.val_top1 for epoch in record.epochs] == [0.06, 0.12, 0.18]
    assert worker.commands.count("evaluate") == 3
    assert record.accuracy is not None
    assert record.accuracy.val_top1 == 0.18


def test_a_run_that_ends_within_an_epoch_is_validated_at_its_end(scripted: Scripted):
    record, _ = scripted(fake_run(steps=8))

    assert [epoch.steps for epoch in record.epochs] == [6, 8]
    assert record.epochs[1].train_loss == pytest.approx((1.4 + 1.3) / 2)


def test_without_validation_images_accuracy_is_unknown_and_not_zero(scripted: Scripted):
    class NothingToValidate(ScriptedWorker):
        val_loss = None

    record, _ = scripted(fake_run(steps=8), NothingToValidate)

    assert record.status == "ok"
    assert record.accuracy is None
    assert {epoch.val_top1 for epoch in record.epochs} == {None}


class LongEpochs(ScriptedWorker):
    steps_per_epoch = 1000
    step_time_s = 0.1


def sizes(record: Record, *, warmup: bool) -> list[int]:
    return [window.steps for window in record.windows if window.warmup == warmup]


def test_windows_last_about_two_seconds(scripted: Scripted):
    record, _ = scripted(fake_run(steps=402, warmup_steps=2), LongEpochs)

    assert sizes(record, warmup=False) == [20] * 20


def test_windows_are_shorter_rather_than_fewer_than_six(scripted: Scripted):
    record, _ = scripted(fake_run(steps=26, warmup_steps=2), LongEpochs)

    assert sizes(record, warmup=False) == [4] * 6


def test_window_steps_bound_the_windows(scripted: Scripted):
    record, _ = scripted(fake_run(steps=62, warmup_steps=2, window_steps=5), LongEpochs)

    assert sizes(record, warmup=False) == [5] * 12


def test_windows_share_an_epoch_equally_and_leave_no_crumb(scripted: Scripted):
    class Epochs(LongEpochs):
        steps_per_epoch = 41  # not 20 + 20 + 1

    record, _ = scripted(fake_run(epochs=10, warmup_steps=2), Epochs)

    timed = sizes(record, warmup=False)
    assert sum(timed) == 408
    assert min(timed) >= 11


def test_a_run_of_many_fast_steps_asks_for_many_at_once(scripted: Scripted):
    class Fast(ScriptedWorker):
        steps_per_epoch = 10**6
        step_time_s = 1e-9

    record, _ = scripted(fake_run(steps=6002, warmup_steps=2), Fast)

    assert sizes(record, warmup=False) == [1000] * 6


# --- warm-up


@pytest.mark.parametrize("steps_per_epoch", [1000, 9, 3, 1])
@pytest.mark.parametrize("warmup_steps", [1, 2, 5])
def test_exactly_the_warmup_steps_are_kept_out_of_the_timing(
    scripted: Scripted, warmup_steps: int, steps_per_epoch: int
):
    kind = type("Epochs", (ScriptedWorker,), {"steps_per_epoch": steps_per_epoch})
    record, _ = scripted(fake_run(steps=19, warmup_steps=warmup_steps), kind)

    assert sum(sizes(record, warmup=True)) == warmup_steps
    marks = [window.warmup for window in record.windows]
    assert marks == sorted(marks, reverse=True)
    assert record.throughput is not None
    assert record.throughput.warmup_steps == warmup_steps
    assert record.throughput.timed_steps == 19 - warmup_steps


def test_the_first_step_has_a_window_of_its_own(scripted: Scripted):
    record, _ = scripted(fake_run(steps=20, warmup_steps=5), LongEpochs)

    assert sizes(record, warmup=True) == [1, 4]


def test_the_slow_first_step_does_not_count(scripted: Scripted):
    record, _ = scripted(fake_run(steps=20, warmup_steps=2))

    # Four images in 0.5 s; the first step took 5 s.
    assert record.throughput is not None
    assert record.throughput.images_per_s == pytest.approx(8)
    assert record.throughput.warmup_s == pytest.approx(5.5)
    assert record.throughput.prepare_s == 3.0
    assert record.throughput.threads_in_use == pytest.approx(2)
    assert record.throughput.data_wait_fraction == pytest.approx(0.25)


def test_a_run_of_warmup_alone_has_no_throughput(scripted: Scripted):
    record, _ = scripted(fake_run(steps=3, warmup_steps=5))

    assert record.status == "ok"
    assert record.throughput is not None
    assert record.throughput.images_per_s is None
    assert record.throughput.threads_in_use is None
    assert record.throughput.data_wait_fraction is None
    assert any("0 timed window" in warning for warning in record.warnings)


# --- skipped steps and divergence


def test_skipped_steps_take_time_but_are_no_images(scripted: Scripted):
    class EverySecondSkipped(ScriptedWorker):
        effective = "float16"

        def skipped(self, step: int) -> bool:
            return step % 2 == 1

    record, _ = scripted(fake_run(steps=22, warmup_steps=2, precision="amp"), EverySecondSkipped)

    assert record.status == "ok"
    assert record.throughput is not None
    assert record.throughput.images_per_s == pytest.approx(4)  # half of the 8 images/s
    assert any(warning.startswith("11 of 22 steps were skipped") for warning in record.warnings)


@pytest.mark.parametrize(("in_a_row", "status"), [(25, "ok"), (26, "diverged")])
def test_skipping_without_end_is_divergence(scripted: Scripted, in_a_row: int, status: Status):
    class Skipping(LongEpochs):
        effective = "float16"

        def skipped(self, step: int) -> bool:
            return 3 <= step < 3 + in_a_row

    record, worker = scripted(fake_run(steps=60, precision="amp"), Skipping)

    assert record.status == status
    if status == "diverged":
        assert record.reason is not None
        assert "26 steps in a row were skipped up to step 28" in record.reason
        assert "--amp-dtype bfloat16" in record.reason
        assert worker.killed


@pytest.mark.parametrize("bad", [NAN, float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_is_divergence_told_with_its_step(scripted: Scripted, bad: float):
    class Diverging(ScriptedWorker):
        def loss(self, step: int) -> float:
            return bad if step >= 7 else 1.0

    record, _ = scripted(fake_run(steps=24), Diverging)

    assert record.status == "diverged"
    assert record.reason is not None
    assert f"the loss became {bad} at step 7" in record.reason
    assert "--lr" in record.reason
    assert record.steps.loss[:7] == [1.0] * 7
    assert str(record.steps.loss[7]) == str(bad)


def test_a_loss_that_overflows_in_a_skipped_step_is_no_divergence(scripted: Scripted):
    class Overflowing(ScriptedWorker):
        effective = "float16"

        def loss(self, step: int) -> float:
            return float("inf") if step == 4 else 1.0

        def skipped(self, step: int) -> bool:
            return step == 4

    record, _ = scripted(fake_run(steps=24, precision="amp"), Overflowing)

    assert record.status == "ok"


def test_logits_that_are_not_finite_are_divergence(scripted: Scripted):
    class Broken(ScriptedWorker):
        val_loss = NAN

    record, _ = scripted(fake_run(epochs=3), Broken)

    assert record.status == "diverged"
    assert record.reason is not None
    assert "not finite after step 6" in record.reason


# --- evidence


@pytest.mark.parametrize("effective", ["float32", "mixed", "unknown", "bfloat16"])
def test_an_arm_that_does_not_run_what_was_asked_is_unavailable(scripted: Scripted, effective: str):
    kind = type("Other", (ScriptedWorker,), {"effective": effective})
    record, worker = scripted(fake_run(precision="amp"), kind)

    assert record.status == "unavailable"
    assert record.reason is not None
    assert "float16 was asked for" in record.reason
    assert f"ran in {effective} (the script)" in record.reason
    assert (record.precision.dtype, record.precision.effective) == ("float16", effective)
    assert "conclude" not in worker.commands


def test_evidence_is_looked_at_after_the_warmup_and_again_at_the_end(scripted: Scripted):
    class LosesIt(ScriptedWorker):
        def _evidence(self) -> dict[str, Any]:
            self.effective = "float32" if len(self.windows) < 4 else "float64"
            return super()._evidence()

    record, worker = scripted(fake_run(steps=24), LosesIt)

    assert worker.commands.count("evidence") == 2
    assert record.status == "unavailable"


# --- progress


def test_progress_is_told_from_start_to_end(scripted: Scripted):
    events: list[Event] = []
    scripted(fake_run(steps=12, warmup_steps=2), on_event=events.append)

    phases = list(dict.fromkeys(event.phase for event in events))
    assert phases == [
        *("starting", "warming up", "training", "validating", "diagnosing", "finished")
    ]
    steps = [event.step for event in events if event.phase in ("warming up", "training")]
    assert steps == sorted(steps)
    assert steps[-1] == 12
    trained = [event for event in events if event.phase == "training"]
    assert trained[0].loss is not None
    assert trained[0].images_per_s == pytest.approx(8)
    assert trained[0].remaining_s == pytest.approx(0.5 * (12 - trained[0].step))
    assert events[-1].status == "ok"


def test_an_interrupt_ends_the_worker_and_goes_on_to_the_caller(scripted: Scripted):
    seen: list[Event] = []

    def interrupt(event: Event) -> None:
        seen.append(event)
        if event.phase == "training":
            raise KeyboardInterrupt

    ended: list[bool] = []

    class Watched(ScriptedWorker):
        def kill(self) -> None:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        scripted(fake_run(steps=24), Watched, interrupt)

    assert ended
    assert seen[-1].phase == "training"


@pytest.mark.parametrize("command", ["prepare", "window", "evaluate", "evidence", "conclude"])
@pytest.mark.parametrize("answer", [{}, {"prepared": {}, "environment": {}, "result": {"x": 1}}])
def test_an_answer_of_another_version_is_a_failure_and_no_crash(
    scripted: Scripted, command: str, answer: dict[str, Any]
):
    class Foreign(ScriptedWorker):
        def ask(self, asked: str, **arguments: Any) -> dict[str, Any]:
            own = super().ask(asked, **arguments)
            return answer if asked == command else own

    record, worker = scripted(fake_run(steps=12), Foreign)

    assert record.status == "failed"
    assert record.reason is not None
    assert "does not fit" in record.reason
    assert worker.killed


# --- after the training


def test_a_trained_arm_is_measured_on_a_resident_batch_without_its_steps_counting(
    scripted: Scripted,
):
    record, worker = scripted(fake_run(steps=12))

    assert len(record.steps.loss) == 12
    assert [window.steps for window in record.compute_windows] == [1, 1, 1, 1]
    assert record.compute_windows[0].time_s == pytest.approx(0.4)
    assert record.loader[0].images_per_s == [500]
    assert record.profile is not None
    assert record.profile.operations_s == {"convolution": 0.4}
    # A step before each settles the worker, and does not count.
    after = worker.commands[worker.commands.index("conclude") :]
    assert after == ["conclude", *["compute_window"] * 8, "loader", "profile", "close"]


def test_a_repetition_is_not_explained_again(scripted: Scripted):
    record, worker = scripted(fake_run(steps=12, diagnose=False))

    assert record.status == "ok"
    assert record.compute_windows == []
    assert record.profile is None
    assert worker.commands[-2:] == ["conclude", "close"]


@pytest.mark.parametrize("command", ["compute_window", "loader", "profile", "close"])
def test_what_breaks_after_the_training_spoils_no_result_and_is_told(
    scripted: Scripted, command: str
):
    class Breaks(ScriptedWorker):
        def ask(self, asked: str, **arguments: Any) -> dict[str, Any]:
            if asked == command:
                raise WorkerFailed("failed", "the profiler fell over")
            return super().ask(asked, **arguments)

    record, worker = scripted(fake_run(steps=12), Breaks)

    assert record.status == "ok"
    assert len(record.steps.loss) == 12
    assert record.memory is not None
    assert any("the profiler fell over" in warning for warning in record.warnings)
    assert worker.killed


def test_a_run_of_so_many_windows_ends_after_them_and_validates_once(scripted: Scripted):
    record, worker = scripted(fake_run(steps=None, windows=5, warmup_steps=2))

    timed = [window for window in record.windows if not window.warmup]
    # Two seconds of half-second steps, across the ends of epochs of six steps.
    assert [window.steps for window in timed] == [4] * 5
    assert worker.commands.count("evaluate") == 1
    assert record.accuracy is not None


@pytest.mark.parametrize(("source", "settling"), [("synthetic", 1), ("live", 4)])
def test_a_worker_that_was_idle_first_uses_up_what_its_loader_has_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, settling: int
):
    monkeypatch.setattr(runner, "WorkerProcess", ScriptedWorker)
    run = fake_run(input=source, steps=None, windows=2)
    arm = runner.ArmRun(run, synthetic_input(), command="", on_event=lambda event: None)

    arm.start(python="python", log=tmp_path / "log")
    arm.train_window(6, settle=True)

    windows = arm.finish().windows[-2:]
    # Beside the steps that are timed, where nobody said how many steps the run has.
    assert [(w.steps, w.warmup) for w in windows] == [(settling, True), (6, False)]


# --- real workers


def run_real(tmp_path: Path, run: RunConfig) -> Record:
    return run_arm(
        run,
        synthetic_input(),
        python=sys.executable,
        log=tmp_path / "log",
        command="repeat",
        on_event=lambda event: None,
    )


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("kill", "failed", "ended by SIGKILL"),
        ("exception", "failed", "RuntimeError: the fake backend was told to fail"),
        ("out_of_memory", "out_of_memory", "choose a smaller --batch-size"),
        ("exit", "failed", "exited with code 7"),
        ("nan", "diverged", "the loss became nan at step 4"),
    ],
)
def test_a_worker_that_fails_in_mid_run_leaves_a_record_with_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, status: Status, reason: str
):
    monkeypatch.setenv("AMP_HARNESS_FAKE", f'{{"failure": {{"how": "{how}", "at_step": 4}}}}')

    record = run_real(tmp_path, fake_run(steps=12, input="synthetic", window_steps=1))

    assert record.status == status
    assert record.reason is not None
    assert reason in record.reason
    assert len(record.steps.loss) == (5 if how == "nan" else 4)
    assert all(loss == pytest.approx(1.6, abs=0.1) for loss in record.steps.loss[:4])
    assert record.device is not None
    assert record.precision.effective == "float32"
    assert record.throughput is not None
    assert record.throughput.timed_steps == len(record.steps.loss) - 1
    assert record.memory is None


def test_a_worker_that_hangs_leaves_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"failure": {"how": "hang"}}')

    record = run_real(tmp_path, fake_run(timeout_s=4, input="synthetic"))

    assert record.status == "failed"
    assert record.reason is not None
    assert "no answer" in record.reason


def test_an_interpreter_that_cannot_be_started_leaves_a_record(tmp_path: Path):
    record = run_arm(
        fake_run(),
        synthetic_input(),
        python=str(tmp_path / "nowhere"),
        log=tmp_path / "log",
        command="repeat",
        on_event=lambda event: None,
    )

    assert record.status == "failed"
    assert record.reason is not None
    assert "cannot start" in record.reason
    assert record.precision.requested == "fp32"
    assert record.steps.loss == []


def test_an_amp_arm_that_runs_float32_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"effective": "float32"}')

    record = run_real(tmp_path, fake_run(precision="amp", input="synthetic"))

    assert record.status == "unavailable"
    assert record.reason is not None
    assert "float16 was asked for, but the convolutions ran in float32" in record.reason


def test_throughput_cannot_beat_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"step_time_s": {"fp32": 0.01}}')

    record = run_real(tmp_path, fake_run(steps=14, warmup_steps=2, input="synthetic"))

    assert record.status == "ok"
    timed = [window for window in record.windows if not window.warmup]
    assert all(window.time_s >= window.steps * 0.01 for window in timed)
    assert record.throughput is not None
    assert record.throughput.images_per_s == pytest.approx(
        12 * 4 / sum(window.time_s for window in timed)
    )
