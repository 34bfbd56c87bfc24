"""What the device gave and took: share of its peak, energy of an image, clocks and load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from harness.conditions import MIN_LOAD_S
from harness.networks import TRAINING_FLOPS_OF_FORWARD
from harness.records import Record, WindowConditions
from reports.blocks import Block, Details, Paragraph, Section, Table
from reports.cells import Results
from reports.formats import UNKNOWN, count, flops_rate, number, percent
from reports.speedup import background_cpus, throttle_reasons, timed_windows, window_rates


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What an arm reached, of what there was; None where it is not known."""

    flops_per_s: float | None
    """Of the median window: 3 · forward FLOPs · images/s."""
    peak_share: float | None
    """Of the device's peak in the arm's dtype: model FLOPs utilization (MFU)."""
    joules_per_image: float | None
    """Over the timed windows, with the idle power taken off."""
    total_joules_per_image: float | None
    """As above, with what the device would have drawn without work."""


def efficiency(record: Record) -> Efficiency:
    """Relate what was measured to the network's FLOPs, the device's peak and its energy."""
    rates = window_rates(record)
    timed = timed_windows(record.windows)
    images = sum(window.images for window in timed)
    flops_per_s = None
    if rates and record.model is not None:
        a_image = TRAINING_FLOPS_OF_FORWARD * record.model.forward_flops_per_image
        flops_per_s = a_image * median(rates)
    peak = record.peak.flops_per_s if record.peak is not None else None
    joules = record.energy.joules if record.energy is not None else None
    drawn = [window.conditions and window.conditions.energy_joules for window in timed]
    known = [energy for energy in drawn if energy is not None]
    complete = bool(images) and len(known) == len(timed)
    return Efficiency(
        flops_per_s=flops_per_s,
        peak_share=flops_per_s / peak if flops_per_s is not None and peak else None,
        joules_per_image=joules / images if joules is not None and images else None,
        total_joules_per_image=sum(known) / images if complete else None,
    )


def efficiency_section(results: Results) -> Section | None:
    """Share of the peak, energy and conditions of each arm that has timed windows."""
    records = [record for record in results.records if timed_windows(record.windows)]
    if not records:
        return None
    blocks: list[Block] = [_peak_table(records), Paragraph(text=_peak_text(records))]
    if any(record.energy is not None and record.energy.joules is not None for record in records):
        blocks.append(_energy_table(records))
    elif reasons := _energy_reasons(records):
        blocks.append(Paragraph(text=f"Energy is not known: {'; '.join(reasons)}."))
    if watched := [record for record in records if _conditions(record)]:
        conditions = _conditions_table(watched)
        if len(conditions.columns) > 1:
            blocks.append(conditions)
            blocks.append(Details(summary="Each timed window", blocks=(_windows_table(watched),)))
        else:
            blocks.append(Paragraph(text=_why_unwatched(watched)))
    return Section(anchor="efficiency", title="Efficiency", blocks=tuple(blocks))


