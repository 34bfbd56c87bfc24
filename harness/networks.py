"""Networks as framework-neutral descriptions: each adapter builds its native layers from one.

Parameter names, shapes and counts, forward FLOPs and layer shapes follow from the description
alone. Names are those of the reference implementations (``conv1.weight``,
``layer1.0.bn1.running_mean``, ``fc.bias``). Shapes are written channels first: (C, H, W).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

Shape = tuple[int, ...]

TRAINING_FLOPS_OF_FORWARD = 3
"""FLOPs of a training step over those of its forward pass: the backward pass computes the gradient
of the input and that of the weights, each of them as many FLOPs as the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Conv:
    """2-D convolution with a square kernel and zero padding on all four sides.

    ``weight`` (out_channels, in_channels, kernel, kernel), ``bias`` (out_channels,) if any.
    """

    name: str
    in_channels: int
    out_channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """Batch normalisation over (N, H, W) with per-channel scale and shift.

    Normalises by the biased batch variance; ``running_var`` follows the unbiased one
    (Ioffe and Szegedy 2015, Algorithm 2). ``momentum`` is the weight of the new batch.
    """

    name: str
    channels: int
    momentum: float = 0.1
    # The float32 number nearest to 1e-5, which is what every framework computes with in float32;
    # Paddle holds it in float32 even in float64.
    epsilon: float = 9.999999747378752e-06


@dataclass(frozen=True, kw_only=True)
class ReLU:
    """max(x, 0)."""

    name: str


@dataclass(frozen=True, kw_only=True)
class MaxPool:
    """Maximum over square windows; the padding never wins. Input is non-negative (after ReLU)."""

    name: str
    kernel: int
    stride: int
    padding: int = 0


@dataclass(frozen=True, kw_only=True)
class GlobalAvgPool:
    """(C, H, W) → (C,): the mean over all positions."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Flatten:
    """(C, H, W) → (C·H·W,), channels slowest, whatever the memory layout of the framework."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Linear:
    """x·weightᵀ + bias; ``weight`` (out_features, in_features), ``bias`` (out_features,)."""

    name: str
    in_features: int
    out_features: int


@dataclass(frozen=True, kw_only=True)
class Residual:
    """body(x) + shortcut(x); an empty shortcut is the identity."""

    name: str
    body: Sequential
    shortcut: Sequential


@dataclass(frozen=True)
class Sequential:
    """Layers applied one after the other."""

    layers: tuple[Layer, ...] = ()


Layer = Conv | BatchNorm | ReLU | MaxPool | GlobalAvgPool | Flatten | Linear | Residual
Leaf = Conv | BatchNorm | ReLU | MaxPool | GlobalAvgPool | Flatten | Linear


@dataclass(frozen=True, kw_only=True)
class Network:
    """A named network from uint8 RGB images of one size to ``classes`` logits."""

    name: str
    image_size: int
    classes: int
    body: Sequential


@dataclass(frozen=True)
class PlacedLayer:
    """One layer of a network with the shapes that flow through it (no batch axis)."""

    layer: Layer
    input: Shape
    output: Shape


def build_network(name: str, *, classes: int, image_size: int) -> Network:
    """Describe the network called ``name`` for square RGB images.

    Raises:
        ValueError: the name is unknown, or the images are too small for the network.
    """
    if name not in NETWORKS:
        raise ValueError(f"model {name!r} is unknown; choose one of {', '.join(NETWORKS)}")
    network = Network(
        name=name, image_size=image_size, classes=classes, body=NETWORKS[name](classes, image_size)
    )
    for placed in place_layers(network):
        if min(placed.output) < 1:
            raise ValueError(
                f"images of {image_size} px are too small for {name}: nothing is left after "
                f"{placed.layer.name}; choose a larger image size"
            )
    return network


def place_layers(network: Network) -> list[PlacedLayer]:
    """Every layer in order of execution, a residual after its body and shortcut."""
    return list(_place(network.body, (3, network.image_size, network.image_size)))


