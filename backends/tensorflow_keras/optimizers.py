"""Keras' optimizers with the formulas of the original papers, so that all frameworks agree.

Each class changes what no argument of Keras reaches, and nothing else.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.config import RunConfig

if TYPE_CHECKING:
    import keras


def build_optimizer(
    tf: ModuleType, keras: ModuleType, run: RunConfig
) -> keras.optimizers.Optimizer:
    """The optimizer of ``run``, inside a ``LossScaleOptimizer`` where it scales the loss."""
    if run.parts == "native":
        inner = _own(keras, run)
    else:
        inner = _adam(tf, keras, run) if run.optimizer == "adam" else _sgd(tf, keras, run)
    if not run.scales_loss:
        return inner
    return keras.optimizers.LossScaleOptimizer(
        inner,
        initial_scale=run.loss_scale.initial,
        dynamic_growth_steps=run.loss_scale.growth_interval,
    )


def _own(keras: ModuleType, run: RunConfig) -> keras.optimizers.Optimizer:
    """As Keras has them: decoupled decay, and their own places of epsilon and learning rate."""

    class OwnAdam(keras.optimizers.Adam):
        def slots(self) -> dict[str, list[keras.Variable]]:
            return {"first_moment": self._momentums, "second_moment": self._velocities}

    class OwnSGD(keras.optimizers.SGD):
        def slots(self) -> dict[str, list[keras.Variable]]:
            return {"momentum": self.momentums} if self.momentum else {}

    shared = {"weight_decay": run.weight_decay or None, "global_clipnorm": run.clip_norm}
    if run.optimizer == "adam":
        return OwnAdam(run.lr, epsilon=1e-8, **shared)
    return OwnSGD(run.lr, momentum=run.momentum, **shared)


def _adam(tf: ModuleType, keras: ModuleType, run: RunConfig) -> keras.optimizers.Optimizer:
    ops = keras.ops

    class Adam(keras.optimizers.Adam):
        """Kingma and Ba 2015, Algorithm 1: epsilon is added after the bias correction."""

        def apply(self, grads: list[Any], trainable_variables: list[Any] | None = None) -> None:
            # Keras adds "epsilon hat" before the correction; with epsilon·√(1 − β₂ᵗ) in its place
            # both formulas are one. Once a step, not once a variable.
            plain = self.epsilon
            step = ops.cast(self.iterations + 1, keras.config.floatx())
            power = ops.power(ops.cast(self.beta_2, step.dtype), step)
            self.epsilon = plain * ops.sqrt(1 - power)
            super().apply(_prepared(tf, run, grads, trainable_variables), trainable_variables)
            self.epsilon = plain

        def slots(self) -> dict[str, list[keras.Variable]]:
            return {"first_moment": self._momentums, "second_moment": self._velocities}

    # Keras passes Python floats through float32, where 0.999 is 0.99900001287; NumPy's float64
    # stays what it is, but would pull a float32 run up to float64.
    number = np.float64 if run.precision == "float64" else float
    return Adam(run.lr, beta_1=number(0.9), beta_2=number(0.999), epsilon=1e-8)


def _sgd(tf: ModuleType, keras: ModuleType, run: RunConfig) -> keras.optimizers.Optimizer:
    ops = keras.ops

    class SGD(keras.optimizers.SGD):
        """v ← momentum·v + g; w ← w − lr·v.

        Keras' own velocity contains the learning rate, so that a drop of the rate reaches the
        weights only as the old velocity dies away.
        """

        def apply(self, grads: list[Any], trainable_variables: list[Any] | None = None) -> None:
            super().apply(_prepared(tf, run, grads, trainable_variables), trainable_variables)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            if self.momentum:
                velocity = self.momentums[self._get_variable_index(variable)]
                self.assign(velocity, ops.add(ops.multiply(velocity, self.momentum), gradient))
                gradient = velocity
            rate = ops.cast(learning_rate, variable.dtype)
            self.assign_sub(variable, ops.multiply(gradient, rate))

        def slots(self) -> dict[str, list[keras.Variable]]:
            return {"momentum": self.momentums} if self.momentum else {}

    return SGD(run.lr, momentum=float(run.momentum))


def _prepared(tf: ModuleType, run: RunConfig, gradients: list[Any], variables: Any) -> list[Any]:
    """Unscaled gradients, clipped by their global norm and then with the L2 penalty's part.

    Keras' own ``weight_decay`` is decoupled (Loshchilov and Hutter 2019), not an L2 penalty.
    """
    if run.clip_norm is not None:
        norm = tf.linalg.global_norm(gradients)
        factor = run.clip_norm / tf.maximum(norm, run.clip_norm)
        gradients = [gradient * factor for gradient in gradients]
    if run.weight_decay:
        gradients = [
            gradient + run.weight_decay * variable
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
    return gradients
