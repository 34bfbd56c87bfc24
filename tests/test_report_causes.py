"""A cause is told only with the measurement that supports it.

An arm of 40 images/s takes 16 / 40 = 0.4 s a step, as the made records have 16 images in a step.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from report_records import BATCH_SIZE, WINDOW_STEPS, environment_part, ok_record, turns

from harness.records import DevicePart, LoaderPart, ProfilePart, Record, ThroughputPart, Window
from reports.causes import (
    NOT_DETERMINED,
    busy_share,
    causes,
    explain,
)
from reports.cells import study_cells
from reports.feed import feed_of, loader_workers
from reports.judged import Judged, judge_cells


def compute_windows(precision: str, rates: Sequence[float], *, steps: int = 2) -> list[Window]:
    """Windows on a resident batch at these images/s, in turn with the other arm."""
    return [
        Window(
            index=i,
            arm_position=place,
            started_s=float(i),
            steps=steps,
            images=steps * BATCH_SIZE,
            time_s=steps * BATCH_SIZE / rate,
            cpu_s=0.0,
            data_wait_s=0.0,
            warmup=False,
        )
        for i, (rate, place) in enumerate(zip(rates, turns(precision, len(rates)), strict=True))
    ]


def arm(
    precision: str,
    rate: float,
    *,
    compute: float | None = None,
    wait: float = 0.0,
    profile: ProfilePart | None = None,
    **changes: Any,
) -> Record:
    """An arm of six even windows, that waited for data for a share of the time."""
    rates = [rate] * 6
    throughput = ThroughputPart(
        images_per_s=rate,
        warmup_steps=2,
        timed_steps=WINDOW_STEPS * 6,
        data_wait_fraction=wait,
        threads_in_use=1.5,
        prepare_s=3.0,
        warmup_s=4.0,
    )
    return ok_record(
        precision=precision,
        rates=rates,
        throughput=throughput,
        compute_windows=[] if compute is None else compute_windows(precision, [compute] * 4),
        profile=profile,
        **changes,
    )


def profile(
    step_s: float,
    *,
    busy_s: float | None = None,
    phases: dict[str, float] | None = None,
    **operations_s: Any,
) -> ProfilePart:
    """A profiled step; names of kinds are given with underscores."""
    return ProfilePart(
        source="profiler",
        steps=3,
        step_s=step_s,
        phases_s=phases,
        operations_s={name.replace("_", " "): time_s for name, time_s in operations_s.items()},
        device_busy_s=busy_s,
        kernels=None if busy_s is None else 1200,
    )


def judged(*records: Record) -> Judged:
    return judge_cells(study_cells(None, records))


def live(rate: float, workers: int = 2) -> list[LoaderPart]:
    return [
        LoaderPart(input="cached", images_per_s=[1e5] * 3, workers=1),
        LoaderPart(input="live", images_per_s=[rate * 0.9, rate, rate * 1.2], workers=workers),
    ]


# Input.


def test_an_arm_that_waits_and_computes_faster_than_it_trains_is_input_bound():
    record = arm("amp", 40, compute=100, wait=0.6, loader=live(42), training={"input": "live"})
    feed = feed_of(record)

    assert feed.bound_by == "input"
    assert feed.starved is not None
    assert feed.starved.ratio == pytest.approx(2.5)
    # The ceiling is the median of the loader's windows in the mode of the run.
    assert feed.ceiling_images_per_s == pytest.approx(42)


def test_the_ceiling_of_cached_input_is_that_of_the_cache():
    assert feed_of(arm("amp", 40, compute=41, loader=live(42))).ceiling_images_per_s == 1e5


def test_an_arm_that_hardly_waits_is_bound_by_its_compute_on_a_machine_of_its_own():
    # What it would gain without 5 % of waiting is less than a ninth.
    assert feed_of(arm("amp", 40, compute=100, wait=0.05)).bound_by == "compute"


def test_an_arm_that_waits_but_is_not_seen_to_compute_faster_alone_is_bound_by_nobody_knows_what():
    # Faster by 1 %, which the interval of one process (about ±2 %) cannot tell from 1.
    assert feed_of(arm("amp", 40, compute=40.4, wait=0.6)).bound_by == "not shown"


def test_of_one_process_a_gain_of_five_percent_is_seen():
    # Two processes may differ by as much, and the prior for these would hide it.
    assert feed_of(arm("amp", 40, compute=42, wait=0.6)).bound_by == "input"


def test_compute_alone_stands_beside_the_last_windows_of_the_training():
    # Eight windows of warm-up at 20 images/s, four at 40: computing at 40 gains nothing.
    record = arm("amp", 40, compute=40, wait=0.6)
    slow = ok_record(precision="amp", rates=[20.0] * 8 + [40.0] * 4)
    starved = feed_of(record.model_copy(update={"windows": slow.windows})).starved

    assert starved is not None
    assert starved.windows == 4
    assert starved.ratio == pytest.approx(1.0)


@pytest.mark.parametrize(("windows", "skipped_at"), [(2, ()), (6, (13, 14))])
def test_too_few_windows_or_one_without_images_say_nothing_of_the_input(
    windows: int, skipped_at: tuple[int, ...]
):
    record = arm("amp", 40, compute=100, wait=0.6)
    made = ok_record(precision="amp", rates=[40.0] * windows, skipped_at=skipped_at)
    feed = feed_of(record.model_copy(update={"windows": made.windows}))

    assert feed.starved is None
    assert feed.bound_by is None


@pytest.mark.parametrize(
    ("compute", "device", "bound"),
    [
        (100, "cpu", "input"),
        (42, "cpu", "compute"),  # a twentieth faster without decoding, less than a ninth
        (44, "cpu", "not shown"),  # a tenth, and the interval holds a ninth
        (100, "cuda", "compute"),  # decoding takes nothing from a GPU that does not wait
    ],
)
def test_decoding_on_the_cpus_that_compute_slows_the_step_before_it_waits(
    compute: float, device: str, bound: str
):
    changes = {"loader": live(60), "training": {"input": "live"}}
    record = arm("amp", 40, compute=compute, wait=0.01, **changes)
    assert record.device is not None
    record.device.type = device

    assert feed_of(record).bound_by == bound


def test_the_cause_of_an_arm_that_shares_its_cpus_with_the_decoder_says_so():
    changes = {"loader": live(60), "training": {"input": "live"}}
    told = explain(
        judged(
            arm("fp32", 40, compute=80, wait=0.01, **changes),
            arm("amp", 40, compute=100, wait=0.01, **changes),
        )
    )

    assert told.startswith(
        "Input-bound: AMP shares its CPUs with the decoder; it waited for data 1.0 % of the "
        "time at 40.0 images/s, but computes 100 without it, and its loader alone gives 60.0; on "
        "resident batches AMP's speedup is ×1.25"
    )


def test_an_arm_without_windows_on_a_resident_batch_may_or_may_not_be_input_bound():
    assert feed_of(arm("amp", 40, wait=0.9)).bound_by is None


def test_an_arm_that_computed_slower_alone_than_it_trained_says_nothing_of_its_input():
    assert feed_of(arm("amp", 40, compute=20, wait=0.6)).bound_by is None


def test_workers_that_would_feed_an_arm_are_rounded_up():
    # Two workers give 42 images/s, 21 each: 100 images/s need 4.76 of them.
    assert loader_workers(arm("amp", 40, loader=live(42)), 100) == 5
    assert loader_workers(arm("amp", 40), 100) is None


@pytest.mark.parametrize(
    ("mode", "ceiling"),
    [
        ("live", "its loader alone gives 41.0; on"),
        ("cached", "its loader alone gives 100,000 (enough, were it not for the CPUs that it "),
    ],
)
def test_no_difference_that_is_due_to_the_input_says_what_amp_would_give_if_fed(
    mode: str, ceiling: str
):
    found = judged(
        *(
            arm("fp32", 40, compute=50, wait=0.5, training={"input": mode}, label=label)
            for label in LABELS
        ),
        *(
            arm(
                "amp",
                40,
                compute=70,
                wait=0.6,
                loader=live(41),
                training={"input": mode},
                label=label,
            )
            for label in LABELS
        ),
    )
    assert found.verdict.outcome == "no difference"
    (cause,) = causes(found)
    assert cause.kind == "input-bound"
    assert cause.short == "input-bound: ×1.40 [1.40, 1.40] if fed"
    assert "AMP waited for data 60.0 % of the time at 40.0 images/s" in cause.sentence
    assert ceiling in cause.sentence


# Thirty even pairs of processes bring the interval within ±2 %.
LABELS = ["", *(f"repeat{i}" for i in range(1, 30))]


# Operations.


def test_slower_convolutions_are_named_with_their_times():
    # 400 of the 420 ms by which a step of AMP takes longer: 95.2 %.
    found = judged(
        arm("fp32", 400, profile=profile(0.05, convolution=0.03, normalization=0.01)),
        arm("amp", 40, profile=profile(0.47, convolution=0.43, normalization=0.03)),
    )
    assert found.verdict.outcome == "slower"
    (cause,) = causes(found)
    assert cause.kind == "operations"
    assert cause.short == "float16 convolutions took 14.3 times as long as in float32"
    assert cause.sentence == (
        "In a profiled step float16 convolutions took 14.3 times as long as in float32 (430 ms "
        "against 30.0 ms); that is 95.2 % of the difference. This processor has a unit for "
        "bfloat16 as well: compare with --amp-dtype bfloat16."
    )


@pytest.mark.parametrize(
    ("features", "device", "told"),
    [
        (["avx2"], "cpu", "has no unit for float16 and emulates its products."),
        (
            ["avx2", "avx512_bf16"],
            "cpu",
            "has no unit for float16 and emulates its products; it has one for bfloat16: compare "
            "with --amp-dtype bfloat16.",
        ),
        # The unit is there, and the framework's products are slow all the same.
        (["avx2", "avx512_fp16"], "cpu", ""),
        (
            ["avx512_fp16", "amx_bf16"],
            "cpu",
            "has a unit for bfloat16 as well: compare with --amp-dtype bfloat16.",
        ),
        (None, "cpu", ""),
        (["avx2"], "cuda", ""),
    ],
)
def test_slower_products_of_a_dtype_without_a_unit_are_said_to_be_emulated(
    features: list[str] | None, device: str, told: str
):
    machine = environment_part(cpu_features=features)
    (cause,) = causes(
        judged(
            *(
                arm(
                    precision,
                    rate,
                    profile=profile(step_s, convolution=step_s - 0.02),
                    environment=machine,
                    device=DevicePart.model_validate({"type": device, "name": "Example"}),
                )
                for precision, rate, step_s in (("fp32", 400, 0.05), ("amp", 40, 0.449))
            )
        )
    )

    assert cause.short.startswith("float16 convolutions took 14.3 times as long as in float32")
    assert cause.short.endswith(", without a float16 unit") is ("no unit" in told)
    _, _, after = cause.sentence.partition(" This processor ")
    assert after == told


def test_a_headline_puts_no_casts_down_to_a_missing_unit():
    # 60 ms of casts and 50 of convolutions make up 110 of 160 ms: neither does alone.
    machine = environment_part(cpu_features=["avx2"])
    more = {"pooling": 0.01, "copy": 0.01}
    slower = {"pooling": 0.04, "copy": 0.03}
    found = judged(
        arm("fp32", 400, profile=profile(0.05, convolution=0.03, **more), environment=machine),
        arm(
            "amp",
            100,
            profile=profile(0.21, convolution=0.08, cast=0.06, **slower),
            environment=machine,
        ),
    )
    (cause,) = causes(found)

    assert cause.short == "casts took time that fp32 does not spend"
    assert cause.sentence.endswith("has no unit for float16 and emulates its products.")


def test_what_became_faster_is_not_put_down_to_a_missing_unit():
    machine = environment_part(cpu_features=["avx2"])
    found = judged(
        arm("fp32", 100, profile=profile(0.16, convolution=0.12), environment=machine),
        arm("amp", 200, profile=profile(0.08, convolution=0.03), environment=machine),
    )
    assert explain(found).startswith("In a profiled step float16 convolutions took 0.250 times")
    assert "unit" not in explain(found)


@pytest.mark.parametrize(("busy_s", "over"), [(None, "threads"), (0.4, "streams")])
def test_operations_that_take_longer_than_their_step_are_said_to_be_summed(
    busy_s: float | None, over: str
):
    # Two threads: 0.9 s of convolutions in a step of 0.5 s.
    found = judged(
        arm("fp32", 400, compute=400, profile=profile(0.05, busy_s=busy_s, convolution=0.03)),
        arm("amp", 40, compute=40, profile=profile(0.5, busy_s=busy_s, convolution=0.9)),
    )
    assert causes(found)[0].sentence.startswith(
        f"In a profiled step, summed over its {over}, float16 convolutions took 30.0 times as long "
        "as in float32 (900 ms against 30.0 ms)"
    )


def test_casts_that_fp32_does_not_have_can_be_the_cause():
    found = judged(
        arm("fp32", 400, profile=profile(0.04, convolution=0.03)),
        arm("amp", 200, profile=profile(0.08, convolution=0.03, cast=0.04)),
    )
    assert explain(found) == (
        "In a profiled step casts took time that fp32 does not spend (40.0 ms); that is 100.0 % of "
        "the difference."
    )


def test_a_gain_is_explained_by_what_became_faster():
    found = judged(
        arm("fp32", 100, profile=profile(0.16, convolution=0.12, normalization=0.04)),
        arm("amp", 200, profile=profile(0.08, convolution=0.03, normalization=0.05)),
    )
    assert found.verdict.outcome == "pays"
    assert explain(found).endswith(
        "float16 convolutions took 0.250 times as long as in float32 (30.0 ms against 120 ms); "
        "that is more than the difference."
    )


NO_SUPPORT = {
    "nothing was profiled": (None, None),
    "the profiled steps differ the other way round": (
        profile(0.4, convolution=0.3),
        profile(0.2, convolution=0.1),
    ),
    "the profiled steps hardly differ": (
        profile(0.40, convolution=0.30),
        profile(0.42, convolution=0.32),
    ),
    "the difference is spread over many kinds": (
        profile(0.04, a=0.01, b=0.01, c=0.01, d=0.01, e=0.01),
        profile(0.4, a=0.11, b=0.11, c=0.11, d=0.11, e=0.11),
    ),
    "the difference is in what was not told apart": (
        profile(0.04, convolution=0.02, other=0.02),
        profile(0.4, convolution=0.02, other=0.38),
    ),
}


@pytest.mark.parametrize("reason", NO_SUPPORT)
def test_without_a_measurement_that_supports_it_there_is_no_cause(reason: str):
    fp32, amp = NO_SUPPORT[reason]
    found = judged(arm("fp32", 400, profile=fp32), arm("amp", 40, profile=amp))

    assert found.verdict.outcome == "slower"
    assert causes(found) == ()
    assert explain(found) == NOT_DETERMINED


THREE_PAIRS = ["", "repeat1", "repeat2"]


@pytest.mark.parametrize(
    ("resident", "steps_s"),
    [
        # The profile agrees with the resident batch, on which AMP is slower: 0.1 / 0.9 = 0.111.
        (90, (0.1, 0.111)),
        # It agrees with the verdict and not with the resident batch.
        (90, (0.12, 0.1)),
    ],
)
def test_no_operation_is_named_unless_training_resident_batch_and_profile_point_the_same_way(
    resident: float, steps_s: tuple[float, float]
):
    a, b = steps_s
    found = judged(
        *(
            arm("fp32", 40, compute=100, label=label, profile=profile(a, convolution=a))
            for label in THREE_PAIRS
        ),
        *(
            arm("amp", 48, compute=resident, label=label, profile=profile(b, convolution=b))
            for label in THREE_PAIRS
        ),
    )
    assert found.verdict.outcome == "pays"
    assert explain(found) == NOT_DETERMINED


def named_in_made_steps(outside_s: float, convolution_s: float) -> int:
    """In how many of 300 made studies an operation is named.

    fp32 takes 100 ms a step, AMP 200 ms: `outside_s` longer outside all operations and
    `convolution_s` longer in its convolutions. All five kinds vary by 3 % from step to step.
    """
    random = np.random.default_rng(7)
    usual = {"convolution": 0.03, "pooling": 0.02, "cast": 0.02, "copy": 0.01, "elementwise": 0.01}
    study = judged(arm("fp32", 40), arm("amp", 20))
    (pair,) = study.pairs
    named = 0
    for _ in range(300):
        profiles = []
        for longer_s, outside in ((0.0, 0.01), (convolution_s, 0.01 + outside_s)):
            times = {kind: s * (1 + 0.03 * random.standard_normal()) for kind, s in usual.items()}
            times["convolution"] += longer_s
            profiles.append(profile(outside + sum(times.values()), **times))
        a, b = (
            record.model_copy(update={"profile": of_it})
            for record, of_it in zip((pair.baseline, pair.candidate), profiles, strict=True)
        )
        pairs = (dataclasses.replace(pair, baseline=a, candidate=b),)
        found = causes(dataclasses.replace(study, pairs=pairs))
        named += any(cause.kind == "operations" for cause in found)
    return named


def test_chance_in_the_operations_does_not_explain_a_step_that_changed_outside_them():
    # Five kinds that vary by 3 % change by about 2 ms in all, far from half of 100 ms.
    assert named_in_made_steps(outside_s=0.1, convolution_s=0.0) == 0


def test_convolutions_that_make_a_step_longer_are_always_named():
    # 100 ms of 100 ms, give or take 2.
    assert named_in_made_steps(outside_s=0.0, convolution_s=0.1) == 300


@pytest.mark.parametrize(("rest_s", "told"), [(0.049, True), (0.051, False)])
def test_operations_explain_a_step_of_whose_change_they_make_up_half(rest_s: float, told: bool):
    # The step takes 100 ms longer, the operations all but `rest_s` of them.
    grown = 0.03 + 0.1 - rest_s
    found = judged(
        arm("fp32", 40, profile=profile(0.1, convolution=0.03)),
        arm("amp", 20, profile=profile(0.2, convolution=grown)),
    )
    assert (explain(found) != NOT_DETERMINED) is told


def test_equal_arms_whose_main_operation_is_as_fast_say_so():
    found = judged(
        *(
            arm("fp32", 40, label=label, profile=profile(0.4, convolution=0.3, other=0.1))
            for label in LABELS
        ),
        *(
            arm("amp", 40, label=label, profile=profile(0.4, convolution=0.294, other=0.1))
            for label in LABELS
        ),
    )
    assert found.verdict.outcome == "no difference"
    assert explain(found) == (
        "In a profiled step float16 convolutions took 0.980 times as long as in float32 (294 ms "
        "against 300 ms); that is 75.0 % of fp32's operations."
    )


def test_a_verdict_without_a_ratio_has_no_cause_to_look_for():
    assert explain(judged(arm("fp32", 40))) == ""


# The device and the scaler.


def test_a_step_in_which_the_device_mostly_idles_is_launch_bound():
    # 16 images at 4,000 images/s: 4 ms a step, of which kernels run 1 ms in AMP, 2 ms in fp32.
    found = judged(
        *(
            arm("fp32", 4000, compute=4000, label=label, profile=profile(0.005, busy_s=0.002))
            for label in LABELS
        ),
        *(
            arm("amp", 4000, compute=4000, label=label, profile=profile(0.005, busy_s=0.001))
            for label in LABELS
        ),
    )
    assert busy_share(found.counted[0].candidate) == pytest.approx(0.25)
    (cause,) = causes(found)
    assert cause.kind == "launch-bound"
    assert cause.sentence == (
        "Launch-bound: kernels ran 25.0 % of AMP's step (1,200 kernels) and 50.0 % of fp32's, and "
        "the rest waits for the host."
    )


def test_a_busy_device_is_not_launch_bound():
    found = judged(
        *(
            arm("fp32", 4000, compute=4000, label=label, profile=profile(0.005, busy_s=0.0039))
            for label in LABELS
        ),
        *(
            arm("amp", 4000, compute=4000, label=label, profile=profile(0.005, busy_s=0.003))
            for label in LABELS
        ),
    )
    assert explain(found) == NOT_DETERMINED


def test_an_arm_that_trains_slower_and_computes_faster_is_not_launch_bound():
    # 16 images: 4 ms a step in fp32, all of it kernels, and 3.2 ms in AMP, a quarter of it.
    found = judged(
        arm("fp32", 4000, compute=4000, profile=profile(0.005, busy_s=0.004)),
        arm("amp", 2000, compute=5000, profile=profile(0.005, busy_s=0.0008)),
    )
    assert found.verdict.outcome == "slower"
    assert explain(found) == NOT_DETERMINED


def test_skipped_steps_are_the_cause_where_they_cost_as_much():
    # One step of two skipped in each of the six windows: AMP at half its rate, and so is it slower.
    found = judged(
        arm("fp32", 40), ok_record(precision="amp", rates=[40] * 6, skipped_at=[3, 5, 7, 9, 11, 13])
    )
    assert found.verdict.outcome == "slower"
    assert causes(found)[0].kind == "overflow"
    assert explain(found) == (
        "6 of 12 timed steps of AMP were skipped on overflow, and their images do not count."
    )


def test_a_skipped_step_is_not_the_cause_of_a_much_larger_loss():
    found = judged(arm("fp32", 400), ok_record(precision="amp", rates=[40] * 6, skipped_at=[3]))
    assert explain(found) == NOT_DETERMINED
