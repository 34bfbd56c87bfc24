"""The attribution ladder: what each setting adds to the speed, one change a rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One step of the ladder."""

    variant: str
    """Of its arms."""
    title: str
    above: str | None
    """Variant of the rung from which it differs in one setting; None for the lowest."""


LADDER = (
    Rung(variant="rung0", title="strict fp32", above=None),
    Rung(variant="rung1", title="TF32", above="rung0"),
    Rung(variant="rung2", title="AMP float16", above="rung1"),
    Rung(variant="rung3", title="AMP bfloat16", above="rung2"),
    # A branch: what follows keeps the dtype that --amp-dtype chose.
    Rung(variant="rung4", title="channels-last", above="rung2"),
    Rung(variant="rung5", title="twice the batch", above="rung4"),
    Rung(variant="rung6", title="compiled", above="rung5"),
)


def ladder_runs(run: RunConfig) -> list[RunConfig]:
    """The arms of the ladder of one backend, lowest first, measured in turn.

    TF32 stays on above its rung. A device without it refuses that rung alone, since those above are
    mixed and compute without it there; the next then compares with strict fp32.
    """
    changes: list[dict[str, Any]] = [
        {"precision": "fp32", "tf32": False, "layout": "default", "compile": "off"},
        {"tf32": True},
        {"precision": "amp", "amp_dtype": "float16"},
        {"amp_dtype": "bfloat16"},
        {"amp_dtype": run.amp_dtype, "layout": "nhwc"},
        {"batch_size": 2 * run.batch_size},
        {"compile": "on"},
    ]
    runs: list[RunConfig] = []
    settings: dict[str, Any] = {}
    for rung, change in zip(LADDER, changes, strict=True):
        settings |= change | {"variant": rung.variant, "diagnose": False}
        runs.append(RunConfig.model_validate(run.model_dump() | settings))
    return runs


def compared_with(rung: Rung, measured: Sequence[str], amp_dtype: str) -> str | None:
    """Variant of the rung that ``rung`` is one change above.

    Args:
        rung: whose change is asked for.
        measured: variants that have a result.
        amp_dtype: of the rungs above the two AMP ones.
    """
    below = rung.above
    if rung.variant == "rung4" and amp_dtype == "bfloat16":
        below = "rung3"
    if below == "rung1" and below not in measured:
        below = "rung0"
    return below
