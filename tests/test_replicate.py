"""The published experiment's defects: what each does to the data, and what is said of the figures.

Records are made by hand, so that every ratio and share can be worked out on paper.
"""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import KnownPixels
from report_records import ok_record

from datasets import write_sample
from harness import replicate as replication
from harness.article import Audit, audit_batches, flawed
from harness.config import RunConfig
from harness.drill import Finding
from harness.record_files import read_record
from harness.records import DevicePart, Record, ThroughputPart
from harness.registry import ARTICLE_ADAPTERS, BACKENDS
from harness.replicate import CORRECTED, VARIANTS, Variant, VariantResult, arms
from harness.study import Studio
from reports.lessons import Lesson, lessons
from reports.pages import render_html, render_markdown
from reports.replication import build_replication, headline

REPOSITORY = Path(__file__).resolve().parent.parent
BY_NAME = {variant.name: variant for variant in VARIANTS}
# 12 training images of the classes 0, 1, 2, 0, …, then 6 for validation.
PIXELS = KnownPixels(train=12, val=6, classes=3)


# What the defects do to the data.


def test_one_image_for_ever_shows_the_first_training_image_under_every_id():
    frozen = flawed(PIXELS, ("one_image",))
    assert frozen.images(np.array([5, 0, 11]))[:, 0, 0, 0].tolist() == [0, 0, 0]
    assert frozen.labels[frozen.train].tolist() == [0] * 12


def test_validation_stays_honest_whatever_the_loader_does_in_training():
    frozen = flawed(PIXELS, ("one_image",))
    assert frozen.images(frozen.val)[:, 0, 0, 0].tolist() == [12, 13, 14, 15, 16, 17]
    assert frozen.labels[frozen.val].tolist() == [0, 1, 2, 0, 1, 2]


def test_two_outputs_leave_the_labels_and_validate_what_the_head_knows():
    headless = flawed(PIXELS, ("two_outputs",))
    assert headless.classes == ("a", "b")
    assert set(headless.labels[headless.train].tolist()) == {0, 1, 2}
    assert headless.val.tolist() == [12, 13, 15, 16]


def audit(*defects: Any, steps: int = 100) -> Audit:
    return audit_batches(PIXELS, defects, batch_size=4, seed=0, steps=steps)


def test_an_honest_epoch_draws_every_image_once():
    assert audit() == Audit(
        images=12, distinct_images=12, distinct_ids=12, distinct_labels=3, outputs=3, classes=3
    )


def test_the_ids_of_a_frozen_loader_look_right_and_its_pictures_do_not():
    assert audit("one_image", "two_outputs") == Audit(
        images=12, distinct_images=1, distinct_ids=12, distinct_labels=1, outputs=2, classes=3
    )


def test_an_audit_looks_at_no_more_than_the_arm_trains_on():
    assert audit(steps=2).images == 8


# The plan.

BASE = RunConfig(backend="torch", steps=8, model="lenet", image_size=32)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_two_arms_of_a_variant_differ_in_precision_alone(variant: Variant):
    fp32, amp = (run.model_dump() for run in arms(BASE, variant))
    assert {name for name in fp32 if fp32[name] != amp[name]} == {"precision"}


def test_every_arm_has_a_name_of_its_own():
    names = [run.arm for variant in VARIANTS for run in arms(BASE, variant)]
    assert len(set(names)) == 14


def test_each_defect_is_tried_alone_and_the_article_has_all():
    alone = {variant.defects[0] for variant in VARIANTS if len(variant.defects) == 1}
    assert alone == set(BY_NAME["article"].defects)
    assert len(alone) == 4


def test_the_defective_scaler_is_no_backend_that_a_comparison_can_choose():
    assert not set(ARTICLE_ADAPTERS.values()) & set(BACKENDS)
    assert {run.backend for run in arms(BASE, BY_NAME["fresh-scaler"])} == {"torch-article"}
    assert {run.backend for run in arms(BASE, CORRECTED)} == {"torch"}


