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
from PIL import Image

from datasets.errors import Progress, no_progress

THUMBNAIL_SIZE = 32
"""Side of the grey thumbnail that photos are compared by."""

_MIN_SIMILARITY = 0.7
_MIN_CORRELATION = 0.6
"""Between true pairs of Food-101 (0.63 and more) and the closest strangers (0.54 and less)."""
_MAX_SHIFT = 5
_MIN_TEXTURE_CELLS = 30.0
"""Cells of 1,024 that share the gradient's energy (participation ratio); Food-101's photos have
40 and more. Plainer pictures all look alike, so they are compared by bytes and pixels only."""

_MAX_FREQUENCY = 6
_SPECTRUM_SLOPE = -1.3
"""Power by which magnitudes of photos fall with frequency; divided out, so none dominates."""
_PRIOR_PHOTOS = 64
_BLOCK = 2048
_NEIGHBOURS = 4
"""Candidates of a photo in each block: enough to link a cluster, and time stays bounded."""
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
    labels: npt.NDArray[np.int64],
    digests: npt.NDArray[np.uint8],
    pixel_digests: npt.NDArray[np.uint8],
    thumbnails: npt.NDArray[np.uint8],
    *,
    progress: Progress = no_progress,
) -> Duplicates:
    """Group photos that are the same; near-identical ones only within a class.

    (What looks alike in two classes differs in what the classes are about.)

    Args:
        labels: int64 (N,).
        digests: of the bytes, uint8 (N, any).
        pixel_digests: of the pixels, uint8 (N, any).
        thumbnails: grey, uint8 (N, 32, 32); may be memory-mapped.
        progress: told how many photos have been compared.
    """
    first_bytes = _first_of_equal(digests)
    groups = _first_of_equal(pixel_digests)
    distinct = np.flatnonzero(groups == np.arange(len(groups)))
    _join_near_identical(groups, distinct, labels, thumbnails, progress)
    groups = np.array([_root(groups, index) for index in range(len(groups))], np.int64)
    by_bytes = len(digests) - len(np.unique(first_bytes))
    return Duplicates(
        groups=groups,
        byte_identical=by_bytes,
        pixel_identical=len(digests) - len(distinct) - by_bytes,
        near_identical=len(distinct) - len(np.unique(groups)),
    )


def grey_thumbnail(rgb: Image.Image) -> npt.NDArray[np.uint8]:
    """Reduce an RGB image of 64×64 to luma (ITU-R BT.601), uint8 (32, 32)."""
    return np.asarray(rgb.convert("L").reduce(2))


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
    labels: npt.NDArray[np.int64],
    thumbnails: npt.NDArray[np.uint8],
    progress: Progress,
) -> None:
    """Join the groups (a union-find forest) of distinct photos that look the same, in place."""
    done = 0
    for label in np.unique(labels):
        rows = distinct[labels[distinct] == label]
        photos, spectrum = _spectra(rows, thumbnails)
        for pairs in _similar_pairs(spectrum):
            for start in range(0, len(pairs), _PAIRS_AT_ONCE):
                _join_alike(groups, photos[pairs[start : start + _PAIRS_AT_ONCE]], thumbnails)
        done += len(rows)
        progress("comparing photos", done, len(distinct))


