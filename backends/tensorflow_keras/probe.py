"""What one forward and backward pass of a Keras model computes, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.tensorflow_keras.network import (
    BuiltModel,
    canonical_activation,
    canonical_tensor,
    native_activation,
)
from harness.protocol import LayerProbe, Probe

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def traced_pass(
    tf: ModuleType,
    keras: ModuleType,
    built: BuiltModel,
    loss_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    jit: bool,
) -> Callable[..., tuple[Any, ...]]:
    """The function behind :func:`probe_pass`; ``loss_of`` takes labels and logits."""
    parameters = {name: v for name, v in built.variables.items() if v.trainable}
    # The same layers, with every output in view.
    every = keras.Model(built.model.inputs, built.outputs)

    def passes(images: tf.Tensor, labels: tf.Tensor, loss_scale: tf.Tensor) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            # So that outputs ahead of the first parameter have gradients as well.
            tape.watch(images)
            outputs = every(images, training=True)
            loss = loss_of(labels, outputs[built.head])
            scaled_loss = loss * loss_scale
        return loss, outputs, *tape.gradient(scaled_loss, (outputs, parameters))

    return tf.function(passes, jit_compile=jit, autograph=False)


def probe_pass(
    passes: Callable[..., tuple[Any, ...]],
    built: BuiltModel,
    images: tf.Tensor,
    labels: tf.Tensor,
    loss_scale: tf.Tensor,
) -> Probe:
    """Run the model on normalised ``images`` and its backward pass, and restore the model.

    The loss is multiplied by ``loss_scale`` for the backward pass; the gradients that are
    returned are divided by it again, in float32 or wider.
    """
    statistics = {name: v for name, v in built.variables.items() if not v.trainable}
    with _restored([*statistics.values()]):
        loss, outputs, output_gradients, gradients = passes(images, labels, loss_scale)
        left = {name: _to_numpy(variable.value) for name, variable in statistics.items()}

    def activations(values: dict[str, Any]) -> dict[str, np.ndarray]:
        return {
            name: canonical_activation(_to_numpy(value), built.channels_first)
            for name, value in values.items()
        }

    shown = activations(outputs)
    scale = float(loss_scale)
    return Probe(
        loss=float(loss),
        logits=shown[built.head],
        outputs=shown,
        output_gradients={
            name: _unscaled(value, scale) for name, value in activations(output_gradients).items()
        },
        parameter_gradients=_unscaled_parameters(gradients, scale),
        running_statistics=left,
    )


def probe_layer(
    tf: ModuleType,
    keras: ModuleType,
    built: BuiltModel,
    layer: str,
    x: np.ndarray,
    output_gradient: np.ndarray,
    *,
    jit: bool,
) -> LayerProbe:
    """Run ``layer`` alone on ``x``, propagate ``output_gradient``, and restore the layer.

    Both arrays are float64 in canonical shape; the caller scales the gradient if it wants to.
    """
    parts = built.layers[layer]
    alone = keras.Model(parts[0].input, parts[-1].output)
    parameters = {
        name: variable
        for name, variable in built.variables.items()
        if variable.trainable and name.rpartition(".")[0] == layer
    }

    def passes(x: tf.Tensor, gradient: tf.Tensor) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = alone(x, training=True)
        gradients = tape.gradient(output, (x, parameters), output_gradients=gradient)
        return output, *gradients

    def native(values: np.ndarray, dtype: str) -> tf.Tensor:
        return tf.cast(native_activation(values, built.channels_first), dtype)

    # The layer before leaves its output in this dtype.
    inputs = native(x, parts[0].input.dtype)
    gradient = native(output_gradient, parts[-1].output.dtype)
    with _restored([v for part in parts for v in part.non_trainable_variables]):
        traced = tf.function(passes, jit_compile=jit, autograph=False)
        output, input_gradient, gradients = traced(inputs, gradient)
    return LayerProbe(
        output=canonical_activation(_to_numpy(output), built.channels_first),
        input_gradient=canonical_activation(_to_numpy(input_gradient), built.channels_first),
        parameter_gradients={
            name: canonical_tensor(_to_numpy(value)) for name, value in gradients.items()
        },
    )


def _unscaled_parameters(gradients: dict[str, Any], loss_scale: float) -> dict[str, np.ndarray]:
    return {
        name: _unscaled(canonical_tensor(_to_numpy(value)), loss_scale)
        for name, value in gradients.items()
    }


def _unscaled(values: np.ndarray, loss_scale: float) -> np.ndarray:
    return values.astype(np.promote_types(values.dtype, np.float32)) / loss_scale


def _to_numpy(tensor: tf.Tensor) -> np.ndarray:
    """A copy in host memory; bfloat16, which NumPy lacks, becomes float32 without loss."""
    values = tensor.numpy()
    return values.astype(np.float32) if tensor.dtype.name == "bfloat16" else values


@contextmanager
def _restored(variables: list[keras.Variable]) -> Iterator[None]:
    saved = [variable.numpy() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)
