"""Products whose speed tells the device's peak in Paddle."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from backends.paddlepaddle.device import DataFormat
from harness.protocol import PeakOperation

if TYPE_CHECKING:
    import paddle


def peak_operation(
    paddle: ModuleType,
    data_format: DataFormat,
    operation: PeakOperation,
    dtype: str,
    size: int,
) -> Callable[[], object]:
    """See :meth:`harness.protocol.Backend.peak_operation`."""

    def random(*shape: int) -> paddle.Tensor:
        # Without gradients, since a fresh tensor asks for none.
        return paddle.randn(list(shape)).astype(dtype)

    if operation == "matrix product":
        left, right = random(size, size), random(size, size)
        return lambda: paddle.matmul(left, right)
    channels_last = data_format == "NHWC"
    image = random(size // 64, 8, 8, size) if channels_last else random(size // 64, size, 8, 8)
    kernel = random(size, size, 1, 1)
    return lambda: paddle.nn.functional.conv2d(image, kernel, data_format=data_format)
