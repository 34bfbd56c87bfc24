"""What a step costs in the harness' loop above the backend's own calls.

python benchmarks/own_cost.py
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.overhead import CLASSES, open_arm
from harness.config import RunConfig
from harness.registry import load_backend

STEPS = 500


def main() -> None:
    """Print the cost in microseconds, measured with the backend that computes nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--windows", type=int, default=12)
    options = parser.parse_args()
    run = RunConfig(
        backend="fake",
        image_size=options.image_size,
        batch_size=options.batch_size,
        device="cpu",
        threads=1,
        steps=1_000_000,
    )
    backend = load_backend(run.backend)
    arm = open_arm(run, backend)
    rng = np.random.default_rng(0)
    shape = (run.batch_size, run.image_size, run.image_size, 3)
    images = rng.integers(0, 256, shape, np.uint8)
    labels = rng.integers(0, CLASSES, run.batch_size, np.int64)
    arm.window(steps=STEPS, warmup=True, arm_position=0)
    costs = []
    for _ in range(options.windows):
        loop_s = arm.window(steps=STEPS, warmup=False, arm_position=0).window.time_s
        start = time.perf_counter()
        for _ in range(STEPS):
            backend.train_step(backend.put(images, labels))
        calls_s = time.perf_counter() - start
        backend.take_steps()
        costs.append((loop_s - calls_s) / STEPS * 1e6)
    print(
        f"the harness' own cost is {np.median(costs):.0f} µs a step (median of {len(costs)} "
        f"windows of {STEPS} steps; {min(costs):.0f} to {max(costs):.0f}), batch "
        f"{run.batch_size} of {run.image_size} px"
    )
    arm.close()


if __name__ == "__main__":
    main()
