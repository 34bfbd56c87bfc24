"""The neutral loop with the fake backend: its clock, its batches, its bookkeeping."""

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import exp, log
from typing import Any

import numpy as np
import pytest
from fake_runs import KnownPixels, VirtualTime, fake_run

from backends import fake as fake_module
from backends.fake import FakeBackend
from datasets import DataError, PixelSource, SyntheticPixels
from harness import arm as arm_module
from harness.arm import Arm, WindowResult, accuracy
from harness.config import LossScalePolicy, RunConfig
from harness.protocol import DeviceMemory, Probe, Unsupported


class Recorder(FakeBackend):
    """Notes what the loop asks for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.put_images: list[np.ndarray] = []
        self.put_labels: list[np.ndarray] = []
        self.rates: list[float] = []
        self.trained: list[int] = []
        self.evaluated_shapes: list[tuple[int, ...]] = []

    def put(self, images: np.ndarray, labels: np.ndarray) -> Any:
        self.calls.append("put")
        self.put_images.append(images.copy())
        self.put_labels.append(labels.copy())
        return super().put(images, labels)

    def train_step(self, batch: Any) -> None:
        self.calls.append("train_step")
        # Without normalisation, feature 0 tells the value that fills the first image.
        self.trained.append(id(batch))
        self.rates.append(self._learning_rate)  # in force, from `build` or set since
        super().train_step(batch)

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        super().synchronize()

    def evaluate(self, batch: Any) -> np.ndarray:
        self.evaluated_shapes.append(batch[0].shape)
        return super().evaluate(batch)


@contextmanager
def prepared(
    run: RunConfig, source: PixelSource | None = None, backend: FakeBackend | None = None
) -> Iterator[tuple[Arm, Any]]:
    backend = backend or Recorder()
    arm = Arm(run, backend, source or KnownPixels())
    arm.prepare()
    with closing(arm):
        yield arm, backend


def window(arm: Arm, steps: int, *, warmup: bool = False) -> WindowResult:
    return arm.window(steps=steps, warmup=warmup, arm_position=0)


# --- the clock


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """A clock that only the imitated device moves, by 0.25 s a step in fp32 and 1 s in AMP."""
    time = VirtualTime()
    monkeypatch.setattr(fake_module, "time", time)
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"step_time_s": {"fp32": 0.25, "amp": 1.0}}')
    return time


def timed_arm(run: RunConfig, time: VirtualTime) -> tuple[Arm, FakeBackend]:
    backend = FakeBackend()
    arm = Arm(
        run, backend, KnownPixels(), clock=time.perf_counter, cpu_clock=lambda: time.now_s / 2
    )
    arm.prepare()
    return arm, backend


@pytest.mark.parametrize(("precision", "step_time_s"), [("fp32", 0.25), ("amp", 1.0)])
def test_a_window_lasts_until_an_asynchronous_device_is_done(
    virtual_time: VirtualTime, precision: str, step_time_s: float
):
    arm, _ = timed_arm(fake_run(precision=precision), virtual_time)
    with closing(arm):
        result = window(arm, 4).window

    # Enqueueing takes no time here: without the last synchronisation it would be 0 s.
    assert result.time_s == 4 * step_time_s
    assert result.cpu_s == 4 * step_time_s / 2


def test_a_window_does_not_pay_for_what_was_under_way_before(virtual_time: VirtualTime):
    arm, backend = timed_arm(fake_run(), virtual_time)
    with closing(arm):
        for _ in range(8):
            backend.train_step(backend.put(np.zeros((4, 16, 16, 3), np.uint8), np.zeros(4, int)))
        # Nothing has waited for these steps: two seconds of work are still enqueued.
        result = window(arm, 2).window

    assert result.time_s == 0.5
    assert result.started_s == 2.0


def test_validation_is_outside_the_windows(virtual_time: VirtualTime):
    arm, _ = timed_arm(fake_run(), virtual_time)
    with closing(arm):
        first = window(arm, 2).window
        virtual_time.sleep(50)  # a validation, a pause, another arm's turn
        second = window(arm, 2).window

    assert first.time_s == second.time_s == 0.5
    assert second.started_s == first.started_s + 0.5 + 50


def test_a_real_sleeping_device_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"step_time_s": {"fp32": 0.02}}')
    with prepared(fake_run()) as (arm, _):
        assert window(arm, 5).window.time_s >= 5 * 0.02


def test_a_wait_for_data_is_told_apart_from_the_device(
    virtual_time: VirtualTime, monkeypatch: pytest.MonkeyPatch
):
    class SlowBatches(arm_module.TrainBatches):
        def __next__(self):
            virtual_time.sleep(0.1)
            return super().__next__()

    monkeypatch.setattr(arm_module, "TrainBatches", SlowBatches)
    arm, _ = timed_arm(fake_run(), virtual_time)
    with closing(arm):
        result = window(arm, 3).window

    # Each wait of 0.1 s passes beside a step of 0.25 s.
    assert result.data_wait_s == pytest.approx(0.3)
    assert result.time_s == pytest.approx(0.75)


# --- order of work


def test_the_device_is_synchronised_just_before_and_after_the_steps():
    with prepared(fake_run()) as (arm, backend):
        backend.calls.clear()
        window(arm, 2)

    steps = ["train_step", "put"] * 2
    assert backend.calls == ["synchronize", *steps, "synchronize", "synchronize"]


def test_the_next_batch_is_on_its_way_while_a_step_runs():
    with prepared(fake_run()) as (arm, backend):
        assert backend.calls[-1] == "put"  # before the first step
        backend.calls.clear()
        window(arm, 1)

    assert backend.calls.index("train_step") < backend.calls.index("put")


def test_warmup_windows_are_marked_and_numbered_with_the_others():
    with prepared(fake_run()) as (arm, _):
        marks = [window(arm, 1, warmup=True), window(arm, 2), window(arm, 3)]

    assert [result.window.warmup for result in marks] == [True, False, False]
    assert [result.window.index for result in marks] == [0, 1, 2]
    assert [result.window.steps for result in marks] == [1, 2, 3]
    assert [len(result.loss) for result in marks] == [1, 2, 3]


def test_every_step_has_the_rate_of_its_place_in_the_whole_run():
    # Twelve steps: a tenth from the seventh, a hundredth from the tenth.
    run = fake_run(steps=12, lr=0.1, lr_schedule="step")
    with prepared(run) as (arm, backend):
        for steps in (1, 4, 7):
            window(arm, steps)

    assert backend.rates == pytest.approx([0.1] * 6 + [0.01] * 3 + [0.001] * 3)


def test_the_length_in_epochs_becomes_steps_of_full_batches():
    # 14 images fill three batches of four; two are left out of each epoch.
    run = fake_run(epochs=5)
    arm = Arm(run, Recorder(), KnownPixels(train=14))
    told = arm.prepare()
    arm.close()

    assert (told.steps_per_epoch, told.total_steps) == (3, 15)


def test_the_model_is_told_with_its_parameters_and_flops():
    told = Arm(fake_run(image_size=28), Recorder(), KnownPixels(classes=3, image_size=28))
    model = told.prepare().model
    told.close()

    # LeNet as in the tests of the networks, with 3 instead of 10 outputs: 7·501 fewer.
    assert (model.name, model.parameters) == ("lenet", 432_080 - 7 * 501)
    assert model.forward_flops_per_image == 2 * (2_869_000 - 7 * 500)


@pytest.mark.parametrize("precision", ["fp32", "float64"])
def test_tf32_is_refused_where_the_device_lacks_it(precision: str):
    arm = Arm(fake_run(tf32=True, precision=precision), Recorder(), KnownPixels())

    with pytest.raises(Unsupported, match=r"^CPU has no TF32.*Ampere.*without --tf32"):
        arm.prepare()


def test_a_mixed_run_takes_tf32_only_where_it_is():
    # So do the rungs of a ladder above the one for TF32.
    with prepared(fake_run(tf32=True, precision="amp")) as (arm, _):
        assert len(window(arm, 2).loss) == 2


# --- memory of the device


class Metered(FakeBackend):
    """An allocator that keeps what it once reserved: 10 bytes are held, and each act needs more."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        super().__init__()
        self._needs = [*steps]
        self._allocated = self._reserved_peak = self._reserved = 10

    def memory(self) -> DeviceMemory:
        return DeviceMemory(
            allocated_peak_bytes=self._allocated, reserved_peak_bytes=self._reserved_peak
        )

    def reset_peaks(self, *, release_unused: bool) -> None:
        if release_unused:
            self._reserved = 10
        self._allocated, self._reserved_peak = 10, self._reserved

    def _need(self, needed: int) -> None:
        self._allocated = max(self._allocated, needed)
        self._reserved = max(self._reserved, needed)
        self._reserved_peak = max(self._reserved_peak, self._reserved)

    def train_step(self, batch: Any) -> None:
        self._need(self._needs.pop(0))
        super().train_step(batch)

    def evaluate(self, batch: Any) -> np.ndarray:
        self._need(80)
        return super().evaluate(batch)

    def probe(self, batch: Any) -> Probe:
        self._need(90)
        return super().probe(batch)


