"""PyTorch: ``torch.amp.autocast`` with one ``GradScaler``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from backends.torch_evidence import (
    layer_evidence,
    profiled_convolution_dtype,
    recorded_operations,
)
from backends.torch_network import build_module
from harness.config import RunConfig
from harness.networks import Network
from harness.protocol import (
    CHANNEL_MEAN,
    CHANNEL_STD,
    Capabilities,
    Capability,
    DeviceMemory,
    DeviceType,
    Evidence,
    InForce,
    LayerEvidence,
    StepResult,
    TrainState,
    Unsupported,
    effective_dtype,
)
from harness.weights import Weights

if TYPE_CHECKING:
    import torch

_SLOTS = {
    "exp_avg": "first_moment",
    "exp_avg_sq": "second_moment",
    "momentum_buffer": "momentum",
}


class _Batch(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor
    copied: torch.cuda.Event | None


class TorchBackend:
    """Eager PyTorch (or Inductor with ``compile=on``) on the CPU or one CUDA device."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def capabilities(self) -> Capabilities:
        """Run a convolution in each dtype on each device."""
        devices: list[DeviceType] = ["cpu", "cuda"] if self._torch.cuda.is_available() else ["cpu"]
        dtypes = ("float32", "float16", "bfloat16", "float64")
        return {device: {dtype: self._try(device, dtype) for dtype in dtypes} for device in devices}

    def open(self, run: RunConfig) -> InForce:
        """See :meth:`harness.protocol.Backend.open`."""
        torch = self._torch
        self._run = run
        self._device = self._choose_device(run.device)
        on_cuda = self._device.type == "cuda"
        dtype = {"fp32": "float32", "float64": "float64"}.get(run.precision, run.amp_dtype)
        self._float = torch.float64 if run.precision == "float64" else torch.float32
        capability = self._try(self._device.type, dtype)
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
            torch.cuda.reset_peak_memory_stats(self._device)
        properties = torch.cuda.get_device_properties(self._device) if on_cuda else None
        return InForce(
            framework_version=torch.__version__,
            device_type=self._device.type,
            device_name=properties.name if properties else "CPU",
            device_uuid=f"GPU-{properties.uuid}" if properties else None,
            layout="nhwc" if run.layout == "nhwc" else "nchw",
            compile="inductor" if run.compile == "on" else "eager",
            threads=torch.get_num_threads(),
            tf32=torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
            if on_cuda
            else None,
            loss_scale_policy=str(run.loss_scale) if run.scales_loss else None,
        )

    def build(self, network: Network, weights: Weights) -> None:
        """See :meth:`harness.protocol.Backend.build`."""
        torch, run = self._torch, self._run
        self._network = network
        model, self._modules = build_module(torch, network)
        self._model = model.to(self._device, self._float, memory_format=self._format)
        self._tensors = {
            f"{layer}.{part}": tensor
            for layer, module in self._modules.items()
            for part, tensor in (
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            )
            if part != "num_batches_tracked"
        }
        self._load(self._tensors, weights)
        self._forward = torch.compile(self._model) if run.compile == "on" else self._model
        self._parameters = [*self._model.parameters()]
        shared = {"lr": run.lr, "weight_decay": run.weight_decay, "fused": True}
        if run.optimizer == "adam":
            self._optimizer = torch.optim.Adam(
                self._parameters, betas=(0.9, 0.999), eps=1e-8, **shared
            )
        else:
            self._optimizer = torch.optim.SGD(self._parameters, momentum=run.momentum, **shared)
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
        self._model.train()

    def put(self, images: np.ndarray, labels: np.ndarray) -> _Batch:
        """See :meth:`harness.protocol.Backend.put`."""
        torch = self._torch
        host = torch.from_numpy(images), torch.from_numpy(labels)
        if self._copy_stream is None:
            return _Batch(*host, copied=None)
        # A stream of its own lets the copy run beside the step that the default stream is busy with.
        with torch.cuda.stream(self._copy_stream):
            on_device = [part.pin_memory().to(self._device, non_blocking=True) for part in host]
            return _Batch(*on_device, copied=self._copy_stream.record_event())

    def train_step(self, batch: _Batch) -> None:
        """See :meth:`harness.protocol.Backend.train_step`."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._forward, batch)
        self._scaler.scale(loss).backward()
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

    def state(self) -> TrainState:
        """See :meth:`harness.protocol.Backend.state`."""
        slots: dict[str, Weights] = {}
        steps = 0
        for name, tensor in self._tensors.items():
            for key, value in self._optimizer.state.get(tensor, {}).items():
                if key in _SLOTS and value is not None:
                    slots.setdefault(_SLOTS[key], {})[name] = self._to_numpy(value)
                elif key == "step":
                    steps = int(value)
        scaler = self._scaler.state_dict()
        return TrainState(
            tensors={name: self._to_numpy(tensor) for name, tensor in self._tensors.items()},
            slots=slots,
            optimizer_steps=steps,
            loss_scale=scaler.get("scale"),
            clean_steps=scaler.get("_growth_tracker"),
        )

    def load_state(self, state: TrainState) -> None:
        """See :meth:`harness.protocol.Backend.load_state`."""
        torch = self._torch
        self._load(self._tensors, state.tensors)
        self._optimizer.state.clear()
        native = {neutral: key for key, neutral in _SLOTS.items()}
        for slot, values in state.slots.items():
            for name, value in values.items():
                tensor = self._tensors[name]
                entry = self._optimizer.state[tensor]
                entry[native[slot]] = torch.empty_like(tensor).copy_(torch.from_numpy(value))
                if self._run.optimizer == "adam":
                    entry["step"] = torch.tensor(
                        float(state.optimizer_steps), device=self._device, dtype=torch.float32
                    )
        if state.loss_scale is not None:
            scaler = self._scaler.state_dict()
            scaler |= {"scale": state.loss_scale, "_growth_tracker": state.clean_steps}
            self._scaler.load_state_dict(scaler)
            self._scale_before = state.loss_scale

    def evidence(self, batch: _Batch) -> Evidence:
        """Record the ATen operations of one whole training step."""
        before = self.state()
        layers: dict[str, LayerEvidence] = {}
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
        self.take_steps()
        self.load_state(before)
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

    def is_out_of_memory(self, error: BaseException) -> bool:
        """See :meth:`harness.protocol.Backend.is_out_of_memory`."""
        # The CPU allocator raises a plain RuntimeError; its text is all there is to tell by.
        return isinstance(error, self._torch.OutOfMemoryError | MemoryError) or (
            isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        )

    def close(self) -> None:
        """See :meth:`harness.protocol.Backend.close`."""
        self.synchronize()

    def _choose_device(self, wanted: str) -> torch.device:
        torch = self._torch
        if wanted == "auto":
            wanted = "cuda" if torch.cuda.is_available() else "cpu"
        if wanted == "cpu":
            return torch.device("cpu")
        device = torch.device(wanted if ":" in wanted else f"{wanted}:0")
        if not torch.cuda.is_available():
            build = torch.version.cuda
            raise Unsupported(
                f"torch {torch.__version__} finds no CUDA device: "
                + (
                    f"it is built for CUDA {build}, so the driver or the GPU is missing (see nvidia-smi)"
                    if build
                    else "it is a CPU build; install a CUDA build of torch, or use --device cpu"
                )
            )
        if (device.index or 0) >= torch.cuda.device_count():
            raise Unsupported(
                f"there is no {wanted}: torch sees {torch.cuda.device_count()} CUDA device(s)"
            )
        return device

    def _try(self, device: str, dtype: str) -> Capability:
        torch = self._torch
        kind = getattr(torch, dtype)
        image, kernel = torch.ones(1, 1, 4, 4, device=device), torch.ones(1, 1, 3, 3, device=device)
        low = dtype in ("float16", "bfloat16")
        try:
            with torch.autocast(device, kind, enabled=low), torch.no_grad():
                if not low:
                    image, kernel = image.to(kind), kernel.to(kind)
                result = torch.nn.functional.conv2d(image, kernel)
        except RuntimeError as error:
            return Capability(available=False, reason=str(error).splitlines()[0])
        if result.dtype != kind:
            return Capability(available=False, reason=f"a convolution came out as {result.dtype}")
        return Capability(available=True)

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

    def _loss(self, model: Any, batch: _Batch) -> torch.Tensor:
        images = self._normalised(batch)
        with self._autocast():
            return self._torch.nn.functional.cross_entropy(model(images), batch.labels)

    def _clip(self, bound: float) -> None:
        """Scale the gradients by min(1, bound / their global norm) (Pascanu et al. 2013)."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = self._torch.nn.utils.get_total_norm(gradients)
        self._torch._foreach_mul_(gradients, bound / norm.clamp(min=bound))

    def _load(self, into: dict[str, torch.Tensor], values: Weights) -> None:
        with self._torch.no_grad():
            for name, value in values.items():
                into[name].copy_(self._torch.from_numpy(value))

    def _dtype_name(self, tensor: torch.Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def _to_numpy(self, tensor: torch.Tensor) -> np.ndarray:
        return np.array(tensor.detach().cpu().contiguous().numpy())
