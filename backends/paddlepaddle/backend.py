"""Paddle: ``paddle.amp.auto_cast`` level O1 with one ``GradScaler``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from backends.paddlepaddle.compiled import compile_model, compiler, refused_if_it_fails
from backends.paddlepaddle.device import (
    DataFormat,
    choose_device,
    dtype_name,
    gpu_uuid,
    is_out_of_memory,
    refuse_layout,
    refuse_unusable_installation,
    set_cuda_modes,
    set_threads,
    try_capabilities,
    try_dtype,
    usable_cpus,
)
from backends.paddlepaddle.evidence import (
    compiled_evidence,
    eager_evidence,
    recorded_gradients,
)
from backends.paddlepaddle.network import build_model
from backends.paddlepaddle.optimizers import OptimizerSlots, make_optimizer, make_scaler
from backends.paddlepaddle.peak import peak_operation
from backends.paddlepaddle.probe import native_layout, probe_layer, probe_pass
from backends.paddlepaddle.profile import profile_steps
from backends.paddlepaddle.state import Parameters, read_state, write_state
from backends.paddlepaddle.statistics import (
    OwnStatistics,
    RunningStatistics,
    Statistics,
    batch_variance_is_unbiased,
)
from backends.paddlepaddle.transfer import PinnedTransfer
from harness.config import RunConfig
from harness.networks import Network
from harness.profiling import Phase
from harness.protocol import (
    CHANNEL_MEAN,
    CHANNEL_STD,
    TF32_CAPABILITY,
    Capabilities,
    DeviceMemory,
    Evidence,
    InForce,
    LayerProbe,
    PeakOperation,
    Probe,
    StepProfile,
    StepResult,
    TrainState,
    Unsupported,
)
from harness.weights import Weights

if TYPE_CHECKING:
    import paddle


class _Batch(NamedTuple):
    images: paddle.Tensor
    labels: paddle.Tensor


class PaddleBackend:
    """Dynamic-graph Paddle (or ``jit.to_static`` with ``compile=on``) on the CPU or one GPU."""

    name = "paddle"

    def __init__(self) -> None:
        import paddle

        self._paddle: ModuleType = paddle

    def capabilities(self) -> Capabilities:
        """See :meth:`harness.protocol.Backend.capabilities`."""
        return try_capabilities(self._paddle)

    def open(self, run: RunConfig) -> InForce:
        """See :meth:`harness.protocol.Backend.open`."""
        paddle = self._paddle
        self._run = run
        refuse_unusable_installation(paddle)
        device = choose_device(paddle, run.device)
        self._on_cuda = device != "cpu"
        dtype = run.compute_dtype
        self._float = "float64" if run.precision == "float64" else "float32"
        capability = try_dtype(paddle, device, dtype)
        if not capability.available:
            raise Unsupported(f"paddle cannot run {dtype} on {device}: {capability.reason}")
        paddle.set_device(device)
        threads = set_threads(paddle, run.threads or usable_cpus())
        tf32 = False
        if self._on_cuda:
            tf32 = set_cuda_modes(paddle, tf32=run.tf32, deterministic=run.deterministic)
        self._format: DataFormat = "NHWC" if run.layout == "nhwc" else "NCHW"
        refuse_layout(paddle, self._float, self._format)
        self._eager_unbiased, self._trained_unbiased = (
            batch_variance_is_unbiased(paddle, self._float, self._format, compiled=compiled)
            for compiled in (False, run.compile == "on")
        )
        self._transfer = PinnedTransfer(paddle, device)
        properties = None
        if self._on_cuda:
            properties = paddle.device.cuda.get_device_properties(device)
        self._device = device
        return InForce(
            framework_version=paddle.__version__,
            device_type="cuda" if self._on_cuda else "cpu",
            device_name=properties.name if properties else "CPU",
            device_uuid=gpu_uuid(device) if self._on_cuda else None,
            layout="nhwc" if self._format == "NHWC" else "nchw",
            compile=compiler(paddle) if run.compile == "on" else "eager",
            threads=threads,
            tf32=tf32
            if properties and (properties.major, properties.minor) >= TF32_CAPABILITY
            else None,
            loss_scale_policy=str(run.loss_scale) if run.scales_loss else None,
        )

    def build(self, network: Network, weights: Weights) -> None:
        """See :meth:`harness.protocol.Backend.build`."""
        paddle, run = self._paddle, self._run
        self._network = network
        paddle.set_default_dtype(self._float)
        try:
            self._model, self._layers = build_model(
                paddle, network, self._format, own_statistics=run.parts == "native"
            )
        finally:
            paddle.set_default_dtype("float32")
        self._parameters = Parameters(network, self._layers)
        self._statistics: Statistics = (
            OwnStatistics(network, self._layers)
            if run.parts == "native"
            else RunningStatistics(
                paddle,
                network,
                self._layers,
                trained_unbiased=self._trained_unbiased,
                eager_unbiased=self._eager_unbiased,
            )
        )
        self._parameters.load(self._parameters.tensors, weights)
        self._statistics.load(weights)
        # On a GPU one operation for all spares the host a call for each; behind it Paddle (3.x)
        # still starts a kernel for each. On a CPU the loop over 62 parameters was measured to make
        # a whole step 5 % faster than one operation for all.
        self._multi_tensor = self._on_cuda and run.precision != "float64"
        self._optimizer = make_optimizer(
            paddle, run, [*self._parameters.tensors.values()], multi_tensor=self._multi_tensor
        )
        self._slots = OptimizerSlots(paddle, self._optimizer, self._parameters.tensors)
        self._updates = 0
        self._scaler = make_scaler(paddle, run)
        self._cross_entropy = paddle.nn.functional.cross_entropy
        self._one = paddle.ones([], "float32")
        channels = [3] if self._format == "NHWC" else [3, 1, 1]
        self._range, self._mean, self._std = (
            paddle.to_tensor(np.reshape(values, channels), dtype=self._float)
            for values in ([255.0] * 3, CHANNEL_MEAN, CHANNEL_STD)
        )
        self._losses: list[paddle.Tensor] = []
        self._scales: list[paddle.Tensor] = []
        self._skipped: list[bool] = []
        self._poisoned = False
        self._model.train()
        self._forward: Any = self._compiled() if run.compile == "on" else self._model

    def put(self, images: np.ndarray, labels: np.ndarray) -> _Batch:
        """See :meth:`harness.protocol.Backend.put`."""
        paddle = self._paddle
        if not self._on_cuda:
            return _Batch(paddle.to_tensor(images), paddle.to_tensor(labels))
        return _Batch(*self._transfer.to_device(images, labels))

    def train_step(self, batch: _Batch) -> None:
        """See :meth:`harness.protocol.Backend.train_step`."""
        for _ in self._phases(batch):
            pass

    def _phases(self, batch: _Batch) -> Iterator[Phase]:
        """One training step that stops when each of its phases is enqueued."""
        scaler = self._scaler
        images = self._normalised(batch)
        yield "input"
        loss = self._loss(self._forward, images, batch.labels)
        self._statistics.follow(batch.images.shape[0])
        yield "forward"
        # scale() must come after an auto_cast: before the first one it would disable the scaler.
        scaler.scale(loss).backward()
        yield "backward"
        if self._poisoned:
            self._poison()
        skipped = False
        if scaler.is_enable():
            # Scaling a one reads the scale on the device; state_dict() would wait for it.
            self._scales.append(scaler.scale(self._one))
            # Paddle asks on the host whether a gradient overflowed: on CUDA each step of a float16
            # run waits here until its backward pass is done. A float32 run never waits.
            scaler.step(self._optimizer)
            skipped = bool(scaler._cache_found_inf)
            with redirect_stdout(None):  # update() prints each overflow
                scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.clear_grad(set_to_zero=False)
        self._updates += not skipped
        self._losses.append(loss.detach())
        self._skipped.append(skipped)
        yield "optimizer"

    def take_steps(self) -> list[StepResult]:
        """See :meth:`harness.protocol.Backend.take_steps`."""
        if not self._losses:
            return []
        losses = self._paddle.stack(self._losses).tolist()
        scales = self._paddle.stack(self._scales).tolist() if self._scales else [None] * len(losses)
        results = [StepResult(*step) for step in zip(losses, scales, self._skipped, strict=True)]
        self._losses.clear()
        self._scales.clear()
        self._skipped.clear()
        return results

    def evaluate(self, batch: _Batch) -> np.ndarray:
        """See :meth:`harness.protocol.Backend.evaluate`."""
        self._statistics.show()
        self._model.eval()
        with self._paddle.no_grad():
            logits = self._model(self._normalised(batch))
        self._model.train()
        return logits.astype("float32").numpy()

    def set_learning_rate(self, learning_rate: float) -> None:
        """See :meth:`harness.protocol.Backend.set_learning_rate`."""
        self._optimizer.set_lr(learning_rate)

    def synchronize(self) -> None:
        """See :meth:`harness.protocol.Backend.synchronize`."""
        if self._on_cuda:
            self._paddle.device.synchronize(self._device)

    def memory(self) -> DeviceMemory:
        """Peaks of Paddle's allocator; unknown on the CPU, where it keeps none."""
        if not self._on_cuda:
            return DeviceMemory()
        cuda = self._paddle.device.cuda
        return DeviceMemory(
            allocated_peak_bytes=cuda.max_memory_allocated(self._device),
            reserved_peak_bytes=cuda.max_memory_reserved(self._device),
        )

    def reset_peaks(self, *, release_unused: bool) -> None:
        """See :meth:`harness.protocol.Backend.reset_peaks`."""
        if not self._on_cuda:
            return
        cuda = self._paddle.device.cuda
        if release_unused:
            cuda.empty_cache()
        cuda.reset_max_memory_allocated(self._device)
        cuda.reset_max_memory_reserved(self._device)

    def state(self) -> TrainState:
        """See :meth:`harness.protocol.Backend.state`."""
        return read_state(
            self._parameters,
            self._statistics,
            self._slots,
            self._scaler,
            self._updates if self._run.optimizer == "adam" else 0,
        )

    def load_state(self, state: TrainState) -> None:
        """See :meth:`harness.protocol.Backend.load_state`."""
        self._updates = state.optimizer_steps
        write_state(state, self._parameters, self._statistics, self._slots, self._scaler)

    def probe(self, batch: _Batch) -> Probe:
        """See :meth:`harness.protocol.Backend.probe`."""
        scaling = self._scaler.state_dict()
        scale = scaling["scale"].item() if scaling else 1.0

        def forward() -> tuple[paddle.Tensor, paddle.Tensor]:
            with self._autocast():
                logits = self._model(self._normalised(batch))
                return logits, self._cross_entropy(logits, batch.labels)

        return probe_pass(
            forward,
            self._layers,
            self._parameters,
            self._statistics,
            loss_scale=scale,
            batch_size=batch.images.shape[0],
            data_format=self._format,
        )

    def probe_layer(self, layer: str, x: np.ndarray, output_gradient: np.ndarray) -> LayerProbe:
        """See :meth:`harness.protocol.Backend.probe_layer`."""
        # Activations arrive in the low precision that the layer before left them in.
        dtype = self._run.compute_dtype
        inputs, gradient = (
            self._paddle.to_tensor(native_layout(values, self._format)).astype(dtype)
            for values in (x, output_gradient)
        )
        return probe_layer(
            self._layers[layer],
            inputs,
            gradient,
            self._parameters,
            self._statistics,
            autocast=self._autocast(),
            data_format=self._format,
        )

    def poison_next_gradient(self) -> None:
        """See :meth:`harness.protocol.Backend.poison_next_gradient`."""
        self._poisoned = True

    def evidence(self, batch: _Batch) -> Evidence:
        """Record one whole training step."""
        parameters = [*self._parameters.tensors.values()]
        with self._undone(), recorded_gradients(parameters) as gradient_dtypes:
            step = partial(self.train_step, batch)
            if self._run.compile == "on":
                seen = compiled_evidence(self._forward, step)
            else:
                seen = eager_evidence(self._paddle, self._network, self._layers, step)
        return Evidence(
            source=seen.source,
            effective=seen.effective,
            layers=seen.layers,
            master_weight_dtype=dtype_name(parameters[0]),
            gradient_dtype="/".join(sorted(gradient_dtypes)),
            optimizer=type(self._optimizer).__name__,
            optimizer_implementation="foreach" if self._multi_tensor else "loop",
            scaler_enabled=self._scaler.is_enable(),
        )

    def peak_operation(
        self, operation: PeakOperation, dtype: str, size: int
    ) -> Callable[[], object]:
        """See :meth:`harness.protocol.Backend.peak_operation`."""
        return peak_operation(self._paddle, self._format, operation, dtype, size)

    def profile(self, batch: _Batch, *, steps: int, trace: Path | None) -> StepProfile:
        """See :meth:`harness.protocol.Backend.profile`."""
        host = batch.images.numpy(), batch.labels.numpy()
        with self._undone():
            self.train_step(batch)
            return profile_steps(
                self._paddle,
                lambda: self.train_step(batch),
                lambda: self._phases(self.put(*host)),
                self.synchronize,
                on_cuda=self._on_cuda,
                steps=steps,
                trace=trace,
            )

    def is_out_of_memory(self, error: BaseException) -> bool:
        """See :meth:`harness.protocol.Backend.is_out_of_memory`."""
        return is_out_of_memory(error)

    def close(self) -> None:
        """See :meth:`harness.protocol.Backend.close`."""
        self.synchronize()

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Let the block train, then go on as if it had not."""
        before = self.state()
        kept = self._losses, self._scales, self._skipped, self._poisoned
        self._losses, self._scales, self._skipped, self._poisoned = [], [], [], False
        yield
        self.load_state(before)
        self._losses, self._scales, self._skipped, self._poisoned = kept

    def _compiled(self) -> Any:
        """The model as one program, tried on a blank batch: a failure tells itself here."""
        run = self._run
        size = (run.batch_size, self._network.image_size, self._network.image_size, 3)
        blank = self.put(np.zeros(size, np.uint8), np.zeros(run.batch_size, np.int64))
        with refused_if_it_fails(self._paddle, self._network.name):
            compiled = compile_model(self._paddle, self._model)
            self._loss(compiled, self._normalised(blank), blank.labels).backward()
            self.synchronize()
        self._optimizer.clear_grad(set_to_zero=False)
        self._statistics.show()
        return compiled

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._run.precision != "amp":
            return nullcontext()
        return self._paddle.amp.auto_cast(level="O1", dtype=self._run.amp_dtype)

    def _normalised(self, batch: _Batch) -> paddle.Tensor:
        images = batch.images
        if self._format == "NCHW":
            images = images.transpose([0, 3, 1, 2])
        images = self._paddle.cast(images, self._float)
        return images.divide_(self._range).subtract_(self._mean).divide_(self._std)

    def _loss(self, model: Any, images: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        with self._autocast():
            return self._cross_entropy(model(images), labels)

    def _poison(self) -> None:
        gradient = next(reversed(self._parameters.tensors.values())).grad
        assert gradient is not None
        with self._paddle.no_grad():
            gradient.fill_(float("inf"))
        self._poisoned = False
