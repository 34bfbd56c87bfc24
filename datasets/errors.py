"""What goes wrong with a dataset, and how long steps tell how far they are."""

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called as ``progress(stage, done, total)``; ``total`` is None while it is unknown."""


class DataError(Exception):
    """Bad input. The message is one line: what is wrong, where, and the remedy."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing: the default of every ``progress`` argument."""
