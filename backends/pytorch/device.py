"""Which devices and dtypes PyTorch has on this machine, found by trying."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from harness.protocol import Capabilities, Capability, DeviceType, Unsupported

if TYPE_CHECKING:
    import torch


def try_capabilities(torch: ModuleType) -> Capabilities:
    """Run a convolution in each dtype on each device."""
    devices: list[DeviceType] = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    dtypes = ("float32", "float16", "bfloat16", "float64")
    return {
        device: {dtype: try_dtype(torch, torch.device(device), dtype) for dtype in dtypes}
        for device in devices
    }


def try_dtype(torch: ModuleType, device: torch.device, dtype: str) -> Capability:
    """Run a convolution in ``dtype`` on ``device``, under autocast where it is a low precision."""
    kind = getattr(torch, dtype)
    low = dtype in ("float16", "bfloat16")
    try:
        held = torch.float32 if low else kind
        image, kernel = (torch.ones(1, 1, n, n, dtype=held, device=device) for n in (4, 3))
        with torch.autocast(device.type, kind, enabled=low), torch.no_grad():
            result = torch.nn.functional.conv2d(image, kernel)
    except RuntimeError as error:
        return Capability(available=False, reason=str(error).splitlines()[0])
    if result.dtype != kind:
        return Capability(available=False, reason=f"a convolution came out as {result.dtype}")
    return Capability(available=True)


def choose_device(torch: ModuleType, wanted: str) -> torch.device:
    """The device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        Unsupported: it is not there; the text tells why and what to do.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        return torch.device("cpu")
    device = torch.device(wanted if ":" in wanted else f"{wanted}:0")
    if not torch.cuda.is_available():
        built_for = torch.version.cuda
        remedy = (
            f"it is built for CUDA {built_for}, so driver or GPU are missing (see nvidia-smi)"
            if built_for
            else "it is a CPU build; install a CUDA build of torch, or use --device cpu"
        )
        raise Unsupported(f"torch {torch.__version__} finds no CUDA device: {remedy}")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise Unsupported(f"there is no {wanted}: torch sees {count} CUDA device(s), from cuda:0")
    return device
