"""What ``python -m harness diff`` says of made studies: the table of docs/method.md, "Two studies".

    python -m benchmarks.change_simulation [STUDIES]

Each row: pairs of studies of which nothing changed, and pairs whose second is 20 % slower.
"""

from __future__ import annotations

import sys
from itertools import product
from statistics import fmean

import numpy as np

from harness.change import change_of_rate

WINDOWS = 10
WINDOW_SD = 0.05
SLOWED = 0.8
MARGIN = 0.02


def made_study(
    rng: np.random.Generator, *, processes: int, bias: float, session: float, rate: float
) -> list[list[float]]:
    """Images/s of the windows of each process; all standard deviations are of the logarithm.

    ``session`` is that of the difference of two studies.
    """
    level = np.log(rate) + rng.normal(0, session / np.sqrt(2))
    return [
        np.exp(level + rng.normal(0, bias) + rng.normal(0, WINDOW_SD, WINDOWS)).tolist()
        for _ in range(processes)
    ]


def main() -> None:
    """Print the table."""
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    rng = np.random.default_rng(0)
    print("| processes | process bias | session | covers | false | 20 % found | half-width |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for processes, bias, session in product((1, 3, 6), (0.01, 0.03), (0.01, 0.02, 0.04)):
        covered, false, found, widths = 0, 0, 0, []
        for _ in range(studies):
            before, same, slowed = (
                made_study(rng, processes=processes, bias=bias, session=session, rate=rate)
                for rate in (100.0, 100.0, 100.0 * SLOWED)
            )
            change, slower = change_of_rate(before, same), change_of_rate(before, slowed)
            assert change is not None
            assert slower is not None
            covered += change.shown.low <= 1 <= change.shown.high
            covered += slower.shown.low <= SLOWED <= slower.shown.high
            false += change.outcome(MARGIN) in ("slower", "faster")
            found += slower.outcome(MARGIN) == "slower"
            widths.append((change.shown.high - change.shown.low) / 2)
        print(
            f"| {processes} | {bias:.0%} | {session:.0%} | {covered / studies / 2:.1%} "
            f"| {false / studies:.1%} | {found / studies:.0%} | ±{fmean(widths):.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
