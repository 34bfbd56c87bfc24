"""Standard output, for tables and sentences."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
"""Columns where no terminal tells: in 80, rich would cut names and figures short."""


def stdout() -> Console:
    """A console on standard output: as wide as the terminal, or as ``COLUMNS`` in a pipe."""
    from rich.console import Console

    console = Console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=PIPE_WIDTH)
