"""A backend without a framework: deterministic, fast, and able to fail in every way that matters.

It trains a real softmax regression on 4×4 averaged pixels in float64 NumPy, so that losses fall
and accuracies rise, and it imitates an asynchronous device: ``train_step`` returns at once and
``synchronize`` waits for the time that the steps would take. What it does beside that is told by
the JSON in the environment variable ``AMP_HARNESS_FAKE`` (see :class:`Behaviour`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from harness.config import RunConfig
from harness.networks import Conv, Network, place_layers
from harness.profiling import open_trace
from harness.protocol import (
    CHANNEL_MEAN,
    CHANNEL_STD,
    Capabilities,
    Capability,
    DeviceMemory,
    Evidence,
    InForce,
    LayerEvidence,
    LayerProbe,
    PeakOperation,
    Probe,
    StepProfile,
    StepResult,
    TrainState,
    Unsupported,
)
from harness.weights import Weights

_GRID = 4
PEAK_FLOPS_PER_S = 2e9
"""Of the imitated device, in every dtype."""


class Failure(BaseModel):
    """One thing that goes wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    how: Literal["exception", "hang", "kill", "exit", "out_of_memory", "nan", "garbage"]
    at_step: int = 0
    arm: str | None = None
    """Precision or name of the arm that fails; None: every arm."""


