"""doctor: what the machine has, which precisions work and why not, and what to change."""

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from fake_nvml import FakeNvml

from harness import gpu
from harness.cli import main
from harness.cpu import cpu_features, lacks_unit
from harness.doctor import Diagnosis, EnergyCounter, Framework, measure_peaks, tips
from harness.machine import (
    GpuState,
    Limits,
    Machine,
    cgroup_limits,
    describe_machine,
    huge_pages,
)
from harness.peaks import read_peaks
from harness.protocol import Capability

WORKS = Capability(available=True)
NO_UNIT = Capability(available=False, reason="the fake device has no float16 unit")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# --- the machine


def test_the_tightest_limit_of_all_control_groups_counts(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/job\n")
    root = tmp_path / "sys/fs/cgroup"
    write(root / "cpu.max", "400000 100000\n")
    write(root / "user.slice/cpu.max", "150000 100000\n")
    write(root / "memory.max", "max\n")
    write(root / "user.slice/job/cpu.max", "max 100000\n")
    write(root / "user.slice/memory.max", "8589934592\n")
    write(root / "user.slice/job/memory.max", "4294967296\n")

    limits = cgroup_limits(sys=tmp_path / "sys", proc=tmp_path / "proc")

    assert limits == Limits(cpus=1.5, memory_bytes=2**32)


def test_limits_of_version_1_are_read_where_the_container_sees_only_its_own(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "5:cpu,cpuacct:/docker/1f\n4:memory:/docker/1f\n")
    root = tmp_path / "sys/fs/cgroup"
    write(root / "cpu/cpu.cfs_quota_us", "250000\n")
    write(root / "cpu/cpu.cfs_period_us", "100000\n")
    write(root / "memory/memory.limit_in_bytes", "2147483648\n")

    limits = cgroup_limits(sys=tmp_path / "sys", proc=tmp_path / "proc")

    assert limits == Limits(cpus=2.5, memory_bytes=2**31)


def test_no_limit_is_no_number(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "4:memory:/\n3:cpu:/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")

    limits = cgroup_limits(sys=tmp_path / "sys", proc=tmp_path / "proc")

    assert limits == Limits(cpus=None, memory_bytes=None)


@pytest.mark.parametrize(
    ("cpuinfo", "features"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile amx_bf16\n", "avx2 avx512f avx512_bf16"),
        ("Features\t: fp asimd asimdhp sve bf16\n", "asimdhp bf16 sve"),
        ("flags\t\t: fpu sse2\n", ""),
    ],
)
def test_the_units_of_a_cpu_are_taken_from_its_flags(tmp_path: Path, cpuinfo: str, features: str):
    write(tmp_path / "cpuinfo", f"model name : Example\n{cpuinfo}")

    found = cpu_features(tmp_path)

    assert found is not None
    assert set(found) >= set(features.split())
    assert ("amx_bf16" in found) == ("amx_bf16" in cpuinfo)
    assert not {"fpu", "sse2", "amx_tile"} & set(found)


@pytest.mark.parametrize(
    ("dtype", "features", "lacks"),
    [
        ("float16", ["avx2", "avx512_bf16"], True),
        ("float16", ["avx512_fp16"], False),
        ("bfloat16", ["avx2", "amx_bf16"], False),
        ("bfloat16", [], True),
        ("bfloat16", None, False),  # unknown is no lack
        ("float32", [], False),
    ],
)
def test_a_cpu_lacks_the_unit_of_a_dtype_where_its_flags_are_known(
    dtype: str, features: list[str] | None, lacks: bool
):
    assert lacks_unit(dtype, features) is lacks


def test_a_system_without_flags_tells_none(tmp_path: Path):
    assert cpu_features(tmp_path) is None
    assert huge_pages(tmp_path) is None
    assert cgroup_limits(sys=tmp_path, proc=tmp_path) == Limits(cpus=None, memory_bytes=None)


def test_the_choice_of_huge_pages_stands_in_brackets(tmp_path: Path):
    write(tmp_path / "kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")

    assert huge_pages(tmp_path) == "madvise"


def test_a_machine_with_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake = FakeNvml()
    fake.used_bytes = 2**31
    monkeypatch.setattr(gpu, "open_nvml", lambda: fake)

    machine = describe_machine(tmp_path / "not" / "there" / "yet")

    assert machine.gpu_driver == "550.54.15"
    assert machine.cuda_driver == "12.4"
    assert [(card.name, card.used_bytes, card.total_bytes) for card in machine.gpus] == [
        ("NVIDIA H200", 2**31, 2**34)
    ]
    assert machine.memory_bytes == psutil.virtual_memory().total
    assert machine.cache_free_bytes > 0


# --- tips


def quiet_machine(**changes: Any) -> Machine:
    """A machine that nothing is to be said about."""
    values: dict[str, Any] = {
        "cpu": "Example CPU",
        "cpu_features": ["avx2", "avx512_bf16", "avx512_fp16"],
        "cpus": 8,
        "cpus_usable": 8,
        "governor": "performance",
        "huge_pages": "madvise",
        "memory_bytes": 2**36,
        "memory_available_bytes": 2**35,
        "limits": Limits(cpus=None, memory_bytes=None),
        "gpu_driver": None,
        "cuda_driver": None,
        "gpus": [],
        "cache_dir": "/cache",
        "cache_free_bytes": 10**12,
    }
    return Machine(**values | changes)


def framework(**changes: Any) -> Framework:
    values: dict[str, Any] = {
        "backend": "torch",
        "python": sys.executable,
        "version": "torch 2.13.0",
        "reason": None,
        "devices": {"cpu": {"float32": WORKS}},
        "threads": "2",
    }
    return Framework(**values | changes)


def found(machine: Machine, *frameworks: Framework, **changes: Any) -> Diagnosis:
    values: dict[str, Any] = {
        "machine": machine,
        "background_cpus": 0.01,
        "energy": [EnergyCounter(device="CPU", source="RAPL", reason=None)],
        "frameworks": list(frameworks),
        "peaks": [],
        "tips": [],
    }
    return Diagnosis(**values | changes)


def test_a_machine_in_order_gets_no_tip():
    assert [*tips(found(quiet_machine(), framework()))] == []


CARD = GpuState(
    name="NVIDIA H200",
    uuid="GPU-1",
    total_bytes=100 * 2**30,
    used_bytes=2**30,
    temperature_c=40.0,
    throttle_reasons=[],
)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"limits": Limits(cpus=2.5, memory_bytes=None)}, "2.5 of the 8 CPUs"),
        ({"governor": "powersave"}, "cpupower frequency-set -g performance"),
        ({"huge_pages": "never"}, "transparent_hugepage/enabled"),
        ({"cpu_features": ["avx2", "avx512_bf16"]}, "no unit for float16"),
        ({"cpu_features": ["avx2", "avx512_fp16"]}, "no unit for bfloat16"),
        ({"memory_available_bytes": 2**31}, "2.0 GiB of memory are free"),
        ({"limits": Limits(cpus=None, memory_bytes=2**31)}, "2.0 GiB of memory are free"),
        ({"cache_free_bytes": 10**9}, "AMP_HARNESS_CACHE"),
        ({"gpus": [CARD]}, "env --backend torch --cuda"),
        ({"gpus": [CARD.model_copy(update={"used_bytes": 20 * 2**30})]}, "hold 20.0 GiB"),
        (
            {"gpus": [CARD.model_copy(update={"throttle_reasons": ["HW slowdown"]})]},
            "lowers its clock: HW slowdown",
        ),
    ],
)
def test_what_would_spoil_a_measurement_is_told_with_the_remedy(
    machine: dict[str, Any], words: str
):
    told = [*tips(found(quiet_machine(**machine), framework()))]

    assert any(words in tip for tip in told), told


