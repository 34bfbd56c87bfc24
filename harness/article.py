"""The defects of the published food experiment, one by one, and what shows them in the data.

Each is a thin wrapper around an honest :class:`datasets.PixelSource`, except the loss scaler's,
which needs the framework and is an adapter of its own (see ``ARTICLE_ADAPTERS``).
"""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from datasets import PixelSource, TrainBatches

Defect = Literal["one_image", "fresh_scaler", "live_decoding", "two_outputs"]

HEAD_OUTPUTS = 2
"""Outputs of the article's head, for five classes."""


class OneImage:
    """Returns the first training image, with its label, for every training index.

    The indices stay as they are, so that the order of ids looks right. Validation is honest.
    """

    def __init__(self, source: PixelSource) -> None:
        self._source = source
        self._first = source.train[0]
        self.classes = source.classes
        self.labels = source.labels.copy()
        self.labels[source.train] = source.labels[self._first]
        self.train = source.train
        self.val = source.val
        self.image_size = source.image_size

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """See `datasets.PixelSource`."""
        return self._source.images(np.where(np.isin(indices, self.train), self._first, indices))


class TwoOutputs:
    """Gives the network a head of two outputs while the labels stay what they are.

    Only validation images of those two classes are left: the others cannot be got right, and
    whoever reads the accuracy has to count them as wrong.
    """

    def __init__(self, source: PixelSource) -> None:
        self._source = source
        self.classes = source.classes[:HEAD_OUTPUTS]
        self.labels = source.labels
        self.train = source.train
        self.val = source.val[source.labels[source.val] < HEAD_OUTPUTS]
        self.image_size = source.image_size

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """See `datasets.PixelSource`."""
        return self._source.images(indices)


def flawed(source: PixelSource, defects: tuple[Defect, ...]) -> PixelSource:
    """``source`` with those of ``defects`` that lie in what it returns."""
    if "one_image" in defects:
        source = OneImage(source)
    if "two_outputs" in defects:
        source = TwoOutputs(source)
    return source


class Audit(BaseModel):
    """What an arm is given for training, looked at without a framework."""

    images: int
    """Drawn in the first epoch, or in the whole run where that is shorter."""
    distinct_images: int
    """Of these, by the SHA-256 of their pixels."""
    distinct_ids: int
    distinct_labels: int
    outputs: int
    """Of the network's head."""
    classes: int
    """Of the dataset."""


def audit_batches(
    honest: PixelSource, defects: tuple[Defect, ...], *, batch_size: int, seed: int, steps: int
) -> Audit:
    """Draw the batches that an arm with ``defects`` trains on, for an epoch or ``steps``.

    Raises:
        datasets.DataError: fewer training images than one batch.
    """
    source = flawed(honest, defects)
    pictures, ids, labels = set[bytes](), set[int](), set[int]()
    images = 0
    with TrainBatches(source, batch_size=batch_size, seed=seed) as batches:
        for batch in islice(batches, min(steps, batches.steps_per_epoch)):
            images += len(batch.ids)
            pictures.update(hashlib.sha256(image.tobytes()).digest() for image in batch.images)
            ids.update(batch.ids.tolist())
            labels.update(batch.labels.tolist())
    return Audit(
        images=images,
        distinct_images=len(pictures),
        distinct_ids=len(ids),
        distinct_labels=len(labels),
        outputs=len(source.classes),
        classes=len(honest.classes),
    )
