"""What came back from one arm, and the record that it becomes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import harness
from harness.arm import Prepared
from harness.config import RunConfig
from harness.energy import training_energy
from harness.peaks import UnreadablePeaks, known_peak, peak_key, peaks_file
from harness.records import (
    AccuracyPart,
    DataPart,
    DevicePart,
    EnergyPart,
    EnvironmentPart,
    EpochPart,
    GradientHistogramPart,
    LoaderPart,
    MemoryPart,
    PeakPart,
    PrecisionPart,
    ProfilePart,
    Record,
    StepsPart,
    ThroughputPart,
    TrainingPart,
    Window,
    timed,
)
from harness.worker_process import WorkerFailed

MIN_TIMED_WINDOWS = 6
"""Windows are cut shorter rather than be fewer, since the spread between them is what is told."""


class ArmResults:
    """Filled in while an arm runs; a failed arm leaves the later parts empty."""

    def __init__(self, run: RunConfig, data: DataPart, *, command: str) -> None:
        self._run = run
        self._data = data
        self._command = command
        self._created = datetime.now(UTC).isoformat(timespec="seconds")
        self.failure: WorkerFailed | None = None
        self.undiagnosed: str | None = None
        """Why what follows the training broke off."""
        self.prepared: Prepared | None = None
        self.environment: EnvironmentPart | None = None
        self.evidence: dict[str, Any] | None = None
        self.windows: list[Window] = []
        self.compute_windows: list[Window] = []
        self.loader: list[LoaderPart] = []
        self.profile: ProfilePart | None = None
        self.steps = StepsPart()
        self.epochs: list[EpochPart] = []
        self.histogram: GradientHistogramPart | None = None
        self.accuracy: AccuracyPart | None = None
        self.memory: MemoryPart | None = None
        self.energy: EnergyPart | None = None
        """What the worker found before the first step."""
        self.hashes: dict[str, str] = {}

    def record(self) -> Record:
        """Write up what is known."""
        run, prepared = self._run, self.prepared
        in_force = prepared.in_force if prepared else None
        data = self._data.model_copy(update=self.hashes)
        peak, peak_warnings = self._peak()
        return Record(
            arm=run.arm,
            variant=run.variant,
            label=run.label,
            status=self.failure.status if self.failure else "ok",
            reason=self.failure.reason if self.failure else None,
            warnings=[*self._warnings(), *peak_warnings],
            command=self._command,
            created=self._created,
            harness_version=harness.__version__,
            backend=run.backend,
            framework_version=in_force.framework_version if in_force else None,
            precision=PrecisionPart(
                requested=run.precision,
                dtype=self._run.compute_dtype,
                effective=self.evidence["effective"] if self.evidence else None,
                tf32=in_force.tf32 if in_force else None,
                evidence=self.evidence,
            ),
            device=DevicePart(
                type=in_force.device_type, name=in_force.device_name, uuid=in_force.device_uuid
            )
            if in_force
            else None,
            model=prepared.model if prepared else None,
            data=data,
            training=self._training(prepared) if prepared else None,
            windows=self.windows,
            compute_windows=self.compute_windows,
            loader=self.loader,
            profile=self.profile,
            peak=peak,
            steps=self.steps,
            gradient_histogram=self.histogram,
            epochs=self.epochs,
            throughput=self._throughput(prepared) if prepared else None,
            accuracy=self.accuracy,
            memory=self.memory,
            energy=training_energy(self.energy, self.windows) if self.energy else None,
            environment=self.environment,
        )

    def _training(self, prepared: Prepared) -> TrainingPart:
        run, in_force = self._run, prepared.in_force
        same = set(TrainingPart.model_fields) & set(RunConfig.model_fields)
        taken = {name: getattr(run, name) for name in same}
        return TrainingPart(
            **taken
            | {
                "steps": len(self.steps.loss),
                "optimizer_implementation": self.evidence["optimizer_implementation"]
                if self.evidence
                else None,
                "layout": in_force.layout,
                "compile": in_force.compile,
                "threads": in_force.threads,
                "loss_scale_policy": in_force.loss_scale_policy,
            }
        )

    def _peak(self) -> tuple[PeakPart | None, list[str]]:
        """The device's peak in the arm's dtype, where it is known, and what kept it from us."""
        if self.prepared is None or self.environment is None:
            return None, []
        key = peak_key(self._run, self.prepared.in_force, self.environment)
        try:
            return known_peak(key, file=peaks_file()), []
        except UnreadablePeaks as error:
            return None, [str(error)]

    def _throughput(self, prepared: Prepared) -> ThroughputPart:
        counted = timed(self.windows)
        # Up to the first timed window; later steps that are not timed only settle the worker.
        warmup = [*takewhile(lambda window: window.warmup, self.windows)]
        time_s = sum(window.time_s for window in counted)
        return ThroughputPart(
            images_per_s=sum(window.images for window in counted) / time_s if counted else None,
            warmup_steps=sum(window.steps for window in warmup),
            timed_steps=sum(window.steps for window in counted),
            data_wait_fraction=sum(w.data_wait_s for w in counted) / time_s if counted else None,
            threads_in_use=sum(window.cpu_s for window in counted) / time_s if counted else None,
            prepare_s=prepared.prepare_s,
            warmup_s=sum(window.time_s for window in warmup),
        )

    def _warnings(self) -> list[str]:
        warnings = []
        if self._run.parts == "native":
            warnings.append(
                "trained with the framework's own layers and optimizers: other frameworks do not "
                "train the same network"
            )
        usable = self.environment.cpus_usable if self.environment else None
        if usable is not None and (self._run.threads or 0) > usable:
            warnings.append(
                f"{self._run.threads} threads share {usable} CPUs, which makes most steps slower; "
                "leave out --threads"
            )
        if self.undiagnosed is not None:
            warnings.append(f"where the time went is not fully known: {self.undiagnosed}")
        counted = timed(self.windows)
        if self.failure is None and len(counted) < MIN_TIMED_WINDOWS:
            warnings.append(
                f"only {len(counted)} timed window(s): too few to show the spread; take more "
                "steps, or give --windows"
            )
        if skipped := sum(self.steps.skipped):
            warnings.append(
                f"{skipped} of {len(self.steps.loss)} steps were skipped because gradients "
                "overflowed at the loss scale; skipped steps count as time, not as images"
            )
        return warnings
