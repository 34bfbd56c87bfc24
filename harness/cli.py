"""The command line: ``python -m harness``.

Heavy modules are imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import harness
from harness.data_commands import data
from harness.doctor_command import doctor
from harness.options import (
    HOW_OPTIONS,
    configure,
    interpreters,
    preset_name,
    refuse_given,
    repeat_command,
    run_options,
)
from harness.proof_commands import drill, parity
from harness.registry import BACKENDS, COMPARED
from harness.replicate_command import replicate

if TYPE_CHECKING:
    from rich.console import Console

    from harness.progress import ProgressDisplay
    from harness.records import Record
    from harness.study import Studio

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 1, 2, 3, 130


@click.group(invoke_without_command=True)
@click.option("--backend", type=click.Choice([*BACKENDS]), help="Framework of a single run.")
@click.option("--amp/--no-amp", default=False, help="Mixed precision for the single run.  [no]")
@run_options
@click.version_option(harness.__version__, message="%(version)s")
@click.pass_context
def main(ctx: click.Context, backend: str | None, amp: bool, **options: Any) -> None:
    """Does mixed-precision training (AMP) pay on this machine, and in which framework?

    With --backend: train once and write DIR/record.json. To compare frameworks: python -m harness
    compare.
    """
    if ctx.invoked_subcommand is not None:
        refuse_given(ctx, f"belongs behind '{ctx.invoked_subcommand}'")
        return
    if backend is None:
        click.echo(ctx.get_help())
        return
    run = configure(options, backend=backend, precision="amp" if amp else "fp32")
    with _Session(options, [backend]) as session:
        from harness.inputs import prepare_input
        from harness.records import write_json
        from harness.runner import run_arm

        data = prepare_input(
            run,
            manifest_csv=session.directory / "manifest.csv",
            cache_dir=session.studio.cache_dir,
            strict=session.studio.strict,
            progress=session.studio.on_data,
        )
        record = run_arm(
            run,
            data,
            python=session.studio.pythons[backend],
            log=session.directory / "worker.log",
            command=repeat_command(run),
            on_event=session.studio.on_event,
        )
        write_json(session.directory / "record.json", record)
    session.show([record], None)
    if record.status == "unavailable":
        sys.exit(EXIT_UNAVAILABLE)
    sys.exit(0 if record.status == "ok" else EXIT_FAILED)


@main.command()
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice([*BACKENDS]),
    help="Framework to compare; repeatable.  [torch, tensorflow, paddle]",
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["fp32", "amp"]),
    help="Precision to compare; repeatable.  [fp32, amp]",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 20),
    default=1,
    show_default=True,
    help="Repeat with this many seeds, to see AMP's loss gap beside that between seeds.",
)
@click.option("--resume", metavar="DIR", help="Complete the study in DIR.")
@run_options
@click.pass_context
def compare(
    ctx: click.Context,
    backends: tuple[str, ...],
    precisions: tuple[str, ...],
    seeds: int,
    resume: str | None,
    **options: Any,
) -> None:
    """Train every framework with AMP off and on, and write one report."""
    from harness.study import resume_study, start_study

    chosen = tuple(dict.fromkeys(backends)) or COMPARED
    first = [
        configure(options, backend=backend, precision=precision)
        for backend in chosen
        for precision in tuple(dict.fromkeys(precisions)) or ("fp32", "amp")
    ]
    runs = first + [
        run.model_copy(update={"seed": run.seed + more, "label": f"seed{run.seed + more}"})
        for more in range(1, seeds)
        for run in first
    ]
    if resume:
        refuse_given(ctx, "cannot change a study that is resumed", but=("resume", *HOW_OPTIONS))
        options["out"] = resume
    with _Session(options, BACKENDS) as session:
        if resume:
            records = resume_study(session.directory, studio=session.studio)
        else:
            records = start_study(
                runs,
                session.directory,
                command=shlex.join(["python", "-m", "harness", *sys.argv[1:]]),
                preset=preset_name(options),
                studio=session.studio,
            )
        from reports import write_report

        report = write_report(session.directory)
    session.show(records, report.html)
    failed = any(record.status not in ("ok", "unavailable") for record in records)
    sys.exit(EXIT_FAILED if failed else 0)


main.add_command(data)
main.add_command(parity)
main.add_command(drill)
main.add_command(replicate)
main.add_command(doctor)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
def report(directory: Path) -> None:
    """Write the report of DIRECTORY anew from its records."""
    from harness.records import UnreadableRecord
    from reports import write_report

    try:
        files = write_report(directory)
    except (UnreadableRecord, OSError) as error:
        _fail(str(error), EXIT_BAD_INPUT)
    click.echo(files.html)


class _Session:
    """Folder, progress and the handling of errors around one run or comparison."""

    def __init__(self, options: dict[str, Any], backends: Any) -> None:
        from rich.console import Console

        from harness.progress import ProgressDisplay

        self._json = options["json"]
        self._resumable = False
        self._display: ProgressDisplay = ProgressDisplay(Console(stderr=True))
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        self.directory = Path(options["out"] or f"runs/{stamp}")
        self.studio = self._studio(options, backends)

    def __enter__(self) -> _Session:
        self._display.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        from datasets import DataError
        from harness.study import StudyError

        self._display.__exit__(kind, error, trace)
        match error:
            case KeyboardInterrupt():
                hint = ""
                if (self.directory / "study.json").exists():
                    hint = (
                        "; finished records are kept; continue with: "
                        f"python -m harness compare --resume {shlex.quote(str(self.directory))}"
                    )
                _fail(f"interrupted{hint}", EXIT_INTERRUPTED)
            case DataError() | StudyError():
                _fail(str(error), EXIT_BAD_INPUT)
            case OSError():
                where = f"{error.filename}: " if error.filename else ""
                _fail(f"{where}{error.strerror or error}", EXIT_FAILED)
            case _:
                pass

    def show(self, records: list[Record], report_path: Path | None) -> None:
        """Print the result on standard output."""
        if self._json:
            import json

            dumped = [record.model_dump(mode="json") for record in records]
            result = {"directory": str(self.directory), "records": dumped}
            click.echo(json.dumps(result if report_path else dumped[0]))
            return
        from rich.console import Console

        from reports import comparison_table, render_console

        console: Console = Console()
        console.print(render_console(comparison_table(None, records)))
        console.print(
            f"report: {report_path}" if report_path else f"record: {self.directory}/record.json",
            highlight=False,
            soft_wrap=True,
        )

    def _studio(self, options: dict[str, Any], backends: Any) -> Studio:
        from harness.study import Studio

        return Studio(
            cache_dir=Path(options["cache_dir"]) if options["cache_dir"] else None,
            strict=options["strict"],
            pythons=interpreters(backends, options["python"]),
            repeat_command=repeat_command,
            on_event=self._display.on_event,
            on_data=self._display.on_data,
        )


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"harness: {message}", err=True)
    sys.exit(code)
