"""The command line: ``python -m harness``.

Heavy modules are imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

import harness
from harness.compare_command import compare
from harness.data_commands import data
from harness.diff_command import diff
from harness.doctor_command import doctor
from harness.env_command import env
from harness.exits import EXIT_FAILED, EXIT_UNAVAILABLE, Commands
from harness.max_batch_command import max_batch
from harness.options import configure, margin_option, refuse_given, repeat_command, run_options
from harness.proof_commands import drill, parity
from harness.registry import BACKENDS
from harness.replicate_command import replicate
from harness.session import Session, warn_of_data


@click.group(cls=Commands, invoke_without_command=True)
@click.option(
    "--backend",
    type=click.Choice([*BACKENDS]),
    help="Framework of a single run; fake computes nothing.",
)
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
        refuse_given(ctx, "needs --backend; to compare frameworks: python -m harness compare")
        click.echo(ctx.get_help())
        return
    run = configure(options, backend=backend, precision="amp" if amp else "fp32")
    with Session(options, [backend]) as session:
        from harness.inputs import prepare_input
        from harness.record_files import write_json
        from harness.turns import run_arm

        session.refuse_results()
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
    warn_of_data([record])
    if record.status == "unavailable":
        sys.exit(EXIT_UNAVAILABLE)
    sys.exit(0 if record.status == "ok" else EXIT_FAILED)


main.add_command(compare)
main.add_command(data)
main.add_command(diff)
main.add_command(parity)
main.add_command(drill)
main.add_command(max_batch)
main.add_command(replicate)
main.add_command(doctor)
main.add_command(env)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
@margin_option("A speedup this close to 1 is no difference.")
def report(directory: Path, margin: float) -> None:
    """Write the report of DIRECTORY anew from its records."""
    from reports import write_report

    click.echo(write_report(directory, margin=margin).html)
