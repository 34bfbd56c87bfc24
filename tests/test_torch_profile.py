"""PyTorch's profile: what it counts, and that training goes on as if it had not been taken."""

from types import SimpleNamespace
from typing import Any

import pytest
from fake_runs import VirtualTime
from profiled import assert_same_tensors, batch_of, built, trace_events

from backends.pytorch.backend import TorchBackend
from backends.pytorch.profile import kernel_spans, operation_kind
from harness import profiling
from harness.profiling import Share, Span

pytestmark = pytest.mark.torch

THREADS = 2
PHASES = ["input", "forward", "backward", "optimizer"]


def opened(**changes: Any) -> TorchBackend:
    return built(TorchBackend(), **{"lr": 1e-4, "threads": THREADS} | changes)


@pytest.mark.parametrize("model", ["lenet", "resnet18"])
def test_a_float32_step_is_accounted_for_kind_by_kind(model: str):
    backend = opened(model=model)

    profile = backend.profile(batch_of(backend, 0), steps=2, trace=None)

    kinds = profile.operations_s
    expected = {"convolution", "matrix product", "pooling", "elementwise", "optimizer"}
    assert expected | ({"normalization"} if model == "resnet18" else set()) <= kinds.keys()
    assert all(seconds >= 0 for seconds in kinds.values())
    assert kinds["convolution"] > 0
    # Self times of one thread: no more than the step.
    assert sum(kinds.values()) < 1.05 * profile.step_s
    assert profile.phases_s is not None
    assert list(profile.phases_s) == PHASES
    assert min(profile.phases_s.values()) > 0
    assert (profile.steps, profile.device_busy_s) == (2, None)
    assert profile.kernels is not None
    assert profile.kernels > 20


def test_a_mixed_step_has_casts_and_an_optimizer_with_its_scaler():
    backend = opened(precision="amp")

    kinds = backend.profile(batch_of(backend, 0), steps=1, trace=None).operations_s

    assert min(kinds[kind] for kind in ("convolution", "cast", "optimizer")) > 0


@pytest.mark.parametrize("changes", [{}, {"precision": "amp"}, {"optimizer": "sgd"}])
def test_training_goes_on_as_if_no_profile_had_been_taken(changes: dict[str, Any]):
    profiled, plain = opened(**changes), opened(**changes)
    for backend in (profiled, plain):
        backend.train_step(batch_of(backend, 1))
        if changes.get("precision") == "amp":  # where an infinite gradient is survived
            backend.poison_next_gradient()
    before = profiled.state()
    profiled.profile(batch_of(profiled, 2), steps=1, trace=None)
    after = profiled.state()

    for backend in (profiled, plain):
        for seed in (3, 4):
            backend.train_step(batch_of(backend, seed))

    assert_same_tensors(before, after)
    assert (before.loss_scale, before.optimizer_steps) == (after.loss_scale, after.optimizer_steps)
    # The step before the profile is still to be taken, and the poison was for the one after it.
    results = profiled.take_steps()
    assert len(results) == 3
    assert results == plain.take_steps()


