"""From what the user names to a manifest: locate, read every file, find duplicates, split."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datasets.archives import ARCHIVE_SUFFIXES, extract_archive, is_archive
from datasets.csv_source import list_csv
from datasets.duplicates import Duplicates, find_duplicates
from datasets.errors import DataError, Progress, no_progress, printable
from datasets.examine import Examination, examine
from datasets.manifest import Manifest, common_root
from datasets.places import cache_root
from datasets.sample import sample_folder
from datasets.scan_index import ScanIndex
from datasets.sources import VAL, Listing, list_folder
from datasets.splits import k_fold_split, leaked, stratified_split

SAMPLE = "sample"


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A manifest and what was learned on the way."""

    manifest: Manifest
    examination: Examination
    duplicates: Duplicates
    split_given: bool
    """Whether the source itself gave the split."""


def load_manifest(
    source: str | Path,
    *,
    seed: int,
    val_fraction: float = 0.2,
    fold: tuple[int, int] | None = None,
    cache_dir: Path | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Read a dataset and return its manifest; see `scan`."""
    return scan(
        source,
        seed=seed,
        val_fraction=val_fraction,
        fold=fold,
        cache_dir=cache_dir,
        strict=strict,
        progress=progress,
    ).manifest


def scan(
    source: str | Path,
    *,
    seed: int,
    val_fraction: float = 0.2,
    fold: tuple[int, int] | None = None,
    cache_dir: Path | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> Scan:
    """Decode every photo of a source, quarantine what is none, and split the rest.

    Args:
        source: ``sample``, a folder of class folders, a Food-101 tree, an archive of one of
            these, or a manifest CSV.
        seed: of the stratified split, used where the source gives no split.
        val_fraction: share of each class that validates, used where the source gives no split.
        fold: ``(number, count)``, number from 1: validate on that fold of a stratified k-fold
            split instead, also where the source gives a split.
        cache_dir: where archives are unpacked, and where it is remembered which files have been
            read, so that the next scan reads only new ones; by default the user's cache folder.
        strict: whether a single quarantined file is an error.
        progress: told how many photos have been read.

    Raises:
        DataError: no usable dataset, or ``strict`` and something was quarantined.
    """
    listing = locate(source, cache_dir=cache_dir, progress=progress or no_progress)
    with closing(ScanIndex(cache_root(cache_dir))) as index:
        examination = examine(listing, index=index, progress=progress or no_progress)
    if strict and examination.quarantined:
        first = examination.quarantined[0]
        raise DataError(
            f"{source}: {len(examination.quarantined)} files cannot be used, the first is "
            f"{first.path}: {first.reason}; remove them or leave out --strict"
        )
    labels = listing.labels[examination.rows]
    _check_every_class_is_usable(listing, labels, examination)
    duplicates = find_duplicates(
        labels,
        examination.digests,
        examination.pixel_digests,
        examination.thumbnails,
        progress=progress or no_progress,
    )
    groups = duplicates.groups
    if fold is not None:
        splits = k_fold_split(labels, groups, seed=seed, fold=fold)
    elif listing.splits is None:
        splits = stratified_split(labels, groups, seed=seed, val_fraction=val_fraction)
    else:
        splits = listing.splits[examination.rows]
    warnings = [*listing.warnings, *_split_warnings(listing.classes, labels, splits, groups)]
    if not len(splits) or splits.min() == splits.max():
        raise DataError(
            f"{source}: the split leaves training or validation without photos (photos that are "
            "duplicates of each other stay together); add photos that differ"
        )
    rows: list[int] = examination.rows.tolist()
    root, paths = common_root(listing.root, [listing.paths[row] for row in rows])
    manifest = Manifest(
        name=printable(listing.name),
        root=root,
        classes=listing.classes,
        paths=paths,
        labels=labels,
        splits=splits,
        digests=examination.digests,
        quarantined=tuple(examination.quarantined),
        warnings=tuple(map(printable, warnings)),
    )
    return Scan(
        manifest=manifest,
        examination=examination,
        duplicates=duplicates,
        split_given=listing.splits is not None and fold is None,
    )


def locate(source: str | Path, *, cache_dir: Path | None, progress: Progress) -> Listing:
    """List the files of a source without opening any photo.

    Raises:
        DataError: nothing there, or nothing that could be a dataset.
    """
    if str(source) == SAMPLE:
        folder = sample_folder(cache_root(cache_dir), progress=progress)
        return list_folder(folder, name=SAMPLE)
    path = Path(source).expanduser()
    if path.is_dir():
        return list_folder(path, name=Path(os.path.abspath(path)).name)
    if not os.path.lexists(path):
        raise DataError(f"{path}: no such file or folder; give a folder, archive, CSV or 'sample'")
    if not path.is_file():
        raise DataError(f"{path}: neither a folder nor a file; give a folder of class folders")
    if is_archive(path):
        folder = extract_archive(path, cache_dir=cache_root(cache_dir), progress=progress)
        return list_folder(folder, name=path.name.split(".")[0] or path.name)
    if path.suffix.casefold() == ".csv":
        return list_csv(path)
    raise DataError(
        f"{path}: not a dataset; give a folder of class folders, an archive of one "
        f"({', '.join(ARCHIVE_SUFFIXES)}) or a manifest CSV"
    )


def _split_warnings(
    classes: tuple[str, ...],
    labels: npt.NDArray[np.int64],
    splits: npt.NDArray[np.int8],
    groups: npt.NDArray[np.int64],
) -> list[str]:
    warnings = []
    leaks = leaked(splits, groups)
    if len(leaks):
        warnings.append(
            f"{len(leaks)} validation photos have a duplicate among the training photos: their "
            "accuracy says little"
        )
    totals = np.bincount(labels, minlength=len(classes))
    val = np.bincount(labels[splits == VAL], minlength=len(classes))
    for label, name in enumerate(classes):
        if totals[label] == 1:
            warnings.append(f"class {name!r} has one photo; a class needs two to be validated")
        elif val[label] in (0, totals[label]):
            where = "validation" if val[label] == 0 else "training"
            warnings.append(f"class {name!r} has no photo in {where}")
    return warnings


def _check_every_class_is_usable(
    listing: Listing, labels: npt.NDArray[np.int64], examination: Examination
) -> None:
    for label in np.flatnonzero(np.bincount(labels, minlength=len(listing.classes)) == 0):
        row = int(np.flatnonzero(listing.labels == label)[0])
        reasons = {bad.path: bad.reason for bad in examination.quarantined}
        path = printable(listing.paths[row])
        raise DataError(
            f"class {listing.classes[label]!r} has no readable photo ({path}: "
            f"{reasons.get(path, 'unreadable')}); add photos to it, or leave the class out"
        )
