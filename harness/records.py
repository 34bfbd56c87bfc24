"""The result of one arm and the description of a study, as files that other tools can rely on.

A value nobody measured is ``None`` (JSON ``null``), never 0. Units stand in the names. Ratios are
not stored: they are computed from the raw values when a report is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Final = 1

Status = Literal["ok", "unavailable", "diverged", "out_of_memory", "failed"]


class _Part(BaseModel):
    # NaN and infinity are real outcomes of a diverged run, and JSON has no number for them.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class PrecisionPart(_Part):
    requested: Literal["fp32", "amp", "float64"]
    dtype: str
    """Compute dtype that was asked for: float32, float16, bfloat16 or float64."""
    effective: str | None = None
    """What ran, as :attr:`evidence` shows it: the dtype of the convolutions' compute."""
    tf32: bool | None = None
    evidence: dict[str, Any] | None = None


class DevicePart(_Part):
    type: Literal["cpu", "cuda"]
    name: str
    uuid: str | None = None


class ModelPart(_Part):
    name: str
    parameters: int
    forward_flops_per_image: int


class QuarantinedFile(_Part):
    path: str
    reason: str


class DataPart(_Part):
    name: str
    manifest_sha256: str | None
    """None for synthetic input, which has no files."""
    classes: list[str]
    train_images: int
    val_images: int
    batch_sha256: str | None = None
    """Over the pixels, labels and ids of the first batches that the adapter was given."""
    order_sha256: str | None = None
    """Over the ids of all images in the order in which the adapter was given them."""
    quarantined: list[QuarantinedFile] = []
    warnings: list[str] = []


class TrainingPart(_Part):
    batch_size: int
    image_size: int
    epochs: int | None
    steps: int
    """Optimizer steps taken, warm-up included."""
    optimizer: str
    optimizer_implementation: str | None
    """fused, foreach or loop, as the framework reports it."""
    lr: float
    lr_schedule: str
    momentum: float
    weight_decay: float
    clip_norm: float | None
    augment: str
    resize: str = "squash"
    parts: str = "equal"
    seed: int
    input: str
    layout: str | None
    compile: str | None
    deterministic: bool
    threads: int
    loss_scale_policy: str | None
    """``dynamic:65536``, a fixed number, or None where no scaler is used."""


class WindowConditions(_Part):
    """What the machine did during a window; None where nothing tells."""

    background_cpus: float | None = None
    """CPUs that all but the worker kept busy, on average; None below a tenth of a second."""
    cpu_clock_mhz: float | None = None
    """At the end of the window."""
    device_clock_mhz: float | None = None
    """Median of the samples."""
    device_temperature_c: float | None = None
    """Highest sample."""
    device_power_w: float | None = None
    """Mean of the samples."""
    throttle_reasons: list[str] = []
    """Why the device lowered its clock, in the driver's words; not what idling does."""
    energy_joules: float | None = None
    """Of the whole device or processor package, idle share included."""


class Window(_Part):
    """Consecutive steps between two synchronised clock readings."""

    index: int
    arm_position: int
    """Place of this window in the order in which the study's arms were measured."""
    started_s: float
    """Since the worker began to prepare."""
    steps: int
    images: int
    time_s: float
    cpu_s: float
    """CPU time of the worker process (all threads) during the window."""
    data_wait_s: float
    """Time in which the loop had no batch to give to the device."""
    warmup: bool
    conditions: WindowConditions | None = None

    @property
    def images_per_s(self) -> float:
        """Images of the steps that were not skipped, over the window's time."""
        return self.images / self.time_s


def timed(windows: Iterable[Window]) -> list[Window]:
    """Those that are no warm-up."""
    return [window for window in windows if not window.warmup]


def mean_step_s(windows: Iterable[Window]) -> float | None:
    """Seconds a step over all timed windows; None without one."""
    counted = timed(windows)
    steps = sum(window.steps for window in counted)
    return sum(window.time_s for window in counted) / steps if steps else None


class StepsPart(_Part):
    loss: list[float] = []
    loss_scale: list[float | None] = []
    skipped: list[bool] = []
    step_time_s: list[float] | None = None
    """Only of a profiled run; without a synchronisation these would be enqueue times."""


class EpochPart(_Part):
    epoch: int
    steps: int
    """Steps taken since the start of the run when this epoch (or the run) ended."""
    train_loss: float
    val_loss: float | None
    val_top1: float | None
    val_top2: float | None


class ThroughputPart(_Part):
    images_per_s: float | None
    """Images of the timed windows, skipped steps left out, over their time."""
    warmup_steps: int
    """Before the first timed window."""
    timed_steps: int
    data_wait_fraction: float | None
    threads_in_use: float | None
    """CPU seconds over wall seconds of the timed windows."""
    prepare_s: float
    """Import, build and first data, before the first step."""
    warmup_s: float
    """Steps before the first timed window: compilation, autotuning, first allocations."""


class AccuracyPart(_Part):
    """Validation of the final weights, in float32 whatever the precision of the training."""

    val_top1: float
    val_top2: float
    val_loss: float
    per_class: dict[str, float | None]
    """Top-1 by class; None for a class without a validation image."""


class MemoryPart(_Part):
    host_peak_bytes: int | None
    device_allocated_peak_bytes: int | None
    device_reserved_peak_bytes: int | None
    device_used_delta_bytes: int | None


