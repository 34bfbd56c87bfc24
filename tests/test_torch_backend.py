"""The PyTorch adapter against float64 arithmetic in NumPy and the published formulas."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.pytorch import backend as adapter
from backends.pytorch.backend import TorchBackend
from backends.pytorch.device import try_dtype
from backends.pytorch.evidence import convolution_dtype
from harness.config import LossScalePolicy, RunConfig
from harness.networks import (
    BatchNorm,
    Conv,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool,
    Network,
    ReLU,
    Residual,
    Sequential,
    buffer_shapes,
    build_network,
    trainable_shapes,
)
from harness.protocol import (
    CHANNEL_MEAN,
    CHANNEL_STD,
    Capability,
    DeviceMemory,
    TrainState,
    Unsupported,
)
from harness.weights import initial_weights

# BatchNorm's epsilon: the float32 number nearest to 1e-5 (NumPy rounds it here).
EPSILON = float(np.float32(1e-5))

pytestmark = pytest.mark.torch

SIZE, CLASSES, BATCH = 8, 3, 4
RANDOM = np.random.default_rng(7)
IMAGES = RANDOM.integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8)
LABELS = np.array([0, 2, 1, 2], np.int64)


def network(*layers: Layer) -> Network:
    return Network(name="test", image_size=SIZE, classes=CLASSES, body=Sequential(tuple(layers)))


LINEAR = network(
    Flatten(name="flatten"), Linear(name="fc", in_features=3 * SIZE * SIZE, out_features=CLASSES)
)
CONVOLUTIONAL = network(
    Conv(name="conv1", in_channels=3, out_channels=4, kernel=3, stride=2, padding=1),
    BatchNorm(name="bn1", channels=4),
    ReLU(name="relu1"),
    MaxPool(name="pool", kernel=3, stride=2, padding=1),
    Residual(
        name="block",
        body=Sequential(
            (
                Conv(name="conv2", in_channels=4, out_channels=6, kernel=1, bias=True),
                BatchNorm(name="bn2", channels=6),
            )
        ),
        shortcut=Sequential((Conv(name="conv3", in_channels=4, out_channels=6, kernel=1),)),
    ),
    ReLU(name="relu2"),
    GlobalAvgPool(name="avgpool"),
    Linear(name="fc", in_features=6, out_features=CLASSES),
)


def run_config(**changes: Any) -> RunConfig:
    values = {"backend": "torch", "steps": 5, "image_size": SIZE, "batch_size": BATCH}
    return RunConfig.model_validate(values | {"device": "cpu", "threads": 1} | changes)


def opened(described: Network = CONVOLUTIONAL, **changes: Any) -> TorchBackend:
    policy = changes.pop("policy", None)
    run = run_config(**changes)
    if policy is not None:
        run = run.model_copy(update={"loss_scale": policy})
    backend = TorchBackend()
    backend.open(run)
    backend.build(described, initial_weights(described, seed=run.seed))
    return backend


def batch_of(backend: TorchBackend, seed: int | None = None):
    if seed is None:
        return backend.put(IMAGES.copy(), LABELS.copy())
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, IMAGES.shape, np.uint8)
    return backend.put(images, random.integers(0, CLASSES, BATCH, np.int64))


def train(backend: TorchBackend, *seeds: int):
    for seed in seeds:
        backend.train_step(batch_of(backend, seed))
    return backend.take_steps()


def assert_same(first: TrainState, second: TrainState) -> None:
    """Bit for bit."""
    assert first.tensors.keys() == second.tensors.keys()
    assert first.slots.keys() == second.slots.keys()
    for name, value in first.tensors.items():
        np.testing.assert_array_equal(value, second.tensors[name], err_msg=name)
    for slot, values in first.slots.items():
        for name, value in values.items():
            np.testing.assert_array_equal(value, second.slots[slot][name], err_msg=name)
    for field in ("optimizer_steps", "loss_scale", "clean_steps"):
        assert getattr(first, field) == getattr(second, field)


# --- arithmetic in NumPy, float64, channels first


def normalised(images: np.ndarray = IMAGES) -> np.ndarray:
    return ((images / 255 - CHANNEL_MEAN) / CHANNEL_STD).transpose(0, 3, 1, 2)


def windows(x: np.ndarray, kernel: int, stride: int, padding: int, fill: float) -> np.ndarray:
    """(N, C, H, W) → (N, C, H', W', kernel, kernel)."""
    edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x, edges, constant_values=fill)
    every = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))
    return every[:, :, ::stride, ::stride]


def convolved(x: np.ndarray, weight: np.ndarray, stride: int = 1, padding: int = 0) -> np.ndarray:
    parts = windows(x, weight.shape[-1], stride, padding, 0.0)
    return np.einsum("nchwij,ocij->nohw", parts, weight)


def batch_normalised(x: np.ndarray, epsilon: float = EPSILON) -> np.ndarray:
    mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    shape = (1, -1, 1, 1)
    return (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + epsilon)


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean loss and its gradient by the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    probabilities = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(probabilities[rows, labels]).mean()
    gradient = probabilities.copy()
    gradient[rows, labels] -= 1
    return float(loss), gradient / len(labels)


def close(value: np.ndarray, expected: np.ndarray, tolerance: float = 1e-12) -> None:
    scale = np.abs(expected).max()
    np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance * max(scale, 1e-30))


# --- layers


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_layer_computes_what_numpy_does(layout: str):
    backend = opened(precision="float64", layout=layout)
    weights = backend.state().tensors
    probe = backend.probe(batch_of(backend))

    conv1 = convolved(normalised(), weights["conv1.weight"], stride=2, padding=1)
    relu1 = np.maximum(batch_normalised(conv1), 0)
    pool = windows(relu1, 3, 2, 1, -np.inf).max(axis=(4, 5))
    conv2 = convolved(pool, weights["conv2.weight"])
    block = batch_normalised(conv2) + convolved(pool, weights["conv3.weight"])
    average = np.maximum(block, 0).mean(axis=(2, 3))
    logits = average @ weights["fc.weight"].T + weights["fc.bias"]
    loss, logits_gradient = cross_entropy(logits, LABELS)

    expected = {"conv1": conv1, "relu1": relu1, "pool": pool, "conv2": conv2, "block": block}
    for name, value in (expected | {"avgpool": average, "fc": logits}).items():
        assert probe.outputs[name].dtype == np.float64
        close(probe.outputs[name], value)
    close(probe.logits, logits)
    assert probe.loss == pytest.approx(loss, rel=1e-13)
    close(probe.output_gradients["fc"], logits_gradient)
    close(probe.parameter_gradients["fc.weight"], logits_gradient.T @ average)
    close(probe.parameter_gradients["fc.bias"], logits_gradient.sum(axis=0))


def test_images_are_normalised_and_flattened_channels_first():
    backend = opened(LINEAR, precision="float64")

    flat = backend.probe(batch_of(backend)).outputs["flatten"]

    close(flat, normalised().reshape(BATCH, -1))


def test_gradients_are_the_slopes_of_the_loss():
    backend = opened(precision="float64")
    batch = batch_of(backend)
    start = backend.state()
    gradients = backend.probe(batch).parameter_gradients
    assert gradients.keys() == trainable_shapes(CONVOLUTIONAL).keys()

    def loss_with(name: str, place: int, shift: float) -> float:
        moved = start.tensors[name].copy()
        moved.flat[place] += shift
        backend.load_state(TrainState(**vars(start) | {"tensors": start.tensors | {name: moved}}))
        return backend.probe(batch).loss

    for name, gradient in gradients.items():
        place = int(np.abs(gradient).argmax())
        slope = (loss_with(name, place, 1e-6) - loss_with(name, place, -1e-6)) / 2e-6
        assert gradient.flat[place] == pytest.approx(slope, rel=1e-5, abs=1e-9), name


CONVOLUTIONS = {
    (3, 1, 1): Conv(name="conv", in_channels=3, out_channels=5, kernel=3, padding=1, bias=True),
    (3, 2, 1): Conv(name="conv", in_channels=3, out_channels=5, kernel=3, stride=2, padding=1),
    (7, 2, 3): Conv(name="conv", in_channels=3, out_channels=5, kernel=7, stride=2, padding=3),
    (1, 2, 0): Conv(name="conv", in_channels=3, out_channels=5, kernel=1, stride=2),
    (5, 1, 0): Conv(name="conv", in_channels=3, out_channels=5, kernel=5),
}


@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_a_convolution_and_its_gradients_equal_the_sums_written_out(shape: tuple[int, int, int]):
    kernel, stride, padding = shape
    backend = opened(
        network(
            CONVOLUTIONS[shape],
            GlobalAvgPool(name="avgpool"),
            Linear(name="fc", in_features=5, out_features=CLASSES),
        ),
        precision="float64",
    )
    weight = backend.state().tensors["conv.weight"]
    x = RANDOM.standard_normal((2, 3, SIZE, SIZE))
    output = convolved(x, weight, stride, padding)
    gradient = RANDOM.standard_normal(output.shape)

    probe = backend.probe_layer("conv", x, gradient)

    close(probe.output, output)
    parts = windows(x, kernel, stride, padding, 0.0)
    close(
        probe.parameter_gradients["conv.weight"],
        np.einsum("nohw,nchwij->ocij", gradient, parts),
    )
    if CONVOLUTIONS[shape].bias:
        close(probe.parameter_gradients["conv.bias"], gradient.sum(axis=(0, 2, 3)))
    # The input's gradient is the adjoint: <dx, v> = <dy, conv(v)> for every v.
    v = RANDOM.standard_normal(x.shape)
    assert (probe.input_gradient * v).sum() == pytest.approx(
        (gradient * convolved(v, weight, stride, padding)).sum(), rel=1e-11
    )


def test_a_corner_pulse_comes_out_where_padding_on_all_sides_puts_it():
    # Kernel 0..8 on a 1 at (0, 0), stride 2, padding 1: its middle, 4; padding at the far sides
    # only would give 0.
    backend = opened(
        network(
            Conv(name="conv", in_channels=3, out_channels=1, kernel=3, stride=2, padding=1),
            Flatten(name="flatten"),
            Linear(name="fc", in_features=16, out_features=CLASSES),
        ),
        precision="float64",
    )
    state = backend.state()
    kernel = np.zeros((1, 3, 3, 3))
    kernel[0, 0] = np.arange(9).reshape(3, 3)
    backend.load_state(
        TrainState(**vars(state) | {"tensors": state.tensors | {"conv.weight": kernel}})
    )
    pulse = np.zeros((1, 3, SIZE, SIZE))
    pulse[0, 0, 0, 0] = 1

    assert backend.probe_layer("conv", pulse, np.zeros((1, 1, 4, 4))).output[0, 0, 0, 0] == 4


def test_batch_norm_and_its_gradients_follow_the_paper():
    # Ioffe and Szegedy 2015, section 3.
    backend = opened(precision="float64")
    x = RANDOM.standard_normal((BATCH, 4, 3, 3)) * 3 + 1
    dy = RANDOM.standard_normal(x.shape)
    before = backend.state()

    probe = backend.probe_layer("bn1", x, dy)

    x_hat = batch_normalised(x)
    axes = (0, 2, 3)
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + EPSILON)
    means = dy.mean(axis=axes, keepdims=True), (dy * x_hat).mean(axis=axes, keepdims=True)
    close(probe.output, x_hat)
    close(probe.input_gradient, (dy - means[0] - x_hat * means[1]) / deviation)
    close(probe.parameter_gradients["bn1.weight"], (dy * x_hat).sum(axis=axes))
    close(probe.parameter_gradients["bn1.bias"], dy.sum(axis=axes))
    assert_same(backend.state(), before)


def test_running_statistics_follow_the_mean_and_the_unbiased_variance():
    backend = opened(precision="float64")
    weight = backend.state().tensors["conv1.weight"]
    conv1 = convolved(normalised(), weight, stride=2, padding=1)
    mean, variance = conv1.mean(axis=(0, 2, 3)), conv1.var(axis=(0, 2, 3), ddof=1)

    foretold = backend.probe(batch_of(backend)).running_statistics
    backend.train_step(batch_of(backend))
    after = backend.state().tensors

    for told in (foretold, after):
        close(told["bn1.running_mean"], 0.1 * mean)
        close(told["bn1.running_var"], 0.9 + 0.1 * variance)


def test_a_linear_layer_and_its_gradients_are_matrix_products():
    backend = opened(precision="float64")
    weights = backend.state().tensors
    x, dy = RANDOM.standard_normal((BATCH, 6)), RANDOM.standard_normal((BATCH, CLASSES))

    probe = backend.probe_layer("fc", x, dy)

    close(probe.output, x @ weights["fc.weight"].T + weights["fc.bias"])
    close(probe.input_gradient, dy @ weights["fc.weight"])
    close(probe.parameter_gradients["fc.weight"], dy.T @ x)
    close(probe.parameter_gradients["fc.bias"], dy.sum(axis=0))


def test_a_resnet_has_the_tensors_of_its_description_and_the_canonical_values():
    described = build_network("resnet18", classes=5, image_size=32)
    weights = initial_weights(described, seed=3)
    backend = TorchBackend()
    backend.open(run_config(image_size=32, seed=3))
    backend.build(described, weights)

    tensors = backend.state().tensors

    assert {name: value.shape for name, value in tensors.items()} == (
        trainable_shapes(described) | buffer_shapes(described)
    )
    assert sum(tensors[name].size for name in trainable_shapes(described)) == 11_179_077
    assert sum(p.numel() for p in backend._model.parameters()) == 11_179_077
    for name, value in weights.items():
        np.testing.assert_array_equal(tensors[name], value)


# --- optimizers, on a softmax regression whose gradients are written out

LEARNING_RATES = (0.1, 0.1, 0.01)


def regression_after(update, steps: tuple[float, ...] = LEARNING_RATES):
    """Weights of LINEAR after `update(name, weight, gradient, rate, step)` at each step."""
    start = initial_weights(LINEAR, seed=0)
    weights = {name: value.astype(np.float64) for name, value in start.items()}
    x = normalised().reshape(BATCH, -1)
    for step, rate in enumerate(steps, start=1):
        logits = x @ weights["fc.weight"].T + weights["fc.bias"]
        _, gradient = cross_entropy(logits, LABELS)
        gradients = {"fc.weight": gradient.T @ x, "fc.bias": gradient.sum(axis=0)}
        for name in weights:
            weights[name] = update(name, weights[name], gradients[name], rate, step)
    return weights


def trained_regression(**changes: Any) -> dict[str, np.ndarray]:
    backend = opened(LINEAR, precision="float64", **changes)
    for rate in LEARNING_RATES:
        backend.set_learning_rate(rate)
        backend.train_step(batch_of(backend))
    return backend.state().tensors


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_three_steps_of_adam_with_a_drop_of_the_rate_follow_the_paper(weight_decay: float):
    # Kingma and Ba 2015, algorithm 1, with epsilon outside the bias correction; L2 is coupled.
    moments: dict[str, tuple[Any, Any]] = {}

    def adam(name: str, weight: np.ndarray, gradient: np.ndarray, rate: float, step: int):
        gradient = gradient + weight_decay * weight
        first, second = moments.get(name, (0.0, 0.0))
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        moments[name] = first, second
        unbiased = first / (1 - 0.9**step), second / (1 - 0.999**step)
        return weight - rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)

    expected = regression_after(adam)
    found = trained_regression(optimizer="adam", weight_decay=weight_decay)

    for name, value in expected.items():
        close(found[name], value, 1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_three_steps_of_sgd_with_a_drop_of_the_rate_follow_the_formula(
    momentum: float, weight_decay: float
):
    # The velocity holds gradients, not rates: a drop of the rate takes hold at once.
    velocity: dict[str, Any] = {}

    def sgd(name: str, weight: np.ndarray, gradient: np.ndarray, rate: float, step: int):
        velocity[name] = momentum * velocity.get(name, 0.0) + gradient + weight_decay * weight
        return weight - rate * velocity[name]

    expected = regression_after(sgd)
    found = trained_regression(optimizer="sgd", momentum=momentum, weight_decay=weight_decay)

    for name, value in expected.items():
        close(found[name], value)


@pytest.mark.parametrize("precision", ["float64", "amp"])
@pytest.mark.parametrize("share", [0.25, 4.0])
def test_gradients_are_clipped_by_their_unscaled_norm(precision: str, share: float):
    plain = opened(precision="float64")
    gradients = plain.probe(batch_of(plain)).parameter_gradients
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    bound = float(norm * share)

    backend = opened(precision=precision, optimizer="sgd", momentum=0, lr=1, clip_norm=bound)
    before = backend.state().tensors
    backend.train_step(batch_of(backend))
    after = backend.state().tensors

    moved = {name: before[name] - after[name] for name in gradients}
    tolerance = 1e-12 if precision == "float64" else 2e-2
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            moved[name], gradient * min(share, 1), rtol=0, atol=tolerance * norm, err_msg=name
        )
    assert np.sqrt(sum((m.astype(float) ** 2).sum() for m in moved.values())) == pytest.approx(
        norm * min(share, 1), rel=1e-2
    )


# --- the loss scaler


def test_without_a_scaler_there_is_no_scale_and_nothing_is_skipped():
    for changes in ({"precision": "fp32"}, {"precision": "amp", "amp_dtype": "bfloat16"}):
        results = train(opened(**changes), 1, 2)

        assert [(step.loss_scale, step.skipped) for step in results] == [(None, False)] * 2


def test_the_scale_starts_where_the_policy_says():
    assert opened(precision="amp").state().loss_scale == 65536
    assert opened(precision="amp", loss_scale="dynamic:1024").state().loss_scale == 1024
    assert opened(precision="amp", loss_scale="8").state().loss_scale == 8
    assert opened(precision="fp32").state().loss_scale is None


def test_an_overflow_that_nobody_injected_is_skipped_too():
    # At 2**24 the gradient by the logits, up to a quarter, is beyond float16's 65504.
    backend = opened(precision="amp", loss_scale="dynamic:16777216")

    results = train(backend, *range(12))

    assert results[0].skipped
    assert not results[-1].skipped
    scale = 2.0**24
    for step in results:
        assert step.loss_scale == scale
        scale /= 2 if step.skipped else 1


def test_steps_are_taken_once():
    backend = opened(precision="amp")

    assert backend.take_steps() == []
    assert len(train(backend, 1, 2, 3)) == 3
    assert backend.take_steps() == []


def test_the_loss_is_told_unscaled():
    backend = opened(LINEAR, precision="amp")
    weights = backend.state().tensors
    x = normalised().reshape(BATCH, -1)
    loss, _ = cross_entropy(x @ weights["fc.weight"].T + weights["fc.bias"], LABELS)

    backend.train_step(batch_of(backend))

    assert backend.take_steps()[0].loss == pytest.approx(loss, rel=5e-3)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_poisoned_step_is_skipped_once_changes_no_weight_and_halves_the_scale(
    optimizer: str, clip_norm: float | None, steps_before: int
):
    # Low enough that no gradient of this small network overflows by itself.
    policy = LossScalePolicy(initial=1024)
    backend = opened(precision="amp", optimizer=optimizer, clip_norm=clip_norm, policy=policy)
    train(backend, *range(steps_before))
    before = backend.state()
    backend.poison_next_gradient()
    (poisoned,) = train(backend, 5)
    after = backend.state()
    (clean,) = train(backend, 6)

    assert (poisoned.skipped, poisoned.loss_scale) == (True, 1024)
    assert np.isfinite(poisoned.loss)
    for name in trainable_shapes(CONVOLUTIONAL):
        np.testing.assert_array_equal(after.tensors[name], before.tensors[name])
    for slot, values in before.slots.items():
        for name, value in values.items():
            np.testing.assert_array_equal(after.slots[slot][name], value)
    assert after.optimizer_steps == before.optimizer_steps
    assert (after.loss_scale, after.clean_steps) == (512, 0)
    assert (clean.skipped, clean.loss_scale) == (False, 512)
    assert not np.array_equal(backend.state().tensors["fc.weight"], after.tensors["fc.weight"])


def test_the_step_after_a_skipped_first_one_is_a_first_step():
    # Velocity and moments must not have seen the infinite gradient.
    for optimizer in ("adam", "sgd"):
        skipped = opened(precision="amp", optimizer=optimizer, policy=LossScalePolicy(initial=2))
        skipped.poison_next_gradient()
        train(skipped, 5)
        train(skipped, 6)
        plain = opened(precision="amp", optimizer=optimizer, policy=LossScalePolicy(initial=1))
        train(plain, 6)

        for name in trainable_shapes(CONVOLUTIONAL):
            np.testing.assert_array_equal(
                skipped.state().tensors[name], plain.state().tensors[name]
            )


def test_the_scale_grows_after_the_interval_of_clean_steps():
    backend = opened(precision="amp", policy=LossScalePolicy(initial=256, growth_interval=3))

    scales = [step.loss_scale for step in train(backend, *range(7))]

    assert scales == [256, 256, 256, 512, 512, 512, 1024]


def test_a_skipped_step_begins_the_interval_anew():
    backend = opened(precision="amp", policy=LossScalePolicy(initial=256, growth_interval=3))
    results = train(backend, 0, 1)
    backend.poison_next_gradient()
    results += train(backend, 2, 3, 4, 5, 6)

    assert [step.loss_scale for step in results] == [256, 256, 256, 128, 128, 128, 256]
    assert [step.skipped for step in results] == [False, False, True] + [False] * 4


@pytest.mark.parametrize("growth_interval", [2000, 1])
def test_a_fixed_scale_stays_whatever_happens(growth_interval: int):
    policy = LossScalePolicy(initial=1024, dynamic=False, growth_interval=growth_interval)
    backend = opened(precision="amp", policy=policy)
    results = train(backend, 0, 1)
    backend.poison_next_gradient()
    results += train(backend, 2, 3)

    assert [step.loss_scale for step in results] == [1024] * 4
    assert [step.skipped for step in results] == [False, False, True, False]


# --- state


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_goes_on_from_a_state_to_the_last_bit(precision: str, optimizer: str):
    policy = LossScalePolicy(initial=256, growth_interval=4)
    first = opened(precision=precision, optimizer=optimizer, policy=policy)
    train(first, 0, 1, 2)
    second = opened(precision=precision, optimizer=optimizer, policy=policy, seed=99)
    second.load_state(first.state())
    assert_same(first.state(), second.state())

    assert train(first, 3, 4, 5) == train(second, 3, 4, 5)
    assert_same(first.state(), second.state())


def test_a_state_is_a_copy():
    backend = opened()
    state = backend.state()
    before = state.tensors["fc.weight"].copy()
    train(backend, 0)

    np.testing.assert_array_equal(state.tensors["fc.weight"], before)


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_two_runs_of_one_configuration_are_the_same(precision: str):
    first, second = opened(precision=precision), opened(precision=precision)

    assert train(first, 0, 1, 2) == train(second, 0, 1, 2)
    assert_same(first.state(), second.state())


# --- evaluation, probes and evidence


def test_a_mixed_model_is_evaluated_in_float32():
    mixed, full = opened(precision="amp"), opened(precision="fp32")
    train(mixed, 0, 1)
    state = mixed.state()
    full.load_state(TrainState(**vars(state) | {"loss_scale": None, "clean_steps": None}))

    logits = mixed.evaluate(batch_of(mixed))

    assert logits.dtype == np.float32
    assert logits.shape == (BATCH, CLASSES)
    np.testing.assert_array_equal(logits, full.evaluate(batch_of(full)))
    assert not np.array_equal(logits, mixed.probe(batch_of(mixed)).logits)


def test_evaluation_uses_the_running_statistics_and_changes_nothing():
    backend = opened(precision="float64")
    train(backend, 0, 1)
    before = backend.state()
    weights = before.tensors

    logits = backend.evaluate(batch_of(backend))

    def normalise(x: np.ndarray, norm: str) -> np.ndarray:
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, variance, scale, shift = (weights[f"{norm}.{p}"][:, None, None] for p in parts)
        return (x - mean) / np.sqrt(variance + EPSILON) * scale + shift

    conv1 = convolved(normalised(), weights["conv1.weight"], stride=2, padding=1)
    pool = windows(np.maximum(normalise(conv1, "bn1"), 0), 3, 2, 1, -np.inf).max(axis=(4, 5))
    conv2 = convolved(pool, weights["conv2.weight"]) + weights["conv2.bias"][:, None, None]
    block = normalise(conv2, "bn2") + convolved(pool, weights["conv3.weight"])
    average = np.maximum(block, 0).mean(axis=(2, 3))
    close(logits, average @ weights["fc.weight"].T + weights["fc.bias"], 1e-6)
    assert_same(backend.state(), before)


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("look", ["probe", "evidence", "evaluate", "probe_layer"])
def test_a_look_inside_leaves_no_trace(precision: str, steps_before: int, look: str):
    policy = LossScalePolicy(initial=256, growth_interval=3)
    watched = opened(precision=precision, policy=policy)
    unwatched = opened(precision=precision, policy=policy)
    for backend in (watched, unwatched):
        train(backend, *range(steps_before))
    before = watched.state()

    if look == "probe_layer":
        watched.probe_layer(
            "bn1", RANDOM.standard_normal((2, 4, 4, 4)), RANDOM.standard_normal((2, 4, 4, 4))
        )
    else:
        getattr(watched, look)(batch_of(watched))

    assert_same(watched.state(), before)
    assert watched.take_steps() == []
    assert train(watched, 5, 6, 7) == train(unwatched, 5, 6, 7)
    assert_same(watched.state(), unwatched.state())


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"precision": "fp32"}, "float32"),
        ({"precision": "float64"}, "float64"),
        ({"precision": "amp"}, "float16"),
        ({"precision": "amp", "amp_dtype": "bfloat16"}, "bfloat16"),
    ],
)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_evidence_shows_the_dtype_of_every_convolution_and_of_the_master_weights(
    changes: dict[str, Any], dtype: str, optimizer: str
):
    backend = opened(optimizer=optimizer, **changes)

    seen = backend.evidence(batch_of(backend))

    assert seen.effective == dtype
    for name in ("conv1", "conv2", "conv3", "fc"):
        layer = seen.layers[name]
        assert (layer.compute, layer.output, layer.backward) == (dtype, dtype, dtype), name
    assert "conv" in seen.layers["conv1"].operation
    assert "batch_norm" in seen.layers["bn1"].operation
    master = "float64" if dtype == "float64" else "float32"
    assert (seen.master_weight_dtype, seen.gradient_dtype) == (master, master)
    assert seen.optimizer == {"adam": "Adam", "sgd": "SGD"}[optimizer]
    assert seen.optimizer_implementation == "fused"
    assert seen.scaler_enabled == (dtype == "float16")


def test_the_optimizer_is_the_same_implementation_in_both_arms():
    implementations = {
        opened(precision=precision).evidence(batch_of(opened())).optimizer_implementation
        for precision in ("fp32", "amp")
    }

    assert len(implementations) == 1


def test_float16_comes_close_to_float64_layer_by_layer():
    mixed, exact = opened(precision="amp"), opened(precision="float64")

    probe, reference = mixed.probe(batch_of(mixed)), exact.probe(batch_of(exact))

    assert probe.outputs["conv1"].dtype == np.float16
    assert probe.parameter_gradients["conv1.weight"].dtype == np.float32
    for name, value in reference.outputs.items():
        close(probe.outputs[name].astype(np.float64), value, 1e-2)
    for name in ("conv1.weight", "fc.weight", "fc.bias"):
        close(probe.parameter_gradients[name], reference.parameter_gradients[name], 5e-2)


class Event:
    """What the profiler tells of an operation."""

    def __init__(self, name: str, *dtypes: str) -> None:
        self.name = lambda: name
        self.dtypes = lambda: [*dtypes]


@pytest.mark.parametrize(
    ("events", "dtype"),
    [
        # As Inductor names them on CUDA: the cast of a float32 input, and the convolution after it.
        (
            [
                Event("triton_poi_fused__to_copy_convolution_0", "float", "c10::Half", "Int"),
                Event("aten::convolution", "c10::Half", "c10::Half", ""),
                Event("aten::cudnn_convolution", "c10::Half", "c10::Half"),
                Event("aten::convolution_backward", "c10::Half", "c10::Half"),
            ],
            "float16",
        ),
        ([Event("aten::convolution", "float"), Event("aten::_convolution", "c10::Half")], "mixed"),
        ([Event("aten::convolution", "c10::BFloat16"), Event("aten::add", "float")], "bfloat16"),
        ([Event("triton_poi_fused_convolution_1", "float"), Event("aten::convolution")], "unknown"),
    ],
)
def test_only_atens_convolutions_tell_what_a_compiled_step_computes_in(
    events: list[Event], dtype: str
):
    assert convolution_dtype(events) == dtype


# --- the device


def test_the_settings_in_force_are_read_back():
    import torch

    backend = TorchBackend()
    told = backend.open(run_config(precision="amp", threads=2, layout="nhwc"))

    assert told.framework_version == torch.__version__
    assert (told.device_type, told.layout, told.compile) == ("cpu", "nhwc", "eager")
    assert told.threads == torch.get_num_threads() == 2
    assert told.tf32 is None
    assert told.loss_scale_policy == "dynamic:65536"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert backend.open(run_config()).loss_scale_policy is None


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch):
    """A function that makes `open` see a GPU of this compute capability; it notes the calls."""
    import torch

    def appear(major: int = 9, minor: int = 0) -> list[str]:
        calls: list[str] = []
        device = torch.device("cuda:0")
        values = {"name": "GPU", "uuid": "0", "major": major, "minor": minor}
        monkeypatch.setattr(adapter, "choose_device", lambda *_: device)
        monkeypatch.setattr(adapter, "try_dtype", lambda *_: Capability(available=True))
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**values)
        )
        for name in ("Stream", "set_device", "reset_peak_memory_stats", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: calls.append(name))
        return calls

    yield appear
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize(
    ("capability", "asked", "in_force"),
    [
        # Turing has none, whatever the flag; Ampere, Ada and Hopper have it.
        ((7, 5), True, None),
        ((7, 5), False, None),
        ((8, 0), True, True),
        ((8, 9), False, False),
        ((9, 0), True, True),
    ],
)
def test_tf32_is_in_force_only_where_the_gpu_has_it(
    on_cuda: Any, capability: tuple[int, int], asked: bool, in_force: bool | None
):
    on_cuda(*capability)

    assert TorchBackend().open(run_config(tf32=asked)).tf32 is in_force


@pytest.mark.parametrize(
    ("release_unused", "calls"),
    [(False, ["reset_peak_memory_stats"]), (True, ["empty_cache", "reset_peak_memory_stats"])],
)
def test_peaks_begin_anew_below_what_was_given_back(
    on_cuda: Any, release_unused: bool, calls: list[str]
):
    seen = on_cuda()
    backend = TorchBackend()
    backend.open(run_config())
    seen.clear()

    backend.reset_peaks(release_unused=release_unused)

    assert seen == calls


def test_a_cpu_has_no_peaks_to_begin_anew():
    backend = opened()
    backend.reset_peaks(release_unused=True)

    assert backend.memory() == DeviceMemory()


@pytest.mark.parametrize("deterministic", [True, False])
def test_determinism_is_what_was_asked_for(deterministic: bool):
    import torch

    TorchBackend().open(run_config(deterministic=deterministic))
    try:
        assert torch.are_deterministic_algorithms_enabled() == deterministic
        assert torch.backends.cudnn.benchmark == (not deterministic)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_an_absent_gpu_is_refused_with_the_remedy(device: str):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    remedy = "nvidia-smi" if torch.version.cuda else "--device cpu"

    with pytest.raises(Unsupported, match=f"finds no CUDA device: .*{remedy}"):
        TorchBackend().open(run_config(device=device))


def test_the_cpu_can_do_every_dtype_or_says_why_not():
    capabilities = TorchBackend().capabilities()["cpu"]

    assert set(capabilities) == {"float32", "float16", "bfloat16", "float64"}
    assert capabilities["float32"].available
    assert all(dtype.available or dtype.reason for dtype in capabilities.values())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_device_that_takes_no_tensor_is_refused_by_its_own_name_and_words(
    monkeypatch: pytest.MonkeyPatch, dtype: str
):
    import torch

    asked = []

    def busy(*_: int, device: torch.device, **__: Any) -> torch.Tensor:
        asked.append(device)
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(torch, "ones", busy)

    tried = try_dtype(torch, torch.device("cuda:1"), dtype)

    assert asked == [torch.device("cuda", 1)]
    assert tried.reason == "CUDA error: all CUDA-capable devices are busy or unavailable"


def test_the_memory_of_a_cpu_is_unknown_and_not_zero():
    backend = opened()
    train(backend, 0)

    assert backend.memory().allocated_peak_bytes is None
    assert backend.memory().reserved_peak_bytes is None


def test_running_out_of_memory_is_told_from_other_errors():
    import torch

    backend = TorchBackend()
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)

    assert backend.is_out_of_memory(caught.value)
    assert backend.is_out_of_memory(MemoryError())
    assert backend.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    for text in (
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "FIND was unable to find an engine to execute this computation",
        "GET was unable to find an engine to execute this computation",
        "InductorError: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ):
        assert backend.is_out_of_memory(RuntimeError(text)), text
    assert backend.is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))
    assert not backend.is_out_of_memory(
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    )
    assert not backend.is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"))
    assert not backend.is_out_of_memory(RuntimeError("shapes do not fit"))
    assert not backend.is_out_of_memory(ValueError("can't allocate memory"))


def test_both_layouts_train_alike():
    first, second = opened(precision="float64"), opened(precision="float64", layout="nhwc")
    losses = [[step.loss for step in train(backend, 0, 1, 2)] for backend in (first, second)]

    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def failing_compiler(monkeypatch: pytest.MonkeyPatch, inner: Exception) -> TorchBackend:
    """A backend whose compiler fails as Inductor does, on ``inner``."""
    from torch._inductor.exc import InductorError

    def compiled(_: Any) -> Any:
        raise InductorError(inner, None)

    backend = opened(compile="on")
    monkeypatch.setattr(backend, "_forward", compiled)
    return backend


def test_a_step_that_cannot_be_compiled_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
):
    # What torch raises in an image without a compiler (seen with CXX=/nowhere).
    from torch._inductor.exc import InvalidCxxCompiler

    backend = failing_compiler(monkeypatch, InvalidCxxCompiler())
    told = r"compile test on cpu: InvalidCxxCompiler: No working C\+\+ .*g\+\+.*--compile off"

    with pytest.raises(Unsupported, match=told):
        backend.train_step(batch_of(backend))


def test_a_compiler_that_runs_out_of_memory_is_not_refused(monkeypatch: pytest.MonkeyPatch):
    import torch

    inner = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    backend = failing_compiler(monkeypatch, inner)

    with pytest.raises(RuntimeError) as caught:
        backend.train_step(batch_of(backend))
    assert backend.is_out_of_memory(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("amp", "float16")])
def test_a_compiled_step_shows_what_it_runs_in_and_trains_like_the_eager_one(
    precision: str, dtype: str
):
    compiled, eager = opened(precision=precision, compile="on"), opened(precision=precision)

    seen = compiled.evidence(batch_of(compiled))
    losses = [[step.loss for step in train(backend, 0, 1, 2)] for backend in (compiled, eager)]

    assert seen.effective == dtype
    assert losses[0] == pytest.approx(losses[1], rel=1e-4 if dtype == "float32" else 2e-2)
