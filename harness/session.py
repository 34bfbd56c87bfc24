"""Folder and progress around one run or comparison on the command line."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.exits import interruption_keeps
from harness.options import interpreters, repeat_command
from harness.terminal import stdout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.config import RunConfig
    from harness.progress import ProgressDisplay
    from harness.records import Record
    from harness.study import Studio


class Session:
    """Folder and progress of one run or comparison."""

    def __init__(self, options: dict[str, Any], backends: Any) -> None:
        from rich.console import Console

        from harness.progress import ProgressDisplay

        self._json = options["json"]
        self._display: ProgressDisplay = ProgressDisplay(Console(stderr=True))
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        self.directory = Path(options["out"] or f"runs/{stamp}")
        self.studio = self._studio(options, backends)
        self._ends = ExitStack()

    def __enter__(self) -> Session:
        self._ends.enter_context(
            interruption_keeps(
                self.directory / "study.json",
                "finished records are kept; continue with: "
                f"python -m harness compare --resume {shlex.quote(str(self.directory))}",
            )
        )
        self._ends.enter_context(self._display)
        return self

    def __exit__(self, *error: Any) -> None:
        self._ends.__exit__(*error)

    def refuse_results(self) -> None:
        """Refuse a folder that holds results already.

        Raises:
            click.UsageError: it does.
        """
        for name in ("record.json", "study.json"):
            if (self.directory / name).exists():
                raise click.UsageError(
                    f"{self.directory} holds results already ({name}); name another folder with "
                    "--out"
                )

    def show_plan(
        self, runs: Sequence[RunConfig], budget_s: float | None, *, on_stdout: bool
    ) -> None:
        """Print what will be measured, in what time."""
        if not runs and not self._json:
            click.echo("every planned arm has its record", err=not on_stdout)
            return
        from rich.console import Console

        from datasets import cache_root, load_manifest
        from harness.forecast import Paces
        from harness.plan_view import plan_json, plan_table

        train_images = None
        if any(run.epochs is not None for run in runs) and runs[0].input != "synthetic":
            manifest = load_manifest(
                runs[0].data,
                seed=runs[0].seed,
                cache_dir=self.studio.cache_dir,
                strict=self.studio.strict,
                progress=self.studio.on_data,
            )
            train_images = len(manifest.train)
        paces = Paces.read(cache_root(self.studio.cache_dir) / "paces.json")
        if on_stdout and self._json:
            click.echo(plan_json(runs, paces, budget_s, train_images=train_images))
        else:
            console = stdout() if on_stdout else Console(stderr=True)
            console.print(*plan_table(runs, paces, budget_s, train_images=train_images), sep="\n")

    def show(self, records: list[Record], report_path: Path | None) -> None:
        """Print the result on standard output."""
        if self._json:
            import json

            dumped = [record.model_dump(mode="json") for record in records]
            result = {"directory": str(self.directory), "records": dumped}
            click.echo(json.dumps(result if report_path else dumped[0]))
            return
        from reports import comparison_table, read_results, render_console, render_results

        console = stdout()
        if report_path is None:
            console.print(render_console(comparison_table(None, records)))
        else:
            shown, remedy = render_results(read_results(self.directory))
            console.print(shown)
            if remedy:
                console.print(remedy, highlight=False, markup=False, soft_wrap=True)
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


def warn_of_data(records: Sequence[Record]) -> None:
    """Say on standard error which photos could not be used, and what else is odd with the data."""
    data = next((record.data for record in records if record.data is not None), None)
    if data is None:
        return
    if data.quarantined:
        first, count = data.quarantined[0], len(data.quarantined)
        click.echo(
            f"warning: {count:,} file{'' if count == 1 else 's'} cannot be used; the first is "
            f"{first.path}: {first.reason} (all are in quarantine.csv)",
            err=True,
        )
    for warning in data.warnings:
        click.echo(f"warning: {warning}", err=True)
