"""``python -m harness parity`` and ``drill``: is it the same experiment, and does scaling hold?"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.exits import EXIT_FAILED
from harness.options import MODELS, backends_option, interpreters, python_option, usage_error
from harness.registry import COMPARED
from harness.terminal import stdout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.config import RunConfig
    from harness.drill import Finding
    from harness.equality_cost import EqualityCost
    from harness.parity import ParityPlan, ParityRow


def _proof_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that both proofs share."""
    options = [
        backends_option,
        click.option("--image-size", default=32, show_default=True, help="Side of the images."),
        click.option("--batch-size", default=8, show_default=True, help="Images in a step."),
        click.option("--seed", default=0, show_default=True, help="Of weights and batches."),
        click.option("--device", default="auto", show_default=True, help="As for a run."),
        click.option("--layout", default="default", show_default=True, help="As for a run."),
        click.option("--compile", default="default", show_default=True, help="As for a run."),
        click.option("--threads", type=int, help="CPU threads.  [all usable]"),
        python_option,
        click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(MODELS),
    help="Network; repeatable.  [resnet18]",
)
@click.option(
    "--amp-dtype", type=click.Choice(["float16", "bfloat16"]), default="float16", show_default=True
)
@click.option("--tf32/--no-tf32", default=False, help="TF32 in the timed configuration.  [no]")
@click.option(
    "--lr",
    default=1e-3,
    show_default=True,
    help="Of the compared steps; smaller for deep networks, whose training is chaotic.",
)
@click.option(
    "--optimizer",
    "optimizers",
    multiple=True,
    type=click.Choice(["adam", "sgd"]),
    help="Whose steps are compared; repeatable.  [adam, sgd]",
)
@click.option(
    "--cost", is_flag=True, help="Also measure what equality costs: native ÷ equal images/s."
)
@_proof_options
def parity(
    models: tuple[str, ...],
    optimizers: tuple[str, ...],
    cost: bool,
    backends: tuple[str, ...],
    python: tuple[str, ...],
    as_json: bool,
    **run: Any,
) -> None:
    """Prove that the frameworks train the same network by the same rules.

    Compares every framework with a float64 reference: logits, layer outputs, gradients, running
    statistics and trained weights in float64; each layer alone in the configuration that is timed.
    Exits 1 if anything differs by more than its tolerance.
    """
    from harness.parity import RECIPES, ParityPlan, check_parity

    chosen = tuple(dict.fromkeys(backends)) or COMPARED
    plan = ParityPlan(
        backends=chosen,
        models=tuple(dict.fromkeys(models)) or ("resnet18",),
        base=_configure(backend=chosen[0], **run),
        pythons=interpreters(chosen, python),
        recipes=tuple(
            recipe for recipe in RECIPES if not optimizers or recipe.optimizer in optimizers
        ),
    )
    rows = list(check_parity(plan, on_trial=lambda text: click.echo(text, err=True)))
    costs = list(_costs(plan)) if cost else []
    if as_json:
        told = [dataclasses.asdict(row) for row in rows]
        costs_told = [dataclasses.asdict(item) for item in costs]
        click.echo(json.dumps({"rows": told, "costs": costs_told} if cost else told))
    else:
        _print_parity(rows)
        for item in costs:
            click.echo(_cost_sentence(item))
    sys.exit(EXIT_FAILED if any(row.verdict == "fail" for row in rows) else 0)


def _costs(plan: ParityPlan) -> Iterator[EqualityCost]:
    from harness.equality_cost import equality_cost

    for backend in plan.backends:
        base = plan.base.model_copy(update={"backend": backend, "model": plan.models[0]})
        yield equality_cost(
            base, python=plan.pythons[backend], on_pair=lambda text: click.echo(text, err=True)
        )


def _cost_sentence(cost: EqualityCost) -> str:
    if cost.speedup is None:
        return f"{cost.backend}: native ÷ equal images/s not measured: {cost.reason}"
    return (
        f"{cost.backend}: native ÷ equal images/s {cost.speedup.ratio:.3f} {cost.speedup.shown} "
        f"(fp32, {len(cost.speedup.pair_ratios)} process pairs)"
    )


