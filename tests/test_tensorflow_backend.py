"""The TensorFlow adapter against formulas written out in NumPy float64."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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
    place_layers,
)
from harness.protocol import CHANNEL_MEAN, CHANNEL_STD, Unsupported
from harness.weights import initial_weights

pytestmark = pytest.mark.tensorflow

SIZE, CLASSES, BATCH = 8, 3, 4


def tiny_network(*, blocks: bool = True) -> Network:
    """Every kind of layer once: a strided stem, a residual block, pooling and two linear layers."""
    block = Residual(
        name="block",
        body=Sequential(
            (
                Conv(name="block.conv", in_channels=4, out_channels=4, kernel=3, padding=1),
                BatchNorm(name="block.bn", channels=4),
            )
        ),
        shortcut=Sequential(),
    )
    stem = (
        Conv(name="conv", in_channels=3, out_channels=4, kernel=3, stride=2, padding=1),
        BatchNorm(name="bn", channels=4),
        ReLU(name="relu"),
    )
    tail = (
        MaxPool(name="pool", kernel=3, stride=2, padding=1),
        Flatten(name="flatten"),
        Linear(name="fc1", in_features=16, out_features=5),
        ReLU(name="relu2"),
        Linear(name="fc2", in_features=5, out_features=CLASSES),
    )
    middle = (block, ReLU(name="block.relu")) if blocks else ()
    return Network(
        name="tiny", image_size=SIZE, classes=CLASSES, body=Sequential((*stem, *middle, *tail))
    )


def linear_network() -> Network:
    """Small enough to write its gradients down: the mean over all positions, then one layer."""
    layers = (GlobalAvgPool(name="avg"), Linear(name="fc", in_features=3, out_features=CLASSES))
    return Network(name="linear", image_size=SIZE, classes=CLASSES, body=Sequential(layers))


@pytest.fixture(scope="module")
def backend():
    from backends.tensorflow_keras.backend import TensorFlowBackend

    return TensorFlowBackend()


@pytest.fixture
def prepared(backend):
    """A function that opens and builds, and returns the backend."""

    def prepare(network: Network, **options):
        run = RunConfig(
            **{
                "backend": "tensorflow",
                "precision": "float64",
                "steps": 1,
                "device": "cpu",
                "compile": "off",
                "image_size": SIZE,
                "batch_size": BATCH,
                **options,
            }
        )
        prepare.in_force = backend.open(run)
        backend.build(network, initial_weights(network, seed=3))
        return backend

    yield prepare
    backend.close()


def a_batch(seed: int = 0, batch: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (batch, SIZE, SIZE, 3), dtype=np.uint8)
    return images, random.integers(0, CLASSES, batch)


def relative(value: np.ndarray, expected: np.ndarray) -> float:
    difference = np.asarray(value, float) - np.asarray(expected, float)
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


def padded(x: np.ndarray, padding: int, value: float) -> np.ndarray:
    width = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    return np.pad(x, width, constant_values=value)


def windows(x: np.ndarray, kernel: int, stride: int) -> np.ndarray:
    """(N, C, H, W) → (N, C, H', W', kernel, kernel)."""
    view = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    return view[:, :, ::stride, ::stride]


def convolution(x: np.ndarray, weight: np.ndarray, stride: int, padding: int) -> np.ndarray:
    patches = windows(padded(x, padding, 0), weight.shape[-1], stride)
    return np.einsum("ncxyhw,ochw->noxy", patches, weight)


# --- layers -------------------------------------------------------------------------------------


def test_a_strided_convolution_pads_all_four_sides(prepared):
    """With padding on the right and bottom alone the corner would see kernel element 0."""
    network = tiny_network()
    tf_backend = prepared(network)
    state = tf_backend.state()
    weight = state.tensors["conv.weight"] * 0
    weight[0, 0] = np.arange(9).reshape(3, 3)
    state.tensors["conv.weight"] = weight
    tf_backend.load_state(state)
    impulse = np.zeros((1, 3, SIZE, SIZE))
    impulse[0, 0, 0, 0] = 1
    seen = tf_backend.probe_layer("conv", impulse, np.zeros((1, 4, 4, 4)))
    assert seen.output.shape == (1, 4, 4, 4)
    assert seen.output[0, 0, 0, 0] == 4


@pytest.mark.parametrize("layer", ["conv", "block.conv"])
def test_a_convolution_and_its_gradients_equal_the_sums_written_out(prepared, layer):
    tf_backend = prepared(tiny_network())
    stride, shape = (2, (2, 3, SIZE, SIZE)) if layer == "conv" else (1, (2, 4, 4, 4))
    random = np.random.default_rng(5)
    x, gradient = random.normal(size=shape), random.normal(size=(2, 4, 4, 4))
    weight = tf_backend.state().tensors[f"{layer}.weight"]
    seen = tf_backend.probe_layer(layer, x, gradient)
    assert relative(seen.output, convolution(x, weight, stride, 1)) < 1e-12
    patches = windows(padded(x, 1, 0), 3, stride)
    expected = np.einsum("noxy,ncxyhw->ochw", gradient, patches)
    assert relative(seen.parameter_gradients[f"{layer}.weight"], expected) < 1e-12
    # A convolution is linear in its input: the gradient's product with x is ⟨gradient, output⟩.
    assert np.sum(seen.input_gradient * x) == pytest.approx(np.sum(gradient * seen.output))


def test_batch_norm_normalises_by_the_biased_and_remembers_the_unbiased_variance(prepared):
    tf_backend = prepared(tiny_network())
    images, labels = a_batch()
    probe = tf_backend.probe(tf_backend.put(images, labels))
    x = probe.outputs["conv"]
    axes = (0, 2, 3)
    mean, biased = x.mean(axes), x.var(axes)
    shown = (x - mean[:, None, None]) / np.sqrt(biased + 1e-5)[:, None, None]
    assert relative(probe.outputs["bn"], shown) < 1e-12
    assert relative(probe.running_statistics["bn.running_mean"], 0.1 * mean) < 1e-12
    unbiased = x.var(axes, ddof=1)
    assert relative(probe.running_statistics["bn.running_var"], 0.9 + 0.1 * unbiased) < 1e-12


def test_native_parts_are_those_of_keras(prepared):
    tf_backend = prepared(tiny_network(), parts="native")
    images, labels = a_batch()
    probe = tf_backend.probe(tf_backend.put(images, labels))
    biased = probe.outputs["conv"].var((0, 2, 3))
    assert relative(probe.running_statistics["bn.running_var"], 0.9 + 0.1 * biased) < 1e-12
    # "same" with stride 2 pads the right and the bottom alone: the corner sees element 0.
    state = tf_backend.state()
    weight = state.tensors["conv.weight"] * 0
    weight[0, 0] = np.arange(1, 10).reshape(3, 3)
    state.tensors["conv.weight"] = weight
    tf_backend.load_state(state)
    impulse = np.zeros((1, 3, SIZE, SIZE))
    impulse[0, 0, 0, 0] = 1
    seen = tf_backend.probe_layer("conv", impulse, np.zeros((1, 4, 4, 4)))
    assert seen.output[0, 0, 0, 0] == 1
    # Keras' own Adam: epsilon is added before the bias correction.
    tf_backend.train_step(tf_backend.put(images, labels))
    assert tf_backend.state().optimizer_steps == 1


def test_padding_never_wins_a_maximum_and_takes_no_gradient(prepared):
    tf_backend = prepared(tiny_network())
    x = np.zeros((1, 4, 4, 4))
    x[0, 0] = -np.arange(16).reshape(4, 4)
    gradient = np.ones((1, 4, 2, 2))
    seen = tf_backend.probe_layer("pool", x, gradient)
    best = windows(padded(x, 1, -np.inf), 3, 2).max((-1, -2))
    np.testing.assert_array_equal(seen.output, best)
    assert seen.input_gradient.sum() == gradient.sum()


def test_flatten_has_channels_slowest(prepared):
    tf_backend = prepared(tiny_network())
    x = np.arange(2 * 4 * 2 * 2, dtype=float).reshape(2, 4, 2, 2)
    seen = tf_backend.probe_layer("flatten", x, np.ones((2, 16)))
    np.testing.assert_array_equal(seen.output, x.reshape(2, 16))


def test_a_batch_becomes_a_tensor_on_the_host_before_it_is_copied_to_the_device():
    """Converting under a GPU would be the copy, with Python's lock held until the step is done."""
    from backends.tensorflow_keras.backend import TensorFlowBackend

    devices, calls = [], []

    @contextlib.contextmanager
    def device(name):
        devices.append(name)
        yield
        devices.pop()

    def call(name):
        def act(value):
            calls.append((name, devices[-1]))
            return value

        return act

    tf: Any = SimpleNamespace(
        device=device, convert_to_tensor=call("convert"), identity=call("copy")
    )
    adapter = TensorFlowBackend.__new__(TensorFlowBackend)
    adapter._tf, adapter._device = tf, "/GPU:0"
    images, labels = a_batch()
    copied = adapter._copy(images, labels)
    assert copied[0] is images
    assert copied[1] is labels
    assert calls == [("convert", "/CPU:0")] * 2 + [("copy", "/GPU:0")] * 2


