"""How often the verdict is right on simulated studies whose true speedup is known.

    python benchmarks/verdict_simulation.py                the full tables of docs/method.md
    python benchmarks/verdict_simulation.py --studies 50   a quick look

Each simulated study has pairs of processes whose windows alternate A B B A ...; every process has
a bias of its own, every window noise, and the machine drifts, changes its level at a random moment
in half of the pairs, and slows a window in twenty by 10 to 40 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.speedup import PairWindows, estimate_speedup
from harness.verdict import MARGIN, judge, outcome_of

SLOWED = 0.95
"""The known speedup of an arm that must be found slower."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A machine and a plan."""

    pairs: int
    windows: int
    """Of each arm in a pair."""
    process_sd: float | None
    """Relative bias of a process (standard deviation); None: 0.5 to 3 %, drawn for each study."""
    window_sd: float = 0.05
    """Relative noise of a window."""
    drift: float = 0.1
    """Largest relative change of the machine over a pair."""
    step: float = 0.1
    """Relative change of level, in half of the pairs."""
    outliers: float = 0.05
    """Share of windows that are slowed."""


def simulate(scenario: Scenario, rng: np.random.Generator, *, speedup: float) -> list[PairWindows]:
    """The windows of one study."""
    count = 2 * scenario.windows
    arms = np.resize([0, 1, 1, 0], count)
    process_sd = scenario.process_sd
    if process_sd is None:
        process_sd = rng.uniform(0.005, 0.03)
    pairs = []
    for _ in range(scenario.pairs):
        log_rate = math.log(100) + rng.uniform(-1, 1) * scenario.drift * np.linspace(0, 1, count)
        if rng.random() < 0.5:
            log_rate[rng.integers(1, count) :] += rng.choice([-1, 1]) * scenario.step
        bias = rng.normal([0, math.log(speedup)], process_sd)
        log_rate += bias[arms] + rng.normal(0, scenario.window_sd, count)
        log_rate += np.log1p(-rng.uniform(0.1, 0.4, count)) * (
            rng.random(count) < scenario.outliers
        )
        baseline, candidate = (tuple(np.exp(log_rate[arms == arm]).tolist()) for arm in (0, 1))
        pairs.append(PairWindows(baseline_images_per_s=baseline, candidate_images_per_s=candidate))
    return pairs


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Shares of studies, 0 to 1."""

    coverage: float
    """The shown interval contains the true ratio, 1."""
    false_alarm: float
    """Of equal arms: called pays or slower."""
    found: float
    """Of an arm slowed by 5 %: called slower."""
    half_width: float
    """Median of half the shown interval's width."""


def tally(scenario: Scenario, *, studies: int, seed: int) -> Tally:
    """Judge ``studies`` simulated studies of equal arms, and as many of a slowed candidate."""
    rng = np.random.default_rng(seed)
    equal = [estimate_speedup(simulate(scenario, rng, speedup=1.0)) for _ in range(studies)]
    slowed = [estimate_speedup(simulate(scenario, rng, speedup=SLOWED)) for _ in range(studies)]
    covered = [s.shown.low <= 1 <= s.shown.high for s in equal]
    covered += [s.shown.low <= SLOWED <= s.shown.high for s in slowed]
    return Tally(
        coverage=float(np.mean(covered)),
        false_alarm=float(np.mean([outcome_of(s, MARGIN) in ("pays", "slower") for s in equal])),
        found=float(np.mean([outcome_of(s, MARGIN) == "slower" for s in slowed])),
        half_width=median((s.shown.high - s.shown.low) / 2 for s in equal),
    )


Bounds = tuple[float, float]
Method = Callable[[list[PairWindows], float], Bounds]


def t_of_pair_means(pairs: list[PairWindows], confidence: float) -> Bounds:
    """Student's t of the pairs' mean log ratios, one degree of freedom less than pairs."""
    means = [np.mean(pair.log_ratios) for pair in pairs]
    half = stats.t.ppf((1 + confidence) / 2, len(means) - 1) * stats.sem(means)
    return float(np.mean(means) - half), float(np.mean(means) + half)


def variance_components(pairs: list[PairWindows], confidence: float) -> Bounds:
    """One-way random effects: pools both levels where the pairs show no variance of their own."""
    ratios = np.array([pair.log_ratios for pair in pairs])
    count, windows = ratios.shape
    between = ratios.mean(axis=1).var(ddof=1)
    within = ratios.var(axis=1, ddof=1).mean() / windows
    freedom, variance = count - 1, between
    if between <= within:
        inner = count * (windows - 1)
        variance = (freedom * between + inner * within) / (freedom + inner)
        freedom += inner
    half = stats.t.ppf((1 + confidence) / 2, freedom) * math.sqrt(variance / count)
    return float(ratios.mean() - half), float(ratios.mean() + half)


