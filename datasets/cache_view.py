"""Labels and split of one manifest beside the pixels that it shares with other manifests."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from datasets.errors import DataError
from datasets.manifest import Manifest
from datasets.pixel_layout import PixelLayout


@dataclass(frozen=True, kw_only=True)
class CacheView:
    """What a worker needs to know of a cache folder."""

    images_path: Path
    """uint8 .npy of shape (N, image_size, image_size, 3)."""
    image_size: int
    classes: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    """Shape (N,)."""
    splits: npt.NDArray[np.int64]
    """TRAIN or VAL of each image, shape (N,)."""


def write_view(folder: Path, manifest: Manifest, image_size: int) -> Path:
    """Write the view of a manifest below the folder of its pixels, always anew; return its path."""
    view = folder / "views" / manifest.sha256[:32]
    view.mkdir(parents=True, exist_ok=True)
    labels = np.stack([manifest.labels, manifest.splits.astype(np.int64)])
    temporary = view / f"labels.{os.getpid()}.npy"
    np.save(temporary, labels)
    os.replace(temporary, view / "labels.npy")
    meta = {
        "name": manifest.name,
        "classes": list(manifest.classes),
        "images": len(manifest.paths),
        "image_size": image_size,
        "manifest_sha256": manifest.sha256,
        "labels_sha256": hashlib.sha256(labels.tobytes()).hexdigest(),
    }
    write_json(view / "view.json", meta)
    return view


def read_view(view: Path) -> CacheView:
    """Read a view; sizes and labels are checked, pixels are not.

    Raises:
        DataError: no cache folder, or a damaged one.
    """
    try:
        meta = json.loads((view / "view.json").read_text(encoding="utf-8"))
        labels = np.load(view / "labels.npy", allow_pickle=False)
        images_path = view.parent.parent / "images.npy"
        layout = PixelLayout(meta["images"], meta["image_size"])
        sound = (
            images_path.stat().st_size == layout.file_bytes
            and labels.shape == (2, layout.images)
            and hashlib.sha256(labels.tobytes()).hexdigest() == meta["labels_sha256"]
        )
        classes = tuple(meta["classes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{view}: no pixel cache: {error}; build it again") from error
    if not sound:
        raise DataError(f"{view}: the pixel cache is damaged; build it again")
    return CacheView(
        images_path=images_path,
        image_size=layout.image_size,
        classes=classes,
        labels=labels[0],
        splits=labels[1],
    )


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that the file is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
