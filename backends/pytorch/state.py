"""The training state of a PyTorch model under canonical names, out and in."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from harness.protocol import TrainState
from harness.weights import Weights

if TYPE_CHECKING:
    import torch

_SLOTS = {
    "exp_avg": "first_moment",
    "exp_avg_sq": "second_moment",
    "momentum_buffer": "momentum",
}


def read_state(
    tensors: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> TrainState:
    """Copy everything that training changes to host memory."""
    slots: dict[str, Weights] = {}
    steps = 0
    for name, tensor in tensors.items():
        for key, value in optimizer.state.get(tensor, {}).items():
            if value is None:
                continue  # SGD keeps a momentum buffer of None before its first step
            if key in _SLOTS:
                slots.setdefault(_SLOTS[key], {})[name] = _copy(value)
            elif key == "step":
                steps = int(value.item())
    scaling = scaler.state_dict()
    return TrainState(
        tensors={name: _copy(tensor) for name, tensor in tensors.items()},
        slots=slots,
        optimizer_steps=steps,
        loss_scale=scaling.get("scale"),
        clean_steps=scaling.get("_growth_tracker"),
    )


def write_state(
    torch: ModuleType,
    state: TrainState,
    tensors: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Put ``state`` in place of what is there."""
    write_tensors(torch, state.tensors, tensors)
    optimizer.state.clear()
    native = {neutral: key for key, neutral in _SLOTS.items()}
    for slot, values in state.slots.items():
        for name, value in values.items():
            tensor = tensors[name]
            entry = optimizer.state[tensor]
            entry[native[slot]] = torch.empty_like(tensor).copy_(torch.from_numpy(value))
            if slot != "momentum":
                # The fused kernels want the count beside the moments, on the same device.
                entry["step"] = torch.tensor(float(state.optimizer_steps), device=tensor.device)
    if state.loss_scale is not None:
        changes = {"scale": state.loss_scale, "_growth_tracker": state.clean_steps}
        scaler.load_state_dict(scaler.state_dict() | changes)


def write_tensors(torch: ModuleType, values: Weights, tensors: dict[str, torch.Tensor]) -> None:
    """Copy ``values`` into the tensors of the same names."""
    with torch.no_grad():
        for name, value in values.items():
            tensors[name].copy_(torch.from_numpy(value))


def _copy(tensor: torch.Tensor) -> np.ndarray:
    return np.array(tensor.detach().cpu().contiguous().numpy())
