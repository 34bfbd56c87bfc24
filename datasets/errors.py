"""What goes wrong with a dataset, and how long steps tell how far they are."""

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called as ``progress(stage, done, total)``; ``total`` is None while it is unknown."""


class DataError(Exception):
    """Bad input. The message is one printable line: what is wrong, where, and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Escape what is no visible character: names of files can hold line breaks and ANSI codes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing: the default of every ``progress`` argument."""
