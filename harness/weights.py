"""Initial weights from NumPy, so that every framework starts from the same numbers."""

from __future__ import annotations

from math import prod
from zlib import crc32

import numpy as np

from harness.networks import Network, Shape, buffer_shapes, trainable_shapes

Weights = dict[str, np.ndarray]
"""Canonical name → float32 array, trainable tensors and running statistics alike."""


def initial_weights(network: Network, *, seed: int) -> Weights:
    """Draw the initial weights of ``network``; the same seed gives the same float32 values.

    Convolutions are normal with variance 2 / (out_channels·kernel²) (He et al. 2015, eq. 14, the
    backward form); linear layers uniform in ±1/√in_features, weight and bias; BatchNorm starts as
    the identity. Each tensor has a random stream of its own, so that a change elsewhere in the
    network does not move it.
    """
    shapes = trainable_shapes(network)
    weights = {name: _draw(name, shape, shapes, seed) for name, shape in shapes.items()}
    for name, shape in buffer_shapes(network).items():
        start = np.ones if name.endswith("running_var") else np.zeros
        weights[name] = start(shape, np.float32)
    return weights


def _draw(name: str, shape: Shape, shapes: dict[str, Shape], seed: int) -> np.ndarray:
    layer, _, part = name.rpartition(".")
    weight_shape = shapes[f"{layer}.weight"]
    random = np.random.default_rng([seed, crc32(name.encode())])
    match part, len(weight_shape):
        case "weight", 4:
            scale = np.sqrt(2 / (shape[0] * prod(shape[2:])))
            return (random.standard_normal(shape) * scale).astype(np.float32)
        case _, 2:
            bound = 1 / np.sqrt(weight_shape[1])
            return random.uniform(-bound, bound, shape).astype(np.float32)
        case "weight", 1:
            return np.ones(shape, np.float32)
        case _:
            return np.zeros(shape, np.float32)
