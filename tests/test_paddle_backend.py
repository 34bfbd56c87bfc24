"""The Paddle adapter, against arithmetic in NumPy float64 and the published formulas."""

import itertools
import warnings
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.paddlepaddle.backend import PaddleBackend
from backends.paddlepaddle.statistics import batch_variance_is_unbiased
from backends.paddlepaddle.transfer import PinnedTransfer
from harness.config import LossScalePolicy, RunConfig
from harness.networks import (
    BatchNorm,
    Conv,
    Flatten,
    GlobalAvgPool,
    Linear,
    MaxPool,
    Network,
    ReLU,
    Residual,
    Sequential,
    buffer_shapes,
    place_layers,
    trainable_shapes,
)
from harness.protocol import CHANNEL_MEAN, CHANNEL_STD, Capability, Unsupported
from harness.weights import initial_weights

pytestmark = pytest.mark.paddle

SIZE, BATCH, CLASSES = 8, 6, 4
FEATURES = 3 * SIZE**2
PIXELS = np.random.default_rng(1).integers(0, 256, (BATCH, SIZE, SIZE, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 3, 1, 2])


def product(*choices):
    return [*itertools.product(*choices)]


def network(*layers):
    return Network(name="small", image_size=SIZE, classes=CLASSES, body=Sequential(layers))


CLASSIFIER = network(
    Flatten(name="flatten"), Linear(name="fc", in_features=FEATURES, out_features=CLASSES)
)
RESIDUAL = network(
    Conv(name="conv1", in_channels=3, out_channels=4, kernel=3, stride=2, padding=1),
    BatchNorm(name="bn1", channels=4),
    ReLU(name="relu"),
    MaxPool(name="maxpool", kernel=3, stride=2, padding=1),
    Residual(
        name="block",
        body=Sequential(
            (
                Conv(name="conv2", in_channels=4, out_channels=6, kernel=3, padding=1, bias=True),
                BatchNorm(name="bn2", channels=6),
            )
        ),
        shortcut=Sequential((Conv(name="down", in_channels=4, out_channels=6, kernel=1),)),
    ),
    ReLU(name="block.relu"),
    GlobalAvgPool(name="avgpool"),
    Linear(name="fc", in_features=6, out_features=CLASSES),
)


def random_weights(described):
    """Weights off their start, so that no scale is one and no shift zero."""
    random = np.random.default_rng(2)
    shapes = trainable_shapes(described) | buffer_shapes(described)
    weights = {name: random.normal(0, 0.4, shape) for name, shape in shapes.items()}
    return {
        name: (np.abs(value) + 0.5 if "running_var" in name else value).astype(np.float32)
        for name, value in weights.items()
    }


def opened(described, **options):
    run = RunConfig(
        backend="paddle",
        **{"steps": 9, "threads": 1, "batch_size": BATCH, "precision": "float64"} | options,
    )
    backend = PaddleBackend()
    backend.open(run)
    backend.build(described, random_weights(described))
    return backend, backend.put(PIXELS.copy(), LABELS.copy())


def normalised(dtype=np.float64):
    """The images as the layers get them, channels first."""
    unit = PIXELS.astype(dtype) / 255
    return ((unit - CHANNEL_MEAN) / CHANNEL_STD).transpose(0, 3, 1, 2)


def softmax_regression(weight, bias):
    """Loss and gradients of CLASSIFIER: (p − onehot)ᵀ·x / N (Bishop 2006, eq. 4.109)."""
    x = normalised().reshape(BATCH, FEATURES)
    logits = x @ weight.T + bias
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    p = exponentials / exponentials.sum(1, keepdims=True)
    delta = (p - np.eye(CLASSES)[LABELS]) / BATCH
    loss = -np.log(p[np.arange(BATCH), LABELS]).mean()
    return loss, {"fc.weight": delta.T @ x, "fc.bias": delta.sum(0)}, logits


