"""A worker whose arms of the variant ``slowed`` lose a known share of their images/s.

For benchmarks/real_studies.py, which runs it in place of ``python -m harness.worker``.
"""

from __future__ import annotations

import os
import time
from typing import Any

from backends.pytorch.backend import TorchBackend
from harness.registry import BACKENDS, BackendEntry
from harness.worker import main

SHARE = "AMP_HARNESS_SLOWED_BY"
"""Variable with the share that is lost, 0 to 1."""
VARIANT = "slowed"


class SlowedTorchBackend(TorchBackend):
    """PyTorch on the CPU, where a step is over when the call returns.

    After each step it waits for a fixed share of all the time since the last one, what the harness
    itself did in between included, so that the true ratio is known whatever a step takes.
    """

    _owed_s = 0.0
    """Still to be waited; below zero where the system let a wait run over."""

    def synchronize(self) -> None:
        """Also begins the clock: every window starts with it."""
        super().synchronize()
        self._since_s = time.perf_counter()

    def train_step(self, batch: Any) -> None:
        """One step and the wait after it; busy, because a sleep would be longer than asked for."""
        super().train_step(batch)
        if self._run.variant != VARIANT:
            return
        share = float(os.environ[SHARE])
        end_s = now_s = time.perf_counter()
        self._owed_s += (end_s - self._since_s) * share / (1 - share)
        while now_s < end_s + self._owed_s:
            now_s = time.perf_counter()
        self._owed_s -= now_s - end_s
        self._since_s = now_s


if __name__ == "__main__":
    BACKENDS["torch"] = BackendEntry(
        adapter="benchmarks.slowed_worker:SlowedTorchBackend", framework="torch", extra="torch"
    )
    main()
