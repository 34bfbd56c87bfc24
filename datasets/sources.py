"""Where the photos of a source lie: a folder, a Food-101 tree, an archive or a manifest CSV."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datasets.errors import DataError, printable
from datasets.names import is_ignored, redecode

SPLITS = ("train", "val")
TRAIN, VAL = 0, 1
"""Codes of the splits in every array that holds them: an index into SPLITS."""

_SPLIT_FOLDERS = {
    "train": TRAIN, "training": TRAIN, "trainset": TRAIN,
    "val": VAL, "valid": VAL, "validation": VAL, "valset": VAL, "test": VAL, "testset": VAL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A file that takes no part."""

    path: str
    """Relative to the source; what is no visible character is escaped."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a source before any is opened: one label each, ordered by path."""

    name: str
    root: Path
    classes: tuple[str, ...]
    """Ordered by code point; the label of a class is its index."""
    paths: Sequence[str]
    """Relative to ``root``, ordered by code point."""
    labels: npt.NDArray[np.int64]
    splits: npt.NDArray[np.int8] | None
    """TRAIN or VAL of each file where the source gives a split, else None."""
    digests: Mapping[str, str]
    """Path to the SHA-256 that its bytes must have, where the source says so."""
    quarantined: tuple[Quarantined, ...]
    warnings: tuple[str, ...]


def list_folder(folder: Path, *, name: str) -> Listing:
    """List a folder of class folders, of split folders of class folders, or a Food-101 tree.

    Folders that hold nothing but one folder are passed through.

    Raises:
        DataError: no classes, one class, a class without files, or class folders too deep.
    """
    try:
        root = _unwrap(folder)
        if _is_food101(root):
            return _list_food101(root, name=name)
        top = {entry.name: entry for entry in _scan_folder(root) if _is_folder(entry)}
        splits = {entry: _SPLIT_FOLDERS.get(entry.casefold()) for entry in top}
        if len(top) > 1 and None not in splits.values() and _hold_folders(root, top):
            return _list_split_folders(root, splits, name=name)
        return _list_class_folders(root, name=name)
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: cannot be listed: {error.strerror}; check its permissions"
        ) from error