def relative(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


# Layers


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_strided_convolution_pads_the_first_side_too(layout):
    one = network(
        Conv(name="conv", in_channels=3, out_channels=1, kernel=3, stride=2, padding=1),
        GlobalAvgPool(name="pool"),
        Linear(name="fc", in_features=1, out_features=CLASSES),
    )
    backend, _ = opened(one, layout=layout)
    state = backend.state()
    kernel = np.zeros((1, 3, 3, 3))
    kernel[0, 0] = np.arange(9).reshape(3, 3)
    state.tensors["conv.weight"] = kernel
    backend.load_state(state)
    impulse = np.zeros((1, 3, SIZE, SIZE))
    impulse[0, 0, 0, 0] = 1
    gradient = np.zeros((1, 1, SIZE // 2, SIZE // 2))
    gradient[0, 0, 0, 0] = 1
    probe = backend.probe_layer("conv", impulse, gradient)
    # The corner lies under the kernel's centre, 4; padding right and bottom alone would give 0.
    assert probe.output[0, 0, 0, 0] == 4
    assert probe.output.sum() == 4
    assert probe.input_gradient[0, 0, :2, :2].tolist() == [[4, 5], [7, 8]]
    assert probe.parameter_gradients["conv.weight"][0, 0].tolist() == [
        [0, 0, 0],
        [0, 1, 0],
        [0, 0, 0],
    ]


@pytest.mark.parametrize(("precision", "layout"), product(["fp32", "float64"], ["nchw", "nhwc"]))
def test_running_statistics_follow_the_unbiased_batch_variance(precision, layout):
    one = network(
        BatchNorm(name="bn", channels=3),
        GlobalAvgPool(name="pool"),
        Linear(name="fc", in_features=3, out_features=CLASSES),
    )
    backend, batch = opened(one, precision=precision, layout=layout)
    start = random_weights(one)
    x = normalised()
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)
    expected_mean = start["bn.running_mean"].astype(np.float64)
    expected_var = start["bn.running_var"].astype(np.float64)
    for _ in range(3):
        expected_mean = 0.9 * expected_mean + 0.1 * mean
        expected_var = 0.9 * expected_var + 0.1 * variance
        statistics = backend.probe(batch).running_statistics
        backend.train_step(batch)
        after = backend.state().tensors
        assert {name: value.tolist() for name, value in statistics.items()} == {
            name: after[name].tolist() for name in statistics
        }
    tolerance = 1e-14 if precision == "float64" else 1e-6
    assert relative(after["bn.running_mean"], expected_mean) < tolerance
    assert relative(after["bn.running_var"], expected_var) < tolerance


@pytest.fixture
def unbiased_eager_kernel(monkeypatch):
    """As on a GPU: the eager kernel gives the unbiased variance, a compiled program the biased one.

    Paddle decomposes BatchNorm in what CINN compiles; the switch makes it do so on the CPU too.
    """
    import paddle

    core, batch_norm = paddle.base.core, paddle.nn.functional.batch_norm

    @paddle.jit.not_to_static
    def normalise(x, mean, variance, **options):
        y = batch_norm(x, mean, variance, **options)
        if paddle.in_dynamic_mode() and options["training"]:
            values = x.size // variance.size
            # Past the count of changes that Paddle holds against its backward pass.
            unbiased = variance.numpy() * values / (values - 1)
            variance.get_tensor().set(unbiased, paddle.CPUPlace())
        return y

    monkeypatch.setattr(paddle.nn.functional, "batch_norm", normalise)
    core._set_prim_all_enabled(True)
    yield
    core._set_prim_all_enabled(False)


@pytest.mark.usefixtures("unbiased_eager_kernel")
@pytest.mark.parametrize(
    ("dtype", "data_format"), product(["float32", "float64"], ["NCHW", "NHWC"])
)
def test_the_variance_is_measured_on_the_path_that_runs(dtype, data_format):
    import paddle

    measured = [
        batch_variance_is_unbiased(paddle, dtype, data_format, compiled=compiled)
        for compiled in (False, True)
    ]
    assert measured == [True, False]
    assert paddle.get_default_dtype() == "float32"


@pytest.mark.usefixtures("unbiased_eager_kernel")
@pytest.mark.parametrize("compile_", ["off", "on"])
def test_running_statistics_are_right_where_a_compiled_step_has_another_kernel(compile_):
    one = network(
        BatchNorm(name="bn", channels=3),
        GlobalAvgPool(name="pool"),
        Linear(name="fc", in_features=3, out_features=CLASSES),
    )
    backend, batch = opened(one, compile=compile_)
    start = random_weights(one)["bn.running_var"].astype(np.float64)
    expected = 0.9 * start + 0.1 * normalised().var((0, 2, 3), ddof=1)
    probed = backend.probe(batch).running_statistics["bn.running_var"]
    assert relative(probed, expected) < 1e-14
    backend.train_step(batch)
    assert relative(backend.state().tensors["bn.running_var"], expected) < 1e-14


def test_native_parts_average_the_biased_variance_as_paddle_does_on_a_cpu():
    one = network(
        BatchNorm(name="bn", channels=3),
        GlobalAvgPool(name="pool"),
        Linear(name="fc", in_features=3, out_features=CLASSES),
    )
    backend, batch = opened(one, parts="native")
    backend.train_step(batch)
    start = random_weights(one)["bn.running_var"].astype(np.float64)
    expected = 0.9 * start + 0.1 * normalised().var((0, 2, 3))
    assert relative(backend.state().tensors["bn.running_var"], expected) < 1e-7


def test_batch_norm_normalises_by_the_biased_variance_in_training_and_by_the_average_later():
    one = network(
        BatchNorm(name="bn", channels=3),
        GlobalAvgPool(name="pool"),
        Linear(name="fc", in_features=3, out_features=CLASSES),
    )
    backend, batch = opened(one)
    weights = random_weights(one)
    x = normalised()

    def forward(mean, variance):
        unit = (x - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
        y = unit * weights["bn.weight"][:, None, None] + weights["bn.bias"][:, None, None]
        return y.mean((2, 3)) @ weights["fc.weight"].astype(np.float64).T + weights["fc.bias"]

    trained = backend.probe(batch).logits
    assert relative(trained, forward(x.mean((0, 2, 3)), x.var((0, 2, 3)))) < 1e-8
    evaluated = backend.evaluate(batch)
    assert evaluated.dtype == np.float32
    assert (
        relative(evaluated, forward(weights["bn.running_mean"], weights["bn.running_var"])) < 1e-6
    )


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_linear_network_gives_the_logits_and_gradients_of_softmax_regression(layout):
    backend, batch = opened(CLASSIFIER, layout=layout)
    weights = random_weights(CLASSIFIER)
    loss, gradients, logits = softmax_regression(weights["fc.weight"], weights["fc.bias"])
    probe = backend.probe(batch)
    assert probe.loss == pytest.approx(loss, rel=1e-13)
    assert relative(probe.logits, logits) < 1e-13
    assert relative(probe.parameter_gradients["fc.weight"], gradients["fc.weight"]) < 1e-13
    assert relative(probe.parameter_gradients["fc.bias"], gradients["fc.bias"]) < 1e-13


def test_both_layouts_compute_the_same_network():
    probes = []
    for layout in ("nchw", "nhwc"):
        backend, batch = opened(RESIDUAL, layout=layout)
        probes.append(backend.probe(batch))
    first, second = probes
    for part in ("outputs", "output_gradients", "parameter_gradients", "running_statistics"):
        ours, theirs = getattr(first, part), getattr(second, part)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name].shape == theirs[name].shape
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-13)


def test_gradients_agree_with_finite_differences_of_the_loss():
    backend, batch = opened(RESIDUAL)
    start = backend.state()
    gradients = backend.probe(batch).parameter_gradients
    random = np.random.default_rng(3)
    direction = {name: random.normal(size=value.shape) for name, value in gradients.items()}

    def loss(step):
        moved = {name: start.tensors[name] + step * d for name, d in direction.items()}
        backend.load_state(type(start)(**{**vars(start), "tensors": {**start.tensors, **moved}}))
        return backend.probe(batch).loss

    expected = (loss(1e-6) - loss(-1e-6)) / 2e-6
    slope = sum((gradients[name] * d).sum() for name, d in direction.items())
    assert slope == pytest.approx(expected, rel=1e-6)


# Optimizers


@pytest.mark.parametrize(
    ("optimizer", "weight_decay", "clip_norm", "precision"),
    product(["adam", "sgd"], [0.0, 0.1], [None, 0.5], ["float64", "fp32"]),
)
def test_four_steps_with_a_learning_rate_drop_follow_the_formulas(
    optimizer, weight_decay, clip_norm, precision
):
    backend, batch = opened(
        CLASSIFIER, optimizer=optimizer, weight_decay=weight_decay, clip_norm=clip_norm,
        precision=precision, lr=0.002,
    )  # fmt: skip
    weights = {n: v.astype(np.float64) for n, v in random_weights(CLASSIFIER).items()}
    first = dict.fromkeys(weights, 0.0)
    second = dict.fromkeys(weights, 0.0)
    for step in range(1, 5):
        rate = 0.002 if step <= 2 else 0.0002
        if step == 3:
            backend.set_learning_rate(rate)
        loss, gradients, _ = softmax_regression(weights["fc.weight"], weights["fc.bias"])
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        for name, gradient in gradients.items():
            if clip_norm is not None:
                assert norm > clip_norm, "the bound must bite"
                gradient = gradient * min(1, clip_norm / norm)
            gradient = gradient + weight_decay * weights[name]
            if optimizer == "sgd":
                first[name] = 0.9 * first[name] + gradient
                weights[name] = weights[name] - rate * first[name]
                continue
            # Kingma and Ba 2015, Algorithm 1.
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            root = np.sqrt(second[name] / (1 - 0.999**step))
            weights[name] = weights[name] - rate * first[name] / (1 - 0.9**step) / (root + 1e-8)
        backend.train_step(batch)
        tolerance = 1e-12 if precision == "float64" else 1e-4
        assert backend.take_steps()[0].loss == pytest.approx(loss, rel=tolerance)
    state = backend.state()
    tolerance = 1e-12 if precision == "float64" else 1e-5
    for name, expected in weights.items():
        assert relative(state.tensors[name], expected) < tolerance
    slots = {"momentum": first} if optimizer == "sgd" else {
        "first_moment": first, "second_moment": second,
    }  # fmt: skip
    assert state.slots.keys() == slots.keys()
    for slot, values in slots.items():
        for name, expected in values.items():
            assert relative(state.slots[slot][name], expected) < 10 * tolerance
    assert state.optimizer_steps == (4 if optimizer == "adam" else 0)


@pytest.mark.parametrize(("optimizer", "precision"), product(["adam", "sgd"], ["fp32", "float64"]))
def test_a_fresh_model_continues_from_a_state_to_the_last_bit(optimizer, precision):
    options = {"optimizer": optimizer, "precision": precision, "lr": 0.01}
    straight, batch = opened(RESIDUAL, **options)
    for _ in range(2):
        straight.train_step(batch)
    state = straight.state()
    for _ in range(2):
        straight.train_step(batch)
    resumed, same = opened(RESIDUAL, **options)
    resumed.load_state(state)
    for _ in range(2):
        resumed.train_step(same)
    assert [step.loss for step in straight.take_steps()[2:]] == [
        step.loss for step in resumed.take_steps()
    ]
    for name, value in straight.state().tensors.items():
        assert np.array_equal(value, resumed.state().tensors[name]), name


def test_two_runs_of_one_configuration_give_the_same_losses():
    losses = []
    for _ in range(2):
        backend, batch = opened(RESIDUAL, precision="fp32", threads=2)
        for _ in range(3):
            backend.train_step(batch)
        losses.append([step.loss for step in backend.take_steps()])
    assert losses[0] == losses[1]


# Looking inside


def test_a_probe_shows_every_layer_and_changes_nothing():
    backend, batch = opened(RESIDUAL)
    before = backend.state()
    probe = backend.probe(batch)
    places = {place.layer.name: place for place in place_layers(RESIDUAL)}
    assert probe.outputs.keys() == probe.output_gradients.keys() == places.keys()
    for name, place in places.items():
        assert probe.outputs[name].shape == (BATCH, *place.output)
        assert probe.output_gradients[name].shape == (BATCH, *place.output)
    assert np.array_equal(probe.outputs["fc"], probe.logits)
    assert np.allclose(probe.outputs["block"], probe.outputs["bn2"] + probe.outputs["down"])
    assert np.allclose(probe.outputs["block.relu"], np.maximum(probe.outputs["block"], 0))
    assert probe.parameter_gradients.keys() == trainable_shapes(RESIDUAL).keys()
    after = backend.state()
    assert all(np.array_equal(after.tensors[n], v) for n, v in before.tensors.items())
    backend.train_step(batch)
    assert backend.take_steps()[0].loss == probe.loss


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_each_layer_alone_does_what_it_did_in_the_network(layout):
    backend, batch = opened(RESIDUAL, layout=layout)
    probe = backend.probe(batch)
    before = backend.state()
    inputs = {"conv1": normalised(), "bn1": "conv1", "relu": "bn1", "maxpool": "relu",
              "conv2": "maxpool", "down": "maxpool", "bn2": "conv2", "block.relu": "block",
              "avgpool": "block.relu", "fc": "avgpool"}  # fmt: skip
    for name, x in inputs.items():
        x = probe.outputs[x] if isinstance(x, str) else x
        alone = backend.probe_layer(name, x, probe.output_gradients[name])
        np.testing.assert_allclose(alone.output, probe.outputs[name], rtol=1e-12, atol=1e-14)
        assert alone.input_gradient.shape == x.shape
        for parameter, gradient in alone.parameter_gradients.items():
            expected = probe.parameter_gradients[parameter]
            np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)
    alone = backend.probe_layer("relu", probe.outputs["bn1"], probe.output_gradients["relu"])
    np.testing.assert_allclose(alone.input_gradient, probe.output_gradients["bn1"], rtol=1e-12)
    after = backend.state()
    assert all(np.array_equal(after.tensors[n], v) for n, v in before.tensors.items())


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("float64", "float64")])
def test_evidence_names_the_dtype_of_every_kernel_and_leaves_no_trace(precision, dtype):
    backend, batch = opened(RESIDUAL, precision=precision)
    before = backend.state()
    evidence = backend.evidence(batch)
    assert evidence.effective == dtype
    assert {place.layer.name for place in place_layers(RESIDUAL)} == evidence.layers.keys()
    for layer in evidence.layers.values():
        assert (layer.compute, layer.output, layer.backward) == (dtype, dtype, dtype)
    assert "conv2d" in evidence.layers["conv1"].operation
    assert evidence.master_weight_dtype == evidence.gradient_dtype == dtype
    assert evidence.optimizer == "Adam"
    assert evidence.optimizer_implementation == "loop"
    assert not evidence.scaler_enabled
    assert backend.take_steps() == []
    after = backend.state()
    assert all(np.array_equal(after.tensors[n], v) for n, v in before.tensors.items())
    untouched, _ = opened(RESIDUAL, precision=precision)
    for one in (backend, untouched):
        one.train_step(batch)
    assert backend.take_steps() == untouched.take_steps()
    for name, value in untouched.state().tensors.items():
        assert np.array_equal(backend.state().tensors[name], value), name


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_compiled_step_computes_what_the_eager_step_does(optimizer):
    eager, batch = opened(RESIDUAL, optimizer=optimizer)
    compiled, same = opened(RESIDUAL, optimizer=optimizer, compile="on")
    evidence = compiled.evidence(same)
    assert evidence.effective == "float64"
    assert "program" in evidence.source
    for _ in range(3):
        eager.train_step(batch)
        compiled.train_step(same)
    for a, b in zip(eager.take_steps(), compiled.take_steps(), strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-12)
    ours, theirs = eager.state().tensors, compiled.state().tensors
    assert all(relative(theirs[name], ours[name]) < 1e-11 for name in ours)


