"""``python -m harness compare``: every framework, AMP off and on, and one report."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from harness.exits import EXIT_FAILED
from harness.options import (
    HOW_OPTIONS,
    MODELS,
    Folder,
    backends_option,
    configure,
    preset_name,
    refuse_given,
    run_options,
    usage_error,
)
from harness.registry import BACKENDS, COMPARED
from harness.session import Session, warn_of_data

if TYPE_CHECKING:
    from harness.config import RunConfig
    from harness.plan import Extent

QUICK_BUDGET_S = 240.0
"""Of the preset quick, unless --budget or --repeats says otherwise: for a first look."""
_AXES = {
    "batch_sizes": "batch_size",
    "image_sizes": "image_size",
    "models": "model",
    "inputs": "input",
}
"""Option with several values → the one with a single value that it stands in for."""
_SET_BY_RUNGS = (
    *(*_AXES, "map_", "precisions"),
    *("layout", "compile", "tf32", "diagnose", "trace"),
)
_OF_A_RESUMED_STUDY = ("resume", "repeats", "budget_s", "dry_run", *HOW_OPTIONS)


class _Seconds(click.ParamType):
    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", str(value).strip(), re.ASCII)
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no time; give 90s, 10m or 2h", param, ctx)
        return float(match[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


class _Several(click.ParamType):
    """Values between commas."""

    def __init__(self, of: click.ParamType) -> None:
        self._of = of
        self.name = f"{of.name},..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        parts = [part.strip() for part in str(value).split(",")]
        return tuple(dict.fromkeys(self._of.convert(part, param, ctx) for part in parts))


@click.command()
@backends_option
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["fp32", "amp"]),
    help="Precision to compare; repeatable.  [fp32, amp]",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 64),
    help="Process pairs from which each speedup is taken.  [4]",
)
@click.option(
    "--budget",
    "budget_s",
    type=_Seconds(),
    help="Wall time such as 10m: as many pairs as decide, while they fit.  [4m in quick]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 20),
    default=1,
    show_default=True,
    help="Repeat with this many seeds, to see AMP's loss gap beside that between seeds.",
)
@click.option("--batch-sizes", type=_Several(click.INT), help="Compare at each of these.")
@click.option("--image-sizes", type=_Several(click.INT), help="Compare at each of these.")
@click.option("--models", type=_Several(click.Choice(MODELS)), help="Compare each of these.")
@click.option(
    "--inputs",
    type=_Several(click.Choice(["cached", "live", "synthetic"])),
    help="Compare with each of these.",
)
@click.option("--map", "map_", is_flag=True, help="Speedup over batch size and image size.")
@click.option(
    "--ladder", is_flag=True, help="What TF32, AMP, layout, batch and compiler add, one by one."
)
@click.option("--dry-run", is_flag=True, help="Print the plan and its expected time, and stop.")
@click.option(
    "--resume", type=Folder(), metavar="DIR", help="Complete the study in DIR, or add pairs to it."
)
@run_options
@click.pass_context
def compare(
    ctx: click.Context,
    backends: tuple[str, ...],
    precisions: tuple[str, ...],
    repeats: int | None,
    budget_s: float | None,
    seeds: int,
    map_: bool,
    ladder: bool,
    dry_run: bool,
    resume: str | None,
    **options: Any,
) -> None:
    """Train every framework with AMP off and on, and write one report.

    Given --budget and no --repeats, as many process pairs are measured as it takes to decide, while
    the time lasts. With --resume, --repeats or --budget adds pairs to a study that is finished.
    """
    from harness.plan import REPEATS, Extent
    from harness.study import missing_runs, resume_study, start_study, study_to_resume

    until_decided = budget_s is not None and repeats is None
    runs: list[RunConfig] = []
    if resume:
        refuse_given(ctx, "cannot change a study that is resumed", but=_OF_A_RESUMED_STUDY)
        options["out"] = resume
    else:
        if ladder:
            refuse_given(ctx, "has no effect on a ladder: its rungs set it", only=_SET_BY_RUNGS)
        if ladder or map_:
            why = "has no effect where speed alone is measured; give --windows"
            refuse_given(ctx, why, only=("steps", "epochs", "validate_weights"))
        axes = {axis: values for axis in _AXES if (values := options.pop(axis))}
        for axis in axes:
            why = f"has no effect beside --{axis.replace('_', '-')}"
            refuse_given(ctx, why, only=(_AXES[axis],))
        extent = Extent(
            **axes,
            seeds=seeds,
            repeats=repeats or REPEATS,
            ladder=ladder,
            map=map_,
        )
        runs = _plan(backends, precisions, extent, options, fit_windows=budget_s is not None)
        a_first_look = preset_name(options) == "quick" and not (map_ or ladder)
        if budget_s is None and repeats is None and a_first_look:
            budget_s = QUICK_BUDGET_S
    with Session(options, BACKENDS) as session:
        study = None
        if resume:
            study = study_to_resume(session.directory, repeats=repeats, budget_s=budget_s)
            runs, budget_s = missing_runs(study, session.directory), study.budget_s
        session.show_plan(runs, budget_s, on_stdout=dry_run)
        if dry_run:
            return
        from reports import write_report
        from reports.undecided import undecided

        further = undecided if until_decided else None
        if study is not None:
            records = resume_study(
                study, session.directory, studio=session.studio, undecided=further
            )
        else:
            records = start_study(
                runs,
                session.directory,
                command=shlex.join(["python", "-m", "harness", *sys.argv[1:]]),
                preset=preset_name(options),
                studio=session.studio,
                budget_s=budget_s,
                undecided=further,
            )
        report = write_report(session.directory)
    session.show(records, report.html)
    warn_of_data(records)
    failed = any(record.status not in ("ok", "unavailable") for record in records)
    sys.exit(EXIT_FAILED if failed else 0)


def _plan(
    backends: tuple[str, ...],
    precisions: tuple[str, ...],
    extent: Extent,
    options: dict[str, Any],
    *,
    fit_windows: bool,
) -> list[RunConfig]:
    from pydantic import ValidationError

    from harness.plan import plan, speed_only

    mains = [
        configure(options, backend=backend, precision=precision)
        for backend in tuple(dict.fromkeys(backends)) or COMPARED
        for precision in tuple(dict.fromkeys(precisions)) or ("fp32", "amp")
    ]
    if fit_windows and options["steps"] is None and options["epochs"] is None:
        # Nobody said how long to train: as long as the budget allows.
        mains = [speed_only(run) for run in mains]
    try:
        return plan(mains, extent)
    except ValidationError as error:
        raise usage_error(error) from error
