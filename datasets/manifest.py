"""One list that all frameworks share: every photo's path, class, label, split and SHA-256."""

import csv
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast, overload

import numpy as np
import numpy.typing as npt

from datasets.sources import SPLITS, TRAIN, VAL, Quarantined


class Entry(NamedTuple):
    """One photo of a manifest."""

    path: Path
    """Absolute."""
    class_name: str
    label: int
    split: Literal["train", "val"]
    sha256: str
    """Of the file's bytes, hexadecimal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Manifest:
    """The photos of a dataset, ordered by path; columns keep a million of them small."""

    name: str
    root: Path
    """The deepest folder that holds them all; absolute."""
    classes: tuple[str, ...]
    paths: Sequence[str]
    """Relative to ``root``, ordered by code point."""
    labels: npt.NDArray[np.int64]
    """Index into ``classes`` of each photo, shape (N,)."""
    splits: npt.NDArray[np.int8]
    """0 for train and 1 for val, shape (N,)."""
    digests: npt.NDArray[np.uint8]
    """SHA-256 of each file's bytes, shape (N, 32)."""
    quarantined: tuple[Quarantined, ...]
    warnings: tuple[str, ...]

    @property
    def entries(self) -> "Entries":
        """The photos as a sequence of Entry."""
        return Entries(self)

    @property
    def train(self) -> npt.NDArray[np.int64]:
        """Indices of the training photos, ascending."""
        return np.flatnonzero(self.splits == TRAIN)

    @property
    def val(self) -> npt.NDArray[np.int64]:
        """Indices of the validation photos, ascending."""
        return np.flatnonzero(self.splits == VAL)

    @functools.cached_property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of classes, relative paths, labels, splits and digests.

        The same on every machine and wherever the photos lie.
        """
        digest = hashlib.sha256(repr(self.classes).encode("utf-8", "surrogateescape"))
        for path, label, split, sha256 in zip(
            self.paths, self.labels, self.splits, self.digests, strict=True
        ):
            row = f"{path}\0{label}\0{SPLITS[split]}\0{sha256.tobytes().hex()}\n"
            digest.update(row.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def write_csv(self, path: Path) -> None:
        """Write columns path (absolute), class, label, split and sha256 as UTF-8 CSV, atomically.

        ``load_manifest`` reads it back.
        """
        _write_csv(path, ("path", "class", "label", "split", "sha256"), self.entries)

    def write_quarantine_csv(self, path: Path) -> None:
        """Write columns path (relative to the source) and reason as UTF-8 CSV, atomically."""
        _write_csv(path, ("path", "reason"), ((bad.path, bad.reason) for bad in self.quarantined))


class Entries(Sequence[Entry]):
    """The photos of a manifest, made on demand."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def __len__(self) -> int:
        return len(self._manifest.paths)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        manifest = self._manifest
        label = int(manifest.labels[index])
        return Entry(
            path=manifest.root / manifest.paths[index],
            class_name=manifest.classes[label],
            label=label,
            split=cast(Literal["train", "val"], SPLITS[manifest.splits[index]]),
            sha256=manifest.digests[index].tobytes().hex(),
        )

    def __iter__(self) -> Iterator[Entry]:
        return (self[index] for index in range(len(self)))


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with open(temporary, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    os.replace(temporary, path)


def common_root(root: Path, paths: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the deepest folder that holds all paths, and the paths relative to it."""
    folders = {os.path.dirname(path) for path in paths}
    shared = os.path.commonpath(folders) if folders else ""
    cut = len(shared) + 1 if shared else 0
    return Path(os.path.abspath(root / shared)), [path[cut:] for path in paths]
