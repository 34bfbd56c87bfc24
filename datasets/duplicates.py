"""Photos that are the same: byte for byte, pixel for pixel, or to the eye.

Near-identical photos (a second shot, another crop, filter or compression of the same scene) are
found in two steps. The magnitudes of low Fourier frequencies, which a shift leaves alone, pick
candidates by cosine similarity; the correlation of brightness gradients at the best of the
shifts up to five cells, which neither exposure nor filter changes much, decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

THUMBNAIL_SIZE = 32
"""Side of the grey thumbnail that photos are compared by."""

_MIN_SIMILARITY = 0.8
_MIN_CORRELATION = 0.6
"""Between true pairs of Food-101 (0.63 and more) and the closest strangers (0.54 and less)."""
_MAX_SHIFT = 5
_MIN_CONTRAST = 2.0
"""Standard deviation in grey levels; flatter photos are compared by bytes and pixels only."""

_MAX_FREQUENCY = 6
_SPECTRUM_SLOPE = -1.3
"""Power by which magnitudes of photos fall with frequency; divided out, so none dominates."""
_BLOCK = 2048
_PAIRS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Which photos are the same, and how they were told."""

    groups: npt.NDArray[np.int64]
    """The lowest index among the photos that each is the same as, shape (N,)."""
    byte_identical: int
    """Photos that repeat the bytes of an earlier one."""
    pixel_identical: int
    """Further photos that repeat the pixels of an earlier one under other bytes."""
    near_identical: int
    """Further photos that look like an earlier one."""


def find_duplicates(
    digests: npt.NDArray[np.uint8],
    pixel_digests: npt.NDArray[np.uint8],
    thumbnails: npt.NDArray[np.uint8],
) -> Duplicates:
    """Group photos that are the same.

    Args:
        digests: of the bytes, uint8 (N, any).
        pixel_digests: of the pixels, uint8 (N, any).
        thumbnails: grey, uint8 (N, 32, 32); may be memory-mapped.
    """
    first_bytes = _first_of_equal(digests)
    groups = _first_of_equal(pixel_digests)
    distinct = np.flatnonzero(groups == np.arange(len(groups)))
    _join_near_identical(groups, distinct, thumbnails)
    groups = np.array([_root(groups, index) for index in range(len(groups))], np.int64)
    by_bytes = len(digests) - len(np.unique(first_bytes))
    return Duplicates(
        groups=groups,
        byte_identical=by_bytes,
        pixel_identical=len(digests) - len(distinct) - by_bytes,
        near_identical=len(distinct) - len(np.unique(groups)),
    )


