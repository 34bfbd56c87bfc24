"""CUDA's driver, on a stand-in for its library."""

import ctypes
from typing import Any

import pytest

from harness.cuda_driver import cuda_uuid

SUCCESS, INVALID_DEVICE, NO_DEVICE = 0, 101, 100
"""CUresult, as cuda.h numbers them."""


class FakeDriver:
    """A driver of two devices, whose handles are not their numbers."""

    def __init__(self, *, initialises: bool = True) -> None:
        self._initialises = initialises

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return SUCCESS if self._initialises else NO_DEVICE

    def cuDeviceGet(self, handle: Any, ordinal: int) -> int:
        if ordinal > 1:
            return INVALID_DEVICE
        handle._obj.value = 70 + ordinal
        return SUCCESS

    def cuDeviceGetUuid(self, raw: Any, handle: ctypes.c_int) -> int:
        first = {70: 0x00, 71: 0xF0}[handle.value]
        raw._obj[:] = [first, *range(1, 16)]
        return SUCCESS


def use(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    def load(name: str) -> FakeDriver:
        assert name == "libcuda.so.1"
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)


def test_a_device_is_named_as_nvidia_smi_names_it(monkeypatch: pytest.MonkeyPatch):
    """Sixteen bytes as hexadecimal digits in groups of 4, 2, 2, 2 and 6 bytes (RFC 9562)."""
    use(monkeypatch, FakeDriver())
    assert cuda_uuid(0) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert cuda_uuid(1) == "GPU-f0010203-0405-0607-0809-0a0b0c0d0e0f"


def test_a_device_that_the_driver_does_not_have_is_unknown(monkeypatch: pytest.MonkeyPatch):
    use(monkeypatch, FakeDriver())
    assert cuda_uuid(2) is None
    use(monkeypatch, FakeDriver(initialises=False))
    assert cuda_uuid(0) is None


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert cuda_uuid(0) is None
