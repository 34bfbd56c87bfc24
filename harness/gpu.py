"""NVIDIA's management library (NVML), asked without any framework."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeVar

T = TypeVar("T")

THROTTLE_REASONS: Final = {
    0x004: "SW power cap",
    0x008: "HW slowdown",
    0x010: "sync boost",
    0x020: "SW thermal slowdown",
    0x040: "HW thermal slowdown",
    0x080: "HW power brake slowdown",
    0x100: "display clock setting",
}
"""Bits of NVML's clock event reasons, as ``nvidia-smi`` names them.

Left out are 0x1 (idle) and 0x2 (a clock that someone set): these slow nothing unexpectedly.
"""


@functools.cache
def open_nvml() -> ModuleType | None:
    """NVML, initialised once for the life of this process; None without NVIDIA's driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


class Gpu:
    """One GPU as NVML sees it; a method returns None where this GPU does not tell."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @property
    def uuid(self) -> str:
        """As the frameworks give it: ``GPU-`` and 36 characters."""
        return str(self._nvml.nvmlDeviceGetUUID(self._handle))

    @property
    def name(self) -> str:
        """Such as ``NVIDIA H100 PCIe``."""
        return str(self._nvml.nvmlDeviceGetName(self._handle))

    def used_bytes(self) -> int | None:
        """Device memory in use by all processes."""
        return self._ask(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def total_bytes(self) -> int | None:
        """Device memory in all."""
        return self._ask(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).total))

    def clock_mhz(self) -> float | None:
        """Clock of the multiprocessors now."""
        nvml = self._nvml
        return self._ask(
            lambda: float(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
        )

    def temperature_c(self) -> float | None:
        """Temperature of the chip now."""
        nvml = self._nvml
        return self._ask(
            lambda: float(nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU))
        )

    def power_w(self) -> float | None:
        """Power of the board, as the driver averages it."""
        return self._ask(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3)

    def energy_joules(self) -> float | None:
        """Energy of the board since the driver was loaded (Volta and later)."""
        return self._ask(self._counted_joules)

    def energy_refusal(self) -> str | None:
        """NVML's own words for why the energy cannot be read; None where it can."""
        try:
            self._counted_joules()
        except self._nvml.NVMLError as error:
            return str(error)
        return None

    def throttle_reasons(self) -> list[str]:
        """Why the clock is lower than it could be now; empty where nothing lowers it or tells."""
        # The name that every driver has; newer ones call the same thing event reasons as well.
        bits = self._ask(
            lambda: int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        )
        return [reason for bit, reason in THROTTLE_REASONS.items() if (bits or 0) & bit]

    def _counted_joules(self) -> float:
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def gpus() -> list[Gpu]:
    """Every GPU of this machine, in the order of ``nvidia-smi``; empty without a driver."""
    nvml = open_nvml()
    if nvml is None:
        return []
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return [Gpu(nvml, handle) for handle in handles]


def find_gpu(uuid: str | None) -> Gpu | None:
    """The GPU of this UUID; None where NVML lists none."""
    return next((gpu for gpu in gpus() if gpu.uuid == uuid), None)


def has_gpu() -> bool:
    """Whether NVIDIA's driver reports a device that CUDA may use; imports no framework."""
    # NVML lists what CUDA was told to hide.
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and bool(gpus())


def driver_version() -> str | None:
    """Version of NVIDIA's driver, such as ``550.54.15``; None without one."""
    nvml = open_nvml()
    return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def cuda_driver_version() -> str | None:
    """Newest CUDA version that the driver serves, such as ``12.4``; None without a driver."""
    nvml = open_nvml()
    if nvml is None:
        return None
    version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    return f"{version // 1000}.{version % 1000 // 10}"


class GpuMemoryWatch:
    """Device memory in use by all processes, above what was in use at the start.

    It is what one process took as long as no other takes or frees any. Every method does nothing on
    a machine without NVIDIA's driver.
    """

    def __init__(self) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus()}
        self._start_bytes = self._used_bytes()
        self._now_bytes: dict[str, int] = {}

    def sample(self) -> None:
        """Note what is in use now."""
        self._now_bytes = self._used_bytes()

    def used_delta_bytes(self, uuid: str | None) -> int | None:
        """The last sample above the start on the GPU ``uuid``; None where it is not known.

        Nor is it where less is in use than at the start: another process has freed some.
        """
        if uuid is None or uuid not in self._start_bytes or uuid not in self._now_bytes:
            return None
        delta_bytes = self._now_bytes[uuid] - self._start_bytes[uuid]
        return delta_bytes if delta_bytes >= 0 else None

    def _used_bytes(self) -> dict[str, int]:
        used = {uuid: gpu.used_bytes() for uuid, gpu in self._gpus.items()}
        return {uuid: value for uuid, value in used.items() if value is not None}
