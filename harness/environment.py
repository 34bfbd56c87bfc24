"""The machine, and the environment variables that a worker is given."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from harness.config import RunConfig
from harness.cpu import cpu_features
from harness.gpu import cuda_driver_version, driver_version
from harness.records import EnvironmentPart

# What a worker may inherit: where things are, not how kernels are chosen. A stray
# NVIDIA_TF32_OVERRIDE or TF_XLA_FLAGS in a shell would tell the arms of two people apart.
_INHERITED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ"),
        *("TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE"),
        *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "OPENBLAS_CORETYPE"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "CC", "CXX"),
    )
)
_INHERITED_PREFIXES = ("LC_", "XDG_", "CONDA_", "CUDA_", "NVIDIA_", "NCCL_", "AMP_HARNESS_")
_NOT_INHERITED = frozenset({"NVIDIA_TF32_OVERRIDE"})
_STEERING_PREFIXES = (
    *("OMP_", "MKL_", "OPENBLAS_", "TF_", "CUDA_", "CUBLAS_", "NVIDIA_", "FLAGS_"),
    *("GLIBC_TUNABLES", "THP_"),
)

_REPORTED_PACKAGES = (
    *("torch", "tensorflow", "tensorflow-cpu", "keras", "paddlepaddle", "paddlepaddle-gpu"),
    *("numpy", "pillow", "pydantic", "triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(psutil.Process().cpu_affinity()) if sys.platform == "linux" else os.cpu_count() or 1


def worker_variables(run: RunConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a worker of ``run``; nothing else of ``inherited`` gets through.

    Thread counts are set here because the libraries read them while they are imported (Paddle
    would otherwise settle for one thread).
    """
    threads = str(run.threads or usable_cpus())
    variables = {
        name: value
        for name, value in inherited.items()
        if (name.upper() in _INHERITED or name.startswith(_INHERITED_PREFIXES))
        and name not in _NOT_INHERITED
    }
    variables |= {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "GLOG_minloglevel": "2",
        # The order of device numbers that nvidia-smi shows.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONHASHSEED": "0",
        # Huge pages, where the system lets a process ask (glibc 2.35; PyTorch's allocator). With
        # small ones a worker's speed depends on where its pages happen to lie: of equal arms the
        # one that started later was 2 % faster, on a machine that had run for hours 6 to 12 %.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "THP_MEM_ALLOC_ENABLE": "1",
        "PYTHONUNBUFFERED": "1",
        # The code that the parent runs, whatever else the worker's interpreter has installed.
        "PYTHONPATH": os.pathsep.join(
            [*_project_root(), *filter(None, [inherited.get("PYTHONPATH")])]
        ),
    }
    if run.deterministic:
        # cuBLAS reads this when its first handle is made (NVIDIA cuBLAS, "Results
        # Reproducibility"); the frameworks refuse deterministic products without it.
        variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return variables


def describe_environment() -> EnvironmentPart:
    """Describe this process and its machine."""
    return EnvironmentPart(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu_name(),
        cpus_usable=usable_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        packages={
            name: version for name in _REPORTED_PACKAGES if (version := _version(name)) is not None
        },
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_STEERING_PREFIXES)
        },
        gpu_driver=driver_version(),
        cuda_driver=cuda_driver_version(),
        code_sha256=_code_sha256(),
        cpu_features=cpu_features(),
    )


def _code_sha256() -> str:
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for package in ("harness", "backends", "datasets"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _project_root() -> list[str]:
    root = Path(__file__).resolve().parents[1]
    # An installed copy is found by its own interpreter; its site-packages must not leak into
    # another framework's environment.
    return [] if root.name in ("site-packages", "dist-packages") else [str(root)]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