def hierarchical_bootstrap(pairs: list[PairWindows], confidence: float) -> Bounds:
    """Percentile bootstrap of the median of pair medians: pairs first, windows in them second."""
    ratios = np.array([pair.log_ratios for pair in pairs])
    count, windows = ratios.shape
    rng = np.random.default_rng(0)
    chosen = rng.integers(count, size=(2000, count, 1))
    within = rng.integers(windows, size=(2000, count, windows))
    resampled = np.median(np.median(ratios[chosen, within], axis=2), axis=1)
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def half_normal(scale: float) -> Method:
    """The harness's own estimate with another scale of the prior."""

    def bounds(pairs: list[PairWindows], confidence: float) -> Bounds:
        speedup = estimate_speedup(pairs, process_sd_scale=scale)
        interval = speedup.shown if confidence == speedup.shown.confidence else speedup.decisive
        return math.log(interval.low), math.log(interval.high)

    return bounds


METHODS: dict[str, Method] = {
    "hierarchical bootstrap": hierarchical_bootstrap,
    "t of pair means": t_of_pair_means,
    "variance components": variance_components,
    "half-normal 2 %": half_normal(0.02),
    "half-normal 4 %": half_normal(0.04),
    "half-normal 5 %": half_normal(0.05),
}


def print_methods(studies: int, seed: int) -> None:
    """Coverage of equal arms and half-width, by method."""
    print("| method | pairs | process bias | 95 % covers | 99.5 % excludes 1 | half-width 95 % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for pairs in (2, 3, 6):
        for process_sd in (0.01, 0.03):
            scenario = Scenario(pairs=pairs, windows=10, process_sd=process_sd)
            rng = np.random.default_rng(seed)
            made = [simulate(scenario, rng, speedup=1.0) for _ in range(studies)]
            for name, method in METHODS.items():
                shown = np.array([method(study, 0.95) for study in made])
                decisive = np.array([method(study, 0.995) for study in made])
                covers, excludes = (
                    np.mean((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0))
                    for bounds in (shown, decisive)
                )
                width = np.median(shown[:, 1] - shown[:, 0]) / 2
                print(
                    f"| {name} | {pairs} | {process_sd:.0%} | {covers:.1%} | {1 - excludes:.1%} "
                    f"| ±{width:.1%} |",
                    flush=True,
                )


SCENARIOS = [
    *(Scenario(pairs=pairs, windows=10, process_sd=None) for pairs in (1, 2, 3, 4, 6)),
    *(
        Scenario(pairs=pairs, windows=20, process_sd=process_sd)
        for process_sd in (0.005, 0.01, 0.02, 0.03)
        for pairs in (3, 6, 10)
    ),
    *(Scenario(pairs=pairs, windows=3, process_sd=0.01) for pairs in (1, 3)),
    *(
        Scenario(pairs=pairs, windows=10, process_sd=0.003, window_sd=0.01, drift=0.03, step=0.03)
        for pairs in (2, 3, 4)
    ),
    # Outside what was assumed: processes that differ by 6 %.
    *(Scenario(pairs=pairs, windows=10, process_sd=0.06) for pairs in (3, 6)),
]


def print_scenarios(studies: int, seed: int) -> None:
    """Coverage, false alarms and power of the verdict."""
    print("| pairs | windows | process bias | noise | covers | false | 5 % found | half-width |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for scenario in SCENARIOS:
        result = tally(scenario, studies=studies, seed=seed)
        bias = "0.5–3 %" if scenario.process_sd is None else f"{scenario.process_sd:.1%}"
        print(
            f"| {scenario.pairs} | {scenario.windows} | {bias} | {scenario.window_sd:.0%} "
            f"| {result.coverage:.1%} | {result.false_alarm:.1%} | {result.found:.0%} "
            f"| ±{result.half_width:.1%} |",
            flush=True,
        )


def print_forecasts(studies: int, seed: int) -> None:
    """Of studies too noisy with a forecast: how many are still, with as many pairs as foreseen."""
    print("| pairs | process bias | noise | speedup | forecasts | more pairs | still too noisy |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    machines = ((0.005, 0.01), (0.01, 0.05), (0.02, 0.05))
    for pairs, (process_sd, window_sd), speedup in product((1, 3), machines, (1.0, 1.05)):
        calm = {} if window_sd > 0.01 else {"drift": 0.03, "step": 0.03}
        few = Scenario(pairs=pairs, windows=8, process_sd=process_sd, window_sd=window_sd, **calm)
        rng = np.random.default_rng(seed)
        more, still = [], 0
        for _ in range(studies):
            made = simulate(few, rng, speedup=speedup)
            foreseen = judge(made).further_pairs
            if foreseen is None:
                continue
            further = dataclasses.replace(few, pairs=foreseen)
            made += simulate(further, rng, speedup=speedup)
            more.append(foreseen)
            still += judge(made).outcome == "too noisy"
        share = f"{still / len(more):.0%}" if more else "–"
        print(
            f"| {pairs} | {process_sd:.1%} | {window_sd:.0%} | {speedup:.2f} | {len(more)} "
            f"| {median(more) if more else '–'} | {share} |",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print_scenarios(arguments.studies, arguments.seed)
    print()
    print_methods(arguments.studies, arguments.seed)
    print()
    print_forecasts(arguments.studies, arguments.seed)


if __name__ == "__main__":
    main()
