"""A stand-in for NVIDIA's management library with one GPU whose state a test sets."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

UUID = "GPU-11111111-2222-3333-4444-555555555555"


class NVMLError(Exception):
    """As pynvml's: the driver or the GPU does not tell."""


class FakeNvml:
    """The functions that `harness.gpu` calls; what is named in `unsupported` raises."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *, unsupported: Sequence[str] = ()) -> None:
        self.unsupported = unsupported
        self.calls: list[str] = []
        self.clock_mhz = 1755
        self.temperature_c = 61
        self.power_mw = 300_500
        self.energy_mj = 5_000_000
        self.reasons = 0
        self.used_bytes = 2**30

    def _tell(self, name: str, value: Any) -> Any:
        self.calls.append(name)
        if name in self.unsupported:
            raise NVMLError("Not Supported")
        return value

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle {index}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return UUID

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return self._tell("memory", SimpleNamespace(used=self.used_bytes, total=2**34))

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return self._tell("clock", self.clock_mhz)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._tell("temperature", self.temperature_c)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self._tell("power", self.power_mw)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self._tell("energy", self.energy_mj)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self._tell("reasons", self.reasons)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040
