"""``python -m harness env``: one environment per framework, where the other commands find it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from harness.interpreters import environment_python
from harness.registry import BACKENDS, COMPARED

Command = tuple[str, ...]
Runner = Callable[[Command], int]
"""Runs a command line and returns its exit code."""

_PADDLE_CUDA_INDEX: Final = "https://www.paddlepaddle.org.cn/packages/stable/cu126/"
_TORCH_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"

# The plain package of a framework is not everywhere the right one: torch's is a CUDA build of
# several GB on Linux, TensorFlow's needs its CUDA libraries named, Paddle's has none at all.
_REQUIREMENTS: Final[dict[tuple[str, str], Command]] = {
    ("torch", "cpu"): ("torch>=2.5", "--extra-index-url", _TORCH_CPU_INDEX),
    ("torch", "cuda"): ("torch>=2.5",),
    ("tensorflow", "cpu"): ("tensorflow-cpu>=2.18",),
    ("tensorflow", "cuda"): ("tensorflow[and-cuda]>=2.18",),
    ("paddle", "cpu"): ("paddlepaddle>=3.0",),
    ("paddle", "cuda"): ("paddlepaddle-gpu>=3.0", "--extra-index-url", _PADDLE_CUDA_INDEX),
}


class EnvironmentFailed(Exception):
    """A command that makes an environment failed: which, and what to do."""
