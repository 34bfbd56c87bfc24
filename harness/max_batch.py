"""The largest batch that fits into memory, found by trying each in a process of its own.

The batch is doubled until one does not fit, then the gap is halved until it is one *batch step*
wide: within 1/16 of the result unless told otherwise. A trial trains two steps on noise; the second
runs with the optimizer's state in place. It does not fit where the process passed the limit,
reported that memory ran out, or was ended by SIGKILL; any other failure ends the search, and what
fitted before is kept beside it. No batch is tried that a kernel could not address
(:func:`most_images`).

On the CPU the limit is one on resident memory (:mod:`harness.memory_limit`), framework included,
and the kernel's own high-water mark decides; on a GPU it is the device.

The trials' heap gives freed blocks back to the system at once (:data:`TRIAL_VARIABLES`). By itself
glibc keeps some of those below 32 MB, as chance and threads have it: the peaks of one batch then
differed by 50 MB from process to process, a larger batch had a lower peak than a smaller one, and
an image cost up to 1.8 times what the network needs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

from harness.arm import Prepared
from harness.config import RunConfig
from harness.gpu import find_gpu
from harness.inputs import SYNTHETIC_CLASSES, InputSpec
from harness.max_batch_result import LARGEST_BATCH, MaxBatch, Trial
from harness.memory_limit import MemoryLimit
from harness.memory_model import MemorySplit, bytes_per_image, estimated_batch, training_memory
from harness.networks import Network, build_network, place_layers
from harness.records import MemoryPart
from harness.worker_process import WorkerFailed, WorkerProcess

FIRST_BATCH = 8
SMALLEST_BATCH = 2
"""BatchNorm has nothing to normalise over in one."""
MOST_ELEMENTS = 2**31 - 1
"""In one tensor: cuDNN and other libraries count elements in 32 bits, and refuse more or fail."""
TRIAL_STEPS = 2
TRIAL_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""The value with which glibc begins; setting it keeps it from growing (mallopt(3)). Without effect
on other C libraries and on a GPU's memory."""

OnTrial = Callable[[RunConfig, Trial], None]