def _spectra(
    rows: npt.NDArray[np.int64], thumbnails: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return those of the photos that have texture, and what is their own in their spectra."""
    kept, spectra = [np.zeros(0, np.int64)], [np.zeros((0, len(_EXPECTED)), np.float32)]
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        grey = thumbnails[block].astype(np.float32)
        energy = np.square(np.abs(_gradients(grey)))
        textured = _MIN_TEXTURE_CELLS * np.square(energy).sum(axis=(1, 2)) <= 1.0
        textured &= energy.any(axis=(1, 2))
        kept.append(block[textured])
        spectra.append(_spectrum(grey[textured]))
    photos, spectrum = np.concatenate(kept), np.concatenate(spectra)
    # What the photos of the class have in common tells none of them apart; in a small class
    # little of it is known.
    spectrum -= spectrum.sum(axis=0) / (len(spectrum) + _PRIOR_PHOTOS)
    spectrum /= np.linalg.norm(spectrum, axis=1, keepdims=True) + 1e-9
    return photos, spectrum


def _join_alike(
    groups: npt.NDArray[np.int64],
    pairs: npt.NDArray[np.int64],
    thumbnails: npt.NDArray[np.uint8],
) -> None:
    # A cluster of many is joined by a few of its pairs; the others need no look.
    apart = [_root(groups, one) != _root(groups, other) for one, other in pairs.tolist()]
    pairs = pairs[np.array(apart, bool)]
    left, right = (thumbnails[side].astype(np.float32) for side in pairs.T)
    for one, other in pairs[_aligned_correlation(left, right) >= _MIN_CORRELATION].tolist():
        low, high = sorted((_root(groups, one), _root(groups, other)))
        groups[high] = low


def _similar_pairs(spectrum: npt.NDArray[np.float32]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield (P, 2) indices of the most similar pairs, block against block."""
    for start in range(0, len(spectrum), _BLOCK):
        rows = spectrum[start : start + _BLOCK]
        for other in range(start, len(spectrum), _BLOCK):
            cosine = rows @ spectrum[other : other + _BLOCK].T
            if other == start:
                cosine = np.triu(cosine, 1)
            alike = np.flatnonzero((cosine >= _MIN_SIMILARITY).any(axis=1))
            count = min(_NEIGHBOURS, cosine.shape[1])
            nearest = np.argpartition(cosine[alike], -count, axis=1)[:, -count:]
            left, right = np.repeat(alike, count), nearest.ravel()
            chosen = cosine[left, right] >= _MIN_SIMILARITY
            yield np.stack([left[chosen] + start, right[chosen] + other], axis=1)


def _frequencies() -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """The half plane of low frequencies, and the expected log magnitude at each."""
    down, right = np.meshgrid(*[np.fft.fftfreq(THUMBNAIL_SIZE) * THUMBNAIL_SIZE] * 2, indexing="ij")
    half = (down > 0) | ((down == 0) & (right > 0))
    low = half & (np.abs(down) <= _MAX_FREQUENCY) & (np.abs(right) <= _MAX_FREQUENCY)
    return low, (_SPECTRUM_SLOPE * np.log(np.hypot(down, right)[low])).astype(np.float32)


_LOW, _EXPECTED = _frequencies()
_WINDOW = np.outer(*[np.hanning(THUMBNAIL_SIZE + 2)[1:-1]] * 2).astype(np.float32)


def _spectrum(grey: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Log magnitudes of low frequencies less what photos have on average, (n, 84)."""
    centred = grey - grey.mean(axis=(1, 2), keepdims=True)
    magnitude = np.abs(np.fft.fft2(centred * _WINDOW)[:, _LOW])
    log = np.log(magnitude + 8.0) - _EXPECTED
    return log - log.mean(axis=1, keepdims=True)


def _aligned_correlation(
    left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Correlation of gradients at the best shift: (n, 32, 32) twice to (n,)."""
    product = np.fft.fft2(_gradients(left)) * np.conj(np.fft.fft2(_gradients(right)))
    shifts = np.r_[0 : _MAX_SHIFT + 1, -_MAX_SHIFT:0]
    return np.fft.ifft2(product).real[:, shifts][:, :, shifts].max(axis=(1, 2), initial=-1.0)


def _gradients(grey: npt.NDArray[np.float32]) -> npt.NDArray[np.complex64]:
    """Horizontal + i vertical differences, of zero mean and unit norm (or all zero)."""
    across = np.diff(grey, axis=2, prepend=grey[:, :, :1])
    down = np.diff(grey, axis=1, prepend=grey[:, :1])
    gradient = across + 1j * down
    gradient -= gradient.mean(axis=(1, 2), keepdims=True)
    norm = np.sqrt(np.square(np.abs(gradient)).sum(axis=(1, 2), keepdims=True))
    return gradient / np.maximum(norm, 1e-9)


def _root(groups: npt.NDArray[np.int64], index: int) -> int:
    while groups[index] != index:
        groups[index] = groups[groups[index]]
        index = int(groups[index])
    return int(index)
