"""Learning rate by step, the same numbers for every framework."""

from __future__ import annotations

from math import cos, pi

from harness.config import RunConfig


def learning_rate(run: RunConfig, *, step: int, total_steps: int) -> float:
    """Learning rate of optimizer step ``step`` (from 0) of ``total_steps``.

    constant: ``run.lr``. cosine: half a cosine from ``run.lr`` to 0 (Loshchilov and Hutter 2017,
    eq. 5, one period). step: divided by 10 after one half and again after three quarters of the
    steps (He et al. 2016, section 4.2).
    """
    progress = step / total_steps
    match run.lr_schedule:
        case "constant":
            return run.lr
        case "cosine":
            return run.lr * (1 + cos(pi * progress)) / 2
        case "step":
            return run.lr * 0.1 ** ((progress >= 1 / 2) + (progress >= 3 / 4))
