"""``python -m harness env``: one environment per framework, where the other commands find it."""

from __future__ import annotations

import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from harness.exits import EXIT_FAILED, fail
from harness.interpreters import environment_python
from harness.registry import BACKENDS, COMPARED

Command = tuple[str, ...]
Runner = Callable[[Command], int]
"""Runs a command line and returns its exit code."""

_TORCH_CPU = ("--index-url", "https://download.pytorch.org/whl/cpu")
_PADDLE_CUDA = ("--index-url", "https://www.paddlepaddle.org.cn/packages/stable/cu126/")

REQUIREMENTS: Final[dict[tuple[str, str], Command]] = {
    ("torch", "cpu"): ("torch>=2.5", *_TORCH_CPU),
    ("torch", "cuda"): ("torch>=2.5",),
    ("tensorflow", "cpu"): ("tensorflow-cpu>=2.18",),
    ("tensorflow", "cuda"): ("tensorflow[and-cuda]>=2.18",),
    ("paddle", "cpu"): ("paddlepaddle>=3.0",),
    ("paddle", "cuda"): ("paddlepaddle-gpu>=3.0", *_PADDLE_CUDA),
}
"""What pip is to install, by backend and device: the plain package is not the right one everywhere.

torch's is a CUDA build of several GB on Linux, TensorFlow's leaves out the CUDA libraries, and
Paddle's has no CUDA at all.
"""


@click.command()
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice(COMPARED),
    help="Framework; repeatable.  [torch, tensorflow, paddle]",
)
@click.option("--print", "show", is_flag=True, help="Only show which environments there are.")
@click.option(
    "--cuda/--cpu", default=None, help="Builds for a GPU or without.  [a GPU's where there is one]"
)
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
def env(backends: tuple[str, ...], show: bool, cuda: bool | None, dry_run: bool) -> None:
    """Make an environment .venv-BACKEND for each framework in the current folder.

    The other commands find it by its name. What is there is completed where the framework is
    missing, and never deleted.
    """
    from harness.gpu import has_gpu

    folder = Path.cwd()
    chosen = tuple(dict.fromkeys(backends)) or COMPARED
    if show:
        for backend in chosen:
            click.echo(f"{backend}: {describe(backend, folder=folder)}")
        return
    device = "cuda" if (has_gpu() if cuda is None else cuda) else "cpu"
    run = _print_command if dry_run else _run_command
    for backend in chosen:
        if is_ready(backend, folder=folder):
            click.echo(f"{backend}: {describe(backend, folder=folder)}; left as it is")
            continue
        failed = make(backend, device, folder=folder, project=_project(), uv=find_uv(), run=run)
        if failed is not None:
            fail(
                f"this failed for {backend}: {shlex.join(failed)}; mend what it told and run the "
                "same command again: it goes on from here",
                EXIT_FAILED,
            )
        if not dry_run:
            click.echo(f"{backend}: {describe(backend, folder=folder)}")


def make(
    backend: str, device: str, *, folder: Path, project: Path, uv: Command | None, run: Runner
) -> Command | None:
    """Run the commands of :func:`commands`; returns the one that failed, None if none did."""
    for command in commands(backend, device, folder=folder, project=project, uv=uv):
        if run(command) != 0:
            return command
    return None


def commands(
    backend: str, device: str, *, folder: Path, project: Path, uv: Command | None
) -> Iterator[Command]:
    """The command lines that make the environment of ``backend``, or complete it.

    Args:
        device: cpu or cuda.
        folder: where ``.venv-<backend>`` is to lie.
        project: this project's checkout.
        uv: how uv is called; None: use venv and pip.
    """
    target = folder / f".venv-{backend}"
    if environment_python(backend, folder=folder) is None:
        make_one = (*uv, "venv", "--python", sys.executable) if uv else _module("venv")
        yield (*make_one, str(target))
    if uv:
        install = (*uv, "pip", "install", "--python", str(target))
    else:
        place = "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
        install = (str(target / place), "-m", "pip", "install")
    yield (*install, "-e", str(project))
    # By itself, because an index of its own must not serve the other packages.
    yield (*install, *_requirement(backend, device))


def is_ready(backend: str, *, folder: Path) -> bool:
    """Whether the environment of ``backend`` is there and has its framework; imports nothing."""
    python = environment_python(backend, folder=folder)
    framework = BACKENDS[backend].framework
    if python is None or framework is None:
        return False
    ask = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({framework!r}) is None)"
    return subprocess.run([str(python), "-c", ask], check=False, timeout=60).returncode == 0


def describe(backend: str, *, folder: Path) -> str:
    """Where the environment of ``backend`` is, in words."""
    python = environment_python(backend, folder=folder)
    if python is None:
        return f"no .venv-{backend} here; {sys.executable} is used"
    complete = (
        "" if is_ready(backend, folder=folder) else f" (without {BACKENDS[backend].framework})"
    )
    return f"{python}{complete}"


def find_uv() -> Command | None:
    """How uv is called here; None where it is not installed."""
    if path := shutil.which("uv"):
        return (path,)
    return _module("uv") if importlib.util.find_spec("uv") else None


def _module(name: str) -> Command:
    return (sys.executable, "-m", name)


def _requirement(backend: str, device: str) -> Command:
    command = REQUIREMENTS[backend, device]
    x86_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    if command[0].startswith("tensorflow-cpu") and not x86_linux:
        # It is built for x86-64 alone; the plain package has no CUDA in it elsewhere.
        return (command[0].replace("-cpu", ""),)
    return command


def _project() -> Path:
    root = Path(__file__).resolve().parents[1]
    if not (root / "pyproject.toml").is_file():
        raise click.UsageError(
            "environments are made from a checkout of this project, and this copy is installed; "
            "run it in the folder of the checkout"
        )
    return root


def _print_command(command: Sequence[str]) -> int:
    click.echo(shlex.join(command))
    return 0


def _run_command(command: Sequence[str]) -> int:
    click.echo(f"+ {shlex.join(command)}", err=True)
    return subprocess.run(command, check=False).returncode
