"""From records to the windows that a verdict is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records import Record, Window
from harness.speedup import MIN_WINDOWS, PairWindows

ONE_AFTER_THE_OTHER = "measured one after the other: drift is not cancelled"


@dataclass(frozen=True, kw_only=True)
class ProcessPair:
    """The timed windows of two arms, the k-th of one beside the k-th of the other."""

    baseline: Record
    candidate: Record
    windows: PairWindows
    in_turn: bool
    """Whether each window was measured right beside its partner, so that drift cancels."""

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


def rates(windows: Iterable[Window]) -> list[float]:
    """Images/s of each window."""
    return [window.images / window.time_s for window in windows]


def process_pair(baseline: Record, candidate: Record, *, compute: bool = False) -> ProcessPair:
    """The windows of two records; the time of workers alive together is counted once.

    ``compute`` takes the windows on a resident batch in place of those of the training.
    """
    timed = [
        timed_windows(arm.compute_windows if compute else arm.windows)
        for arm in (baseline, candidate)
    ]
    turns = [[window.arm_position for window in windows] for windows in timed]
    neighbours = all(abs(a - b) == 1 for a, b in zip(*turns, strict=False))
    each_its_own = len({*turns[0], *turns[1]}) == len(turns[0]) + len(turns[1])
    in_turn = neighbours and each_its_own
    lives = [_life_s(arm) for arm in (baseline, candidate)]
    return ProcessPair(
        baseline=baseline,
        candidate=candidate,
        windows=PairWindows(
            baseline_images_per_s=tuple(rates(timed[0])),
            candidate_images_per_s=tuple(rates(timed[1])),
            time_s=max(lives) if in_turn else sum(lives),
            throttled=throttle_reasons([*timed[0], *timed[1]]),
            background_cpus=background_cpus([*timed[0], *timed[1]]),
        ),
        in_turn=in_turn,
    )


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
    timed = [window for window in windows if not window.warmup and window.time_s > 0]
    return sorted(timed, key=lambda window: (window.arm_position, window.index))


def _life_s(record: Record) -> float:
    """From the worker's start to the end of its last window, seconds."""
    return max((window.started_s + window.time_s for window in record.windows), default=0.0)
