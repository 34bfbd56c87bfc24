"""Learning rates by hand."""

from math import cos, pi, sqrt

import pytest

from harness.config import RunConfig
from harness.schedule import learning_rate


def rates(schedule: str, *, total: int, lr: float = 0.2) -> list[float]:
    run = RunConfig.model_validate(
        {"backend": "fake", "steps": total, "lr": lr, "lr_schedule": schedule}
    )
    return [learning_rate(run, step=step, total_steps=total) for step in range(total)]


def test_a_constant_rate_stays():
    assert rates("constant", total=5) == [0.2] * 5


def test_half_a_cosine_falls_from_the_rate_towards_zero():
    # Loshchilov and Hutter 2017, eq. 5: lr/2 · (1 + cos(π·t/T)), at eighths of the way.
    expected = [
        0.2,
        0.1 * (1 + cos(pi / 8)),
        0.1 * (1 + 1 / sqrt(2)),
        0.1 * (1 + cos(3 * pi / 8)),
        0.1,
        0.1 * (1 - cos(3 * pi / 8)),
        0.1 * (1 - 1 / sqrt(2)),
        0.1 * (1 - cos(pi / 8)),
    ]

    assert rates("cosine", total=8) == pytest.approx(expected)


def test_steps_divide_by_ten_after_a_half_and_after_three_quarters():
    assert rates("step", total=8) == pytest.approx([0.2] * 4 + [0.02] * 2 + [0.002] * 2)


def test_steps_of_an_odd_length_drop_at_the_first_step_past_the_mark():
    # Marks at 3.5 and 5.25 of seven steps.
    assert rates("step", total=7) == pytest.approx([0.2] * 4 + [0.02] * 2 + [0.002])


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_every_schedule_starts_at_the_rate_and_never_rises(schedule: str):
    values = rates(schedule, total=97, lr=0.003)

    assert values[0] == 0.003
    assert values == sorted(values, reverse=True)
    assert values[-1] > 0


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_a_single_step_has_the_full_rate(schedule: str):
    assert rates(schedule, total=1) == [0.2]
