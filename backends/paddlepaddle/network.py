"""A network description as Paddle layers."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from backends.paddlepaddle.device import DataFormat
from harness import networks

if TYPE_CHECKING:
    import paddle


def build_model(
    paddle: ModuleType,
    network: networks.Network,
    data_format: DataFormat,
    *,
    own_statistics: bool = False,
) -> tuple[paddle.nn.Layer, dict[str, paddle.nn.Layer]]:
    """Build ``network``; returns the model and its leaf and residual layers by canonical name.

    A leaf's ``weight`` and ``bias`` are the canonical ones, except that a linear weight lies
    transposed. The BatchNorms leave their running averages to
    :class:`backends.paddlepaddle.statistics.RunningStatistics`, unless they are to average by
    Paddle's ``own_statistics``.
    """
    nn = paddle.nn
    layers: dict[str, paddle.nn.Layer] = {}

    class BatchNorm(nn.BatchNorm2D):
        # The parent warns at each training step that it tracks statistics; the call is the same.
        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return nn.functional.batch_norm(
                x,
                self._mean,
                self._variance,
                weight=self.weight,
                bias=self.bias,
                training=self.training,
                momentum=self._momentum,
                epsilon=self._epsilon,
                data_format=self._data_format,
            )

    class Flatten(nn.Layer):
        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            if data_format == "NHWC":
                x = x.transpose([0, 3, 1, 2])
            return x.flatten(1)

    class Residual(nn.Layer):
        def __init__(self, layer: networks.Residual) -> None:
            super().__init__()
            self.body = sequential(layer.body)
            self.shortcut = sequential(layer.shortcut)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return self.body(x) + self.shortcut(x)

    def sequential(sequence: networks.Sequential) -> paddle.nn.Sequential:
        for layer in sequence.layers:
            layers[layer.name] = native(layer)
        return nn.Sequential(*(layers[layer.name] for layer in sequence.layers))

    def native(layer: networks.Layer) -> paddle.nn.Layer:
        match layer:
            case networks.Conv():
                return nn.Conv2D(
                    layer.in_channels,
                    layer.out_channels,
                    layer.kernel,
                    stride=layer.stride,
                    padding=layer.padding,
                    bias_attr=None if layer.bias else False,
                    data_format=data_format,
                )
            case networks.BatchNorm():
                return BatchNorm(
                    layer.channels,
                    momentum=1 - layer.momentum if own_statistics else 0.0,
                    epsilon=layer.epsilon,
                    data_format=data_format,
                )
            case networks.ReLU():
                return nn.ReLU()
            case networks.MaxPool():
                return nn.MaxPool2D(
                    layer.kernel, layer.stride, layer.padding, data_format=data_format
                )
            case networks.GlobalAvgPool():
                return nn.Sequential(nn.AdaptiveAvgPool2D(1, data_format=data_format), nn.Flatten())
            case networks.Flatten():
                return Flatten()
            case networks.Linear():
                return nn.Linear(layer.in_features, layer.out_features)
            case networks.Residual():
                return Residual(layer)

    return sequential(network.body), layers
