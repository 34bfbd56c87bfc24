"""How large gradients are, and what of them float16 would lose without a loss scale."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from harness.protocol import Probe
from harness.records import GradientHistogramPart, GradientSizes

FIRST_EXPONENT, LAST_EXPONENT = -60, 20
_ROUNDS_TO_ZERO = 2.0**-25
"""Half of float16's smallest number, 2**-24; ties go to the even zero."""
_SMALLEST_NORMAL = 2.0**-14


def gradient_histogram(
    probe: Probe, *, step: int, loss_scale: float | None
) -> GradientHistogramPart:
    """Count the gradients of ``probe`` by size."""
    return GradientHistogramPart(
        step=step,
        loss_scale=loss_scale,
        activations=gradient_sizes(probe.output_gradients.values()),
        weights=gradient_sizes(probe.parameter_gradients.values()),
    )


def gradient_sizes(arrays: Iterable[np.ndarray]) -> GradientSizes:
    """Count the values of ``arrays`` (any shape, float) by power of two.

    Values outside 2**-60 .. 2**21 are counted in the outermost bins.
    """
    bins = LAST_EXPONENT - FIRST_EXPONENT + 1
    counts = np.zeros(bins, np.int64)
    zeros = not_finite = below = subnormal = 0
    for array in arrays:
        sizes = np.abs(array.astype(np.float64)).ravel()
        finite = np.isfinite(sizes)
        not_finite += int(sizes.size - finite.sum())
        sizes = sizes[finite]
        zeros += int((sizes == 0).sum())
        sizes = sizes[sizes > 0]
        # frexp gives a mantissa in [0.5, 1), so that its exponent is one too high.
        exponents = np.frexp(sizes)[1] - 1
        clipped = np.clip(exponents, FIRST_EXPONENT, LAST_EXPONENT) - FIRST_EXPONENT
        counts += np.bincount(clipped, minlength=bins)
        below += int((sizes <= _ROUNDS_TO_ZERO).sum())
        subnormal += int(((sizes > _ROUNDS_TO_ZERO) & (sizes < _SMALLEST_NORMAL)).sum())
    return GradientSizes(
        first_exponent=FIRST_EXPONENT,
        counts=counts.tolist(),
        zeros=zeros,
        not_finite=not_finite,
        below_float16=below,
        subnormal_float16=subnormal,
    )
