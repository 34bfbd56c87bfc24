"""Files that are there whole or not at all, however the process that writes them ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A file beside ``path`` that takes its place when the block has written it.

    Until then a reader finds the old file, or none. A block that fails, or is interrupted, leaves
    nothing behind; a process that is killed leaves a hidden ``.part``.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old file is untouched.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        yield part
        os.fsync(handle)
        # mkstemp makes files that nobody else may read.
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
