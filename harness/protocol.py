"""What the core asks of a framework: the protocol that every adapter implements.

The neutral loop owns clocks, order, statistics and files; an adapter translates. All sizes are
bytes, all images uint8 (N, H, W, 3) RGB, all labels int64 (N,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from harness.config import RunConfig
from harness.networks import Conv, Network, place_layers
from harness.weights import Weights

CHANNEL_MEAN = (0.485, 0.456, 0.406)
"""RGB mean of ImageNet on the 0..1 scale, used by every adapter to normalise on the device."""
CHANNEL_STD = (0.229, 0.224, 0.225)
"""RGB standard deviation of ImageNet on the 0..1 scale."""

DeviceType = Literal["cpu", "cuda"]
PeakOperation = Literal["matrix product", "pointwise convolution"]
PEAK_OPERATIONS: tuple[PeakOperation, ...] = ("matrix product", "pointwise convolution")
"""Operations of as many FLOPs as their definition says: an algorithm such as Winograd's, which
gets by with fewer, fits neither, so that their speed is the device's."""

TF32_CAPABILITY = (8, 0)
"""Compute capability from which NVIDIA's GPUs have TF32: Ampere's. An older one takes a framework's
flag and computes strictly."""


class Unsupported(Exception):
    """This machine or framework cannot do what was asked: the reason, then the remedy."""


@dataclass(frozen=True, kw_only=True)
class Capability:
    """Whether one compute dtype works on one device."""

    available: bool
    reason: str | None = None
    """Why not; None when available."""


Capabilities = Mapping[DeviceType, Mapping[str, Capability]]
"""Device type → compute dtype (float32, float16, bfloat16, float64) → whether it works."""


@dataclass(frozen=True, kw_only=True)
class InForce:
    """The settings that hold after ``open``, read back from the framework where it tells them."""

    framework_version: str
    device_type: DeviceType
    device_name: str
    device_uuid: str | None
    layout: Literal["nchw", "nhwc"]
    compile: str
    """``eager`` or the compiler that builds the step, such as ``inductor`` or ``xla``."""
    threads: int
    tf32: bool | None
    """None where the device has no TF32."""
    loss_scale_policy: str | None
    """None where no scaler is used."""


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step left behind."""

    loss: float
    """Mean cross-entropy of the batch, unscaled."""
    loss_scale: float | None
    """Scale by which this step's loss was multiplied; None without a scaler."""
    skipped: bool
    """The gradients overflowed and the scaler withheld the update."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Peaks of the device's allocator; None where the framework or device does not tell."""

    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None

    def highest(self, other: DeviceMemory) -> DeviceMemory:
        """The higher of each peak; what only one of the two tells is taken from it."""
        return DeviceMemory(
            allocated_peak_bytes=_highest(self.allocated_peak_bytes, other.allocated_peak_bytes),
            reserved_peak_bytes=_highest(self.reserved_peak_bytes, other.reserved_peak_bytes),
        )


