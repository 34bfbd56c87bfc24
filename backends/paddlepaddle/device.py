"""What Paddle can do on this machine, found by trying, and its process-wide settings."""

from __future__ import annotations

import ctypes
import os
import warnings
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from harness.cuda_driver import cuda_uuid
from harness.protocol import Capabilities, Capability, DeviceType, Unsupported

DataFormat = Literal["NCHW", "NHWC"]

_DTYPES = ("float32", "float16", "bfloat16", "float64")
_OLDEST = 3
# How Paddle's allocator, CUDA, cuBLAS and cuDNN (8 and 9) tell that memory ran out.
_OUT_OF_MEMORY = ("ResourceExhausted", "out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED")
# Paddle raises its C++ errors as whichever of these fits their code best.
_PADDLE_ERRORS = (RuntimeError, OSError, ValueError, NotImplementedError, SystemError)


def try_capabilities(paddle: ModuleType) -> Capabilities:
    """Run a convolution in each dtype on each device."""
    on_gpu = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    devices: dict[DeviceType, str] = {"cpu": "cpu", "cuda": "gpu:0"} if on_gpu else {"cpu": "cpu"}
    return {
        device: {dtype: try_dtype(paddle, native, dtype) for dtype in _DTYPES}
        for device, native in devices.items()
    }


