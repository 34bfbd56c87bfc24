"""PyTorch: ``torch.amp.autocast`` with one ``GradScaler``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from backends.pytorch.device import choose_device, try_capabilities, try_dtype
from backends.pytorch.evidence import (
    layer_evidence,
    profiled_convolution_dtype,
    recorded_operations,
)
from backends.pytorch.network import build_module
from backends.pytorch.peak import peak_operation
from backends.pytorch.probe import probe_module, probe_pass
from backends.pytorch.profile import profile_steps
from backends.pytorch.state import read_state, write_state, write_tensors
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
    LayerEvidence,
    LayerProbe,
    PeakOperation,
    Probe,
    StepProfile,
    StepResult,
    TrainState,
    Unsupported,
    effective_dtype,
)
from harness.weights import Weights

if TYPE_CHECKING:
    import torch

_NO_MEMORY = (
    # The allocator of the CPU.
    "can't allocate memory",
    # The driver, outside PyTorch's allocator: contexts, modules, streams, pinned memory.
    "out of memory",
    # Handles and workspaces of cuBLAS and cuDNN, in cuDNN 9's words too.
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",
    # PyTorch passes over cuDNN's plans whose workspaces do not fit, and says this when none
    # is left. That the device convolves in this dtype at all was tried in ``open``.
    "unable to find an engine to execute this computation",
)
"""Plain RuntimeErrors that say so; their text is all there is to tell by."""


class _Batch(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor
    copied: torch.Event | None


class TorchBackend:
    """Eager PyTorch (or Inductor with ``compile=on``) on the CPU or one CUDA device."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def capabilities(self) -> Capabilities:
        """See :meth:`harness.protocol.Backend.capabilities`."""
        return try_capabilities(self._torch)

    def open(self, run: RunConfig) -> InForce:
        """See :meth:`harness.protocol.Backend.open`."""
        torch = self._torch
        self._run = run
        self._device = choose_device(torch, run.device)
        on_cuda = self._device.type == "cuda"
        dtype = run.compute_dtype
        self._float = torch.float64 if run.precision == "float64" else torch.float32
        capability = try_dtype(torch, self._device, dtype)
        if not capability.available:
            raise Unsupported(f"torch cannot run {dtype} on {self._device}: {capability.reason}")
        if run.threads:
            torch.set_num_threads(run.threads)
        torch.backends.cuda.matmul.allow_tf32 = run.tf32
        torch.backends.cudnn.allow_tf32 = run.tf32
        # Shapes never change within a run, so that measuring the kernels once pays.
        torch.backends.cudnn.benchmark = not run.deterministic
        torch.use_deterministic_algorithms(run.deterministic)
        self._format = torch.channels_last if run.layout == "nhwc" else torch.contiguous_format
        self._copy_stream = torch.cuda.Stream(self._device) if on_cuda else None
        if on_cuda:
            torch.cuda.set_device(self._device)
        properties = torch.cuda.get_device_properties(self._device) if on_cuda else None
        return InForce(
            framework_version=torch.__version__,
            device_type="cuda" if on_cuda else "cpu",
            device_name=properties.name if properties else "CPU",
            device_uuid=f"GPU-{properties.uuid}" if properties else None,
            layout="nhwc" if run.layout == "nhwc" else "nchw",
            compile="inductor" if run.compile == "on" else "eager",
            threads=torch.get_num_threads(),
            tf32=torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
            if properties and (properties.major, properties.minor) >= TF32_CAPABILITY
            else None,
            loss_scale_policy=str(run.loss_scale) if run.scales_loss else None,
        )

    def build(self, network: Network, weights: Weights) -> None:
        """See :meth:`harness.protocol.Backend.build`."""
        torch, run = self._torch, self._run
        self._network = network
        model, self._modules = build_module(torch, network)
        self._model = model.to(device=self._device, dtype=self._float)
        # The type stub of Module.to has no memory_format.
        self._model.to(memory_format=self._format)  # pyright: ignore[reportCallIssue]
        self._tensors = {
            f"{layer}.{part}": tensor
            for layer, module in self._modules.items()
            for part, tensor in (
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            )
            if part != "num_batches_tracked"
        }
        write_tensors(torch, weights, self._tensors)
        self._forward = torch.compile(self._model) if run.compile == "on" else self._model
        self._parameters = [*self._model.parameters()]
        shared = {"lr": run.lr, "weight_decay": run.weight_decay, "fused": True}
        if run.optimizer == "adam":
            self._optimizer = torch.optim.Adam(
                self._parameters, betas=(0.9, 0.999), eps=1e-8, **shared
            )
        else:
            self._optimizer = torch.optim.SGD(self._parameters, momentum=run.momentum, **shared)
            # The fused kernel leaves the buffers that it makes at its first step unwritten when the
            # scaler skips that step, and the next one adds to them. From zeros, the first momentum
            # is the gradient, as it should be.
            for parameter in self._parameters if run.momentum else ():
                zeros = torch.zeros_like(parameter)
                self._optimizer.state[parameter]["momentum_buffer"] = zeros
        policy = run.loss_scale
        self._scaler = torch.amp.GradScaler(
            self._device.type,
            init_scale=policy.initial,
            growth_factor=policy.growth_factor,
            backoff_factor=policy.backoff_factor,
            growth_interval=policy.growth_interval,
            enabled=run.scales_loss,
        )
        self._one = torch.ones((), device=self._device)
        self._mean = torch.tensor(CHANNEL_MEAN, device=self._device, dtype=self._float).view(
            3, 1, 1
        )
        self._std = torch.tensor(CHANNEL_STD, device=self._device, dtype=self._float).view(3, 1, 1)
        self._scale_before = policy.initial if run.scales_loss else None
        self._losses: list[torch.Tensor] = []
        self._scales_after: list[torch.Tensor] = []
        self._poisoned = False
        self._model.train()

    def put(self, images: np.ndarray, labels: np.ndarray) -> _Batch:
        """See :meth:`harness.protocol.Backend.put`."""
        torch = self._torch
        host = torch.from_numpy(images), torch.from_numpy(labels)
        if self._copy_stream is None:
            return _Batch(*host, copied=None)
        # On a stream of its own the copy runs beside the step that the default stream is busy with.
        with torch.cuda.stream(self._copy_stream):
            on_device = [part.pin_memory().to(self._device, non_blocking=True) for part in host]
            return _Batch(*on_device, copied=self._copy_stream.record_event())

    def train_step(self, batch: _Batch) -> None:
        """See :meth:`harness.protocol.Backend.train_step`."""
        try:
            for _ in self._phases(batch):
                pass
        except RuntimeError as error:
            # The compiler runs within the first step, backward pass included. What it lacks (a C++
            # compiler, Triton, a newer GPU) shows there.
            if self._run.compile != "on" or not self._is_of_compiler(error):
                raise
            raise Unsupported(
                f"torch.compile (Inductor) cannot compile {self._network.name} on {self._device}: "
                f"{str(error).splitlines()[0]}; install a C++ compiler such as g++ where it is "
                "missing, or use --compile off"
            ) from error

    def _phases(self, batch: _Batch) -> Iterator[Phase]:
        """One training step that stops when each of its phases is enqueued."""
        self._optimizer.zero_grad(set_to_none=True)
        yield "optimizer"
        images = self._normalised(batch)
        yield "input"
        with self._autocast():
            loss = self._torch.nn.functional.cross_entropy(self._forward(images), batch.labels)
        yield "forward"
        self._scaler.scale(loss).backward()
        yield "backward"
        if self._poisoned:
            self._poison()
        if self._run.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            self._clip(self._run.clip_norm)
        self._scaler.step(self._optimizer)
        self._losses.append(loss.detach())
        if self._scaler.is_enabled():
            self._scaler.update()
            # Scaling a one reads the scale on the device; get_scale() would wait for it.
            self._scales_after.append(self._scaler.scale(self._one))
            if not self._run.loss_scale.dynamic:
                self._scaler.update(self._run.loss_scale.initial)
        yield "optimizer"

    def _phases_from_host(self, images: np.ndarray, labels: np.ndarray) -> Iterator[Phase]:
        batch = self.put(images, labels)
        yield "input"
        yield from self._phases(batch)

    def take_steps(self) -> list[StepResult]:
        """See :meth:`harness.protocol.Backend.take_steps`."""
        if not self._losses:
            return []
        losses = self._torch.stack(self._losses).tolist()
        self._losses.clear()
        if not self._scaler.is_enabled():
            return [StepResult(loss, None, False) for loss in losses]
        scales = self._torch.stack(self._scales_after).tolist()
        self._scales_after.clear()
        results = []
        for loss, after in zip(losses, scales, strict=True):
            before = self._scale_before
            assert before is not None
            results.append(StepResult(loss, before, after < before))
            self._scale_before = after if self._run.loss_scale.dynamic else before
        return results

    def evaluate(self, batch: _Batch) -> np.ndarray:
        """See :meth:`harness.protocol.Backend.evaluate`."""
        self._model.eval()
        with self._torch.inference_mode():
            logits = self._model(self._normalised(batch))
        self._model.train()
        return logits.float().cpu().numpy()

    def set_learning_rate(self, learning_rate: float) -> None:
        """See :meth:`harness.protocol.Backend.set_learning_rate`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    def synchronize(self) -> None:
        """See :meth:`harness.protocol.Backend.synchronize`."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def memory(self) -> DeviceMemory:
        """Peaks of the caching allocator; unknown on the CPU, which has no such allocator."""
        if self._device.type != "cuda":
            return DeviceMemory()
        return DeviceMemory(
            allocated_peak_bytes=self._torch.cuda.max_memory_allocated(self._device),
            reserved_peak_bytes=self._torch.cuda.max_memory_reserved(self._device),
        )

    def reset_peaks(self, *, release_unused: bool) -> None:
        """See :meth:`harness.protocol.Backend.reset_peaks`."""
        if self._device.type != "cuda":
            return
        if release_unused:
            self._torch.cuda.empty_cache()
        self._torch.cuda.reset_peak_memory_stats(self._device)

    def state(self) -> TrainState:
        """See :meth:`harness.protocol.Backend.state`."""
        return read_state(self._tensors, self._optimizer, self._scaler)

    def load_state(self, state: TrainState) -> None:
        """See :meth:`harness.protocol.Backend.load_state`."""
        write_state(self._torch, state, self._tensors, self._optimizer, self._scaler)
        self._scale_before = state.loss_scale

    def probe(self, batch: _Batch) -> Probe:
        """See :meth:`harness.protocol.Backend.probe`."""

        def loss_of(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
            with self._autocast():
                logits = model(self._normalised(batch))
                return self._torch.nn.functional.cross_entropy(logits, batch.labels), logits

        scale = self._scaler.get_scale()
        return probe_pass(self._model, self._modules, self._tensors, loss_of, scale)

    def probe_layer(self, layer: str, x: np.ndarray, output_gradient: np.ndarray) -> LayerProbe:
        """See :meth:`harness.protocol.Backend.probe_layer`."""
        torch = self._torch
        # Activations arrive in the low precision that the layer before left them in.
        low = self._run.precision == "amp"
        dtype = getattr(torch, self._run.amp_dtype) if low else self._float
        inputs, gradient = (
            torch.from_numpy(np.ascontiguousarray(values)).to(self._device, dtype)
            for values in (x, output_gradient)
        )
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self._format)
        return probe_module(self._modules[layer], layer, inputs, gradient, self._autocast())

    def poison_next_gradient(self) -> None:
        """See :meth:`harness.protocol.Backend.poison_next_gradient`."""
        self._poisoned = True

    def evidence(self, batch: _Batch) -> Evidence:
        """Record the ATen operations of one whole training step."""
        layers: dict[str, LayerEvidence] = {}
        with self._undone():
            if self._run.compile == "on":
                source = "convolutions of one profiled step of the compiled model"
                effective = profiled_convolution_dtype(self._torch, lambda: self.train_step(batch))
            else:
                source = "ATen operations dispatched in one training step"
                with recorded_operations(self._torch, self._modules) as operations:
                    self.train_step(batch)
                layers = layer_evidence(operations)
                effective = effective_dtype(self._network, layers)
        gradient_dtypes = {self._dtype_name(p.grad) for p in self._parameters if p.grad is not None}
        return Evidence(
            source=source,
            effective=effective,
            layers=layers,
            master_weight_dtype=self._dtype_name(self._parameters[0]),
            gradient_dtype="/".join(sorted(gradient_dtypes)),
            optimizer=type(self._optimizer).__name__,
            optimizer_implementation="fused" if self._optimizer.defaults["fused"] else "foreach",
            scaler_enabled=self._scaler.is_enabled(),
        )

    def profile(self, batch: _Batch, *, steps: int, trace: Path | None) -> StepProfile:
        """See :meth:`harness.protocol.Backend.profile`."""
        host = batch.images.cpu().numpy(), batch.labels.cpu().numpy()
        with self._undone():
            self.train_step(batch)
            return profile_steps(
                self._torch,
                lambda: self.train_step(batch),
                lambda: self._phases_from_host(*host),
                self.synchronize,
                on_cuda=self._device.type == "cuda",
                steps=steps,
                trace=trace,
            )

    def peak_operation(
        self, operation: PeakOperation, dtype: str, size: int
    ) -> Callable[[], object]:
        """See :meth:`harness.protocol.Backend.peak_operation`."""
        torch, form = self._torch, self._format
        return peak_operation(torch, self._device, form, operation, dtype, size)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """See :meth:`harness.protocol.Backend.is_out_of_memory`."""
        return isinstance(error, self._torch.OutOfMemoryError | MemoryError) or (
            isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)
        )

    def _is_of_compiler(self, error: RuntimeError) -> bool:
        from torch._dynamo.exc import TorchDynamoException

        return isinstance(error, TorchDynamoException) and not self.is_out_of_memory(error)

    def close(self) -> None:
        """See :meth:`harness.protocol.Backend.close`."""
        self.synchronize()

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Let the block train, then go on as if it had not."""
        before = self.state()
        kept = self._losses, self._scales_after, self._scale_before, self._poisoned
        self._losses, self._scales_after, self._poisoned = [], [], False
        yield
        self.load_state(before)
        self._losses, self._scales_after, self._scale_before, self._poisoned = kept

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._run.precision != "amp":
            return nullcontext()
        return self._torch.autocast(self._device.type, getattr(self._torch, self._run.amp_dtype))

    def _normalised(self, batch: _Batch) -> torch.Tensor:
        if batch.copied is not None:
            stream = self._torch.cuda.current_stream(self._device)
            stream.wait_event(batch.copied)
            for part in (batch.images, batch.labels):
                part.record_stream(stream)
        channels_first = batch.images.permute(0, 3, 1, 2).to(
            self._float, memory_format=self._format
        )
        return channels_first.div_(255).sub_(self._mean).div_(self._std)

    def _clip(self, bound: float) -> None:
        """Scale the gradients by min(1, bound / their global norm) (Pascanu et al. 2013)."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = self._torch.nn.utils.get_total_norm(gradients)
        self._torch._foreach_mul_(gradients, bound / norm.clamp(min=bound))

    def _poison(self) -> None:
        gradient = self._parameters[-1].grad
        assert gradient is not None
        gradient.view(-1)[0] = float("inf")
        self._poisoned = False

    def _dtype_name(self, tensor: torch.Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")
