"""The verdict on real studies whose truth is known: equal arms, or one that is slowed.

    python benchmarks/real_studies.py                           20 studies of equal arms
    python benchmarks/real_studies.py --slowed-by 0.05 --studies 3
    python benchmarks/real_studies.py --pair-s 60               windows as long as the product's

Each study measures two float32 arms of PyTorch on the CPU in alternating windows of several process
pairs and judges them as a comparison does; benchmarks/verdict_simulation.py has simulated ones.
Equal arms must never be called ``pays`` or ``slower``; an arm that waits after each step, so that
it loses 5 % of its images/s, must be called ``slower``, and the interval must contain 0.95. Exits
with 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.slowed_worker import SHARE, VARIANT
from harness.config import RunConfig
from harness.inputs import prepare_input
from harness.plan import SPEED_WINDOWS, starting_order
from harness.records import Record
from harness.speedup import PairWindows
from harness.turns import run_arms
from harness.verdict import Verdict, judge
from reports.speedup import process_pair


def measure_pair(arms: list[RunConfig], *, python: str, pair_s: float) -> PairWindows:
    """The windows of two workers, alive together for about ``pair_s`` seconds."""
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="real-studies-") as folder:
        run_arms(
            arms,
            prepare_input(arms[0], manifest_csv=Path(folder) / "manifest.csv", cache_dir=None),
            python=python,
            log=lambda run: Path(folder) / f"{run.arm}.log",
            command=lambda run: "",
            on_event=lambda event: None,
            on_record=records.append,
            time_s=pair_s,
        )
    for record in records:
        if record.status != "ok":
            sys.exit(f"{record.arm} is {record.status}: {record.reason}")
    baseline, candidate = sorted(records, key=lambda record: record.variant)
    return process_pair(baseline, candidate).windows


def main() -> None:
    """Print each study and the count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--slowed-by", type=float, default=0.0, help="share of the images/s lost")
    parser.add_argument("--pairs", type=int, default=3, help="process pairs of a study")
    parser.add_argument("--windows", type=int, default=SPEED_WINDOWS, help="of an arm in a pair")
    parser.add_argument("--pair-s", type=float, default=20.0, help="cuts the windows of a pair")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--image-size", type=int, default=28)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    first = RunConfig(
        backend="torch",
        model=options.model,
        image_size=options.image_size,
        batch_size=options.batch_size,
        input="synthetic",
        device="cpu",
        threads=options.threads,
        windows=options.windows,
        validate_weights=False,
        diagnose=False,
    )
    second = first.model_copy(update={"variant": VARIANT if options.slowed_by else "again"})
    truth = 1 - options.slowed_by
    os.environ[SHARE] = str(options.slowed_by)
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="real-studies-") as folder:
        # A comparison names an interpreter, which it starts with -m harness.worker.
        python = Path(folder) / "python"
        python.write_text(
            f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m benchmarks.slowed_worker\n"
        )
        python.chmod(0o755)
        for number in range(options.studies):
            pairs = [
                measure_pair(
                    starting_order([first, second], pair),
                    python=str(python),
                    pair_s=options.pair_s,
                )
                for pair in range(options.pairs)
            ]
            verdict = judge(pairs, names=("the first", "the second"))
            verdicts.append(verdict)
            if (speedup := verdict.speedup) is None:
                sys.exit(f"study {number + 1}: {verdict.reason}")
            print(
                f"study {number + 1}: {verdict.outcome}, ratio {speedup.ratio:.3f} "
                f"{speedup.shown}, pairs {', '.join(f'{r:.3f}' for r in speedup.pair_ratios)}, "
                f"windows ±{speedup.window_sd:.1%}, {verdict.baseline_images_per_s:.4g} images/s"
                + "".join(f"; {warning}" for warning in verdict.warnings),
                flush=True,
            )
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    intervals = [verdict.speedup.shown for verdict in verdicts if verdict.speedup is not None]
    covered = sum(interval.low <= truth <= interval.high for interval in intervals)
    print(
        f"{len(verdicts)} studies of {options.pairs} process pairs and {options.windows} windows "
        f"an arm, {options.model} {options.image_size} px, batch {options.batch_size}, true ratio "
        f"{truth:g}: {', '.join(f'{count} {word}' for word, count in outcomes.most_common())}; the "
        f"95 % interval contains it in {covered}"
    )
    if options.slowed_by:
        right = outcomes["slower"] == covered == len(verdicts)
    else:
        right = not outcomes["pays"] + outcomes["slower"]
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
