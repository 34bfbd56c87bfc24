"""Why AMP pays or does not: only what a measurement of this study supports.

A cause needs figures that show it, in the direction of the verdict and of its size. Where there are
none the answer is that the cause is not determined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from harness.cpu import DTYPE_UNITS, lacks_unit
from harness.records import ProfilePart, Record
from harness.verdict import Verdict
from reports import formats
from reports.feed import feed_of, judge_fed
from reports.formats import duration, number, percent
from reports.judged import Judged
from reports.speedup import timed_windows

BUSY_SHARE: Final = 0.7
"""Share of a step with a kernel on the device below which the step is launch-bound: the other 30 %
and more of it waits for the host, which no faster kernel shortens."""
MAIN_SHARE: Final = 0.5
"""Share of the difference that a cause must make up: less than half is not the cause of it."""
PROFILE_AGREES: Final = (0.5, 2.0)
"""ln of the profiled step's quotient over ln of the measured one. A profiler slows short operations
most, and outside this range its steps are not those whose speed is to be explained."""
ALIKE: Final = 0.1
"""Profiled times that differ by less count as equal: about the spread of single profiled steps."""
MAX_KINDS: Final = 2
"""Kinds of operation that one cause names; a difference spread over more has no one cause."""
OPERATIONS: Final = {
    "convolution": "convolutions",
    "matrix product": "matrix products",
    "elementwise": "elementwise operations",
    "fused": "fused operations",
    "cast": "casts",
    "copy": "copies",
    "optimizer": "the optimizer",
}
"""Kinds of operation as a sentence names them."""
_PRODUCTS: Final = ("convolution", "matrix product")
"""Kinds of which the evidence shows the dtype; others mix the two, or keep float32."""
NOT_DETERMINED: Final = "Cause not determined."

Kind = Literal["input-bound", "overflow", "operations", "launch-bound", "optimizer"]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A reason with the measurement that supports it."""

    kind: Kind
    short: str
    """A few words, for a headline."""
    sentence: str


def causes(judged: Judged) -> tuple[Cause, ...]:
    """What explains the verdict, the most telling first; empty where nothing measured does."""
    outcome = judged.verdict.outcome
    if judged.verdict.speedup is None:
        return ()
    pair = judged.counted[0]
    found: list[Cause | None] = []
    if outcome != "slower":
        found.append(_input_bound(pair.candidate, judge_fed(judged)))
    if outcome == "too noisy" or (outcome == "no difference" and found[0] is not None):
        return tuple(cause for cause in found if cause is not None)
    fed = judge_fed(judged).speedup
    ratio = fed.ratio if fed is not None else judged.verdict.speedup.ratio
    found.append(_overflow(pair.candidate, judged.verdict))
    a, b = pair.baseline.profile, pair.candidate.profile
    if a is not None and b is not None:
        if outcome == "no difference":
            found.append(_as_fast(a, b, pair.candidate))
        elif _agrees(a, b, trained=judged.verdict.speedup.ratio, resident=ratio):
            operations = _operations(a, b, pair.candidate)
            found.append(operations or _optimizer(a, b))
        if outcome != "pays":
            found.append(_launch_bound(pair.baseline, pair.candidate, slower=outcome == "slower"))
    return tuple(cause for cause in found if cause is not None)


def explain(judged: Judged) -> str:
    """The causes in sentences; empty where the verdict is none that has a cause."""
    found = causes(judged)
    if found:
        return " ".join(cause.sentence for cause in found)
    explained = ("pays", "slower", "no difference")
    return NOT_DETERMINED if judged.verdict.outcome in explained else ""


def _input_bound(amp: Record, fed: Verdict) -> Cause | None:
    feed = feed_of(amp)
    if feed.bound_by != "input":
        return None
    waited = (
        f"waited for data {percent(feed.wait_fraction)} of the time at "
        f"{number(feed.images_per_s)} images/s"
    )
    ceiling, compute = feed.ceiling_images_per_s, feed.compute_images_per_s
    if feed.waits:
        text = f"Input-bound: AMP {waited}"
    else:
        text = (
            f"Input-bound: AMP shares its CPUs with the decoder; it {waited}, but computes "
            f"{number(compute)} without it"
        )
    if ceiling is not None and compute is not None:
        text += f", and its loader alone gives {number(ceiling)}"
        if feed.waits and ceiling > compute:
            text += " (enough, were it not for the CPUs that it shares with the step)"
    gain = fed.speedup
    if gain is None:
        return Cause(kind="input-bound", short="input-bound", sentence=f"{text}.")
    would = formats.gain(gain)
    return Cause(
        kind="input-bound",
        short=f"input-bound: {would} if fed",
        sentence=f"{text}; on resident batches AMP's speedup is {would}.",
    )


