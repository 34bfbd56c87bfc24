"""What a parity check asks of each framework: batches, roundings and questions."""

import numpy as np
import pytest
from fake_runs import fake_run

from harness.networks import (
    BatchNorm,
    Conv,
    GlobalAvgPool,
    Linear,
    Network,
    ReLU,
    Residual,
    Sequential,
    build_network,
    layer_inputs,
)
from harness.trial import CLASSES, layer_questions, round_to, trial_batch, trial_network


def test_batches_are_pictures_by_seed_and_index():
    run = fake_run(batch_size=3, image_size=30)
    images, labels = trial_batch(run, 0)
    again, _ = trial_batch(run, 0)
    other, _ = trial_batch(run, 1)

    assert images.shape == (3, 30, 30, 3)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert set(labels.tolist()) <= set(range(CLASSES))
    assert np.array_equal(images, again)
    assert not np.array_equal(images, other)


def test_rounding_to_bfloat16_keeps_eight_bits_of_mantissa():
    # 1 + 2**-7 is the next bfloat16 after 1; halfway values go to the even neighbour.
    values = np.array([1.0, 1 + 2**-7, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-12, -3.14159265])
    expected = [1.0, 1 + 2**-7, 1.0, 1 + 2**-6, 1 + 2**-7, -3.140625]
    assert round_to(values, "bfloat16").tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rounding_to_an_ieee_type_is_numpys(dtype: str):
    values = np.random.default_rng(0).normal(size=1000)
    assert np.array_equal(round_to(values, dtype), values.astype(dtype).astype(np.float64))


def test_each_leaf_names_the_layer_that_feeds_it():
    def conv(name: str) -> Conv:
        return Conv(name=name, in_channels=3, out_channels=3, kernel=1)

    block = Residual(
        name="block",
        body=Sequential((conv("a"), BatchNorm(name="a_norm", channels=3))),
        shortcut=Sequential((conv("short"),)),
    )
    network = Network(
        name="tiny",
        image_size=4,
        classes=2,
        body=Sequential(
            (
                conv("stem"),
                block,
                ReLU(name="relu"),
                GlobalAvgPool(name="pool"),
                Linear(name="fc", in_features=3, out_features=2),
            )
        ),
    )
    assert layer_inputs(network) == {
        "stem": "",
        "a": "stem",
        "a_norm": "a",
        "short": "stem",
        "relu": "block",
        "pool": "relu",
        "fc": "pool",
    }


def test_questions_cover_every_leaf_and_scale_its_gradient_to_about_one():
    run = fake_run(model="lenet", image_size=16, batch_size=2)
    network = trial_network(run)
    names = list(layer_inputs(network))
    rng = np.random.default_rng(1)
    reference = {}
    for name in names:
        reference[f"outputs/{name}"] = rng.normal(size=(2, 3))
        reference[f"output_gradients/{name}"] = rng.normal(size=(2, 3)) * 1e-9

    questions = layer_questions(run, reference, "float16")

    assert set(questions) == {f"{part}/{n}" for n in names for part in ("x", "output_gradient")}
    assert questions["x/conv1"].shape == (2, 3, 16, 16)  # the normalised image
    for name in names:
        gradient = questions[f"output_gradient/{name}"]
        assert 1 <= np.abs(gradient).max() <= 2
        ratio = gradient / reference[f"output_gradients/{name}"]
        # One power of two for all, up to float16's half unit in the last place.
        assert np.ptp(np.log2(ratio)) < 2**-9


def test_the_network_of_a_trial_has_five_classes():
    assert trial_network(fake_run(image_size=28)) == build_network(
        "lenet", classes=5, image_size=28
    )
