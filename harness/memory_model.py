"""How many bytes a training step needs, worked out from the network description alone.

What a framework must hold, whichever it is:

- **weights**: every trainable scalar in float32 (4 bytes; 8 in float64). Mixed precision keeps
  these as *master weights*, so it saves nothing here.
- **weight copies**: under mixed precision, the weight and bias of each convolution and linear
  layer once more in 2 bytes, because the backward pass multiplies by the weight that the forward
  pass used.
- **statistics**: BatchNorm's running mean and variance, and the mean and inverse deviation of the
  batch that its backward pass needs; float32 in every precision.
- **optimizer state**: two moments a scalar for Adam, one for SGD with momentum, none without.
- **gradients**: one float32 value a trainable scalar, also under mixed precision.
- **activations**: each tensor that the backward pass reads, counted once however many layers read
  it, in the compute dtype:

  ========================  =======================================================
  convolution, linear       the input (for the gradient of the weight)
  BatchNorm                 the input (normalised again from the batch's statistics)
  ReLU                      the output (its sign is all that is needed)
  max-pool                  the input and the output (where they are equal, it won)
  mean-pool, flatten        nothing but a shape
  residual addition         nothing: the gradient passes through
  cross-entropy             the log-probabilities, in float32 at least
  ========================  =======================================================

- **input**: one batch of uint8 pixels and int64 labels. The normalised image is an activation.

The parts are added up as if all were alive at once. That is nearly so early in the backward pass,
when most activations are still held and the last stage, which has most of the parameters, has its
gradients already.

What is not here, and what frameworks may do otherwise, stands in :data:`UNCERTAINTIES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import prod

from harness.networks import (
    BatchNorm,
    Conv,
    Flatten,
    Linear,
    MaxPool,
    Network,
    PlacedLayer,
    ReLU,
    buffer_shapes,
    layer_inputs,
    parameter_count,
    place_layers,
    trainable_shapes,
)

UNCERTAINTIES: tuple[str, ...] = (
    "gradients of activations, which live while the backward pass goes through a layer",
    "workspaces of convolutions, and their operands in another memory order",
    "where a kernel has no low precision: float32 copies of its operands (BatchNorm in Keras)",
    "an 8-byte index for each output of a max-pool in PyTorch, in place of the output",
    "activations that a compiler computes again, or writes over in place",
    "the batches that the loader holds ready, and gradients kept from one step to the next",
    "what the allocator holds but nothing uses, and the framework itself",
)
"""What the analytic figures leave out or a framework may do differently; each can be large."""

_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_LABEL_BYTES = 8
_SLOTS = {"adam": 2, "sgd": 1}


@dataclass(frozen=True, kw_only=True)
class MemorySplit:
    """Bytes that a training step needs, by purpose; see the module's text for each rule."""

    weights_bytes: int
    weight_copies_bytes: int
    statistics_bytes: int
    optimizer_state_bytes: int
    gradients_bytes: int
    activations_bytes: int
    input_bytes: int

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(getattr(self, field.name) for field in fields(self))


def training_memory(
    network: Network,
    *,
    batch_size: int,
    dtype: str,
    optimizer: str,
    momentum: float = 0.9,
) -> MemorySplit:
    """What a training step of ``network`` on ``batch_size`` images needs.

    Args:
        network: which to train.
        batch_size: images in the step.
        dtype: compute dtype as in ``RunConfig.compute_dtype``: float16 and bfloat16 mean mixed
            precision with float32 master weights.
        optimizer: adam or sgd.
        momentum: of sgd; 0 needs no state.

    Raises:
        ValueError: the dtype or the optimizer is unknown.
    """
    if dtype not in _ITEM_BYTES or optimizer not in _SLOTS:
        raise ValueError(f"nothing is known of the memory of {dtype} and {optimizer}")
    compute_bytes = _ITEM_BYTES[dtype]
    master_bytes = max(compute_bytes, _ITEM_BYTES["float32"])
    parameters = parameter_count(network)
    places = place_layers(network)
    running = sum(prod(shape) for shape in buffer_shapes(network).values())
    slots = 0 if optimizer == "sgd" and momentum == 0 else _SLOTS[optimizer]
    kept = sum(prod(shape) for shape in kept_activations(network).values())
    pixels = 3 * network.image_size**2
    return MemorySplit(
        weights_bytes=parameters * master_bytes,
        weight_copies_bytes=0
        if compute_bytes == master_bytes
        else _multiplied_parameters(network, places) * compute_bytes,
        # As many values of the batch as of the running statistics: two a channel.
        statistics_bytes=2 * running * master_bytes,
        optimizer_state_bytes=slots * parameters * master_bytes,
        gradients_bytes=parameters * master_bytes,
        activations_bytes=batch_size * (kept * compute_bytes + network.classes * master_bytes),
        input_bytes=batch_size * (pixels + _LABEL_BYTES),
    )


def bytes_per_image(network: Network, *, dtype: str) -> int:
    """What one more image in the batch needs: its pixels, label and kept activations."""
    one, two = (
        training_memory(network, batch_size=size, dtype=dtype, optimizer="sgd").total_bytes
        for size in (1, 2)
    )
    return two - one


def estimated_batch(
    network: Network, *, free_bytes: int, dtype: str, optimizer: str, momentum: float = 0.9
) -> int:
    """Most images of which a step fits into ``free_bytes``; 0 where not even the weights do."""
    fixed = training_memory(
        network, batch_size=0, dtype=dtype, optimizer=optimizer, momentum=momentum
    )
    return max(0, free_bytes - fixed.total_bytes) // bytes_per_image(network, dtype=dtype)


def kept_activations(network: Network) -> dict[str, tuple[int, ...]]:
    """Layer whose output the backward pass reads → its shape; ``""`` is the normalised image.

    A flattened tensor is a view of the one before it, and stands under that one's name.
    """
    places = place_layers(network)
    shapes = {"": (3, network.image_size, network.image_size)}
    shapes |= {placed.layer.name: placed.output for placed in places}
    sources = layer_inputs(network)
    views = {
        placed.layer.name: sources[placed.layer.name]
        for placed in places
        if isinstance(placed.layer, Flatten)
    }
    names = [name for placed in places for name in _read_by_backward(placed, sources)]
    return {name: shapes[name] for name in (views.get(name, name) for name in names)}


def _read_by_backward(placed: PlacedLayer, sources: dict[str, str]) -> Iterator[str]:
    """The layers whose output the backward pass of this one reads."""
    match placed.layer:
        case Conv() | Linear() | BatchNorm():
            yield sources[placed.layer.name]
        case ReLU():
            yield placed.layer.name
        case MaxPool():
            yield sources[placed.layer.name]
            yield placed.layer.name
        case _:
            pass


def _multiplied_parameters(network: Network, places: list[PlacedLayer]) -> int:
    """Scalars of the convolutions and linear layers, which low precision copies."""
    layers = {placed.layer.name for placed in places if isinstance(placed.layer, Conv | Linear)}
    return sum(
        prod(shape)
        for name, shape in trainable_shapes(network).items()
        if name.rpartition(".")[0] in layers
    )