def largest_batch(
    fits: Callable[[int], bool], *, step: int | None, most: int = LARGEST_BATCH
) -> tuple[int | None, int | None]:
    """Search for the largest batch that fits by doubling, then bisection.

    Args:
        fits: tries one batch size.
        step: width at which the bisection ends; None: a sixteenth of the last doubling that fits.
        most: images that are tried at most, :data:`SMALLEST_BATCH` or more.

    Returns:
        The largest batch of those tried that fits (None where :data:`SMALLEST_BATCH` does not),
        and the step that was used (None where ``most`` fits, so that nothing was bisected).
    """
    low, high = 0, min(max(step or FIRST_BATCH, SMALLEST_BATCH), most)
    while fits(high):
        low = high
        if low == most:
            return low, None
        high = min(2 * low, most)
    if low == 0:
        low = SMALLEST_BATCH - 1
    step = step or max(1, low // 16)
    while high - low > step:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return (low if low >= SMALLEST_BATCH else None), step


def most_images(network: Network) -> int:
    """Images of which no activation of ``network`` has more than :data:`MOST_ELEMENTS`."""
    return MOST_ELEMENTS // max(prod(placed.output) for placed in place_layers(network))


def find_max_batch(
    base: RunConfig,
    *,
    python: str,
    log: Path,
    limit_bytes: int | None,
    step: int | None,
    on_trial: OnTrial,
) -> MaxBatch:
    """Find the largest batch of ``base``, whose own batch size is not looked at.

    Args:
        base: backend, precision, network, device and the like; its input is synthetic.
        python: interpreter of the backend's environment.
        log: file for what the workers print.
        limit_bytes: of resident memory; None leaves it to the device.
        step: as for :func:`largest_batch`.
        on_trial: is told of each trial.
    """
    search = _Search(base, python=python, log=log, limit_bytes=limit_bytes, on_trial=on_trial)
    cell = MaxBatch(
        backend=base.backend,
        precision="amp" if base.precision == "amp" else "fp32",
        dtype=base.compute_dtype,
        status="ok",
        limit_bytes=limit_bytes,
        trials=search.trials,
    )
    addressable = most_images(_network(base))
    most = min(LARGEST_BATCH, addressable)
    try:
        cell.largest_batch, cell.batch_step = largest_batch(search.fits, step=step, most=most)
        if cell.largest_batch == most:
            cell.reason = _ended_at(most, addressable=addressable)
    except WorkerFailed as failure:
        cell.status = "unavailable" if failure.status == "unavailable" else "failed"
        cell.reason = failure.reason
        # What fitted is true, but no limit of memory: the reason names the batch that failed.
        cell.largest_batch = max((t.batch_size for t in search.trials if t.fits), default=None)
        if search.trials:
            cell.reason = f"batch {search.batch_size:,}: {failure.reason}"
    cell.trials = search.trials
    if search.prepared is not None:
        cell.framework_version = search.prepared.in_force.framework_version
        on_cuda = search.prepared.in_force.device_type == "cuda"
        cell.peak_source = "device allocated" if on_cuda else "host resident"
        cell.runtime_bytes = search.runtime_bytes
        if on_cuda:
            cell.limit_bytes = _free_device_bytes(search.prepared.in_force.device_uuid)
    _estimate(cell, base)
    return cell


class _Search:
    """The trials of one backend and precision, and what they tell beside the verdict."""

    def __init__(
        self,
        base: RunConfig,
        *,
        python: str,
        log: Path,
        limit_bytes: int | None,
        on_trial: OnTrial,
    ) -> None:
        self._base = base
        self._python = python
        self._log = log
        self._limit_bytes = limit_bytes
        self._on_trial = on_trial
        self.batch_size = 0
        """Of the last trial that began."""
        self.trials: list[Trial] = []
        self.prepared: Prepared | None = None
        self.runtime_bytes: int | None = None

    def fits(self, batch_size: int) -> bool:
        """Run the trial of ``batch_size``.

        Raises:
            WorkerFailed: it failed by something other than a lack of memory.
        """
        self.batch_size = batch_size
        run = self._base.model_copy(update={"batch_size": batch_size})
        trial = self._try(run)
        self.trials.append(trial)
        self._on_trial(run, trial)
        return trial.fits

    def _try(self, run: RunConfig) -> Trial:
        worker = WorkerProcess(run, python=self._python, log=self._log, variables=TRIAL_VARIABLES)
        with worker, MemoryLimit(worker.pid, self._limit_bytes) as memory:
            try:
                peak_bytes = self._train(run, worker, memory)
            except WorkerFailed as failure:
                if not (memory.exceeded or failure.killed or failure.status == "out_of_memory"):
                    raise
                reason = "passed the limit and was killed" if memory.exceeded else failure.reason
                last = memory.peak_bytes if self._limit_bytes is not None else None
                return Trial(batch_size=run.batch_size, fits=False, peak_bytes=last, reason=reason)
        over = self._limit_bytes is not None and (peak_bytes or 0) > self._limit_bytes
        return Trial(
            batch_size=run.batch_size,
            fits=not over,
            peak_bytes=peak_bytes,
            reason="passed the limit for a moment" if over else None,
        )

    def _train(self, run: RunConfig, worker: WorkerProcess, memory: MemoryLimit) -> int | None:
        spec = InputSpec(input="synthetic", path=None).model_dump(mode="json")
        answer = worker.ask("prepare", run=run.model_dump(mode="json"), spec=spec)
        prepared = Prepared.model_validate(answer["prepared"])
        resident_bytes = memory.resident_bytes()
        worker.ask("window", steps=TRIAL_STEPS, warmup=True, arm_position=0)
        told = MemoryPart.model_validate(worker.ask("conclude")["memory"])
        worker.ask("close")
        on_cuda = prepared.in_force.device_type == "cuda"
        if self.prepared is None:
            self.prepared = prepared
            self.runtime_bytes = (
                _beside_the_allocator(told) if on_cuda else resident_bytes - _resident_split(run)
            )
        if on_cuda:
            return told.device_allocated_peak_bytes
        return max(told.host_peak_bytes or 0, memory.peak_bytes)


def _ended_at(most: int, *, addressable: int) -> str:
    if most == addressable:
        return (
            f"batch {most:,} fits, and with more a tensor of the network would have more than "
            f"{MOST_ELEMENTS:,} elements, which cuDNN does not address; to meet the limit of "
            "memory choose a deeper --model, or on a CPU a lower --memory-limit"
        )
    return (
        f"batch {most:,} fits, the most that a run may have; to meet the limit of memory choose "
        "a larger --image-size, or on a CPU a lower --memory-limit"
    )


def _resident_split(run: RunConfig) -> int:
    """Bytes of the network and its input that are there before the first step."""
    split = _split(run, run.batch_size)
    return split.weights_bytes + split.statistics_bytes // 2 + split.input_bytes


def _beside_the_allocator(told: MemoryPart) -> int | None:
    used, reserved = told.device_used_delta_bytes, told.device_reserved_peak_bytes
    return None if used is None or reserved is None else max(0, used - reserved)


def _free_device_bytes(uuid: str | None) -> int | None:
    gpu = find_gpu(uuid)
    total, used = (None, None) if gpu is None else (gpu.total_bytes(), gpu.used_bytes())
    return None if total is None or used is None else total - used


def _network(run: RunConfig) -> Network:
    return build_network(run.model, classes=SYNTHETIC_CLASSES, image_size=run.image_size)


def _split(run: RunConfig, batch_size: int) -> MemorySplit:
    return training_memory(
        _network(run),
        batch_size=batch_size,
        dtype=run.compute_dtype,
        optimizer=run.optimizer,
        momentum=run.momentum,
    )


def _estimate(cell: MaxBatch, run: RunConfig) -> None:
    network = _network(run)
    cell.estimated_bytes_per_image = bytes_per_image(network, dtype=cell.dtype)
    if cell.limit_bytes is None or cell.runtime_bytes is None:
        return
    cell.estimated_batch = estimated_batch(
        network,
        free_bytes=cell.limit_bytes - cell.runtime_bytes,
        dtype=cell.dtype,
        optimizer=run.optimizer,
        momentum=run.momentum,
    )
