"""The backends by name. The core knows an adapter by its string only and imports it when used."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.protocol import Backend


@dataclass(frozen=True, kw_only=True)
class BackendEntry:
    """Where an adapter lives and how its framework is installed."""

    adapter: str
    """``module:Class``."""
    framework: str | None
    """Module that must be importable; None when the adapter needs none."""
    extra: str
    """Extra of this project that installs the framework."""


BACKENDS: dict[str, BackendEntry] = {
    "torch": BackendEntry(
        adapter="backends.pytorch.backend:TorchBackend", framework="torch", extra="torch"
    ),
    "tensorflow": BackendEntry(
        adapter="backends.tensorflow_keras.backend:TensorFlowBackend",
        framework="tensorflow",
        extra="tensorflow",
    ),
    "paddle": BackendEntry(
        adapter="backends.paddlepaddle.backend:PaddleBackend", framework="paddle", extra="paddle"
    ),
    "fake": BackendEntry(adapter="backends.fake:FakeBackend", framework=None, extra=""),
}

ARTICLE_ADAPTERS: dict[str, str] = {"torch": "torch-article"}
"""Backend → its adapter with the published experiment's loss scaler, for ``replicate`` alone."""

# Not among BACKENDS, so that no comparison can choose one.
_ARTICLE: dict[str, BackendEntry] = {
    "torch-article": BackendEntry(
        adapter="backends.pytorch.article:TorchArticleBackend", framework="torch", extra="torch"
    ),
}

COMPARED = ("torch", "tensorflow", "paddle")
"""Backends that a comparison covers unless told otherwise."""


def is_installed(name: str) -> bool:
    """Whether the framework of backend ``name`` can be imported here; imports nothing."""
    framework = _entry(name).framework
    return framework is None or importlib.util.find_spec(framework) is not None


def load_backend(name: str) -> Backend:
    """Import and construct the adapter called ``name``; this imports its framework.

    Raises:
        Unsupported: the framework is not installed in this environment.
    """
    # Here, so that the command line can name the backends without loading NumPy and pydantic.
    from harness.protocol import Unsupported

    entry = _entry(name)
    if not is_installed(name):
        raise Unsupported(
            f"{entry.framework} is not installed in this environment; "
            f"install it with: pip install 'amp-harness[{entry.extra}]'"
        )
    module, _, attribute = entry.adapter.partition(":")
    return getattr(importlib.import_module(module), attribute)()


def _entry(name: str) -> BackendEntry:
    return _ARTICLE[name] if name in _ARTICLE else BACKENDS[name]