class Behaviour(BaseModel):
    """What the imitation does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_time_s: dict[str, float] = {}
    """Precision → device time of one step; 0 where it is not named."""
    amp_available: bool = True
    effective: str | None = None
    """What the evidence claims, where it differs from the request."""
    operations_s: dict[str, dict[str, float]] = {}
    """Precision → kind of operation → seconds a step, as the profile has them; where it is not
    named, one convolution takes the whole step."""
    failure: Failure | None = None
    image_bytes: dict[str, int] = {}
    """Precision → memory that a step really takes for each image of its batch; 0 where not named.
    """
    memory_bytes: int | None = None
    """Where a step takes more than this, the process is killed, as a system does that has no more.
    """


class FakeBackend:
    """Softmax regression in NumPy behind the backend protocol."""

    name = "fake"

    def __init__(self) -> None:
        self._behaviour = Behaviour.model_validate_json(os.environ.get("AMP_HARNESS_FAKE", "{}"))

    def capabilities(self) -> Capabilities:
        """Every dtype works on the CPU, low precision unless told otherwise."""
        low = Capability(
            available=self._behaviour.amp_available,
            reason=None if self._behaviour.amp_available else "the fake device has no float16 unit",
        )
        full = Capability(available=True)
        return {"cpu": {"float32": full, "float64": full, "float16": low, "bfloat16": low}}

    def open(self, run: RunConfig) -> InForce:
        """See :meth:`harness.protocol.Backend.open`."""
        if run.device.startswith("cuda"):
            raise Unsupported("the fake backend has no CUDA device; use --device cpu")
        if run.precision == "amp" and not self._behaviour.amp_available:
            raise Unsupported("the fake device has no float16 unit; use --precision fp32")
        self._run = run
        self._free_at = 0.0
        return InForce(
            framework_version="1",
            device_type="cpu",
            device_name="CPU",
            device_uuid=None,
            layout="nhwc" if run.layout == "nhwc" else "nchw",
            compile="eager",
            threads=run.threads or 1,
            tf32=None,
            loss_scale_policy=str(run.loss_scale) if run.scales_loss else None,
        )

    def build(self, network: Network, weights: Weights) -> None:
        """Start from zeros, whatever the canonical weights are."""
        self._network = network
        self._weight = np.zeros((3 * _GRID**2 + 1, network.classes))
        self._learning_rate = self._run.lr
        self._steps = 0
        self._updates = 0
        self._scale = self._run.loss_scale.initial if self._run.scales_loss else None
        self._clean_steps = 0
        self._poisoned = False
        self._results: list[StepResult] = []

    def put(self, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Average the pixels over a 4×4 grid and normalise them."""
        size = images.shape[1] // _GRID * _GRID
        blocks = images[:, :size, :size].reshape(len(images), _GRID, size // _GRID, _GRID, -1, 3)
        pixels = blocks.mean(axis=(2, 4)) / 255
        features = ((pixels - CHANNEL_MEAN) / CHANNEL_STD).reshape(len(images), -1)
        return np.concatenate([features, np.ones((len(images), 1))], axis=1), labels

    def train_step(self, batch: tuple[np.ndarray, np.ndarray]) -> None:
        """One step of gradient descent, ten times the learning rate of a deep network."""
        self._fail_if_due()
        features, labels = batch
        self._take_memory(len(labels))
        loss, gradient, _ = self._loss(features, labels)
        failure = self._due_failure()
        if failure is not None and failure.how == "nan":
            loss = float("nan")
        overflow, self._poisoned = self._poisoned, False
        skipped = overflow and self._scale is not None
        self._results.append(StepResult(loss, self._scale, skipped))
        if not skipped:
            self._weight -= 10 * self._learning_rate * gradient
            self._updates += 1
        self._update_scale(skipped)
        self._steps += 1
        step_time_s = self._behaviour.step_time_s.get(self._run.precision, 0.0)
        self._free_at = max(self._free_at, time.perf_counter()) + step_time_s

    def take_steps(self) -> list[StepResult]:
        """See :meth:`harness.protocol.Backend.take_steps`."""
        self.synchronize()
        results, self._results = self._results, []
        return results

    def evaluate(self, batch: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """See :meth:`harness.protocol.Backend.evaluate`."""
        return (batch[0] @ self._weight).astype(np.float32)

    def set_learning_rate(self, learning_rate: float) -> None:
        """See :meth:`harness.protocol.Backend.set_learning_rate`."""
        self._learning_rate = learning_rate

    def synchronize(self) -> None:
        """Sleep until the imitated device is free."""
        remaining_s = self._free_at - time.perf_counter()
        if remaining_s > 0:
            time.sleep(remaining_s)

    def memory(self) -> DeviceMemory:
        """Unknown."""
        return DeviceMemory()

    def reset_peaks(self, *, release_unused: bool) -> None:
        """There are none."""

    def state(self) -> TrainState:
        """See :meth:`harness.protocol.Backend.state`."""
        return TrainState(
            tensors={"weight": self._weight.copy()},
            slots={},
            optimizer_steps=self._updates,
            loss_scale=self._scale,
            clean_steps=None if self._scale is None else self._clean_steps,
        )

    def load_state(self, state: TrainState) -> None:
        """See :meth:`harness.protocol.Backend.load_state`."""
        self._weight = state.tensors["weight"].copy()
        self._updates = state.optimizer_steps
        self._scale = state.loss_scale
        self._clean_steps = state.clean_steps or 0

    def probe(self, batch: tuple[np.ndarray, np.ndarray]) -> Probe:
        """The softmax regression has one layer, called ``weight``."""
        loss, gradient, probabilities = self._loss(*batch)
        rows = np.arange(len(batch[1]))
        output_gradient = probabilities.copy()
        output_gradient[rows, batch[1]] -= 1
        logits = batch[0] @ self._weight
        return Probe(
            loss=loss,
            logits=logits,
            outputs={"weight": logits},
            output_gradients={"weight": output_gradient / len(rows)},
            parameter_gradients={"weight": gradient},
            running_statistics={},
        )

    def probe_layer(self, layer: str, x: np.ndarray, output_gradient: np.ndarray) -> LayerProbe:
        """Run the one layer: x · weight."""
        return LayerProbe(
            output=x @ self._weight,
            input_gradient=output_gradient @ self._weight.T,
            parameter_gradients={layer: x.T @ output_gradient},
        )

    def poison_next_gradient(self) -> None:
        """See :meth:`harness.protocol.Backend.poison_next_gradient`."""
        self._poisoned = True

    def evidence(self, batch: tuple[np.ndarray, np.ndarray]) -> Evidence:
        """Claims the requested dtype for each convolution of the description."""
        requested = self._run.compute_dtype
        effective = self._behaviour.effective or requested
        return Evidence(
            source="the fake backend's word",
            effective=effective,
            layers={
                placed.layer.name: LayerEvidence(
                    operation="convolution", compute=effective, output=effective, backward=effective
                )
                for placed in place_layers(self._network)
                if isinstance(placed.layer, Conv)
            },
            master_weight_dtype="float64",
            gradient_dtype="float64",
            optimizer="GradientDescent",
            optimizer_implementation="loop",
            scaler_enabled=self._scale is not None,
        )

    def peak_operation(
        self, operation: PeakOperation, dtype: str, size: int
    ) -> Callable[[], object]:
        """See :meth:`harness.protocol.Backend.peak_operation`."""
        step_s = 2 * size**3 / PEAK_FLOPS_PER_S

        def run() -> None:
            self._free_at = max(self._free_at, time.perf_counter()) + step_s

        return run

    def profile(
        self, batch: tuple[np.ndarray, np.ndarray], *, steps: int, trace: Path | None
    ) -> StepProfile:
        """What a step takes, as told and not as measured; nothing is trained."""
        step_s = self._behaviour.step_time_s.get(self._run.precision, 0.0)
        told = self._behaviour.operations_s.get(self._run.precision)
        whole = {"convolution": step_s} if step_s else {}
        operations_s = whole if told is None else told
        if trace is not None:
            rows = [
                {"ph": "X", "name": kind, "pid": 0, "tid": 0, "ts": 0, "dur": seconds * 1e6}
                for kind, seconds in operations_s.items()
            ]
            with open_trace(trace) as file:
                file.write(json.dumps({"traceEvents": rows}).encode())
        return StepProfile(
            source="the fake backend's word",
            steps=steps,
            step_s=step_s,
            phases_s={
                "input": 0.0,
                "forward": step_s / 4,
                "backward": step_s / 2,
                "optimizer": step_s / 4,
            },
            operations_s=operations_s,
            device_busy_s=None,
            kernels=len(operations_s),
        )

    def is_out_of_memory(self, error: BaseException) -> bool:
        """See :meth:`harness.protocol.Backend.is_out_of_memory`."""
        return isinstance(error, MemoryError)

    def close(self) -> None:
        """Nothing is held."""

    def _loss(
        self, features: np.ndarray, labels: np.ndarray
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Mean cross-entropy, its gradient by the weight, and the class probabilities."""
        logits = features @ self._weight
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        probabilities = np.exp(log_probabilities)
        rows = np.arange(len(labels))
        loss = -log_probabilities[rows, labels].mean()
        residual = probabilities.copy()
        residual[rows, labels] -= 1
        return float(loss), features.T @ residual / len(labels), probabilities

    def _update_scale(self, skipped: bool) -> None:
        policy = self._run.loss_scale
        if self._scale is None or not policy.dynamic:
            return
        self._clean_steps = 0 if skipped else self._clean_steps + 1
        if skipped:
            self._scale *= policy.backoff_factor
        elif self._clean_steps == policy.growth_interval:
            self._scale *= policy.growth_factor
            self._clean_steps = 0

    def _take_memory(self, images: int) -> None:
        needed = images * self._behaviour.image_bytes.get(self._run.precision, 0)
        if self._behaviour.memory_bytes is not None and needed > self._behaviour.memory_bytes:
            os.kill(os.getpid(), signal.SIGKILL)
        np.ones(needed, np.uint8)

    def _due_failure(self) -> Failure | None:
        failure = self._behaviour.failure
        if failure is None or self._steps < failure.at_step:
            return None
        return failure if failure.arm in (None, self._run.precision, self._run.arm) else None

    def _fail_if_due(self) -> None:
        failure = self._due_failure()
        match failure.how if failure else None:
            case "exception":
                raise RuntimeError("the fake backend was told to fail")
            case "out_of_memory":
                raise MemoryError("the fake backend was told to run out of memory")
            case "hang":
                time.sleep(3600)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(7)
            case "garbage":
                # What a native library does that writes to the process's standard output.
                os.write(sys.__stdout__.fileno() if sys.__stdout__ else 1, b"\xff\xfenot json\n")
            case _:
                pass
