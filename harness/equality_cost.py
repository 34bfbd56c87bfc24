"""What equal mathematics costs: a framework's own parts against those that replace them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.config import RunConfig
from harness.inputs import prepare_input
from harness.plan import SPEED_WINDOWS, starting_order
from harness.records import Record, timed
from harness.speedup import PairWindows, Speedup, estimate_speedup
from harness.turns import run_arms

PAIRS = 3


@dataclass(frozen=True, kw_only=True)
class EqualityCost:
    """Native ÷ equal of one framework."""

    backend: str
    speedup: Speedup | None
    """Of the native parts over the equal ones; None where one could not be measured."""
    reason: str | None
    """Why not."""


def equality_cost(base: RunConfig, *, python: str, on_pair: Callable[[str], None]) -> EqualityCost:
    """Train with native and with equal parts, in alternating windows of three process pairs.

    Args:
        base: framework, network, sizes and precision; float32 or AMP.
        python: interpreter of the framework.
        on_pair: is told which pair begins.
    """
    pairs: list[PairWindows] = []
    arms = {"steps": None, "epochs": None, "windows": SPEED_WINDOWS, "input": "synthetic"}
    quiet = {"validate_weights": False, "diagnose": False}
    with tempfile.TemporaryDirectory(prefix="amp-cost-") as folder:
        for number in range(PAIRS):
            on_pair(f"{base.backend}: native and equal parts, pair {number + 1} of {PAIRS}")
            equal = base.model_copy(update={**arms, **quiet})
            native = equal.model_copy(update={"parts": "native", "variant": "native"})
            records: dict[str, Record] = {}
            run_arms(
                starting_order([equal, native], number),
                prepare_input(equal, manifest_csv=Path(folder) / "manifest.csv", cache_dir=None),
                python=python,
                log=lambda run: Path(folder) / f"{run.arm}.log",
                command=lambda run: "",
                on_event=lambda event: None,
                on_record=lambda record, kept=records: kept.update({record.variant: record}),
            )
            for record in records.values():
                if record.status != "ok":
                    return EqualityCost(backend=base.backend, speedup=None, reason=record.reason)
            pairs.append(
                PairWindows(
                    baseline_images_per_s=_rates(records[""]),
                    candidate_images_per_s=_rates(records["native"]),
                )
            )
    return EqualityCost(backend=base.backend, speedup=estimate_speedup(pairs), reason=None)


def _rates(record: Record) -> tuple[float, ...]:
    return tuple(window.images_per_s for window in timed(record.windows))
