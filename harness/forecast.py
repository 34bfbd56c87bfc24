"""How long a plan will take, from how long its like took on this machine before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.config import RunConfig
from harness.networks import (
    TRAINING_FLOPS_OF_FORWARD,
    build_network,
    forward_flops_per_image,
)
from harness.record_files import write_json
from harness.records import Record, mean_step_s
from harness.results import MIN_TIMED_WINDOWS
from harness.runner import WINDOW_TARGET_S
from harness.turns import LONGEST_WINDOW_S, PAUSE_S

_CLASSES = 5


class Pace(BaseModel):
    """How fast arms of one kind were."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    start_s: float
    """From the start of the worker to its first step, and that step."""
    flops_per_s: float | None
    """None for what this machine cannot run: its arms end where they would begin to train."""


class Paces(BaseModel):
    """Paces of this machine, by kind of arm; kept between studies."""

    model_config = ConfigDict(extra="ignore")

    paces: dict[str, Pace] = {}

    @classmethod
    def read(cls, path: Path) -> Paces:
        """Read a file that :meth:`add` wrote; one that is missing or broken is as good as none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return cls()

    def add(self, run: RunConfig, record: Record, path: Path) -> None:
        """Note how fast ``run`` was, for the next plan; a full disk is no reason to stop."""
        step_s = mean_step_s(record.windows)
        if record.status == "unavailable":
            self.paces[_kind(run)] = Pace(start_s=0.0, flops_per_s=None)
        elif record.status == "ok" and record.throughput is not None and step_s is not None:
            self.paces[_kind(run)] = Pace(
                start_s=record.throughput.prepare_s + record.windows[0].time_s,
                flops_per_s=_flops_per_step(run) / max(step_s, 1e-9),
            )
        else:
            return
        try:
            write_json(path, self)
        except OSError:
            return

    def time_s(self, group: Sequence[RunConfig], *, train_images: int | None) -> float | None:
        """Expected seconds of arms that are measured in turn, what explains them not included.

        An arm that was unavailable before is taken to be so again, at no cost.

        Args:
            group: arms that are alive together.
            train_images: of an epoch, where that is known.

        Returns:
            None where the pace of one, or the length of its epochs, is not known.
        """
        step_s: dict[str, float] = {}
        for run in group:
            pace = self.paces.get(_kind(run))
            if pace is None:
                return None
            if pace.flops_per_s is not None:
                step_s[run.arm] = _flops_per_step(run) / pace.flops_per_s
        if not step_s:
            return 0.0
        window = min(
            WINDOW_TARGET_S / min(step_s.values()), LONGEST_WINDOW_S / max(step_s.values())
        )
        total_s = 0.0
        for run in group:
            if run.arm not in step_s:
                continue
            if run.windows is not None:
                window_steps = max(1, round(min(window, run.window_steps or window)))
                steps = run.warmup_steps + run.windows * (window_steps + 1)
            elif run.steps is not None:
                steps = run.steps
            elif run.epochs is not None and train_images is not None:
                steps = run.epochs * (train_images // run.batch_size)
            else:
                return None
            pauses_s = PAUSE_S * (run.windows or MIN_TIMED_WINDOWS)
            total_s += self.paces[_kind(run)].start_s + steps * step_s[run.arm] + pauses_s
        return total_s


def _kind(run: RunConfig) -> str:
    """What two arms share whose FLOPs take about the same time."""
    device = "cpu" if run.device == "cpu" else "default"
    return "/".join((run.backend, run.compute_dtype, device, run.compile, run.layout))


def _flops_per_step(run: RunConfig) -> float:
    network = build_network(run.model, classes=_CLASSES, image_size=run.image_size)
    return TRAINING_FLOPS_OF_FORWARD * forward_flops_per_image(network) * run.batch_size
