"""Read a manifest CSV: this project's own columns, or ``images,label``."""

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datasets.errors import DataError, printable
from datasets.manifest import Manifest, common_root
from datasets.names import redecode
from datasets.sources import SPLITS, Listing, Quarantined, check_classes

_COLUMN_ALIASES = {
    "path": "path", "image": "path", "images": "path", "file": "path", "filename": "path",
    "class": "class", "class_name": "class", "label": "label", "split": "split",
    "sha256": "sha256",
}  # fmt: skip
_MAX_FIELD_CHARACTERS = 8192
_INTEGER = re.compile(r"\d{1,9}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Row:
    path: str
    class_name: str
    split: str
    sha256: str


def list_csv(source: Path) -> Listing:
    """List the photos of a manifest CSV (UTF-8, with a header line).

    Columns: ``path`` (or ``images``) and ``class`` or ``label``; ``split`` (train or val) and
    ``sha256`` where known. Relative paths start at the CSV's folder. A path that leads out of
    that folder needs its ``sha256``, so that a stranger's list can only name files whose
    content the stranger already has.

    Raises:
        DataError: not such a CSV, with the line that is wrong.
    """
    rows: dict[str, _Row] = {}
    warnings: list[str] = []
    quarantined: list[Quarantined] = []
    repeated = 0
    folder = os.path.abspath(source.parent)
    for line, row in _read_rows(source):
        path = os.path.normpath(os.path.join(folder, row.path))
        inside = path.startswith(folder.rstrip("/") + "/")
        if not inside and not row.sha256:
            quarantined.append(
                Quarantined(printable(row.path), "outside the CSV's folder, without sha256")
            )
            continue
        if inside and not row.sha256 and not _stays_inside(path, folder):
            quarantined.append(Quarantined(printable(row.path), "a link out of the CSV's folder"))
            continue
        known = rows.setdefault(path, row)
        if known is not row:
            repeated += 1
            if (known.class_name, known.split) != (row.class_name, row.split):
                raise DataError(
                    f"{source}, line {line}: {row.path} was listed before with another label or "
                    "split; keep one"
                )
    if repeated:
        warnings.append(f"{repeated} repeated lines of the CSV count once")
    paths = sorted(rows)
    names = [rows[path].class_name for path in paths]
    if not paths and quarantined:
        raise DataError(
            f"{source}: every photo lies outside the CSV's folder; move the CSV beside the photos"
        )
    classes = _order_classes(names, where=str(source))
    index = {name: label for label, name in enumerate(classes)}
    split_names = {row.split for row in rows.values()}
    if "" in split_names and len(split_names) > 1:
        raise DataError(f"{source}: some lines have a split and some none; give all or none")
    splits = [SPLITS.index(rows[path].split) for path in paths] if "" not in split_names else None
    return Listing(
        name=source.stem,
        root=Path("/"),
        classes=classes,
        paths=[path.lstrip("/") for path in paths],
        labels=np.array([index[name] for name in names], np.int64),
        splits=None if splits is None else np.array(splits, np.int8),
        digests={path.lstrip("/"): rows[path].sha256 for path in paths if rows[path].sha256},
        quarantined=tuple(quarantined),
        warnings=tuple(warnings),
    )


def read_manifest(source: Path) -> Manifest:
    """Read back what `Manifest.write_csv` wrote, without opening a photo.

    Raises:
        DataError: not such a CSV, or one without splits or digests.
    """
    listing = list_csv(source)
    if listing.splits is None or len(listing.digests) < len(listing.paths):
        raise DataError(f"{source}: needs a split and a sha256 in each line; run data scan on it")
    root, paths = common_root(listing.root, listing.paths)
    digests = b"".join(bytes.fromhex(listing.digests[path]) for path in listing.paths)
    return Manifest(
        name=listing.name,
        root=root,
        classes=listing.classes,
        paths=paths,
        labels=listing.labels,
        splits=listing.splits,
        digests=np.frombuffer(digests, np.uint8).reshape(-1, 32),
        quarantined=listing.quarantined,
        warnings=listing.warnings,
    )


def _order_classes(names: list[str], *, where: str) -> tuple[str, ...]:
    """Integers by value, other names by code point."""
    classes = check_classes(names, where=where, remedy="list photos of two classes or more")
    if all(_INTEGER.fullmatch(name) for name in classes):
        return tuple(sorted(classes, key=lambda name: (int(name), name)))
    return classes


def _read_rows(source: Path) -> Iterator[tuple[int, _Row]]:
    """Yield line number and row; each is checked by itself."""
    try:
        with open(source, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(_bounded_lines(file, source), strict=True)
            columns = _read_header(next(reader, []), source)
            for fields in reader:
                if not fields:
                    continue
                if len(fields) != len(columns):
                    raise DataError(
                        f"{source}, line {reader.line_num}: {len(fields)} fields under "
                        f"{len(columns)} columns; quote fields that hold commas"
                    )
                given = {name: field for name, field in zip(columns, fields, strict=True) if name}
                yield reader.line_num, _check_row(given, f"{source}, line {reader.line_num}")
    except csv.Error as error:
        raise DataError(f"{source}: not a CSV file: {error}") from error
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from error


def _bounded_lines(file: Iterator[str], source: Path) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        if len(line) > 4 * _MAX_FIELD_CHARACTERS or "\0" in line:
            raise DataError(f"{source}, line {number}: not text; give a CSV with a header line")
        yield line


def _read_header(fields: list[str], source: Path) -> list[str | None]:
    columns = [_COLUMN_ALIASES.get(field.strip().casefold()) for field in fields]
    known = [column for column in columns if column]
    if "path" not in known or not {"class", "label"} & set(known) or len(known) > len(set(known)):
        raise DataError(
            f"{source}: no manifest: its first line must name the columns path and class "
            "(or images and label)"
        )
    return columns


def _check_row(given: dict[str, str], where: str) -> _Row:
    row = _Row(
        path=given["path"],
        class_name=redecode((given.get("class") or given.get("label") or "").strip()),
        split=given.get("split", "").strip(),
        sha256=given.get("sha256", "").strip().lower(),
    )
    if not row.path.strip() or not row.class_name:
        raise DataError(f"{where}: empty path or class")
    if row.split and row.split not in SPLITS:
        raise DataError(f"{where}: split {row.split[:40]!r} is neither train nor val")
    if row.sha256 and not _SHA256.fullmatch(row.sha256):
        raise DataError(f"{where}: sha256 is not 64 hexadecimal digits")
    return row


def _stays_inside(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder).rstrip("/") + "/")
