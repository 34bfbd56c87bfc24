"""Products whose speed tells the device's peak in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from harness.protocol import PeakOperation

if TYPE_CHECKING:
    import torch


def peak_operation(
    torch: ModuleType,
    device: torch.device,
    memory_format: torch.memory_format,
    operation: PeakOperation,
    dtype: str,
    size: int,
) -> Callable[[], object]:
    """See :meth:`harness.protocol.Backend.peak_operation`."""
    kind = getattr(torch, dtype)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(kind)

    if operation == "matrix product":
        left, right = random(size, size), random(size, size)
        return lambda: torch.matmul(left, right)
    image = random(size // 64, size, 8, 8).contiguous(memory_format=memory_format)
    kernel = random(size, size, 1, 1).contiguous(memory_format=memory_format)
    return lambda: torch.nn.functional.conv2d(image, kernel)
