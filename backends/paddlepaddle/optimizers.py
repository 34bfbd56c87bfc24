"""Paddle's optimizers with the formulas of the comparison, and access to what they remember."""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.config import RunConfig

if TYPE_CHECKING:
    import paddle

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

_SLOTS = {"moment1": "first_moment", "moment2": "second_moment", "velocity": "momentum"}
_POWERS = {"beta1_pow_acc": BETA1, "beta2_pow_acc": BETA2}
_SLOT_NAME = re.compile(rf"(?P<parameter>.+)_(?P<slot>{'|'.join([*_SLOTS, *_POWERS])})_\d+")


def make_optimizer(
    paddle: ModuleType, run: RunConfig, parameters: list[paddle.Tensor], *, multi_tensor: bool
) -> paddle.optimizer.Optimizer:
    """Adam, or SGD with momentum, over ``parameters``.

    Paddle's order is that of the comparison: gradients are unscaled by the scaler, clipped by
    min(1, bound / their global norm), joined by the L2 penalty (a float ``weight_decay`` is one),
    then used. Its velocity does not contain the learning rate. ``multi_tensor``: one operation for
    all parameters (not one kernel), which knows no float64.
    """
    shared = {
        "learning_rate": run.lr,
        "parameters": parameters,
        "weight_decay": run.weight_decay or None,
        "grad_clip": (
            paddle.nn.ClipGradByGlobalNorm(run.clip_norm) if run.clip_norm is not None else None
        ),
        "use_multi_tensor": multi_tensor,
    }
    if run.optimizer == "adam":
        return paddle.optimizer.Adam(beta1=BETA1, beta2=BETA2, epsilon=EPSILON, **shared)
    kind = _float64_momentum(paddle) if run.precision == "float64" else paddle.optimizer.Momentum
    return kind(momentum=run.momentum, **shared)


def _float64_momentum(paddle: ModuleType) -> type[paddle.optimizer.Momentum]:
    """Momentum without the float32 rounding of its momentum and its L2 coefficient.

    Both are 2e-8 off in Paddle's operation, which ten steps can make visible in a float64 proof.
    What is missing is added to the gradient, after clipping.
    """

    class Momentum(paddle.optimizer.Momentum):
        def _append_optimize_op(self, block: Any, param_and_grad: Any) -> Any:
            parameter, gradient = param_and_grad
            velocity = self._get_accumulator_master("velocity", parameter)
            decay = self._regularization_coeff
            gradient = gradient + velocity * (self._momentum - float(np.float32(self._momentum)))
            gradient = gradient + parameter * (decay - float(np.float32(decay)))
            return super()._append_optimize_op(block, (parameter, gradient))

    return Momentum


def make_scaler(paddle: ModuleType, run: RunConfig) -> Any:
    """The one loss scaler of a run, disabled unless the run scales its loss."""
    policy = run.loss_scale
    scaler = paddle.amp.GradScaler(
        enable=run.scales_loss,
        init_loss_scaling=policy.initial,
        incr_ratio=policy.growth_factor,
        decr_ratio=policy.backoff_factor,
        incr_every_n_steps=policy.growth_interval,
        decr_every_n_nan_or_inf=1,
        use_dynamic_loss_scaling=policy.dynamic,
    )
    _make_printable(scaler)
    return scaler


def load_scaler(scaler: Any, loss_scale: float, clean_steps: int) -> None:
    """Continue with this scale, unchanged since ``clean_steps`` steps."""
    changes = {"scale": np.array([loss_scale], np.float32), "incr_count": clean_steps}
    scaler.load_state_dict(scaler.state_dict() | changes | {"decr_count": 0})
    _make_printable(scaler)


def _make_printable(scaler: Any) -> None:
    # Paddle prints the scale at each overflow by float(), which NumPy 2.4 refuses for an array of
    # one dimension: the first overflow would end the run with a TypeError.
    if scaler.is_enable():
        scaler._scale = scaler._scale.reshape([])


class OptimizerSlots:
    """The moments or velocities of an optimizer, by canonical name of their parameter."""

    def __init__(
        self,
        paddle: ModuleType,
        optimizer: paddle.optimizer.Optimizer,
        parameters: dict[str, paddle.Tensor],
    ) -> None:
        self._paddle = paddle
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
            dtype = tensor.numpy().dtype
            value = dtype.type(0)
            if slot in _POWERS:
                value = _power(dtype.type(_POWERS[slot]), steps + 1)
            # An array would land on the GPU, but Adam keeps its powers on the host.
            tensor.set_value(
                self._paddle.to_tensor(np.full(tensor.shape, value, dtype), place=tensor.place)
            )

    def _entries(self) -> list[tuple[str, str, paddle.Tensor]]:
        entries = []
        for key, tensor in self._optimizer.state_dict().items():
            match = _SLOT_NAME.fullmatch(key)
            if match is not None:
                entries.append((match["slot"], self._canonical[match["parameter"]], tensor))
        return entries


def _power(base: np.floating, exponent: int) -> np.floating:
    """Rounded after each factor, as it is in Paddle, which multiplies once a step."""
    value = base
    for _ in range(exponent - 1):
        value = value * base
    return value
