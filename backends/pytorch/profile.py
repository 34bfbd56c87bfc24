"""Where PyTorch's time goes: operations and kernels recorded by ``torch.profiler``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.profiling import (
    Kind,
    Phase,
    Share,
    Span,
    kind_of,
    shares,
    step_profile,
    timed_phases,
    timed_steps,
)
from harness.protocol import StepProfile

# Names of ATen operations and annotations; the first that fits counts.
KINDS: tuple[tuple[str, Kind], ...] = (
    (r"^Optimizer\.|^aten::_(fused_|foreach_|amp_)", "optimizer"),
    (r"^triton_|_fused_|^graph_\d+_cpp|^Torch-Compiled Region|^## Call CompiledFxGraph", "fused"),
    (r"^aten::.*conv(olution|\d|_|$)", "convolution"),
    (
        r"^aten::(addmm|mm|bmm|baddbmm|addmv|mv|dot|matmul|_?linear|_addmm_activation)",
        "matrix product",
    ),
    (r"^aten::.*(batch|layer|group|instance)_norm", "normalization"),
    (r"^aten::.*pool", "pooling"),
    (r"^aten::(copy_|clone|contiguous|_?to$|_to_copy|cat|stack|pin_memory|_pin_memory)", "copy"),
    (
        r"^aten::(_?(log_)?softmax|nll_loss|cross_entropy|relu|clamp|threshold|add|sub|mul|div|sum"
        r"|mean|sqrt|rsqrt|pow|exp|log|neg|reciprocal|fill_|zero_|lerp|where|eq|ne|gt|lt|isinf"
        r"|isfinite|linalg_vector_norm|norm|min|max|abs|sigmoid|tanh|gelu)(_|$|\b)",
        "elementwise",
    ),
)
# CUDA kernels that no operation launched: a captured graph's, or those of a compiler.
KERNEL_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"^triton_", "fused"),
    (r"^Mem(cpy|set)", "copy"),
    (r"conv|fprop|dgrad|wgrad|cudnn.*winograd", "convolution"),
    (r"gemm|cublas|cutlass", "matrix product"),
    (r"batch_norm|batchnorm|bn_(fw|bw)", "normalization"),
    (r"pool", "pooling"),
    (r"multi_tensor_apply|FusedAdam|FusedSgd", "optimizer"),
    (r"elementwise|reduce_kernel|softmax|nll_loss", "elementwise"),
)


def profile_steps(
    torch: ModuleType,
    train_step: Callable[[], None],
    phases: Callable[[], Iterator[Phase]],
    synchronize: Callable[[], None],
    *,
    on_cuda: bool,
    steps: int,
    trace: Path | None,
) -> StepProfile:
    """Run ``steps`` steps under the profiler, then as many without it, phase by phase."""
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU, *([activity.CUDA] if on_cuda else [])]
    synchronize()
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiled:
        step_s = timed_steps(train_step, synchronize, steps=steps)
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        profiled.export_chrome_trace(str(trace))
    events = profiled.profiler.kineto_results.events()
    device_type = torch.autograd.DeviceType
    # What a kernel launch or another runtime call took lies within its operation.
    operations = [
        event
        for event in events
        if event.device_type() == device_type.CPU
        and not event.is_async()
        and not event.linked_correlation_id()
    ]
    by_operation = shares([_span(operation) for operation in operations])
    kernels = None
    if on_cuda:
        on_device = [
            event
            for event in events
            if event.device_type() == device_type.CUDA and not event.is_user_annotation()
        ]
        kernels = kernel_spans(on_device, operations, by_operation)
    return step_profile(
        "torch.profiler",
        steps=steps,
        step_s=step_s,
        phases_s=timed_phases(phases, steps=steps, synchronize=synchronize),
        operations=by_operation,
        operation_count=_outermost(operations),
        kernels=kernels,
    )


def operation_kind(name: str, dtypes: list[str]) -> Kind:
    """Kind of an ATen operation with operands of ``dtypes``, as the profiler writes both."""
    # A cast and a copy are the same operation; only the operands (to, from) tell.
    if name == "aten::copy_" and len(set(dtypes[:2])) == 2:
        return "cast"
    return kind_of(name, KINDS)


def kernel_spans(
    on_device: Sequence[Any], operations: Sequence[Any], by_operation: Sequence[Share]
) -> list[Span]:
    """Each kernel or copy on the GPU with the kind of the operation it is of.

    All are events of the profiler; ``by_operation`` belongs to ``operations``, one to one.
    """
    launched_by: dict[int, Kind] = {
        operation.correlation_id(): share.kind
        for operation, share in zip(operations, by_operation, strict=True)
    }
    return [
        Span(
            "device",
            event.start_ns(),
            event.end_ns(),
            launched_by.get(event.linked_correlation_id()) or kind_of(event.name(), KERNEL_KINDS),
        )
        for event in on_device
    ]


def _span(event: Any) -> Span:
    kind = operation_kind(event.name(), event.dtypes())
    return Span(event.start_thread_id(), event.start_ns(), event.end_ns(), kind)


def _outermost(operations: list[Any]) -> int:
    """Operations that no other one called."""
    called = [operation for operation in operations if operation.name().startswith("aten::")]
    covered_to: dict[int, int] = {}
    count = 0
    for operation in sorted(called, key=lambda each: (each.start_ns(), -each.end_ns())):
        thread = operation.start_thread_id()
        if operation.start_ns() >= covered_to.get(thread, 0):
            count += 1
            covered_to[thread] = operation.end_ns()
    return count
