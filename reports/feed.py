"""Whether an arm's input keeps up with its compute, and what AMP gives where it does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from harness.records import Record
from harness.speedup import MIN_WINDOWS, PairWindows, Speedup, estimate_speedup
from harness.verdict import Verdict, judge
from reports.judged import Judged
from reports.speedup import process_pair, rates, timed_windows, window_rates

WAIT_SHARE: Final = 0.1
"""Share of the time waited for data from which an arm can be input-bound: below it, perfect input
would gain less than a ninth."""
FED_GAIN: Final = 1 / (1 - WAIT_SHARE)
"""What an arm gains on images that cost nothing if it waits for :data:`WAIT_SHARE` of the time."""
SAME_PROCESS_SD_SCALE: Final = 0.01
"""Prior of the bias between two measurements of one process: it keeps its threads and most of its
memory, so that the bias of a process cancels, as in ``benchmarks/overhead.py``."""

Bound = Literal["input", "compute", "not shown"]


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Whether an arm's input keeps up with its compute; None for what was not measured."""

    images_per_s: float | None
    """End to end: median of the timed windows."""
    compute_images_per_s: float | None
    """On a resident batch: median of its windows."""
    starved: Speedup | None
    """Compute alone over end to end, of one process and as many of its last windows. Not measured
    in turn."""
    wait_fraction: float | None
    ceiling_images_per_s: float | None
    """The loader alone, in the arm's own input mode."""
    shares_cpus: bool
    """Whether photos are decoded on the CPUs that compute: that slows the step itself, and an arm
    may be starved of CPU time without ever waiting for a batch."""

    @property
    def bound_by(self) -> Bound | None:
        """Whether the arm would train faster on images that cost nothing; None if nothing tells.

        ``not shown`` where the interval of :attr:`starved` holds the gain from which on its input
        would be what limits it. An arm that computed slower alone than it trained met another
        machine: a load, or a clock.
        """
        if self.starved is None or self.wait_fraction is None or self.starved.shown.high < 1:
            return None
        low, high = self.starved.shown.low, self.starved.shown.high
        if self.waits:
            return "input" if low > 1 else "not shown"
        if not self.shares_cpus or high < FED_GAIN:
            return "compute"
        return "input" if low > FED_GAIN else "not shown"

    @property
    def waits(self) -> bool:
        """Whether the arm waited for batches long enough to matter."""
        return self.wait_fraction is not None and self.wait_fraction >= WAIT_SHARE


def feed_of(record: Record) -> Feed:
    """How the input of an arm compares with its compute."""
    mode = record.training.input if record.training else ""
    trained = window_rates(record)
    computed = rates(timed_windows(record.compute_windows))
    return Feed(
        images_per_s=median(trained) if trained else None,
        compute_images_per_s=median(computed) if computed else None,
        starved=_starved(trained, computed),
        wait_fraction=record.throughput.data_wait_fraction if record.throughput else None,
        ceiling_images_per_s=loader_rate(record, mode),
        shares_cpus=mode == "live" and record.device is not None and record.device.type == "cpu",
    )


def _starved(trained: Sequence[float], computed: Sequence[float]) -> Speedup | None:
    """Compute alone over the last as many windows of the training: its first may be warm-up."""
    matched = min(len(trained), len(computed))
    if matched < MIN_WINDOWS or 0 in trained[-matched:] or 0 in computed:
        return None
    windows = PairWindows(
        baseline_images_per_s=tuple(trained[-matched:]),
        candidate_images_per_s=tuple(computed[:matched]),
    )
    return estimate_speedup([windows], process_sd_scale=SAME_PROCESS_SD_SCALE)


def loader_rate(record: Record, input_mode: str) -> float | None:
    """Median images/s of the loader alone in one input mode."""
    found = [part.images_per_s for part in record.loader if part.input == input_mode]
    return median(found[0]) if found and found[0] else None


def loader_workers(record: Record, images_per_s: float) -> int | None:
    """Decoding workers that would feed ``images_per_s``, if each decodes as fast as now."""
    for part in record.loader:
        if part.input == "live" and part.images_per_s and median(part.images_per_s) > 0:
            return math.ceil(images_per_s * part.workers / median(part.images_per_s))
    return None


def judge_fed(judged: Judged) -> Verdict:
    """The verdict on compute alone: what AMP gives where no arm waits for images."""
    pairs = [process_pair(pair.baseline, pair.candidate, compute=True) for pair in judged.counted]
    measured = [pair.windows for pair in pairs if pair.windows.matched]
    if not measured:
        return judge([], unavailable="No steps on a resident batch were measured.")
    return judge(measured, margin=judged.verdict.margin)
