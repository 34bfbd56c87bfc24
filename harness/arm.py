"""One arm of a comparison in its own process: the neutral training loop.

The loop owns the clock, the order of the data and the bookkeeping; the backend only computes.
It knows NumPy and the backend protocol, nothing else.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from datasets import HostBatch, PixelSource, TrainBatches, val_batches
from harness.config import RunConfig
from harness.gradients import gradient_histogram
from harness.networks import build_network, forward_flops_per_image, parameter_count
from harness.protocol import (
    Backend,
    DeviceMemory,
    Evidence,
    InForce,
    StepResult,
    TrainState,
    Unsupported,
)
from harness.records import AccuracyPart, GradientHistogramPart, ModelPart, ProfilePart, Window
from harness.schedule import learning_rate
from harness.weights import initial_weights

HASHED_BATCHES = 4
"""First batches whose content is hashed, to prove that every arm was given the same."""


class Prepared(BaseModel):
    """What is known once an arm is ready for its first step."""

    in_force: InForce
    model: ModelPart
    steps_per_epoch: int
    total_steps: int | None
    """None for a run that ends after a number of windows."""
    prepare_s: float


class WindowResult(BaseModel):
    """One window and what its steps returned."""

    window: Window
    loss: list[float]
    loss_scale: list[float | None]
    skipped: list[bool]
    broken_statistics: list[str]
    """BatchNorm buffers that are not finite; looked at only after a loss that is not finite."""


class Arm:
    """A backend, a data source and the loop between them."""

    def __init__(
        self,
        run: RunConfig,
        backend: Backend,
        source: PixelSource,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._run = run
        self._backend = backend
        self._source = source
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._started = clock()
        self._steps_done = 0
        self._windows_done = 0
        self._batch_digest = hashlib.sha256()
        self._order_digest = hashlib.sha256()
        self._hashed_batches = 0
        self._data_wait_s = 0.0
        self._learning_rate = run.lr
        self._memory = DeviceMemory()
        self._looked_aside = False

    def prepare(self) -> Prepared:
        """Open the device, build the network and put the first batch on its way.

        Raises:
            Unsupported: the machine cannot do what the run asks for.
            datasets.DataError: fewer training images than one batch.
            ValueError: the images are too small for the network.
        """
        run = self._run
        network = build_network(
            run.model, classes=len(self._source.classes), image_size=run.image_size
        )
        in_force = self._backend.open(run)
        # Only products in float32 can become TF32's. A mixed run has few, and takes it where it is.
        if run.tf32 and run.precision != "amp" and in_force.tf32 is None:
            raise Unsupported(
                f"{in_force.device_name} has no TF32, which NVIDIA's GPUs have from Ampere on; "
                "float32 is computed strictly there, without --tf32"
            )
        self._backend.build(network, initial_weights(network, seed=run.seed))
        self._batches = TrainBatches(
            self._source, batch_size=run.batch_size, seed=run.seed, augment=run.augment
        )
        steps_per_epoch = self._batches.steps_per_epoch
        total_steps = run.steps or (run.epochs or 0) * steps_per_epoch
        # The rate of a run without a length follows its schedule over one epoch.
        self._schedule_steps = total_steps or steps_per_epoch
        self._feed = self._device_batches()
        self._next_batch = next(self._feed)
        return Prepared(
            in_force=in_force,
            model=ModelPart(
                name=run.model,
                parameters=parameter_count(network),
                forward_flops_per_image=forward_flops_per_image(network),
            ),
            steps_per_epoch=steps_per_epoch,
            total_steps=total_steps or None,
            prepare_s=self._clock() - self._started,
        )

    def window(self, *, steps: int, warmup: bool, arm_position: int) -> WindowResult:
        """Train ``steps`` steps between two synchronised clock readings."""
        rates = [
            learning_rate(self._run, step=step, total_steps=self._schedule_steps)
            for step in range(self._steps_done, self._steps_done + steps)
        ]
        window, results = self._take(self._feed, rates, warmup=warmup, arm_position=arm_position)
        self._steps_done += steps
        return WindowResult(
            window=window,
            loss=[result.loss for result in results],
            loss_scale=[result.loss_scale for result in results],
            skipped=[result.skipped for result in results],
            broken_statistics=[]
            if all(math.isfinite(result.loss) for result in results)
            else broken_statistics(self._backend.state()),
        )

    def compute_window(self, *, steps: int, arm_position: int) -> Window:
        """Train ``steps`` steps on one batch that stays on the device; ends the training.

        What a step takes that never waits for images. The rate of learning stays as it was.
        """
        resident = repeat(self._next_batch)
        rates = [self._learning_rate] * steps
        window, _ = self._take(resident, rates, warmup=False, arm_position=arm_position)
        return window

    def evaluate(self) -> AccuracyPart | None:
        """Validate the current weights in float32; None without validation images."""
        if len(self._source.val) == 0:
            return None
        self._looked_aside = True
        logits, labels = [], []
        for batch in val_batches(self._source, self._run.batch_size):
            logits.append(self._evaluate_padded(batch))
            labels.append(batch.labels)
        return accuracy(np.concatenate(logits), np.concatenate(labels), self._source.classes)

    def evidence(self) -> Evidence:
        """What a training step runs in, as the backend shows it."""
        return self._backend.evidence(self._next_batch)

    def profile(self, *, steps: int, trace: str | None) -> ProfilePart:
        """Profile ``steps`` steps on the next batch; ``trace``: file of the framework's trace."""
        path = None if trace is None else Path(trace)
        profile = self._backend.profile(self._next_batch, steps=steps, trace=path)
        return ProfilePart(**vars(profile), trace=trace)

    def gradient_histogram(self) -> GradientHistogramPart:
        """Count the gradients of one pass on the next batch; changes nothing."""
        loss_scale = self._backend.state().loss_scale
        self._looked_aside = True
        probe = self._backend.probe(self._next_batch)
        return gradient_histogram(probe, step=self._steps_done, loss_scale=loss_scale)

    def memory(self) -> DeviceMemory:
        """Highest peaks of the windows so far, validation and the like left out.

        The very first step, in which libraries try their algorithms, counts only where there was no
        other; what the allocator reserved counts up to the first validation or look at gradients,
        since it keeps what those needed.
        """
        return self._memory

    @property
    def batch_sha256(self) -> str:
        """SHA-256 over pixels, labels and ids of the first batches, in their order."""
        return self._batch_digest.hexdigest()

    @property
    def order_sha256(self) -> str:
        """SHA-256 over the ids of all images so far, in the order in which they were given."""
        return self._order_digest.hexdigest()

    def close(self) -> None:
        """Stop the loader and release the device."""
        self._batches.close()
        self._backend.close()

    def _take(
        self, feed: Iterator[Any], rates: list[float], *, warmup: bool, arm_position: int
    ) -> tuple[Window, list[StepResult]]:
        """Train a step with each of ``rates``, the first on the batch at hand."""
        backend = self._backend
        backend.synchronize()
        after_first = self._steps_done == 1
        if after_first:
            self._memory, self._looked_aside = DeviceMemory(), False
        backend.reset_peaks(release_unused=after_first)
        self._data_wait_s = 0.0
        cpu_start = self._cpu_clock()
        start = self._clock()
        for step, rate in enumerate(rates):
            if step == 1 and self._steps_done == 0:
                # In the middle of a window, which is no timed one: each run begins with a warm-up.
                backend.reset_peaks(release_unused=True)
            if rate != self._learning_rate:
                backend.set_learning_rate(rate)
                self._learning_rate = rate
            backend.train_step(self._next_batch)
            # The step is under way: fetch and send the next batch meanwhile.
            self._next_batch = next(feed)
        backend.synchronize()
        time_s = self._clock() - start
        cpu_s = self._cpu_clock() - cpu_start
        self._note_peaks()
        results = backend.take_steps()
        applied = sum(not result.skipped for result in results)
        window = Window(
            index=self._windows_done,
            arm_position=arm_position,
            started_s=start - self._started,
            steps=len(rates),
            images=applied * self._run.batch_size,
            time_s=time_s,
            cpu_s=cpu_s,
            data_wait_s=self._data_wait_s,
            warmup=warmup,
        )
        self._windows_done += 1
        return window, results

    def _note_peaks(self) -> None:
        told = self._backend.memory()
        if self._looked_aside:
            told = replace(told, reserved_peak_bytes=None)
        self._memory = self._memory.highest(told)

    def _device_batches(self) -> Iterator[Any]:
        """The stream of batches on the device; synthetic input is one batch that stays there."""
        while True:
            start = self._clock()
            batch = next(self._batches)
            self._data_wait_s += self._clock() - start
            self._hash(batch)
            on_device = self._backend.put(batch.images, batch.labels)
            while self._run.input == "synthetic":
                yield on_device
            yield on_device

    def _hash(self, batch: HostBatch) -> None:
        self._order_digest.update(batch.ids.tobytes())
        if self._hashed_batches < HASHED_BATCHES:
            self._hashed_batches += 1
            for array in (batch.images, batch.labels, batch.ids):
                self._batch_digest.update(array.tobytes())

    def _evaluate_padded(self, batch: HostBatch) -> np.ndarray:
        # One batch shape only: a short last batch would make a compiled evaluation compile again.
        missing = self._run.batch_size - len(batch.labels)
        images = np.concatenate([batch.images, np.repeat(batch.images[:1], missing, axis=0)])
        labels = np.concatenate([batch.labels, np.repeat(batch.labels[:1], missing)])
        logits = self._backend.evaluate(self._backend.put(images, labels))
        return logits[: len(batch.labels)]


