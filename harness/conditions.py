"""What the machine did while a window was timed: other load, clocks, temperature, energy.

Everything is read before the first and after the last clock reading of the window, but for the
GPU's clocks, temperature and power, which a thread samples meanwhile (four short calls, seven times
a second).
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Final

import psutil

from harness.energy import EnergyMeter
from harness.gpu import Gpu
from harness.records import WindowConditions

SAMPLE_S: Final = 0.15
"""Between two samples of the GPU; the first comes after this time, when it is at work."""
MIN_LOAD_S: Final = 0.1
"""Shortest window whose background load is told: the kernel counts in hundredths of a second, so
that a window of this length is a tenth of a CPU in doubt, and several of them less."""

_CPUFREQ: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq")


class Conditions:
    """Watches the machine from :meth:`start` to :meth:`stop`, again and again."""

    def __init__(self, *, gpu: Gpu | None, meter: EnergyMeter | None) -> None:
        """Watch ``gpu``, the one that trains, and its ``meter`` (or the processor's)."""
        self._gpu = gpu
        self._meter = meter
        self._load = BackgroundLoad()

    def start(self) -> None:
        """Begin; call it before the first clock reading of a window."""
        self._sampler = _GpuSampler(self._gpu) if self._gpu else None
        self._load.start()
        if self._meter is not None:
            self._meter.start()

    def stop(self) -> WindowConditions:
        """End; call it after the last clock reading of the window."""
        # The counter first: it runs on.
        energy_joules = self._meter.joules() if self._meter is not None else None
        samples = self._sampler.stop() if self._sampler is not None else _GpuSamples()
        return WindowConditions(
            background_cpus=self._load.stop(),
            cpu_clock_mhz=cpu_clock_mhz(),
            device_clock_mhz=median(samples.clock_mhz) if samples.clock_mhz else None,
            device_temperature_c=max(samples.temperature_c, default=None),
            device_power_w=fmean(samples.power_w) if samples.power_w else None,
            throttle_reasons=list(samples.reasons),
            energy_joules=energy_joules,
        )


class BackgroundLoad:
    """CPUs that processes outside this process's tree kept busy.

    Only the CPUs that this process may use count; time that a hypervisor gave to another machine
    counts as busy, for it was taken from this one.
    """

    def start(self) -> None:
        """Begin."""
        self._own_start_s, self._busy_start_s = own_cpu_s(), busy_cpu_s()
        self._start = time.perf_counter()

    def stop(self) -> float | None:
        """The average since :meth:`start`; None for less than :data:`MIN_LOAD_S`."""
        time_s = time.perf_counter() - self._start
        if time_s < MIN_LOAD_S:
            return None
        busy_s = busy_cpu_s() - self._busy_start_s
        own_s = own_cpu_s() - self._own_start_s
        # Below zero by the kernel's rounding only.
        return max(0.0, busy_s - own_s) / time_s


def busy_cpu_s() -> float:
    """Seconds for which the CPUs that this process may use were not idle, since the start-up."""
    every = psutil.cpu_times(percpu=True)
    usable = psutil.Process().cpu_affinity() if sys.platform == "linux" else range(len(every))
    return sum(_busy_s(every[index]._asdict()) for index in usable if index < len(every))


def _busy_s(times: dict[str, float]) -> float:
    # A guest's time is part of the user's already.
    return sum(
        seconds
        for kind, seconds in times.items()
        if kind not in ("idle", "iowait", "guest", "guest_nice")
    )


def own_cpu_s() -> float:
    """CPU seconds of this process and of its children, those that have ended included."""
    this = psutil.Process()
    total_s = sum(this.cpu_times()[:4])
    for child in this.children(recursive=True):
        try:
            total_s += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue
    return total_s


def cpu_clock_mhz() -> float | None:
    """Clock of the CPUs now, on average; None where only the nominal one is told, as in a VM."""
    frequency = psutil.cpu_freq() if sys.platform != "linux" or _CPUFREQ.exists() else None
    return None if frequency is None else float(frequency.current)


@dataclass
class _GpuSamples:
    clock_mhz: list[float] = field(default_factory=list)
    temperature_c: list[float] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)
    reasons: dict[str, None] = field(default_factory=dict)


class _GpuSampler:
    """A thread that samples the GPU until it is stopped."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._samples = _GpuSamples()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> _GpuSamples:
        """End the thread; a window too short for it is sampled now, just after its last step."""
        self._stop.set()
        self._thread.join()
        if not self._samples.clock_mhz:
            self._sample()
        return self._samples

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        gpu, samples = self._gpu, self._samples
        for values, value in (
            (samples.clock_mhz, gpu.clock_mhz()),
            (samples.temperature_c, gpu.temperature_c()),
            (samples.power_w, gpu.power_w()),
        ):
            if value is not None:
                values.append(value)
        samples.reasons |= dict.fromkeys(gpu.throttle_reasons())