def _overflow(amp: Record, verdict: Verdict) -> Cause | None:
    windows = timed_windows(amp.windows)
    steps = sum(window.steps for window in windows)
    if verdict.speedup is None or amp.training is None or verdict.outcome == "pays":
        return None
    applied = round(sum(window.images for window in windows) / amp.training.batch_size)
    if applied in (0, steps):
        return None
    lost = math.log(applied / steps)
    enough = (
        lost <= MAIN_SHARE * math.log(verdict.speedup.ratio)
        if verdict.outcome == "slower"
        else 1 - applied / steps > verdict.margin
    )
    if not enough:
        return None
    skipped = f"{steps - applied} of {steps} timed steps"
    return Cause(
        kind="overflow",
        short=f"{skipped} skipped",
        sentence=f"{skipped} of AMP were skipped on overflow, and their images do not count.",
    )


def _agrees(fp32: ProfilePart, amp: ProfilePart, *, trained: float, resident: float) -> bool:
    """Whether the profiled steps differ as AMP's speedups do: in training, and on a resident batch.

    All three must point the same way. Their size is that of the resident batch, whose steps hold
    no waiting for images.
    """
    if fp32.step_s <= 0 or amp.step_s <= 0:
        return False
    profiled = math.log(fp32.step_s / amp.step_s)
    if any(profiled * math.log(ratio) <= 0 for ratio in (trained, resident)):
        return False
    return PROFILE_AGREES[0] <= profiled / math.log(resident) <= PROFILE_AGREES[1]


def _operations(fp32: ProfilePart, amp: ProfilePart, record: Record) -> Cause | None:
    """The one or two kinds of operation that make up most of the difference."""
    kinds = dict.fromkeys([*fp32.operations_s, *amp.operations_s])
    changes = {k: amp.operations_s.get(k, 0.0) - fp32.operations_s.get(k, 0.0) for k in kinds}
    whole = sum(changes.values())
    # The operations must have changed as the step did, and by enough of it; otherwise something
    # else changed it, and the largest of small changes is chance.
    step = amp.step_s - fp32.step_s
    if whole * step <= 0 or abs(whole) < MAIN_SHARE * abs(step):
        return None
    named: list[str] = []
    share = 0.0
    for kind in sorted(changes, key=lambda kind: changes[kind] / whole, reverse=True)[:MAX_KINDS]:
        if share < MAIN_SHARE:
            named.append(kind)
            share += changes[kind] / whole
    if share < MAIN_SHARE or "other" in named:
        return None
    parts = [_changed(kind, fp32, amp, record) for kind in named]
    of_all = f"{percent(share)} of the difference" if share <= 1 else "more than the difference"
    short = parts[0][0]
    sentence = (
        f"{_in_a_step(fp32, amp)} {formats.listed([' '.join(part) for part in parts])}; that is "
        f"{of_all}."
    )
    if any(_slower_product_of_a_cpu(kind, fp32, amp, record) for kind in named):
        features = record.environment.cpu_features if record.environment is not None else None
        if lacks_unit(_dtype(record), features) and named[0] in _PRODUCTS:
            short += f", without a {_dtype(record)} unit"
        sentence += _of_units(_dtype(record), features)
    return Cause(kind="operations", short=short, sentence=sentence)


def _slower_product_of_a_cpu(
    kind: str, fp32: ProfilePart, amp: ProfilePart, record: Record
) -> bool:
    """Whether products of AMP's dtype take longer than those of float32, on a CPU."""
    if kind not in _PRODUCTS or record.device is None or record.device.type != "cpu":
        return False
    return amp.operations_s.get(kind, 0.0) > fp32.operations_s.get(kind, 0.0)


def _of_units(dtype: str, features: Sequence[str] | None) -> str:
    """What is known of the CPU's units for ``dtype`` and for the other dtype of AMP, in words."""
    if features is None:
        return ""
    others = [kind for kind in DTYPE_UNITS if kind != dtype and not lacks_unit(kind, features)]
    remedy = f"compare with --amp-dtype {others[0]}" if others else ""
    if not lacks_unit(dtype, features):
        return f" This processor has a unit for {others[0]} as well: {remedy}." if others else ""
    text = f" This processor has no unit for {dtype} and emulates its products"
    return f"{text}; it has one for {others[0]}: {remedy}." if others else f"{text}."