def test_moving_the_batch_to_the_device_counts_as_input(monkeypatch: pytest.MonkeyPatch):
    # Time stands still but while a batch is on its way.
    time, backend = VirtualTime(), opened()
    batch, put = batch_of(backend, 0), backend.put
    monkeypatch.setattr(profiling, "time", time)

    def slow_put(images: Any, labels: Any) -> Any:
        time.sleep(3)
        return put(images, labels)

    monkeypatch.setattr(backend, "put", slow_put)

    profile = backend.profile(batch, steps=2, trace=None)

    assert profile.phases_s == {"input": 3, "forward": 0, "backward": 0, "optimizer": 0}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_trace_names_the_operations(tmp_path, name: str):
    backend = opened()
    trace = tmp_path / "traces" / name

    backend.profile(batch_of(backend, 0), steps=1, trace=trace)

    names = {event.get("name") for event in trace_events(trace)}
    assert {"aten::convolution_backward", "aten::addmm"} <= names


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # native_functions.yaml: convolution and its backward, on the CPU and with cuDNN
        ("aten::conv2d", "convolution"),
        ("aten::convolution", "convolution"),
        ("aten::_convolution", "convolution"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::cudnn_convolution", "convolution"),
        ("aten::_slow_conv2d_forward", "convolution"),
        ("aten::_slow_conv2d_backward", "convolution"),
        ("aten::thnn_conv2d", "convolution"),
        ("aten::_conv_depthwise2d", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("aten::mkldnn_convolution_backward", "convolution"),
        ("aten::linear", "matrix product"),
        ("aten::addmm", "matrix product"),
        ("aten::mm", "matrix product"),
        ("aten::native_batch_norm", "normalization"),
        ("aten::cudnn_batch_norm_backward", "normalization"),
        ("aten::max_pool2d_with_indices_backward", "pooling"),
        ("aten::adaptive_avg_pool2d", "pooling"),
        ("aten::relu", "elementwise"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::add_", "elementwise"),
        ("aten::_log_softmax_backward_data", "elementwise"),
        ("aten::nll_loss_forward", "elementwise"),
        ("aten::mean", "elementwise"),
        ("aten::_fused_adam_", "optimizer"),
        ("aten::_fused_sgd_", "optimizer"),
        ("aten::_foreach_mul_", "optimizer"),
        ("aten::_amp_foreach_non_finite_check_and_unscale_", "optimizer"),
        ("aten::_amp_update_scale_", "optimizer"),
        ("Optimizer.step#Adam.step", "optimizer"),
        ("aten::clone", "copy"),
        ("triton_poi_fused_relu_0", "fused"),
        ("Torch-Compiled Region: 0/0", "fused"),
        ("aten::empty_strided", "other"),
        ("aten::view", "other"),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", "other"),
    ],
)
def test_an_operation_is_told_by_its_name(name: str, kind: str):
    assert operation_kind(name, []) == kind


def test_a_copy_between_dtypes_is_a_cast():
    assert operation_kind("aten::copy_", ["c10::Half", "float", ""]) == "cast"
    assert operation_kind("aten::copy_", ["float", "unsigned char", ""]) == "cast"
    assert operation_kind("aten::copy_", ["float", "float", ""]) == "copy"


def test_a_kernel_is_of_the_kind_of_the_operation_that_launched_it():
    def event(name: str, start_ns: int, end_ns: int, own: int, launcher: int):
        values = {"name": name, "start_ns": start_ns, "end_ns": end_ns}
        values |= {"correlation_id": own, "linked_correlation_id": launcher}
        return SimpleNamespace(
            **{key: (lambda value=value: value) for key, value in values.items()}
        )

    operations = [event("aten::cudnn_convolution", 0, 9, 7, 0), event("aten::add_", 9, 12, 8, 0)]
    by_operation = [Share("convolution", 9), Share("elementwise", 3)]
    kernels = [
        event("void cutlass::Kernel<...>", 100, 150, 1, 7),
        event("void at::native::vectorized_elementwise_kernel<...>", 150, 160, 2, 8),
        event("Memcpy HtoD (Pinned -> Device)", 160, 165, 3, 0),
        event("triton_poi_fused_add_0", 165, 170, 4, 0),
    ]

    assert kernel_spans(kernels, operations, by_operation) == [
        Span("device", 100, 150, "convolution"),
        Span("device", 150, 160, "elementwise"),
        Span("device", 160, 165, "copy"),
        Span("device", 165, 170, "fused"),
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_on_a_gpu_the_kernels_are_timed(precision: str):
    backend = opened(device="cuda", precision=precision, model="resnet18")

    profile = backend.profile(batch_of(backend, 0), steps=3, trace=None)

    assert profile.device_busy_s is not None
    assert profile.kernels is not None
    assert 0 < profile.device_busy_s <= 1.05 * profile.step_s
    # One stream computes, so that hardly any kernels overlap.
    assert sum(profile.operations_s.values()) == pytest.approx(profile.device_busy_s, rel=0.2)
    assert {"convolution", "normalization", "optimizer"} <= profile.operations_s.keys()
    assert profile.kernels > 100
