"""Does the harness keep pace with other ways of training? Alternating windows, in one process.

    python benchmarks/overhead.py --backend torch                        a loop written by hand
    python benchmarks/overhead.py --backend tensorflow --against fit     Keras model.fit
    python benchmarks/overhead.py --backend paddle --against fit         paddle.Model.fit
    python benchmarks/overhead.py --backend torch --against timm         timm's training benchmark
    python benchmarks/overhead.py --backend torch --amp --image-size 32 --batch-size 4

Each process trains both networks in turns and gives one ratio of images/s, harness ÷ other; several
processes give the interval (95 %, docs/method.md), for a process keeps a bias for its whole life.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bare_loops import LOOPS, Loop
from benchmarks.fit_loops import FIT_LOOPS, TIMM_LOOPS
from datasets import SyntheticPixels
from harness.arm import Arm
from harness.config import RunConfig
from harness.environment import usable_cpus, worker_variables
from harness.protocol import Backend
from harness.registry import load_backend
from harness.speedup import PairWindows, estimate_speedup

CLASSES = 5
OTHERS = {"bare": LOOPS, "fit": FIT_LOOPS, "timm": TIMM_LOOPS}
PROCESS_SD_SCALE = 0.01
"""Both networks share the process here, so that its bias cancels but for their places in memory."""


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


def measure(run: RunConfig, *, against: str, windows: int, steps: int, other_first: bool) -> None:
    """Print the images/s of both as JSON: a window of each, in random order, again and again."""
    rng = np.random.default_rng(0)
    shape = (run.batch_size, run.image_size, run.image_size, 3)
    images = rng.integers(0, 256, shape, np.uint8)
    labels = rng.integers(0, CLASSES, run.batch_size, np.int64)

    def other_loop() -> Loop:
        loop = OTHERS[against][run.backend]
        return loop(images, labels, CLASSES, run.device, amp=run.precision == "amp")

    # Which network lies first in memory is worth a percent or two: processes take turns, but for
    # TensorFlow, whose thread counts can only be set before its first operation.
    if other_first and run.backend != "tensorflow":
        other = other_loop()
        arm = open_arm(run, load_backend(run.backend))
    else:
        arm = open_arm(run, load_backend(run.backend))
        other = other_loop()

    def harness_s(count: int) -> float:
        return arm.window(steps=count, warmup=False, arm_position=0).window.time_s

    def other_s(count: int) -> float:
        start = time.perf_counter()
        other(count)
        return time.perf_counter() - start

    for train in (harness_s, other_s, harness_s, other_s):
        train(2)
    order = random.Random(0)
    rates: dict[str, list[float]] = {"harness": [], "other": []}
    for _ in range(windows):
        turn = [("harness", harness_s), ("other", other_s)]
        order.shuffle(turn)
        for name, train in turn:
            train(1)  # refills the caches that the other has emptied
            rates[name].append(steps * run.batch_size / train(steps))
    arm.close()
    print(json.dumps(rates))


def main() -> None:
    """Measure in processes that have the environment of a worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=LOOPS, required=True)
    parser.add_argument("--against", choices=OTHERS, default="bare")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--windows", type=int, default=15, help="of each, in each process")
    parser.add_argument("--steps", type=int, default=4, help="of a window")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend not in OTHERS[options.against]:
        parser.error(f"there is no {options.against} loop for {options.backend}")
    run = RunConfig(
        backend=options.backend,
        image_size=options.image_size,
        batch_size=options.batch_size,
        device=options.device,
        precision="amp" if options.amp else "fp32",
        threads=usable_cpus(),
        steps=1_000_000,
    )
    if options.process is not None:
        measure(
            run,
            against=options.against,
            windows=options.windows,
            steps=options.steps,
            other_first=options.process % 2 == 1,
        )
        return
    pairs = []
    for process in range(options.processes):
        output = subprocess.run(
            [sys.executable, *sys.argv, f"--process={process}"],
            env=worker_variables(run, os.environ),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout
        rates = json.loads(output.splitlines()[-1])
        pairs.append(
            PairWindows(
                baseline_images_per_s=tuple(rates["other"]),
                candidate_images_per_s=tuple(rates["harness"]),
            )
        )
    result = estimate_speedup(pairs, process_sd_scale=PROCESS_SD_SCALE)
    harness = np.median([rate for pair in pairs for rate in pair.candidate_images_per_s])
    other = np.median([rate for pair in pairs for rate in pair.baseline_images_per_s])
    print(
        f"{run.backend} {run.precision}: harness {harness:.4g}, {options.against} {other:.4g} "
        f"images/s; ratio {result.ratio:.3f} {result.shown} ({options.processes} processes "
        f"{', '.join(f'{ratio:.3f}' for ratio in result.pair_ratios)}; {options.windows} windows "
        f"of {options.steps} steps, {run.image_size} px, batch {run.batch_size}, "
        f"{run.threads} threads)"
    )


if __name__ == "__main__":
    main()
