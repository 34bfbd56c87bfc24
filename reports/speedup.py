"""From records to the windows that a verdict is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.records import Record, Window, timed
from harness.speedup import MIN_WINDOWS, PairWindows
from harness.steady import MIN_STEADY, steady_state
from reports.formats import listed

ONE_AFTER_THE_OTHER = "measured one after the other: drift is not cancelled"


@dataclass(frozen=True, kw_only=True)
class ProcessPair:
    """The timed windows of two arms, the k-th of one beside the k-th of the other."""

    baseline: Record
    candidate: Record
    windows: PairWindows
    in_turn: bool
    """Whether the arms took turns with their windows, so that drift cancels."""
    cut: str | None = None
    """How many timed windows were left out since an arm had not reached its later level, in words.
    """
    unsteady: tuple[str, ...] = ()
    """Each arm that never became steady while their ratio did not either, with the reason."""

    @property
    def name(self) -> str:
        """``first``, or the label of the repetition or further seed."""
        return self.candidate.label or "first"

    @property
    def counted(self) -> bool:
        """Whether there are windows enough for this pair to count in a speedup."""
        return self.windows.matched >= MIN_WINDOWS


def window_rates(record: Record) -> list[float]:
    """Images/s of each timed window in the order of measuring; images of skipped steps left out."""
    return rates(timed_windows(record.windows))


def steady_rates(record: Record) -> list[float]:
    """As :func:`window_rates`, from the first steady window on; all where none is found."""
    windows = timed_windows(record.windows)
    return rates(windows[steady_state(_step_times_s(windows)).first or 0 :])


def rates(windows: Iterable[Window]) -> list[float]:
    """Images/s of each window."""
    return [window.images_per_s for window in windows]


def process_pair(baseline: Record, candidate: Record, *, compute: bool = False) -> ProcessPair:
    """The windows of two records; the time of workers alive together is counted once.

    Leading windows in which either arm was not yet steady are left out of both, so that each
    window keeps its partner.

    Args:
        baseline: the arm that is compared with.
        candidate: the arm whose speedup is asked for.
        compute: take the windows on a resident batch in place of those of the training.
    """
    arms = (baseline, candidate)
    timed = [timed_windows(arm.compute_windows if compute else arm.windows) for arm in arms]
    in_turn = _took_turns(*([window.arm_position for window in windows] for windows in timed))
    first, cut, unsteady = _steady_from(arms, timed)
    a, b = (windows[first:] for windows in timed)
    lives = [_life_s(arm) for arm in arms]
    return ProcessPair(
        baseline=baseline,
        candidate=candidate,
        windows=PairWindows(
            baseline_images_per_s=tuple(rates(a)),
            candidate_images_per_s=tuple(rates(b)),
            time_s=max(lives) if in_turn else sum(lives),
            throttled=throttle_reasons([*a, *b]),
            background_cpus=background_cpus([*a, *b]),
        ),
        in_turn=in_turn,
        cut=cut,
        unsteady=unsteady,
    )


def _took_turns(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether the places of two arms' windows are those of arms that take turns.

    Each round, forwards and backwards in turn, holds a window of every arm. Others may stand
    between the two, and end early; so that their distance shrinks, but never grows.
    """
    rounds = [*zip(a, b, strict=False)]
    apart = [abs(one - other) for one, other in rounds]
    return (
        len({*a, *b}) == len(a) + len(b)
        and all(max(this) < min(following) for this, following in pairwise(rounds))
        and all(this >= following for this, following in pairwise(apart))
    )


def _steady_from(
    arms: Sequence[Record], timed: Sequence[Sequence[Window]]
) -> tuple[int, str | None, tuple[str, ...]]:
    """Index of the first matched window in which both arms are steady, and what to tell of it."""
    matched = min(len(windows) for windows in timed)
    if matched < MIN_STEADY:
        return 0, None, ()
    times_s = [_step_times_s(windows[:matched]) for windows in timed]
    found = [(arm.arm, steady_state(of_arm)) for arm, of_arm in zip(arms, times_s, strict=True)]
    first = max(steady.first or 0 for _, steady in found)
    late = [arm for arm, steady in found if steady.first]
    windows = "timed window does" if first == 1 else f"{first} timed windows do"
    its = "their" if len(late) > 1 else "its"
    told = f"the first {windows} not count, while {listed(late)} had not reached {its} later level"
    # What slows both arms alike cancels in their ratio, which is all that a speedup is made of.
    ratio = steady_state([b / a for a, b in zip(*times_s, strict=True)])
    unsteady = tuple(
        f"{arm} did not become steady: {steady.reason}"
        for arm, steady in found
        if steady.reason and ratio.reason
    )
    return first, told if first else None, unsteady


def _step_times_s(windows: Iterable[Window]) -> list[float]:
    return [window.time_s / window.steps for window in windows]


def throttle_reasons(windows: Iterable[Window]) -> tuple[str, ...]:
    """Why the device lowered its clock in any of the windows, each reason once."""
    watched = [window.conditions for window in windows if window.conditions is not None]
    return tuple(dict.fromkeys(reason for seen in watched for reason in seen.throttle_reasons))


def background_cpus(windows: Iterable[Window]) -> float | None:
    """CPUs that anything but the workers kept busy: mean over the time of the windows that tell."""
    told = [
        (window.conditions.background_cpus, window.time_s)
        for window in windows
        if window.conditions is not None and window.conditions.background_cpus is not None
    ]
    time_s = sum(time_s for _, time_s in told)
    return sum(cpus * time_s for cpus, time_s in told) / time_s if time_s else None


def timed_windows(windows: Iterable[Window]) -> list[Window]:
    """Those that are no warm-up, in the order of measuring."""
    usable = [window for window in timed(windows) if window.time_s > 0 and window.steps > 0]
    return sorted(usable, key=lambda window: (window.arm_position, window.index))


def _life_s(record: Record) -> float:
    """From the worker's start to the end of its last window, seconds."""
    return max((window.started_s + window.time_s for window in record.windows), default=0.0)
