"""What runs on this machine, what does not and why, and what would make its figures better."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, TypeAdapter

from harness.conditions import BackgroundLoad
from harness.config import RunConfig
from harness.cpu import DTYPE_UNITS, lacks_unit
from harness.energy import NoCounter, open_meter
from harness.gpu import gpus
from harness.machine import Machine, describe_machine
from harness.peaks import MeasuredPeak, keep_peak
from harness.protocol import Capability
from harness.records import EnvironmentPart
from harness.registry import BACKENDS
from harness.verdict import BUSY_CPUS
from harness.worker_process import WorkerFailed, WorkerProcess

LOAD_S: Final = 1.0
"""For which the background load is watched."""
_SHORT_OF_SPACE_BYTES: Final = 5 * 10**9
_SHORT_OF_MEMORY_BYTES: Final = 4 * 2**30

Devices = dict[str, dict[str, Capability]]


class Framework(BaseModel):
    """One framework in its own interpreter."""

    backend: str
    python: str
    version: str | None
    """None where the framework does not load."""
    reason: str | None
    """Why it does not load, with the remedy."""
    devices: Devices
    """Device type → dtype → whether it works, or why not; found by trying."""
    threads: str | None
    """OMP_NUM_THREADS of its worker."""


class PeakResult(BaseModel):
    """What came of measuring one peak."""

    backend: str
    device: str
    dtype: str
    """``all`` where the device is missing."""
    peak: MeasuredPeak | None
    reason: str | None
    """Why there is none."""


class EnergyCounter(BaseModel):
    """Whether a device's energy can be read."""

    device: str
    source: str | None
    reason: str | None


class Diagnosis(BaseModel):
    """All that ``doctor`` finds."""

    machine: Machine
    background_cpus: float | None
    energy: list[EnergyCounter]
    frameworks: list[Framework]
    peaks: list[PeakResult]
    tips: list[str]


def diagnose(
    pythons: Mapping[str, str], *, cache_dir: Path, on_step: Callable[[str], None]
) -> Diagnosis:
    """Look at the machine, then try each framework in a worker process of its own.

    Args:
        pythons: backend → interpreter.
        cache_dir: where decoded images are kept.
        on_step: told what is looked at.
    """
    on_step("machine")
    machine = describe_machine(cache_dir)
    load = BackgroundLoad()
    load.start()
    time.sleep(LOAD_S)
    background_cpus = load.stop()
    frameworks = []
    for backend, python in pythons.items():
        on_step(backend)
        frameworks.append(_try_framework(backend, python))
    found = Diagnosis(
        machine=machine,
        background_cpus=background_cpus,
        energy=[*_energy_counters()],
        frameworks=frameworks,
        peaks=[],
        tips=[],
    )
    return found.model_copy(update={"tips": [*tips(found)]})


def measure_peaks(
    frameworks: Sequence[Framework],
    *,
    device: str,
    threads: int | None,
    file: Path,
    on_step: Callable[[str], None],
) -> list[PeakResult]:
    """Measure each framework's peak in each dtype that works, and keep it in ``file``.

    Args:
        device: as in ``RunConfig``; ``auto`` is the GPU where the framework has one.
        threads: CPU threads; None: all usable.

    Raises:
        pydantic.ValidationError: ``device`` or ``threads`` cannot be.
    """
    results = []
    for framework in frameworks:
        chosen = device
        if device == "auto":
            chosen = "cuda" if "cuda" in framework.devices else "cpu"
        kind = RunConfig(backend=framework.backend, steps=1, device=chosen).device.partition(":")[0]
        if framework.reason is None and kind not in framework.devices:
            reason = f"{framework.backend} finds no {kind} device"
            results.append(
                PeakResult(
                    backend=framework.backend, device=kind, dtype="all", peak=None, reason=reason
                )
            )
        for dtype, run in _peak_runs(framework, chosen, threads):
            on_step(f"{framework.backend}, {dtype}, {kind}")
            peak, reason = None, None
            try:
                with _worker(run, framework.python) as worker:
                    answer = worker.ask("measure_peak", run=run.model_dump(mode="json"))
                peak = MeasuredPeak.model_validate(answer["peak"])
                keep_peak(peak, file=file)
            except WorkerFailed as failure:
                reason = failure.reason
            results.append(
                PeakResult(
                    backend=framework.backend, device=kind, dtype=dtype, peak=peak, reason=reason
                )
            )
    return results


def _peak_runs(
    framework: Framework, device: str, threads: int | None
) -> Iterator[tuple[str, RunConfig]]:
    kind = device.partition(":")[0]
    dtypes = framework.devices.get(kind, {})
    for dtype in ("float32", "tf32", "float16", "bfloat16"):
        native = "float32" if dtype == "tf32" else dtype
        if native not in dtypes or not dtypes[native].available or (dtype, kind) == ("tf32", "cpu"):
            continue
        low = {"precision": "amp", "amp_dtype": dtype} if native != "float32" else {}
        yield (
            dtype,
            RunConfig.model_validate(
                {
                    "backend": framework.backend,
                    "steps": 1,
                    "device": device,
                    "threads": threads,
                    "tf32": dtype == "tf32",
                    **low,
                }
            ),
        )


