"""Where Paddle's time goes: operations and kernels recorded by ``paddle.profiler``."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.profiling import (
    Kind,
    Phase,
    Span,
    kind_of,
    open_trace,
    shares,
    step_profile,
    timed_phases,
    timed_steps,
)
from harness.protocol import StepProfile

# Names of Paddle's operations; the first that fits counts.
KINDS: tuple[tuple[str, Kind], ...] = (
    (
        r"^(merged_|fused_)?(adamw?|momentum|sgd)|check_finite|update_loss_scal|clip_by_norm",
        "optimizer",
    ),
    (r"conv\d", "convolution"),
    (r"^(matmul|mm|bmm|addmm|linear|fused_gemm|fc)(_|$)", "matrix product"),
    (r"(batch|layer|group|instance)_norm", "normalization"),
    (r"pool", "pooling"),
    (r"^(cast|amp_cast)", "cast"),
    (
        r"^(memcpy|copy|assign|contiguous|transpose|reshape|flatten|squeeze|unsqueeze|concat|split"
        r"|share_data|trans_layout)",
        "copy",
    ),
    (
        r"^(add|subtract|multiply|divide|elementwise|relu|softmax|cross_entropy|mean|sum|scale|lerp"
        r"|sqrt|square|rsqrt|pow|exp|log|clip|full|not_equal|equal|squared_l2_norm|where|isfinite)",
        "elementwise",
    ),
    (r"^(cinn|fusion)_|_fused_|^fn_", "fused"),
)
# What no operation started.
KERNEL_KINDS: tuple[tuple[str, Kind], ...] = ((r"(?i)^mem(cpy|set)", "copy"),)


def profile_steps(
    paddle: ModuleType,
    train_step: Callable[[], None],
    phases: Callable[[], Iterator[Phase]],
    synchronize: Callable[[], None],
    *,
    on_cuda: bool,
    steps: int,
    trace: Path | None,
) -> StepProfile:
    """Run ``steps`` steps under the profiler, then as many without it, phase by phase."""
    target = paddle.profiler.ProfilerTarget
    profiler = paddle.profiler.Profiler(
        targets=[target.CPU, *([target.GPU] if on_cuda else [])],
        on_trace_ready=lambda _: None,  # unless told otherwise it writes into the working folder
    )
    synchronize()
    profiler.start()
    step_s = timed_steps(train_step, synchronize, steps=steps)
    profiler.stop()
    if trace is not None:
        _keep(profiler, trace)
    recorded = Recorded(paddle.base.core.TracerEventType)
    for thread, root in profiler.profiler_result.get_data().items():
        recorded.add(root, thread)
    operations = shares(recorded.spans)
    kernels = None
    if on_cuda:
        kernels = [
            Span(
                "device",
                started.start_ns,
                started.end_ns,
                kind_of(started.name, KERNEL_KINDS) if by is None else operations[by].kind,
            )
            for by, started in recorded.on_device
        ]
    return step_profile(
        "paddle.profiler",
        steps=steps,
        step_s=step_s,
        phases_s=timed_phases(phases, steps=steps, synchronize=synchronize),
        operations=operations,
        operation_count=recorded.launches,
        kernels=kernels,
    )


def operation_name(recorded: str) -> str:
    """Paddle's name of the operation that a host event belongs to.

    ``conv2d dygraph``, ``conv2d kernel launch`` and ``pd_op.conv2d`` are of ``conv2d``;
    ``Local_Conv2dGradNodeFinal`` is of ``conv2d_grad``.
    """
    node = re.fullmatch(r"(?:Local|Global)_(\w+?)GradNode(?:Final)?", recorded)
    if node is not None:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]).lower() + "_grad"
    return re.sub(r"^pd_op\.|_? (dygraph|kernel launch|infer_meta|node_creation)$", "", recorded)


class Recorded:
    """The operations of a recorded tree, and what they started on the device."""

    def __init__(self, types: Any) -> None:
        self._launches = (types.DygraphKernelLaunch, types.StaticKernelLaunch)
        self._operations = (types.Operator, types.OperatorInner, *self._launches)
        self._optimization = types.Optimization
        self.spans: list[Span] = []
        self.launches = 0
        self.on_device: list[tuple[int | None, Any]] = []
        """Index of the launching span, if any, and the kernel or copy."""

    def add(self, node: Any, thread: int, within: int | None = None) -> None:
        """Add ``node`` and all inside; ``within``: index of the span around it."""
        # The gradient node of a compiled model only waits for the operations of its program.
        if node.type == self._optimization or (
            node.type in self._operations and "Dy2St" not in node.name
        ):
            within, own = len(self.spans), kind_of(operation_name(node.name), KINDS)
            kind = "optimizer" if node.type == self._optimization else own
            self.spans.append(Span(thread, node.start_ns, node.end_ns, kind))
            self.launches += node.type in self._launches
        for call in node.runtime_node:
            self.on_device += [(within, started) for started in call.device_node]
        for child in node.children_node:
            self.add(child, thread, within)


def _keep(profiler: Any, trace: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "trace.json")
        profiler.export(str(written), format="json")
        with written.open("rb") as source, open_trace(trace) as target:
            shutil.copyfileobj(source, target)
