"""Loss scaling under fault: infinite gradients and an overflowing forward pass, on purpose.

The first drill makes one gradient infinite: exactly that step must be skipped, weights and
optimizer state must stay as they were, the scale must halve, and training must go on. The second
overflows the forward pass itself, which no skipped step undoes: the run must end as diverged.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import BaseModel

from harness.arm import broken_statistics
from harness.config import RunConfig
from harness.divergence import DivergenceWatch
from harness.protocol import Backend, StepResult, TrainState
from harness.trial import trial_batch, trial_network
from harness.weights import initial_weights

POISONED_STEPS = (0, 3)
"""The very first step, when an optimizer may not have made its state yet, and a later one."""
RECOVERY_STEPS = 3
OVERFLOW_FACTOR = 2.0**17
"""Times the first convolution's weights: its float16 outputs pass 65504 for any picture."""


class Finding(BaseModel):
    """One thing that the drill looked at."""

    check: str
    expected: str | None
    """None: there is no right value, it is only told."""
    observed: str
    passed: bool


def drill(backend: Backend, run: RunConfig) -> list[Finding]:
    """Run both drills with the optimizer of ``run``.

    Raises:
        Unsupported: the backend cannot run AMP with a loss scaler on this device.
    """
    backend.open(run)
    findings: list[Finding] = []
    for step in POISONED_STEPS:
        findings += _infinite_gradient(backend, run, step)
    return [*findings, *_overflowing_forward(backend, run)]


def _build(backend: Backend, run: RunConfig) -> None:
    network = trial_network(run)
    backend.build(network, initial_weights(network, seed=run.seed))


def _step(backend: Backend, run: RunConfig, index: int) -> StepResult:
    backend.train_step(backend.put(*trial_batch(run, index)))
    (result,) = backend.take_steps()
    return result


def _infinite_gradient(backend: Backend, run: RunConfig, poisoned_step: int) -> list[Finding]:
    _build(backend, run)
    before = [_step(backend, run, index) for index in range(poisoned_step)]
    state = backend.state()
    backend.poison_next_gradient()
    poisoned = _step(backend, run, poisoned_step)
    after = backend.state()
    # The same batches again, so that the loss is one that training has seen.
    recovery = [_step(backend, run, index % 2) for index in range(RECOVERY_STEPS)]
    skipped = [step for step, result in enumerate([*before, poisoned, *recovery]) if result.skipped]
    if skipped != [poisoned_step]:
        _refuse_overflow(backend, run, steps=len(before) + 1)
    scale = state.loss_scale
    factor = run.loss_scale.backoff_factor if run.loss_scale.dynamic else 1.0
    moved = _moved_statistics(state, after)
    return [
        _finding(
            f"step {poisoned_step} poisoned: skipped steps", str([poisoned_step]), str(skipped)
        ),
        _finding("weights changed by the skipped step", "0", str(_changed_weights(state, after))),
        _finding("optimizer slots changed by it", "0", str(_changed_slots(state, after))),
        _finding("optimizer steps counted for it", "0", _difference(state, after)),
        _finding(
            "loss scale after it",
            f"{scale * factor:g}" if scale is not None else "a scale",
            f"{after.loss_scale:g}" if after.loss_scale is not None else "none",
        ),
        Finding(
            check="loss of the steps that follow",
            expected="finite, applied",
            observed=", ".join(f"{result.loss:.4f}" for result in recovery),
            passed=all(math.isfinite(result.loss) and not result.skipped for result in recovery),
        ),
        Finding(
            check="BatchNorm statistics moved by the skipped step",
            expected=None,
            observed=f"{moved} of {_statistics_count(state)} (no framework holds them back)",
            passed=True,
        ),
    ]


def _refuse_overflow(backend: Backend, run: RunConfig, *, steps: int) -> None:
    """Where training overflows without a fault as well, a drill shows nothing.

    Raises:
        ValueError: it does.
    """
    _build(backend, run)
    results = [_step(backend, run, index) for index in range(steps)]
    results += [_step(backend, run, index % 2) for index in range(RECOVERY_STEPS)]
    if overflown := [step for step, result in enumerate(results) if result.skipped]:
        raise ValueError(
            f"{run.model} at batch {run.batch_size} overflows at loss scale "
            f"{run.loss_scale.initial:g} without any fault (step {overflown[0]}), so the drill "
            "shows nothing; choose a larger --batch-size"
        )


def _overflowing_forward(backend: Backend, run: RunConfig) -> list[Finding]:
    _build(backend, run)
    state = backend.state()
    if not any(_is_statistic(name) for name in state.tensors):
        return []  # nothing that an overflow could leave broken
    first = next(name for name in state.tensors if name.endswith(".weight"))
    state.tensors[first] = state.tensors[first] * np.float32(OVERFLOW_FACTOR)
    backend.load_state(state)
    result = _step(backend, run, 0)
    broken = broken_statistics(backend.state())
    reason = DivergenceWatch().check(
        first_step=0,
        loss=[result.loss],
        loss_scale=[result.loss_scale],
        skipped=[result.skipped],
        broken_statistics=broken,
    )
    return [
        _finding("overflowing forward pass: step skipped", "True", str(result.skipped)),
        Finding(
            check="BatchNorm statistics that it broke",
            expected="at least 1",
            observed=str(len(broken)),
            passed=bool(broken),
        ),
        Finding(
            check="the run ends",
            expected="diverged",
            observed=f"diverged: {reason}" if reason else "goes on",
            passed=reason is not None,
        ),
    ]


def _finding(check: str, expected: str, observed: str) -> Finding:
    return Finding(check=check, expected=expected, observed=observed, passed=observed == expected)


def _is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var"))


def _changed_weights(before: TrainState, after: TrainState) -> int:
    return sum(
        not np.array_equal(values, after.tensors[name])
        for name, values in before.tensors.items()
        if not _is_statistic(name)
    )


def _changed_slots(before: TrainState, after: TrainState) -> int:
    """Slots that differ; one that an optimizer had not made before its first step was zero."""
    return sum(
        not np.array_equal(before.slots.get(slot, {}).get(name, np.zeros_like(values)), values)
        for slot, tensors in after.slots.items()
        for name, values in tensors.items()
    )


def _difference(before: TrainState, after: TrainState) -> str:
    return str(after.optimizer_steps - before.optimizer_steps)


def _moved_statistics(before: TrainState, after: TrainState) -> int:
    return sum(
        not np.array_equal(values, after.tensors[name])
        for name, values in before.tensors.items()
        if _is_statistic(name)
    )


def _statistics_count(state: TrainState) -> int:
    return sum(_is_statistic(name) for name in state.tensors)
