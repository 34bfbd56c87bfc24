"""A network description as a PyTorch module."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from harness import networks

if TYPE_CHECKING:
    import torch


def build_module(
    torch: ModuleType, network: networks.Network
) -> tuple[torch.nn.Module, dict[str, torch.nn.Module]]:
    """Build ``network``; returns the model and its leaf and residual modules by canonical name.

    A leaf's own parameter names (weight, bias, running_mean, running_var) are the canonical ones.
    """
    nn = torch.nn
    modules: dict[str, torch.nn.Module] = {}

    class Residual(nn.Module):
        def __init__(self, layer: networks.Residual) -> None:
            super().__init__()
            self.body = sequential(layer.body)
            self.shortcut = sequential(layer.shortcut)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) + self.shortcut(x)

    def sequential(sequence: networks.Sequential) -> torch.nn.Sequential:
        for layer in sequence.layers:
            modules[layer.name] = module(layer)
        return nn.Sequential(*(modules[layer.name] for layer in sequence.layers))

    def module(layer: networks.Layer) -> torch.nn.Module:
        match layer:
            case networks.Conv():
                return nn.Conv2d(
                    layer.in_channels,
                    layer.out_channels,
                    layer.kernel,
                    stride=layer.stride,
                    padding=layer.padding,
                    bias=layer.bias,
                )
            case networks.BatchNorm():
                return nn.BatchNorm2d(layer.channels, eps=layer.epsilon, momentum=layer.momentum)
            case networks.ReLU():
                return nn.ReLU(inplace=False)
            case networks.MaxPool():
                return nn.MaxPool2d(layer.kernel, layer.stride, layer.padding)
            case networks.GlobalAvgPool():
                return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            case networks.Flatten():
                return nn.Flatten()
            case networks.Linear():
                return nn.Linear(layer.in_features, layer.out_features)
            case networks.Residual():
                return Residual(layer)

    return sequential(network.body), modules