def test_a_model_that_cannot_be_compiled_is_refused_with_the_reason(monkeypatch):
    import paddle

    def fail(*_args, **_options):
        raise NotImplementedError("no such operation")

    monkeypatch.setattr(paddle.jit, "to_static", fail)
    with pytest.raises(Unsupported, match=r"no such operation.*--compile off"):
        opened(RESIDUAL, compile="on")


# The device and its limits


def test_the_settings_in_force_are_read_back():
    for threads in (1, 2):
        backend = PaddleBackend()
        in_force = backend.open(RunConfig(backend="paddle", steps=1, threads=threads))
        assert in_force.threads == threads
    assert in_force.device_type == "cpu"
    assert in_force.framework_version == metadata.version("paddlepaddle")
    assert (in_force.layout, in_force.compile) == ("nchw", "eager")
    assert in_force.tf32 is None
    assert in_force.loss_scale_policy is None
    assert backend.memory().allocated_peak_bytes is None


@pytest.mark.parametrize(
    ("capability", "in_force"), [((7, 5), None), ((8, 0), True), ((9, 0), True)]
)
def test_tf32_is_in_force_only_where_the_gpu_has_it(monkeypatch, capability, in_force):
    # Turing has none, whatever the flag; Ampere and Hopper have it.
    import paddle

    from backends.paddlepaddle import backend as adapter

    major, minor = capability
    properties = SimpleNamespace(name="GPU", uuid=None, major=major, minor=minor)
    monkeypatch.setattr(adapter, "choose_device", lambda *_: "gpu:0")
    monkeypatch.setattr(adapter, "try_dtype", lambda *_: Capability(available=True))
    monkeypatch.setattr(adapter, "set_cuda_modes", lambda *_, tf32, **__: tf32)
    monkeypatch.setattr(adapter, "PinnedTransfer", lambda *_: None)
    monkeypatch.setattr(paddle, "set_device", lambda _: None)
    monkeypatch.setattr(paddle.device.cuda, "get_device_properties", lambda _: properties)
    for name in ("reset_max_memory_allocated", "reset_max_memory_reserved"):
        monkeypatch.setattr(paddle.device.cuda, name, lambda _: None)

    told = PaddleBackend().open(RunConfig(backend="paddle", steps=1, tf32=True))

    assert told.tf32 is in_force


