"""Energy counters and what is worked out of them; figures by arithmetic on paper."""

from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from report_records import ok_record

from harness import energy
from harness.energy import (
    NoCounter,
    NvmlMeter,
    RaplMeter,
    measure_idle_w,
    open_meter,
    prepare_meter,
    training_energy,
)
from harness.gpu import Gpu
from harness.records import EnergyPart, Window, WindowConditions


def zone(root: Path, name: str, kind: str, energy_uj: int, *, range_uj: int = 262_143_328_850):
    """Make one folder of /sys/class/powercap."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{kind}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder / "energy_uj"


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    root = tmp_path / "powercap"
    root.mkdir()
    return root


# --- RAPL


def test_rapl_adds_the_packages_and_leaves_out_their_parts(powercap: Path):
    first = zone(powercap, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(powercap, "intel-rapl:1", "package-1", 5_000_000)
    core = zone(powercap, "intel-rapl:0:0", "core", 10)
    same = zone(powercap, "intel-rapl-mmio:0", "package-0", 10)
    platform = zone(powercap, "intel-rapl:2", "psys", 10)
    meter = RaplMeter(powercap)
    meter.start()
    first.write_text("3500000")
    second.write_text("6000000")
    for other in (core, same, platform):
        other.write_text("900000000")

    assert meter.joules() == pytest.approx(2.5 + 1.0)
    assert meter.source == "RAPL, 2 processor packages"


def test_a_counter_that_wraps_goes_on_counting(powercap: Path):
    counter = zone(powercap, "intel-rapl:0", "package-0", 9_500_000, range_uj=10_000_000)
    meter = RaplMeter(powercap)
    meter.start()
    counter.write_text("1500000")

    # 0.5 J to its end and 1.5 J from its beginning.
    assert meter.joules() == pytest.approx(2.0)


def test_each_measurement_starts_anew(powercap: Path):
    counter = zone(powercap, "intel-rapl:0", "package-0", 0)
    meter = RaplMeter(powercap)
    meter.start()
    counter.write_text("8000000")
    meter.start()
    counter.write_text("9000000")

    assert meter.joules() == pytest.approx(1.0)


@pytest.mark.parametrize("present", [True, False])
def test_a_processor_without_a_counter_says_so(tmp_path: Path, present: bool):
    if present:
        zone(tmp_path, "dtpm", "dtpm", 0)
        place = tmp_path
    else:
        place = tmp_path / "absent"

    with pytest.raises(NoCounter, match="no energy counter of this processor"):
        RaplMeter(place)


def test_a_refused_counter_names_itself_and_the_remedy(
    powercap: Path, monkeypatch: pytest.MonkeyPatch
):
    counter = zone(powercap, "intel-rapl:0", "package-0", 0)
    read_text = Path.read_text

    def refuse(path: Path, *arguments: str) -> str:
        if path == counter:
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments)

    monkeypatch.setattr(Path, "read_text", refuse)

    with pytest.raises(NoCounter, match=r"intel-rapl:0/energy_uj may be read by root only") as told:
        RaplMeter(powercap)
    assert "sudo chmod a+r" in str(told.value)


def test_a_counter_that_vanishes_makes_the_energy_unknown(powercap: Path):
    counter = zone(powercap, "intel-rapl:0", "package-0", 0)
    meter = RaplMeter(powercap)
    meter.start()
    counter.unlink()

    assert meter.joules() is None


# --- NVML


def test_nvmls_counter_is_read_in_millijoules():
    fake = FakeNvml()
    meter = NvmlMeter(Gpu(fake, "handle 0"))
    meter.start()
    fake.energy_mj += 123_456

    assert meter.joules() == pytest.approx(123.456)


def test_a_counter_that_cannot_be_read_is_told_in_nvmls_words():
    # The text is that of the stand-in's NVMLError.
    with pytest.raises(NoCounter, match=r"cannot be read: Not Supported; counters .* Volta"):
        NvmlMeter(Gpu(FakeNvml(unsupported=["energy"]), "handle 0"))


def test_a_gpu_that_nvml_does_not_list_has_no_counter():
    with pytest.raises(NoCounter, match="NVML does not list"):
        open_meter("cuda", None)


def test_without_a_counter_nothing_waits(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise AssertionError("waited")

    monkeypatch.setattr(energy.time, "sleep", refuse)

    meter, found = prepare_meter("cuda", None)

    assert meter is None
    assert found.joules is None
    assert found.reason == "NVML does not list the GPU that trains"


# --- arithmetic


class ScriptedMeter:
    """A device that draws `power_w` while a made clock runs."""

    source = "a made counter"

    def __init__(self, power_w: float) -> None:
        self.power_w, self.now_s, self.start_s = power_w, 0.0, 0.0
        self.slept: list[float] = []

    def start(self) -> None:
        self.start_s = self.now_s

    def joules(self) -> float | None:
        return self.power_w * (self.now_s - self.start_s)

    def sleep(self, time_s: float) -> None:
        self.slept.append(time_s)
        self.now_s += time_s


def test_idle_power_is_measured_after_a_pause():
    meter = ScriptedMeter(power_w=72.0)

    idle_w = measure_idle_w(meter, clock=lambda: meter.now_s, sleep=meter.sleep)

    assert idle_w == pytest.approx(72.0)
    assert meter.slept == [0.5, 1.0]


def windows(*joules: float | None, time_s: float = 2.0) -> list[Window]:
    """A warm-up window of 1,000 J, then timed ones."""
    made = ok_record(rates=[16.0] * (len(joules) + 1)).windows[1:]
    return [
        window.model_copy(
            update={
                "warmup": index == 0,
                "time_s": time_s,
                "conditions": WindowConditions(energy_joules=spent),
            }
        )
        for index, (window, spent) in enumerate(zip(made, (1000.0, *joules), strict=True))
    ]


IDLE = EnergyPart(joules=None, source="a made counter", idle_w=50.0)


def test_the_idle_share_of_the_timed_windows_is_taken_off():
    # 300 J and 340 J in two windows of 2 s at 50 W of idle power: 640 - 200.
    assert training_energy(IDLE, windows(300.0, 340.0)).joules == pytest.approx(440.0)


def test_an_unread_window_makes_the_whole_energy_unknown():
    found = training_energy(IDLE, windows(300.0, None, 340.0))

    assert found.joules is None
    assert found.reason == "the counter could not be read in 1 of 3 windows"


def test_windows_without_conditions_leave_the_energy_unknown():
    bare = [window.model_copy(update={"conditions": None}) for window in windows(1.0, 2.0)]

    assert training_energy(IDLE, bare).joules is None


def test_without_idle_power_no_energy_is_told():
    unread = IDLE.model_copy(update={"idle_w": None})

    found = training_energy(unread, windows(300.0))

    assert (found.joules, found.reason) == (None, "the idle power could not be measured")


def test_the_reason_for_a_missing_counter_stays():
    missing = EnergyPart(joules=None, source=None, reason="no counter on this CPU")

    assert training_energy(missing, windows(300.0)) == missing


def test_an_arm_without_timed_windows_has_no_energy():
    assert training_energy(IDLE, windows()).joules is None
