"""What a scan found, as plain figures for the terminal, a page or a machine."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from datasets.loading import Scan
from datasets.sources import VAL
from datasets.splits import leaked

_MAX_GROUPS = 200


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """The photos of one class."""

    name: str
    train_images: int
    val_images: int


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Everything that ``data scan`` tells; `dataclasses.asdict` gives its JSON."""

    name: str
    root: str
    manifest_sha256: str
    images: int
    train_images: int
    val_images: int
    file_bytes: int
    """Of all readable photos together."""
    split: str
    """``given`` by the source, or ``stratified``."""
    classes: list[ClassCount]
    imbalance: float
    """Photos of the largest class over those of the smallest."""
    formats: dict[str, int]
    modes: dict[str, int]
    """Pillow's names of how samples are stored; commonest first, as in all counts here."""
    notes: dict[str, int]
    """What had to be put right to read a photo, and names that belie the content."""
    size_min: tuple[int, int]
    size_median: tuple[float, float]
    size_max: tuple[int, int]
    """Width and height in pixels; minimum and maximum are those of the area."""
    commonest_size: tuple[int, int]
    channel_mean: tuple[float, float, float]
    """Of R, G, B in 0..1, each photo weighted equally."""
    channel_std: tuple[float, float, float]
    byte_identical: int
    """Photos that repeat the bytes of another one."""
    pixel_identical: int
    """Further photos that repeat its pixels under other bytes."""
    near_identical: int
    """Further photos of a class that look like another one."""
    duplicate_groups: list[list[str]]
    """Paths of the photos that are the same, the first 200 groups."""
    leaked_val_images: int
    """Validation photos with a duplicate among the training photos."""
    quarantined: list[dict[str, str]]
    """Path and reason of each file that takes no part."""
    quarantine_reasons: dict[str, int]
    warnings: list[str]


def summarise(found: Scan) -> Overview:
    """Work out the overview of a scan."""
    manifest, examination = found.manifest, found.examination
    count = len(manifest.classes)
    totals = np.bincount(manifest.labels, minlength=count)
    val = np.bincount(manifest.labels[manifest.splits == VAL], minlength=count)
    by_area = sorted(examination.sizes, key=lambda size: (size[0] * size[1], size))
    mean, std = examination.channel_mean.tolist(), examination.channel_std.tolist()
    reasons = Counter(_kind(bad.reason) for bad in manifest.quarantined)
    return Overview(
        name=manifest.name,
        root=str(manifest.root),
        manifest_sha256=manifest.sha256,
        images=len(manifest.paths),
        train_images=len(manifest.train),
        val_images=len(manifest.val),
        file_bytes=examination.file_bytes,
        split="given" if found.split_given else "stratified",
        classes=[
            ClassCount(name=name, train_images=int(all_ - val_), val_images=int(val_))
            for name, all_, val_ in zip(manifest.classes, totals, val, strict=True)
        ],
        imbalance=float(totals.max() / totals.min()),
        formats=dict(examination.formats.most_common()),
        modes=dict(examination.modes.most_common()),
        notes=dict(examination.notes.most_common()),
        size_min=by_area[0],
        size_median=(_median(examination.sizes, 0), _median(examination.sizes, 1)),
        size_max=by_area[-1],
        commonest_size=examination.sizes.most_common(1)[0][0],
        channel_mean=(mean[0], mean[1], mean[2]),
        channel_std=(std[0], std[1], std[2]),
        byte_identical=found.duplicates.byte_identical,
        pixel_identical=found.duplicates.pixel_identical,
        near_identical=found.duplicates.near_identical,
        duplicate_groups=_name_groups(found),
        leaked_val_images=len(leaked(manifest.splits, found.duplicates.groups)),
        quarantined=[{"path": bad.path, "reason": bad.reason} for bad in manifest.quarantined],
        quarantine_reasons=dict(reasons.most_common()),
        warnings=list(manifest.warnings),
    )


def _kind(reason: str) -> str:
    """The reason without the figures that differ from file to file."""
    return "truncated" if reason.startswith("truncated after") else reason


def _median(sizes: Counter[tuple[int, int]], axis: int) -> float:
    values = np.array([size[axis] for size in sizes])
    return float(np.median(np.repeat(values, list(sizes.values()))))


def _name_groups(found: Scan) -> list[list[str]]:
    groups = found.duplicates.groups
    shared = np.flatnonzero(np.bincount(groups, minlength=1) > 1)[:_MAX_GROUPS]
    return [
        [found.manifest.paths[index] for index in np.flatnonzero(groups == group).tolist()]
        for group in shared
    ]
