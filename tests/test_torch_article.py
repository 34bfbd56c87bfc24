"""The article's loss scaler in PyTorch: what it lets through, against arithmetic in NumPy."""

from typing import Any

import numpy as np
import pytest

from harness.config import RunConfig
from harness.networks import Flatten, Linear, Network, Sequential
from harness.protocol import CHANNEL_MEAN, CHANNEL_STD, Backend
from harness.registry import load_backend
from harness.weights import Weights, initial_weights

pytestmark = pytest.mark.torch

SIZE, CLASSES, BATCH = 8, 3, 4
SCALE = 1024.0
RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8)
LABELS = np.array([0, 2, 1, 2], np.int64)
LINEAR = Network(
    name="test",
    image_size=SIZE,
    classes=CLASSES,
    body=Sequential(
        (
            Flatten(name="flatten"),
            Linear(name="fc", in_features=3 * SIZE * SIZE, out_features=CLASSES),
        )
    ),
)
WEIGHTS = initial_weights(LINEAR, seed=0)


def trained(backend_name: str, *, steps: int = 1, poison: bool = False, **changes: Any) -> Backend:
    """A backend after some steps on the one batch; SGD without momentum, learning rate 1e-4."""
    values: dict[str, Any] = {
        "backend": backend_name,
        "steps": 5,
        "image_size": SIZE,
        "batch_size": BATCH,
        "device": "cpu",
        "threads": 1,
        "precision": "amp",
        "loss_scale": f"dynamic:{SCALE:g}",
        "optimizer": "sgd",
        "momentum": 0.0,
        "lr": 1e-4,
    }
    backend = load_backend(backend_name)
    backend.open(RunConfig.model_validate(values | changes))
    backend.build(LINEAR, WEIGHTS)
    if poison:
        backend.poison_next_gradient()
    for _ in range(steps):
        backend.train_step(backend.put(IMAGES, LABELS))
    return backend


def moved(backend: Backend) -> np.ndarray:
    return backend.state().tensors["fc.weight"].astype(np.float64) - WEIGHTS["fc.weight"]


def gradient(weights: Weights) -> np.ndarray:
    """Of the mean cross-entropy with respect to the weight, in float64."""
    pixels = ((IMAGES / 255 - CHANNEL_MEAN) / CHANNEL_STD).transpose(0, 3, 1, 2)
    x = pixels.reshape(BATCH, -1)
    logits = x @ weights["fc.weight"].T + weights["fc.bias"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual = odds / odds.sum(axis=1, keepdims=True) - np.eye(CLASSES)[LABELS]
    return residual.T @ x / BATCH


def test_plain_sgd_takes_a_step_that_is_1024_times_too_long():
    expected = -1e-4 * SCALE * gradient(WEIGHTS)
    error = np.linalg.norm(moved(trained("torch-article")) - expected)
    assert error < 0.01 * np.linalg.norm(expected)


def test_with_a_scaler_that_steps_plain_sgd_takes_the_right_step():
    expected = -1e-4 * gradient(WEIGHTS)
    error = np.linalg.norm(moved(trained("torch")) - expected)
    assert error < 0.01 * np.linalg.norm(expected)


def test_adam_hides_the_scale():
    """Its first step is lr × g / (|g| + 1e-8): the sign of g, whatever g is multiplied by."""
    adam = {"optimizer": "adam", "lr": 1e-3}
    expected = -1e-3 * np.sign(gradient(WEIGHTS))
    assert np.abs(moved(trained("torch-article", **adam)) - expected).max() < 1e-5
    assert np.abs(moved(trained("torch", **adam)) - expected).max() < 1e-5


def test_an_infinite_gradient_is_applied_and_no_step_is_skipped():
    backend = trained("torch-article", poison=True)
    (result,) = backend.take_steps()
    assert not result.skipped
    state = backend.state()
    assert not np.isfinite(state.tensors["fc.bias"]).all()
    assert state.loss_scale == SCALE


def test_the_same_gradient_is_withheld_by_a_scaler_that_steps():
    backend = trained("torch", poison=True)
    (result,) = backend.take_steps()
    assert result.skipped
    assert not moved(backend).any()
    assert backend.state().loss_scale == SCALE / 2


def test_the_scale_of_every_step_is_the_first():
    results = trained("torch-article", steps=3).take_steps()
    assert [result.loss_scale for result in results] == [SCALE] * 3


def test_without_amp_there_is_nothing_wrong():
    article, honest = (
        trained(name, steps=3, precision="fp32") for name in ("torch-article", "torch")
    )
    assert np.array_equal(moved(article), moved(honest))
    assert [result.loss_scale for result in article.take_steps()] == [None] * 3
