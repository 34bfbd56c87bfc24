"""What the machine has and allows: limits of its container, units of its CPU, how it is set up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
from pydantic import BaseModel

from harness.cpu import PROC, cpu_features
from harness.environment import describe_environment
from harness.gpu import gpus

_SYS: Final = Path("/sys")


class Limits(BaseModel):
    """What the control groups around this process allow; None where they set no limit."""

    cpus: float | None
    memory_bytes: int | None


class GpuState(BaseModel):
    """One GPU as NVIDIA's driver shows it."""

    name: str
    uuid: str
    total_bytes: int | None
    used_bytes: int | None
    """By all processes."""
    temperature_c: float | None
    throttle_reasons: list[str]


class Machine(BaseModel):
    """A machine before anything is run on it; None where it does not tell."""

    cpu: str
    cpu_features: list[str] | None
    """Those of :data:`harness.cpu.CPU_FEATURES` that it has."""
    cpus: int | None
    cpus_usable: int
    governor: str | None
    """Rule by which Linux chooses the CPU's clock."""
    huge_pages: str | None
    """always, madvise or never: when Linux gives memory in pages of 2 MiB."""
    memory_bytes: int
    memory_available_bytes: int
    limits: Limits
    gpu_driver: str | None
    cuda_driver: str | None
    gpus: list[GpuState]
    cache_dir: str
    cache_free_bytes: int


def describe_machine(cache_dir: Path, *, sys: Path = _SYS, proc: Path = PROC) -> Machine:
    """Look at this machine.

    Args:
        cache_dir: where decoded images are kept; it need not exist yet.
        sys, proc: Linux's trees of that name.
    """
    environment = describe_environment()
    existing = next(folder for folder in (cache_dir, *cache_dir.parents) if folder.exists())
    return Machine(
        cpu=environment.cpu,
        cpu_features=cpu_features(proc),
        cpus=psutil.cpu_count(),
        cpus_usable=environment.cpus_usable,
        governor=_text(sys / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        huge_pages=huge_pages(sys),
        memory_bytes=environment.memory_bytes,
        memory_available_bytes=psutil.virtual_memory().available,
        limits=cgroup_limits(sys=sys, proc=proc),
        gpu_driver=environment.gpu_driver,
        cuda_driver=environment.cuda_driver,
        gpus=[
            GpuState(
                name=gpu.name,
                uuid=gpu.uuid,
                total_bytes=gpu.total_bytes(),
                used_bytes=gpu.used_bytes(),
                temperature_c=gpu.temperature_c(),
                throttle_reasons=gpu.throttle_reasons(),
            )
            for gpu in gpus()
        ],
        cache_dir=str(cache_dir),
        cache_free_bytes=shutil.disk_usage(existing).free,
    )


def huge_pages(sys: Path = _SYS) -> str | None:
    """The choice in force, which Linux marks with brackets: ``always [madvise] never``."""
    text = _text(sys / "kernel/mm/transparent_hugepage/enabled")
    return None if text is None or "[" not in text else text.partition("[")[2].partition("]")[0]


def cgroup_limits(*, sys: Path = _SYS, proc: Path = PROC) -> Limits:
    """The tightest limits of this process's control groups and of those around them.

    Both versions are read: ``cpu.max`` and ``memory.max`` of version 2; ``cpu.cfs_quota_us`` over
    ``cpu.cfs_period_us`` and ``memory.limit_in_bytes`` of version 1.
    """
    cpus: list[float] = []
    memory_bytes: list[int] = []
    for folder in _cgroups(sys / "fs/cgroup", _text(proc / "self/cgroup") or ""):
        quota, _, period = (_text(folder / "cpu.max") or "").partition(" ")
        if not quota:
            quota = _text(folder / "cpu.cfs_quota_us") or ""
            period = _text(folder / "cpu.cfs_period_us") or ""
        if quota.isdecimal() and period.isdecimal():
            cpus.append(int(quota) / int(period))
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _text(folder / name) or ""
            # Version 1 tells "none" by the largest number of pages that fits.
            if limit.isdecimal() and int(limit) < 2**60:
                memory_bytes.append(int(limit))
    return Limits(cpus=min(cpus, default=None), memory_bytes=min(memory_bytes, default=None))


def _cgroups(root: Path, membership: str) -> Iterator[Path]:
    """The folders of a process's control groups, each with those around it."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in controllers.split(",") if controllers else ("", "unified"):
            folder = root / mount / path.strip("/")
            yield folder
            # Within a container the path may name the host's; its root is then the container's.
            yield from (above for above in folder.parents if above.is_relative_to(root / mount))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
