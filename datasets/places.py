"""Where unpacked archives and pixel caches lie."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets.errors import Progress

CACHE_VARIABLE = "AMP_HARNESS_CACHE"


def cache_root(cache_dir: Path | None) -> Path:
    """Return the given folder, else that of AMP_HARNESS_CACHE, else the user's cache folder."""
    if cache_dir is None:
        import platformdirs  # only where data is prepared: a worker may run without it

        named = os.environ.get(CACHE_VARIABLE)
        cache_dir = Path(named) if named else platformdirs.user_cache_path("amp-harness")
    return Path(os.path.abspath(cache_dir.expanduser()))


@contextmanager
def only_process(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file ``path``; tell when another process has it, and wait."""
    import filelock  # only where data is prepared: a worker may run without it

    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress("waiting for another process that prepares the same data", 0, None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
