"""The wall time that a study may take, and what still fits into it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from harness.config import RunConfig
from harness.records import Record, mean_step_s
from harness.turns import PAUSE_S


class Budget:
    """Starts to run when it is made."""

    def __init__(
        self, time_s: float | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``time_s``: None for as long as it takes."""
        self._clock = clock
        self._time_s = time_s
        self._end_s = None if time_s is None else clock() + time_s

    def share_s(self, groups: int) -> float | None:
        """An equal share of what is left, where ``groups`` are still to be measured."""
        return None if self._end_s is None else max(0.0, self._end_s - self._clock()) / groups

    def refuses(self, group: Sequence[RunConfig], firsts: Sequence[Record | None]) -> str | None:
        """Why a repetition is not begun, in words; None where it fits, or is no repetition.

        Args:
            group: arms that are measured in turn.
            firsts: the records of the same arms' first run.
        """
        if self._end_s is None or not group[0].label:
            return None
        least_s = sum(
            _least_s(run, first)
            for run, first in zip(group, firsts, strict=True)
            if first is not None
        )
        left_s = max(0.0, self._end_s - self._clock())
        if least_s <= left_s:
            return None
        return (
            f"it takes {least_s:.0f} s at least, and {left_s:.0f} s of the budget of "
            f"{self._time_s:.0f} s were left"
        )


def _least_s(run: RunConfig, first: Record) -> float:
    """Start, warm-up, and windows of one step, each after one that settles the arm."""
    step_s = mean_step_s(first.windows)
    if first.throughput is None or step_s is None:
        return 0.0
    if run.windows is None:
        steps = run.steps or first.throughput.timed_steps
        return first.throughput.prepare_s + steps * step_s
    start_s = first.throughput.prepare_s + first.windows[0].time_s
    return start_s + run.warmup_steps * step_s + run.windows * (2 * step_s + PAUSE_S)
