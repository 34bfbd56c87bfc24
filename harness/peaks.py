"""The highest rate at which a device multiplies and adds, per dtype: published, or measured here.

One multiply-add counts as two FLOPs, as in data sheets and in ``harness.networks``.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.config import RunConfig
from harness.protocol import PEAK_OPERATIONS, Backend, InForce
from harness.record_files import write_json
from harness.records import EnvironmentPart, PeakPart

PEAK_DTYPES: Final[tuple[str, ...]] = ("float32", "tf32", "float16", "bfloat16")
"""tf32: float32 products in TF32, which a GPU may do on its tensor cores."""

_A100: Final = (19.5, 156, 312, 312)
_A100_SHEET: Final = "NVIDIA A100 data sheet"
_H100_SXM: Final = (67, 494.5, 989.5, 989.5)
_H100_NVL: Final = (60, 417.5, 835.5, 835.5)
_GA102: Final = "NVIDIA Ampere GA102 white paper"

# Dense rates: where a data sheet gives them with sparsity alone (L4, Hopper), half of that. float32
# is that of the CUDA cores. Those of 16 bit accumulate in float32, as the frameworks' kernels do:
# on GeForce cards that halves the figure that is printed largest. Names are whole, so that a slice
# of a GPU (MIG) or a laptop's namesake is not taken for it.
_DATA_SHEETS: Final[Sequence[tuple[str, tuple[float | None, ...], str]]] = (
    # name, TFLOP/s in the order of PEAK_DTYPES, source
    (r"Tesla V100-SXM2-\d+GB", (15.7, None, 125, None), "NVIDIA V100 data sheet"),
    (r"Tesla V100-PCIE-\d+GB", (14, None, 112, None), "NVIDIA V100 data sheet"),
    (r"Tesla V100S-PCIE-32GB", (16.4, None, 130, None), "NVIDIA V100 data sheet"),
    (r"(Tesla|NVIDIA) T4", (8.1, None, 65, None), "NVIDIA T4 data sheet"),
    (r"(NVIDIA )?A100-(SXM4|PCIE|PCIe)-\d+GB", _A100, _A100_SHEET),
    (r"NVIDIA A100 80GB PCIe", _A100, _A100_SHEET),
    (r"NVIDIA A10", (31.2, 62.5, 125, 125), "NVIDIA A10 data sheet"),
    (r"NVIDIA A30", (10.3, 82, 165, 165), "NVIDIA A30 data sheet"),
    (r"NVIDIA A40", (37.4, 74.8, 149.7, 149.7), "NVIDIA A40 data sheet"),
    (r"NVIDIA RTX A6000", (38.7, 77.4, 154.8, 154.8), _GA102),
    (r"NVIDIA GeForce RTX 3090", (35.6, 35.6, 71, 71), _GA102),
    (r"NVIDIA GeForce RTX 4090", (82.6, 82.6, 165.2, 165.2), "NVIDIA Ada white paper"),
    (r"NVIDIA L4", (30.3, 60, 121, 121), "NVIDIA L4 data sheet"),
    (r"NVIDIA L40", (90.5, 90.5, 181.05, 181.05), "NVIDIA L40 data sheet"),
    (r"NVIDIA L40S", (91.6, 183, 362.05, 362.05), "NVIDIA L40S data sheet"),
    (r"NVIDIA H100 80GB HBM3", _H100_SXM, "NVIDIA H100 data sheet (SXM)"),
    (r"NVIDIA H100 PCIe", (51, 378, 756.5, 756.5), "NVIDIA H100 data sheet (PCIe)"),
    (r"NVIDIA H100 NVL", _H100_NVL, "NVIDIA H100 data sheet (NVL)"),
    (r"NVIDIA H200", _H100_SXM, "NVIDIA H200 data sheet (SXM)"),
    (r"NVIDIA H200 NVL", _H100_NVL, "NVIDIA H200 data sheet (NVL)"),
)

SIZES: Final = (512, 1024, 2048, 4096, 8192, 16384)
"""Sides of the square matrices; as far as one product stays below :data:`LONGEST_S`."""
LONGEST_S: Final = 1.0
TRIAL_S: Final = 0.2
TRIALS: Final = 3


class UnreadablePeaks(Exception):
    """The file of measured peaks is broken: which, what, and what to do."""


class PeakKey(BaseModel):
    """What a measured peak belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    """The GPU's or the processor's name."""
    backend: str
    framework_version: str
    dtype: str
    """One of :data:`PEAK_DTYPES`, or float64."""
    threads: int | None
    """CPU threads; None on a GPU."""