@pytest.mark.parametrize(
    ("acts", "allocated", "reserved"),
    [
        # The first step tries algorithms and takes 100; the others 50, one of them 60.
        ([1], 100, 100),
        ([2], 50, 50),
        ([1, 1], 50, 50),
        ([1, 2, 1], 60, 60),
        ([1, 1, 1, 1, 1], 60, 60),
        # A validation takes 80, a look at the gradients 90; both leave that reserved.
        (["evaluate", 1, 1], 50, 50),
        ([1, "evaluate", 1], 50, 50),
        ([1, 1, "evaluate", 2], 60, 50),
        ([1, 2, "gradient_histogram", 2], 60, 60),
        ([1, "evaluate"], 100, 100),
    ],
)
def test_the_peak_is_that_of_the_steps_after_the_first(
    acts: list[int | str], allocated: int, reserved: int
):
    backend = Metered((100, 50, 60, 50, 50))
    with prepared(fake_run(), KnownPixels(val=3), backend) as (arm, _):
        for act in acts:
            window(arm, act) if isinstance(act, int) else getattr(arm, act)()
        peaks = arm.memory()

    assert (peaks.allocated_peak_bytes, peaks.reserved_peak_bytes) == (allocated, reserved)


def test_a_device_that_does_not_tell_has_unknown_peaks():
    with prepared(fake_run()) as (arm, _):
        window(arm, 2)
        assert arm.memory() == DeviceMemory()


