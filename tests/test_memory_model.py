"""The analytic memory of a training step, against sums on paper and against PyTorch."""

from math import prod

import pytest

from harness.memory_model import (
    bytes_per_image,
    estimated_batch,
    kept_activations,
    training_memory,
)
from harness.networks import Network, build_network

PARAMETERS = 11_689_512
"""Trainable scalars of a ResNet-18 of 1000 classes (torchvision's documentation)."""
NORM_CHANNELS = 64 * 5 + 128 * 5 + 256 * 5 + 512 * 5
"""Channels of its 20 BatchNorms: the stem and four of the first stage; five of each other stage."""

# Values that the backward pass of a ResNet-18 reads, for one image of 224 px: the image; the stem
# (BatchNorm's input, ReLU's and max-pool's output); then for each block the input of its two or
# three BatchNorms and the output of its two ReLUs; at last the input of the linear layer.
RESNET18_KEPT = (
    3 * 224**2
    + 2 * 64 * 112**2
    + 64 * 56**2
    + 8 * 64 * 56**2
    + 9 * 128 * 28**2
    + 9 * 256 * 14**2
    + 9 * 512 * 7**2
    + 512
)


@pytest.fixture(scope="module")
def resnet18() -> Network:
    """ResNet-18 of 1000 classes at 224 px."""
    return build_network("resnet18", classes=1000, image_size=224)


@pytest.fixture(scope="module")
def lenet() -> Network:
    """Images of 28 px become 20×24², 20×12², 50×8², 50×4², 500 and 10 values."""
    return build_network("lenet", classes=10, image_size=28)


def test_adam_in_float32_holds_four_values_a_parameter(resnet18: Network):
    split = training_memory(resnet18, batch_size=16, dtype="float32", optimizer="adam")
    assert split.weights_bytes == 46_758_048 == 4 * PARAMETERS
    assert split.gradients_bytes == 4 * PARAMETERS
    assert split.optimizer_state_bytes == 8 * PARAMETERS
    assert split.weight_copies_bytes == 0


def test_mixed_precision_keeps_float32_master_weights_and_adds_copies(resnet18: Network):
    full = training_memory(resnet18, batch_size=16, dtype="float32", optimizer="adam")
    mixed = training_memory(resnet18, batch_size=16, dtype="float16", optimizer="adam")
    assert mixed.weights_bytes == full.weights_bytes
    assert mixed.gradients_bytes == full.gradients_bytes
    assert mixed.optimizer_state_bytes == full.optimizer_state_bytes
    # All but the scale and shift of the BatchNorms, in two bytes.
    assert mixed.weight_copies_bytes == 2 * (PARAMETERS - 2 * NORM_CHANNELS) == 23_359_824


def test_batchnorm_keeps_four_values_a_channel_in_float32(resnet18: Network):
    for dtype in ("float32", "bfloat16"):
        split = training_memory(resnet18, batch_size=16, dtype=dtype, optimizer="adam")
        assert split.statistics_bytes == 4 * 4 * NORM_CHANNELS


@pytest.mark.parametrize(("momentum", "slots"), [(0.9, 1), (0.0, 0)])
def test_sgd_keeps_a_velocity_only_with_momentum(resnet18: Network, momentum: float, slots: int):
    split = training_memory(
        resnet18, batch_size=1, dtype="float32", optimizer="sgd", momentum=momentum
    )
    assert split.optimizer_state_bytes == slots * 4 * PARAMETERS


def test_each_kept_activation_is_counted_once(resnet18: Network):
    assert sum(map(prod, kept_activations(resnet18).values())) == RESNET18_KEPT == 5_143_552
    split = training_memory(resnet18, batch_size=16, dtype="float32", optimizer="adam")
    assert split.activations_bytes == 16 * 4 * (RESNET18_KEPT + 1000)


def test_mixed_precision_halves_all_activations_but_the_log_probabilities(resnet18: Network):
    split = training_memory(resnet18, batch_size=16, dtype="bfloat16", optimizer="adam")
    assert split.activations_bytes == 16 * (2 * RESNET18_KEPT + 4 * 1000)


