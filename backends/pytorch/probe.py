"""What one forward and backward pass of a PyTorch model computes, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.protocol import LayerProbe, Probe

if TYPE_CHECKING:
    import torch

Modules = dict[str, "torch.nn.Module"]


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy in host memory; bfloat16, which NumPy lacks, becomes float32 without loss."""
    host = tensor.detach().cpu().contiguous()
    return np.array((host.float() if str(host.dtype) == "torch.bfloat16" else host).numpy())


def probe_pass(
    model: torch.nn.Module,
    modules: Modules,
    tensors: dict[str, torch.Tensor],
    loss_of: Callable[[torch.nn.Module], tuple[torch.Tensor, torch.Tensor]],
    loss_scale: float,
) -> Probe:
    """Run ``loss_of`` (model → loss, logits) and its backward, and restore the model.

    The loss is multiplied by ``loss_scale`` for the backward pass; the gradients that are
    returned are divided by it again, in float32 or wider.
    """
    outputs: dict[str, torch.Tensor] = {}

    def keep(layer: str) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
            if output.requires_grad:
                output.retain_grad()
            outputs[layer] = output

        return hook

    def unscaled(gradient: torch.Tensor) -> np.ndarray:
        values = to_numpy(gradient)
        return values.astype(np.promote_types(values.dtype, np.float32)) / loss_scale

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        with _buffers_restored(model):
            loss, logits = loss_of(model)
            (loss * loss_scale).backward()
            statistics = {
                name: to_numpy(tensor)
                for name, tensor in tensors.items()
                if name.endswith(("running_mean", "running_var"))
            }
    finally:
        for handle in handles:
            handle.remove()
    probe = Probe(
        loss=loss.item(),
        logits=to_numpy(logits),
        outputs={name: to_numpy(output) for name, output in outputs.items()},
        output_gradients={
            name: unscaled(output.grad)
            for name, output in outputs.items()
            if output.grad is not None
        },
        parameter_gradients={
            name: unscaled(tensor.grad)
            for name, tensor in tensors.items()
            if tensor.grad is not None
        },
        running_statistics=statistics,
    )
    model.zero_grad(set_to_none=True)
    return probe


def probe_module(
    module: torch.nn.Module,
    name: str,
    x: torch.Tensor,
    output_gradient: torch.Tensor,
    autocast: AbstractContextManager[Any],
) -> LayerProbe:
    """Run ``module`` alone on ``x`` and propagate ``output_gradient``; restores the module."""
    x.requires_grad_()
    with _buffers_restored(module):
        with autocast:
            output = module(x)
        output.backward(output_gradient.to(output.dtype))
    assert x.grad is not None
    gradients = {
        f"{name}.{part}": to_numpy(tensor.grad)
        for part, tensor in module.named_parameters()
        if tensor.grad is not None
    }
    module.zero_grad(set_to_none=True)
    return LayerProbe(
        output=to_numpy(output), input_gradient=to_numpy(x.grad), parameter_gradients=gradients
    )


@contextmanager
def _buffers_restored(module: torch.nn.Module) -> Iterator[None]:
    saved = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in saved:
            buffer.copy_(value)
