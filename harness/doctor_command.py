"""``python -m harness doctor``: what runs here, what does not and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness.options import backends_option, interpreters, python_option, usage_error
from harness.registry import COMPARED

if TYPE_CHECKING:
    from rich.console import Console

    from harness.doctor import Diagnosis, Framework, PeakResult
    from harness.machine import Machine


@click.command()
@backends_option
@click.option(
    "--measure-peak",
    is_flag=True,
    help="Also measure how fast each framework multiplies matrices in each precision, and keep it: "
    "reports then tell which share of it a training reached.",
)
@click.option("--device", default="auto", show_default=True, help="Where peaks are measured.")
@click.option("--threads", type=int, metavar="N", help="CPU threads of that.  [all usable]")
@python_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(
    backends: tuple[str, ...],
    measure_peak: bool,
    device: str,
    threads: int | None,
    python: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tell what runs on this machine, what does not and why, and what would improve its figures."""
    from pydantic import ValidationError

    from datasets.places import cache_root
    from harness.doctor import diagnose, measure_peaks
    from harness.peaks import peaks_file

    chosen = tuple(dict.fromkeys(backends)) or COMPARED

    def on_step(what: str) -> None:
        click.echo(f"looking at: {what}", err=True)

    found = diagnose(interpreters(chosen, python), cache_dir=cache_root(None), on_step=on_step)
    if measure_peak:
        file = peaks_file()
        try:
            peaks = measure_peaks(
                found.frameworks, device=device, threads=threads, file=file, on_step=on_step
            )
        except ValidationError as error:
            raise usage_error(error) from error
        found = found.model_copy(update={"peaks": peaks})
    if as_json:
        click.echo(found.model_dump_json())
    else:
        _print(found)


def _print(found: Diagnosis) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    _print_pairs(console, _machine_rows(found))
    _print_frameworks(console, found.frameworks)
    if found.peaks:
        _print_peaks(console, found.peaks)
    if found.tips:
        console.print("\n[bold]tips[/bold]")
    for tip in found.tips:
        console.print(f"- {tip}", markup=False)


def _machine_rows(found: Diagnosis) -> list[tuple[str, str]]:
    machine = found.machine
    memory = f"{machine.memory_bytes / 2**30:.1f} GiB, {machine.memory_available_bytes / 2**30:.1f}"
    rows = [
        ("CPU", machine.cpu),
        ("units", _listed(machine.cpu_features, "none that matters")),
        ("CPUs", f"{machine.cpus_usable} usable of {machine.cpus or '?'}"),
        ("limits", _limits(machine)),
        (
            "background",
            "?" if found.background_cpus is None else f"{found.background_cpus:.2f} CPUs",
        ),
        ("governor", machine.governor or "not told"),
        ("huge pages", machine.huge_pages or "not told"),
        ("memory", f"{memory} free"),
        ("cache", f"{machine.cache_dir}, {machine.cache_free_bytes / 1e9:.0f} GB free"),
    ]
    driver = f"{machine.gpu_driver}, CUDA {machine.cuda_driver}" if machine.gpu_driver else "none"
    rows.append(("NVIDIA driver", driver))
    for gpu in machine.gpus:
        size = "?" if gpu.total_bytes is None else f"{gpu.total_bytes / 2**30:.0f} GiB"
        rows.append(("GPU", f"{gpu.name}, {size}, {gpu.uuid}"))
    rows += [
        ("energy", f"{counter.device}: {counter.source or counter.reason}")
        for counter in found.energy
    ]
    return rows


def _limits(machine: Machine) -> str:
    limits = machine.limits
    parts = [] if limits.cpus is None else [f"{limits.cpus:g} CPUs"]
    if limits.memory_bytes is not None:
        parts.append(f"{limits.memory_bytes / 2**30:.1f} GiB")
    return " and ".join(parts) or "none set by a control group"


def _listed(names: list[str] | None, none: str) -> str:
    return "not told" if names is None else ", ".join(names) or none


def _print_pairs(console: Console, rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(f"{name:{width}}  {value}", markup=False)


def _print_frameworks(console: Console, frameworks: list[Framework]) -> None:
    for framework in frameworks:
        title = framework.version or f"does not load: {framework.reason}"
        console.print(f"\n[bold]{framework.backend}[/bold]")
        console.print(f"  {title}", markup=False)
        console.print(f"  {framework.python}, {framework.threads or '?'} threads", markup=False)
        for device, dtypes in framework.devices.items():
            for dtype, capability in dtypes.items():
                verdict = "works" if capability.available else f"no: {capability.reason}"
                console.print(f"  {device:5} {dtype:9} {verdict}", markup=False)


def _print_peaks(console: Console, peaks: list[PeakResult]) -> None:
    console.print("\n[bold]peaks[/bold]")
    for result in peaks:
        told = result.reason or ""
        if result.peak is not None:
            rate = result.peak.flops_per_s / 1e9
            told = f"{rate:,.1f} GFLOP/s, {result.peak.operation}"
        console.print(
            f"  {result.backend:11} {result.device:5} {result.dtype:9} {told}", markup=False
        )
