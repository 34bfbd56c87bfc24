"""Keras variables, optimizer slots and loss scale under canonical names."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.tensorflow_keras.network import BuiltModel, canonical_tensor, native_tensor
from harness.protocol import TrainState
from harness.weights import Weights


def read_state(built: BuiltModel, optimizer: Any, scaler: Any | None) -> TrainState:
    """A copy of all that training changes; ``scaler`` is the ``LossScaleOptimizer``, if any."""
    names = [name for name, variable in built.variables.items() if variable.trainable]
    return TrainState(
        tensors={name: _to_numpy(variable) for name, variable in built.variables.items()},
        slots={
            slot: dict(zip(names, map(_to_numpy, variables), strict=True))
            for slot, variables in optimizer.slots().items()
        },
        optimizer_steps=int(optimizer.iterations.numpy()),
        loss_scale=float(scaler.dynamic_scale.numpy()) if scaler else None,
        clean_steps=int(scaler.step_counter.numpy()) if scaler else None,
    )


def write_state(state: TrainState, built: BuiltModel, optimizer: Any, scaler: Any | None) -> None:
    """Put ``state`` in force; slots that it lacks start at zero, as before the first step."""
    write_tensors(state.tensors, built)
    names = [name for name, variable in built.variables.items() if variable.trainable]
    for slot, variables in optimizer.slots().items():
        values = state.slots.get(slot, {})
        for name, variable in zip(names, variables, strict=True):
            given = values.get(name)
            variable.assign(np.zeros(variable.shape) if given is None else native_tensor(given))
    optimizer.iterations.assign(state.optimizer_steps)
    if scaler and state.loss_scale is not None:
        scaler.dynamic_scale.assign(state.loss_scale)
        scaler.step_counter.assign(state.clean_steps or 0)


def write_tensors(values: Weights, built: BuiltModel) -> None:
    """Copy canonical parameters and running statistics into the model."""
    for name, value in values.items():
        built.variables[name].assign(native_tensor(value))


def _to_numpy(variable: Any) -> np.ndarray:
    return np.ascontiguousarray(canonical_tensor(variable.numpy()))
