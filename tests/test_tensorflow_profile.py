"""TensorFlow's profile: what it counts, and that training goes on as if it had not been taken."""

from typing import Any

import pytest
from profiled import assert_same_tensors, batch_of, built, trace_events

from backends.tensorflow_keras.profile import HLO_KINDS, kernel_kind, operation_kind
from harness.profiling import kind_of

pytestmark = pytest.mark.tensorflow

THREADS = 2
NORMS = {"bn1", "layer1.0.bn1"}


@pytest.fixture(scope="module")
def backend():
    from backends.tensorflow_keras.backend import TensorFlowBackend

    return TensorFlowBackend()


@pytest.fixture
def opened(backend):
    """A function that opens and builds, and returns the backend."""

    def prepare(**changes: Any):
        return built(backend, **{"threads": THREADS} | changes)

    yield prepare
    backend.close()


def test_a_float32_step_is_accounted_for_kind_by_kind(opened):
    backend = opened(model="resnet18")

    profile = backend.profile(batch_of(backend, 0), steps=2, trace=None)

    kinds = profile.operations_s
    assert {
        "matrix product",
        "normalization",
        "pooling",
        "elementwise",
        "optimizer",
    } <= kinds.keys()
    assert min(kinds.values()) > 0
    assert kinds["convolution"] > 0
    # Operations run on the threads of the graph and on the one that called it.
    assert sum(kinds.values()) < 1.05 * (THREADS + 1) * profile.step_s
    assert profile.phases_s is None
    assert "no phases" in profile.source
    assert (profile.steps, profile.device_busy_s) == (2, None)
    assert profile.kernels is not None
    assert profile.kernels > 100


def test_a_compiled_step_is_told_by_the_names_of_xla(opened):
    backend = opened(compile="on")

    profile = backend.profile(batch_of(backend, 0), steps=2, trace=None)

    kinds = profile.operations_s
    assert {"convolution", "matrix product", "pooling", "fused"} <= kinds.keys()
    assert "other" not in kinds
    assert sum(kinds.values()) < 1.05 * (THREADS + 1) * profile.step_s


def test_a_mixed_step_has_casts_and_an_optimizer_with_its_scaler(opened):
    backend = opened(precision="amp")

    kinds = backend.profile(batch_of(backend, 0), steps=1, trace=None).operations_s

    assert min(kinds[kind] for kind in ("convolution", "cast", "optimizer")) > 0


@pytest.mark.parametrize("changes", [{}, {"precision": "amp"}, {"optimizer": "sgd"}])
def test_training_goes_on_as_if_no_profile_had_been_taken(opened, changes: dict[str, Any]):
    ends = []
    for profiled in (False, True):
        backend = opened(**changes)
        backend.train_step(batch_of(backend, 1))
        if changes.get("precision") == "amp":  # where an infinite gradient is survived
            backend.poison_next_gradient()
        before = backend.state()
        if profiled:
            backend.profile(batch_of(backend, 2), steps=1, trace=None)
        after = backend.state()
        assert_same_tensors(before, after)
        assert (before.loss_scale, before.clean_steps) == (after.loss_scale, after.clean_steps)
        assert before.optimizer_steps == after.optimizer_steps
        for seed in (3, 4):
            backend.train_step(batch_of(backend, seed))
        ends.append(backend.take_steps())

    # The step before the profile is still to be taken, and the poison was for the one after it.
    assert len(ends[0]) == 3
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_trace_is_one_that_a_browser_opens(opened, tmp_path, name: str):
    backend = opened()
    trace = tmp_path / "traces" / name

    backend.profile(batch_of(backend, 0), steps=1, trace=trace)

    events = trace_events(trace)
    spans = [event for event in events if event["ph"] == "X"]
    assert any("Conv2DBackpropFilter" in span["name"] for span in spans)
    assert min(span["ts"] for span in spans) == 0
    assert all(span["dur"] > 0 for span in spans)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(span["pid"], span["tid"]) for span in spans} == named


