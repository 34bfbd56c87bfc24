"""Times of nested operations, added up so that nothing counts twice."""

import gzip
import json
from typing import Any

import pytest
from fake_runs import KnownPixels, VirtualTime, fake_run

from backends.fake import FakeBackend
from harness import profiling
from harness.arm import Arm
from harness.profiling import (
    Share,
    Span,
    busy_s,
    kind_of,
    open_trace,
    seconds_by_kind,
    shares,
    step_profile,
    timed_phases,
)
from harness.protocol import StepProfile


def test_an_operation_inside_another_one_counts_once():
    spans = [
        Span("thread", 0, 100, "other"),
        Span("thread", 10, 40, "elementwise"),
        Span("thread", 20, 25, "elementwise"),
        Span("thread", 50, 80, "pooling"),
    ]

    found = shares(spans)

    assert [share.self_ns for share in found] == [40, 25, 5, 30]
    assert sum(share.self_ns for share in found) == 100


def test_spans_of_different_threads_do_not_lie_inside_each_other():
    spans = [Span("one", 0, 100, "convolution"), Span("two", 10, 90, "elementwise")]

    assert shares(spans) == [Share("convolution", 100), Share("elementwise", 80)]


def test_the_order_of_the_spans_does_not_matter():
    spans = [Span(0, 10, 40, "copy"), Span(0, 0, 100, "convolution"), Span(0, 10, 20, "cast")]

    assert shares(spans) == [
        Share("convolution", 20),
        Share("convolution", 70),
        Share("cast", 10),
    ]


def test_an_operation_that_ends_when_the_next_one_begins_does_not_enclose_it():
    spans = [Span(0, 0, 10, "convolution"), Span(0, 10, 30, "copy")]

    assert shares(spans) == [Share("convolution", 10), Share("copy", 20)]


def test_what_a_convolution_calls_is_a_part_of_it_but_a_cast_is_not():
    spans = [
        Span(0, 0, 100, "convolution"),
        Span(0, 10, 60, "matrix product"),
        Span(0, 20, 30, "copy"),
        Span(0, 70, 90, "cast"),
    ]

    assert seconds_by_kind(shares(spans), steps=1) == {"convolution": 80e-9, "cast": 20e-9}


def test_all_that_the_optimizer_does_is_the_optimizer():
    spans = [
        Span(0, 0, 100, "optimizer"),
        Span(0, 10, 20, "cast"),
        Span(0, 20, 60, "elementwise"),
    ]

    assert seconds_by_kind(shares(spans), steps=1) == {"optimizer": 100e-9}


def test_a_bare_enclosing_span_gives_its_kind_to_nothing():
    spans = [Span(0, 0, 100, "other"), Span(0, 0, 100, "copy")]

    assert seconds_by_kind(shares(spans), steps=1) == {"copy": 100e-9, "other": 0.0}


def test_a_child_whose_clock_runs_over_its_parents_end_takes_no_more_than_there_is():
    spans = [Span(0, 0, 100, "other"), Span(0, 90, 105, "copy")]

    assert shares(spans) == [Share("other", 90), Share("copy", 15)]


def test_seconds_are_of_one_step_and_the_longest_kind_comes_first():
    parts = [Share("copy", 1_000_000_000), Share("cast", 5_000_000_000), Share("copy", 3)]

    seconds = seconds_by_kind(parts, steps=2)

    assert list(seconds) == ["cast", "copy"]
    assert seconds == pytest.approx({"cast": 2.5, "copy": 0.5})


def test_the_device_is_busy_while_any_kernel_runs():
    # [0, 15) by two that overlap, [20, 30), and one that lies inside the first: 25 ns.
    assert busy_s([(5, 15), (20, 30), (0, 10), (2, 3)]) == pytest.approx(25e-9)
    assert busy_s([]) == 0


