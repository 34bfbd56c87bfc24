"""A network description as a Keras functional model, and its tensors under canonical names."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import networks

if TYPE_CHECKING:
    import keras

_CANONICAL_PARTS = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "bias": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A Keras model with what is needed to look into it."""

    model: keras.Model
    """Normalised float images in the model's layout → logits."""
    layers: dict[str, tuple[Any, ...]]
    """Canonical name → the Keras layers that do its work, one after the other."""
    outputs: dict[str, keras.KerasTensor]
    """Canonical name → symbolic output."""
    variables: dict[str, keras.Variable]
    """Canonical name → parameter or running statistic."""
    head: str
    """Canonical name of the layer that makes the logits."""
    channels_first: bool


def build_model(
    keras: ModuleType,
    network: networks.Network,
    *,
    channels_first: bool,
    head_dtype: str,
    batch_norm: type[keras.layers.BatchNormalization],
    own_padding: bool = False,
) -> BuiltModel:
    """Build ``network`` under the global dtype policy, its last layer in ``head_dtype``.

    With ``own_padding`` strided layers pad as Keras does, the right and the bottom alone.
    """
    data_format = "channels_first" if channels_first else "channels_last"
    places: dict[str, Any] = {"data_format": data_format}
    head = network.body.layers[-1]
    layers: dict[str, tuple[keras.Layer, ...]] = {}
    outputs: dict[str, keras.KerasTensor] = {}
    class_of = keras.layers
    lowest_padding = _lowest_padding(keras)

    def native(layer: networks.Leaf) -> tuple[keras.Layer, ...]:
        name = layer.name
        match layer:
            case networks.Conv():
                # "same" is symmetric only without a stride; with one, Keras would pad the right
                # and the bottom alone.
                same = 2 * layer.padding == layer.kernel - 1 and (layer.stride == 1 or own_padding)
                conv = class_of.Conv2D(
                    layer.out_channels,
                    layer.kernel,
                    strides=layer.stride,
                    padding="same" if same else "valid",
                    use_bias=layer.bias,
                    kernel_initializer="zeros",
                    name=name,
                    **places,
                )
                if same or not layer.padding:
                    return (conv,)
                return class_of.ZeroPadding2D(layer.padding, name=f"{name}.pad", **places), conv
            case networks.BatchNorm():
                return (
                    batch_norm(
                        axis=1 if channels_first else -1,
                        momentum=1 - layer.momentum,
                        epsilon=layer.epsilon,
                        name=name,
                    ),
                )
            case networks.ReLU():
                return (class_of.ReLU(name=name),)
            case networks.MaxPool():
                pool = class_of.MaxPooling2D(
                    layer.kernel,
                    layer.stride,
                    padding="same" if layer.padding and own_padding else "valid",
                    name=name,
                    **places,
                )
                if not layer.padding or own_padding:
                    return (pool,)
                return lowest_padding(layer.padding, name=f"{name}.pad", **places), pool
            case networks.GlobalAvgPool():
                return (class_of.GlobalAveragePooling2D(name=name, **places),)
            case networks.Flatten():
                # Keras' own reordering (data_format) makes channels the fastest axis; the
                # canonical order has them slowest.
                flatten = class_of.Flatten(name=name, data_format="channels_last")
                if channels_first:
                    return (flatten,)
                return class_of.Permute((3, 1, 2), name=f"{name}.permute"), flatten
            case networks.Linear():
                return (
                    class_of.Dense(
                        layer.out_features,
                        kernel_initializer="zeros",
                        dtype=head_dtype if layer is head else None,
                        name=name,
                    ),
                )

    def apply(sequence: networks.Sequential, x: keras.KerasTensor) -> keras.KerasTensor:
        for layer in sequence.layers:
            if isinstance(layer, networks.Residual):
                branches = [apply(layer.body, x), apply(layer.shortcut, x)]
                layers[layer.name] = (class_of.Add(name=layer.name),)
                x = layers[layer.name][0](branches)
            else:
                layers[layer.name] = native(layer)
                for part in layers[layer.name]:
                    x = part(x)
            outputs[layer.name] = x
        return x

    size = network.image_size
    image = keras.Input((3, size, size) if channels_first else (size, size, 3), name="image")
    model = keras.Model(image, apply(network.body, image), name=network.name)
    variables = {
        f"{name}.{_CANONICAL_PARTS[variable.name]}": variable
        for name, parts in layers.items()
        for variable in parts[-1].variables
    }
    return BuiltModel(
        model=model,
        layers=layers,
        outputs=outputs,
        variables=variables,
        head=head.name,
        channels_first=channels_first,
    )


def native_tensor(array: np.ndarray) -> np.ndarray:
    """A canonical parameter, slot or statistic in Keras' axis order (HWIO, in × out)."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def canonical_tensor(array: np.ndarray) -> np.ndarray:
    """The inverse of :func:`native_tensor`."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def native_activation(array: np.ndarray, channels_first: bool) -> np.ndarray:
    """(N, C, H, W) in the model's layout; (N, features) as it is."""
    return array.transpose(0, 2, 3, 1) if array.ndim == 4 and not channels_first else array


def canonical_activation(array: np.ndarray, channels_first: bool) -> np.ndarray:
    """The inverse of :func:`native_activation`."""
    return array.transpose(0, 3, 1, 2) if array.ndim == 4 and not channels_first else array


def _lowest_padding(keras: ModuleType) -> type[keras.layers.ZeroPadding2D]:
    class LowestPadding2D(keras.layers.ZeroPadding2D):
        """Pads with the lowest number, so that padding never wins a maximum, not even a tie."""

        def call(self, inputs: Any) -> Any:
            spatial = ((0, 0), *self.padding, (0, 0))
            if self.data_format == "channels_first":
                spatial = ((0, 0), (0, 0), *self.padding)
            return keras.ops.pad(inputs, spatial, constant_values=inputs.dtype.min)

    return LowestPadding2D


def unbiased_batch_norm(keras: ModuleType) -> type[keras.layers.BatchNormalization]:
    """Keras' BatchNormalization with a moving variance that follows the unbiased batch variance."""
    ops = keras.ops

    class BatchNormalization(keras.layers.BatchNormalization):
        def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
            kept = self.moving_variance * self.momentum
            outputs = super().call(inputs, training=training, mask=mask)
            if training and self.trainable:
                # The parent added (1 − momentum)·biased; unbiased is biased·n/(n − 1), that is
                # biased + biased/(n − 1). Normalisation itself keeps the biased variance.
                n = ops.cast(ops.size(inputs) // inputs.shape[self.axis], kept.dtype)
                added = self.moving_variance - kept
                self.moving_variance.assign_add(added / (n - 1))
            return outputs

    return BatchNormalization
