"""The section on efficiency: achieved FLOP/s, share of the peak, energy and conditions."""

from typing import Any

import pytest
from report_records import environment_part, ok_record, study_of, unavailable_record

from harness.records import EnergyPart, PeakPart, Record, WindowConditions
from reports.blocks import Details, Paragraph, Section, Table
from reports.cells import Results, study_cells
from reports.efficiency_section import efficiency, efficiency_section
from reports.formats import flops_rate
from reports.pages import build_page, render_html, render_markdown
from reports.provenance import machine_section
from reports.speedup import background_cpus, process_pair, throttle_reasons

PEAK = PeakPart(flops_per_s=50e9, source="matrix product of 2048, measured 2026-01-02")


def watched(record: Record, *conditions: dict[str, Any]) -> Record:
    """`record` with the conditions of its timed windows."""
    warmup, *timed = record.windows
    told = [
        window.model_copy(update={"conditions": WindowConditions(**values)})
        for window, values in zip(timed, conditions, strict=True)
    ]
    return record.model_copy(update={"windows": [warmup, *told]})


def results_of(*records: Record) -> Results:
    study = study_of(*(record.arm for record in records))
    return Results(study=study, cells=study_cells(study, records))


def section_of(*records: Record) -> Section:
    section = efficiency_section(results_of(*records))
    assert section is not None
    return section


def table(section: Section, caption: str) -> Table:
    (found,) = [
        block for block in section.blocks if isinstance(block, Table) and caption in block.caption
    ]
    return found


def text_of(section: Section) -> str:
    return " ".join(block.text for block in section.blocks if isinstance(block, Paragraph))


# --- share of the peak


def test_achieved_flops_are_three_forward_passes_of_the_median_window():
    # 36 MFLOP forward, 3 × 36 = 108 MFLOP a training image, 42 images/s: 4.536 GFLOP/s of 50.
    reached = efficiency(ok_record(rates=(40.0, 42.0, 44.0), peak=PEAK))

    assert reached.flops_per_s == pytest.approx(4.536e9)
    assert reached.peak_share == pytest.approx(0.09072)


def test_the_share_is_shown_with_the_peak_and_its_source():
    row = table(section_of(ok_record(peak=PEAK)), "MFU").rows[0]

    assert row == (
        "torch-fp32",
        "float32",
        "42.0",
        "4.54 GFLOP/s",
        "50.0 GFLOP/s",
        "9.1 %",
        "matrix product of 2048, measured 2026-01-02",
    )


def test_an_unknown_peak_is_no_number_and_the_remedy_is_told():
    section = section_of(ok_record())

    assert table(section, "MFU").rows[0][4:] == ("–", "–", "–")
    assert "doctor --measure-peak" in text_of(section)
    assert "doctor --measure-peak" not in text_of(section_of(ok_record(peak=PEAK)))


def test_the_convention_is_stated():
    text = text_of(section_of(ok_record()))

    assert "3 × the network's forward FLOPs" in text
    assert "multiply-add" in text


def test_tf32_is_named_as_the_dtype_of_the_peak():
    precision = ok_record().precision.model_copy(update={"tf32": True})
    row = table(section_of(ok_record(precision_in_force=precision)), "MFU").rows[0]

    assert row[1] == "tf32"


@pytest.mark.parametrize(
    ("value_per_s", "text"),
    [(None, "–"), (4.536e9, "4.54 GFLOP/s"), (1e12, "1.00 TFLOP/s"), (312e12, "312 TFLOP/s")],
)
def test_rates_are_written_in_giga_or_tera(value_per_s: float | None, text: str):
    assert flops_rate(value_per_s) == text


# --- energy

# 96 images in three windows of 32; 480 J in all, of which 288 J above idle.
ENERGY = EnergyPart(joules=288.0, source="a made counter", idle_w=84.0)


def test_joules_an_image_are_told_with_and_without_the_idle_share():
    record = watched(
        ok_record(energy=ENERGY),
        {"energy_joules": 150.0},
        {"energy_joules": 160.0},
        {"energy_joules": 170.0},
    )

    assert efficiency(record).joules_per_image == pytest.approx(3.0)
    assert efficiency(record).total_joules_per_image == pytest.approx(5.0)
    assert table(section_of(record), "Energy").rows == (
        ("torch-fp32", "3.00", "5.00", "84.0", "a made counter", ""),
    )


def test_one_unread_window_leaves_the_whole_energy_unknown():
    record = watched(ok_record(energy=ENERGY), {"energy_joules": 150.0}, {}, {"energy_joules": 1.0})

    assert efficiency(record).total_joules_per_image is None


def test_why_the_energy_is_unknown_is_told_once():
    missing = EnergyPart(joules=None, source=None, reason="no counter on this CPU")
    section = section_of(ok_record(energy=missing), ok_record(precision="amp", energy=missing))

    assert "Energy is not known: no counter on this CPU." in text_of(section)
    assert all("Energy" not in b.caption for b in section.blocks if isinstance(b, Table))


def test_images_of_skipped_steps_share_no_energy():
    # One of six steps was skipped: 80 images remain.
    record = ok_record(precision="amp", skipped_at=(3,), energy=ENERGY)

    assert efficiency(record).joules_per_image == pytest.approx(288 / 80)