def refuse_unusable_installation(paddle: ModuleType) -> None:
    """Raise :class:`Unsupported` for an old Paddle, or for two builds in one environment."""
    builds = {}
    for name in ("paddlepaddle", "paddlepaddle-gpu"):
        try:
            builds[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if len(builds) == 2:
        both = " and ".join(f"{name} {version}" for name, version in builds.items())
        raise Unsupported(
            f"{both} are installed over each other in one environment; uninstall both, then "
            "install the one that fits this machine"
        )
    if int(paddle.__version__.split(".")[0]) < _OLDEST:
        raise Unsupported(
            f"paddle {paddle.__version__} is too old, {_OLDEST}.0 is needed; PyPI's "
            "paddlepaddle-gpu ends at 2.6.2, newer CUDA builds come from Paddle's own index"
        )


def choose_device(paddle: ModuleType, wanted: str) -> str:
    """Paddle's name (``cpu``, ``gpu:0``) of the device called ``wanted``, one of ``RunConfig``'s.

    Raises:
        Unsupported: there is no such device.
    """
    built = paddle.is_compiled_with_cuda()
    count = paddle.device.cuda.device_count() if built else 0
    if wanted == "cpu" or (wanted == "auto" and not count):
        return "cpu"
    index = int(wanted.partition(":")[2] or 0)
    if not count:
        raise Unsupported(
            f"paddle {paddle.__version__} finds no CUDA device: "
            + (
                f"it is built for CUDA {paddle.version.cuda()}, so the driver or the GPU is "
                "missing (see nvidia-smi)"
                if built
                else "it is a CPU build; install a CUDA build of paddlepaddle-gpu, or use "
                "--device cpu"
            )
        )
    if index >= count:
        raise Unsupported(f"there is no {wanted}: paddle sees {count} CUDA device(s)")
    return f"gpu:{index}"


def gpu_uuid(device: str) -> str | None:
    """The UUID of ``gpu:N`` as nvidia-smi shows it, which Paddle does not tell."""
    return cuda_uuid(int(device.partition(":")[2]))


def try_dtype(paddle: ModuleType, device: str, dtype: str) -> Capability:
    """Run a convolution in ``dtype`` on ``device``, as training would, and look at its output."""
    before = paddle.get_device()
    low = dtype in ("float16", "bfloat16")
    ones = paddle.ones
    # Where AMP cannot work, Paddle only warns and computes in float32.
    with warnings.catch_warnings(record=True) as caught, paddle.no_grad():
        warnings.simplefilter("always")
        try:
            paddle.set_device(device)
            held = "float32" if low else dtype
            image, kernel = ones([1, 1, 4, 4], held), ones([1, 1, 3, 3], held)
            with paddle.amp.auto_cast(level="O1", dtype=dtype) if low else nullcontext():
                result = paddle.nn.functional.conv2d(image, kernel)
            result.numpy()
        except _PADDLE_ERRORS as error:
            return Capability(available=False, reason=first_line(error))
        finally:
            paddle.set_device(before)
    ran = dtype_name(result)
    if ran == dtype:
        return Capability(available=True)
    if device == "cpu":
        why = f"no {dtype} kernels; a CUDA build of paddlepaddle-gpu on an NVIDIA GPU is needed"
    else:
        why = str(caught[0].message) if caught else f"a convolution came out as {ran}"
    return Capability(available=False, reason=f"paddle.amp makes no effect on this device: {why}")


def refuse_layout(paddle: ModuleType, dtype: str, data_format: DataFormat) -> None:
    """Raise :class:`Unsupported` if the device in use cannot train in ``data_format``."""
    functional = paddle.nn.functional
    image = paddle.ones([2, 8, 8, 4] if data_format == "NHWC" else [2, 4, 8, 8], dtype)
    image.stop_gradient = False
    kernel, zero = paddle.ones([4, 4, 3, 3], dtype), paddle.zeros([4], dtype)
    one = paddle.ones([4], dtype)
    try:
        x = functional.conv2d(image, kernel, padding=1, data_format=data_format)
        x = functional.batch_norm(
            x, zero, one, weight=one.clone(), bias=zero.clone(), training=True,
            data_format=data_format,
        )  # fmt: skip
        x = functional.max_pool2d(x, 3, 2, 1, data_format=data_format)
        functional.adaptive_avg_pool2d(x, 1, data_format=data_format).sum().backward()
    except _PADDLE_ERRORS as error:
        raise Unsupported(
            f"paddle cannot train in {data_format} on {paddle.get_device()}: "
            f"{first_line(error)}; use --layout nchw"
        ) from error


def set_threads(paddle: ModuleType, threads: int) -> int:
    """Use ``threads`` CPU threads; returns how many are in force."""
    # Left alone, Paddle computes on one thread: it takes OMP_NUM_THREADS for 1 unless it is set.
    paddle.base.core.set_num_threads(threads)
    # Paddle does not tell; the OpenMP runtime that it brings along does.
    runtime = Path(str(paddle.__file__)).parent / "libs" / "libiomp5.so"
    if runtime.exists():
        return ctypes.CDLL(str(runtime)).omp_get_max_threads()
    return threads


def set_cuda_modes(paddle: ModuleType, *, tf32: bool, deterministic: bool) -> bool:
    """Pin TF32 and the choice of cuDNN's algorithms; returns whether TF32 is in force."""
    core = paddle.base.core
    # By default TF32 is off for matrix products and on for convolutions.
    core.set_cublas_switch(tf32)
    core.set_cudnn_switch(tf32)
    paddle.set_flags(
        {
            # Shapes never change within a run, so that measuring the kernels once pays.
            "FLAGS_cudnn_exhaustive_search": not deterministic,
            "FLAGS_cudnn_deterministic": deterministic,
        }
    )
    return core.get_cublas_switch() or core.get_cudnn_switch()


def usable_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def dtype_name(tensor: Any) -> str:
    """``float32`` of a tensor's ``paddle.float32``."""
    return str(tensor.dtype).removeprefix("paddle.")


def first_line(error: BaseException) -> str:
    """The message of an error without Paddle's stack of C++ frames."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("---", "C++ Traceback"))]
    return next((line for line in told if "Error: " in line), told[0] if told else repr(error))


def is_out_of_memory(error: BaseException) -> bool:
    """See :meth:`harness.protocol.Backend.is_out_of_memory`."""
    # Both allocators raise MemoryError; a CUDA library that finds no room for its workspace comes
    # as another error with that library's text.
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | OSError | SystemError)
        and any(words in str(error) for words in _OUT_OF_MEMORY)
    )
