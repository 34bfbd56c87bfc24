"""Network descriptions against published counts and arithmetic on paper."""

from itertools import pairwise

import pytest

from harness.networks import (
    NETWORKS,
    BatchNorm,
    Conv,
    Linear,
    MaxPool,
    Network,
    Residual,
    buffer_shapes,
    build_network,
    forward_flops_per_image,
    parameter_count,
    place_layers,
    trainable_shapes,
)

# Parameters with 1000 classes, and 10⁹ multiply-accumulates at 224 px, as torchvision publishes
# them with its weights ("num_params", "_ops").
PUBLISHED = {
    "resnet18": (11_689_512, 1.814),
    "resnet34": (21_797_672, 3.664),
    "resnet50": (25_557_032, 4.089),
    "resnet101": (44_549_160, 7.801),
    "resnet152": (60_192_808, 11.514),
}


def output_shapes(network: Network) -> dict[str, tuple[int, ...]]:
    return {placed.layer.name: placed.output for placed in place_layers(network)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_resnet_has_the_published_number_of_parameters(name: str):
    network = build_network(name, classes=1000, image_size=224)

    assert parameter_count(network) == PUBLISHED[name][0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_resnet_has_the_published_multiply_accumulates(name: str):
    network = build_network(name, classes=1000, image_size=224)

    assert forward_flops_per_image(network) / 2e9 == pytest.approx(PUBLISHED[name][1], abs=5e-4)


@pytest.mark.parametrize(("classes", "parameters"), [(5, 11_179_077), (10, 11_181_642)])
def test_the_head_follows_the_number_of_classes(classes: int, parameters: int):
    # 513 parameters a class: 512 weights and a bias.
    assert parameter_count(build_network("resnet18", classes=classes, image_size=64)) == parameters


def test_parameters_of_a_resnet_do_not_depend_on_the_image_size():
    shapes = [
        trainable_shapes(build_network("resnet50", classes=7, image_size=size))
        for size in (32, 64, 224)
    ]

    assert shapes[0] == shapes[1] == shapes[2]


# He et al. 2016, Table 1, for 224 px; every convolution with stride 2 halves, rounded up.
@pytest.mark.parametrize(
    ("image_size", "sides"),
    [
        (224, (112, 56, 56, 28, 14, 7)),
        (64, (32, 16, 16, 8, 4, 2)),
        (32, (16, 8, 8, 4, 2, 1)),
        (75, (38, 19, 19, 10, 5, 3)),
    ],
)
@pytest.mark.parametrize(("name", "widest"), [("resnet18", 1), ("resnet50", 4)])
def test_the_stages_of_a_resnet_have_the_sides_of_the_paper(
    name: str, widest: int, image_size: int, sides: tuple[int, ...]
):
    shapes = output_shapes(build_network(name, classes=5, image_size=image_size))

    assert shapes["conv1"] == (64, sides[0], sides[0])
    assert shapes["maxpool"] == (64, sides[1], sides[1])
    for stage, side in enumerate(sides[2:]):
        assert shapes[f"layer{stage + 1}.1"] == (64 * 2**stage * widest, side, side)
    assert shapes["avgpool"] == (512 * widest,)
    assert shapes["fc"] == (5,)


def test_the_parameters_of_resnet18_are_named_as_in_torchvision():
    names = ["conv1.weight", "bn1.weight", "bn1.bias"]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            for half in (1, 2):
                names += [f"layer{stage}.{block}.conv{half}.weight"]
                names += [f"layer{stage}.{block}.bn{half}.{part}" for part in ("weight", "bias")]
            if stage > 1 and block == 0:
                shortcut = f"layer{stage}.0.downsample"
                names += [f"{shortcut}.0.weight", f"{shortcut}.1.weight", f"{shortcut}.1.bias"]
    names += ["fc.weight", "fc.bias"]

    network = build_network("resnet18", classes=10, image_size=64)

    assert list(trainable_shapes(network)) == names
    assert len(names) == 62
    assert list(buffer_shapes(network)) == [
        f"{name.removesuffix('.bias')}.{part}"
        for name in names
        if name.endswith(".bias") and name != "fc.bias"
        for part in ("running_mean", "running_var")
    ]


@pytest.mark.parametrize(
    ("name", "trainable", "buffers"),
    # The lengths of torchvision's parameters() and of its buffers without num_batches_tracked.
    [
        ("resnet34", 110, 72),
        ("resnet50", 161, 106),
        ("resnet101", 314, 208),
        ("resnet152", 467, 310),
    ],
)
def test_a_resnet_has_as_many_tensors_as_in_torchvision(name: str, trainable: int, buffers: int):
    network = build_network(name, classes=10, image_size=64)

    assert len(trainable_shapes(network)) == trainable
    assert len(buffer_shapes(network)) == buffers


def test_the_stride_of_a_bottleneck_sits_on_its_middle_convolution():
    network = build_network("resnet50", classes=10, image_size=64)
    strides = {
        placed.layer.name: placed.layer.stride
        for placed in place_layers(network)
        if isinstance(placed.layer, Conv)
    }

    assert [strides[f"layer2.0.{part}"] for part in ("conv1", "conv2", "conv3")] == [1, 2, 1]
    assert strides["layer2.0.downsample.0"] == 2
    assert {strides[f"layer2.1.{part}"] for part in ("conv1", "conv2", "conv3")} == {1}


def test_the_first_stage_projects_only_where_the_width_changes():
    assert "layer1.0.downsample.0.weight" not in trainable_shapes(
        build_network("resnet18", classes=10, image_size=64)
    )
    assert trainable_shapes(build_network("resnet50", classes=10, image_size=64))[
        "layer1.0.downsample.0.weight"
    ] == (256, 64, 1, 1)


def test_lenet_has_the_parameters_of_the_published_one_and_two_more_input_channels():
    # 431,080 is Caffe's LeNet on 28×28 grey images; two more channels add 2·20·5·5 weights.
    network = build_network("lenet", classes=10, image_size=28)

    assert parameter_count(network) == 431_080 + 1_000
    # 24·24·20·75 + 8·8·50·500 + 800·500 + 500·10 multiply-accumulates.
    assert forward_flops_per_image(network) == 2 * (864_000 + 1_600_000 + 400_000 + 5_000)


def test_convnet_has_the_parameters_of_the_published_one_and_two_more_input_channels():
    # 693,962 is the Keras net Conv(32, 3×3), MaxPool(2), Dense(128), Dense(10) on 28×28 grey
    # images; two more channels add 2·32·3·3 weights.
    network = build_network("convnet", classes=10, image_size=28)

    assert parameter_count(network) == 693_962 + 576
    # 26·26·32·27 + 5408·128 + 128·10 multiply-accumulates.
    assert forward_flops_per_image(network) == 2 * (584_064 + 692_224 + 1_280)


def test_shapes_of_lenet_are_those_on_paper():
    assert output_shapes(build_network("lenet", classes=10, image_size=28)) == {
        "conv1": (20, 24, 24),
        "relu1": (20, 24, 24),
        "pool1": (20, 12, 12),
        "conv2": (50, 8, 8),
        "relu2": (50, 8, 8),
        "pool2": (50, 4, 4),
        "flatten": (800,),
        "fc1": (500,),
        "relu_fc1": (500,),
        "fc2": (10,),
    }


def test_images_too_small_for_lenet_are_refused_with_the_layer_that_has_nothing_left():
    # 16 → 12 → 6 → 2 → 1, but 15 → 11 → 5 → 1 → 0.
    assert output_shapes(build_network("lenet", classes=2, image_size=16))["pool2"] == (50, 1, 1)
    with pytest.raises(ValueError, match=r"15 px are too small for lenet.*pool2.*larger image"):
        build_network("lenet", classes=2, image_size=15)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_has_an_empty_layer_at_the_smallest_size_it_accepts(name: str):
    smallest = None
    for image_size in range(1, 40):
        try:
            network = build_network(name, classes=3, image_size=image_size)
        except ValueError:
            continue
        smallest = smallest or image_size
        assert all(min(placed.output) >= 1 for placed in place_layers(network))

    # Padded everywhere, a ResNet has something left of a single pixel.
    assert smallest == {"lenet": 16, "convnet": 4}.get(name, 1)


def test_an_unknown_network_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'alexnet' is unknown; choose one of resnet18.*lenet"):
        build_network("alexnet", classes=10, image_size=64)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_takes_the_channels_that_the_one_before_leaves(name: str):
    for placed in place_layers(build_network(name, classes=10, image_size=64)):
        match placed.layer:
            case Conv(in_channels=channels) | BatchNorm(channels=channels):
                assert placed.input[0] == channels
            case Linear(in_features=features):
                assert placed.input == (features,)
            case MaxPool(kernel=kernel, padding=padding):
                assert 2 * padding <= kernel
            case _:
                pass


@pytest.mark.parametrize("name", NETWORKS)
def test_both_branches_of_a_residual_end_in_the_same_shape(name: str):
    network = build_network(name, classes=10, image_size=64)
    shapes = output_shapes(network)
    residuals = [p for p in place_layers(network) if isinstance(p.layer, Residual)]

    for placed in residuals:
        assert isinstance(placed.layer, Residual)
        body, shortcut = placed.layer.body.layers, placed.layer.shortcut.layers
        assert shapes[body[-1].name] == placed.output
        assert (shapes[shortcut[-1].name] if shortcut else placed.input) == placed.output
    depth = {"resnet18": 8, "resnet34": 16, "resnet50": 16, "resnet101": 33, "resnet152": 50}
    assert len(residuals) == depth.get(name, 0)


@pytest.mark.parametrize("name", NETWORKS)
def test_layer_names_are_unique(name: str):
    names = [p.layer.name for p in place_layers(build_network(name, classes=10, image_size=64))]

    assert len(names) == len(set(names))


def test_a_plain_network_is_placed_without_gaps():
    placed = place_layers(build_network("lenet", classes=10, image_size=28))

    assert placed[0].input == (3, 28, 28)
    assert all(before.output == after.input for before, after in pairwise(placed))
