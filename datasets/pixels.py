"""Where a run takes its pixels from: the cache, the files themselves, or noise."""

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from datasets.cache_view import read_view
from datasets.csv_source import read_manifest
from datasets.decode import Resize, pillow_warnings_ignored
from datasets.entry_pixels import decode_entry
from datasets.parallel import available_cores, ordered_map
from datasets.sources import TRAIN, VAL


class PixelSource(Protocol):
    """Images by index; what every run trains and validates on."""

    classes: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    """Index into ``classes`` of each image, shape (N,)."""
    train: npt.NDArray[np.int64]
    """Indices of the training images."""
    val: npt.NDArray[np.int64]
    """Indices of the validation images."""
    image_size: int
    """Side of the square images in pixels."""

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return images as uint8 (n, image_size, image_size, 3), C-contiguous fresh memory."""
        ...


class CachedPixels:
    """The memory-mapped cache folder that `build_cache` returned."""

    def __init__(self, path: Path) -> None:
        """Open a cache folder.

        Raises:
            DataError: it is none, or its size or labels are not those that were written.
        """
        view = read_view(path)
        self.classes = view.classes
        self.image_size = view.image_size
        self.labels = view.labels
        self.train = np.flatnonzero(view.splits == TRAIN)
        self.val = np.flatnonzero(view.splits == VAL)
        # A plain view: np.memmap would make a subclass of each batch.
        self._images = np.asarray(np.load(view.images_path, mmap_mode="r", allow_pickle=False))

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return copies of the cached images."""
        return self._images[indices]


class LivePixels:
    """Decodes the files of a manifest on each call: the same pixels as the cache."""

    workers: int
    """Threads that decode at the same time."""

    def __init__(
        self,
        manifest_csv_path: Path,
        *,
        image_size: int,
        resize: Resize = "squash",
        workers: int | None = None,
    ) -> None:
        """Read a manifest that `Manifest.write_csv` wrote; its files are read when asked for.

        Raises:
            DataError: no such CSV.
        """
        self._manifest = read_manifest(manifest_csv_path)
        self._resize: Resize = resize
        self.workers = workers or available_cores()
        self.classes = self._manifest.classes
        self.labels = self._manifest.labels
        self.train = self._manifest.train
        self.val = self._manifest.val
        self.image_size = image_size

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Decode the images with a pool of threads.

        Raises:
            DataError: a file is gone or has other bytes than the manifest says.
        """
        images = np.empty((len(indices), self.image_size, self.image_size, 3), np.uint8)

        def decode_one(index: int) -> npt.NDArray[np.uint8]:
            return decode_entry(self._manifest, index, self.image_size, self._resize)

        with pillow_warnings_ignored():
            decoded = ordered_map(decode_one, indices.tolist(), workers=self.workers)
            for position, image in enumerate(decoded):
                images[position] = image
        return images


class SyntheticPixels:
    """Noise by seed, for measuring speed without a disk."""

    _POOL_IMAGES = 256
    """Different images that are made; more would only fill memory."""

    def __init__(
        self, *, image_size: int, classes: int, train_images: int, val_images: int, seed: int
    ) -> None:
        """Make the noise; class names are ``class_0`` and on."""
        rng = np.random.default_rng([seed, image_size])
        total = train_images + val_images
        self.classes = tuple(f"class_{label}" for label in range(classes))
        self.labels = rng.integers(0, classes, total, np.int64)
        self.train = np.arange(train_images, dtype=np.int64)
        self.val = np.arange(train_images, total, dtype=np.int64)
        self.image_size = image_size
        pool = min(self._POOL_IMAGES, max(total, 1))
        self._pool = rng.integers(0, 256, (pool, image_size, image_size, 3), np.uint8)

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return copies of the noise images."""
        return self._pool[indices % len(self._pool)]