@pytest.mark.parametrize("release_unused", [False, True])
def test_peaks_begin_anew_below_what_was_given_back(monkeypatch, release_unused):
    import paddle

    calls = []
    backend = PaddleBackend()
    backend.open(RunConfig(backend="paddle", steps=1, device="cpu"))
    resets = ["reset_max_memory_allocated", "reset_max_memory_reserved"]
    for name in ("empty_cache", *resets):
        monkeypatch.setattr(paddle.device.cuda, name, lambda *_, name=name: calls.append(name))

    backend.reset_peaks(release_unused=release_unused)
    assert calls == []  # a CPU has none
    backend._on_cuda = True
    backend.reset_peaks(release_unused=release_unused)

    assert calls == (["empty_cache", *resets] if release_unused else resets)


def cuda_is_absent():
    import paddle

    return not paddle.is_compiled_with_cuda()


def test_amp_on_a_cpu_is_refused_with_the_reason_and_the_remedy():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capabilities = PaddleBackend().capabilities()["cpu"]
    assert capabilities["float32"] == capabilities["float64"] == Capability(available=True)
    for dtype in ("float16", "bfloat16"):
        assert not capabilities[dtype].available
        with pytest.raises(Unsupported, match=rf"no effect.*no {dtype} kernels.*paddlepaddle-gpu"):
            opened(RESIDUAL, precision="amp", amp_dtype=dtype, device="cpu")


