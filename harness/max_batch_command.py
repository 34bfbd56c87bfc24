"""``python -m harness max-batch``: how much larger a batch mixed precision allows."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.exits import EXIT_FAILED, EXIT_UNAVAILABLE, interruption_keeps
from harness.options import (
    MODELS,
    Folder,
    backends_option,
    interpreters,
    python_option,
    usage_error,
)
from harness.registry import COMPARED
from harness.terminal import stdout

if TYPE_CHECKING:
    from rich.table import Table

    from harness.config import RunConfig
    from harness.max_batch_result import MaxBatch, MaxBatchStudy, Trial

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNKNOWN = "–"


class ByteSize(click.ParamType[int]):
    """A number of bytes such as ``2G`` or ``1500M``; the units are powers of 1024."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the text of the command line."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(
            r"(\d{1,12}(?:\.\d{1,6})?)([KMGT])(?:i?B)?", value.strip(), re.A | re.I
        )
        if found is None:
            self.fail(f"{value!r} is not understood; give a number with its unit, as 1500M or 2G")
        return int(float(found[1]) * _UNITS[found[2].upper()])


@click.command("max-batch")
@backends_option
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["fp32", "amp"]),
    help="Precision; repeatable.  [fp32, amp]",
)
@click.option(
    "--memory-limit",
    type=ByteSize(),
    metavar="SIZE",
    help="Resident memory of the whole process, as 2G or 1500M; needed on a CPU.",
)
@click.option(
    "--step",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="How closely the largest batch is found.  [1/16 of it]",
)
@click.option("--model", type=click.Choice(MODELS), default="resnet18", show_default=True)
@click.option("--image-size", default=64, show_default=True, help="Side of the images.")
@click.option("--optimizer", type=click.Choice(["adam", "sgd"]), default="adam", show_default=True)
@click.option(
    "--amp-dtype", type=click.Choice(["float16", "bfloat16"]), default="float16", show_default=True
)
@click.option("--device", default="auto", show_default=True, help="As for a run.")
@click.option("--layout", default="default", show_default=True, help="As for a run.")
@click.option("--compile", default="default", show_default=True, help="As for a run.")
@click.option("--threads", type=int, help="CPU threads.  [all usable]")
@click.option(
    "--timeout",
    "timeout_s",
    default=1800.0,
    show_default=True,
    help="Seconds of silence after which a trial is killed.",
)
@click.option(
    "--out", type=Folder(), metavar="DIR", help="Where the result goes.  [runs/max-batch-TIME]"
)
@python_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
def max_batch(
    backends: tuple[str, ...],
    precisions: tuple[str, ...],
    memory_limit: int | None,
    step: int | None,
    out: str | None,
    python: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Find the largest batch that fits into memory, with AMP off and on.

    Each batch is tried in a process of its own, which may die of it. On a CPU the limit holds for
    the resident memory of the whole process; on a GPU it is the device's memory.
    """
    from harness.max_batch import find_max_batch
    from harness.max_batch_result import FILE_NAME
    from harness.record_files import write_json

    chosen = tuple(dict.fromkeys(backends)) or COMPARED
    pythons = interpreters(chosen, python)
    runs = [
        _configure(options, backend=backend, precision=precision)
        for backend in chosen
        for precision in tuple(dict.fromkeys(precisions)) or ("fp32", "amp")
    ]
    _check_limit(memory_limit, device=runs[0].device)
    directory = Path(out or f"runs/max-batch-{datetime.now():%Y%m%d-%H%M%S}")
    if (directory / FILE_NAME).exists():
        raise click.UsageError(
            f"{directory / FILE_NAME} holds a result already; name another folder with --out"
        )
    study = _study(runs[0], memory_limit)
    file = directory / FILE_NAME
    with interruption_keeps(file, f"what was found lies in {file}"):
        directory.mkdir(parents=True, exist_ok=True)
        for run in runs:
            click.echo(f"{run.arm}: starting", err=True)
            cell = find_max_batch(
                run,
                python=pythons[run.backend],
                log=directory / "worker.log",
                limit_bytes=memory_limit,
                step=step,
                on_trial=_tell_trial,
            )
            study.cells.append(cell)
            write_json(directory / FILE_NAME, study)
    if as_json:
        click.echo(study.model_dump_json())
    else:
        _print(study, directory / FILE_NAME)
    statuses = [cell.status for cell in study.cells]
    if "failed" in statuses:
        sys.exit(EXIT_FAILED)
    sys.exit(EXIT_UNAVAILABLE if statuses == ["unavailable"] else 0)


def _configure(options: dict[str, Any], **fixed: Any) -> RunConfig:
    from pydantic import ValidationError

    from harness.config import RunConfig
    from harness.gpu import has_gpu
    from harness.inputs import SYNTHETIC_CLASSES
    from harness.networks import build_network

    given = {name: value for name, value in options.items() if value is not None}
    if given["device"] == "auto":
        given["device"] = "cuda" if has_gpu() else "cpu"
    trial = {"steps": 2, "warmup_steps": 1, "input": "synthetic", "diagnose": False}
    try:
        run = RunConfig.model_validate(given | trial | fixed)
        build_network(run.model, classes=SYNTHETIC_CLASSES, image_size=run.image_size)
    except ValidationError as error:
        raise usage_error(error) from error
    except ValueError as error:
        raise click.UsageError(f"--image-size: {error}") from error
    return run


def _check_limit(limit_bytes: int | None, *, device: str) -> None:
    """Refuse a limit that is missing, cannot be enforced, or would not protect the machine.

    Raises:
        click.UsageError: with the remedy.
    """
    import psutil

    if device != "cpu":
        if limit_bytes is not None:
            raise click.UsageError(
                "--memory-limit holds for host memory; on a GPU the device's own memory is the "
                "limit: leave it out, or add --device cpu"
            )
        return
    available = psutil.virtual_memory().available
    if limit_bytes is None:
        raise click.UsageError(
            "on a CPU give --memory-limit, such as 2G: without one the trials would take the "
            f"machine's memory until it fails ({_mib(available)} are available)"
        )
    if limit_bytes > available:
        raise click.UsageError(
            f"--memory-limit: {_mib(limit_bytes)} are more than the {_mib(available)} that are "
            "available on this machine; choose less"
        )


def _study(run: RunConfig, limit_bytes: int | None) -> MaxBatchStudy:
    import harness
    from harness.environment import describe_environment
    from harness.inputs import SYNTHETIC_CLASSES
    from harness.max_batch import TRIAL_VARIABLES
    from harness.max_batch_result import MaxBatchStudy

    return MaxBatchStudy(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        harness_version=harness.__version__,
        command=shlex.join(["python", "-m", "harness", *sys.argv[1:]]),
        model=run.model,
        image_size=run.image_size,
        classes=SYNTHETIC_CLASSES,
        optimizer=run.optimizer,
        device=run.device,
        memory_limit_bytes=limit_bytes,
        trial_variables=TRIAL_VARIABLES,
        environment=describe_environment(),
    )


def _tell_trial(run: RunConfig, trial: Trial) -> None:
    peak = "" if trial.peak_bytes is None else f", peak {_mib(trial.peak_bytes)}"
    ended = "fits" if trial.fits else f"does not fit: {trial.reason}"
    click.echo(f"{run.arm}: batch {trial.batch_size:,}{peak}: {ended}", err=True)


def _print(study: MaxBatchStudy, path: Path) -> None:
    from rich.text import Text

    console = stdout()
    limit = "" if study.memory_limit_bytes is None else f", limit {_mib(study.memory_limit_bytes)}"
    console.print(
        f"{study.model}, {study.image_size} px, {study.optimizer}, {study.device}{limit}",
        highlight=False,
    )
    console.print(_table(study.cells))
    for cell in study.cells:
        if note := _note(cell):
            style = {"ok": "", "unavailable": "yellow", "failed": "bold red"}[cell.status]
            console.print(Text(f"{cell.backend} {cell.dtype}: {note}", style=style))
    if study.device == "cpu":
        variables = " ".join(f"{name}={value}" for name, value in study.trial_variables.items())
        console.print(
            f"The trials ran with {variables}; without it the C library keeps freed memory, and a "
            "run needs more.",
            highlight=False,
        )
    console.print(f"result: {path}", highlight=False, soft_wrap=True)


def _table(cells: list[MaxBatch]) -> Table:
    from rich.table import Table

    from harness.max_batch_result import gains

    gain = gains(cells)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("backend", "dtype"):
        table.add_column(heading)
    figures = ("batch", "step", "gain", "peak MiB", "KiB/img", "est.", "off", "est. KiB")
    for heading in figures:
        table.add_column(heading, justify="right")
    for cell in cells:
        pays = cell.precision == "amp" and cell.backend in gain
        table.add_row(
            cell.backend,
            cell.dtype,
            _count(cell.largest_batch),
            _count(cell.batch_step),
            f"×{gain[cell.backend]:.2f}" if pays else "",
            _count(None if cell.peak_bytes is None else cell.peak_bytes / 2**20),
            _kib(cell.bytes_per_image),
            _count(cell.estimated_batch),
            _UNKNOWN if cell.estimate_off is None else f"{cell.estimate_off:+.0%}",
            _kib(cell.estimated_bytes_per_image),
        )
    return table


def _note(cell: MaxBatch) -> str:
    """What a reader must know beside the figures of a cell."""
    if cell.status != "ok":
        return f"{cell.status}: {cell.reason}"
    if cell.largest_batch is None:
        last = cell.trials[-1].reason if cell.trials else None
        return f"not even a batch of two fits ({last}); raise --memory-limit"
    return cell.reason or ""


def _mib(value_bytes: int) -> str:
    return f"{value_bytes / 2**20:,.0f} MiB"


def _kib(value_bytes: float | None) -> str:
    return _count(None if value_bytes is None else value_bytes / 2**10)


def _count(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"
