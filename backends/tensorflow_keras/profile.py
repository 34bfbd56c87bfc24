"""Where TensorFlow's time goes: operations and kernels recorded by ``tf.profiler``."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from backends.tensorflow_keras.evidence import layer_scope
from harness.profiling import (
    Kind,
    Span,
    kind_of,
    open_trace,
    shares,
    step_profile,
    timed_steps,
)
from harness.protocol import StepProfile

OPTIMIZER_SCOPE = "optimizer"
"""Name scope in which a training step updates the parameters."""

# Types of operations of the graph; the first that fits counts.
KINDS: tuple[tuple[str, Kind], ...] = (
    (r"Conv\dD|DepthwiseConv", "convolution"),
    (r"MatMul|Einsum", "matrix product"),
    (r"BatchNorm|LayerNorm", "normalization"),
    (r"(Max|Avg)Pool", "pooling"),
    (r"^(Resource)?Apply", "optimizer"),
    (r"^(_Mkl)?Cast$", "cast"),
    (
        r"^(_Mkl)?(Pad|PadV2|MirrorPad|Transpose|Concat|ConcatV2|Slice|StridedSlice|Split|Tile|Pack"
        r"|Unpack|GatherV2|BroadcastTo|Copy|Fill|_Send|_Recv|_HostSend|_HostRecv|ToTf)$",
        "copy",
    ),
    (
        r"^_*(Mkl|MklNative|Fused)?(Add|AddV2|AddN|Sub|Mul|Div|RealDiv|Square|SquaredDifference|Sqrt"
        r"|Rsqrt|RsqrtGrad|SqrtGrad|Pow|Exp|Log|Neg|Maximum|Minimum|Select|SelectV2|Relu|ReluGrad"
        r"|BiasAdd|BiasAddGrad|BiasAddV1|Softmax|LogSoftmax|Sum|Mean|Max|Min|All|Any|IsFinite|L2Loss"
        r"|Reciprocal|Sigmoid|Tanh|(Sparse)?SoftmaxCrossEntropyWithLogits"
        r"|Assign(Add|Sub)?VariableOp)$",
        "elementwise",
    ),
)
# Names of XLA's operations (HLO). A fusion is named by what it is made of.
HLO_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"convolution|cudnn[-_]conv|onednn[-_$]*conv", "convolution"),
    (r"MatMul|(^|_)dot|gemm", "matrix product"),
    (r"batch-norm|layer-norm|cudnn[-_]norm", "normalization"),
    (r"reduce-window|select-and-scatter|(Max|Avg)Pool", "pooling"),
    (r"^(wrapped_|loop_)?(convert_?)+(fusion)?(\.|$)", "cast"),
    (
        r"^(wrapped_|loop_|input_)?((copy|transpose|bitcast|broadcast|concatenate|pad|slice|reshape"
        r"|dynamic-slice|dynamic-update-slice)(-start|-done)?_?)+(fusion)?(\.|$)",
        "copy",
    ),
    (r"fusion|^fused", "fused"),
    (
        r"^(wrapped_)?(add|subtract|multiply|divide|maximum|minimum|select|compare|reduce|rsqrt|sqrt"
        r"|power|exponential|log|negate|scatter|iota|is-finite|and|or)(\.|$)",
        "elementwise",
    ),
)
# What lies around the operations of a graph or a compiled program: it waits for them.
_CALLS = re.compile(r"^(__\w+|\w*PartitionedCall|If|While|Case|_?Xla\w+)$")


class _Event(NamedTuple):
    """One event of the profiler's trace."""

    track: tuple[str, int]
    """Plane (host or device) and line (thread or stream)."""
    line: str
    """Name of the line."""
    name: str
    type: str
    """Type of the operation of the graph; empty where it is none."""
    start_ns: int
    end_ns: int
    details: dict[str, str]


