"""CUDA's driver, asked without any framework."""

from __future__ import annotations

import ctypes
import uuid


def cuda_uuid(ordinal: int) -> str | None:
    """The UUID of the CUDA device that this process counts as ``ordinal``, as nvidia-smi shows it.

    The driver counts as the frameworks do, from 0 among what ``CUDA_VISIBLE_DEVICES`` leaves; NVML
    counts all. None without a driver or a device of that number.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    calls = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(device), ordinal),
        lambda: driver.cuDeviceGetUuid(ctypes.byref(raw), device),
    )
    failed = any(call() != 0 for call in calls)
    return None if failed else f"GPU-{uuid.UUID(bytes=bytes(raw))}"
