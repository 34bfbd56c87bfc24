"""The running mean and variance of the BatchNorms: the comparison's, and Paddle's own."""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backends.paddlepaddle.compiled import compile_model, refused_if_it_fails
from backends.paddlepaddle.device import DataFormat
from backends.paddlepaddle.network import build_model
from harness import networks
from harness.protocol import Unsupported

if TYPE_CHECKING:
    import paddle


def batch_variance_is_unbiased(
    paddle: ModuleType, dtype: str, data_format: DataFormat, *, compiled: bool
) -> bool:
    """Whether BatchNorm's running variance follows the unbiased batch variance on this device.

    On the CPU it follows the biased one; on CUDA cuDNN decides, but not in a model that CINN
    compiles: Paddle then writes BatchNorm in small operations, with the biased variance. The values
    0 to 7 have the variance 6 (over n − 1) or 5.25 (over n).

    Raises:
        Unsupported: it is neither, or a BatchNorm cannot be compiled.
    """
    norm = networks.Sequential((networks.BatchNorm(name="bn", channels=1),))
    alone = networks.Network(name="a BatchNorm", image_size=2, classes=1, body=norm)
    paddle.set_default_dtype(dtype)
    try:
        model, layers = build_model(paddle, alone, data_format)
    finally:
        paddle.set_default_dtype("float32")
    shape = [2, 2, 2, 1] if data_format == "NHWC" else [2, 1, 2, 2]
    values = paddle.to_tensor(np.arange(8.0).reshape(shape), dtype=dtype)
    with refused_if_it_fails(paddle, alone.name) if compiled else nullcontext():
        (compile_model(paddle, model) if compiled else model)(values)
    measured = layers["bn"]._variance.item()
    for unbiased, expected in ((True, 6.0), (False, 5.25)):
        if abs(measured - expected) < 0.01:
            return unbiased
    raise Unsupported(
        f"paddle's BatchNorm gives the variance {measured} for the values 0 to 7 on "
        f"{paddle.get_device()}, where 6 or 5.25 is right; this build cannot be compared"
    )


class _Norm(NamedTuple):
    name: str
    layer: paddle.nn.Layer
    channels: int
    momentum: float
    positions: int
    """Height times width."""


class RunningStatistics:
    """The running mean and variance of every BatchNorm, averaged here in one vector.

    Paddle's own averages differ from the definition in two ways: on the CPU, and compiled by CINN,
    the variance follows the biased batch variance, and the momentum passes through float32, 2e-8
    off. So the layers run with momentum 0, which leaves the plain statistics of the last batch in
    their buffers, and :meth:`follow` averages those of all layers at once: three small operations
    a step, whatever the number of layers.
    """

    def __init__(
        self,
        paddle: ModuleType,
        network: networks.Network,
        layers: dict[str, paddle.nn.Layer],
        *,
        trained_unbiased: bool,
        eager_unbiased: bool,
    ) -> None:
        """Whether a training step, and an eager pass, divide the batch variance by n − 1.

        They differ where the step is compiled and its kernel is not the eager one.
        """
        self._paddle = paddle
        self._trained_unbiased = trained_unbiased
        self._eager_unbiased = eager_unbiased
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
        """Move the averages towards the batch that a training step has just normalised."""
        if self._norms:
            with self._paddle.no_grad():
                batch = self._batch(batch_size, unbiased=self._trained_unbiased)
                self._average.lerp_(batch, self._momentum)

    def after(self, batch_size: int) -> dict[str, np.ndarray]:
        """What :meth:`follow` would leave, without doing it, after an eager pass."""
        if not self._norms:
            return {}
        with self._paddle.no_grad():
            batch = self._batch(batch_size, unbiased=self._eager_unbiased)
            return self._split(self._paddle.lerp(self._average, batch, self._momentum))

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

    def _batch(self, batch_size: int, *, unbiased: bool) -> paddle.Tensor:
        statistics = self._paddle.concat(self._buffers)
        return statistics if unbiased else statistics * self._correction(batch_size)

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


class OwnStatistics:
    """The running mean and variance of every BatchNorm as Paddle itself averages them."""

    def __init__(self, network: networks.Network, layers: dict[str, paddle.nn.Layer]) -> None:
        self._buffers = {
            f"{placed.layer.name}.{part}": getattr(layers[placed.layer.name], buffer)
            for placed in networks.place_layers(network)
            if isinstance(placed.layer, networks.BatchNorm)
            for part, buffer in (("running_mean", "_mean"), ("running_var", "_variance"))
        }

    def follow(self, batch_size: int) -> None:
        """Nothing to do: the layers have done it."""

    def after(self, batch_size: int) -> dict[str, np.ndarray]:
        """The averages as the last pass left them."""
        return self.values()

    def values(self) -> dict[str, np.ndarray]:
        """Canonical name → a copy of the running average."""
        return {name: np.array(buffer.numpy()) for name, buffer in self._buffers.items()}

    def load(self, values: dict[str, np.ndarray]) -> None:
        """Continue from ``values``, which has every running average."""
        for name, buffer in self._buffers.items():
            buffer.set_value(values[name].astype(buffer.numpy().dtype))

    def show(self) -> None:
        """Nothing to do: an evaluation reads the layers' buffers."""


Statistics = RunningStatistics | OwnStatistics