def test_a_batch_on_the_device_holds_what_was_given_and_no_later_change(prepared):
    tf_backend = prepared(linear_network())
    images, labels = a_batch()
    given = images.copy(), labels.copy()
    batch = tf_backend.put(*given)
    given[0][:], given[1][:] = 0, 0
    on_device = batch.result()
    for value, expected in zip(on_device, (images, labels), strict=True):
        assert value.dtype.name == expected.dtype.name
        np.testing.assert_array_equal(value.numpy(), expected)


def test_images_are_normalised_as_published(prepared):
    network = linear_network()
    tf_backend = prepared(network)
    images, labels = a_batch()
    probe = tf_backend.probe(tf_backend.put(images, labels))
    normalised = (images / 255 - np.array(CHANNEL_MEAN)) / np.array(CHANNEL_STD)
    assert relative(probe.outputs["avg"], normalised.mean((1, 2))) < 1e-6


# --- the whole pass -----------------------------------------------------------------------------


def test_gradients_of_a_probe_are_the_slopes_of_its_loss(prepared):
    """Central differences in float64, for one element of every parameter."""
    tf_backend = prepared(tiny_network())
    batch = tf_backend.put(*a_batch())
    start = tf_backend.state()
    probe = tf_backend.probe(batch)
    for name, gradient in probe.parameter_gradients.items():
        index = np.unravel_index(np.argmax(np.abs(gradient)), gradient.shape)
        losses = []
        for shift in (1e-6, -1e-6):
            tensors = {key: value.copy() for key, value in start.tensors.items()}
            tensors[name][index] += shift
            tf_backend.load_state(replace(start, tensors=tensors))
            tf_backend.train_step(batch)
            losses.append(tf_backend.take_steps()[0].loss)
        slope = (losses[0] - losses[1]) / 2e-6
        assert slope == pytest.approx(gradient[index], rel=1e-5, abs=1e-8), name


