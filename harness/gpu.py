"""NVIDIA's management library, asked without any framework."""

from __future__ import annotations

from typing import Any


class GpuMemoryWatch:
    """Device memory in use by all processes, above what was in use at the start.

    Every method does nothing on a machine without NVIDIA's driver.
    """

    def __init__(self) -> None:
        self._start_bytes: dict[str, int] = {}
        self._peak_bytes: dict[str, int] = {}
        for uuid, used in _used_bytes().items():
            self._start_bytes[uuid] = self._peak_bytes[uuid] = used

    def sample(self) -> None:
        """Note what is in use now."""
        if self._start_bytes:
            for uuid, used in _used_bytes().items():
                self._peak_bytes[uuid] = max(used, self._peak_bytes.get(uuid, 0))

    def used_delta_bytes(self, uuid: str | None) -> int | None:
        """Highest sample above the start on the GPU ``uuid``; None where it is not known."""
        if uuid is None or uuid not in self._start_bytes:
            return None
        return self._peak_bytes[uuid] - self._start_bytes[uuid]


def has_gpu() -> bool:
    """Whether NVIDIA's driver reports a device; imports no framework."""
    return bool(_used_bytes())


def _used_bytes() -> dict[str, int]:
    """GPU UUID → bytes in use; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handles: list[Any] = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return {
            str(pynvml.nvmlDeviceGetUUID(handle)): int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
            for handle in handles
        }
    finally:
        pynvml.nvmlShutdown()
