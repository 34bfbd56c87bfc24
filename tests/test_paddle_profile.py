"""Paddle's profile: what it counts, and that training goes on as if it had not been taken."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from profiled import assert_same_tensors, batch_of, built, trace_events

from backends.paddlepaddle.backend import PaddleBackend
from backends.paddlepaddle.profile import KINDS, Recorded, operation_name
from harness.profiling import kind_of, shares

pytestmark = pytest.mark.paddle

PHASES = ["input", "forward", "backward", "optimizer"]


def opened(**changes: Any) -> PaddleBackend:
    return built(PaddleBackend(), **{"lr": 1e-4, "threads": 1} | changes)


@pytest.mark.parametrize("model", ["lenet", "resnet18"])
def test_a_float32_step_is_accounted_for_kind_by_kind(model: str):
    backend = opened(model=model)

    profile = backend.profile(batch_of(backend, 0), steps=2, trace=None)

    kinds = profile.operations_s
    expected = {"convolution", "matrix product", "pooling", "elementwise", "optimizer", "cast"}
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


def test_the_operations_of_a_compiled_model_are_told_apart_too():
    backend = opened(compile="on")

    profile = backend.profile(batch_of(backend, 0), steps=2, trace=None)

    assert {"convolution", "matrix product", "pooling", "optimizer"} <= profile.operations_s.keys()
    assert profile.operations_s.get("other", 0.0) < profile.operations_s["convolution"]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_goes_on_as_if_no_profile_had_been_taken(optimizer: str):
    profiled, plain = opened(optimizer=optimizer), opened(optimizer=optimizer)
    for backend in (profiled, plain):
        backend.train_step(batch_of(backend, 1))
    before = profiled.state()
    profiled.profile(batch_of(profiled, 2), steps=1, trace=None)
    after = profiled.state()

    for backend in (profiled, plain):
        for seed in (3, 4):
            backend.train_step(batch_of(backend, seed))

    assert_same_tensors(before, after)
    assert before.optimizer_steps == after.optimizer_steps
    # The step before the profile is still to be taken.
    results = profiled.take_steps()
    assert len(results) == 3
    assert results == plain.take_steps()


def test_a_gradient_to_be_poisoned_is_that_of_the_step_after_the_profile():
    backend = opened()
    backend.poison_next_gradient()

    backend.profile(batch_of(backend, 2), steps=1, trace=None)

    assert all(np.isfinite(values).all() for values in backend.state().tensors.values())
    backend.train_step(batch_of(backend, 3))
    assert not np.isfinite(backend.state().tensors["fc2.bias"]).all()


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_trace_names_the_operations_and_nothing_else_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(tmp_path)
    backend = opened()
    trace = tmp_path / "traces" / name

    backend.profile(batch_of(backend, 0), steps=1, trace=trace)

    assert any("conv2d_grad" in event.get("name", "") for event in trace_events(trace))
    assert [path.name for path in tmp_path.rglob("*")] == ["traces", name]


@pytest.mark.parametrize(
    ("recorded", "operation", "kind"),
    [
        # paddle/phi/ops/yaml: the operations; paddle/fluid/eager: how their events are called
        ("conv2d dygraph", "conv2d", "convolution"),
        ("conv2d kernel launch", "conv2d", "convolution"),
        ("conv2d_grad kernel launch", "conv2d_grad", "convolution"),
        ("Local_Conv2dGradNodeFinal", "conv2d_grad", "convolution"),
        ("depthwise_conv2d_grad kernel launch", "depthwise_conv2d_grad", "convolution"),
        ("pd_op.conv2d_grad", "conv2d_grad", "convolution"),
        ("matmul kernel launch", "matmul", "matrix product"),
        ("Global_MatmulGradNode", "matmul_grad", "matrix product"),
        ("batch_norm infer_meta", "batch_norm", "normalization"),
        ("Local_BatchNormGradNode", "batch_norm_grad", "normalization"),
        ("pool2d_grad kernel launch", "pool2d_grad", "pooling"),
        ("cast dygraph", "cast", "cast"),
        ("transpose dygraph", "transpose", "copy"),
        ("relu_grad kernel launch", "relu_grad", "elementwise"),
        ("divide_ dygraph", "divide", "elementwise"),
        ("pd_op.add_", "add_", "elementwise"),
        ("cross_entropy_with_softmax node_creation", "cross_entropy_with_softmax", "elementwise"),
        ("merged_adam_ dygraph", "merged_adam", "optimizer"),
        ("merged_momentum kernel launch", "merged_momentum", "optimizer"),
        ("check_finite_and_unscale_ dygraph", "check_finite_and_unscale", "optimizer"),
        ("update_loss_scaling kernel launch", "update_loss_scaling", "optimizer"),
        ("Global_GradNodeAccumulation", "Global_GradNodeAccumulation", "other"),
    ],
)
def test_an_operation_is_told_by_its_name(recorded: str, operation: str, kind: str):
    assert operation_name(recorded) == operation
    assert kind_of(operation, KINDS) == kind


class TYPES:
    """Stands in for the enumeration of Paddle's event types."""

    Operator, OperatorInner, DygraphKernelLaunch, StaticKernelLaunch = range(4)
    Optimization, UserDefined, CudaRuntime, Kernel = range(4, 8)


def test_a_kernel_is_of_the_kind_of_the_operation_around_its_launch():
    def node(name: str, kind: int, start_ns: int, end_ns: int, *children: Any, calls: Any = ()):
        values = {"name": name, "type": kind, "start_ns": start_ns, "end_ns": end_ns}
        return SimpleNamespace(**values, children_node=[*children], runtime_node=[*calls])

    def launch(*started: Any):
        return SimpleNamespace(device_node=[*started])

    gemm = node("implicit_gemm", TYPES.Kernel, 100, 170)
    fill = node("memset", TYPES.Kernel, 170, 171)
    adam = node("MultiTensorAdam", TYPES.Kernel, 180, 190)
    kernel = node("conv2d kernel launch", TYPES.DygraphKernelLaunch, 2, 8, calls=[launch(gemm)])
    convolution = node("conv2d dygraph", TYPES.Operator, 0, 9, kernel)
    update = node("Optimization Step", TYPES.Optimization, 10, 20, calls=[launch(adam)])
    root = node("root", TYPES.UserDefined, 0, 99, convolution, update, calls=[launch(fill)])
    recorded = Recorded(TYPES)
    recorded.add(root, thread=1)

    kinds = [share.kind for share in shares(recorded.spans)]
    launched = {
        started.name: None if launcher is None else kinds[launcher]
        for launcher, started in recorded.on_device
    }

    assert launched == {
        "implicit_gemm": "convolution",
        "MultiTensorAdam": "optimizer",
        "memset": None,
    }
    assert recorded.launches == 1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_on_a_gpu_the_kernels_are_timed(precision: str):
    backend = opened(device="cuda", precision=precision, model="resnet18")

    profile = backend.profile(batch_of(backend, 0), steps=3, trace=None)

    assert profile.device_busy_s is not None
    assert 0 < profile.device_busy_s <= 1.05 * profile.step_s
    assert {"convolution", "normalization", "optimizer"} <= profile.operations_s.keys()
    assert profile.kernels
