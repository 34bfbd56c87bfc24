"""Energy of the device that trains, from a counter: NVML's on a GPU, RAPL's on a processor.

A counter belongs to the whole device and not to a process, so that what the device draws without
any work is measured once, before the first step, and taken off afterwards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from harness.gpu import Gpu
from harness.records import EnergyPart, Window, timed

POWERCAP: Final = Path("/sys/class/powercap")
"""Where Linux shows RAPL's counters, on AMD's processors too."""
SETTLE_S: Final = 0.5
"""Pause before the idle power is measured: threads of an idle framework spin for a while."""
IDLE_S: Final = 1.0
"""Length of the idle measurement; NVML's counter moves in steps of up to a tenth of that."""


class NoCounter(Exception):
    """Why the energy cannot be read on this machine, then the remedy where there is one."""


class EnergyMeter(Protocol):
    """A counter of the energy that a whole device has drawn."""

    source: str
    """What is read, in words."""

    def start(self) -> None:
        """Count from here."""
        ...

    def joules(self) -> float | None:
        """Energy since :meth:`start`; None where the counter could not be read."""
        ...


class NvmlMeter:
    """NVML's energy counter of one board, millijoules since the driver was loaded."""

    source = "NVML's energy counter of the board"

    def __init__(self, gpu: Gpu) -> None:
        """Try the counter of ``gpu``.

        Raises:
            NoCounter: it cannot be read.
        """
        self._gpu = gpu
        self._start: float | None = None
        if (refusal := gpu.energy_refusal()) is not None:
            raise NoCounter(
                f"this GPU's energy counter cannot be read: {refusal}; counters came with Volta"
            )

    def start(self) -> None:
        """See :class:`EnergyMeter`."""
        self._start = self._gpu.energy_joules()

    def joules(self) -> float | None:
        """See :class:`EnergyMeter`."""
        now = self._gpu.energy_joules()
        return None if now is None or self._start is None else now - self._start


class RaplMeter:
    """RAPL's counters of all processor packages, microjoules, each with an end at which it wraps.

    A counter wraps after some minutes at full power; it must not do so twice in one measurement.
    """

    def __init__(self, powercap: Path = POWERCAP) -> None:
        """Find the counters below ``powercap``.

        Raises:
            NoCounter: there are none, or they cannot be read.
        """
        self._start: list[int] | None = None
        self._counters: list[tuple[Path, int]] = []
        try:
            for zone in sorted(powercap.iterdir()):
                # Not intel-rapl:0:0 (a part of package 0), intel-rapl-mmio:0 (the same package
                # again) or the platform's psys.
                if not re.fullmatch(r"intel-rapl:\d+", zone.name):
                    continue
                if (zone / "name").read_text().startswith("package"):
                    range_uj = int((zone / "max_energy_range_uj").read_text())
                    self._counters.append((zone / "energy_uj", range_uj))
            self._read()
        except FileNotFoundError:
            raise NoCounter(f"no energy counter of this processor in {powercap}") from None
        except PermissionError as error:
            raise NoCounter(
                f"{error.filename} may be read by root only; run as root, or let everyone read it: "
                f"sudo chmod a+r {powercap}/intel-rapl:*/energy_uj"
            ) from error
        except (OSError, ValueError) as error:
            raise NoCounter(f"the energy counters in {powercap} are unreadable: {error}") from error
        if not self._counters:
            raise NoCounter(f"no energy counter of this processor in {powercap}")
        count = len(self._counters)
        self.source = f"RAPL, {count} processor package{'s' if count > 1 else ''}"

    def start(self) -> None:
        """See :class:`EnergyMeter`."""
        self._start = self._read_or_none()

    def joules(self) -> float | None:
        """See :class:`EnergyMeter`."""
        now = self._read_or_none()
        if now is None or self._start is None:
            return None
        drawn_uj = 0
        for (_, range_uj), start, end in zip(self._counters, self._start, now, strict=True):
            drawn_uj += end - start if end >= start else end - start + range_uj
        return drawn_uj / 1e6

    def _read(self) -> list[int]:
        return [int(path.read_text()) for path, _ in self._counters]

    def _read_or_none(self) -> list[int] | None:
        try:
            return self._read()
        except (OSError, ValueError):
            return None


def open_meter(device_type: str, gpu: Gpu | None) -> EnergyMeter:
    """The counter of the device that trains.

    Raises:
        NoCounter: there is none that this process may read.
    """
    if device_type == "cpu":
        return RaplMeter()
    if gpu is None:
        raise NoCounter("NVML does not list the GPU that trains")
    return NvmlMeter(gpu)


def prepare_meter(device_type: str, gpu: Gpu | None) -> tuple[EnergyMeter | None, EnergyPart]:
    """The counter of the device that trains, and what the device draws before it has work.

    Takes 1.5 s where there is a counter and no time where there is none.
    """
    try:
        meter = open_meter(device_type, gpu)
    except NoCounter as error:
        return None, EnergyPart(joules=None, source=None, reason=str(error))
    idle_w = measure_idle_w(meter)
    return meter, EnergyPart(joules=None, source=meter.source, idle_w=idle_w)


def measure_idle_w(
    meter: EnergyMeter,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """Power of a device that is ready and has nothing to do, W; takes 1.5 s."""
    sleep(SETTLE_S)
    meter.start()
    start = clock()
    sleep(IDLE_S)
    joules = meter.joules()
    return None if joules is None else joules / (clock() - start)


def training_energy(idle: EnergyPart, windows: Sequence[Window]) -> EnergyPart:
    """Energy of the timed ``windows`` above what the device would have drawn without work.

    Args:
        idle: what the worker found before the first step; its ``joules`` are None.
    """
    counted = timed(windows)
    if idle.reason is not None or not counted:
        return idle
    if idle.idle_w is None:
        return idle.model_copy(update={"reason": "the idle power could not be measured"})
    drawn = [window.conditions.energy_joules if window.conditions else None for window in counted]
    known = [joules for joules in drawn if joules is not None]
    if len(known) < len(drawn):
        missing = len(drawn) - len(known)
        reason = f"the counter could not be read in {missing} of {len(drawn)} windows"
        return idle.model_copy(update={"reason": reason})
    time_s = sum(window.time_s for window in counted)
    return idle.model_copy(update={"joules": sum(known) - idle.idle_w * time_s})