def grey_thumbnail(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Reduce uint8 (64, 64, 3) to grey uint8 (32, 32); luma of ITU-R BT.601 in 1/256."""
    luma = rgb.astype(np.uint16) @ np.array([77, 150, 29], np.uint16)
    return (luma >> 8).reshape(32, 2, 32, 2).mean(axis=(1, 3)).astype(np.uint8)


def _first_of_equal(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Index of the first row equal to each row."""
    if not len(rows):
        return np.zeros(0, np.int64)
    as_one = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}")[:, 0]
    _, first, inverse = np.unique(as_one, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _join_near_identical(
    groups: npt.NDArray[np.int64],
    distinct: npt.NDArray[np.int64],
    thumbnails: npt.NDArray[np.uint8],
) -> None:
    """Join the groups (a union-find forest) of distinct photos that look the same, in place."""
    kept, spectra = [], []
    for start in range(0, len(distinct), _BLOCK):
        rows = distinct[start : start + _BLOCK]
        grey = thumbnails[rows].astype(np.float32)
        clear = grey.std(axis=(1, 2)) >= _MIN_CONTRAST
        kept.append(rows[clear])
        # One byte an entry keeps a million photos at 84 MB; cosines err by less than 0.01.
        spectra.append(np.rint(_spectrum(grey[clear]) * 127).astype(np.int8))
    if not kept:
        return
    photos, spectrum = np.concatenate(kept), np.concatenate(spectra)
    for pairs in _similar_pairs(spectrum):
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            left, right = photos[pairs[start : start + _PAIRS_AT_ONCE].T]
            # A cluster of many is joined by a few of its pairs; the others need no look.
            apart = [_root(groups, a) != _root(groups, b) for a, b in zip(left, right, strict=True)]
            left, right = left[apart], right[apart]
            same = _aligned_correlation(thumbnails[left], thumbnails[right]) >= _MIN_CORRELATION
            for one, other in zip(left[same], right[same], strict=True):
                low, high = sorted((_root(groups, one), _root(groups, other)))
                groups[high] = low


def _similar_pairs(spectrum: npt.NDArray[np.int8]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield (P, 2) indices of pairs whose spectra are similar, block against block."""
    threshold = np.float32(_MIN_SIMILARITY * 127**2)
    for start in range(0, len(spectrum), _BLOCK):
        rows = spectrum[start : start + _BLOCK].astype(np.float32)
        for other in range(start, len(spectrum), _BLOCK):
            columns = spectrum[other : other + _BLOCK].astype(np.float32)
            left, right = np.nonzero(rows @ columns.T >= threshold)
            pairs = np.stack([left + start, right + other], axis=1)
            yield pairs[pairs[:, 0] < pairs[:, 1]]


def _frequencies() -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """The half plane of low frequencies, and the expected log magnitude at each."""
    down, right = np.meshgrid(*[np.fft.fftfreq(THUMBNAIL_SIZE) * THUMBNAIL_SIZE] * 2, indexing="ij")
    half = (down > 0) | ((down == 0) & (right > 0))
    low = half & (np.abs(down) <= _MAX_FREQUENCY) & (np.abs(right) <= _MAX_FREQUENCY)
    return low, (_SPECTRUM_SLOPE * np.log(np.hypot(down, right)[low])).astype(np.float32)


_LOW, _EXPECTED = _frequencies()
_WINDOW = np.outer(*[np.hanning(THUMBNAIL_SIZE + 2)[1:-1]] * 2).astype(np.float32)


def _spectrum(grey: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Log magnitudes of low frequencies, flattened and normalised: (n, 32, 32) to (n, 84)."""
    centred = grey - grey.mean(axis=(1, 2), keepdims=True)
    magnitude = np.abs(np.fft.fft2(centred * _WINDOW)[:, _LOW])
    log = np.log(magnitude + 8.0) - _EXPECTED
    log -= log.mean(axis=1, keepdims=True)
    return log / (np.linalg.norm(log, axis=1, keepdims=True) + 1e-9)


def _aligned_correlation(
    left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float32]:
    """Correlation of gradients at the best shift: uint8 (n, 32, 32) twice to float (n,)."""
    product = _gradients(left) * np.conj(_gradients(right))
    shifts = np.r_[0 : _MAX_SHIFT + 1, -_MAX_SHIFT:0]
    return np.fft.ifft2(product).real[:, shifts][:, :, shifts].max(axis=(1, 2), initial=-1.0)


def _gradients(thumbnails: npt.NDArray[np.uint8]) -> npt.NDArray[np.complex64]:
    """Fourier transform of horizontal + i vertical differences, of zero mean and unit norm."""
    grey = thumbnails.astype(np.float32)
    across = np.diff(grey, axis=2, prepend=grey[:, :, :1])
    down = np.diff(grey, axis=1, prepend=grey[:, :1])
    gradient = across + 1j * down
    gradient -= gradient.mean(axis=(1, 2), keepdims=True)
    norm = np.sqrt(np.square(np.abs(gradient)).sum(axis=(1, 2), keepdims=True))
    return np.fft.fft2(gradient / (norm + 1e-9))


def _root(groups: npt.NDArray[np.int64], index: int) -> int:
    while groups[index] != index:
        groups[index] = groups[groups[index]]
        index = int(groups[index])
    return int(index)