def _highest(*peaks: int | None) -> int | None:
    return max((peak for peak in peaks if peak is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class LayerEvidence:
    """Dtypes in which one layer was seen to run."""

    operation: str
    """The framework's own name of the kernel or graph operation."""
    compute: str
    """Dtype of the operands."""
    output: str
    backward: str | None = None
    """Dtype of the operands of its backward operation, where it has one of its own."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What ran, taken from the operations that are timed and not from attributes."""

    source: str
    """Where it was read: the traced graph, or the operations of one recorded step."""
    effective: str
    """Compute dtype of the convolutions; ``mixed`` if they disagree."""
    layers: dict[str, LayerEvidence] = field(default_factory=dict)
    """By canonical layer name."""
    master_weight_dtype: str
    gradient_dtype: str
    """Dtype of the parameter gradients that the optimizer receives."""
    optimizer: str
    """Class name of the framework's optimizer."""
    optimizer_implementation: Literal["fused", "foreach", "loop", "graph"]
    scaler_enabled: bool


def effective_dtype(network: Network, layers: Mapping[str, LayerEvidence]) -> str:
    """The dtype in which the convolutions of ``network`` computed; ``mixed`` if they disagree."""
    convolutions = [place.layer for place in place_layers(network) if isinstance(place.layer, Conv)]
    dtypes = {layers[conv.name].compute if conv.name in layers else "?" for conv in convolutions}
    if "?" in dtypes:
        return "unknown"
    return dtypes.pop() if len(dtypes) == 1 else "mixed"


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that training changes, under canonical names and in canonical shapes."""

    tensors: Weights
    """Parameters and BatchNorm running statistics, in their own dtype."""
    slots: dict[str, Weights]
    """Slot (first_moment, second_moment, momentum) → parameter name → values."""
    optimizer_steps: int
    """Updates that were applied, without the skipped; 0 where the optimizer keeps no count."""
    loss_scale: float | None
    clean_steps: int | None
    """Steps since the loss scale last changed; None without a scaler."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One forward and backward pass, in the run's own precision, in canonical shapes.

    Activations are (N, C, H, W) or (N, features) whatever the framework's layout, in the dtype
    in which the framework held them. The backward pass runs with the run's loss scale; gradients
    are divided by it afterwards, in float32 or wider.
    """

    loss: float
    logits: np.ndarray
    outputs: dict[str, np.ndarray]
    """Layer → its output."""
    output_gradients: dict[str, np.ndarray]
    """Layer → gradient of the loss with respect to its output."""
    parameter_gradients: dict[str, np.ndarray]
    running_statistics: dict[str, np.ndarray]
    """BatchNorm buffers as this pass would have left them."""


@dataclass(frozen=True, kw_only=True)
class LayerProbe:
    """One leaf layer run alone, forward and backward, from a given input and output gradient."""

    output: np.ndarray
    input_gradient: np.ndarray
    parameter_gradients: dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """Where the time of a training step goes; fields as in ``harness.records.ProfilePart``."""

    source: str
    steps: int
    step_s: float
    phases_s: dict[str, float] | None
    operations_s: dict[str, float]
    device_busy_s: float | None
    kernels: int | None


class Backend(Protocol):
    """One framework in one process. Calls come from one thread, in the order below."""

    name: str

    def capabilities(self) -> Capabilities:
        """Try each compute dtype on each device of this machine."""
        ...

    def open(self, run: RunConfig) -> InForce:
        """Choose the device and put threads, determinism, TF32 and precision in force.

        Raises:
            Unsupported: the device is absent, or cannot run the precision or layout.
        """
        ...

    def build(self, network: Network, weights: Weights) -> None:
        """Make the native model, optimizer and scaler from the canonical weights."""
        ...

    def put(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """Start moving a batch to the device; returns a handle that any later step may reuse.

        The arrays belong to the adapter from here on and are not written again.
        """
        ...

    def train_step(self, batch: Any) -> None:
        """Enqueue forward, backward and update; returns without waiting for the device.

        Raises:
            Unsupported: the step cannot be compiled, where a compiler only shows that now.
        """
        ...

    def take_steps(self) -> list[StepResult]:
        """Results of the steps since the last call; waits for the device once."""
        ...

    def evaluate(self, batch: Any) -> np.ndarray:
        """Logits, float32 (N, classes), computed in float32 with the running statistics."""
        ...

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use this rate from the next step on."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that was enqueued."""
        ...

    def memory(self) -> DeviceMemory:
        """Peak memory of the device allocator since ``reset_peaks``, or since ``open``."""
        ...

    def reset_peaks(self, *, release_unused: bool) -> None:
        """Let the peaks of :meth:`memory` begin anew with what is held now; waits for nothing.

        Args:
            release_unused: first give back what the allocator holds without use, if it can.
        """
        ...

    def state(self) -> TrainState:
        """A copy of everything that training changes."""
        ...

    def load_state(self, state: TrainState) -> None:
        """Continue from ``state``, which came from this or another framework."""
        ...

    def probe(self, batch: Any) -> Probe:
        """Show what one forward and backward pass computes; changes nothing."""
        ...

    def probe_layer(self, layer: str, x: np.ndarray, output_gradient: np.ndarray) -> LayerProbe:
        """Run the leaf ``layer`` as a training step would (same kernels, casts and layout).

        ``x`` and ``output_gradient`` are float64 in canonical shape and are used as they are: no
        loss scale is applied or removed. Changes nothing.
        """
        ...

    def poison_next_gradient(self) -> None:
        """Make one parameter's gradient infinite in the next training step, before the scaler."""
        ...

    def evidence(self, batch: Any) -> Evidence:
        """Show in which dtypes a training step on ``batch`` runs; leaves no trace in the model."""
        ...

    def profile(self, batch: Any, *, steps: int, trace: Path | None) -> StepProfile:
        """Train ``steps`` steps on ``batch`` under the framework's profiler; ends as it began.

        Args:
            batch: from :meth:`put`.
            steps: that are profiled; one more before them is not.
            trace: file for the framework's own trace; None keeps none.
        """
        ...

    def peak_operation(
        self, operation: PeakOperation, dtype: str, size: int
    ) -> Callable[[], object]:
        """An operation of 2·size³ FLOPs on resident operands of ``dtype``; each call enqueues it.

        ``matrix product``: (size, size)·(size, size). ``pointwise convolution``: 1×1, of size to
        size channels over size pixels. Needs :meth:`open` but no network; float32 is TF32 where
        the run asks for it.
        """
        ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether ``error``, raised by any call above, says that host or device memory ran out."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...
