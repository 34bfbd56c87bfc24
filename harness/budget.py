"""The wall time that a study may take, and what still fits into it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from harness.config import RunConfig
from harness.records import Record, mean_step_s
from harness.turns import PAUSE_S, SHORTEST_WINDOW_S


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
        least_s = _least_s(group, firsts)
        left_s = max(0.0, self._end_s - self._clock())
        if least_s <= left_s:
            return None
        return (
            f"it takes {least_s:.0f} s at least, and {left_s:.0f} s of the budget of "
            f"{self._time_s:.0f} s were left"
        )


def _least_s(group: Sequence[RunConfig], firsts: Sequence[Record | None]) -> float:
    """Start and warm-up of each arm, and windows as short as they come, each settled by a step."""
    pace = {
        run.arm: step_s
        for run, first in zip(group, firsts, strict=True)
        if first is not None and (step_s := mean_step_s(first.windows)) is not None
    }
    slowest_s = max(pace.values(), default=1.0)
    window_steps = math.ceil(SHORTEST_WINDOW_S / slowest_s)
    least_s = 0.0
    for run, first in zip(group, firsts, strict=True):
        if first is None or first.throughput is None or run.arm not in pace:
            continue
        step_s = pace[run.arm]
        least_s += first.throughput.prepare_s
        if run.windows is None:
            least_s += (run.steps or first.throughput.timed_steps) * step_s
        else:
            window_s = (window_steps + 1) * step_s + PAUSE_S
            least_s += first.windows[0].time_s + run.warmup_steps * step_s + run.windows * window_s
    return least_s
