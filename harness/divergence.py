"""When training cannot recover any more."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_CONSECUTIVE_SKIPS = 25
"""From 65536, so many halvings leave a scale of 0.002: no finite gradient needs that."""


class DivergenceWatch:
    """Looks at the steps as they come and says when, and why, the run is lost."""

    def __init__(self) -> None:
        self._consecutive_skips = 0

    def check(
        self,
        *,
        first_step: int,
        loss: Sequence[float],
        loss_scale: Sequence[float | None],
        skipped: Sequence[bool],
        broken_statistics: Sequence[str],
    ) -> str | None:
        """The reason with its step and remedy, or None while all is well.

        Args:
            first_step: number of the first of these steps, from 0.
            loss: one value a step.
            loss_scale: one value a step; None without a scaler.
            skipped: whether the scaler withheld the update.
            broken_statistics: BatchNorm buffers that are no longer finite after these steps. A
                skipped step restores no buffer, so that one overflow in the forward pass stays.
        """
        for step, (value, scale, skip) in enumerate(
            zip(loss, loss_scale, skipped, strict=True), start=first_step
        ):
            self._consecutive_skips = self._consecutive_skips + 1 if skip else 0
            if not math.isfinite(value):
                if not skip:
                    return f"the loss became {value} at step {step}; lower --lr or use --clip-norm"
                if broken_statistics:
                    return (
                        f"the forward pass overflowed at step {step} and left "
                        f"{broken_statistics[0]} infinite or NaN; the update was skipped, but no "
                        "skipped step restores BatchNorm's statistics; lower --lr, or try "
                        "--amp-dtype bfloat16"
                    )
            if self._consecutive_skips > MAX_CONSECUTIVE_SKIPS:
                return (
                    f"{self._consecutive_skips} steps in a row were skipped up to step {step}, and "
                    f"the loss scale fell to {scale:g}: the gradients stay infinite at any scale; "
                    "lower --lr, or try --amp-dtype bfloat16"
                )
        return None
