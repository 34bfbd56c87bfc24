"""Counting gradients by size, against arithmetic and NumPy's own float16."""

import numpy as np

from harness.gradients import FIRST_EXPONENT, LAST_EXPONENT, gradient_histogram, gradient_sizes
from harness.protocol import Probe


def count_at(sizes, exponent: int) -> int:
    return sizes.counts[exponent - sizes.first_exponent]


def test_each_value_lies_in_the_bin_of_its_power_of_two():
    sizes = gradient_sizes([np.array([1.0, -1.5, 1.999, 2.0, 0.25, 3e-5])])
    assert count_at(sizes, 0) == 3  # [1, 2)
    assert count_at(sizes, 1) == 1  # [2, 4)
    assert count_at(sizes, -2) == 1  # [1/4, 1/2)
    assert count_at(sizes, -16) == 1  # 2**-16 = 1.53e-5, 2**-15 = 3.05e-5
    assert sum(sizes.counts) == 6


def test_zeros_and_values_that_are_not_finite_are_counted_apart():
    sizes = gradient_sizes([np.array([0.0, -0.0, np.inf, np.nan]), np.array([[1.0]])])
    assert (sizes.zeros, sizes.not_finite, sum(sizes.counts)) == (2, 2, 1)


def test_values_beyond_the_outermost_bins_are_counted_in_them():
    sizes = gradient_sizes([np.array([2.0**-100, 2.0**100])])
    assert count_at(sizes, FIRST_EXPONENT) == count_at(sizes, LAST_EXPONENT) == 1


def test_what_float16_loses_is_what_numpy_rounds_to_zero_or_holds_as_subnormal():
    rng = np.random.default_rng(3)
    edges = np.array([2.0**-25, np.nextafter(2.0**-25, 1), 2.0**-24, 2.0**-14, 2.0**-15])
    values = np.concatenate([edges, 2.0 ** rng.uniform(-32, -8, 20_000)])
    rounded = values.astype(np.float16)

    sizes = gradient_sizes([values])

    assert sizes.below_float16 == np.count_nonzero(rounded == 0)
    # A value just below the smallest normal may round up to it: count by the value itself.
    normal = values >= np.finfo(np.float16).smallest_normal
    assert sizes.subnormal_float16 == np.count_nonzero((rounded != 0) & ~normal)


def test_activation_and_weight_gradients_are_told_apart():
    probe = Probe(
        loss=1.0,
        logits=np.zeros((1, 2)),
        outputs={},
        output_gradients={"a": np.full(3, 4.0), "b": np.full(2, 4.0)},
        parameter_gradients={"a.weight": np.full(7, 0.5)},
        running_statistics={},
    )
    histogram = gradient_histogram(probe, step=9, loss_scale=8.0)
    assert (histogram.step, histogram.loss_scale) == (9, 8.0)
    assert count_at(histogram.activations, 2) == sum(histogram.activations.counts) == 5
    assert count_at(histogram.weights, -1) == sum(histogram.weights.counts) == 7
