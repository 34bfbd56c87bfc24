"""Photos that are the same: byte for byte, pixel for pixel, or to the eye."""

import numpy as np
import numpy.typing as npt

THUMBNAIL_SIZE = 64
"""Side in pixels of the thumbnail that perceptual hashes are taken from."""

MAX_DISTANCE = 24
"""Bits of 256 in which the perceptual hashes of near-identical photos may differ."""


def perceptual_hash(thumbnail: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Difference hash: is each of 16×16 cells brighter than its left neighbour?

    Args:
        thumbnail: uint8 (64, 64, 3) RGB.

    Returns:
        256 bits as uint64 (4,).
    """
    grey = thumbnail.reshape(16, 4, 16, 4, 3).sum(axis=(1, 3, 4), dtype=np.int32)
    brighter = grey > np.roll(grey, 1, axis=1)
    return np.packbits(brighter).view(np.uint64)


def duplicate_groups(
    digests: npt.NDArray[np.uint8],
    pixel_digests: npt.NDArray[np.uint8],
    perceptual: npt.NDArray[np.uint64],
) -> npt.NDArray[np.int64]:
    """Return the group of each photo, int64 (N,): the lowest index of those it is the same as."""
    group = np.arange(len(digests), dtype=np.int64)
    for column in (digests, pixel_digests):
        if len(column):
            _, first, inverse = np.unique(column, axis=0, return_index=True, return_inverse=True)
            group = np.minimum(group, first[inverse.ravel()])
    return group
