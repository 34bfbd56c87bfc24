"""Progress on standard error: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harness.runner import Event

_DATA_LINE_INTERVAL_S = 5.0


class ProgressDisplay:
    """Shows how the data and the arms get on; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[details]}"),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._task: Any = None
        self._name = ""
        self._last_line_s = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def on_data(self, stage: str, done: int, total: int | None) -> None:
        """Show the progress of scanning or decoding; has the shape of ``datasets.Progress``."""
        if self._live:
            self._update(stage, done, total, "")
        elif done == total or time.monotonic() - self._last_line_s > _DATA_LINE_INTERVAL_S:
            self._last_line_s = time.monotonic()
            self._console.print(f"{stage}: {done:,}" + (f" of {total:,}" if total else ""))

    def on_event(self, event: Event) -> None:
        """Show the progress of an arm."""
        if event.phase == "finished":
            self._finish(event)
            return
        details = _details(event)
        if self._live:
            self._update(event.arm, event.step, event.total_steps, f"{event.phase}  {details}")
        elif event.loss is not None:
            of = f" of {event.total_steps}" if event.total_steps is not None else ""
            self._console.print(
                f"{event.arm}: {event.phase}, step {event.step}{of}, {details}",
                highlight=False,
                soft_wrap=True,
            )
        else:
            self._console.print(f"{event.arm}: {event.phase}")

    def _finish(self, event: Event) -> None:
        if self._live and self._task is not None:
            self._progress.remove_task(self._task)
            self._task, self._name = None, ""
        colour = {"ok": "green", "unavailable": "yellow"}.get(event.status or "", "red")
        reason = f": {event.reason}" if event.reason else ""
        self._console.print(
            f"[bold]{escape(event.arm)}[/]: [{colour}]{event.status}[/]{escape(reason)}",
            highlight=False,
            soft_wrap=True,
        )

    def _update(self, name: str, done: int, total: int | None, details: str) -> None:
        if self._task is None or self._name != name:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task, self._name = self._progress.add_task(name, details=""), name
        self._progress.update(self._task, completed=done, total=total, details=details)


def _details(event: Event) -> str:
    parts = []
    if event.loss is not None:
        parts.append(f"loss {event.loss:.4f}")
    if event.images_per_s is not None:
        parts.append(f"{event.images_per_s:,.1f} images/s")
    if event.remaining_s is not None:
        minutes, seconds = divmod(round(event.remaining_s), 60)
        parts.append(f"{minutes}:{seconds:02} left")
    return ", ".join(parts)