def profile_steps(
    tf: ModuleType,
    train_step: Callable[[], None],
    synchronize: Callable[[], None],
    *,
    batch_norms: set[str],
    on_cuda: bool,
    steps: int,
    trace: Path | None,
) -> StepProfile:
    """Run ``steps`` steps under the profiler; ``batch_norms`` are the names of those layers."""
    synchronize()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        step_s = timed_steps(train_step, synchronize, steps=steps)
        tf.profiler.experimental.stop()
        (recorded,) = Path(folder).rglob("*.xplane.pb")
        events = list(_read(recorded))
    if trace is not None:
        _write_trace(events, trace)
    spans = [
        Span(event.track, event.start_ns, event.end_ns, kind)
        for event in events
        if (kind := _host_kind(event, batch_norms)) is not None
    ]
    kernels = None
    if on_cuda:
        kernels = [
            Span(
                event.track,
                event.start_ns,
                event.end_ns,
                kernel_kind(event.name, event.details, batch_norms),
            )
            for event in events
            if event.track[0].startswith("/device:GPU") and event.line.startswith("Stream")
        ]
    return step_profile(
        "tf.profiler",
        steps=steps,
        step_s=step_s,
        phases_s=None,
        operations=shares(spans),
        operation_count=len(spans),
        kernels=kernels,
    )


def operation_kind(scope: str, type_: str, batch_norms: set[str]) -> Kind:
    """Kind of an operation of the graph, by its name (with scopes) and its type.

    Keras writes BatchNormalization and the optimizers in small operations; the scope tells.
    """
    kind = kind_of(type_, KINDS)
    if OPTIMIZER_SCOPE in scope.split("/"):
        return "optimizer"
    if kind in ("elementwise", "copy") and layer_scope(scope, batch_norms)[0]:
        return "normalization"
    return kind


def kernel_kind(name: str, details: dict[str, str], batch_norms: set[str]) -> Kind:
    """Kind of a kernel or copy on the GPU, by the operation that the profiler says it is of."""
    if "hlo_op" in details:
        return kind_of(details["hlo_op"], HLO_KINDS)
    scope, _, type_ = details.get("tf_op", "").rpartition(":")
    if type_:
        return operation_kind(scope, type_, batch_norms)
    return "copy" if name.lower().startswith(("memcpy", "memset")) else "other"


def _host_kind(event: _Event, batch_norms: set[str]) -> Kind | None:
    if "hlo_op" in event.details:
        return kind_of(event.details["hlo_op"], HLO_KINDS)
    if not event.type or _CALLS.match(event.type):
        return None
    return operation_kind(event.name.rpartition(":")[0], event.type, batch_norms)


def _read(recorded: Path) -> Iterator[_Event]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space: Any = xplane_pb2.XSpace()  # pyright: ignore[reportAttributeAccessIssue]
    space.ParseFromString(recorded.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                if not event.duration_ps:
                    continue
                metadata = plane.event_metadata[event.metadata_id]
                start_ns = line.timestamp_ns + event.offset_ps // 1000
                yield _Event(
                    track=(plane.name, line.id),
                    line=line.name,
                    name=metadata.name,
                    type=metadata.display_name,
                    start_ns=start_ns,
                    end_ns=start_ns + event.duration_ps // 1000,
                    details=_texts(plane, event),
                )


def _texts(plane: Any, event: Any) -> dict[str, str]:
    """The statistics of an event that are texts."""
    texts = {}
    for stat in event.stats:
        text = stat.str_value or (
            plane.stat_metadata[stat.ref_value].name if stat.HasField("ref_value") else ""
        )
        if text:
            texts[plane.stat_metadata[stat.metadata_id].name] = text
    return texts


def _write_trace(events: list[_Event], trace: Path) -> None:
    """Write the trace in the Chrome format: TensorFlow's own needs TensorBoard's plug-in."""
    first_ns = min((event.start_ns for event in events), default=0)
    planes = {plane: i for i, plane in enumerate(dict.fromkeys(e.track[0] for e in events))}
    tracks = {track: i for i, track in enumerate(dict.fromkeys(e.track for e in events))}
    names = {event.track: event.line for event in events}
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": plane}}
        for plane, pid in planes.items()
    ]
    rows += [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": planes[track[0]],
            "tid": tid,
            "args": {"name": names[track]},
        }
        for track, tid in tracks.items()
    ]
    rows += [
        {
            "ph": "X",
            "name": event.name,
            "pid": planes[event.track[0]],
            "tid": tracks[event.track],
            "ts": (event.start_ns - first_ns) / 1e3,
            "dur": (event.end_ns - event.start_ns) / 1e3,
            "args": event.details,
        }
        for event in events
    ]
    with open_trace(trace) as file:
        file.write(json.dumps({"displayTimeUnit": "ms", "traceEvents": rows}).encode())
