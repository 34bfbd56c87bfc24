"""The same batches for every framework: seeded order, seeded augmentation, one prefetch thread."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from datasets.errors import DataError
from datasets.pixels import PixelSource

Augment = Literal["none", "flip", "crop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBatch:
    """Images in host memory, as they go to a framework."""

    images: npt.NDArray[np.uint8]
    """Shape (n, H, W, 3), C-contiguous, owned by the batch."""
    labels: npt.NDArray[np.int64]
    """Shape (n,)."""
    ids: npt.NDArray[np.int64]
    """Index of each image in its source, shape (n,)."""
    epoch: int
    """From 0; -1 for validation."""


def epoch_order(indices: npt.NDArray[np.int64], *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the indices in the order of an epoch, a permutation by seed and epoch."""
    return np.random.default_rng([seed, epoch]).permutation(indices)


class TrainBatches:
    """An endless stream of full training batches, made one thread ahead of the consumer.

    Each epoch is one permutation; images left over after its last full batch are dropped.
    Augmentation is fixed by (seed, epoch, position in the epoch), so it is the same for every
    framework: ``flip`` mirrors half of the images; ``crop`` also shifts each by up to an eighth
    of its size in both directions, with black beyond the edge (He et al. 2015, section 4.2).
    Iterate in one thread; close it, or use it as a context manager.
    """

    def __init__(
        self,
        source: PixelSource,
        *,
        batch_size: int,
        seed: int,
        augment: Augment = "none",
        prefetch: int = 2,
    ) -> None:
        """Start the thread.

        Raises:
            DataError: fewer training images than one batch, or an unknown augmentation.
        """
        if not 1 <= batch_size <= len(source.train):
            raise DataError(
                f"{len(source.train)} training images cannot fill a batch of {batch_size}; "
                f"choose a batch size from 1 to {len(source.train)}"
            )
        if augment not in get_args(Augment):
            raise DataError(f"augment {augment!r} is none of {', '.join(get_args(Augment))}")
        self.steps_per_epoch = len(source.train) // batch_size
        self._source = source
        self._batch_size = batch_size
        self._seed = seed
        self._augment: Augment = augment
        self._ready: queue.Queue[HostBatch | BaseException] = queue.Queue(max(1, prefetch))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        """Return the next batch; raise what the thread ran into, as often as asked."""
        if self._stop.is_set():
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, BaseException):
            self._ready.put(item)
            raise item
        return item

    def close(self) -> None:
        """Stop the thread and drop what it has made."""
        self._stop.set()
        while self._thread.is_alive():
            # The thread may be waiting for room in the queue.
            while not self._ready.empty():
                self._ready.get_nowait()
            self._thread.join(timeout=0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _produce(self) -> None:
        try:
            epoch = 0
            while not self._stop.is_set():
                self._produce_epoch(epoch)
                epoch += 1
        except BaseException as error:  # handed to the consumer, whatever it is
            self._ready.put(error)

    def _produce_epoch(self, epoch: int) -> None:
        order = epoch_order(self._source.train, seed=self._seed, epoch=epoch)
        mirrored, shifts = self._draw_augmentation(len(order), epoch)
        for step in range(self.steps_per_epoch):
            part = slice(step * self._batch_size, (step + 1) * self._batch_size)
            ids = order[part]
            images = self._source.images(ids)
            if self._augment == "crop":
                images = shift_images(images, shifts[part])
            if self._augment != "none":
                mirror_images(images, mirrored[part])
            batch = HostBatch(images=images, labels=self._source.labels[ids], ids=ids, epoch=epoch)
            if self._stop.is_set():
                return
            self._ready.put(batch)

    def _draw_augmentation(
        self, count: int, epoch: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Draw for a whole epoch at once: cheap, and independent of the batch size."""
        rng = np.random.default_rng([self._seed, epoch, 1])
        reach = self._source.image_size // 8
        mirrored = rng.random(count) < 0.5
        return mirrored, rng.integers(-reach, reach, (count, 2), np.int64, endpoint=True)


def mirror_images(images: npt.NDArray[np.uint8], mirrored: npt.NDArray[np.bool_]) -> None:
    """Mirror some images left to right, in place.

    Args:
        images: uint8 (n, H, W, 3).
        mirrored: bool (n,).
    """
    upright = images[mirrored]
    reversed_rows = np.empty_like(upright)
    for channel in range(3):  # three times faster than reversing pixels of three bytes
        reversed_rows[..., channel] = upright[:, :, ::-1, channel]
    images[mirrored] = reversed_rows


def shift_images(
    images: npt.NDArray[np.uint8], shifts: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Return images moved down and right by whole pixels, black where nothing was.

    Args:
        images: uint8 (n, H, W, 3).
        shifts: int64 (n, 2), rows and columns, each smaller than the image.
    """
    height, width = images.shape[1:3]
    moved = np.zeros_like(images)
    for source, target, (down, right) in zip(images, moved, shifts.tolist(), strict=True):
        rows_to = slice(max(down, 0), height + min(down, 0))
        columns_to = slice(max(right, 0), width + min(right, 0))
        rows_from = slice(max(-down, 0), height + min(-down, 0))
        columns_from = slice(max(-right, 0), width + min(-right, 0))
        target[rows_to, columns_to] = source[rows_from, columns_from]
    return moved


def val_batches(source: PixelSource, batch_size: int) -> Iterator[HostBatch]:
    """Yield every validation image once, in order; the last batch may be short."""
    for start in range(0, len(source.val), batch_size):
        ids = source.val[start : start + batch_size]
        yield HostBatch(images=source.images(ids), labels=source.labels[ids], ids=ids, epoch=-1)