def test_a_bottleneck_keeps_seven_tensors_and_nine_where_it_projects():
    # ResNet-50 at 64 px; the stem leaves 64×16². Stage width w at side s: three BatchNorms read
    # w, w, 4w, and three ReLUs give w, w, 4w; a projection's BatchNorm reads 4w. The first block
    # of a later stage has its first BatchNorm and ReLU before the stride, at twice the side.
    stages = [(64, 16, 3), (128, 8, 4), (256, 4, 6), (512, 2, 3)]
    kept = 3 * 64**2 + 2 * 64 * 32**2 + 64 * 16**2 + 2048
    for stage, (width, side, depth) in enumerate(stages):
        before = side if stage == 0 else 2 * side
        kept += depth * 12 * width * side**2 + 4 * width * side**2
        kept += 2 * width * (before**2 - side**2)
    network = build_network("resnet50", classes=5, image_size=64)
    assert sum(map(prod, kept_activations(network).values())) == kept


def test_a_flattened_tensor_is_not_counted_beside_the_one_it_views(lenet: Network):
    # The image; each ReLU's and each max-pool's output; the ReLU between the linear layers.
    on_paper = 3 * 28**2 + 20 * 24**2 + 20 * 12**2 + 50 * 8**2 + 50 * 4**2 + 500
    assert sum(map(prod, kept_activations(lenet).values())) == on_paper == 21_252
    assert "flatten" not in kept_activations(lenet)


def test_one_more_image_needs_its_activations_pixels_and_label(lenet: Network):
    pixels_and_label = 3 * 28**2 + 8
    assert bytes_per_image(lenet, dtype="float32") == 4 * (21_252 + 10) + pixels_and_label
    assert bytes_per_image(lenet, dtype="float16") == 2 * 21_252 + 4 * 10 + pixels_and_label


def test_the_parts_add_up_to_the_total(lenet: Network):
    # conv 20·75+20, conv 50·500+50, linear 800·500+500 and 500·10+10.
    parameters = 1_520 + 25_050 + 400_500 + 5_010
    split = training_memory(lenet, batch_size=4, dtype="float32", optimizer="adam")
    assert split.total_bytes == 16 * parameters + 4 * bytes_per_image(lenet, dtype="float32")


def test_the_estimated_batch_fills_what_the_network_itself_leaves_free(lenet: Network):
    fixed = 16 * 432_080
    image = bytes_per_image(lenet, dtype="float32")

    def estimate(free_bytes: int) -> int:
        return estimated_batch(lenet, free_bytes=free_bytes, dtype="float32", optimizer="adam")

    assert estimate(fixed + 10 * image) == 10
    assert estimate(fixed + 10 * image - 1) == 9
    assert estimate(fixed - 1) == 0


@pytest.mark.torch
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "lenet"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pytorch_saves_for_backward_what_the_rules_say(name: str, dtype: str):
    import torch

    from backends.pytorch.network import build_module

    network = build_network(name, classes=5, image_size=32)
    model, _ = build_module(torch, network)
    images = torch.rand(4, 3, 32, 32)
    if dtype != "float32":
        # Autocast's own copy of the image is what is kept then.
        images = images.to(getattr(torch, dtype))
    saved: dict[int, torch.UntypedStorage] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        # Not the labels, nor the index of each output that PyTorch's max-pool keeps (int64).
        if tensor.is_floating_point():
            # Held, so that no later tensor is given the same address.
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage
        return tensor

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype != "float32")
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), autocast:
        loss = torch.nn.functional.cross_entropy(model(images), torch.arange(4))
    owned = [*model.parameters(), *model.buffers()]
    own = {tensor.untyped_storage().data_ptr() for tensor in owned}
    measured = sum(storage.nbytes() for key, storage in saved.items() if key not in own)
    assert loss.isfinite()

    split = training_memory(network, batch_size=4, dtype=dtype, optimizer="adam")
    batch_statistics = split.statistics_bytes // 2
    expected = split.activations_bytes + split.weight_copies_bytes + batch_statistics
    # Not kept: the copies of biases. Kept beside: a few scalars of the loss.
    assert measured == pytest.approx(expected, rel=2e-3)