def peak_key(run: RunConfig, in_force: InForce, environment: EnvironmentPart) -> PeakKey:
    """Whose peak the arm of ``run`` is to be compared with."""
    on_cpu = in_force.device_type == "cpu"
    dtype = run.compute_dtype
    return PeakKey(
        device=environment.cpu if on_cpu else in_force.device_name,
        backend=run.backend,
        framework_version=in_force.framework_version,
        dtype="tf32" if in_force.tf32 and dtype == "float32" else dtype,
        threads=in_force.threads if on_cpu else None,
    )


class MeasuredPeak(BaseModel):
    """The fastest of several sizes and operations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: PeakKey
    flops_per_s: float = Field(gt=0)
    operation: str
    """Such as ``matrix product of 2048``."""
    measured: str
    """UTC date, ISO 8601."""


class _PeakFile(BaseModel):
    peaks: list[MeasuredPeak] = []


def published_peak(device: str, dtype: str) -> PeakPart | None:
    """The peak of the GPU called ``device`` by its driver; None where the table has none."""
    for name, rates, source in _DATA_SHEETS:
        if re.fullmatch(name, device):
            rate = rates[PEAK_DTYPES.index(dtype)] if dtype in PEAK_DTYPES else None
            return None if rate is None else PeakPart(flops_per_s=rate * 1e12, source=source)
    return None


def known_peak(key: PeakKey, *, file: Path) -> PeakPart | None:
    """The published peak, else the one that ``doctor --measure-peak`` kept in ``file``, else None.

    Raises:
        UnreadablePeaks: ``file`` is broken.
    """
    if published := published_peak(key.device, key.dtype):
        return published
    for peak in read_peaks(file):
        if peak.key == key:
            source = f"{peak.operation}, measured {peak.measured[:10]}"
            return PeakPart(flops_per_s=peak.flops_per_s, source=source)
    return None


def read_peaks(file: Path) -> list[MeasuredPeak]:
    """All measured peaks; none where there is no file yet.

    Raises:
        UnreadablePeaks: the file is broken.
    """
    try:
        return _PeakFile.model_validate_json(file.read_bytes()).peaks
    except FileNotFoundError:
        return []
    except (OSError, ValidationError) as error:
        what = str(error).splitlines()[0]
        raise UnreadablePeaks(
            f"{file}: {what}; delete it and measure again: doctor --measure-peak"
        ) from error


def keep_peak(peak: MeasuredPeak, *, file: Path) -> None:
    """Write ``peak`` into ``file``, in place of an earlier one of the same key.

    Raises:
        UnreadablePeaks: the file is broken.
        OSError: it cannot be written.
    """
    others = [known for known in read_peaks(file) if known.key != peak.key]
    write_json(file, _PeakFile(peaks=[*others, peak]))


def peaks_file() -> Path:
    """Where measured peaks are kept: in the cache folder."""
    from datasets.places import cache_root

    return cache_root(None) / "peaks.json"


def measure_peak(
    backend: Backend,
    key: PeakKey,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> MeasuredPeak:
    """Multiply ever larger matrices in a backend that is open; takes some seconds.

    The rate of a size is its best of :data:`TRIALS`: a peak is what the device can do.
    """
    dtype = "float32" if key.dtype == "tf32" else key.dtype
    best, fastest = 0.0, ""
    for operation in PEAK_OPERATIONS:
        for size in SIZES:
            try:
                run = backend.peak_operation(operation, dtype, size)
                call_s = _best_call_s(backend, run, clock)
            except Exception as error:
                if backend.is_out_of_memory(error) and best:
                    break
                raise
            rate = 2 * size**3 / call_s
            if rate > best:
                best, fastest = rate, f"{operation} of {size}"
            if 8 * call_s > LONGEST_S:
                break
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return MeasuredPeak(key=key, flops_per_s=best, operation=fastest, measured=now)


def _best_call_s(backend: Backend, run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of one call, the shortest of the trials."""

    def calls_s(calls: int) -> float:
        start = clock()
        for _ in range(calls):
            run()
        backend.synchronize()
        return clock() - start

    calls_s(1)  # compiles, allocates, chooses an algorithm
    once_s = calls_s(1)
    if once_s > LONGEST_S:
        return once_s
    calls = max(1, math.ceil(TRIAL_S / max(once_s, 1e-6)))
    return min(calls_s(calls) / calls for _ in range(TRIALS))