def broken_statistics(state: TrainState) -> list[str]:
    """Names of the BatchNorm buffers that hold an infinite value or NaN."""
    return [
        name
        for name, values in state.tensors.items()
        if name.endswith(("running_mean", "running_var")) and not np.isfinite(values).all()
    ]


def accuracy(logits: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> AccuracyPart:
    """Top-1, top-2 and mean cross-entropy.

    Args:
        logits: float32 (N, classes). A row with a value that is not finite counts as wrong.
        labels: int64 (N,).
        classes: names by label.
    """
    scores = np.where(np.isfinite(logits), logits, -np.inf).astype(np.float64)
    own = scores[np.arange(len(labels)), labels][:, None]
    # A tie counts against the label, so that constant logits do not pass for knowledge.
    rank = (scores >= own).sum(axis=1) - 1
    usable = np.isfinite(logits).all(axis=1)
    top1, top2 = (usable & (rank < k) for k in (1, 2))
    with np.errstate(invalid="ignore"):  # infinite logits have a loss of NaN
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    per_class = {
        name: float(top1[labels == label].mean()) if (labels == label).any() else None
        for label, name in enumerate(classes)
    }
    return AccuracyPart(
        val_top1=float(top1.mean()),
        val_top2=float(top2.mean()),
        val_loss=float(-log_probabilities[np.arange(len(labels)), labels].mean()),
        per_class=per_class,
    )
