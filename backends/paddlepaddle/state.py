"""The training state of a Paddle model under canonical names, out and in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from backends.paddlepaddle.optimizers import OptimizerSlots, load_scaler
from backends.paddlepaddle.probe import to_numpy, unscaled
from backends.paddlepaddle.statistics import Statistics
from harness.networks import Linear, Network, place_layers
from harness.protocol import TrainState
from harness.weights import Weights

if TYPE_CHECKING:
    import paddle


class Parameters:
    """The trainable tensors by canonical name, read and written in canonical shape."""

    def __init__(self, network: Network, layers: dict[str, paddle.nn.Layer]) -> None:
        self.tensors: dict[str, paddle.Tensor] = {
            f"{name}.{part}": tensor
            for name, layer in layers.items()
            for part, tensor in layer.named_parameters(include_sublayers=False)
            if not tensor.stop_gradient
        }
        self._transposed = {
            f"{placed.layer.name}.weight"
            for placed in place_layers(network)
            if isinstance(placed.layer, Linear)
        }

    def values(self, tensors: dict[str, paddle.Tensor]) -> Weights:
        """Copies of ``tensors`` (parameters, slots) in canonical shape."""
        return {name: self._turned(name, to_numpy(tensor)) for name, tensor in tensors.items()}

    def load(self, into: dict[str, paddle.Tensor], values: Weights) -> None:
        """Copy ``values`` into all of ``into``, in its dtype."""
        for name, tensor in into.items():
            value = self._turned(name, values[name])
            tensor.set_value(value.astype(tensor.numpy().dtype))

    def take_gradients(self, loss_scale: float) -> Weights:
        """The gradients of the unscaled loss; none are left behind."""
        gradients = {
            name: self._turned(name, unscaled(tensor.grad, loss_scale))
            for name, tensor in self.tensors.items()
            if tensor.grad is not None
        }
        for tensor in self.tensors.values():
            tensor.clear_gradient(False)
        return gradients

    def _turned(self, name: str, value: np.ndarray) -> np.ndarray:
        """Paddle multiplies by a linear weight of shape (in, out): to it and back."""
        return np.ascontiguousarray(value.T) if name in self._transposed else value


def read_state(
    parameters: Parameters,
    statistics: Statistics,
    slots: OptimizerSlots,
    scaler: Any,
    optimizer_steps: int,
) -> TrainState:
    """Copy everything that training changes to host memory."""
    scaling = scaler.state_dict()
    return TrainState(
        tensors=parameters.values(parameters.tensors) | statistics.values(),
        slots={slot: parameters.values(tensors) for slot, tensors in slots.values().items()},
        optimizer_steps=optimizer_steps,
        loss_scale=scaling["scale"].item() if scaling else None,
        clean_steps=scaling.get("incr_count"),
    )


def write_state(
    state: TrainState,
    parameters: Parameters,
    statistics: Statistics,
    slots: OptimizerSlots,
    scaler: Any,
) -> None:
    """Put ``state`` in place of what is there."""
    if state.slots and not slots.values():
        slots.create()
    slots.reset(state.optimizer_steps)
    parameters.load(parameters.tensors, state.tensors)
    statistics.load(state.tensors)
    native = slots.values()
    for slot, values in state.slots.items():
        parameters.load(native[slot], values)
    if state.loss_scale is not None:
        load_scaler(scaler, state.loss_scale, state.clean_steps or 0)
