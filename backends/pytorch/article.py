"""PyTorch with the published food experiment's loss scaler: for ``replicate``, never to measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.pytorch.backend import TorchBackend
from harness.networks import Network
from harness.weights import Weights

if TYPE_CHECKING:
    import torch


class _FreshScaler:
    """A new ``GradScaler`` for each loss, whose only use is to multiply it.

    The update then uses gradients that are still scaled, infinite ones included, and the scale
    never changes. Has the methods of a ``GradScaler`` that the adapter calls.
    """

    def __init__(self, make: Any) -> None:
        self._make = make

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return self._make().scale(loss)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Left out, as in the article."""

    def update(self, new_scale: float | None = None) -> None:
        """Left out, as in the article."""

    def is_enabled(self) -> bool:
        return self._make().is_enabled()

    def get_scale(self) -> float:
        return self._make().get_scale()

    def state_dict(self) -> dict[str, Any]:
        return self._make().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is kept from step to step, so there is nothing to restore."""


class TorchArticleBackend(TorchBackend):
    """Scales the loss, then steps the optimizer past the scaler."""

    name = "torch-article"

    def build(self, network: Network, weights: Weights) -> None:
        """See :meth:`harness.protocol.Backend.build`."""
        super().build(network, weights)
        run, torch = self._run, self._torch
        device = self._device.type

        def make() -> torch.amp.GradScaler:
            return torch.amp.GradScaler(
                device, init_scale=run.loss_scale.initial, enabled=run.scales_loss
            )

        self._scaler = _FreshScaler(make)
