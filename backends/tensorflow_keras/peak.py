"""Products whose speed tells the device's peak in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from harness.protocol import PeakOperation

if TYPE_CHECKING:
    import tensorflow as tf


def peak_operation(
    tf: ModuleType,
    device: str,
    operation: PeakOperation,
    dtype: str,
    size: int,
    *,
    channels_first: bool,
) -> Callable[[], object]:
    """See :meth:`harness.protocol.Backend.peak_operation`."""

    def random(*shape: int) -> tf.Tensor:
        return tf.cast(tf.random.normal(shape), dtype)

    with tf.device(device):
        if operation == "matrix product":
            left, right = random(size, size), random(size, size)
            return lambda: tf.linalg.matmul(left, right)
        pixels = (size // 64, size, 8, 8) if channels_first else (size // 64, 8, 8, size)
        image, kernel = random(*pixels), random(1, 1, size, size)
    data_format = "NCHW" if channels_first else "NHWC"
    return lambda: tf.nn.conv2d(image, kernel, 1, "VALID", data_format=data_format)