class _Collector:
    """Gathers files, quarantined ones and warnings of one listing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[tuple[str, str, int | None]] = []
        self.quarantined: list[Quarantined] = []
        self.warnings: list[str] = []
        self._seen_folders = {os.path.realpath(root)}

    def add_class(self, folder: str, split: int | None = None) -> bool:
        """Add the files of a class folder (relative to the root), unless it has been read."""
        real = os.path.realpath(self.root / folder)
        around = os.path.join(os.path.realpath(self.root), "").startswith(os.path.join(real, ""))
        if around or real in self._seen_folders:
            self.warnings.append(
                f"{folder}: a link to a folder that is already read, or around it; skipped"
            )
            return False
        self._seen_folders.add(real)
        nested = 0
        class_name = redecode(os.path.basename(folder))
        for entry in _scan_folder(self.root / folder):
            path = f"{folder}/{entry.name}"
            reason = _why_not_a_file(entry)
            if reason is None:
                self.files.append((path, class_name, split))
            elif reason == "folder":
                nested += 1
            else:
                self.quarantined.append(Quarantined(printable(path), reason))
        if nested:
            self.warnings.append(
                f"{folder}: {nested} nested folder{'s'[: nested > 1]} not read; "
                f"move the photos up into {folder}"
            )
        return True

    def listing(self, *, name: str, class_names: Sequence[str]) -> Listing:
        """Close the listing; every class must have a file."""
        remedy = "give a folder with one sub-folder of photos per class, two or more"
        classes = check_classes(class_names, where=str(self.root), remedy=remedy)
        self.warnings.extend(_case_collisions(classes))
        self.files.sort()
        index = {class_name: label for label, class_name in enumerate(classes)}
        labels = np.array([index[class_name] for _, class_name, _ in self.files], np.int64)
        for label in np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0):
            raise DataError(
                f"{self.root}: class {classes[label]!r} has no files; add photos or remove its "
                f"folder{self._explain_nested(classes[label])}"
            )
        given = [split for _, _, split in self.files]
        return Listing(
            name=name,
            root=self.root,
            classes=classes,
            paths=[path for path, _, _ in self.files],
            labels=labels,
            splits=None if None in given else np.array(given, np.int8),
            digests={},
            quarantined=tuple(self.quarantined),
            warnings=tuple(self.warnings),
        )

    def _explain_nested(self, class_name: str) -> str:
        if any(warning.startswith(f"{class_name}: ") for warning in self.warnings):
            return f" ({class_name} holds folders only: are its folders the classes?)"
        return ""


def check_classes(names: Sequence[str], *, where: str, remedy: str) -> tuple[str, ...]:
    """Return the classes by code point.

    Raises:
        DataError: fewer than two.
    """
    classes = tuple(sorted(set(names)))
    if len(classes) < 2:
        found = f"only one class ({classes[0]!r})" if classes else "no classes"
        raise DataError(f"{where}: {found}; {remedy}")
    return classes


def _list_class_folders(root: Path, *, name: str) -> Listing:
    collector = _Collector(root)
    stray = []
    class_names = []
    for entry in _scan_folder(root):
        if _is_folder(entry):
            if collector.add_class(entry.name):
                class_names.append(redecode(entry.name))
        else:
            stray.append(entry.name)
    if stray and class_names:
        more = "" if len(stray) < 4 else f" and {len(stray) - 3} more"
        collector.warnings.append(
            f"beside the class folders, in no class: {', '.join(sorted(stray)[:3])}{more}"
        )
    return collector.listing(name=name, class_names=class_names)


def _list_split_folders(root: Path, splits: Mapping[str, int | None], *, name: str) -> Listing:
    collector = _Collector(root)
    class_names = []
    for split_folder, split in sorted(splits.items()):
        for entry in _scan_folder(root / split_folder):
            if _is_folder(entry) and collector.add_class(f"{split_folder}/{entry.name}", split):
                class_names.append(redecode(entry.name))
    return collector.listing(name=name, class_names=class_names)


def _is_food101(root: Path) -> bool:
    return (root / "images").is_dir() and all(
        (root / "meta" / f"{part}.txt").is_file() for part in ("train", "test")
    )


def _list_food101(root: Path, *, name: str) -> Listing:
    """Food-101's layout: ``images/<class>/<id>.jpg``, lists of ``<class>/<id>`` in ``meta``."""
    split_of: dict[str, int] = {}
    for part, split in (("train", TRAIN), ("test", VAL)):
        for line in _read_lines(root / "meta" / f"{part}.txt"):
            if split_of.setdefault(line, split) != split:
                raise DataError(f"{root}/meta: {line} is in train.txt and in test.txt; remove one")
    classes_file = root / "meta" / "classes.txt"
    listed = _read_lines(classes_file) if classes_file.is_file() else []
    class_names = listed or [entry.name for entry in _scan_folder(root / "images")]
    collector = _Collector(root / "images")
    for class_name in class_names:
        if is_ignored(class_name) or "/" in class_name or "\\" in class_name:
            raise DataError(f"{classes_file}: {class_name!r} is no name of a class folder")
        if not (root / "images" / class_name).is_dir():
            raise DataError(f"{root}/images: no folder of class {class_name!r} (meta/classes.txt)")
        collector.add_class(class_name)
    files, collector.files = collector.files, []
    for path, class_name, _ in files:
        split = split_of.pop(os.path.splitext(path)[0], None)
        if split is None:
            reason = "in neither meta/train.txt nor meta/test.txt"
            collector.quarantined.append(Quarantined(printable(path), reason))
        else:
            collector.files.append((path, class_name, split))
    known = {quarantined.path.rpartition(".")[0] for quarantined in collector.quarantined}
    for path in sorted(split_of.keys() - known):
        part = "train" if split_of[path] == TRAIN else "test"
        reason = f"listed in meta/{part}.txt, but there is no such file"
        collector.quarantined.append(Quarantined(printable(path), reason))
    return collector.listing(name=name, class_names=class_names)


def _read_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _unwrap(folder: Path) -> Path:
    """Go down while a folder holds exactly one folder, which itself holds folders, and no file."""
    seen = set()
    while os.path.realpath(folder) not in seen:
        seen.add(os.path.realpath(folder))
        entries = list(_scan_folder(folder))
        if len(entries) != 1 or not entries[0].is_dir():
            break
        inner = folder / entries[0].name
        if not any(_is_folder(entry) for entry in _scan_folder(inner)):
            break
        folder = inner
    return folder


def _hold_folders(root: Path, names: Mapping[str, object]) -> bool:
    return all(any(_is_folder(entry) for entry in _scan_folder(root / name)) for name in names)


def _scan_folder(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Entries that are neither hidden nor an operating system's own."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not is_ignored(entry.name):
                yield entry


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that goes round in circles.
        return False


def _why_not_a_file(entry: os.DirEntry[str]) -> str | None:
    """None for a regular file or a link to one, ``folder``, or the reason to leave it unopened."""
    try:
        mode = entry.stat().st_mode
    except FileNotFoundError:
        return "broken link" if entry.is_symlink() else "vanished during the scan"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return "folder"
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return f"not a regular file: {kinds.get(stat.S_IFMT(mode), 'a device')}"


def _case_collisions(classes: Sequence[str]) -> list[str]:
    by_folded: dict[str, list[str]] = {}
    for class_name in classes:
        by_folded.setdefault(class_name.casefold(), []).append(class_name)
    return [
        f"classes that differ only in case are kept apart: {', '.join(names)}"
        for names in by_folded.values()
        if len(names) > 1
    ]
