"""Peaks: published ones against the hardware's units and clocks, measured ones in made time."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_runs import fake_run, synthetic_input

from harness.config import RunConfig
from harness.environment import describe_environment
from harness.peaks import (
    MeasuredPeak,
    PeakKey,
    UnreadablePeaks,
    keep_peak,
    known_peak,
    measure_peak,
    peak_key,
    published_peak,
    read_peaks,
)
from harness.protocol import InForce
from harness.records import Record
from harness.turns import run_arm

KEY = PeakKey(
    device="Example CPU", backend="torch", framework_version="2.13.0", dtype="float32", threads=2
)


# --- published

# Multiply-adds a clock of the whole chip × 2 FLOPs × boost clock, GHz, from NVIDIA's architecture
# white papers: CUDA cores for float32; tensor cores × dense multiply-adds a clock of each for the
# others (with float32 accumulation). Hopper's tensor figures hold at 1.83 GHz, its others at 1.98.
BY_UNITS = [
    ("Tesla V100-SXM2-16GB", "float32", 5120 * 2 * 1.53),
    ("Tesla V100-SXM2-32GB", "float16", 640 * 64 * 2 * 1.53),
    ("Tesla T4", "float32", 2560 * 2 * 1.59),
    ("Tesla T4", "float16", 320 * 64 * 2 * 1.59),
    ("NVIDIA A100-SXM4-80GB", "float32", 6912 * 2 * 1.41),
    ("NVIDIA A100-SXM4-40GB", "tf32", 432 * 128 * 2 * 1.41),
    ("NVIDIA A100-PCIE-40GB", "float16", 432 * 256 * 2 * 1.41),
    ("NVIDIA A100 80GB PCIe", "bfloat16", 432 * 256 * 2 * 1.41),
    ("NVIDIA A10", "float32", 9216 * 2 * 1.695),
    ("NVIDIA A10", "float16", 288 * 128 * 2 * 1.695),
    ("NVIDIA RTX A6000", "float16", 336 * 128 * 2 * 1.8),
    ("NVIDIA GeForce RTX 3090", "float16", 328 * 64 * 2 * 1.695),
    ("NVIDIA GeForce RTX 4090", "float32", 16384 * 2 * 2.52),
    ("NVIDIA GeForce RTX 4090", "bfloat16", 512 * 64 * 2 * 2.52),
    ("NVIDIA L40S", "float32", 18176 * 2 * 2.52),
    ("NVIDIA L40S", "float16", 568 * 128 * 2 * 2.52),
    ("NVIDIA H100 80GB HBM3", "float32", 16896 * 2 * 1.98),
    ("NVIDIA H100 80GB HBM3", "float16", 528 * 512 * 2 * 1.83),
    ("NVIDIA H200", "tf32", 528 * 256 * 2 * 1.83),
]


@pytest.mark.parametrize(("device", "dtype", "gflops_per_s"), BY_UNITS)
def test_published_peaks_fit_the_units_and_clocks(device: str, dtype: str, gflops_per_s: float):
    peak = published_peak(device, dtype)

    assert peak is not None
    assert peak.flops_per_s == pytest.approx(gflops_per_s * 1e9, rel=0.015)
    assert peak.source.startswith("NVIDIA ")


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A10G",
        "NVIDIA L4 and more",
        "Intel(R) Xeon(R) Processor",
        "",
    ],
)
def test_a_namesake_or_a_slice_of_a_gpu_is_not_taken_for_it(device: str):
    assert published_peak(device, "float32") is None


@pytest.mark.parametrize(("device", "dtype"), [("Tesla T4", "bfloat16"), ("Tesla T4", "float64")])
def test_a_dtype_without_a_unit_has_no_published_peak(device: str, dtype: str):
    assert published_peak(device, dtype) is None


# --- which peak belongs to an arm


def in_force(**changes: Any) -> InForce:
    values: dict[str, Any] = {
        "framework_version": "2.13.0",
        "device_type": "cpu",
        "device_name": "CPU",
        "device_uuid": None,
        "layout": "nchw",
        "compile": "eager",
        "threads": 2,
        "tf32": None,
        "loss_scale_policy": None,
    }
    return InForce(**values | changes)


ENVIRONMENT: Any = SimpleNamespace(cpu="Example CPU")


def test_an_arm_on_a_cpu_is_compared_with_that_cpu_on_as_many_threads():
    run = RunConfig(backend="torch", steps=1)

    assert peak_key(run, in_force(), ENVIRONMENT) == KEY


@pytest.mark.parametrize(
    ("precision", "tf32", "dtype"),
    [("fp32", False, "float32"), ("fp32", True, "tf32"), ("amp", True, "float16")],
)
def test_an_arm_on_a_gpu_is_compared_in_its_dtype(precision: Any, tf32: bool, dtype: str):
    run = RunConfig(backend="torch", steps=1, precision=precision)
    key = peak_key(
        run, in_force(device_type="cuda", device_name="NVIDIA H200", tf32=tf32), ENVIRONMENT
    )

    assert (key.device, key.dtype, key.threads) == ("NVIDIA H200", dtype, None)


# --- kept


def measured(flops_per_s: float, **changes: Any) -> MeasuredPeak:
    return MeasuredPeak(
        key=KEY.model_copy(update=changes),
        flops_per_s=flops_per_s,
        operation="matrix product of 2048",
        measured="2026-01-02T03:04:05+00:00",
    )


def test_a_measured_peak_is_found_again_with_its_source(tmp_path: Path):
    file = tmp_path / "new" / "peaks.json"
    keep_peak(measured(5e10), file=file)
    peak = known_peak(KEY, file=file)

    assert peak is not None
    assert peak.flops_per_s == 5e10
    assert peak.source == "matrix product of 2048, measured 2026-01-02"


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 1},
        {"backend": "paddle"},
        {"framework_version": "2.14.0"},
        {"dtype": "bfloat16"},
        {"device": "Another CPU"},
    ],
)
def test_another_arms_peak_is_not_borrowed(tmp_path: Path, change: dict[str, Any]):
    keep_peak(measured(5e10, **change), file=tmp_path / "peaks.json")

    assert known_peak(KEY, file=tmp_path / "peaks.json") is None


def test_a_new_measurement_replaces_the_old_one_alone(tmp_path: Path):
    file = tmp_path / "peaks.json"
    for peak in (measured(5e10), measured(7e10, threads=1), measured(6e10)):
        keep_peak(peak, file=file)

    assert sorted(peak.flops_per_s for peak in read_peaks(file)) == [6e10, 7e10]


def test_the_data_sheet_comes_before_a_measurement(tmp_path: Path):
    key = KEY.model_copy(update={"device": "Tesla T4", "threads": None})
    keep_peak(measured(1e12, device="Tesla T4", threads=None), file=tmp_path / "peaks.json")
    peak = known_peak(key, file=tmp_path / "peaks.json")

    assert peak is not None
    assert peak.flops_per_s == 8.1e12


@pytest.mark.parametrize("content", ["", "[]", '{"peaks": [{"flops_per_s": -1}]}'])
def test_a_broken_file_is_named_with_the_remedy(tmp_path: Path, content: str):
    file = tmp_path / "peaks.json"
    file.write_text(content)

    with pytest.raises(UnreadablePeaks, match=r"peaks\.json: .*delete it and measure again"):
        known_peak(KEY, file=file)


def fake_record(tmp_path: Path, **changes: Any) -> Record:
    """A finished run of the fake backend, written up by the parent."""
    return run_arm(
        fake_run(input="synthetic", threads=2, **changes),
        synthetic_input(),
        python=sys.executable,
        log=tmp_path / "log",
        command="python -m harness",
        on_event=lambda _: None,
    )


def test_a_record_holds_the_peak_of_its_own_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMP_HARNESS_CACHE", str(tmp_path))
    own = {"device": describe_environment().cpu, "backend": "fake", "framework_version": "1"}
    keep_peak(measured(5e10, **own), file=tmp_path / "peaks.json")
    keep_peak(measured(9e10, **own, dtype="float16"), file=tmp_path / "peaks.json")

    fp32, amp = (fake_record(tmp_path, precision=precision) for precision in ("fp32", "amp"))

    assert fp32.peak is not None
    assert fp32.peak.flops_per_s == 5e10
    assert amp.peak is not None
    assert amp.peak.flops_per_s == 9e10


def test_a_broken_file_of_peaks_costs_a_record_nothing_but_its_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AMP_HARNESS_CACHE", str(tmp_path))
    (tmp_path / "peaks.json").write_text("{")

    record = fake_record(tmp_path)

    assert (record.status, record.peak) == ("ok", None)
    assert any("delete it and measure again" in warning for warning in record.warnings)


# --- measured


class Device:
    """A device in made time: `flops_per_s` by operation and size, after a slow first call."""

    def __init__(self, flops_per_s: Callable[[str, int], float], *, memory: int = 2**62) -> None:
        self.flops_per_s, self.memory = flops_per_s, memory
        self.now_s = 0.0
        self.enqueued_s = 0.0
        self.asked: list[tuple[str, str, int]] = []

    def peak_operation(self, operation: str, dtype: str, size: int) -> Callable[[], object]:
        if size**2 > self.memory:
            raise MemoryError
        self.asked.append((operation, dtype, size))
        extra_s = [5.0]

        def run() -> None:
            self.enqueued_s += 2 * size**3 / self.flops_per_s(operation, size)
            self.enqueued_s += extra_s.pop() if extra_s else 0.0

        return run

    def synchronize(self) -> None:
        self.now_s += self.enqueued_s
        self.enqueued_s = 0.0

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def measure(self, dtype: str = "float32") -> MeasuredPeak:
        backend: Any = self
        return measure_peak(
            backend, KEY.model_copy(update={"dtype": dtype}), clock=lambda: self.now_s
        )


def test_the_fastest_size_and_operation_is_the_peak():
    def rate(operation: str, size: int) -> float:
        return 9e10 if (operation, size) == ("pointwise convolution", 1024) else 5e10

    peak = Device(rate).measure()

    assert peak.flops_per_s == pytest.approx(9e10)
    assert peak.operation == "pointwise convolution of 1024"


def test_a_call_that_has_not_finished_is_not_timed():
    # Every call returns at once; without a synchronisation no time would pass at all.
    assert Device(lambda *_: 3e10).measure().flops_per_s == pytest.approx(3e10)


def test_sizes_grow_until_a_product_would_take_a_second():
    slow, fast = Device(lambda *_: 1e9), Device(lambda *_: 1e15)
    slow.measure()
    fast.measure()

    # 2 · 512³ = 0.27 GFLOP take 0.27 s; eight times that is too long.
    assert [size for _, _, size in slow.asked] == [512, 512]
    assert max(size for _, _, size in fast.asked) == 16384


def test_a_device_that_is_full_ends_the_growth():
    device = Device(lambda *_: 1e15, memory=2048**2)

    assert device.measure().flops_per_s == pytest.approx(1e15)


def test_a_device_too_small_for_any_product_tells():
    with pytest.raises(MemoryError):
        Device(lambda *_: 1e15, memory=1).measure()


def test_tf32_is_measured_with_float32_operands():
    device = Device(lambda *_: 1e15)

    assert device.measure("tf32").key.dtype == "tf32"
    assert {dtype for _, dtype, _ in device.asked} == {"float32"}


# --- the adapters' products

SHAPES = [("matrix product", (512, 512)), ("pointwise convolution", (8, 512, 8, 8))]


def product(name: str, operation: Any) -> np.ndarray:
    from harness.registry import load_backend

    backend = load_backend(name)
    backend.open(RunConfig(backend=name, steps=1, device="cpu"))
    result: Any = backend.peak_operation(operation, "float32", 512)()
    return np.asarray(result.numpy())


@pytest.mark.torch
@pytest.mark.parametrize(("operation", "shape"), SHAPES)
def test_torchs_product_has_the_size_that_was_asked_for(operation: str, shape: tuple[int, ...]):
    assert product("torch", operation).shape == shape


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("operation", "shape"), [SHAPES[0], ("pointwise convolution", (8, 8, 8, 512))]
)
def test_tensorflows_product_has_the_size_that_was_asked_for(
    operation: str, shape: tuple[int, ...]
):
    assert product("tensorflow", operation).shape == shape


@pytest.mark.paddle
@pytest.mark.parametrize(("operation", "shape"), SHAPES)
def test_paddles_product_has_the_size_that_was_asked_for(operation: str, shape: tuple[int, ...]):
    assert product("paddle", operation).shape == shape