def _peak_table(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        reached = efficiency(record)
        peak = record.peak
        rows.append(
            (
                record.arm,
                _dtype(record),
                number(median(window_rates(record))),
                flops_rate(reached.flops_per_s),
                flops_rate(peak.flops_per_s if peak is not None else None),
                percent(reached.peak_share),
                peak.source if peak is not None else UNKNOWN,
            )
        )
    return Table(
        caption="Achieved FLOP/s and their share of the device's peak (MFU)",
        columns=(
            "Arm", "Dtype", "Median images/s", "Achieved", "Peak", "Share of it",
            "Source of the peak",
        ),
        rows=tuple(rows),
        numeric=True,
    )  # fmt: skip


def _peak_text(records: Sequence[Record]) -> str:
    text = (
        "Achieved: 3 × the network's forward FLOPs × images/s. A multiply-add of a convolution or "
        "linear layer counts as 2, all else as nothing; the backward pass as two forward passes; "
        "skipped steps as nothing. The peak is that of the dtype in which the arm's convolutions "
        "compute; what AMP keeps in float32 is judged by it too."
    )
    if any(record.peak is None for record in records):
        text += (
            " Where no peak is known, measure it on the machine that trains with "
            "'python -m harness doctor --measure-peak': later records then hold it."
        )
    return text


def _dtype(record: Record) -> str:
    precision = record.precision
    return "tf32" if precision.tf32 and precision.dtype == "float32" else precision.dtype


def _energy_table(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        spent, energy = efficiency(record), record.energy
        rows.append(
            (
                record.arm,
                number(spent.joules_per_image),
                number(spent.total_joules_per_image),
                number(energy.idle_w if energy is not None else None),
                (energy.source if energy is not None else None) or UNKNOWN,
                (energy.reason if energy is not None else None) or "",
            )
        )
    return Table(
        caption="Energy of the device in the timed windows; the host's other parts are not in it",
        columns=(
            "Arm", "J an image above idle", "J an image in all", "Idle W", "Counter", "Unknown why"
        ),
        rows=tuple(rows),
        numeric=True,
    )  # fmt: skip


def _energy_reasons(records: Sequence[Record]) -> list[str]:
    energies = [record.energy for record in records if record.energy is not None]
    return list(dict.fromkeys(energy.reason for energy in energies if energy.reason is not None))


def _conditions(record: Record) -> list[WindowConditions]:
    timed = timed_windows(record.windows)
    return [window.conditions for window in timed if window.conditions is not None]


def _why_unwatched(records: Sequence[Record]) -> str:
    longest_s = max(w.time_s for record in records for w in timed_windows(record.windows))
    text = "What the machine did in the timed windows is not known: it shows no clock"
    if longest_s < MIN_LOAD_S:
        return (
            f"{text}, and the windows, {number(longest_s)} s at most, are shorter than the "
            f"{MIN_LOAD_S:g} s that a reading of other programs' load needs."
        )
    return f"{text}, and no load of other programs was read."


def _conditions_table(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        seen = _conditions(record)
        timed = timed_windows(record.windows)
        power_w = [c.device_power_w for c in seen if c.device_power_w is not None]
        rows.append(
            (
                record.arm,
                number(background_cpus(timed), 2),
                _spread(c.cpu_clock_mhz for c in seen),
                _spread(c.device_clock_mhz for c in seen),
                _spread(c.device_temperature_c for c in seen),
                number(median(power_w) if power_w else None),
                ", ".join(throttle_reasons(timed)) or ("none" if power_w else UNKNOWN),
            )
        )
    return _told(
        caption="The machine in the timed windows: median, and lowest to highest where it moved",
        columns=(
            "Arm", "CPUs busy with other work", "CPU MHz", "GPU MHz", "GPU °C", "GPU W",
            "Clock lowered by",
        ),
        rows=rows,
    )  # fmt: skip


def _told(*, caption: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    """A table without the columns of which no row knows anything, such as a GPU's on a CPU."""
    kept = [i for i in range(len(columns)) if any(row[i] != UNKNOWN for row in rows)]
    return Table(
        caption=caption,
        columns=tuple(columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in rows),
        numeric=True,
    )


def _spread(values: Iterable[float | None]) -> str:
    """``1,980`` or ``1,980 (1,755 to 1,980)``."""
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    low, high = count(min(known)), count(max(known))
    middle = count(median(known))
    return middle if low == high else f"{middle} ({low} to {high})"


def _windows_table(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        for window in timed_windows(record.windows):
            seen = window.conditions or WindowConditions()
            rows.append(
                (
                    f"{record.arm}, {window.index}",
                    number(window.images_per_s),
                    number(seen.background_cpus, 2),
                    count(seen.cpu_clock_mhz),
                    count(seen.device_clock_mhz),
                    count(seen.device_temperature_c),
                    number(seen.device_power_w),
                    ", ".join(seen.throttle_reasons) or UNKNOWN,
                )
            )
    return _told(
        caption="Speed and conditions, window by window",
        columns=(
            "Arm, window", "Images/s", "CPUs busy with other work", "CPU MHz", "GPU MHz", "GPU °C",
            "GPU W", "Clock lowered by",
        ),
        rows=rows,
    )  # fmt: skip
