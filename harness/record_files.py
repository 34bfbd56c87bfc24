"""Records and studies on disk: written whole or not at all, and checked when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from harness.records import Record, Study
from harness.whole_files import replaced

P = TypeVar("P", bound=BaseModel)


class UnreadableRecord(Exception):
    """A record or study file is missing, broken or of another schema."""


def write_json(path: Path, part: BaseModel) -> None:
    """Write ``part`` to ``path`` so that a reader sees the old file or the whole new one.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old file is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as part_file:
        part_file.write_text(part.model_dump_json(indent=1), encoding="utf-8")


def read_record(path: Path) -> Record:
    """Read one record file.

    Raises:
        UnreadableRecord: with the file and the first thing that is wrong with it.
    """
    return read_part(path, Record)


def read_study(path: Path) -> Study:
    """Read ``study.json``; raises :class:`UnreadableRecord` as :func:`read_record` does."""
    return read_part(path, Study)


def read_part(path: Path, kind: type[P]) -> P:
    """Read a file that holds one ``kind``; raises as :func:`read_record` does."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UnreadableRecord(f"{path}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise UnreadableRecord(f"{path}: {where}: {first['msg']}") from error
