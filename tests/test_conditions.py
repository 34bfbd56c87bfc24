"""What the machine did during a window: other load, clocks, throttling; and NVML in one place."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
from fake_nvml import UUID, FakeNvml
from fake_runs import fake_run, synthetic_input

from backends.fake import FakeBackend
from harness import conditions, gpu
from harness.conditions import BackgroundLoad, Conditions, own_cpu_s
from harness.config import RunConfig
from harness.energy import prepare_meter
from harness.gpu import THROTTLE_REASONS, Gpu, GpuMemoryWatch
from harness.protocol import InForce
from harness.records import EnergyPart, Window, WindowConditions
from harness.worker import Session
from harness.worker_process import WorkerProcess


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setattr(gpu, "open_nvml", lambda: fake)
    return fake


FAKE_OPEN = FakeBackend.open


def fake_gpu(fake: Any) -> Gpu:
    return Gpu(fake, "handle 0")


# --- NVML


def test_the_bits_of_the_throttle_reasons_are_nvmls_own():
    by_name = {
        "SW power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
        "HW slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
        "sync boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
        "SW thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        "HW thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "HW power brake slowdown": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        "display clock setting": pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
    }

    assert {name: bit for bit, name in THROTTLE_REASONS.items()} == by_name


def test_an_idle_gpu_with_a_clock_that_someone_set_is_not_throttled():
    fake = FakeNvml()
    fake.reasons = (
        pynvml.nvmlClocksThrottleReasonGpuIdle
        | pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting
    )

    assert fake_gpu(fake).throttle_reasons() == []


def test_several_throttle_reasons_are_told_in_words():
    fake = FakeNvml()
    fake.reasons = 0x1 | 0x4 | 0x40

    assert fake_gpu(fake).throttle_reasons() == ["SW power cap", "HW thermal slowdown"]


def test_a_gpu_tells_in_plain_units(nvml: FakeNvml):
    device = fake_gpu(nvml)

    assert device.power_w() == 300.5
    assert device.energy_joules() == 5000.0
    assert gpu.cuda_driver_version() == "12.4"
    assert gpu.driver_version() == "550.54.15"


def test_what_a_gpu_does_not_support_is_unknown():
    device = fake_gpu(
        FakeNvml(unsupported=["clock", "temperature", "power", "energy", "reasons", "memory"])
    )

    asked = (device.clock_mhz(), device.temperature_c(), device.power_w(), device.energy_joules())
    assert asked == (None, None, None, None)
    assert device.throttle_reasons() == []
    assert device.used_bytes() is None


def test_nvml_is_initialised_once_in_a_process(monkeypatch: pytest.MonkeyPatch):
    started = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: started.append(1))
    gpu.open_nvml.cache_clear()
    try:
        assert gpu.open_nvml() is pynvml
        assert gpu.open_nvml() is pynvml
    finally:
        gpu.open_nvml.cache_clear()

    assert started == [1]


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "open_nvml", lambda: None)

    assert not gpu.has_gpu()
    assert gpu.find_gpu(UUID) is None
    assert gpu.driver_version() is None
    assert gpu.cuda_driver_version() is None
    assert GpuMemoryWatch().used_delta_bytes(UUID) is None


@pytest.mark.parametrize(
    ("visible", "found"), [(None, True), ("0", True), ("0,1", True), ("", False), ("-1", False)]
)
def test_a_gpu_that_cuda_was_told_to_hide_is_none(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, visible: str | None, found: bool
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert gpu.has_gpu() == found


def test_the_memory_watch_tells_the_last_sample_above_the_start(nvml: FakeNvml):
    watch = GpuMemoryWatch()
    assert watch.used_delta_bytes(UUID) is None
    # 1 GiB at the start; the first step takes more than the others.
    for used_gib in (7, 3):
        nvml.used_bytes = used_gib * 2**30
        watch.sample()

    assert watch.used_delta_bytes(UUID) == 2 * 2**30
    assert watch.used_delta_bytes("GPU-another") is None


def test_memory_that_another_process_freed_leaves_the_own_unknown(nvml: FakeNvml):
    watch = GpuMemoryWatch()
    nvml.used_bytes = 0
    watch.sample()

    assert watch.used_delta_bytes(UUID) is None


def opened_on_the_gpu(backend: FakeBackend, run: RunConfig) -> InForce:
    return replace(FAKE_OPEN(backend, run), device_uuid=UUID)


def test_a_worker_samples_the_device_before_another_may_start(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml
):
    monkeypatch.setattr(FakeBackend, "open", opened_on_the_gpu)
    session = Session()
    session.prepare(
        run=fake_run(input="synthetic").model_dump(mode="json"),
        spec=synthetic_input().spec.model_dump(mode="json"),
    )

    def train(used_gib: int, *, warmup: bool) -> None:
        nvml.used_bytes = used_gib * 2**30
        session.window(steps=1, warmup=warmup, arm_position=0)

    # 1 GiB at the start. The other worker of a pair takes 8 after this one's warm-up.
    train(6, warmup=True)
    train(4, warmup=True)
    session.evidence()
    train(12, warmup=False)
    told = session.conclude()["memory"].device_used_delta_bytes
    session.close()

    assert told == 3 * 2**30


def test_the_gpu_is_found_by_its_uuid(nvml: FakeNvml):
    found = gpu.find_gpu(UUID)

    assert found is not None
    assert found.name == "NVIDIA H200"
    assert gpu.find_gpu("GPU-another") is None


# --- the watcher


class Counter:
    """An energy meter that counts 7 J in every measurement."""

    source = "a made counter"

    def __init__(self) -> None:
        self.started = 0

    def start(self) -> None:
        self.started += 1

    def joules(self) -> float | None:
        return 7.0


def test_a_short_window_is_sampled_once_at_its_end():
    fake = FakeNvml()
    fake.reasons = 0x8
    watch = Conditions(gpu=fake_gpu(fake), meter=Counter())

    watch.start()
    assert fake.calls == []
    seen = watch.stop()

    assert seen.device_clock_mhz == 1755
    assert seen.device_temperature_c == 61
    assert seen.device_power_w == 300.5
    assert seen.throttle_reasons == ["HW slowdown"]
    assert seen.energy_joules == 7.0
    assert seen.background_cpus is None


def test_what_a_gpu_did_in_the_middle_of_a_window_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conditions, "SAMPLE_S", 0.01)
    fake = FakeNvml()
    watch = Conditions(gpu=fake_gpu(fake), meter=None)

    def wait_for_samples(number: int) -> None:
        seen = fake.calls.count("reasons")
        deadline = time.monotonic() + 30
        while fake.calls.count("reasons") < seen + number and time.monotonic() < deadline:
            time.sleep(0.005)

    watch.start()
    wait_for_samples(3)
    fake.reasons, fake.temperature_c = 0x20, 88
    wait_for_samples(3)
    fake.reasons, fake.temperature_c = 0, 60
    wait_for_samples(3)
    seen = watch.stop()

    assert seen.throttle_reasons == ["SW thermal slowdown"]
    assert seen.device_temperature_c == 88


def test_the_sampling_thread_ends_with_its_window(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conditions, "SAMPLE_S", 0.001)
    fake = FakeNvml()
    watch = Conditions(gpu=fake_gpu(fake), meter=None)
    watch.start()
    watch.stop()
    calls = len(fake.calls)
    time.sleep(0.05)

    assert len(fake.calls) == calls


def test_each_window_has_its_own_conditions():
    fake = FakeNvml()
    meter = Counter()
    watch = Conditions(gpu=fake_gpu(fake), meter=meter)
    fake.reasons = 0x4
    watch.start()
    first = watch.stop()
    fake.reasons = 0
    watch.start()
    second = watch.stop()

    assert (first.throttle_reasons, second.throttle_reasons) == (["SW power cap"], [])
    assert meter.started == 2


def test_a_machine_that_tells_nothing_leaves_everything_unknown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conditions, "cpu_clock_mhz", lambda: None)
    watch = Conditions(gpu=None, meter=None)
    watch.start()

    assert watch.stop() == WindowConditions()


# --- load


def set_times(monkeypatch: pytest.MonkeyPatch, *, busy_s: list[float], own_s: list[float]) -> None:
    """Let the machine's and this process's CPU times pass as given."""
    busy, own, clock = iter(busy_s), iter(own_s), iter([100.0, 104.0])
    monkeypatch.setattr(conditions, "busy_cpu_s", lambda: next(busy))
    monkeypatch.setattr(conditions, "own_cpu_s", lambda: next(own))
    monkeypatch.setattr(conditions, "time", SimpleNamespace(perf_counter=lambda: next(clock)))


def test_background_load_is_what_others_kept_busy(monkeypatch: pytest.MonkeyPatch):
    # In 4 s two CPUs were busy for 7 s, of which this process had 6: 1 s in 4.
    set_times(monkeypatch, busy_s=[50.0, 57.0], own_s=[20.0, 26.0])
    load = BackgroundLoad()
    load.start()

    assert load.stop() == pytest.approx(0.25)


def test_the_kernels_rounding_gives_no_negative_load(monkeypatch: pytest.MonkeyPatch):
    set_times(monkeypatch, busy_s=[50.0, 55.99], own_s=[20.0, 26.0])
    load = BackgroundLoad()
    load.start()

    assert load.stop() == 0.0


def test_only_the_cpus_that_this_process_may_use_count(monkeypatch: pytest.MonkeyPatch):
    def cpu(**seconds: float) -> Any:
        times = dict.fromkeys(psutil.cpu_times()._fields, 0.0) | {"idle": 1000.0, "iowait": 9.0}
        return type(psutil.cpu_times())(**times | seconds)

    every = [cpu(user=5.0), cpu(user=3.0, system=1.0, steal=0.5, guest=2.0), cpu(user=70.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: every)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 1])

    # A guest's 2 s lie within the user's 3 s.
    assert conditions.busy_cpu_s() == pytest.approx(5.0 + 4.5)


def test_the_work_of_a_child_process_is_the_studys_own():
    def of_children_s() -> float:
        return own_cpu_s() - time.process_time()

    burn = "import time; end = time.process_time() + 1\nwhile time.process_time() < end: pass"
    before_s = of_children_s()
    with subprocess.Popen([sys.executable, "-c", f"{burn}\ninput()"], stdin=subprocess.PIPE) as one:
        deadline = time.monotonic() + 60
        while of_children_s() < before_s + 0.95 and time.monotonic() < deadline:
            time.sleep(0.05)
        alive_s = of_children_s() - before_s
        one.communicate(b"\n")
    ended_s = of_children_s() - before_s

    assert alive_s >= 0.9
    assert ended_s >= alive_s - 0.05


def test_a_nominal_clock_is_not_called_a_measured_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(conditions, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(conditions, "_CPUFREQ", tmp_path / "cpufreq")
    monkeypatch.setattr(psutil, "cpu_freq", lambda: SimpleNamespace(current=2600.0))
    assert conditions.cpu_clock_mhz() is None

    (tmp_path / "cpufreq").mkdir()
    assert conditions.cpu_clock_mhz() == 2600.0


# --- in a worker


def test_every_window_of_a_worker_carries_its_conditions(tmp_path: Path):
    run = fake_run(input="synthetic", steps=40)
    with WorkerProcess(run, python=sys.executable, log=tmp_path / "log") as worker:
        prepared = worker.ask(
            "prepare",
            run=run.model_dump(mode="json"),
            spec=synthetic_input().spec.model_dump(mode="json"),
        )
        answer = worker.ask("window", steps=2, warmup=False, arm_position=0)
        worker.ask("close")

    window = Window.model_validate(answer["result"]["window"])
    energy = EnergyPart.model_validate(prepared["energy"])
    assert window.conditions is not None
    # Either there is a counter and it was read, or there is a reason.
    assert (window.conditions.energy_joules is None) == (energy.reason is not None)


@pytest.mark.gpu
def test_a_real_gpu_tells_its_clock_temperature_and_power():
    device = gpu.gpus()[0]
    assert gpu.find_gpu(device.uuid) is not None
    meter, energy = prepare_meter("cuda", device)
    watch = Conditions(gpu=device, meter=meter)
    watch.start()
    time.sleep(1.0)
    seen = watch.stop()

    assert seen.device_clock_mhz is not None
    assert 100 < seen.device_clock_mhz < 5000
    assert seen.device_temperature_c is not None
    assert 10 < seen.device_temperature_c < 110
    if energy.idle_w is not None and seen.energy_joules is not None:
        # One second of a GPU without work, within a factor of two of a moment before.
        assert energy.idle_w / 2 < seen.energy_joules < energy.idle_w * 2
