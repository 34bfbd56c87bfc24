"""The two arms of one backend, measured in turn by two workers that are alive together.

What the machine does in the meantime (clocks, neighbours, temperature) then hits both alike, and
each window has a partner that was measured right beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.config import RunConfig
from harness.inputs import PreparedInput
from harness.records import Record
from harness.runner import ArmRun, OnEvent, drive

PAUSE_S = 0.5
"""After this time the threads of an idle worker were seen to have stopped spinning."""


def run_pair(
    runs: Sequence[RunConfig],
    data: PreparedInput,
    *,
    python: str,
    log: Callable[[RunConfig], Path],
    command: Callable[[RunConfig], str],
    on_event: OnEvent,
    on_record: Callable[[Record], None],
    arm_position: int = 0,
) -> None:
    """Measure ``runs`` in alternating windows, A B B A A B B A, and hand over their records.

    Each record is handed to ``on_record`` as soon as its arm ends, and an arm that ends early
    leaves the other to go on alone. One that ran out of memory beside the other is measured anew
    when it has the machine to itself.
    """
    live = {
        run.arm: ArmRun(
            run, data, command=command(run), on_event=on_event, arm_position=arm_position
        )
        for run in runs
    }
    crowded_out: list[RunConfig] = []
    turn = arm_position
    try:
        for run in runs:
            live[run.arm].start(python=python, log=log(run))
        order = list(runs)
        while True:
            for run in [run for run in order if live[run.arm].done]:
                record = live.pop(run.arm).finish()
                order.remove(run)
                if record.status == "out_of_memory" and len(runs) > 1:
                    crowded_out.append(run)
                else:
                    on_record(record)
            if not order:
                break
            # One length for both, in steps: the faster arm's, whose clock is the more delicate.
            steps = max(arm.window_steps for arm in live.values())
            for run in order:
                arm = live[run.arm]
                if len(order) > 1:
                    time.sleep(PAUSE_S)
                arm.arm_position = turn
                arm.train_window(steps, settle=len(order) > 1)
                turn += 1
            order.reverse()
        for run in crowded_out:
            alone = ArmRun(run, data, command=command(run), on_event=on_event, arm_position=turn)
            live[run.arm] = alone
            on_record(drive(alone, python=python, log=log(run)))
    except BaseException:
        for arm in live.values():
            arm.abort()
        raise