def layer_inputs(network: Network) -> dict[str, str]:
    """Leaf → name of the layer whose output it is given; ``""`` for the normalised image."""
    inputs: dict[str, str] = {}

    def walk(sequence: Sequential, source: str) -> str:
        for layer in sequence.layers:
            if isinstance(layer, Residual):
                walk(layer.body, source)
                walk(layer.shortcut, source)
            else:
                inputs[layer.name] = source
            source = layer.name
        return source

    walk(network.body, "")
    return inputs


def trainable_shapes(network: Network) -> dict[str, Shape]:
    """Canonical name → shape of every tensor that the optimizer updates, in order."""
    shapes: dict[str, Shape] = {}
    for placed in place_layers(network):
        match placed.layer:
            case Conv() as conv:
                size = (conv.out_channels, conv.in_channels, conv.kernel, conv.kernel)
                shapes[f"{conv.name}.weight"] = size
                if conv.bias:
                    shapes[f"{conv.name}.bias"] = (conv.out_channels,)
            case BatchNorm() as norm:
                shapes[f"{norm.name}.weight"] = shapes[f"{norm.name}.bias"] = (norm.channels,)
            case Linear() as linear:
                shapes[f"{linear.name}.weight"] = (linear.out_features, linear.in_features)
                shapes[f"{linear.name}.bias"] = (linear.out_features,)
            case _:
                pass
    return shapes


def buffer_shapes(network: Network) -> dict[str, Shape]:
    """Canonical name → shape of the running statistics, which no optimizer updates."""
    norms = [
        placed.layer for placed in place_layers(network) if isinstance(placed.layer, BatchNorm)
    ]
    return {
        f"{norm.name}.{part}": (norm.channels,)
        for norm in norms
        for part in ("running_mean", "running_var")
    }


def parameter_count(network: Network) -> int:
    """Number of trainable scalars."""
    return sum(prod(shape) for shape in trainable_shapes(network).values())


def forward_flops_per_image(network: Network) -> int:
    """Floating-point operations of one image's forward pass.

    Twice the multiply-accumulates of the convolutions and linear layers; normalisation,
    activation and pooling are left out, as in the counts that papers and vendors publish.
    """
    return sum(2 * _multiply_accumulates(placed) for placed in place_layers(network))


def _multiply_accumulates(placed: PlacedLayer) -> int:
    match placed.layer:
        case Conv() as conv:
            return prod(placed.output) * conv.in_channels * conv.kernel**2
        case Linear() as linear:
            return linear.in_features * linear.out_features
        case _:
            return 0


def _place(sequence: Sequential, shape: Shape) -> Iterator[PlacedLayer]:
    for layer in sequence.layers:
        if isinstance(layer, Residual):
            inner = [*_place(layer.body, shape)]
            yield from inner
            yield from _place(layer.shortcut, shape)
            output = inner[-1].output
        else:
            output = _output_shape(layer, shape)
        yield PlacedLayer(layer, shape, output)
        shape = output


def _output_shape(layer: Leaf, shape: Shape) -> Shape:
    match layer:
        case Conv() | MaxPool():
            channels = layer.out_channels if isinstance(layer, Conv) else shape[0]
            height, width = (
                (size + 2 * layer.padding - layer.kernel) // layer.stride + 1 for size in shape[1:]
            )
            return (channels, height, width)
        case GlobalAvgPool():
            return shape[:1]
        case Flatten():
            return (prod(shape),)
        case Linear():
            return (layer.out_features,)
        case BatchNorm() | ReLU():
            return shape


def _conv_norm(
    conv: str, norm: str, channels: tuple[int, int], kernel: int, stride: int = 1
) -> tuple[Conv, BatchNorm]:
    """A convolution without bias that keeps the size (before its stride), then BatchNorm."""
    inputs, outputs = channels
    return (
        Conv(
            name=conv,
            in_channels=inputs,
            out_channels=outputs,
            kernel=kernel,
            stride=stride,
            padding=kernel // 2,
        ),
        BatchNorm(name=norm, channels=outputs),
    )