class GradientSizes(_Part):
    """How large the values of some gradients are, unscaled: counts by power of two."""

    first_exponent: int
    """``counts[i]`` values lie in [2**(first_exponent + i), twice that)."""
    counts: list[int]
    zeros: int
    not_finite: int
    below_float16: int
    """Not zero, but at most 2**-25: float16 rounds them to zero."""
    subnormal_float16: int
    """Above that and below 2**-14: float16 holds them with fewer than 11 bits."""


class GradientHistogramPart(_Part):
    """Sizes of the gradients of the unscaled loss on one batch (Micikevicius et al. 2018, Fig. 3).

    Computed in the run's own precision, with its loss scale, and divided by that afterwards.
    """

    step: int
    """Steps taken before."""
    loss_scale: float | None
    activations: GradientSizes
    """Of all layers' outputs."""
    weights: GradientSizes


class LoaderPart(_Part):
    """How fast the training images come without a step to wait for, in one worker."""

    input: Literal["cached", "live"]
    images_per_s: list[float]
    """One value a window."""
    workers: int
    """Threads that decoded at the same time; 1 where nothing is decoded."""


class ProfilePart(_Part):
    """Where the time of a step went, from steps of their own that are part of no timed window.

    A profiler slows what it watches: shares are to be read, not speeds.
    """

    source: str
    """The profiler, and what it cannot tell apart."""
    steps: int
    step_s: float
    """Wall time of a profiled step."""
    phases_s: dict[str, float] | None
    """input, forward, backward, optimizer (with the scaler) → seconds a step; None where the
    framework runs them as one."""
    operations_s: dict[str, float]
    """Kind of operation (convolution, matrix product, normalization, ...) → seconds a step, summed
    over the threads or streams."""
    device_busy_s: float | None
    """Seconds a step in which a kernel ran; None on the CPU."""
    kernels: int | None
    """Kernels, or operations on the CPU, in a step."""
    trace: str | None = None
    """Name of the file with the framework's own trace, beside the arm's log."""


class PeakPart(_Part):
    """Highest rate of multiply-adds (2 FLOPs each) of the device in the arm's compute dtype."""

    flops_per_s: float
    source: str
    """A measured matrix product, or the maker's data sheet."""


class EnergyPart(_Part):
    """Energy of the timed windows, with the device's idle power taken off."""

    joules: float | None
    source: str | None
    """The counter that was read."""
    idle_w: float | None = None
    reason: str | None = None
    """Why it is not known; None where it is."""


class EnvironmentPart(_Part):
    """The machine and the process that measured."""

    python: str
    platform: str
    cpu: str
    cpus_usable: int
    memory_bytes: int
    packages: dict[str, str]
    variables: dict[str, str]
    """Environment variables that were set for the worker and steer threads or kernels."""
    gpu_driver: str | None = None
    """Version of NVIDIA's driver; None without one."""
    cuda_driver: str | None = None
    """Newest CUDA version that this driver serves."""
    code_sha256: str | None = None
    """Over the sources of all that measures: the packages harness, backends and datasets."""
    cpu_features: list[str] | None = None
    """Units of the CPU that decide about training (:data:`harness.cpu.CPU_FEATURES`); None where
    nothing lists them."""


class Record(_Part):
    """One finished arm: ``records/<arm>.json`` of a study, ``record.json`` of a single run."""

    schema_version: Literal[1] = SCHEMA_VERSION
    arm: str
    variant: str = ""
    """As in ``RunConfig``: which of the settings that the study compares."""
    label: str = ""
    """As in ``RunConfig``: which repetition or further seed."""
    status: Status
    reason: str | None = None
    """Why the status is not ok, with the remedy where there is one."""
    warnings: list[str] = []
    command: str
    """The command that repeats this arm alone."""
    created: str
    """UTC, ISO 8601."""
    harness_version: str
    backend: str
    framework_version: str | None = None
    precision: PrecisionPart
    device: DevicePart | None = None
    model: ModelPart | None = None
    data: DataPart | None = None
    training: TrainingPart | None = None
    windows: list[Window] = []
    compute_windows: list[Window] = []
    """Steps after the training on one batch that stays on the device: what the step alone takes."""
    loader: list[LoaderPart] = []
    profile: ProfilePart | None = None
    peak: PeakPart | None = None
    steps: StepsPart = StepsPart()
    gradient_histogram: GradientHistogramPart | None = None
    epochs: list[EpochPart] = []
    throughput: ThroughputPart | None = None
    accuracy: AccuracyPart | None = None
    memory: MemoryPart | None = None
    energy: EnergyPart | None = None
    environment: EnvironmentPart | None = None


class Study(_Part):
    """``study.json``: what a comparison set out to do; its results lie in ``records/``."""

    schema_version: Literal[1] = SCHEMA_VERSION
    created: str
    harness_version: str
    command: str
    preset: str | None
    arms: list[dict[str, Any]] = Field(description="RunConfig of each arm, in planned order")
    data: DataPart
    environment: EnvironmentPart
    budget_s: float | None = None
    """Wall time after which no further repetition is begun."""
    left_out: dict[str, str] = {}
    """Planned arm → why it was not run."""
    finished: bool = False