def test_background_load_and_a_missing_counter_are_told():
    counter = EnergyCounter(device="CPU", source=None, reason="run as root")
    told = [*tips(found(quiet_machine(), framework(), background_cpus=0.7, energy=[counter]))]

    assert told == [
        "other processes keep 0.7 CPUs busy; close them",
        "no energy figures for the CPU: run as root",
    ]


def test_a_framework_that_does_not_load_gets_the_command_that_installs_it():
    gone = framework(version=None, reason="torch is not installed", devices={})

    (tip,) = tips(found(quiet_machine(), gone))

    assert "python -m harness env --backend torch" in tip


# --- the command, with real workers of the fake backend


def doctor(*words: str) -> Any:
    result = CliRunner().invoke(main, ["doctor", "--backend", "fake", "--json", *words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AMP_HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AMP_HARNESS_FAKE", raising=False)
    return tmp_path / "cache"


def test_a_precision_that_does_not_work_has_its_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"amp_available": false}')

    (answer,) = doctor()["frameworks"]

    assert answer["devices"]["cpu"]["float32"] == {"available": True, "reason": None}
    assert answer["devices"]["cpu"]["float16"] == {
        "available": False,
        "reason": "the fake device has no float16 unit",
    }
    assert answer["python"] == sys.executable


def test_a_framework_whose_interpreter_fails_is_told_and_the_rest_goes_on(tmp_path: Path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    broken.chmod(0o755)

    answer = doctor("--python", f"fake={broken}")

    (framework,) = answer["frameworks"]
    assert framework["version"] is None
    assert "exited with code 3; its last words: no such module" in framework["reason"]
    assert answer["machine"]["cpus_usable"] >= 1


def test_measured_peaks_are_kept_in_the_cache(cache: Path):
    answer = doctor("--measure-peak", "--threads", "1")

    assert [(peak["dtype"], peak["reason"]) for peak in answer["peaks"]] == [
        ("float32", None),
        ("float16", None),
        ("bfloat16", None),
    ]
    kept = {peak.key.dtype: peak for peak in read_peaks(cache / "peaks.json")}
    assert set(kept) == {"float32", "float16", "bfloat16"}
    assert kept["float16"].key.threads == 1
    # The imitated device does 2 GFLOP/s and cannot be faster; a busy machine may see less.
    assert 0 < kept["float32"].flops_per_s <= 2.002e9


def test_a_precision_that_does_not_work_is_not_measured(tmp_path: Path):
    devices = {"cpu": {"float32": NO_UNIT, "float16": NO_UNIT}}

    peaks = measure_peaks(
        [framework(backend="fake", devices=devices)],
        device="auto",
        threads=None,
        file=tmp_path / "peaks.json",
        on_step=lambda _: None,
    )

    assert peaks == []


def test_a_peak_that_cannot_be_measured_has_its_reason(tmp_path: Path):
    (peak,) = measure_peaks(
        [framework(backend="fake", devices={"cuda": {"float16": WORKS}})],
        device="auto",
        threads=None,
        file=tmp_path / "peaks.json",
        on_step=lambda _: None,
    )

    assert peak.peak is None
    assert peak.reason == "the fake backend has no CUDA device; use --device cpu"


def test_the_findings_are_printed_for_people_too():
    result = CliRunner().invoke(main, ["doctor", "--backend", "fake"])

    assert result.exit_code == 0
    assert "float16   works" in result.stdout
    assert "NVIDIA driver" in result.stdout


def test_a_device_that_a_framework_lacks_is_told():
    (peak,) = doctor("--measure-peak", "--device", "cuda")["peaks"]

    assert (peak["dtype"], peak["reason"]) == ("all", "fake finds no cuda device")


@pytest.mark.parametrize(("option", "value"), [("--device", "tpu"), ("--threads", "0")])
def test_a_peak_is_asked_for_on_a_device_that_can_be(option: str, value: str):
    result = CliRunner().invoke(
        main, ["doctor", "--backend", "fake", "--measure-peak", option, value]
    )

    assert result.exit_code == 2
    assert f"{option}: " in result.stderr


def test_a_broken_file_of_peaks_is_told_with_the_remedy(cache: Path):
    write(cache / "peaks.json", "not JSON")

    result = CliRunner().invoke(main, ["doctor", "--backend", "fake", "--measure-peak"])

    assert result.exit_code == 2
    assert "delete it and measure again" in result.stderr