def _basic_block(name: str, inputs: int, width: int, stride: int) -> tuple[Layer, ...]:
    body = (
        *_conv_norm(f"{name}.conv1", f"{name}.bn1", (inputs, width), 3, stride),
        ReLU(name=f"{name}.relu1"),
        *_conv_norm(f"{name}.conv2", f"{name}.bn2", (width, width), 3),
    )
    return _residual(name, body, (inputs, width), stride)


def _bottleneck(name: str, inputs: int, width: int, stride: int) -> tuple[Layer, ...]:
    # The stride sits on the 3×3 convolution, as in the implementations people use ("v1.5").
    body = (
        *_conv_norm(f"{name}.conv1", f"{name}.bn1", (inputs, width), 1),
        ReLU(name=f"{name}.relu1"),
        *_conv_norm(f"{name}.conv2", f"{name}.bn2", (width, width), 3, stride),
        ReLU(name=f"{name}.relu2"),
        *_conv_norm(f"{name}.conv3", f"{name}.bn3", (width, 4 * width), 1),
    )
    return _residual(name, body, (inputs, 4 * width), stride)


def _residual(
    name: str, body: tuple[Layer, ...], channels: tuple[int, int], stride: int
) -> tuple[Layer, ...]:
    same_shape = stride == 1 and channels[0] == channels[1]
    projection = _conv_norm(f"{name}.downsample.0", f"{name}.downsample.1", channels, 1, stride)
    shortcut = Sequential(() if same_shape else projection)
    return (
        Residual(name=name, body=Sequential(body), shortcut=shortcut),
        ReLU(name=f"{name}.relu"),
    )


def _resnet(
    block: Callable[[str, int, int, int], tuple[Layer, ...]], expansion: int, depths: Shape
) -> Callable[[int, int], Sequential]:
    """He et al. 2016, Table 1: a 7×7 stem and four stages of residual blocks."""

    def describe(classes: int, image_size: int) -> Sequential:
        layers: list[Layer] = [
            *_conv_norm("conv1", "bn1", (3, 64), 7, 2),
            ReLU(name="relu"),
            MaxPool(name="maxpool", kernel=3, stride=2, padding=1),
        ]
        inputs = 64
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                layers += block(f"layer{stage + 1}.{index}", inputs, width, stride)
                inputs = width * expansion
        layers += [
            GlobalAvgPool(name="avgpool"),
            Linear(name="fc", in_features=inputs, out_features=classes),
        ]
        return Sequential(tuple(layers))

    return describe


def _small_cnn(channels: Shape, kernel: int, hidden: int) -> Callable[[int, int], Sequential]:
    """Convolutions without padding, each with ReLU and a 2×2 max-pool, then two linear layers."""

    def describe(classes: int, image_size: int) -> Sequential:
        layers: list[Layer] = []
        size = image_size
        for number, (inputs, outputs) in enumerate(pairwise((3, *channels)), start=1):
            layers += [
                Conv(
                    name=f"conv{number}",
                    in_channels=inputs,
                    out_channels=outputs,
                    kernel=kernel,
                    bias=True,
                ),
                ReLU(name=f"relu{number}"),
                MaxPool(name=f"pool{number}", kernel=2, stride=2),
            ]
            size = (size - kernel + 1) // 2
        layers += [
            Flatten(name="flatten"),
            Linear(name="fc1", in_features=channels[-1] * size**2, out_features=hidden),
            ReLU(name="relu_fc1"),
            Linear(name="fc2", in_features=hidden, out_features=classes),
        ]
        return Sequential(tuple(layers))

    return describe


NETWORKS: dict[str, Callable[[int, int], Sequential]] = {
    "resnet18": _resnet(_basic_block, 1, (2, 2, 2, 2)),
    "resnet34": _resnet(_basic_block, 1, (3, 4, 6, 3)),
    "resnet50": _resnet(_bottleneck, 4, (3, 4, 6, 3)),
    "resnet101": _resnet(_bottleneck, 4, (3, 4, 23, 3)),
    "resnet152": _resnet(_bottleneck, 4, (3, 8, 36, 3)),
    "lenet": _small_cnn((20, 50), 5, 500),
    "convnet": _small_cnn((32,), 3, 128),
}
