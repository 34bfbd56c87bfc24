"""``python -m harness replicate``: the published food experiment's defects, one by one."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.exits import EXIT_FAILED, EXIT_UNAVAILABLE, interruption_keeps
from harness.options import MODELS, Folder, interpreters, python_option, usage_error
from harness.registry import ARTICLE_ADAPTERS
from harness.terminal import stdout

if TYPE_CHECKING:
    from harness.config import RunConfig
    from harness.replicate import VariantResult

_VARIANT_NAMES = (
    *("corrected", "one-image", "fresh-scaler", "live-decoding", "two-outputs"),
    *("one-image-two-outputs", "article"),
)
# A small network on a CPU, where low precision is slow: it can be trained for long enough that one
# sees whether it learns. The article's own on a GPU.
_ON_CPU = {"model": "lenet", "image_size": 32, "batch_size": 8, "steps": 40}
_ON_GPU = {"model": "resnet18", "image_size": 224, "batch_size": 16, "steps": 300}


@click.command()
@click.option(
    "--backend",
    type=click.Choice([*ARTICLE_ADAPTERS]),
    default="torch",
    show_default=True,
    help="Framework.",
)
@click.option(
    "--variant",
    "chosen",
    multiple=True,
    type=click.Choice(_VARIANT_NAMES),
    help="Only this one, beside the corrected; repeatable.  [all]",
)
@click.option("--data", default="sample", show_default=True, help="As for a run.")
@click.option("--model", type=click.Choice(MODELS), help="Network.  [lenet; GPU: resnet18]")
@click.option("--image-size", type=int, help="Side of the images.  [32; GPU: 224]")
@click.option("--batch-size", type=int, help="Images in a step.  [8; GPU: 16]")
@click.option("--steps", type=int, help="Steps of each arm.  [40; GPU: 300]")
@click.option("--seed", default=0, show_default=True, help="Of weights, order and split.")
@click.option("--device", default="auto", show_default=True, help="As for a run.")
@click.option(
    "--amp-dtype", type=click.Choice(["float16", "bfloat16"]), default="float16", show_default=True
)
@click.option("--threads", type=int, help="CPU threads.  [all usable]")
@click.option(
    "--out", type=Folder(), metavar="DIR", help="Where the results go.  [runs/replicate-TIME]"
)
@click.option("--cache-dir", type=Folder(), metavar="DIR", help="Where decoded images are kept.")
@python_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
def replicate(
    chosen: tuple[str, ...],
    out: str | None,
    cache_dir: str | None,
    python: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Rerun the published food experiment's defects, one at a time, AMP off and on.

    Shows for each what its figures seem to say, what is really the case, and what catches it.
    Exits 1 if the corrected arms fail; a defect that stops the training is a result.
    """
    from rich.console import Console

    from harness.progress import ProgressDisplay
    from harness.replicate import CORRECTED, VARIANTS, replicate
    from harness.study import Studio

    base = _configure(options)
    variants = [v for v in VARIANTS if not chosen or v is CORRECTED or v.name in chosen]
    directory = Path(out or f"runs/replicate-{datetime.now():%Y%m%d-%H%M%S}")
    if (directory / "records").exists():
        raise click.UsageError(f"{directory} holds results already; name another folder with --out")
    commands = {v.name.replace("-", ""): _command(base, v.name) for v in VARIANTS}
    display = ProgressDisplay(Console(stderr=True))
    studio = Studio(
        cache_dir=Path(cache_dir) if cache_dir else None,
        strict=False,
        pythons=interpreters([base.backend], python),
        repeat_command=lambda run: commands[run.label],
        on_event=display.on_event,
        on_data=display.on_data,
    )
    kept = directory / "records"
    with interruption_keeps(kept, f"finished records lie in {kept}"), display:
        results = replicate(base, variants, directory, studio=studio)
    _tell(results, directory, as_json)
    corrected = (results[0].fp32.status, results[0].amp.status)
    if any(status not in ("ok", "unavailable") for status in corrected):
        sys.exit(EXIT_FAILED)
    sys.exit(EXIT_UNAVAILABLE if "unavailable" in corrected else 0)


def _configure(options: dict[str, Any]) -> RunConfig:
    from pydantic import ValidationError

    from harness.config import RunConfig
    from harness.gpu import has_gpu

    on_gpu = options["device"] != "cpu" and has_gpu()
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return RunConfig.model_validate((_ON_GPU if on_gpu else _ON_CPU) | given)
    except ValidationError as error:
        raise usage_error(error) from error


def _command(base: RunConfig, variant: str) -> str:
    words = ["python", "-m", "harness", "replicate", "--variant", variant]
    for name in (
        *("backend", "data", "model", "image_size", "batch_size", "steps", "seed", "device"),
        *("amp_dtype", "threads"),
    ):
        value = getattr(base, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _tell(results: list[VariantResult], directory: Path, as_json: bool) -> None:

    from reports.lessons import lessons
    from reports.replication import render_replication, write_replication

    files = write_replication(directory, results)
    if as_json:
        from pydantic_core import to_jsonable_python

        told = {"directory": directory, "variants": lessons(results)}
        # NaN and infinity are results of a diverged arm, and JSON has no number for them.
        click.echo(json.dumps(to_jsonable_python(told, inf_nan_mode="strings")))
        return
    console = stdout()
    console.print(render_replication(results))
    console.print(f"report: {files.html}", highlight=False, soft_wrap=True)