def _in_a_step(*profiles: ProfilePart) -> str:
    """The opening words; operations summed over threads can take longer than their step."""
    if all(sum(part.operations_s.values()) <= part.step_s for part in profiles):
        return "In a profiled step"
    over = "threads" if all(part.device_busy_s is None for part in profiles) else "streams"
    return f"In a profiled step, summed over its {over},"


def _dtype(record: Record) -> str:
    return record.precision.effective or record.precision.dtype


def _changed(kind: str, fp32: ProfilePart, amp: ProfilePart, record: Record) -> tuple[str, str]:
    a, b = fp32.operations_s.get(kind, 0.0), amp.operations_s.get(kind, 0.0)
    of = OPERATIONS.get(kind, kind)
    if kind in _PRODUCTS:
        of = f"{_dtype(record)} {of}"
    if a <= 0:
        return f"{of} took time that fp32 does not spend", f"({duration(b)})"
    quotient = f"{number(b / a)} times as long as in float32"
    return f"{of} took {quotient}", f"({duration(b)} against {duration(a)})"


def _as_fast(fp32: ProfilePart, amp: ProfilePart, record: Record) -> Cause | None:
    """The kind of operation that takes most of the step and is no faster."""
    whole = sum(fp32.operations_s.values())
    if whole <= 0 or fp32.step_s <= 0 or abs(math.log(amp.step_s / fp32.step_s)) > ALIKE:
        return None
    kind = max(fp32.operations_s, key=lambda kind: fp32.operations_s[kind])
    a, b = fp32.operations_s[kind], amp.operations_s.get(kind, 0.0)
    if kind == "other" or a < MAIN_SHARE * whole or b <= 0 or abs(math.log(b / a)) > ALIKE:
        return None
    short, times = _changed(kind, fp32, amp, record)
    return Cause(
        kind="operations",
        short=short,
        sentence=f"{_in_a_step(fp32, amp)} {short} {times}; that is {percent(a / whole)} of fp32's "
        "operations.",
    )


def _optimizer(fp32: ProfilePart, amp: ProfilePart) -> Cause | None:
    if fp32.phases_s is None or amp.phases_s is None:
        return None
    a, b = (phases.get("optimizer") for phases in (fp32.phases_s, amp.phases_s))
    if a is None or b is None or amp.step_s <= fp32.step_s:
        return None
    if b - a < MAIN_SHARE * (amp.step_s - fp32.step_s):
        return None
    return Cause(
        kind="optimizer",
        short="optimizer and loss scaler",
        sentence="In a profiled step the optimizer with the loss scaler took "
        f"{duration(b)} against {duration(a)}.",
    )


def busy_share(record: Record) -> float | None:
    """Share of a step in which a kernel ran: of a step on a resident batch where one was timed.

    That one is not slowed by a profiler. None on the CPU, and where nothing was profiled.
    """
    profile, step_s = record.profile, compute_step_s(record)
    if profile is None or profile.device_busy_s is None:
        return None
    step_s = step_s or profile.step_s
    return min(profile.device_busy_s / step_s, 1.0) if step_s > 0 else None


def compute_step_s(record: Record) -> float | None:
    """Median seconds a step on a resident batch."""
    times = [window.time_s / window.steps for window in timed_windows(record.compute_windows)]
    return median(times) if times else None


def _launch_bound(fp32: Record, amp: Record, *, slower: bool) -> Cause | None:
    before, busy = busy_share(fp32), busy_share(amp)
    profile = amp.profile
    if before is None or busy is None or profile is None or busy >= BUSY_SHARE:
        return None
    if slower:
        a, b = compute_step_s(fp32), compute_step_s(amp)
        # Where AMP computes no slower, its training is slower for another reason.
        if a is None or b is None or b <= a:
            return None
        if b * (1 - busy) - a * (1 - before) < MAIN_SHARE * (b - a):
            return None
    kernels = "" if profile.kernels is None else f" ({profile.kernels:,} kernels)"
    return Cause(
        kind="launch-bound",
        short=f"launch-bound: kernels run {percent(busy)} of the step",
        sentence=f"Launch-bound: kernels ran {percent(busy)} of AMP's step{kernels} and "
        f"{percent(before)} of fp32's, and the rest waits for the host.",
    )
