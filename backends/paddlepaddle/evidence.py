"""In which dtypes Paddle ran a step.

An eager step is recorded layer by layer: forward, the dtypes of the kernels that Paddle counted
as it chose them (below ``auto_cast``, which casts inside the operation); backward, the dtype of
the gradient that arrived. A compiled step has no layers left; there the traced program tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from backends.paddlepaddle.device import dtype_name
from harness.networks import Network
from harness.protocol import LayerEvidence, effective_dtype

if TYPE_CHECKING:
    import paddle

# The operation in which a layer computes, by a part of its name; the rest casts and reshapes.
_COMPUTE = ("conv", "matmul", "linear", "batch_norm", "pool", "relu", "add")
_COUNTED = ("float16", "bfloat16", "float32")
"""Order of Paddle's counts; a fourth one counts all other dtypes together."""


class StepEvidence(NamedTuple):
    """What a recorded step tells; see :class:`harness.protocol.Evidence`."""

    source: str
    effective: str
    layers: dict[str, LayerEvidence]


def eager_evidence(
    paddle: ModuleType,
    network: Network,
    layers: Mapping[str, Any],
    train_step: Callable[[], None],
) -> StepEvidence:
    """Record one eager training step, layer by layer."""
    with _recorded_layers(paddle, layers) as found:
        train_step()
    return StepEvidence(
        source="kernels chosen in one training step, layer by layer",
        effective=effective_dtype(network, found),
        layers=found,
    )


def compiled_evidence(compiled: Any, train_step: Callable[[], None]) -> StepEvidence:
    """Run one training step of a ``compiled`` model and read its program."""
    train_step()
    program = compiled.forward.concrete_program.main_program
    return StepEvidence(
        source="convolutions of the traced program of the training step",
        effective=_program_convolution_dtype(program),
        layers={},
    )


@contextmanager
def _recorded_layers(
    paddle: ModuleType, layers: Mapping[str, Any]
) -> Iterator[dict[str, LayerEvidence]]:
    """Record each of ``layers`` while the block runs a forward and a backward pass."""
    core = paddle.base.core
    found: dict[str, LayerEvidence] = {}

    def enter(*_: Any) -> None:
        core.clear_low_precision_op_list()

    def leave(name: str) -> Callable[..., None]:
        def hook(_layer: Any, _inputs: Any, output: paddle.Tensor) -> None:
            chosen = _computing(core.get_low_precision_op_list(), dtype_name(output))
            core.clear_low_precision_op_list()
            if chosen is None:
                return
            found[name] = LayerEvidence(
                operation=chosen[0], compute=chosen[1], output=dtype_name(output)
            )
            if not output.stop_gradient:
                output.register_hook(arrived(name))

        return hook

    def arrived(name: str) -> Callable[[paddle.Tensor], None]:
        def hook(gradient: paddle.Tensor) -> None:
            seen = found[name]
            found[name] = LayerEvidence(
                operation=seen.operation,
                compute=seen.compute,
                output=seen.output,
                backward=dtype_name(gradient),
            )

        return hook

    hooks = [
        handle
        for name, layer in layers.items()
        for handle in (
            layer.register_forward_pre_hook(enter),
            layer.register_forward_post_hook(leave(name)),
        )
    ]
    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    try:
        yield found
    finally:
        paddle.set_flags({"FLAGS_low_precision_op_list": 0})
        for handle in hooks:
            handle.remove()


@contextmanager
def recorded_gradients(parameters: list[paddle.Tensor]) -> Iterator[set[str]]:
    """Record the dtypes in which the parameters' gradients arrive while the block runs."""
    dtypes: set[str] = set()

    def arrived(gradient: paddle.Tensor) -> None:
        dtypes.add(dtype_name(gradient))

    hooks = [parameter.register_hook(arrived) for parameter in parameters]
    try:
        yield dtypes
    finally:
        for hook in hooks:
            hook.remove()


def _program_convolution_dtype(program: Any) -> str:
    """Dtype of the operands of every convolution of a traced program; ``mixed`` if they differ."""
    found = {
        str(operand.source().dtype).rpartition(".")[2].lower()
        for operation in program.global_block().ops
        if operation.name() in ("pd_op.conv2d", "pd_op.conv2d_grad")
        for operand in operation.operands()
    }
    if not found:
        return "unknown"
    return found.pop() if len(found) == 1 else "mixed"


def _computing(counts: dict[str, str], output: str) -> tuple[str, str] | None:
    """Name and dtype of the operation that computes among those counted in one layer."""
    for part in _COMPUTE:
        for operation, numbers in counts.items():
            if part not in operation:
                continue
            *known, others = (int(number) for number in numbers.split(","))
            dtypes = [dtype for dtype, count in zip(_COUNTED, known, strict=True) if count]
            dtypes += [output] if others else []
            return operation, dtypes[0] if len(dtypes) == 1 else "mixed"
    return None