def test_a_probe_shows_every_layer_and_changes_nothing(prepared):
    network = tiny_network()
    tf_backend = prepared(network, precision="amp", amp_dtype="bfloat16")
    before = tf_backend.state()
    probe = tf_backend.probe(tf_backend.put(*a_batch()))
    shapes = {place.layer.name: (BATCH, *place.output) for place in place_layers(network)}
    assert {name: value.shape for name, value in probe.outputs.items()} == shapes
    assert {name: value.shape for name, value in probe.output_gradients.items()} == shapes
    after = tf_backend.state()
    for name, value in before.tensors.items():
        np.testing.assert_array_equal(after.tensors[name], value)


def test_evaluation_of_a_mixed_model_is_float32_and_leaves_the_training_graph_alone(prepared):
    network = tiny_network()
    images, labels = a_batch()
    logits = {}
    for precision in ("fp32", "amp"):
        tf_backend = prepared(network, precision=precision)
        batch = tf_backend.put(images, labels)
        before = tf_backend.evidence(batch)
        logits[precision] = tf_backend.evaluate(batch)
        tf_backend.train_step(batch)
        assert tf_backend.evidence(batch) == before
    assert before.effective == "float16"
    assert logits["amp"].dtype == np.float32
    np.testing.assert_array_equal(logits["amp"], logits["fp32"])


# --- optimizers ---------------------------------------------------------------------------------