# --- conditions


def gpu(clock_mhz: float, temperature_c: float, *reasons: str) -> dict[str, Any]:
    return {
        "background_cpus": 0.1,
        "device_clock_mhz": clock_mhz,
        "device_temperature_c": temperature_c,
        "device_power_w": 600.0,
        "throttle_reasons": [*reasons],
    }


THROTTLED = watched(
    ok_record(),
    gpu(1980, 60),
    gpu(1980, 66, "SW power cap"),
    gpu(1755, 70, "SW power cap", "HW slowdown"),
)


def test_clocks_and_throttling_stand_beside_the_windows():
    section = section_of(THROTTLED)

    assert table(section, "machine in the timed windows").rows == (
        (
            "torch-fp32",
            "0.10",
            "1,980 (1,755 to 1,980)",
            "66 (60 to 70)",
            "600",
            "SW power cap, HW slowdown",
        ),
    )
    (details,) = [block for block in section.blocks if isinstance(block, Details)]
    (windows,) = details.blocks
    assert isinstance(windows, Table)
    assert windows.rows[2] == (
        "torch-fp32, 3",
        "44.0",
        "0.10",
        "1,755",
        "70",
        "600",
        "SW power cap, HW slowdown",
    )


def test_a_cpu_has_no_columns_of_a_gpu():
    record = watched(ok_record(), *[{"background_cpus": 0.2}] * 3)

    found = table(section_of(record), "machine in the timed windows")
    assert found.columns == ("Arm", "CPUs busy with other work")
    assert found.rows == (("torch-fp32", "0.20"),)


@pytest.mark.parametrize(
    ("rate", "why"),
    [
        # A window of 32 images at 800 a second takes 0.04 s, at 40 a second 0.8 s.
        (800.0, "the windows, 0.0400 s at most, are shorter than the 0.1 s that a reading of"),
        (40.0, "no load of other programs was read."),
    ],
)
def test_of_a_machine_that_told_nothing_there_is_a_reason_in_place_of_a_table(
    rate: float, why: str
):
    section = section_of(watched(ok_record(rates=[rate] * 3), {}, {}, {}))

    assert why in text_of(section)
    captions = [block.caption for block in section.blocks if isinstance(block, Table)]
    assert not any("machine in the timed windows" in caption for caption in captions)
    assert not any(isinstance(block, Details) for block in section.blocks)


def test_a_gpu_that_never_slowed_says_none():
    record = watched(ok_record(), gpu(1980, 60), gpu(1980, 60), gpu(1980, 60))

    assert table(section_of(record), "machine in the timed windows").rows[0][-1] == "none"


def test_records_without_conditions_have_no_table_of_them():
    section = section_of(ok_record())

    assert not any(isinstance(block, Details) for block in section.blocks)


def test_a_study_without_a_measured_arm_has_no_section():
    assert efficiency_section(results_of(unavailable_record())) is None


def test_what_strangers_wrote_is_escaped_in_the_page():
    peak = PeakPart(flops_per_s=1e9, source="<script>alert(1)</script>")
    record = watched(ok_record(peak=peak), *[gpu(1, 1, "<img src=x>")] * 3)
    page = build_page(results_of(record))

    assert "<script>alert" not in render_html(page)
    assert "<img src=x>" not in render_html(page)
    assert "<script>" not in render_markdown(page)
    assert "Efficiency" in render_markdown(page)


def test_the_driver_of_the_gpu_is_told():
    environment = environment_part(gpu_driver="550.54.15", cuda_driver="12.4")
    section = machine_section(results_of(ok_record(environment=environment)))

    assert section is not None
    rows = [row for block in section.blocks if isinstance(block, Table) for row in block.rows]
    assert ("NVIDIA driver", "550.54.15, CUDA 12.4") in rows


# --- what a verdict is told of them


def test_a_pair_names_each_throttle_reason_once():
    amp = watched(ok_record(precision="amp"), gpu(1, 1), gpu(1, 1), gpu(1, 1, "HW slowdown"))

    pair = process_pair(THROTTLED, amp)

    assert pair.windows.throttled == ("SW power cap", "HW slowdown")


def test_background_load_is_weighted_by_the_time_of_the_windows():
    # Windows of 1 s and 3 s (32 images at 32 and 32/3 a second) with 0.8 and 0.4 CPUs: 2 / 4.
    record = watched(
        ok_record(rates=(32.0, 32 / 3, 32.0)),
        {"background_cpus": 0.8},
        {"background_cpus": 0.4},
        {},
    )

    timed = record.windows[1:]
    assert background_cpus(timed) == pytest.approx(0.5)
    assert background_cpus([]) is None
    assert throttle_reasons(timed) == ()


def test_warm_up_windows_do_not_count():
    warmup = (
        ok_record()
        .windows[0]
        .model_copy(update={"conditions": WindowConditions(throttle_reasons=["HW slowdown"])})
    )
    record = ok_record().model_copy(update={"windows": [warmup, *ok_record().windows[1:]]})

    assert process_pair(record, ok_record(precision="amp")).windows.throttled == ()
