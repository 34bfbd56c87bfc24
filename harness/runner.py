"""One arm from the parent's side: drive its worker window by window and keep what comes back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.arm import Prepared, WindowResult
from harness.config import RunConfig
from harness.divergence import DivergenceWatch
from harness.inputs import PreparedInput
from harness.loader import PREFETCHED
from harness.records import (
    AccuracyPart,
    EnergyPart,
    EnvironmentPart,
    EpochPart,
    GradientHistogramPart,
    LoaderPart,
    MemoryPart,
    ProfilePart,
    Record,
    Status,
    Window,
    timed,
)
from harness.results import MIN_TIMED_WINDOWS, ArmResults
from harness.worker_process import WorkerFailed, WorkerProcess

WINDOW_TARGET_S = 2.0
"""Length of a timed window: long enough that two synchronisations vanish in it."""
LIVE_SETTLING_STEPS = PREFETCHED + 1
"""Batches that a decoder has made while its worker was idle, the one on the device included. A
window that began with them would show a faster input than there is."""
PROFILED_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Event:
    """Progress of one arm, for whoever watches."""

    arm: str
    phase: Literal["starting", "warming up", "training", "validating", "diagnosing", "finished"]
    step: int = 0
    total_steps: int | None = None
    loss: float | None = None
    images_per_s: float | None = None
    remaining_s: float | None = None
    status: Status | None = None
    """Of the finished arm."""
    reason: str | None = None


OnEvent = Callable[[Event], None]


class ArmRun:
    """One arm in progress; its methods are called in order until ``done``, then ``record``.

    A failure of the worker ends the arm (``done`` becomes true) and is told by the record.
    """

    def __init__(
        self,
        run: RunConfig,
        data: PreparedInput,
        *,
        command: str,
        on_event: OnEvent,
        arm_position: int = 0,
    ) -> None:
        self.arm_position = arm_position
        """Place of the next window in the order in which the study's windows are measured."""
        self._run = run
        self._data = data
        self._on_event = on_event
        self._resources = contextlib.ExitStack()
        self._worker_process: WorkerProcess | None = None
        self._results = ArmResults(run, data.data, command=command)
        self._divergence = DivergenceWatch()

    @property
    def done(self) -> bool:
        """Whether every step was taken or the arm has failed."""
        if self.failed:
            return True
        if self._run.windows is not None:
            return self._timed_windows >= self._run.windows
        return self._results.prepared is not None and self._step == self._total_steps

    @property
    def failed(self) -> bool:
        """Whether the arm came to an end before its time."""
        return self._results.failure is not None

    @property
    def lacked_memory(self) -> bool:
        """Whether the arm ended for lack of memory, as far as anybody can tell.

        A system that runs out of memory sends a SIGKILL, and says nothing to the process.
        """
        failure = self._results.failure
        return failure is not None and (failure.status == "out_of_memory" or failure.killed)

    @property
    def settling_steps(self) -> int:
        """Steps that are not timed at the start of a window, because the worker was idle before."""
        return LIVE_SETTLING_STEPS if self._run.input == "live" else 1

    @property
    def step_s(self) -> float:
        """Seconds a step in the last window."""
        last = self._results.windows[-1]
        return max(last.time_s / last.steps, 1e-6)

    @property
    def windows_left(self) -> int | None:
        """Timed windows that are to come; None where the run's length is given in steps."""
        return None if self._run.windows is None else self._run.windows - self._timed_windows

    def start(self, *, python: str, log: Path) -> None:
        """Start the worker, prepare it and take the warm-up steps."""
        self._tell("starting")
        self._log = log
        with self._catching():
            self._worker_process = self._resources.enter_context(
                WorkerProcess(self._run, python=python, log=log)
            )
            answer = self._worker.ask(
                "prepare",
                run=self._run.model_dump(mode="json"),
                spec=self._data.spec.model_dump(mode="json"),
            )
            self._results.prepared = Prepared.model_validate(answer["prepared"])
            self._results.environment = EnvironmentPart.model_validate(answer["environment"])
            self._results.energy = EnergyPart.model_validate(answer["energy"])
            # The first step alone: it compiles and allocates, the others show the pace.
            self._window(1, warmup=True)
            while self._step < self._run.warmup_steps and not self.done:
                self._window(self._run.warmup_steps - self._step, warmup=True)
            self._look_at_evidence()

    def train_window(self, steps: int | None = None, *, settle: bool = False) -> None:
        """Take one timed window, and validate where it ends an epoch.

        Args:
            steps: its length; None: :attr:`window_steps`.
            settle: begin with steps that are not timed, because the worker was idle before.
        """
        with self._catching():
            # Equal shares: a leftover window of one step would be the noisiest of all.
            share = steps or self.window_steps
            if (span := self._span) is not None:
                share = math.ceil(span / math.ceil(span / share))
            if settle:
                settling = self.settling_steps
                if span is not None:  # They are some of the steps that were asked for.
                    settling = min(settling, share - 1)
                    share -= settling
                if settling:
                    self._window(settling, warmup=True)
            if not self.done:
                self._window(share, warmup=False)
            if self.done and self._run.windows is not None:
                self._end_epoch()

    def conclude(self) -> None:
        """After the training: look at what ran once more, and note peaks and hashes."""
        with self._catching():
            if self.failed:
                return
            self._look_at_evidence()
            answer = self._worker.ask("conclude")
            self._results.memory = MemoryPart.model_validate(answer["memory"])
            self._results.hashes = {name: answer[name] for name in ("batch_sha256", "order_sha256")}

    @property
    def to_diagnose(self) -> bool:
        """Whether the arm's time is still to be explained."""
        return self._run.diagnose and not self.failed and self._results.undiagnosed is None

    def compute_window(self, steps: int) -> None:
        """Take one window on a batch that stays on the device."""
        self._tell("diagnosing")
        with self._diagnosing():
            # As a window of the training: the first steps of a worker that was idle do not count.
            self._worker.ask("compute_window", steps=1, arm_position=self.arm_position)
            answer = self._worker.ask("compute_window", steps=steps, arm_position=self.arm_position)
            self._results.compute_windows.append(Window.model_validate(answer["window"]))

    def profile(self) -> None:
        """Measure the loader alone, and profile a few steps; their trace lies beside the log."""
        self._tell("diagnosing")
        with self._diagnosing():
            spec = self._data.spec.model_dump(mode="json")
            answer = self._worker.ask("loader", spec=spec)
            self._results.loader = [LoaderPart.model_validate(part) for part in answer["loader"]]
            trace = self._log.with_suffix(".trace.json.gz") if self._run.trace else None
            answer = self._worker.ask(
                "profile", steps=PROFILED_STEPS, trace=None if trace is None else str(trace)
            )
            profile = ProfilePart.model_validate(answer["profile"])
            profile.trace = None if trace is None else trace.name
            self._results.profile = profile

    def finish(self) -> Record:
        """Close the worker and write up what is known."""
        if not self.failed and self._results.undiagnosed is None:
            with self._diagnosing():
                self._worker.ask("close")
        self._resources.close()
        record = self._results.record()
        self._tell("finished", status=record.status, reason=record.reason)
        return record

    def abort(self) -> None:
        """Kill the worker; nothing of the arm is kept."""
        with contextlib.suppress(KeyboardInterrupt):
            self._kill_worker()
            self._resources.close()

    @contextlib.contextmanager
    def _catching(self) -> Iterator[None]:
        try:
            yield
        except WorkerFailed as failure:
            self._results.failure = failure
        except (KeyError, ValidationError) as error:
            self._results.failure = _misfit(error)
        if self.failed:
            self._kill_worker()

    @contextlib.contextmanager
    def _diagnosing(self) -> Iterator[None]:
        """What fails once the training is over spoils no result of it; it is told."""
        try:
            yield
        except WorkerFailed as failure:
            self._results.undiagnosed = failure.reason
        except (KeyError, ValidationError) as error:
            self._results.undiagnosed = _misfit(error).reason
        if self._results.undiagnosed is not None:
            self._kill_worker()

    def _kill_worker(self) -> None:
        if self._worker_process is not None:
            self._worker_process.kill()

    @property
    def _worker(self) -> WorkerProcess:
        assert self._worker_process is not None, "start() comes first"
        return self._worker_process

    @property
    def _step(self) -> int:
        return len(self._results.steps.loss)

    @property
    def window_steps(self) -> int:
        """Steps of a timed window: as many as fill the target time, yet enough windows."""
        steps = max(1, round(WINDOW_TARGET_S / self.step_s))
        if self._run.windows is None:
            timed = self._total_steps - min(self._run.warmup_steps, self._total_steps)
            steps = max(1, min(steps, timed // MIN_TIMED_WINDOWS))
        return min(steps, self._run.window_steps or steps)

    @property
    def _total_steps(self) -> int:
        assert self._results.prepared is not None
        assert self._results.prepared.total_steps is not None
        return self._results.prepared.total_steps

    @property
    def _timed_windows(self) -> int:
        return len(timed(self._results.windows))

    @property
    def _span(self) -> int | None:
        """Steps that one window can take: to the end of the epoch or of the run; None: any."""
        prepared = self._results.prepared
        assert prepared is not None
        if self._run.windows is not None:
            return None
        to_epoch_end = prepared.steps_per_epoch - self._step % prepared.steps_per_epoch
        ends = [to_epoch_end, self._total_steps - self._step]
        if self._run.gradient_histogram is not None and self._step < self._run.gradient_histogram:
            ends.append(self._run.gradient_histogram - self._step)
        return min(ends)

    def _window(self, steps: int, *, warmup: bool) -> None:
        prepared = self._results.prepared
        assert prepared is not None
        steps = min(steps, self._span or steps)
        answer = self._worker.ask(
            "window", steps=steps, warmup=warmup, arm_position=self.arm_position
        )
        result = WindowResult.model_validate(answer["result"])
        self._results.windows.append(result.window)
        self._results.steps.loss += result.loss
        self._results.steps.loss_scale += result.loss_scale
        self._results.steps.skipped += result.skipped
        self._check_convergence(result)
        pace_s = result.window.time_s / steps
        self._tell(
            "warming up" if warmup and not self._timed_windows else "training",
            loss=result.loss[-1],
            images_per_s=steps * self._run.batch_size / result.window.time_s,
            remaining_s=None
            if prepared.total_steps is None
            else pace_s * (prepared.total_steps - self._step),
        )
        if self._step == self._run.gradient_histogram:
            answer = self._worker.ask("gradient_histogram")
            self._results.histogram = GradientHistogramPart.model_validate(answer["histogram"])
        ends_epoch = self._step % prepared.steps_per_epoch == 0
        if self._run.windows is None and (ends_epoch or self._step == prepared.total_steps):
            self._end_epoch()

    def _check_convergence(self, result: WindowResult) -> None:
        """End the arm where training can no longer recover.

        Raises:
            WorkerFailed: ``diverged``, with the step.
        """
        reason = self._divergence.check(
            first_step=self._step - len(result.loss),
            loss=result.loss,
            loss_scale=result.loss_scale,
            skipped=result.skipped,
            broken_statistics=result.broken_statistics,
        )
        if reason is not None:
            raise WorkerFailed("diverged", reason)

    def _end_epoch(self) -> None:
        if not self._run.validate_weights:
            return
        self._tell("validating")
        answer = self._worker.ask("evaluate")["accuracy"]
        self._results.accuracy = AccuracyPart.model_validate(answer) if answer else None
        first = self._results.epochs[-1].steps if self._results.epochs else 0
        losses = self._results.steps.loss[first:]
        self._results.epochs.append(
            EpochPart(
                epoch=len(self._results.epochs),
                steps=self._step,
                train_loss=sum(losses) / len(losses),
                val_loss=self._results.accuracy.val_loss if self._results.accuracy else None,
                val_top1=self._results.accuracy.val_top1 if self._results.accuracy else None,
                val_top2=self._results.accuracy.val_top2 if self._results.accuracy else None,
            )
        )
        if self._results.accuracy and not math.isfinite(self._results.accuracy.val_loss):
            raise WorkerFailed(
                "diverged",
                f"the logits of the validation images are not finite after step {self._step}: "
                "weights or BatchNorm statistics overflowed; lower --lr, or try --amp-dtype "
                "bfloat16",
            )

    def _look_at_evidence(self) -> None:
        """Ask what the steps run in; an AMP arm that does not run AMP is no AMP arm."""
        evidence = self._worker.ask("evidence")["evidence"]
        self._results.evidence = evidence
        wanted, seen = self._run.compute_dtype, evidence["effective"]
        if seen != wanted:
            raise WorkerFailed(
                "unavailable",
                f"{wanted} was asked for, but the convolutions ran in {seen} "
                f"({evidence['source']}), so there is nothing to compare",
            )

    def _tell(self, phase: Any, **details: Any) -> None:
        self._on_event(
            Event(
                arm=self._run.arm,
                phase=phase,
                step=self._step,
                total_steps=self._results.prepared.total_steps if self._results.prepared else None,
                **details,
            )
        )


def _misfit(error: Exception) -> WorkerFailed:
    what = str(error).splitlines()[0]
    return WorkerFailed(
        "failed",
        f"the worker's answer does not fit ({what}): is another version of amp-harness "
        "installed in its environment?",
    )
