"""Where the time of a step goes, from what any framework's profiler records: who ran when.

An adapter gives each recorded operation a kind, by the framework's own names; here their self times
are added up, so that an operation inside another one counts once.
"""

from __future__ import annotations

import gzip
import re
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, cast, get_args

from harness.protocol import StepProfile

Kind = Literal[
    "convolution",
    "matrix product",
    "normalization",
    "pooling",
    "elementwise",
    "optimizer",
    "cast",
    "copy",
    "fused",
    "other",
]
"""Kinds of operations, forward and backward. ``elementwise`` counts reductions and the loss as
well; ``fused`` is what a compiler made of several; ``copy`` moves or rearranges values."""

Phase = Literal["input", "forward", "backward", "optimizer"]

# What runs inside one of these is a part of it.
_WHOLE: frozenset[Kind] = frozenset(
    ("convolution", "matrix product", "normalization", "pooling", "optimizer")
)


class Span(NamedTuple):
    """One operation, or what encloses operations, from begin to end."""

    track: Hashable
    """The thread or stream; spans of one thread lie apart or inside each other."""
    start_ns: int
    end_ns: int
    kind: Kind


class Share(NamedTuple):
    """What a span itself took, without the spans inside."""

    kind: Kind
    """Its own, or that of the operation which it is a part of."""
    self_ns: int


def shares(spans: Sequence[Span]) -> list[Share]:
    """The self time of each of ``spans``, in their order.

    What runs inside a convolution, matrix product, normalization, pooling or optimizer is a part
    of it, whatever its own kind; only a cast stays one, unless the optimizer casts.
    """
    found: list[Share | None] = [None] * len(spans)
    order = sorted(range(len(spans)), key=lambda i: (spans[i].start_ns, -spans[i].end_ns))
    enclosing: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i in order:
        track, start_ns, end_ns, kind = spans[i]
        stack = enclosing[track]
        while stack and spans[stack[-1]].end_ns <= start_ns:
            stack.pop()
        length_ns = end_ns - start_ns
        if stack:
            parent = found[stack[-1]]
            assert parent is not None
            # Clocks of two sources may let an inner span end a little later than the outer one.
            inside_ns = min(end_ns, spans[stack[-1]].end_ns) - start_ns
            found[stack[-1]] = Share(parent.kind, parent.self_ns - inside_ns)
            if parent.kind == "optimizer" or (parent.kind in _WHOLE and kind != "cast"):
                kind = parent.kind
        found[i] = Share(kind, length_ns)
        stack.append(i)
    return [share for share in found if share is not None]


def seconds_by_kind(parts: Iterable[Share], steps: int) -> dict[str, float]:
    """Seconds a step, kind by kind, the longest first; kinds that did not occur are absent."""
    total_ns: defaultdict[Kind, int] = defaultdict(int)
    for kind, self_ns in parts:
        total_ns[kind] += self_ns
    ranked = sorted(total_ns.items(), key=lambda item: -item[1])
    return {kind: nanoseconds / 1e9 / steps for kind, nanoseconds in ranked}


def busy_s(intervals_ns: Iterable[tuple[int, int]]) -> float:
    """Seconds in which at least one of the intervals (start, end) was running."""
    busy_ns, covered_to = 0, 0
    for start, end in sorted(intervals_ns):
        busy_ns += max(0, end - max(start, covered_to))
        covered_to = max(covered_to, end)
    return busy_ns / 1e9


def kind_of(name: str, table: Sequence[tuple[str, Kind]]) -> Kind:
    """The kind beside the first regular expression of ``table`` that is found in ``name``."""
    for pattern, kind in table:
        if re.search(pattern, name):
            return kind
    return "other"


def timed_steps(
    train_step: Callable[[], None], synchronize: Callable[[], None], *, steps: int
) -> float:
    """Wall seconds of one of ``steps`` steps, the device waited for at the end."""
    start_s = time.perf_counter()
    for _ in range(steps):
        train_step()
    synchronize()
    return (time.perf_counter() - start_s) / steps


def step_profile(
    profiler: str,
    *,
    steps: int,
    step_s: float,
    phases_s: dict[str, float] | None,
    operations: Sequence[Share],
    operation_count: int,
    kernels: Sequence[Span] | None,
) -> StepProfile:
    """The profile of ``steps`` steps.

    Args:
        profiler: name of the framework's profiler.
        steps: that it recorded.
        step_s: wall time of one of them.
        phases_s: from :func:`timed_phases`; None where forward, backward and update are one.
        operations: what ran on the host, in all steps.
        operation_count: how many of those count as operations, in all steps.
        kernels: kernels and copies on the device, in all steps; None on the CPU.
    """
    device_busy_s, count = None, round(operation_count / steps)
    if kernels is None:
        source = f"{profiler}: self time of each operation on the thread that ran it"
    elif kernels:
        source = f"{profiler}: kernel time on the device, by the operation that started the kernel"
        operations = [Share(kernel.kind, kernel.end_ns - kernel.start_ns) for kernel in kernels]
        device_busy_s = busy_s((kernel.start_ns, kernel.end_ns) for kernel in kernels) / steps
        count = round(len(kernels) / steps)
    else:
        source = (
            f"{profiler}, which recorded no kernel: where the driver lets only administrators "
            "profile, load it with NVreg_RestrictProfilingToAdminUsers=0"
        )
        operations, count = (), None
    operations_s = seconds_by_kind(operations, steps)
    if "fused" in operations_s:
        source += "; what the compiler fused is not told apart"
    if phases_s is None:
        source += "; no phases, as one graph holds forward, backward and update"
    else:
        source += "; phases from steps without a profiler, the device waited for after each"
    return StepProfile(
        source=source,
        steps=steps,
        step_s=step_s,
        phases_s=phases_s,
        operations_s=operations_s,
        device_busy_s=device_busy_s,
        kernels=count,
    )


def timed_phases(
    step: Callable[[], Iterator[Phase]], *, steps: int, synchronize: Callable[[], None]
) -> dict[str, float]:
    """Seconds a step in each phase, the device waited for at the end of each.

    ``step`` runs one training step and yields each phase's name once its work is enqueued.
    """
    seconds: dict[Phase, float] = dict.fromkeys(get_args(Phase), 0.0)
    synchronize()
    last = time.perf_counter()
    for _ in range(steps):
        for phase in step():
            synchronize()
            now = time.perf_counter()
            seconds[phase] += now - last
            last = now
    return {str(phase): total / steps for phase, total in seconds.items()}


def open_trace(path: Path) -> BinaryIO:
    """Open a trace file to write to, compressed if its name ends in ``.gz``; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return cast(BinaryIO, gzip.open(path, "wb")) if path.suffix == ".gz" else path.open("wb")
