"""Records whose every figure can be worked out on paper, for the tests of the report.

An arm of `rates` images/s has one window of 2 steps for each of them, so that a window's time is
2 × 16 / rate seconds, after a warm-up window of 2 steps.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.record_files import write_json
from harness.records import (
    AccuracyPart,
    DataPart,
    DevicePart,
    EnvironmentPart,
    GradientHistogramPart,
    GradientSizes,
    MemoryPart,
    ModelPart,
    PrecisionPart,
    Record,
    StepsPart,
    Study,
    ThroughputPart,
    TrainingPart,
    Window,
)

BATCH_SIZE = 16
WINDOW_STEPS = 2
WARMUP_STEPS = 2


def data_part(**changes: Any) -> DataPart:
    """80 training and 20 validation photos of two classes."""
    values: dict[str, Any] = {
        "name": "sample",
        "manifest_sha256": "aa" * 32,
        "classes": ["apple_pie", "ramen"],
        "train_images": 80,
        "val_images": 20,
        "batch_sha256": "bb" * 32,
        "order_sha256": "0d" * 32,
    }
    return DataPart(**values | changes)


def environment_part(**changes: Any) -> EnvironmentPart:
    """A machine of two CPUs, with units for both 16-bit dtypes, and 4 GiB."""
    values: dict[str, Any] = {
        "python": "3.11.9",
        "platform": "Linux-6.1-x86_64",
        "cpu": "Example CPU",
        "cpus_usable": 2,
        "memory_bytes": 4 * 2**30,
        "packages": {"numpy": "2.4.6"},
        "variables": {"OMP_NUM_THREADS": "2"},
        "cpu_features": ["avx2", "avx512_bf16", "avx512_fp16"],
    }
    return EnvironmentPart(**values | changes)


def training_part(steps: int, precision: str = "fp32", **changes: Any) -> TrainingPart:
    """The settings of an arm; AMP has a loss scaler."""
    values: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "image_size": 32,
        "epochs": None,
        "steps": steps,
        "optimizer": "adam",
        "optimizer_implementation": "foreach",
        "lr": 1e-3,
        "lr_schedule": "constant",
        "momentum": 0.9,
        "weight_decay": 0.0,
        "clip_norm": None,
        "augment": "none",
        "seed": 0,
        "input": "cached",
        "layout": "nchw",
        "compile": "off",
        "deterministic": False,
        "threads": 2,
        "loss_scale_policy": "dynamic:65536" if precision == "amp" else None,
    }
    return TrainingPart(**values | changes)


def ok_record(
    backend: str = "torch",
    precision: str = "fp32",
    *,
    rates: Sequence[float] = (40.0, 42.0, 44.0),
    losses: Sequence[float] | None = None,
    skipped_at: Sequence[int] = (),
    seed: int = 0,
    in_turn: bool = True,
    data: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    precision_in_force: PrecisionPart | None = None,
    **changes: Any,
) -> Record:
    """A finished arm whose timed windows ran at `rates` images/s.

    `losses` default to 2, 1.9, 1.8, …; `skipped_at` names steps, counted from 1, whose images then
    do not count, so that a window with one of its two steps skipped ran at half its rate. A seed
    other than 0 gives an arm of a further seed, with other batches. fp32 and AMP were
    measured in turn, or else fp32 first and AMP after it.
    """
    steps = WARMUP_STEPS + WINDOW_STEPS * len(rates)
    losses = [2 - 0.1 * i for i in range(steps)] if losses is None else list(losses)
    amp = precision == "amp"
    variant = changes.get("variant", "")
    label = changes.get("label", f"seed{seed}" if seed else "")
    training = {"seed": seed} | (training or {})
    if seed:
        own = {"batch_sha256": f"{seed:064x}", "order_sha256": f"{seed + 1000:064x}"}
        data = own | (data or {})
    values: dict[str, Any] = {
        "arm": "-".join(filter(None, (backend, precision, variant, label))),
        "label": label,
        "status": "ok",
        "command": f"python -m harness --backend {backend}{' --amp' if amp else ''}",
        "created": "2026-01-02T03:04:05Z",
        "harness_version": "0.1.0",
        "backend": backend,
        "framework_version": "1.2.3",
        "precision": precision_in_force or precision_part(precision),
        "device": DevicePart(type="cpu", name="Example CPU"),
        "model": ModelPart(
            name="resnet18", parameters=11_179_077, forward_flops_per_image=36_000_000
        ),
        "data": data_part(**data or {}),
        "training": training_part(steps, precision, **training),
        "windows": _windows(rates, skipped_at, turns(precision, len(rates), in_turn=in_turn)),
        "steps": StepsPart(
            loss=losses,
            loss_scale=[65536.0 if amp else None] * len(losses),
            skipped=[i + 1 in skipped_at for i in range(len(losses))],
        ),
        "throughput": ThroughputPart(
            images_per_s=sum(rates) / len(rates),
            warmup_steps=WARMUP_STEPS,
            timed_steps=WINDOW_STEPS * len(rates),
            data_wait_fraction=0.25,
            threads_in_use=1.5,
            prepare_s=3.0,
            warmup_s=4.0,
        ),
        "accuracy": AccuracyPart(
            val_top1=0.55,
            val_top2=0.8,
            val_loss=1.25,
            per_class=dict.fromkeys(data_part(**data or {}).classes, 0.55),
        ),
        "memory": MemoryPart(
            host_peak_bytes=300 * 2**20,
            device_allocated_peak_bytes=None,
            device_reserved_peak_bytes=None,
            device_used_delta_bytes=None,
        ),
        "environment": environment_part(),
    }
    return Record(**values | changes)


def unavailable_record(backend: str = "paddle", reason: str = "no float16 kernels") -> Record:
    """An AMP cell that this machine cannot run."""
    return Record(
        arm=f"{backend}-amp",
        status="unavailable",
        reason=reason,
        command=f"python -m harness --backend {backend} --amp",
        created="2026-01-02T03:04:05Z",
        harness_version="0.1.0",
        backend=backend,
        precision=PrecisionPart(requested="amp", dtype="float16"),
    )


def study_of(*arms: str, finished: bool = True, **changes: Any) -> Study:
    """A plan of arms such as ``torch-fp32``, ``torch-fp32-seed1`` or ``torch-fp32-b32-repeat1``."""
    planned = []
    for arm in arms:
        backend, precision, *rest = arm.split("-")
        label = rest.pop() if rest and rest[-1].startswith(("seed", "repeat")) else ""
        planned.append(
            {
                "backend": backend,
                "precision": precision,
                "variant": "".join(rest),
                "label": label,
            }
        )
    values: dict[str, Any] = {
        "created": "2026-01-02T03:04:05Z",
        "harness_version": "0.1.0",
        "command": "python -m harness compare",
        "preset": "quick",
        "arms": planned,
        "data": data_part(),
        "environment": environment_part(),
        "finished": finished,
    }
    return Study(**values | changes)


def accuracy_part(val_loss: float, val_top1: float) -> AccuracyPart:
    """Validation with the same accuracy in both classes."""
    per_class: dict[str, float | None] = dict.fromkeys(data_part().classes, val_top1)
    return AccuracyPart(val_top1=val_top1, val_top2=1.0, val_loss=val_loss, per_class=per_class)


def evidence_part(
    layers: Mapping[str, tuple[str, str, str | None]], **changes: Any
) -> dict[str, Any]:
    """What an adapter saw: layer → dtypes of operands, output and backward operands."""
    values: dict[str, Any] = {
        "source": "operations of one step",
        "effective": "float16",
        "layers": {
            name: {"operation": f"op_{name}", "compute": a, "output": b, "backward": c}
            for name, (a, b, c) in layers.items()
        },
        "master_weight_dtype": "float32",
        "gradient_dtype": "float32",
        "optimizer": "Adam",
        "optimizer_implementation": "fused",
        "scaler_enabled": True,
    }
    return values | changes


def precision_part(precision: str = "amp", **changes: Any) -> PrecisionPart:
    """A precision that ran as it was asked for."""
    dtype = "float16" if precision == "amp" else "float32"
    values: dict[str, Any] = {
        "requested": precision,
        "dtype": dtype,
        "effective": dtype,
        "tf32": False,
    }
    return PrecisionPart(**values | changes)


def gradient_sizes(counts: dict[int, int], **changes: Any) -> GradientSizes:
    """Exponent → how many gradients; all below 2**-25 are lost, the others below 2**-14 blurred.

    A count at exponent -25 stands for values strictly between 2**-25 and 2**-24.
    """
    values: dict[str, Any] = {
        "first_exponent": -60,
        "counts": [counts.get(exponent, 0) for exponent in range(-60, 21)],
        "zeros": 0,
        "not_finite": 0,
        "below_float16": sum(n for exponent, n in counts.items() if exponent < -25),
        "subnormal_float16": sum(n for exponent, n in counts.items() if -25 <= exponent < -14),
    }
    return GradientSizes(**values | changes)


def histogram_part(
    activations: GradientSizes, weights: GradientSizes, loss_scale: float | None = None
) -> GradientHistogramPart:
    """Gradients counted after 10 steps."""
    return GradientHistogramPart(
        step=10, loss_scale=loss_scale, activations=activations, weights=weights
    )


def write_study(folder: Path, study: Study, *records: Record) -> Path:
    """Write a study folder as a comparison leaves it; return the folder."""
    write_json(folder / "study.json", study)
    for record in records:
        write_json(folder / "records" / f"{record.arm}.json", record)
    return folder


def turns(precision: str, windows: int, *, in_turn: bool = True) -> list[int]:
    """Places of the timed windows in the order A B B A A B B A, fp32 being A and AMP B."""
    second = int(precision == "amp")
    if not in_turn:
        return [second] * windows
    return [2 * k + (second + k) % 2 for k in range(windows)]


def _windows(
    rates: Sequence[float], skipped_at: Sequence[int], places: Sequence[int]
) -> list[Window]:
    windows = [_window(0, WARMUP_STEPS, 8.0, warmup=True)]
    for i, rate in enumerate(rates):
        first = WARMUP_STEPS + WINDOW_STEPS * i
        skipped = sum(first < step <= first + WINDOW_STEPS for step in skipped_at)
        windows.append(_window(i + 1, WINDOW_STEPS - skipped, rate, places[i]))
    return windows


def _window(
    index: int, applied_steps: int, rate: float, place: int = 0, *, warmup: bool = False
) -> Window:
    time_s = WINDOW_STEPS * BATCH_SIZE / rate
    return Window(
        index=index,
        arm_position=place,
        started_s=float(index),
        steps=WINDOW_STEPS,
        images=applied_steps * BATCH_SIZE,
        time_s=time_s,
        cpu_s=1.5 * time_s,
        data_wait_s=0.25 * time_s,
        warmup=warmup,
    )
