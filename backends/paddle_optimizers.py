"""Paddle's optimizers with the formulas of the comparison, and access to what they remember."""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from harness.config import RunConfig

if TYPE_CHECKING:
    import paddle

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

_SLOTS = {"moment1": "first_moment", "moment2": "second_moment", "velocity": "momentum"}
_POWERS = {"beta1_pow_acc": BETA1, "beta2_pow_acc": BETA2}
_SLOT_NAME = re.compile(rf"(?P<parameter>.+)_(?P<slot>{'|'.join([*_SLOTS, *_POWERS])})_\d+")


def make_optimizer(
    paddle: ModuleType, run: RunConfig, parameters: list[paddle.Tensor]
) -> paddle.optimizer.Optimizer:
    """Adam, or SGD with momentum, over ``parameters``.

    Paddle's order is that of the comparison: gradients are unscaled by the scaler, clipped by
    min(1, bound / their global norm), joined by the L2 penalty (a float ``weight_decay`` is one),
    then used. Its velocity does not contain the learning rate.
    """
    shared = {
        "learning_rate": run.lr,
        "parameters": parameters,
        "weight_decay": run.weight_decay or None,
        "grad_clip": (
            paddle.nn.ClipGradByGlobalNorm(run.clip_norm) if run.clip_norm is not None else None
        ),
        # One operation for all parameters, with and without AMP: the loop over them costs five
        # times as much. It knows no float64.
        "use_multi_tensor": run.precision != "float64",
    }
    if run.optimizer == "adam":
        return paddle.optimizer.Adam(beta1=BETA1, beta2=BETA2, epsilon=EPSILON, **shared)
    return paddle.optimizer.Momentum(momentum=run.momentum, **shared)


class OptimizerSlots:
    """The moments or velocities of an optimizer, by canonical name of their parameter."""

    def __init__(
        self, optimizer: paddle.optimizer.Optimizer, parameters: dict[str, paddle.Tensor]
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._canonical = {tensor.name: name for name, tensor in parameters.items()}

    def values(self) -> dict[str, dict[str, paddle.Tensor]]:
        """Slot → parameter → the tensor itself; empty before the first step."""
        slots: dict[str, dict[str, paddle.Tensor]] = {}
        for slot, name, tensor in self._entries():
            if slot in _SLOTS:
                slots.setdefault(_SLOTS[slot], {})[name] = tensor
        return slots

    def create(self) -> None:
        """Make the slots exist. It moves the parameters: load them afterwards."""
        # Paddle makes them in its first step, so take one with gradients of zero.
        for tensor in self._parameters.values():
            (tensor * 0.0).sum().backward()
        self._optimizer.step()
        self._optimizer.clear_grad(set_to_zero=False)

    def reset(self, steps: int) -> None:
        """Empty every slot, as it is before the first gradient, but after ``steps`` updates."""
        for slot, _, tensor in self._entries():
            value = _POWERS[slot] ** (steps + 1) if slot in _POWERS else 0.0
            tensor.set_value(np.full(tensor.shape, value, tensor.numpy().dtype))

    def _entries(self) -> list[tuple[str, str, paddle.Tensor]]:
        entries = []
        for key, tensor in self._optimizer.state_dict().items():
            match = _SLOT_NAME.fullmatch(key)
            if match is not None:
                entries.append((match["slot"], self._canonical[match["parameter"]], tensor))
        return entries
