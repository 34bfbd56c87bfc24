"""Does the harness keep pace with a bare loop? Alternating windows of both, in one process.

    python benchmarks/overhead.py --backend torch
    python benchmarks/overhead.py --backend fake      the harness's own cost per step

Prints the ratio harness ÷ bare images/s with its 95 % interval (Student's t over the logarithms of
the paired windows' ratios).
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bare_loops import LOOPS
from datasets import SyntheticPixels
from harness.arm import Arm
from harness.config import RunConfig
from harness.environment import worker_variables
from harness.protocol import Backend
from harness.registry import load_backend

CLASSES = 5


def interval(ratios: np.ndarray) -> tuple[float, float, float]:
    """Geometric mean and its 95 % interval."""
    from scipy import stats

    logs = np.log(ratios)
    low, high = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def open_arm(run: RunConfig, backend: Backend) -> Arm:
    """An arm on noise images that come through the loader, as cached photos would."""
    source = SyntheticPixels(
        image_size=run.image_size,
        classes=CLASSES,
        train_images=run.batch_size * 20,
        val_images=0,
        seed=0,
    )
    arm = Arm(run, backend, source)
    arm.prepare()
    return arm


def compare(run: RunConfig, *, pairs: int, window_s: float) -> None:
    """Measure ABBA windows of the harness (A) and the bare loop (B)."""
    arm = open_arm(run, load_backend(run.backend))
    rng = np.random.default_rng(0)
    shape = (run.batch_size, run.image_size, run.image_size, 3)
    images = rng.integers(0, 256, shape, np.uint8)
    labels = rng.integers(0, CLASSES, run.batch_size, np.int64)
    bare = LOOPS[run.backend](images, labels, CLASSES, run.device)

    def harness_s(steps: int) -> float:
        return arm.window(steps=steps, warmup=False, arm_position=0).window.time_s

    def bare_s(steps: int) -> float:
        start = time.perf_counter()
        bare(steps)
        return time.perf_counter() - start

    for warm_up in (harness_s, bare_s, harness_s, bare_s):
        pace_s = warm_up(3) / 3
    steps = max(2, round(window_s / pace_s))
    rates: list[tuple[float, float]] = []
    for pair in range(pairs):
        order = (harness_s, bare_s) if pair % 2 == 0 else (bare_s, harness_s)
        times = {measure: measure(steps) for measure in order}
        images_per_window = steps * run.batch_size
        rates.append((images_per_window / times[harness_s], images_per_window / times[bare_s]))
    table = np.array(rates)
    mean, low, high = interval(table[:, 0] / table[:, 1])
    print(
        f"{run.backend}: harness {np.median(table[:, 0]):.1f}, bare {np.median(table[:, 1]):.1f} "
        f"images/s; ratio {mean:.3f} [{low:.3f}, {high:.3f}] "
        f"({pairs} pairs of windows of {steps} steps, {run.threads} threads)"
    )
    arm.close()


def own_cost(run: RunConfig, *, pairs: int) -> None:
    """Time of a step in the loop above the time of the backend's own calls."""
    steps = 500
    backend = load_backend(run.backend)
    arm = open_arm(run, backend)
    rng = np.random.default_rng(0)
    shape = (run.batch_size, run.image_size, run.image_size, 3)
    images = rng.integers(0, 256, shape, np.uint8)
    labels = rng.integers(0, CLASSES, run.batch_size, np.int64)
    arm.window(steps=steps, warmup=True, arm_position=0)
    costs = []
    for _ in range(pairs):
        loop_s = arm.window(steps=steps, warmup=False, arm_position=0).window.time_s
        start = time.perf_counter()
        for _ in range(steps):
            backend.train_step(backend.put(images, labels))
        calls_s = time.perf_counter() - start
        backend.take_steps()
        costs.append((loop_s - calls_s) / steps * 1e6)
    print(
        f"fake: the harness's own cost is {np.median(costs):.0f} µs a step "
        f"(median of {pairs}; {min(costs):.0f} to {max(costs):.0f}), batch {run.batch_size} of "
        f"{run.image_size} px"
    )
    arm.close()


def main() -> None:
    """Run in a process that has the environment of a worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=[*LOOPS, "fake"], required=True)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--window-s", type=float, default=2.0)
    options = parser.parse_args()
    run = RunConfig(
        backend=options.backend,
        image_size=options.image_size,
        batch_size=options.batch_size,
        device=options.device,
        threads=len(os.sched_getaffinity(0)),
        steps=1_000_000,
    )
    if os.environ.get("OMP_NUM_THREADS") != str(run.threads):
        # The libraries read their thread counts while they are imported.
        variables = worker_variables(run, os.environ)
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=variables).returncode)
    if options.backend == "fake":
        own_cost(run, pairs=options.pairs)
    else:
        compare(run, pairs=options.pairs, window_s=options.window_s)


if __name__ == "__main__":
    main()
