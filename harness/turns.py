"""Arms that are measured in turn by workers that are alive together: AMP off and on, as a rule.

What the machine does in the meantime (clocks, neighbours, temperature) then hits all alike, and
each window has a partner that was measured right beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.config import RunConfig
from harness.inputs import PreparedInput
from harness.records import Record
from harness.runner import ArmRun, OnEvent

COMPUTE_WINDOWS = 4
"""Windows on a resident batch: few, since they only tell where the time went."""
PAUSE_S = 0.5
"""After this time the threads of an idle worker were seen to have stopped spinning."""
LONGEST_WINDOW_S = 10.0
"""Of the slower arm, where the number of windows is given and not the number of steps."""
SHORTEST_WINDOW_S = 0.5
"""Of the slower arm, however little time is left: shorter ones show the neighbours."""
DIAGNOSIS_SHARE = 0.25
"""Of the time that arms may take, where it is limited and they are diagnosed."""


def run_arms(
    runs: Sequence[RunConfig],
    data: PreparedInput,
    *,
    python: str,
    log: Callable[[RunConfig], Path],
    command: Callable[[RunConfig], str],
    on_event: OnEvent,
    on_record: Callable[[Record], None],
    arm_position: int = 0,
    time_s: float | None = None,
) -> None:
    """Measure ``runs`` in alternating windows, A B B A A B B A, and hand over their records.

    Each record is handed to ``on_record`` as soon as its arm ends, and an arm that ends early
    leaves the others to go on alone. One that ran out of memory beside the others, or was killed as
    systems do for lack of it, is measured anew when it has the machine to itself.

    Args:
        runs: one or more, of one backend.
        data: what all of them train on.
        python: interpreter of the backend.
        log: where a worker's output goes.
        command: that repeats a run alone.
        on_event: is told the progress.
        on_record: is given each record.
        arm_position: of the first window.
        time_s: that all of it may take; windows whose steps are not given are cut to fit.
    """
    started_s = time.monotonic()
    live = {
        run.arm: ArmRun(
            run, data, command=command(run), on_event=on_event, arm_position=arm_position
        )
        for run in runs
    }
    turns = _Turns(list(runs), live, first=arm_position)
    training_s = time_s
    if time_s is not None and any(run.diagnose for run in runs):
        training_s = (1 - DIAGNOSIS_SHARE) * time_s

    def left_s(of_s: float | None) -> float | None:
        return None if of_s is None else of_s - (time.monotonic() - started_s)

    crowded_out: list[RunConfig] = []

    def end(run: RunConfig) -> None:
        turns.order.remove(run)
        arm = live.pop(run.arm)
        record = arm.finish()
        if arm.lacked_memory and len(runs) > 1:
            crowded_out.append(run)
        else:
            on_record(record)

    try:
        for run in runs:
            live[run.arm].start(python=python, log=log(run))
        while True:
            for run in [run for run in turns.order if live[run.arm].failed]:
                end(run)
            training = [live[run.arm] for run in turns.order if not live[run.arm].done]
            if not training:
                break
            windows = [arm.windows_left for arm in training if arm.windows_left is not None]
            steps = _steps(training, max(windows, default=None), left_s(training_s))
            for arm in turns.round():
                if not arm.done:
                    arm.train_window(steps, settle=len(training) > 1)
        for run in turns.order:
            live[run.arm].conclude()
        _explain(turns, left_s(time_s))
        for run in [*turns.order]:
            end(run)
    except BaseException:
        for arm in live.values():
            arm.abort()
        raise
    for run in crowded_out:
        record = run_arm(
            run,
            data,
            python=python,
            log=log(run),
            command=command(run),
            on_event=on_event,
            arm_position=turns.next_position,
        )
        on_record(record)


def run_arm(
    run: RunConfig,
    data: PreparedInput,
    *,
    python: str,
    log: Path,
    command: str,
    on_event: OnEvent,
    arm_position: int = 0,
) -> Record:
    """Run one arm alone; every failure of its worker becomes the record's status."""
    records: list[Record] = []
    run_arms(
        [run],
        data,
        python=python,
        log=lambda run: log,
        command=lambda run: command,
        on_event=on_event,
        on_record=records.append,
        arm_position=arm_position,
    )
    (record,) = records
    return record


class _Turns:
    """Whose turn it is: rounds of all live arms, each round in the reverse order of the last."""

    def __init__(self, order: list[RunConfig], live: dict[str, ArmRun], *, first: int) -> None:
        self.order = order
        self.next_position = first
        self._live = live

    def round(self) -> Iterator[ArmRun]:
        """Each live arm once, when the threads of the one before it have come to rest."""
        for run in self.order:
            if len(self.order) > 1:
                time.sleep(PAUSE_S)
            arm = self._live[run.arm]
            arm.arm_position = self.next_position
            yield arm
            self.next_position += 1
        self.order.reverse()

    def arm(self, run: RunConfig) -> ArmRun:
        """The live arm of ``run``."""
        return self._live[run.arm]


def _explain(turns: _Turns, left_s: float | None) -> None:
    """Measure where the time of the trained arms went, in turn as well."""
    arms = [turns.arm(run) for run in turns.order]
    steps = _steps([arm for arm in arms if arm.to_diagnose], COMPUTE_WINDOWS, left_s)
    for _ in range(COMPUTE_WINDOWS):
        for arm in turns.round():
            if arm.to_diagnose:
                arm.compute_window(steps)
    for run in turns.order:
        if (arm := turns.arm(run)).to_diagnose:
            arm.profile()


def _steps(arms: Sequence[ArmRun], windows: int | None, left_s: float | None) -> int:
    """Steps of the next window, the same for all arms.

    The faster arm's, whose clock is the more delicate; but where it is not steps that are counted,
    no more than the slower arm can take in :data:`LONGEST_WINDOW_S`, and than fit into the time
    that is left.

    Args:
        arms: that take a window each.
        windows: of each arm that are to come; None where the run's length is given in steps.
        left_s: seconds for all of these windows; None: as long as it takes.
    """
    steps = max((arm.window_steps for arm in arms), default=1)
    if arms and windows:
        slowest_s = max(arm.step_s for arm in arms)
        steps = min(steps, int(LONGEST_WINDOW_S / slowest_s))
        if left_s is not None:
            settling_s = sum(arm.settling_steps * arm.step_s for arm in arms)
            round_s = left_s / windows - PAUSE_S * len(arms) - settling_s
            fitting = int(round_s / sum(arm.step_s for arm in arms))
            steps = min(steps, max(fitting, math.ceil(SHORTEST_WINDOW_S / slowest_s)))
    return max(1, steps)