def test_the_command_names_every_variant():
    done = subprocess.run(
        [sys.executable, "-m", "harness", "replicate", "--help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = "".join(done.stdout.split())
    assert f"[{'|'.join(variant.name for variant in VARIANTS)}]" in said


# What is said. 20 validation images of 5 classes: guessing gets 4 right, and 9 or more by luck in
# 1 of 100 cases (binomial distribution, n = 20, p = 0.2: P(X >= 9) = 0.0100, P(X >= 6) = 0.196).

CLASSES = ["apple_pie", "baby_back_ribs", "baklava", "beef_carpaccio", "beef_tartare"]
HONEST = Audit(
    images=80, distinct_images=80, distinct_ids=80, distinct_labels=5, outputs=5, classes=5
)
FROZEN = HONEST.model_copy(update={"distinct_images": 1, "distinct_labels": 1})
STEPPED = Finding(check="skipped steps", expected="[0]", observed="[0]", passed=True)
APPLIED = Finding(check="skipped steps", expected="[0]", observed="[]", passed=False)


def record(
    variant: Variant,
    precision: str,
    *,
    rate: float,
    wait: float = 0.0,
    loss: float = 1.0,
    right: int = 12,
    val_images: int = 20,
    **changes: Any,
) -> Record:
    """An arm of three windows at `rate` images/s, 1 % apart."""
    label = variant.name.replace("-", "")
    made = ok_record(
        precision=precision,
        rates=(0.99 * rate, rate, 1.01 * rate),
        losses=[loss] * 8,
        data={"classes": CLASSES, "val_images": val_images, "batch_sha256": "bb" * 32},
        arm=f"torch-{precision}-{label}",
        **changes,
    )
    assert made.throughput is not None
    assert made.accuracy is not None
    return made.model_copy(
        update={
            "throughput": ThroughputPart.model_validate(
                made.throughput.model_dump() | {"data_wait_fraction": wait}
            ),
            "accuracy": made.accuracy.model_copy(update={"val_top1": right / val_images}),
        }
    )


def result(name: str, *rates: float, **changes: Any) -> VariantResult:
    variant = BY_NAME[name]
    own = {key: changes.pop(key) for key in ("audit", "drill") if key in changes}
    fp32, amp = (
        record(variant, precision, rate=rate, **changes)
        for precision, rate in zip(("fp32", "amp"), rates, strict=True)
    )
    values: dict[str, Any] = {"audit": HONEST, "drill": (STEPPED,)} | own
    return VariantResult(
        variant=variant, fp32=fp32, amp=amp, no_drill_reason=None, val_images=20, **values
    )


def lesson(*results: VariantResult) -> Lesson:
    return lessons([result("corrected", 100, 200), *results])[-1]


def fired(told: Lesson) -> set[str]:
    return {sentinel.name for sentinel in told.sentinels if sentinel.fired}


def test_nothing_is_caught_in_an_honest_pair():
    told = lesson()
    assert told.verdict.speedup is not None
    assert told.verdict.speedup.ratio == pytest.approx(2)
    assert fired(told) == set()
    assert told.hid == ()
    assert told.truth.startswith("The arms learned: validation top-1 60.0 % fp32, 60.0 % AMP.")


def test_a_wait_that_pulls_the_ratio_to_one_hid_the_speed():
    told = lesson(result("live-decoding", 30, 30, wait=0.7))
    assert told.seen.startswith("AMP makes no difference to speed (×1.00")
    assert "Waiting for data took 70.0 % fp32, 70.0 % AMP of the time" in told.truth
    assert "Corrected, the ratio is ×2.00 [" in told.truth
    assert told.hid == ("speed",)
    assert fired(told) == {"Waiting for data"}


def test_decoding_that_keeps_up_is_not_blamed():
    told = lesson(result("live-decoding", 100, 200, wait=0.02))
    assert "Decoding kept up" in told.truth
    assert "meets that of the corrected run" in told.truth
    assert told.hid == ()
    assert fired(told) == set()


def test_on_a_cpu_decoding_may_have_taken_the_steps_own_time():
    told = lesson(result("live-decoding", 50, 60, wait=0.02))
    assert "fp32 trained 50.0 images/s, corrected 100." in told.truth
    assert "the waiting time does not tell" in told.truth
    assert told.hid == ()


def test_on_a_gpu_a_ratio_that_moved_without_waiting_is_not_put_down_to_decoding():
    gpu = DevicePart(type="cuda", name="Example GPU")
    told = lesson(result("live-decoding", 50, 60, wait=0.02, device=gpu))
    assert "this defect does not explain the difference" in told.truth
    assert "CPU" not in told.truth


def test_one_image_for_ever_is_not_blamed_for_a_ratio_that_moved():
    told = lesson(result("one-image", 100, 120, audit=FROZEN))
    assert "this defect does not explain the difference" in told.truth


def test_a_wait_that_moves_the_ratio_away_from_one_hid_nothing():
    told = lesson(result("live-decoding", 10, 40, wait=0.5))
    assert "towards 1" not in told.truth
    assert told.hid == ()


def test_where_amp_is_slower_a_wait_can_hide_that_too():
    results = [result("corrected", 100, 10), result("live-decoding", 14, 10, wait=0.5)]
    told = lessons(results)[-1]
    assert told.seen.startswith("AMP is slower (×0.714")
    assert told.hid == ("speed",)


def test_one_picture_learned_by_heart_says_nothing_of_accuracy():
    told = lesson(result("one-image", 100, 200, audit=FROZEN, loss=1e-5, right=4))
    assert "both seem to have learned all there is" in told.seen
    assert "shown 1 picture 80 times over" in told.truth
    assert "20.0 % fp32, 20.0 % AMP, no better than guessing" in told.truth
    assert told.hid == ("accuracy",)
    assert fired(told) == {"Distinct pictures", "Training against validation"}


def test_an_accuracy_above_guessing_is_not_called_guessing():
    told = lesson(result("one-image", 100, 200, audit=FROZEN, loss=1e-5, right=9))
    assert "no better than guessing" not in told.truth
    assert fired(told) == {"Distinct pictures"}


@pytest.mark.parametrize("right", [0, 6])
def test_none_or_six_right_of_twenty_are_no_better_than_guessing(right: int):
    told = lesson(result("one-image", 100, 200, audit=FROZEN, loss=1e-5, right=right))
    assert "no better than guessing" in told.truth


def test_other_pictures_under_the_same_ids_change_the_hash():
    frozen = result("one-image", 100, 200, audit=FROZEN)
    assert frozen.fp32.data is not None
    data = frozen.fp32.data.model_copy(update={"batch_sha256": "cc" * 32})
    told = lesson(dataclasses.replace(frozen, fp32=frozen.fp32.model_copy(update={"data": data})))
    sentinel = next(s for s in told.sentinels if s.name == "Hash of the batches")
    assert sentinel.fired
    assert sentinel.text.startswith("cccccccccccc, corrected bbbbbbbbbbbb; the order of ids is the")


def test_images_that_the_head_has_no_output_for_count_as_wrong():
    outputs = FROZEN.model_copy(update={"outputs": 2})
    told = lesson(result("one-image-two-outputs", 100, 200, audit=outputs, right=4, val_images=8))
    assert told.fp32.val_top1 == 4 / 20
    assert "2 outputs for 5 classes, and nothing stopped it" in told.truth
    assert "Classes" in fired(told)


def test_a_training_that_stopped_at_a_label_says_so_and_hides_nothing():
    stopped = result("two-outputs", 100, 200, audit=HONEST.model_copy(update={"outputs": 2}))
    failed = {
        "status": "failed",
        "reason": "IndexError: Target 2 is out of bounds.",
        "accuracy": None,
        "windows": [],
    }
    told = lesson(
        dataclasses.replace(
            stopped,
            fp32=stopped.fp32.model_copy(update=failed),
            amp=stopped.amp.model_copy(update=failed),
        )
    )
    assert told.stopped
    assert told.seen == "Nothing: fp32 failed: IndexError: Target 2 is out of bounds."
    assert "training stopped at a label that has none" in told.truth
    assert told.verdict.speedup is None
    assert told.hid == ()


@pytest.mark.parametrize(("optimizer", "told_of_adam"), [("adam", True), ("sgd", False)])
def test_adam_is_named_only_where_it_hid_the_scale(optimizer: str, told_of_adam: bool):
    variant = result("fresh-scaler", 100, 200, drill=(APPLIED,), training={"optimizer": optimizer})
    told = lesson(variant)
    assert "skips no infinite gradient" in told.truth
    assert ("Adam divides" in told.truth) is told_of_adam
    assert told.hid == ("overflow",)


def test_a_scaler_that_was_not_drilled_is_neither_cleared_nor_blamed():
    untold = dataclasses.replace(
        result("corrected", 100, 200), drill=None, no_drill_reason="no float16 here"
    )
    (told,) = lessons([untold])
    drill = next(s for s in told.sentinels if s.name == "Loss-scaler drill")
    assert (drill.fired, drill.text) == (None, "not drilled: no float16 here")


def test_amp_that_cannot_run_here_is_no_failure():
    pair = result("corrected", 100, 200)
    reason = {"status": "unavailable", "reason": "no kernels", "windows": [], "accuracy": None}
    (told,) = lessons([dataclasses.replace(pair, amp=pair.amp.model_copy(update=reason))])
    assert told.seen == "Nothing about AMP: AMP is unavailable (no kernels)."
    assert not told.stopped
    assert (
        "cannot be told, since the corrected run has no ratio (AMP unavailable: no kernels)"
        in headline([told])
    )


def test_the_yardstick_must_be_the_corrected_run():
    with pytest.raises(ValueError, match="first result must be the corrected"):
        lessons([result("one-image", 100, 200)])


def test_the_headline_names_what_hid_what():
    told = lessons(
        [
            result("corrected", 100, 200),
            result("one-image", 100, 200, audit=FROZEN, loss=1e-5, right=4),
            result("live-decoding", 30, 30, wait=0.7),
        ]
    )
    assert headline(told) == (
        "On this machine AMP's effect on speed was hidden by “Decode every epoch”; its effect on "
        "accuracy by “One image for ever”; overflowing gradients went unhandled with none of the "
        "defects tried."
    )


def test_the_training_loss_is_the_mean_of_the_last_quarter():
    pair = result("corrected", 100, 200)
    steps = pair.fp32.steps.model_copy(update={"loss": [9.0] * 6 + [1.0, 2.0]})
    (told,) = lessons(
        [dataclasses.replace(pair, fp32=pair.fp32.model_copy(update={"steps": steps}))]
    )
    assert told.fp32.train_loss == 1.5


def test_foreign_text_is_escaped_in_both_pages():
    pair = result("two-outputs", 100, 200)
    hostile = {"status": "failed", "reason": "<script>alert(1)</script> \x1b[31m"}
    page = build_replication(
        [
            result("corrected", 100, 200),
            dataclasses.replace(pair, fp32=pair.fp32.model_copy(update=hostile)),
        ]
    )
    for text in (render_html(page), render_markdown(page)):
        assert "<script" not in text
        assert "&lt;script&gt;" in text
        assert "\x1b" not in text


def test_the_page_needs_no_other_file():
    page = render_html(build_replication([result("corrected", 100, 200)]))
    assert "http" not in page
    assert "What hid AMP&#39;s effect?" in page


# The real workers, with the fake backend.


@pytest.fixture(scope="module")
def rerun(
    tmp_path_factory: pytest.TempPathFactory, no_pauses: None
) -> tuple[Path, list[VariantResult]]:
    """Four variants of the fake backend, which stands in for the defective adapter as well."""
    folder = tmp_path_factory.mktemp("rerun")
    photos = write_sample(folder / "photos", images_per_class=6, image_size=24)
    base = RunConfig(
        backend="fake", data=str(photos), model="lenet", image_size=16, batch_size=4, steps=6
    )
    studio = Studio(
        cache_dir=folder / "cache",
        strict=True,
        pythons={"fake": sys.executable},
        repeat_command=lambda run: f"repeat {run.label}",
        on_event=lambda event: None,
        on_data=lambda stage, done, total: None,
    )
    variants = [CORRECTED, *(BY_NAME[n] for n in ("fresh-scaler", "two-outputs", "article"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARTICLE_ADAPTERS, "fake", "fake")
        return folder, replication.replicate(base, variants, folder, studio=studio)


def test_every_arm_leaves_an_ordinary_record(rerun: tuple[Path, list[VariantResult]]):
    folder, results = rerun
    for item in results:
        for arm in (item.fp32, item.amp):
            assert read_record(folder / "records" / f"{arm.arm}.json") == arm
            assert arm.command == f"repeat {item.variant.name.replace('-', '')}"


def test_two_outputs_stop_at_the_first_label_beyond_them_unless_one_image_hides_it(
    rerun: tuple[Path, list[VariantResult]],
):
    _, (corrected, _, alone, article) = rerun
    assert corrected.fp32.status == "ok"
    assert alone.fp32.status == "failed"
    assert "out of bounds" in (alone.fp32.reason or "")
    assert article.fp32.status == "ok"
    assert (article.audit.distinct_images, article.audit.distinct_labels) == (1, 1)


def test_the_defective_arms_were_given_other_pixels_in_the_same_order(
    rerun: tuple[Path, list[VariantResult]],
):
    _, (corrected, scaler, _, article) = rerun
    honest, same, frozen = (item.fp32.data for item in (corrected, scaler, article))
    assert honest is not None
    assert same is not None
    assert frozen is not None
    assert honest.batch_sha256 == same.batch_sha256 != frozen.batch_sha256
    assert honest.order_sha256 == frozen.order_sha256
    assert (len(honest.classes), len(frozen.classes)) == (5, 2)


def test_a_frozen_arm_learns_its_picture_and_is_told(rerun: tuple[Path, list[VariantResult]]):
    told = lessons(rerun[1])[-1]
    assert "Distinct pictures" in fired(told)
    assert "accuracy" in told.hid
    assert told.fp32.train_loss is not None
    # A softmax over two outputs starts at ln 2.
    assert told.fp32.train_loss < math.log(2)


@pytest.mark.slow
def test_the_command_tells_it_all_as_json(tmp_path: Path, needs_frameworks: Any):
    needs_frameworks("torch")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "replicate", "--variant", "fresh-scaler", "--json"),
            *("--steps", "8", "--batch-size", "4", "--device", "cpu"),
            *("--out", str(tmp_path / "out")),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    corrected, fresh = json.loads(done.stdout)["variants"]
    assert corrected["hid"] == []
    assert fresh["hid"] == ["overflow"]
    assert (tmp_path / "out" / "replication.html").exists()
    assert (tmp_path / "out" / "records" / "torch-article-amp-freshscaler.json").exists()