def _try_framework(backend: str, python: str) -> Framework:
    run = RunConfig(backend=backend, steps=1)
    version, reason, threads, devices = None, None, None, Devices()
    try:
        with _worker(run, python) as worker:
            answer = worker.ask("capabilities", backend=backend)
        environment = EnvironmentPart.model_validate(answer["environment"])
        devices = TypeAdapter(Devices).validate_python(answer["capabilities"])
        threads = environment.variables.get("OMP_NUM_THREADS")
        version = _version(backend, environment.packages)
    except WorkerFailed as failure:
        reason = failure.reason
    return Framework(
        backend=backend,
        python=python,
        version=version,
        reason=reason,
        devices=devices,
        threads=threads,
    )


@contextlib.contextmanager
def _worker(run: RunConfig, python: str) -> Iterator[WorkerProcess]:
    with (
        tempfile.TemporaryDirectory(prefix="amp-doctor-") as folder,
        WorkerProcess(run, python=python, log=Path(folder) / "worker.log") as worker,
    ):
        yield worker


def _version(backend: str, packages: Mapping[str, str]) -> str:
    framework = BACKENDS[backend].framework
    names = [name for name in packages if framework is not None and name.startswith(framework)]
    return ", ".join(f"{name} {packages[name]}" for name in names) or "installed"


def _energy_counters() -> Iterator[EnergyCounter]:
    for name, kind, gpu in (("CPU", "cpu", None), *((gpu.name, "cuda", gpu) for gpu in gpus())):
        try:
            meter = open_meter(kind, gpu)
        except NoCounter as error:
            yield EnergyCounter(device=name, source=None, reason=str(error))
        else:
            yield EnergyCounter(device=name, source=meter.source, reason=None)


def tips(found: Diagnosis) -> Iterator[str]:
    """What to change on this machine before measuring on it, the weightiest first."""
    machine = found.machine
    for framework in found.frameworks:
        name = framework.backend
        if framework.reason is not None:
            yield (
                f"{name} does not load (the reason stands above); an environment of its own: "
                f"python -m harness env --backend {name}"
            )
        elif machine.gpus and "cuda" not in framework.devices:
            yield (
                f"{name} sees no GPU though there is one; make an environment with its CUDA build: "
                f"python -m harness env --backend {name} --cuda"
            )
    cpus = machine.limits.cpus
    if cpus is not None and cpus < machine.cpus_usable:
        yield (
            f"this container may use {cpus:g} of the {machine.cpus_usable} CPUs that it sees; "
            f"give --threads {max(1, int(cpus))}, or threads will wait for each other"
        )
    if (found.background_cpus or 0.0) >= BUSY_CPUS:
        yield f"other processes keep {found.background_cpus:.1f} CPUs busy; close them"
    for gpu in machine.gpus:
        if gpu.used_bytes and gpu.total_bytes and gpu.used_bytes > 0.1 * gpu.total_bytes:
            yield f"{gpu.name}: other processes hold {gpu.used_bytes / 2**30:.1f} GiB of its memory"
        if gpu.throttle_reasons:
            yield f"{gpu.name} lowers its clock: {', '.join(gpu.throttle_reasons)}"
    if machine.governor not in (None, "performance"):
        yield (
            f"the CPU's clock follows the governor {machine.governor}; for steady figures: "
            "sudo cpupower frequency-set -g performance"
        )
    if machine.huge_pages == "never":
        yield (
            "huge pages are off, which slows large arrays; let programs ask for them: "
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        )
    if not machine.gpus:
        for dtype in DTYPE_UNITS:
            if lacks_unit(dtype, machine.cpu_features):
                yield f"this CPU has no unit for {dtype}: its products are emulated"
        if lacks_unit("float16", machine.cpu_features) and not lacks_unit(
            "bfloat16", machine.cpu_features
        ):
            yield (
                "this CPU has units for bfloat16 and none for float16, which is the default: also "
                "compare with --amp-dtype bfloat16"
            )
    usable_bytes = min(machine.memory_available_bytes, machine.limits.memory_bytes or 2**63)
    if usable_bytes < _SHORT_OF_MEMORY_BYTES:
        yield f"only {usable_bytes / 2**30:.1f} GiB of memory are free; choose small batches"
    if machine.cache_free_bytes < _SHORT_OF_SPACE_BYTES:
        yield (
            f"only {machine.cache_free_bytes / 1e9:.1f} GB are free for decoded images in "
            f"{machine.cache_dir}; name another folder with AMP_HARNESS_CACHE"
        )
    for counter in found.energy:
        if counter.reason is not None:
            yield f"no energy figures for the {counter.device}: {counter.reason}"
