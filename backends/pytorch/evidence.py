"""In which dtypes PyTorch ran a step: the ATen operations that it dispatched, layer by layer.

Eager steps are recorded below autocast, with the tensors that each kernel is given. A compiled
step has no layers left; there the profiler tells the dtypes of the convolutions that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.protocol import LayerEvidence

if TYPE_CHECKING:
    import torch

# Casts, views and bookkeeping: they tell nothing about the dtype in which a layer computes.
_NO_COMPUTE = frozenset(
    (
        *("_to_copy", "clone", "contiguous", "copy_", "detach", "alias"),
        *("as_strided", "expand", "t", "transpose", "unsqueeze", "view", "_unsafe_view"),
        *("empty", "empty_like", "empty_strided", "full", "ones_like", "zeros_like", "add_"),
    )
)
_PROFILER_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
}


class Operation(NamedTuple):
    """One dispatched ATen operation."""

    name: str
    layer: str
    """Canonical name of the layer that was running; empty outside the model."""
    backward: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@contextmanager
def recorded_operations(
    torch: ModuleType, modules: dict[str, torch.nn.Module]
) -> Iterator[list[Operation]]:
    """Record every ATen operation while the block runs; ``modules`` by canonical name."""
    from torch.utils._python_dispatch import TorchDispatchMode

    operations: list[Operation] = []
    running: tuple[str, bool] = ("", False)

    def dtypes(values: Any) -> tuple[str, ...]:
        flat = values if isinstance(values, (tuple, list)) else [values]
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        return tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func._schema.name.removeprefix("aten::")
            operations.append(Operation(name, *running, dtypes(args), dtypes(result)))
            return result

    def enter(layer: str, backward: bool) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            nonlocal running
            running = (layer, backward)

        return hook

    def leave(layer: str) -> Callable[..., None]:
        # The gradient of a layer's output is complete just before its backward runs.
        def hook(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
            nonlocal running
            running = ("", False)
            if output.requires_grad:
                output.register_hook(enter(layer, True))

        return hook

    hooks = [
        handle
        for layer, module in modules.items()
        for handle in (
            module.register_forward_pre_hook(enter(layer, False)),
            module.register_forward_hook(leave(layer)),
        )
    ]
    try:
        with Recorder():
            yield operations
    finally:
        for handle in hooks:
            handle.remove()


def layer_evidence(operations: list[Operation]) -> dict[str, LayerEvidence]:
    """The computing operation of each layer, forward and backward."""
    found: dict[str, LayerEvidence] = {}
    backward_compute: dict[str, str] = {}
    for operation in operations:
        layer = operation.layer
        if (
            not layer
            or operation.name in _NO_COMPUTE
            or not (operation.inputs and operation.outputs)
        ):
            continue
        if operation.backward:
            backward_compute.setdefault(layer, operation.inputs[0])
        elif layer not in found:
            found[layer] = LayerEvidence(
                operation=operation.name,
                compute=operation.inputs[0],
                output=operation.outputs[0],
            )
    return {
        layer: LayerEvidence(
            operation=seen.operation,
            compute=seen.compute,
            output=seen.output,
            backward=backward_compute.get(layer),
        )
        for layer, seen in found.items()
    }


def profiled_convolution_dtype(torch: ModuleType, step: Callable[[], None]) -> str:
    """Dtype of the operands of every convolution that ``step`` runs; ``mixed`` if they disagree."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        step()
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    return convolution_dtype(profiled.profiler.kineto_results.events())


def convolution_dtype(events: Iterable[Any]) -> str:
    """Dtype of the operands of ATen's convolutions among the profiler's ``events``."""
    # Inductor names a Triton kernel after all that it was fused from: a cast of an input in float32
    # is called triton_poi_fused__to_copy_convolution_0 and multiplies nothing.
    found = {
        event.dtypes()[0]
        for event in events
        if event.name().startswith("aten::")
        and "convolution" in event.name()
        and event.dtypes()
        and event.dtypes()[0] in _PROFILER_DTYPES
    }
    if not found:
        return "unknown"
    return _PROFILER_DTYPES[found.pop()] if len(found) == 1 else "mixed"