def test_an_absent_gpu_is_refused_with_the_remedy():
    if not cuda_is_absent():
        pytest.skip("this is a CUDA build of Paddle")
    with pytest.raises(Unsupported, match=r"CPU build; install a CUDA build.*--device cpu"):
        opened(RESIDUAL, device="cuda:1")


def test_a_gpu_is_known_to_the_driver_by_its_number(monkeypatch):
    import backends.paddlepaddle.device as device

    monkeypatch.setattr(device, "cuda_uuid", lambda ordinal: f"GPU-of-{ordinal}")
    assert device.gpu_uuid("gpu:0") == "GPU-of-0"
    assert device.gpu_uuid("gpu:11") == "GPU-of-11"


def test_two_builds_of_paddle_in_one_environment_are_refused(monkeypatch):
    versions = {"paddlepaddle": "3.3.1", "paddlepaddle-gpu": "2.6.2"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    with pytest.raises(Unsupported, match=r"paddlepaddle 3\.3\.1 and paddlepaddle-gpu 2\.6\.2"):
        opened(RESIDUAL)


def test_an_old_paddle_is_refused(monkeypatch):
    import paddle

    monkeypatch.setattr(paddle, "__version__", "2.6.2")
    with pytest.raises(Unsupported, match=r"2\.6\.2 is too old"):
        opened(RESIDUAL)


def test_pinned_memory_is_kept_until_its_copy_is_done():
    calls, events = [], []

    class Event:
        done = False

        def query(self):
            return self.done

    class Pinned:
        def __init__(self, part, place):
            assert place == "pinned"

        def cuda(self, blocking):
            calls.append(blocking)
            return "on device"

    def record_event():
        events.append(Event())
        return events[-1]

    paddle: Any = SimpleNamespace(
        to_tensor=Pinned,
        CUDAPinnedPlace=lambda: "pinned",
        device=SimpleNamespace(
            current_stream=lambda device: SimpleNamespace(record_event=record_event)
        ),
    )
    transfer = PinnedTransfer(paddle, "gpu:0")
    for kept in (1, 2, 3):
        assert transfer.to_device(PIXELS, LABELS) == ["on device", "on device"]
        assert len(transfer._copying) == kept
    assert not any(calls), "the host must not wait"
    events[0].done = events[1].done = True
    transfer.to_device(PIXELS, LABELS)
    assert [event for event, _ in transfer._copying] == events[2:]


def test_an_allocation_that_fails_is_told_from_other_errors():
    import paddle

    backend = PaddleBackend()
    with pytest.raises(MemoryError) as failed:
        paddle.zeros([1 << 44], "float32")
    assert backend.is_out_of_memory(failed.value)
    assert backend.is_out_of_memory(OSError("(External) CUDA error(2), out of memory."))
    # Named by the headers cudnn.h (version 8), cudnn_graph.h (version 9) and cublas_api.h.
    for told in (
        "CUDNN error(2), CUDNN_STATUS_ALLOC_FAILED. ",
        "CUDNN error(4003), CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED. ",
        "CUBLAS error(3). \n  [Hint: 'CUBLAS_STATUS_ALLOC_FAILED'. Resource allocation failed. ]",
    ):
        assert backend.is_out_of_memory(OSError(f"(External) {told}"))
    assert not backend.is_out_of_memory(OSError("(External) CUDA error(700), illegal address."))
    assert not backend.is_out_of_memory(
        OSError("(External) CUDNN error(5000), CUDNN_STATUS_EXECUTION_FAILED. ")
    )
    assert not backend.is_out_of_memory(ValueError("(InvalidArgument) out of range"))


# Mixed precision. No machine at hand can run it, so the calls are recorded, and Paddle's own
# scaler runs on the CPU with float32 in place of float16.


class Recorder:
    """Stands in for auto_cast, the scaler and the optimizer; ``calls`` is what they were asked."""

    def __init__(self, monkeypatch, overflows=()):
        import paddle

        import backends.paddlepaddle.backend as adapter

        self.calls = []
        recorder, overflows = self, list(overflows)
        momentum = paddle.optimizer.Momentum

        class AutoCast:
            def __init__(self, *args, **options):
                recorder.calls.append(("auto_cast", args, options))

            def __enter__(self):
                recorder.calls.append("enter")

            def __exit__(self, *_):
                recorder.calls.append("leave")

        class Scaled:
            def __init__(self, loss):
                self.loss = loss

            def backward(self):
                recorder.calls.append("backward")
                self.loss.backward()

        class Scaler:
            def __init__(self, **options):
                recorder.calls.append(("GradScaler", options))
                self.options, self.count = options, 0
                self._scale = paddle.to_tensor([options["init_loss_scaling"]])

            def is_enable(self):
                return self.options["enable"]

            def scale(self, value):
                if not value.stop_gradient:
                    recorder.calls.append("scale")
                    return Scaled(value * self._scale)
                return value * self._scale

            def step(self, optimizer):
                recorder.calls.append("scaler.step")
                self._cache_found_inf = overflows.pop(0) if overflows else False
                if not self._cache_found_inf:
                    optimizer.step()

            def update(self):
                recorder.calls.append("update")
                if self._cache_found_inf and self.options["use_dynamic_loss_scaling"]:
                    print("Found inf or nan")  # noqa: T201  as Paddle does
                    self._scale = self._scale * self.options["decr_ratio"]

        class Momentum(momentum):
            def __init__(self, **options):
                recorder.calls.append(("Momentum", options))
                super().__init__(**options)

            def step(self):
                recorder.calls.append("optimizer.step")
                super().step()

            def clear_grad(self, set_to_zero=True):
                recorder.calls.append("clear_grad")
                super().clear_grad(set_to_zero)

        monkeypatch.setattr(paddle.amp, "auto_cast", AutoCast)
        monkeypatch.setattr(paddle.amp, "GradScaler", Scaler)
        monkeypatch.setattr(paddle.optimizer, "Momentum", Momentum)
        monkeypatch.setattr(adapter, "try_dtype", lambda *_: Capability(available=True))

    def take(self, name=None):
        calls, self.calls = self.calls, []
        return [call for call in calls if name is None or call[0] == name]


STEP = ["enter", "leave", "scale", "backward", "scaler.step", "optimizer.step", "update",
        "clear_grad"]  # fmt: skip


@pytest.mark.parametrize("clip_norm", [None, 0.25])
@pytest.mark.parametrize("dynamic", [True, False])
def test_an_amp_step_calls_paddle_in_the_documented_order(monkeypatch, capsys, dynamic, clip_norm):
    recorder = Recorder(monkeypatch, overflows=[False, True, False])
    policy = LossScalePolicy(
        initial=1024, dynamic=dynamic, growth_factor=4, backoff_factor=0.25, growth_interval=7
    )
    backend, batch = opened(
        RESIDUAL, precision="amp", optimizer="sgd", loss_scale=policy, clip_norm=clip_norm
    )
    built = recorder.take()
    ((_, scaler),) = [call for call in built if call[0] == "GradScaler"]
    assert scaler == {
        "enable": True,
        "init_loss_scaling": 1024,
        "incr_ratio": 4,
        "decr_ratio": 0.25,
        "incr_every_n_steps": 7,
        "decr_every_n_nan_or_inf": 1,
        "use_dynamic_loss_scaling": dynamic,
    }
    ((_, optimizer),) = [call for call in built if call[0] == "Momentum"]
    assert not optimizer["use_multi_tensor"]  # on the CPU
    # Clipping belongs to the optimizer's step, which the scaler enters with unscaled gradients.
    clip = optimizer["grad_clip"]
    assert (clip.clip_norm if clip else None) == clip_norm
    for skipped in (False, True, False):
        backend.train_step(batch)
        first, *rest = recorder.take()
        assert first == ("auto_cast", (), {"level": "O1", "dtype": "float16"})
        assert rest == [call for call in STEP if not (skipped and call == "optimizer.step")]
    steps = backend.take_steps()
    assert [step.skipped for step in steps] == [False, True, False]
    assert [step.loss_scale for step in steps] == ([1024, 1024, 256] if dynamic else [1024] * 3)
    assert capsys.readouterr().out == ""


def test_bfloat16_needs_no_scaler(monkeypatch):
    recorder = Recorder(monkeypatch)
    backend, batch = opened(RESIDUAL, precision="amp", amp_dtype="bfloat16", optimizer="sgd")
    ((_, scaler),) = recorder.take("GradScaler")
    assert not scaler["enable"]
    backend.train_step(batch)
    assert ("auto_cast", (), {"level": "O1", "dtype": "bfloat16"}) in recorder.calls
    assert "scaler.step" not in recorder.calls
    (step,) = backend.take_steps()
    assert (step.loss_scale, step.skipped) == (None, False)


def test_a_float32_step_and_every_evaluation_know_no_auto_cast(monkeypatch):
    recorder = Recorder(monkeypatch)
    backend, batch = opened(RESIDUAL, precision="fp32", optimizer="sgd")
    backend.train_step(batch)
    assert recorder.take("auto_cast") == []
    backend, batch = opened(RESIDUAL, precision="amp", optimizer="sgd")
    recorder.take()
    assert backend.evaluate(batch).dtype == np.float32
    assert recorder.take() == []


@pytest.fixture
def scaler_on_cpu(monkeypatch):
    """Let Paddle's own scaler believe that the CPU is a GPU; auto_cast still makes no effect."""
    import paddle.amp.grad_scaler

    import backends.paddlepaddle.backend as adapter

    place = SimpleNamespace(is_gpu_place=lambda: True)
    tracer = SimpleNamespace(_expected_place=place)
    monkeypatch.setattr(paddle.amp.grad_scaler, "_dygraph_tracer", lambda: tracer)
    monkeypatch.setattr(adapter, "try_dtype", lambda *_: Capability(available=True))


@pytest.mark.filterwarnings("ignore:amp_guard can only be enabled")
@pytest.mark.usefixtures("scaler_on_cpu")
@pytest.mark.parametrize(("optimizer", "policy", "scales"), [
    ("adam", "dynamic:1024", [1024, 1024, 512]),
    ("sgd", "dynamic:1024", [1024, 1024, 512]),
    ("sgd", "512", [512, 512, 512]),
])  # fmt: skip
def test_paddles_scaler_withholds_a_poisoned_step(optimizer, policy, scales, capsys):
    backend, batch = opened(
        RESIDUAL, precision="amp", optimizer=optimizer, loss_scale=policy, clip_norm=0.5
    )
    backend.train_step(batch)
    before = backend.state()
    backend.poison_next_gradient()
    backend.train_step(batch)
    after = backend.state()
    backend.train_step(batch)
    steps = backend.take_steps()
    assert [step.loss_scale for step in steps] == scales
    assert [step.skipped for step in steps] == [False, True, False]
    assert (before.loss_scale, after.loss_scale) == (scales[1], scales[2])
    assert after.optimizer_steps == before.optimizer_steps
    assert after.clean_steps == 0
    for slot, values in before.slots.items():
        for name, value in values.items():
            assert np.array_equal(after.slots[slot][name], value)
    moved = {n for n, v in before.tensors.items() if not np.array_equal(after.tensors[n], v)}
    # BatchNorm's averages move on a skipped step too: the forward pass has happened.
    assert moved == buffer_shapes(RESIDUAL).keys()
    resumed, same = opened(
        RESIDUAL, precision="amp", optimizer=optimizer, loss_scale=policy, clip_norm=0.5
    )
    resumed.load_state(after)
    resumed.train_step(same)
    assert resumed.take_steps() == [steps[2]]
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore:amp_guard can only be enabled")
@pytest.mark.usefixtures("scaler_on_cpu")
def test_the_scale_grows_after_the_growth_interval_and_gradients_come_unscaled():
    policy = LossScalePolicy(initial=256, growth_interval=2)
    backend, batch = opened(CLASSIFIER, precision="amp", loss_scale=policy, lr=1e-4)
    weights = random_weights(CLASSIFIER)
    _, gradients, _ = softmax_regression(weights["fc.weight"], weights["fc.bias"])
    probe = backend.probe(batch)
    assert relative(probe.parameter_gradients["fc.weight"], gradients["fc.weight"]) < 1e-5
    for _ in range(5):
        backend.train_step(batch)
    assert [step.loss_scale for step in backend.take_steps()] == [256, 256, 512, 512, 1024]


def test_the_initial_weights_of_the_study_are_loaded_as_they_are():
    weights = initial_weights(RESIDUAL, seed=5)
    backend = PaddleBackend()
    backend.open(RunConfig(backend="paddle", steps=1, threads=1))
    backend.build(RESIDUAL, weights)
    state = backend.state()
    assert state.tensors.keys() == weights.keys()
    assert all(np.array_equal(state.tensors[name], value) for name, value in weights.items())