# --- batches


def test_every_epoch_visits_every_image_once_in_another_order():
    with prepared(fake_run(steps=6), KnownPixels(train=12)) as (arm, backend):
        window(arm, 6)

    values = [int(image[0, 0, 0]) for images in backend.put_images[:6] for image in images]
    assert sorted(values[:12]) == sorted(values[12:]) == list(range(12))
    assert values[:12] != values[12:]
    labels = np.concatenate(backend.put_labels[:6]).tolist()
    assert labels == [value % 3 for value in values]


@pytest.mark.parametrize("other", [{"precision": "amp"}, {"optimizer": "sgd", "lr": 0.5}])
def test_two_arms_are_given_the_same_pixels_in_the_same_order(other: dict[str, Any]):
    recorded = []
    for changes in ({}, other):
        with prepared(fake_run(augment="crop", **changes)) as (arm, backend):
            window(arm, 6)
        recorded.append((backend.put_images, backend.put_labels, arm.batch_sha256))

    (images, labels, sha256), (other_images, other_labels, other_sha256) = recorded
    assert sha256 == other_sha256
    for mine, theirs in zip(images + labels, other_images + other_labels, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def batch_sha256(run: RunConfig, source: PixelSource) -> str:
    with prepared(run, source) as (arm, _):
        window(arm, 5)
        return arm.batch_sha256


def test_the_hash_of_the_batches_tells_another_order_pixel_or_label():
    plain = batch_sha256(fake_run(), KnownPixels())
    relabelled, repainted = KnownPixels(), KnownPixels()
    relabelled.labels = (relabelled.labels + 1) % 3
    repainted.images = lambda ids: 255 - KnownPixels().images(ids)

    assert batch_sha256(fake_run(), KnownPixels()) == plain
    others = {
        batch_sha256(fake_run(seed=1), KnownPixels()),
        batch_sha256(fake_run(), relabelled),
        batch_sha256(fake_run(), repainted),
    }
    assert len(others | {plain}) == 4


def test_the_hash_is_that_of_the_first_four_batches():
    source = KnownPixels(train=40)
    with prepared(fake_run(), source) as (arm, backend):
        window(arm, 5)

    digest = hashlib.sha256()
    for images, labels in zip(backend.put_images[:4], backend.put_labels[:4], strict=True):
        ids = images[:, 0, 0, 0].astype(np.int64)  # image i is filled with i
        for array in (images, labels, ids):
            digest.update(array.tobytes())
    assert arm.batch_sha256 == digest.hexdigest()


def test_synthetic_input_is_one_batch_that_stays_on_the_device():
    source = SyntheticPixels(image_size=16, classes=5, train_images=80, val_images=0, seed=0)
    with prepared(fake_run(input="synthetic"), source) as (arm, backend):
        window(arm, 6)

    assert backend.calls.count("put") == 1
    assert len(set(backend.trained)) == 1


def test_fewer_images_than_a_batch_are_refused():
    arm = Arm(fake_run(batch_size=13), Recorder(), KnownPixels(train=12))

    with pytest.raises(DataError, match="12 training images cannot fill a batch of 13"):
        arm.prepare()


# --- skipped steps


def test_a_skipped_step_counts_as_time_and_never_as_images():
    with prepared(fake_run(precision="amp", steps=12)) as (arm, backend):
        clean = window(arm, 3)
        backend.poison_next_gradient()
        poisoned = window(arm, 3)
        after = window(arm, 1)

    assert clean.window.images == 3 * 4
    assert poisoned.window.images == 2 * 4
    assert poisoned.window.steps == 3
    assert poisoned.skipped == [True, False, False]
    assert poisoned.loss_scale == [65536, 32768, 32768]
    assert after.loss_scale == [32768]


def test_without_a_scaler_there_is_no_scale_and_no_step_is_skipped():
    with prepared(fake_run()) as (arm, _):
        result = window(arm, 3)

    assert result.loss_scale == [None] * 3
    assert result.skipped == [False] * 3


def test_the_scale_that_was_asked_for_reaches_the_first_step():
    run = fake_run(precision="amp").model_copy(
        update={"loss_scale": LossScalePolicy(initial=128, growth_interval=2)}
    )
    with prepared(run) as (arm, _):
        assert window(arm, 5).loss_scale == [128, 128, 256, 256, 512]


# --- validation


class Oracle(Recorder):
    """Logits are read off the pixels: image i is filled with i, whose label is i mod 3."""

    def evaluate(self, batch: Any) -> np.ndarray:
        self.evaluated_shapes.append(batch[0].shape)
        return np.eye(3, dtype=np.float32)[self.put_images[-1][:, 0, 0, 0] % 3] * 100


def test_a_short_last_batch_counts_by_its_images():
    # Nine validation images in batches of 4, 4 and 1; the last one alone is misjudged.
    class WrongAtTheEnd(Oracle):
        def evaluate(self, batch: Any) -> np.ndarray:
            logits = super().evaluate(batch)
            return -logits if self.put_images[-1][0, 0, 0, 0] == 20 else logits

    source = KnownPixels(train=12, val=9)
    with prepared(fake_run(), source, WrongAtTheEnd()) as (arm, backend):
        told = arm.evaluate()

    assert told is not None
    assert told.val_top1 == pytest.approx(8 / 9)  # not (1 + 1 + 0) / 3
    # 20 mod 3 = 2: class c holds the images 14, 17 and 20.
    assert told.per_class == pytest.approx({"a": 1, "b": 1, "c": 2 / 3})
    # One shape only, so that nothing is compiled twice.
    assert {shape[0] for shape in backend.evaluated_shapes} == {4}


def test_every_validation_image_is_judged_once_by_its_own_label():
    source = KnownPixels(train=12, val=10)
    with prepared(fake_run(), source, Oracle()) as (arm, _):
        told = arm.evaluate()

    assert told is not None
    assert told.val_top1 == told.val_top2 == 1
    assert told.val_loss == pytest.approx(0, abs=1e-12)


def test_without_validation_images_nothing_is_told():
    with prepared(fake_run(), KnownPixels(val=0)) as (arm, _):
        assert arm.evaluate() is None


def test_validation_changes_neither_the_order_of_training_nor_its_hash():
    source = KnownPixels(train=12, val=5)
    losses = []
    for validates in (False, True):
        with prepared(fake_run(), source) as (arm, _):
            first = window(arm, 3).loss
            if validates:
                arm.evaluate()
            losses.append([*first, *window(arm, 3).loss, arm.batch_sha256])

    assert losses[0] == losses[1]


# --- accuracy by hand


def judged(logits: list[list[float]], labels: list[int], classes: int = 3):
    return accuracy(
        np.array(logits, np.float32), np.array(labels, np.int64), tuple("abcd"[:classes])
    )


def test_top1_top2_and_loss_by_hand():
    told = judged([[2, 1, 0], [2, 1, 0], [2, 1, 0], [0, 1, 2]], [0, 1, 2, 2])

    normaliser = log(exp(2) + exp(1) + 1)
    assert told.val_top1 == 2 / 4
    assert told.val_top2 == 3 / 4
    assert told.val_loss == pytest.approx((0 + 1 + 2 + 0) / 4 - 2 + normaliser)
    assert told.per_class == {"a": 1.0, "b": 0.0, "c": 0.5}


def test_constant_logits_know_nothing():
    told = judged([[0.5, 0.5, 0.5]] * 3, [0, 1, 2])

    assert (told.val_top1, told.val_top2) == (0, 0)
    assert told.val_loss == pytest.approx(log(3))


def test_a_tie_for_the_first_place_is_a_second_place():
    told = judged([[1, 1, 0], [1, 1, 0]], [0, 1])

    assert (told.val_top1, told.val_top2) == (0, 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 1])
def test_a_row_that_is_not_finite_is_wrong_wherever_the_value_stands(value: float, place: int):
    row = [5.0, 0.0, 0.0]
    row[place] = value

    told = judged([row, [5, 0, 0]], [0, 0])

    assert (told.val_top1, told.val_top2) == (0.5, 0.5)


def test_a_loss_that_is_not_a_number_is_told_as_such():
    assert str(judged([[float("nan"), 0, 0]], [0]).val_loss) == "nan"


def test_a_class_without_a_validation_image_has_no_accuracy():
    assert judged([[1, 0, 0, 0]], [0], classes=4).per_class == {
        "a": 1.0,
        "b": None,
        "c": None,
        "d": None,
    }


def test_large_logits_do_not_overflow():
    told = judged([[1e38, 0, 0], [-1e38, 0, 0]], [0, 1])

    assert told.val_loss == pytest.approx(log(2) / 2)