@pytest.mark.parametrize(
    ("scope", "operation", "kind"),
    [
        # tf.raw_ops, and what oneDNN and grappler put in their place
        ("model/conv1/convolution", "Conv2D", "convolution"),
        ("gradient_tape/model/conv1/Conv2DBackpropInput", "Conv2DBackpropInput", "convolution"),
        ("gradient_tape/model/conv1/Conv2DBackpropFilter", "Conv2DBackpropFilter", "convolution"),
        ("model/conv1/BiasAdd", "_FusedConv2D", "convolution"),
        ("model/conv1/convolution", "_MklNativeFusedConv2D", "convolution"),
        ("model/conv1/convolution", "_MklNativeConv2DBackpropFilter", "convolution"),
        ("model/conv1/depthwise", "DepthwiseConv2dNative", "convolution"),
        ("model/fc/MatMul", "MatMul", "matrix product"),
        ("model/fc/BiasAdd", "_MklNativeFusedMatMul", "matrix product"),
        ("model/bn1/FusedBatchNormV3", "FusedBatchNormV3", "normalization"),
        ("gradient_tape/model/bn1/g", "FusedBatchNormGradV3", "normalization"),
        ("model_1/layer1.0.bn1_1/moments/SquaredDifference", "SquaredDifference", "normalization"),
        ("gradient_tape/model/bn1/batchnorm/mul/Sum", "Sum", "normalization"),
        ("model/bn1/Cast", "Cast", "cast"),
        ("model/pool/MaxPool2d", "MaxPool", "pooling"),
        ("gradient_tape/model/pool/MaxPoolGrad", "_MklNativeMaxPoolGrad", "pooling"),
        ("model/relu/Relu", "Relu", "elementwise"),
        ("gradient_tape/model/relu/ReluGrad", "ReluGrad", "elementwise"),
        ("loss", "SparseSoftmaxCrossEntropyWithLogits", "elementwise"),
        ("model/conv1.pad/Pad", "Pad", "copy"),
        ("transpose", "Transpose", "copy"),
        ("model/conv1/Cast", "Cast", "cast"),
        ("optimizer/adam/sub_77", "Sub", "optimizer"),
        ("optimizer/loss_scale_optimizer/Cast", "Cast", "optimizer"),
        ("ReadVariableOp", "ReadVariableOp", "other"),
    ],
)
def test_an_operation_is_told_by_its_type_and_its_scope(scope: str, operation: str, kind: str):
    assert operation_kind(scope, operation, NORMS) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # openxla.org: operation semantics, and the names that its passes give
        ("convolution.8", "convolution"),
        ("cudnn-conv-bw-filter.3", "convolution"),
        ("dot.4", "matrix product"),
        ("MatMul.0", "matrix product"),
        ("cublas-gemm.1", "matrix product"),
        ("gemm_fusion_dot.2", "matrix product"),
        ("wrapped_reduce-window.9", "pooling"),
        ("select-and-scatter.1", "pooling"),
        ("batch-norm-training.1", "normalization"),
        ("wrapped_convert", "cast"),
        ("convert_convert_fusion.3", "cast"),
        ("copy.59", "copy"),
        ("transpose_copy_fusion.4", "copy"),
        ("wrapped_broadcast.1", "copy"),
        ("add_select_fusion.6", "fused"),
        ("convert_reduce_fusion.2", "fused"),
        ("wrapped_iota.7", "elementwise"),
        ("add.3", "elementwise"),
        ("tuple.1", "other"),
    ],
)
def test_an_operation_of_xla_is_told_by_its_name(name: str, kind: str):
    assert kind_of(name, HLO_KINDS) == kind


def test_a_kernel_is_told_by_the_operation_that_the_profiler_writes_beside_it():
    implicit = {"tf_op": "gradient_tape/model/conv1/Conv2DBackpropInput:Conv2DBackpropInput"}
    assert kernel_kind("sm80_xmma_dgrad", implicit, NORMS) == "convolution"
    assert kernel_kind("loop", {"tf_op": "optimizer/adam/sub:Sub"}, NORMS) == "optimizer"
    compiled = {"tf_op": "cluster", "hlo_op": "loop_convert_fusion.1", "hlo_module": "step"}
    assert kernel_kind("loop_convert_fusion_1", compiled, NORMS) == "cast"
    assert kernel_kind("MemcpyH2D", {}, NORMS) == "copy"
    assert kernel_kind("unknown", {}, NORMS) == "other"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_on_a_gpu_the_kernels_are_timed(opened, precision: str):
    backend = opened(device="cuda", precision=precision, model="resnet18")

    profile = backend.profile(batch_of(backend, 0), steps=3, trace=None)

    assert profile.device_busy_s is not None
    assert 0 < profile.device_busy_s <= 1.05 * profile.step_s
    assert {"convolution", "normalization", "optimizer"} <= profile.operations_s.keys()
    assert profile.kernels
