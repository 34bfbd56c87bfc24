"""What one forward and backward pass of a Paddle model computes, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.paddlepaddle.device import DataFormat, dtype_name
from harness.protocol import LayerProbe, Probe

if TYPE_CHECKING:
    import paddle

    from backends.paddlepaddle.state import Parameters
    from backends.paddlepaddle.statistics import Statistics


def probe_pass(
    forward: Callable[[], tuple[paddle.Tensor, paddle.Tensor]],
    layers: dict[str, Any],
    parameters: Parameters,
    statistics: Statistics,
    *,
    loss_scale: float,
    batch_size: int,
    data_format: DataFormat,
) -> Probe:
    """Run ``forward``, which gives logits and loss, and its backward pass; restore the model.

    The loss is multiplied by ``loss_scale`` for the backward pass; the gradients that are
    returned are divided by it again, in float32 or wider.
    """
    with _recorded_activations(layers) as (outputs, gradients):
        logits, loss = forward()
        (loss * loss_scale).backward()
    left = statistics.after(batch_size)
    statistics.show()
    return Probe(
        loss=float(to_numpy(loss)),
        logits=to_numpy(logits),
        outputs={
            name: canonical_layout(to_numpy(output), data_format)
            for name, output in outputs.items()
        },
        output_gradients={
            name: canonical_layout(unscaled(gradient, loss_scale), data_format)
            for name, gradient in gradients.items()
        },
        parameter_gradients=parameters.take_gradients(loss_scale),
        running_statistics=left,
    )


def probe_layer(
    layer: Any,
    x: paddle.Tensor,
    output_gradient: paddle.Tensor,
    parameters: Parameters,
    statistics: Statistics,
    *,
    autocast: AbstractContextManager[Any],
    data_format: DataFormat,
) -> LayerProbe:
    """Run ``layer`` alone on ``x``, propagate ``output_gradient``, and restore the layer."""
    x.stop_gradient = False
    with autocast:
        output = layer(x)
    output.backward(output_gradient.astype(output.dtype))
    assert x.grad is not None
    statistics.show()
    return LayerProbe(
        output=canonical_layout(to_numpy(output), data_format),
        input_gradient=canonical_layout(to_numpy(x.grad), data_format),
        parameter_gradients=parameters.take_gradients(1.0),
    )


def to_numpy(tensor: paddle.Tensor) -> np.ndarray:
    """A copy in host memory; bfloat16, which NumPy lacks, becomes float32 without loss."""
    if dtype_name(tensor) == "bfloat16":
        tensor = tensor.astype("float32")
    return np.array(tensor.numpy())


def canonical_layout(values: np.ndarray, data_format: DataFormat) -> np.ndarray:
    """Activations in canonical shape."""
    if values.ndim == 4 and data_format == "NHWC":
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    return values


def native_layout(values: np.ndarray, data_format: DataFormat) -> np.ndarray:
    """Activations of canonical shape as the layers take them."""
    if values.ndim == 4 and data_format == "NHWC":
        return np.ascontiguousarray(values.transpose(0, 2, 3, 1))
    return values


def unscaled(gradient: paddle.Tensor, loss_scale: float) -> np.ndarray:
    """A gradient of the loss itself, in float32 or wider, from one of the scaled loss."""
    values = to_numpy(gradient)
    return values.astype(np.promote_types(values.dtype, np.float32)) / loss_scale


@contextmanager
def _recorded_activations(
    layers: dict[str, Any],
) -> Iterator[tuple[dict[str, paddle.Tensor], dict[str, paddle.Tensor]]]:
    """Record the output of each layer, and its gradient, while the block runs both passes."""
    outputs: dict[str, paddle.Tensor] = {}
    gradients: dict[str, paddle.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def arrived(gradient: paddle.Tensor) -> None:
            gradients[name] = gradient.clone()

        def hook(_layer: Any, _inputs: Any, output: paddle.Tensor) -> None:
            outputs[name] = output
            if not output.stop_gradient:
                output.register_hook(arrived)

        return hook

    handles = [layer.register_forward_post_hook(keep(name)) for name, layer in layers.items()]
    try:
        yield outputs, gradients
    finally:
        for handle in handles:
            handle.remove()