def profile_of(kernels: list[Span] | None, **changes: Any) -> StepProfile:
    values: dict[str, Any] = {"steps": 2, "step_s": 1.0, "phases_s": None, "operation_count": 6}
    values |= {"operations": [Share("convolution", 4_000_000_000)], "kernels": kernels}
    return step_profile("made", **values | changes)


def test_on_a_cpu_operations_are_counted_and_no_device_is_busy():
    profile = profile_of(None)

    assert (profile.operations_s, profile.kernels) == ({"convolution": 2.0}, 3)
    assert profile.device_busy_s is None


def test_on_a_device_its_kernels_are_counted_and_overlaps_once():
    second = 1_000_000_000
    kernels = [Span(1, 0, 3 * second, "convolution"), Span(2, second, 5 * second, "copy")]

    profile = profile_of(kernels)

    assert profile.operations_s == {"copy": 2.0, "convolution": 1.5}
    assert (profile.device_busy_s, profile.kernels) == (2.5, 1)


def test_a_device_whose_kernels_nobody_may_see_is_unknown_and_not_idle():
    profile = profile_of([])

    assert (profile.operations_s, profile.device_busy_s, profile.kernels) == ({}, None, None)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in profile.source


def test_a_profile_says_what_it_cannot_tell_apart():
    fused = profile_of(None, operations=[Share("fused", 1)])
    phases = profile_of(None, phases_s={"input": 1.0})

    assert "fused is not told apart" in fused.source
    assert "fused" not in phases.source
    assert "no phases" in fused.source
    assert "without a profiler" in phases.source


def test_the_first_pattern_that_fits_tells_the_kind():
    table: list[tuple[str, profiling.Kind]] = [("conv", "convolution"), ("^c", "copy")]

    assert [kind_of(name, table) for name in ("conv2d", "copy", "add")] == [
        "convolution",
        "copy",
        "other",
    ]


def test_phases_are_timed_with_the_device_waited_for_after_each(monkeypatch: pytest.MonkeyPatch):
    time = VirtualTime()
    monkeypatch.setattr(profiling, "time", time)
    enqueued_s = 0.0

    def step():
        nonlocal enqueued_s
        for phase, seconds in (("input", 1), ("forward", 2), ("backward", 4), ("optimizer", 8)):
            enqueued_s += seconds
            yield phase

    def synchronize():
        nonlocal enqueued_s
        time.sleep(enqueued_s)
        enqueued_s = 0.0

    assert timed_phases(step, steps=3, synchronize=synchronize) == {
        "input": 1,
        "forward": 2,
        "backward": 4,
        "optimizer": 8,
    }


def test_a_phase_that_comes_twice_in_a_step_is_added_up(monkeypatch: pytest.MonkeyPatch):
    time = VirtualTime()
    monkeypatch.setattr(profiling, "time", time)

    def step():
        for phase in ("optimizer", "input", "forward", "backward", "optimizer"):
            time.sleep(1)
            yield phase

    phases = timed_phases(step, steps=2, synchronize=lambda: None)

    assert phases == {"input": 1, "forward": 1, "backward": 1, "optimizer": 2}


def test_a_trace_is_compressed_if_its_name_says_so(tmp_path):
    for name, opener in (("deep/a.json.gz", gzip.open), ("other/a.json", open)):
        with open_trace(tmp_path / name) as file:
            file.write(b"{}")
        with opener(tmp_path / name, "rb") as file:
            assert file.read() == b"{}"


def test_an_arm_profiles_its_next_batch_and_names_the_trace(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"step_time_s": {"fp32": 0.5}}')
    arm = Arm(fake_run(), FakeBackend(), KnownPixels())
    arm.prepare()
    trace = tmp_path / "traces" / "fake.json.gz"

    with_trace = arm.profile(steps=3, trace=str(trace))
    without = arm.profile(steps=3, trace=None)
    arm.close()

    assert (with_trace.steps, with_trace.trace) == (3, str(trace))
    assert without == with_trace.model_copy(update={"trace": None})
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