def reference_gradients(
    tensors: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Gradients of the mean cross-entropy of ``linear_network``."""
    mean = np.asarray(np.float64(CHANNEL_MEAN))
    features = ((images / 255 - mean) / np.float64(CHANNEL_STD)).mean((1, 2))
    logits = features @ tensors["fc.weight"].T + tensors["fc.bias"]
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    error = exponentials / exponentials.sum(1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    return {"fc.weight": error.T @ features, "fc.bias": error.sum(0)}


def reference_training(start: dict[str, np.ndarray], run: RunConfig, rates: list[float]):
    """Adam after Kingma and Ba (2015), Algorithm 1; momentum after Sutskever et al., rate outside.

    Clipping comes first, then the L2 penalty's gradient.
    """
    tensors = {name: value.astype(np.float64) for name, value in start.items()}
    first = {name: np.zeros_like(value) for name, value in tensors.items()}
    second = {name: np.zeros_like(value) for name, value in tensors.items()}
    for step, rate in enumerate(rates, start=1):
        gradients = reference_gradients(tensors, *a_batch(step))
        if run.clip_norm is not None:
            norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
            gradients = {n: g * min(1, run.clip_norm / norm) for n, g in gradients.items()}
        for name, gradient in gradients.items():
            g = gradient + run.weight_decay * tensors[name]
            if run.optimizer == "adam":
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                m, v = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                tensors[name] -= rate * m / (np.sqrt(v) + 1e-8)
            else:
                first[name] = run.momentum * first[name] + g
                tensors[name] -= rate * first[name]
    return tensors


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.3},
        {"clip_norm": 0.05},
        {"clip_norm": 1e6},
        {"weight_decay": 0.3, "clip_norm": 0.05},
        {"momentum": 0.0},
    ],
    ids=str,
)
def test_three_steps_with_a_drop_of_the_rate_follow_the_published_formulas(
    prepared, optimizer, options
):
    tf_backend = prepared(linear_network(), optimizer=optimizer, lr=0.1, **options)
    run = tf_backend._run
    start = tf_backend.state().tensors
    rates = [0.1, 0.1, 0.01]
    for step, rate in enumerate(rates, start=1):
        tf_backend.set_learning_rate(rate)
        tf_backend.train_step(tf_backend.put(*a_batch(step)))
    tf_backend.take_steps()
    expected = reference_training(start, run, rates)
    for name, value in tf_backend.state().tensors.items():
        # The channel means reach the graph as float64, so nothing here is rounded to float32.
        assert relative(value - start[name], expected[name] - start[name]) < 1e-9, name


def test_training_goes_on_from_a_state_as_if_it_had_not_stopped(prepared):
    network = tiny_network()
    tf_backend = prepared(network)
    batches = [tf_backend.put(*a_batch(seed)) for seed in range(4)]
    for batch in batches[:2]:
        tf_backend.train_step(batch)
    middle = tf_backend.state()
    for batch in batches[2:]:
        tf_backend.train_step(batch)
    end = tf_backend.state()
    fresh = prepared(network)
    fresh.load_state(middle)
    for batch in batches[2:]:
        fresh.train_step(batch)
    again = fresh.state()
    assert again.optimizer_steps == end.optimizer_steps == 4
    for name, value in end.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], value)
    for slot, values in end.slots.items():
        for name, value in values.items():
            assert value.shape == end.tensors[name].shape
            np.testing.assert_array_equal(again.slots[slot][name], value)


# --- loss scaling -------------------------------------------------------------------------------


def test_an_infinite_gradient_is_skipped_once_and_halves_the_scale(prepared):
    tf_backend = prepared(tiny_network(), precision="amp")
    batch = tf_backend.put(*a_batch())
    tf_backend.train_step(batch)
    before = tf_backend.state()
    tf_backend.poison_next_gradient()
    tf_backend.train_step(batch)
    after = tf_backend.state()
    tf_backend.train_step(batch)
    steps = tf_backend.take_steps()
    assert [step.skipped for step in steps] == [False, True, False]
    assert [step.loss_scale for step in steps] == [65536, 65536, 32768]
    assert before.optimizer_steps == after.optimizer_steps == 1
    assert (after.loss_scale, after.clean_steps) == (32768, 0)
    for name, value in before.tensors.items():
        same = np.array_equal(after.tensors[name], value)
        assert same != ("running" in name), name
    assert tf_backend.state().optimizer_steps == 2


@pytest.mark.parametrize(
    ("policy", "scales"),
    [
        ({"initial": 64, "growth_interval": 2}, [64, 64, 128, 64, 64]),
        ({"initial": 64, "dynamic": False}, [64, 64, 64, 64, 64]),
        (
            {"initial": 64, "growth_interval": 2, "growth_factor": 4, "backoff_factor": 0.25},
            [64, 64, 256, 64, 64],
        ),
    ],
    ids=["dynamic", "fixed", "other factors"],
)
def test_the_scale_follows_its_policy(prepared, policy, scales):
    """Two clean steps, a poisoned one, two clean ones."""
    tf_backend = prepared(linear_network(), precision="amp", loss_scale=LossScalePolicy(**policy))
    batch = tf_backend.put(*a_batch())
    for step in range(5):
        if step == 2:
            tf_backend.poison_next_gradient()
        tf_backend.train_step(batch)
    steps = tf_backend.take_steps()
    assert [step.loss_scale for step in steps] == scales
    assert [step.skipped for step in steps] == [False, False, True, False, False]


def test_a_run_without_a_scaler_reports_none(prepared):
    tf_backend = prepared(tiny_network(), precision="amp", amp_dtype="bfloat16")
    tf_backend.train_step(tf_backend.put(*a_batch()))
    (step,) = tf_backend.take_steps()
    assert (step.loss_scale, step.skipped) == (None, False)
    assert tf_backend.state().loss_scale is None
    assert tf_backend.take_steps() == []


# --- evidence and what is in force --------------------------------------------------------------


def test_the_graph_shows_float16_convolutions_beside_a_float32_batch_norm_and_head(prepared):
    tf_backend = prepared(tiny_network(), precision="amp")
    evidence = tf_backend.evidence(tf_backend.put(*a_batch()))
    assert evidence.effective == "float16"
    layers = evidence.layers
    conv = layers["block.conv"]
    assert (conv.operation, conv.compute, conv.output) == ("Conv2D", "float16", "float16")
    assert conv.backward == "float16"
    assert (layers["bn"].compute, layers["bn"].output) == ("float32", "float16")
    assert (layers["fc1"].compute, layers["fc2"].compute) == ("float16", "float32")
    assert (evidence.master_weight_dtype, evidence.gradient_dtype) == ("float32", "float32")
    assert evidence.scaler_enabled


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("float64", "float64")])
def test_a_full_precision_run_has_no_other_dtype_anywhere(prepared, precision, dtype):
    tf_backend = prepared(tiny_network(), precision=precision)
    batch = tf_backend.put(*a_batch())
    seen = {
        kind
        for layer in tf_backend.evidence(batch).layers.values()
        for kind in (layer.compute, layer.output, layer.backward)
    }
    assert seen == {dtype, None}
    graph = tf_backend._step.get_concrete_function(*batch.result(), poisoned=False).graph
    floats = {
        tensor.dtype.name
        for operation in graph.get_operations()
        for tensor in operation.outputs
        if tensor.dtype.is_floating
    }
    assert floats == {dtype}


def test_a_step_is_traced_once_and_the_poisoned_one_apart(prepared):
    tf_backend = prepared(tiny_network())
    batch = tf_backend.put(*a_batch())
    tf_backend.evidence(batch)
    for _ in range(3):
        tf_backend.train_step(batch)
    assert tf_backend._step.experimental_get_tracing_count() == 1


def test_without_xla_the_step_is_a_plain_graph(prepared):
    prepared(tiny_network(), compile="off")
    assert prepared.in_force.compile == "graph"
    assert prepared.in_force.layout == "nhwc"
    assert prepared.in_force.tf32 is None


@pytest.mark.parametrize(
    ("details", "in_force"),
    [
        # Turing has none, whatever the flag; Ampere and Hopper have it.
        ({"compute_capability": (7, 5)}, None),
        ({"compute_capability": (8, 0)}, True),
        ({"compute_capability": (9, 0)}, True),
        ({}, None),
    ],
)
def test_tf32_is_in_force_only_where_the_gpu_has_it(
    backend, monkeypatch: pytest.MonkeyPatch, details: dict, in_force: bool | None
):
    from backends.tensorflow_keras import backend as adapter

    experimental = backend._tf.config.experimental
    monkeypatch.setattr(adapter, "choose_gpu", lambda *_: SimpleNamespace(name="GPU:0"))
    monkeypatch.setattr(adapter, "configure", lambda *_: None)
    monkeypatch.setattr(adapter, "place", lambda _: "/CPU:0")
    monkeypatch.setattr(adapter, "gpu_uuid", lambda _: None)
    monkeypatch.setattr(experimental, "get_device_details", lambda _: details)
    monkeypatch.setattr(experimental, "reset_memory_stats", lambda _: None)
    run = RunConfig(backend="tensorflow", steps=1, compile="off", tf32=True)

    assert backend.open(run).tf32 is in_force


def test_a_run_on_the_cpu_is_a_plain_graph_beside_a_gpu_too(prepared, backend, monkeypatch):
    tf, keras = backend._tf, backend._keras
    beside = SimpleNamespace(device_type="GPU", name="/physical_device:GPU:0")

    def devices(kind=None):
        # The adapter asks by kind, to let its memory grow; only Keras sees this one.
        return [] if kind == "GPU" else [SimpleNamespace(device_type="CPU"), beside]

    monkeypatch.setattr(tf.config, "list_physical_devices", devices)
    assert keras.Sequential([keras.layers.Dense(1)]).jit_compile
    prepared(tiny_network(), compile="default", device="cpu")
    assert prepared.in_force.compile == "graph"
    prepared(tiny_network(blocks=False), compile="on", device="cpu")
    assert prepared.in_force.compile == "xla"


def test_xla_computes_the_same_step_and_evaluation_in_either_layout(prepared):
    """XLA is what makes NCHW possible on a CPU, so the layouts are compared here."""
    losses, logits = {}, {}
    for case in (("off", "nhwc"), ("on", "nhwc"), ("on", "nchw")):
        compiler, layout = case
        tf_backend = prepared(tiny_network(blocks=False), compile=compiler, layout=layout)
        batch = tf_backend.put(*a_batch())
        for _ in range(3):
            tf_backend.train_step(batch)
        losses[case] = [step.loss for step in tf_backend.take_steps()]
        logits[case] = tf_backend.evaluate(batch)
    assert (prepared.in_force.compile, prepared.in_force.layout) == ("xla", "nchw")
    plain = ("off", "nhwc")
    for case in losses:
        assert losses[case] == pytest.approx(losses[plain], rel=1e-10)
        assert relative(logits[case], logits[plain]) < 1e-6


def test_nchw_is_refused_on_a_cpu_with_the_remedy(prepared):
    with pytest.raises(Unsupported, match="--layout nhwc"):
        prepared(tiny_network(), layout="nchw")


def test_an_absent_gpu_is_refused_with_the_remedy(backend):
    if backend._tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    run = RunConfig(backend="tensorflow", steps=1, device="cuda")
    with pytest.raises(Unsupported, match=r"tensorflow\[and-cuda\]"):
        backend.open(run)


def test_a_gpu_is_known_to_the_driver_by_its_number(monkeypatch):
    from backends.tensorflow_keras import device

    monkeypatch.setattr(device, "cuda_uuid", lambda ordinal: f"GPU-of-{ordinal}")
    gpu: Any = SimpleNamespace(name="/physical_device:GPU:11")
    assert device.gpu_uuid(gpu) == "GPU-of-11"


def test_the_cpu_can_do_every_dtype_or_says_why_not(backend):
    for capability in backend.capabilities()["cpu"].values():
        assert capability.available or capability.reason
    assert backend.capabilities()["cpu"]["float32"].available


@pytest.mark.parametrize(("device_type", "calls"), [("cpu", []), ("cuda", ["GPU:0"])])
def test_the_peak_begins_anew(prepared, monkeypatch, device_type: str, calls: list[str]):
    tf_backend, seen = prepared(tiny_network()), []
    experimental = tf_backend._tf.config.experimental
    monkeypatch.setattr(experimental, "reset_memory_stats", seen.append)
    monkeypatch.setattr(tf_backend, "_device_type", device_type)

    tf_backend.reset_peaks(release_unused=True)

    assert seen == calls


def test_memory_of_the_cpu_is_unknown(prepared):
    assert prepared(tiny_network()).memory().allocated_peak_bytes is None


def test_running_out_of_memory_is_recognised(backend):
    errors = backend._tf.errors
    assert backend.is_out_of_memory(errors.ResourceExhaustedError(None, None, "OOM"))
    assert backend.is_out_of_memory(errors.InternalError(None, None, "Out of memory: 3 bytes"))
    assert backend.is_out_of_memory(MemoryError())
    for told in (
        "Failed copying input tensor from CPU:0 to GPU:0: Dst tensor is not initialized.",
        "Failed to create cuDNN handle: CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cublasCreate: CUBLAS_STATUS_ALLOC_FAILED",
    ):
        assert backend.is_out_of_memory(errors.InternalError(None, None, told))
    assert not backend.is_out_of_memory(
        errors.InternalError(None, None, "CUDNN_STATUS_EXECUTION_FAILED")
    )
    assert not backend.is_out_of_memory(ValueError("Dst tensor is not initialized."))
    assert not backend.is_out_of_memory(errors.InvalidArgumentError(None, None, "shapes differ"))
