"""The fake backend imitates a device and a loss scaler faithfully enough to test the rest with."""

import json
from typing import Any

import numpy as np
import pytest
from fake_runs import VirtualTime, fake_run

from backends import fake
from backends.fake import FakeBackend
from harness.config import LossScalePolicy, RunConfig
from harness.networks import build_network
from harness.protocol import Unsupported
from harness.weights import initial_weights


def built(run: RunConfig, monkeypatch: pytest.MonkeyPatch | None = None, **behaviour: Any):
    if monkeypatch is not None:
        monkeypatch.setenv("AMP_HARNESS_FAKE", json.dumps(behaviour))
    backend = FakeBackend()
    backend.open(run)
    network = build_network(run.model, classes=3, image_size=run.image_size)
    backend.build(network, initial_weights(network, seed=run.seed))
    return backend


def batch(backend: FakeBackend, seed: int = 0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (4, 16, 16, 3), np.uint8)
    return backend.put(images, np.array([0, 1, 2, 0], np.int64))


def test_it_learns():
    backend = built(fake_run(lr=0.01))
    same = batch(backend)
    for _ in range(50):
        backend.train_step(same)

    losses = [step.loss for step in backend.take_steps()]

    assert losses[0] == pytest.approx(np.log(3))
    assert losses == sorted(losses, reverse=True)
    assert backend.evaluate(same).argmax(axis=1).tolist() == [0, 1, 2, 0]


def test_its_gradient_is_the_slope_of_its_loss():
    backend = built(fake_run(lr=0.01))
    same = batch(backend)
    backend.train_step(same)
    before = backend.state()
    gradient = backend.probe(same).parameter_gradients["weight"]

    def loss_at(shift: float) -> float:
        moved = before.tensors["weight"].copy()
        moved[5, 1] += shift
        backend._weight = moved
        return backend.probe(same).loss

    assert gradient[5, 1] == pytest.approx((loss_at(1e-5) - loss_at(-1e-5)) / 2e-5, rel=1e-5)


def test_a_step_is_enqueued_at_once_and_waited_for_by_synchronize(
    monkeypatch: pytest.MonkeyPatch,
):
    time = VirtualTime()
    monkeypatch.setattr(fake, "time", time)
    backend = built(fake_run(), monkeypatch, step_time_s={"fp32": 0.5})
    start_s = time.now_s

    for _ in range(4):
        backend.train_step(batch(backend))
    assert time.now_s == start_s
    backend.synchronize()
    assert time.now_s == start_s + 2.0
    backend.synchronize()
    assert time.now_s == start_s + 2.0


def test_a_poisoned_step_is_skipped_once_and_halves_the_scale():
    backend = built(fake_run(precision="amp"))
    same = batch(backend)
    backend.train_step(same)
    before = backend.state()
    backend.poison_next_gradient()
    backend.train_step(same)
    after = backend.state()
    backend.train_step(same)

    assert [step.skipped for step in backend.take_steps()] == [False, True, False]
    np.testing.assert_array_equal(after.tensors["weight"], before.tensors["weight"])
    assert (before.loss_scale, after.loss_scale) == (65536, 32768)
    assert backend.state().optimizer_steps == 2


def test_the_scale_grows_after_the_interval_of_clean_steps():
    policy = LossScalePolicy(initial=8, growth_interval=3)
    backend = built(fake_run(precision="amp").model_copy(update={"loss_scale": policy}))
    for _ in range(7):
        backend.train_step(batch(backend))

    assert [step.loss_scale for step in backend.take_steps()] == [8, 8, 8, 16, 16, 16, 32]


def test_a_fixed_scale_stays():
    backend = built(fake_run(precision="amp", loss_scale="1024"))
    backend.poison_next_gradient()
    for _ in range(3):
        backend.train_step(batch(backend))

    results = backend.take_steps()
    assert [step.loss_scale for step in results] == [1024] * 3
    assert [step.skipped for step in results] == [True, False, False]


def test_it_goes_on_from_a_state_as_if_nothing_had_happened():
    first, second = built(fake_run(precision="amp")), built(fake_run(precision="amp"))
    for seed in range(3):
        first.train_step(batch(first, seed))
    second.load_state(first.state())
    first.take_steps()
    for seed in range(3, 6):
        first.train_step(batch(first, seed))
        second.train_step(batch(second, seed))

    assert first.take_steps() == second.take_steps()
    np.testing.assert_array_equal(first.state().tensors["weight"], second.state().tensors["weight"])


def test_its_profile_is_what_it_was_told_and_trains_nothing(monkeypatch: pytest.MonkeyPatch):
    told = {"amp": {"convolution": 0.3, "cast": 0.1}}
    behaviour = {"step_time_s": {"fp32": 0.2, "amp": 0.5}, "operations_s": told}
    runs = (fake_run(), fake_run(precision="amp"))
    full, mixed = (built(run, monkeypatch, **behaviour) for run in runs)
    before = mixed.state()

    profiles = [each.profile(batch(each), steps=2, trace=None) for each in (full, mixed)]

    assert [profile.operations_s for profile in profiles] == [{"convolution": 0.2}, told["amp"]]
    assert [profile.step_s for profile in profiles] == [0.2, 0.5]
    for profile in profiles:
        assert profile.phases_s is not None
        assert sum(profile.phases_s.values()) == pytest.approx(profile.step_s)
    assert mixed.take_steps() == []
    np.testing.assert_array_equal(mixed.state().tensors["weight"], before.tensors["weight"])


@pytest.mark.parametrize(
    ("changes", "remedy"), [({"device": "cuda"}, "--device cpu"), ({"precision": "amp"}, "fp32")]
)
def test_it_refuses_what_it_is_told_not_to_have(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], remedy: str
):
    with pytest.raises(Unsupported, match=remedy):
        built(fake_run(**changes), monkeypatch, amp_available=False)


def test_a_behaviour_that_is_not_understood_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"failure": {"how": "explode"}}')

    with pytest.raises(ValueError, match="explode"):
        FakeBackend()


def test_a_failure_comes_at_its_step_and_in_its_arm(monkeypatch: pytest.MonkeyPatch):
    failure = {"how": "exception", "at_step": 2, "arm": "amp"}
    healthy = built(fake_run(), monkeypatch, failure=failure)
    sick = built(fake_run(precision="amp"), monkeypatch, failure=failure)
    for backend in (healthy, sick):
        for _ in range(2):
            backend.train_step(batch(backend))

    healthy.train_step(batch(healthy))
    with pytest.raises(RuntimeError, match="told to fail"):
        sick.train_step(batch(sick))
