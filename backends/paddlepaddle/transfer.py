"""Host memory to the GPU, without the host waiting for it."""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import paddle


class PinnedTransfer:
    """Copies from pinned memory, on the stream that computes.

    The host does not wait, but a copy takes its turn between two steps. Another stream would still
    allocate from this one's pool, where memory that a waiting kernel reads counts as free, and
    Paddle cannot mark a tensor as in use.
    """

    def __init__(self, paddle: ModuleType, device: str) -> None:
        self._paddle = paddle
        self._device = device
        self._copying: deque[tuple[Any, list[paddle.Tensor]]] = deque()

    def to_device(self, *arrays: np.ndarray) -> list[paddle.Tensor]:
        """Enqueue the copies; the tensors can be used at once by what is enqueued after them."""
        paddle = self._paddle
        pinned = [paddle.to_tensor(array, place=paddle.CUDAPinnedPlace()) for array in arrays]
        on_device = [tensor.cuda(blocking=False) for tensor in pinned]
        copied = paddle.device.current_stream(self._device).record_event()
        # Nor does Paddle keep the pinned memory from reuse until it is copied.
        self._copying.append((copied, pinned))
        while self._copying[0][0].query() and len(self._copying) > 1:
            self._copying.popleft()
        return on_device
