"""A model as one static program, and what is said where Paddle cannot make one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from backends.paddlepaddle.device import first_line, is_out_of_memory
from harness.protocol import Unsupported

if TYPE_CHECKING:
    import paddle


def compiler(paddle: ModuleType) -> str:
    """What :func:`compile_model` compiles with: ``cinn`` or ``static graph``."""
    return "cinn" if paddle.is_compiled_with_cinn() else "static graph"


def compile_model(paddle: ModuleType, model: paddle.nn.Layer) -> paddle.nn.Layer:
    """The model as one static program, traced at its first call; ``model`` itself stays eager."""

    # to_static rewrites the layer that it is given.
    class Compiled(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return self.model(x)

    backend = "CINN" if paddle.is_compiled_with_cinn() else None
    return paddle.jit.to_static(Compiled(), backend=backend, full_graph=True)


@contextmanager
def refused_if_it_fails(paddle: ModuleType, name: str) -> Iterator[None]:
    """Raise :class:`Unsupported` where the block cannot compile or run ``name``."""
    with warnings.catch_warnings():  # the translation warns of its own calls
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise Unsupported(
                f"paddle.jit.to_static ({compiler(paddle)}) cannot run {name} "
                f"on {paddle.get_device()}: {first_line(error)}; use --compile off"
            ) from error
