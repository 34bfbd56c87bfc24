"""When a run is called lost."""

import math

import pytest

from harness.divergence import MAX_CONSECUTIVE_SKIPS, DivergenceWatch


def check(watch: DivergenceWatch, *steps: tuple[float, float | None, bool], broken=(), first=0):
    loss, scale, skipped = zip(*steps, strict=True)
    return watch.check(
        first_step=first,
        loss=loss,
        loss_scale=scale,
        skipped=skipped,
        broken_statistics=broken,
    )


def test_finite_losses_and_a_few_skips_are_no_divergence():
    watch = DivergenceWatch()
    assert check(watch, (1.6, 65536.0, True), (1.6, 32768.0, True), (1.5, 16384.0, False)) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_with_its_step(loss: float):
    reason = check(DivergenceWatch(), (1.0, None, False), (loss, None, False), first=40)
    assert reason is not None
    assert "at step 41" in reason
    assert "--lr" in reason


def test_an_overflowing_loss_in_a_skipped_step_may_pass_if_the_statistics_stayed_whole():
    assert check(DivergenceWatch(), (math.inf, 1024.0, True), (1.0, 512.0, False)) is None


def test_broken_statistics_end_the_run_although_the_step_was_skipped():
    reason = check(DivergenceWatch(), (math.nan, 1024.0, True), broken=["bn1.running_var"], first=7)
    assert reason is not None
    assert "at step 7" in reason
    assert "bn1.running_var" in reason


def test_too_many_skips_in_a_row_end_the_run_and_windows_do_not_hide_them():
    watch = DivergenceWatch()
    step = (1.0, 2.0**-9, True)
    half = MAX_CONSECUTIVE_SKIPS // 2
    assert check(watch, *[step] * half) is None
    reason = check(watch, *[step] * (MAX_CONSECUTIVE_SKIPS - half + 1), first=half)
    assert reason is not None
    assert f"up to step {MAX_CONSECUTIVE_SKIPS}" in reason
    assert "0.00195312" in reason


def test_one_applied_step_forgives_the_skips_before_it():
    watch = DivergenceWatch()
    skips = [(1.0, 8.0, True)] * MAX_CONSECUTIVE_SKIPS
    assert check(watch, *skips, (1.0, 8.0, False), *skips) is None
