"""Initial weights: the distributions of the papers, one random stream for each tensor."""

from math import prod, sqrt

import numpy as np
import pytest
from scipy import stats

from harness.networks import buffer_shapes, build_network, trainable_shapes
from harness.weights import Weights, initial_weights


def weights_of(name: str = "resnet18", *, classes: int = 5, seed: int = 0) -> Weights:
    return initial_weights(build_network(name, classes=classes, image_size=64), seed=seed)


@pytest.fixture(scope="module")
def resnet18() -> Weights:
    return weights_of()


def test_every_tensor_of_the_network_is_there_in_float32(resnet18: Weights):
    network = build_network("resnet18", classes=5, image_size=64)

    assert {name: value.shape for name, value in resnet18.items()} == (
        trainable_shapes(network) | buffer_shapes(network)
    )
    assert {value.dtype for value in resnet18.values()} == {np.dtype(np.float32)}


def test_convolutions_have_the_standard_deviation_of_he_et_al(resnet18: Weights):
    convolutions = {name: value for name, value in resnet18.items() if value.ndim == 4}

    assert len(convolutions) == 20
    for name, value in convolutions.items():
        outputs, _, height, width = value.shape
        expected = sqrt(2 / (outputs * height * width))
        # Five standard errors of a standard deviation and of a mean.
        assert value.std() == pytest.approx(expected, rel=5 / sqrt(2 * value.size)), name
        assert abs(value.mean()) < 5 * expected / sqrt(value.size), name


def test_the_last_stage_of_resnet18_starts_with_a_deviation_of_0_0208(resnet18: Weights):
    # sqrt(2 / (512·3·3)): the backward form, by output channels; the forward form gives 0.0295.
    assert resnet18["layer4.0.conv1.weight"].std() == pytest.approx(0.020833, rel=0.005)


def test_convolutions_are_drawn_from_a_normal_distribution(resnet18: Weights):
    values = resnet18["layer2.0.conv2.weight"].ravel()

    assert stats.kstest(values, "norm", args=(0, sqrt(2 / (128 * 9)))).pvalue > 0.001


def test_linear_layers_are_uniform_within_one_over_the_root_of_their_inputs():
    lenet = weights_of("lenet", classes=10)
    for layer, inputs in (("fc1", prod((50, 13, 13))), ("fc2", 500)):
        bound = 1 / sqrt(inputs)
        for part in ("weight", "bias"):
            values = lenet[f"{layer}.{part}"].ravel()
            # The bound itself, rounded to float32, may be reached.
            assert np.abs(values).max() <= np.float32(bound)
            if values.size >= 500:
                assert np.abs(values).max() > 0.98 * bound
                scaled = (values / bound + 1) / 2
                assert stats.kstest(scaled, "uniform").pvalue > 0.001


def test_batch_normalisation_starts_as_the_identity(resnet18: Weights):
    for part, value in {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}.items():
        np.testing.assert_array_equal(resnet18[f"layer3.1.bn2.{part}"], np.full(256, value))


def test_biases_of_convolutions_start_at_zero():
    np.testing.assert_array_equal(weights_of("lenet")["conv2.bias"], np.zeros(50))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(resnet18: Weights):
    again, other = weights_of(seed=0), weights_of(seed=1)

    for name, value in resnet18.items():
        np.testing.assert_array_equal(again[name], value)
    drawn = [name for name in resnet18 if "conv" in name or name.startswith("fc")]
    assert not any(np.array_equal(other[name], resnet18[name]) for name in drawn)


def test_tensors_of_one_shape_are_drawn_apart(resnet18: Weights):
    first, second = resnet18["layer1.0.conv1.weight"], resnet18["layer1.0.conv2.weight"]

    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 5 / sqrt(first.size)


def test_another_head_or_depth_does_not_move_the_other_layers(resnet18: Weights):
    other_head, deeper = weights_of(classes=10), weights_of("resnet34")

    for name, value in resnet18.items():
        if not name.startswith("fc"):
            np.testing.assert_array_equal(other_head[name], value)
        if name in deeper:
            np.testing.assert_array_equal(deeper[name], value)
