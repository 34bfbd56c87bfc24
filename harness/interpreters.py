"""Which Python runs a backend's workers: each framework may have an environment of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from harness.registry import BACKENDS


def choose_interpreters(
    backends: Iterable[str], given: Iterable[str], *, folder: Path
) -> dict[str, str]:
    """Backend → interpreter.

    What ``given`` names (``torch=/path/to/python``) comes first, then ``.venv-<backend>`` in
    ``folder``, then the interpreter that is running.

    Raises:
        ValueError: an item of ``given`` names no backend or no file.
    """
    chosen = {}
    for item in given:
        backend, _, path = item.partition("=")
        if backend in BACKENDS and path and not Path(path).is_file():
            raise ValueError(f"--python {item}: there is no file {path}")
        if backend not in BACKENDS or not path:
            raise ValueError(
                f"--python {item}: give BACKEND=PATH with the path of an interpreter, such as "
                "torch=.venv-torch/bin/python"
            )
        chosen[backend] = str(Path(path).absolute())
    for backend in backends:
        own = environment_python(backend, folder=folder)
        chosen.setdefault(backend, sys.executable if own is None else str(own))
    return chosen


def environment_python(backend: str, *, folder: Path) -> Path | None:
    """The interpreter of ``.venv-<backend>`` in ``folder``; None where there is none."""
    for own in (f".venv-{backend}/bin/python", f".venv-{backend}/Scripts/python.exe"):
        if (folder / own).is_file():
            # Not resolved: an environment's interpreter is a link that must stay one.
            return (folder / own).absolute()
    return None
