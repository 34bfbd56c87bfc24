"""The result of ``max-batch`` as a file, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from harness.record_files import read_part
from harness.records import EnvironmentPart

FILE_NAME = "max_batch.json"
LARGEST_BATCH = 65_536
"""The most that a run may have."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Trial(_Part):
    """Two training steps of one batch size."""

    batch_size: int
    fits: bool
    peak_bytes: int | None
    """Measured on what ``MaxBatch.peak_source`` names; of a trial that was killed, the last sample
    before; None where nothing told."""
    reason: str | None = None
    """How it ended, where it does not fit."""


class MaxBatch(_Part):
    """What was found for one backend and precision."""

    backend: str
    framework_version: str | None = None
    precision: Literal["fp32", "amp"]
    dtype: str
    """Compute dtype that was asked for."""
    status: Literal["ok", "unavailable", "failed"]
    reason: str | None = None
    """Why the status is not ok, or why the search ended before memory did."""
    limit_bytes: int | None = None
    """Of resident host memory, or what was free on the device; None where that is not known."""
    peak_source: Literal["host resident", "device allocated"] | None = None
    runtime_bytes: int | None = None
    """What the process needs before the first step, without the network's weights: the
    interpreter, the framework and its libraries; on a GPU, what the allocator does not know of."""
    largest_batch: int | None = None
    """None where not even a batch of two fits. Where ``reason`` tells that the search ended before
    memory did, the largest that was tried and fits."""
    batch_step: int | None = None
    """The next batch that was tried and did not fit is at most this much larger; None where the
    search ended before memory did."""
    estimated_batch: int | None = None
    """Worked out from the network description, ``limit_bytes`` and ``runtime_bytes``."""
    estimated_bytes_per_image: int | None = None
    trials: list[Trial] = []
    """In the order in which they ran."""

    @property
    def peak_bytes(self) -> int | None:
        """Peak at the largest batch."""
        peaks = {trial.batch_size: trial.peak_bytes for trial in self.trials if trial.fits}
        return peaks.get(self.largest_batch or 0)

    @property
    def bytes_per_image(self) -> float | None:
        """Slope of the peak over two batches: the largest, and the largest of at most half."""
        peaks = {trial.batch_size: trial.peak_bytes for trial in self.trials if trial.fits}
        largest = self.largest_batch or 0
        smaller = max((batch for batch in peaks if 2 * batch <= largest), default=None)
        high, low = peaks.get(largest), None if smaller is None else peaks[smaller]
        if high is None or low is None or smaller is None:
            return None
        return (high - low) / (largest - smaller)

    @property
    def estimate_off(self) -> float | None:
        """How far the estimated batch is from the one found, as a fraction of that.

        None where something else than memory ended the search.
        """
        if self.estimated_batch is None or not self.largest_batch or self.reason is not None:
            return None
        return self.estimated_batch / self.largest_batch - 1


class MaxBatchStudy(_Part):
    """``max_batch.json``."""

    schema_version: Literal[1] = 1
    created: str
    harness_version: str
    command: str
    model: str
    image_size: int
    classes: int
    optimizer: str
    device: str
    memory_limit_bytes: int | None
    trial_variables: dict[str, str]
    """Environment variables that the trials were given beside those of every run."""
    environment: EnvironmentPart
    cells: list[MaxBatch] = []


def gains(cells: Sequence[MaxBatch]) -> Mapping[str, float]:
    """Backend → largest batch of AMP over that of fp32, where memory ended both searches."""
    found = {
        (cell.backend, cell.precision): cell.largest_batch
        for cell in cells
        if cell.largest_batch and cell.reason is None
    }
    return {
        backend: batch / found[backend, "fp32"]
        for (backend, precision), batch in found.items()
        if precision == "amp" and (backend, "fp32") in found
    }


def read_max_batch(directory: Path) -> MaxBatchStudy | None:
    """Read the result that lies in ``directory``; None where there is none.

    Raises:
        UnreadableRecord: with the file and the first thing that is wrong with it.
    """
    path = directory / FILE_NAME
    return read_part(path, MaxBatchStudy) if path.exists() else None
