"""How a command ends: the exit codes, and one line on standard error for what stopped it."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

EXIT_FAILED = 1
"""A run failed or diverged, a check is red, or the system refused something."""
EXIT_BAD_INPUT = 2
"""Data, a record or an option cannot be used."""
EXIT_UNAVAILABLE = 3
"""A single run asked for what this machine cannot do."""
EXIT_INTERRUPTED = 130


class Commands(click.Group):
    """A group whose commands end in one line and an exit code, whatever stops them."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a failure that is nobody's programming error becomes an exit."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, Exception) as error:
            told = _told(error)
            if told is None:
                raise
            message, code = told
            fail("; ".join((message, *getattr(error, "__notes__", ()))), code)


def fail(message: str, code: int) -> NoReturn:
    """Say on standard error what is wrong, and leave."""
    click.echo(f"harness: {message}", err=True)
    sys.exit(code)


@contextmanager
def interruption_keeps(file: Path, note: str) -> Iterator[None]:
    """Have an interruption of the block tell ``note`` if ``file`` exists by then."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if file.exists():
            interrupt.add_note(note)
        raise


def _told(error: BaseException) -> tuple[str, int] | None:
    """What to say of ``error`` and the exit code; None for what is not ours to explain."""
    # Here, so that --help need not import them.
    from datasets import DataError
    from harness.peaks import UnreadablePeaks
    from harness.record_files import UnreadableRecord
    from harness.study import StudyError
    from harness.worker_process import WorkerFailed

    match error:
        case KeyboardInterrupt():
            return "interrupted", EXIT_INTERRUPTED
        case DataError() | StudyError() | UnreadableRecord() | UnreadablePeaks():
            return str(error), EXIT_BAD_INPUT
        case WorkerFailed():
            return f"{error.status}: {error.reason}", EXIT_FAILED
        case OSError() if error.errno != errno.EPIPE:  # of a closed pipe, click takes care
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}{error.strerror or error}", EXIT_FAILED
        case _:
            return None