@click.command()
@click.option(
    "--optimizer",
    "optimizers",
    multiple=True,
    type=click.Choice(["adam", "sgd"]),
    help="Optimizer; repeatable.  [adam, sgd]",
)
@_proof_options
def drill(
    optimizers: tuple[str, ...],
    backends: tuple[str, ...],
    python: tuple[str, ...],
    as_json: bool,
    **run: Any,
) -> None:
    """Put loss scaling under fault: infinite gradients, and an overflowing forward pass.

    Exits 1 if a framework does not skip exactly the bad step, or hides what cannot be undone.
    """
    from harness.drill import Finding
    from harness.worker_process import WorkerFailed, WorkerProcess

    chosen = tuple(dict.fromkeys(backends)) or COMPARED
    pythons = interpreters(chosen, python)
    results: dict[tuple[str, str], list[Finding] | str] = {}
    with tempfile.TemporaryDirectory(prefix="amp-drill-") as folder:
        for backend in chosen:
            for optimizer in tuple(dict.fromkeys(optimizers)) or ("adam", "sgd"):
                config = _configure(
                    backend=backend,
                    precision="amp",
                    optimizer=optimizer,
                    # Low enough that no step of a healthy network overflows by itself.
                    loss_scale="dynamic:1024",
                    **run,
                )
                click.echo(f"{backend}, {optimizer}", err=True)
                log = Path(folder) / "worker.log"
                try:
                    with WorkerProcess(config, python=pythons[backend], log=log) as worker:
                        answer = worker.ask("drill", run=config.model_dump(mode="json"))
                except WorkerFailed as failure:
                    if failure.status != "unavailable":
                        raise
                    results[backend, optimizer] = failure.reason
                    continue
                results[backend, optimizer] = [
                    Finding.model_validate(finding) for finding in answer["findings"]
                ]
    if as_json:
        click.echo(json.dumps([_drill_json(key, result) for key, result in results.items()]))
    else:
        _print_drill(results)
    failed = any(
        not finding.passed
        for result in results.values()
        if not isinstance(result, str)
        for finding in result
    )
    sys.exit(EXIT_FAILED if failed else 0)


def _configure(**fields: Any) -> RunConfig:
    from pydantic import ValidationError

    from harness.config import RunConfig

    try:
        return RunConfig.model_validate({"steps": 1, **fields})
    except ValidationError as error:
        raise usage_error(error) from error


_COLOURS = {"pass": "green", "fail": "bold red", "unavailable": "yellow", "noise": "dim"}


def _print_parity(rows: list[ParityRow]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("network", "framework", "precision", "quantity"):
        table.add_column(heading)
    for heading in ("error", "worst"):
        table.add_column(heading, justify="right")
    for heading in ("of", "at most", "verdict"):
        table.add_column(heading)
    for row in rows:
        if row.verdict == "reference":
            continue
        table.add_row(
            row.model,
            row.backend,
            row.precision,
            row.quantity,
            _exponent(row.error),
            _exponent(row.worst_error),
            f"{row.worst} (first: {row.first_over})" if row.first_over else row.worst or "",
            _exponent(row.tolerance),
            Text(row.verdict, style=_COLOURS.get(row.verdict, "")),
        )
    console = stdout()
    console.print(table)
    reference = next((row.backend for row in rows if row.verdict == "reference"), None)
    notes = {f"{row.verdict}: {row.reason}": None for row in rows if row.error is None}
    if reference:
        console.print(f"reference: {reference} in float64; error is ‖x − ref‖ / ‖ref‖")
    for note in notes:
        console.print(Text(note))
    counted = [row.verdict for row in rows]
    console.print(
        f"{counted.count('pass')} pass, {counted.count('fail')} fail, "
        f"{counted.count('unavailable')} unavailable"
    )


def _exponent(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _drill_json(key: tuple[str, str], result: list[Finding] | str) -> dict[str, Any]:
    findings = None if isinstance(result, str) else [item.model_dump() for item in result]
    return {
        "backend": key[0],
        "optimizer": key[1],
        "unavailable": result if isinstance(result, str) else None,
        "findings": findings,
    }


def _print_drill(results: dict[tuple[str, str], list[Finding] | str]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    for (backend, optimizer), result in results.items():
        if isinstance(result, str):
            console.print(Text(f"{backend}, {optimizer}: unavailable: {result}", style="yellow"))
            continue
        table = Table(title=f"{backend}, {optimizer}", title_justify="left", box=None)
        for heading in ("check", "expected", "observed", ""):
            table.add_column(heading)
        for finding in result:
            mark = Text("pass", "green") if finding.passed else Text("fail", "bold red")
            table.add_row(
                finding.check,
                finding.expected or "",
                Text(finding.observed),
                mark if finding.expected else Text("told", "dim"),
            )
        console.print(table)
