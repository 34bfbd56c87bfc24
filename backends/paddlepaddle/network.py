"""A network description as Paddle layers, and the running statistics of its BatchNorms."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backends.paddlepaddle.device import DataFormat
from harness import networks

if TYPE_CHECKING:
    import paddle


def build_model(
    paddle: ModuleType, network: networks.Network, data_format: DataFormat
) -> tuple[paddle.nn.Layer, dict[str, paddle.nn.Layer]]:
    """Build ``network``; returns the model and its leaf and residual layers by canonical name.

    A leaf's ``weight`` and ``bias`` are the canonical ones, except that a linear weight lies
    transposed. The BatchNorms leave their running averages to :class:`RunningStatistics`.
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
                    layer.channels, momentum=0.0, epsilon=layer.epsilon, data_format=data_format
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


def compile_model(paddle: ModuleType, model: paddle.nn.Layer) -> paddle.nn.Layer:
    """The model as one static program, traced at its first call; ``model`` itself stays eager."""

    # to_static rewrites the layer that it is given.
    class Compiled(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return self.model(x)

    backend = "CINN" if paddle.is_compiled_with_cinn() else None
    return paddle.jit.to_static(Compiled(), backend=backend, full_graph=True)


class _Norm(NamedTuple):
    name: str
    layer: paddle.nn.Layer
    channels: int
    momentum: float
    positions: int
    """Height times width."""


class RunningStatistics:
    """The running mean and variance of every BatchNorm, averaged here in one vector.

    Paddle's own averages differ from the definition in two ways: on the CPU the variance follows
    the biased batch variance, and the momentum passes through float32, 2e-8 off. So the layers run
    with momentum 0, which leaves the plain statistics of the last batch in their buffers, and
    :meth:`follow` averages those of all layers at once: three small operations a step, whatever
    the number of layers.
    """

    def __init__(
        self,
        paddle: ModuleType,
        network: networks.Network,
        layers: dict[str, paddle.nn.Layer],
        *,
        unbiased: bool,
    ) -> None:
        """``unbiased``: the device divides the batch variance by n − 1 on its own."""
        self._paddle = paddle
        self._unbiased = unbiased
        self._norms = [
            _Norm(
                placed.layer.name,
                layers[placed.layer.name],
                placed.layer.channels,
                placed.layer.momentum,
                placed.input[1] * placed.input[2],
            )
            for placed in networks.place_layers(network)
            if isinstance(placed.layer, networks.BatchNorm)
        ]
        self._buffers = [norm.layer._mean for norm in self._norms]
        self._buffers += [norm.layer._variance for norm in self._norms]
        self._names = [f"{norm.name}.running_mean" for norm in self._norms]
        self._names += [f"{norm.name}.running_var" for norm in self._norms]
        self._sizes = [norm.channels for norm in self._norms] * 2
        self._corrections: dict[int, paddle.Tensor] = {}
        if self._norms:
            self._average = paddle.concat(self._buffers)
            self._momentum = self._vector([norm.momentum for norm in self._norms] * 2)

    def follow(self, batch_size: int) -> None:
        """Move the averages towards the batch that the layers have just normalised."""
        if self._norms:
            with self._paddle.no_grad():
                self._average.lerp_(self._batch(batch_size), self._momentum)

    def after(self, batch_size: int) -> dict[str, np.ndarray]:
        """What :meth:`follow` would leave, without doing it."""
        if not self._norms:
            return {}
        with self._paddle.no_grad():
            return self._split(
                self._paddle.lerp(self._average, self._batch(batch_size), self._momentum)
            )

    def values(self) -> dict[str, np.ndarray]:
        """Canonical name → a copy of the running average."""
        return self._split(self._average) if self._norms else {}

    def load(self, values: dict[str, np.ndarray]) -> None:
        """Continue from ``values``, which has every running average."""
        if self._norms:
            vector = np.concatenate([values[name] for name in self._names])
            self._average.set_value(vector.astype(self._average.numpy().dtype))
            self.show()

    def show(self) -> None:
        """Put the averages into the layers' buffers, where an evaluation reads them.

        It also clears what a batch left there: momentum 0 times infinity would stay NaN.
        """
        if self._norms:
            for part, buffer in zip(
                self._paddle.split(self._average, self._sizes), self._buffers, strict=True
            ):
                self._paddle.assign(part, buffer)

    def _batch(self, batch_size: int) -> paddle.Tensor:
        statistics = self._paddle.concat(self._buffers)
        return statistics if self._unbiased else statistics * self._correction(batch_size)

    def _correction(self, batch_size: int) -> paddle.Tensor:
        """1 for the means and n / (n − 1) for the variances, n = values in one channel."""
        if batch_size not in self._corrections:
            counts = [batch_size * norm.positions for norm in self._norms]
            factors = [1.0] * len(counts) + [count / (count - 1) for count in counts]
            self._corrections[batch_size] = self._vector(factors)
        return self._corrections[batch_size]

    def _vector(self, of_each_part: list[float]) -> paddle.Tensor:
        return self._paddle.to_tensor(
            np.repeat(of_each_part, self._sizes), dtype=self._average.dtype
        )

    def _split(self, vector: paddle.Tensor) -> dict[str, np.ndarray]:
        ends = np.cumsum(self._sizes)[:-1]
        parts = np.split(np.array(vector.numpy()), ends)
        return {name: part.copy() for name, part in zip(self._names, parts, strict=True)}
