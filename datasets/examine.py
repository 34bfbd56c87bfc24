"""Read every file of a listing once: is it whole, what is in it, what does it look like."""

import hashlib
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image

from datasets.decode import (
    Photo,
    UnreadableImageError,
    decode,
    pillow_warnings_ignored,
    read_file,
)
from datasets.duplicates import THUMBNAIL_SIZE, grey_thumbnail
from datasets.errors import Progress
from datasets.parallel import ordered_map
from datasets.sources import Listing, Quarantined

_FILES_PER_TASK = 32
_SIZE = 64
"""Side of the squashed photo that colours and thumbnails are taken from."""
_STRIP_PIXELS = 2**21
_LEVELS = np.arange(256.0)
_LARGE_PIXELS = 89_478_485
"""Where Pillow warns of a decompression bomb; it refuses at twice as many."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one readable file is."""

    digest: bytes
    pixel_digest: bytes
    thumbnail: npt.NDArray[np.uint8]
    channel_sums: npt.NDArray[np.float64]
    channel_square_sums: npt.NDArray[np.float64]
    format: str
    mode: str
    size: tuple[int, int]
    notes: tuple[str, ...]
    file_bytes: int


@dataclass(kw_only=True)
class Examination:
    """The readable files of a listing, in its order, as columns (56 bytes a file)."""

    rows: npt.NDArray[np.int64]
    """Index into the listing of each readable file, ascending, shape (N,)."""
    digests: npt.NDArray[np.uint8]
    """SHA-256 of each file's bytes, shape (N, 32)."""
    pixel_digests: npt.NDArray[np.uint8]
    """BLAKE2b-128 of each photo's size and upright RGB pixels, shape (N, 16)."""
    thumbnails: npt.NDArray[np.uint8]
    """Grey thumbnail of each photo, shape (N, 32, 32), mapped from a file without a name."""
    quarantined: list[Quarantined]
    file_bytes: int
    """Of all readable files together."""
    formats: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Width and height in pixels, upright."""
    notes: Counter[str] = field(default_factory=Counter)
    channel_mean: npt.NDArray[np.float64]
    """Mean of R, G, B in 0..1 with each photo weighted equally, shape (3,)."""
    channel_std: npt.NDArray[np.float64]
    """Standard deviation over the same pixels, shape (3,)."""


def examine(listing: Listing, *, progress: Progress) -> Examination:
    """Decode every file with all cores; unreadable ones are quarantined with their reason."""
    count = len(listing.paths)
    rows, quarantined = bytearray(), list(listing.quarantined)
    digests, pixel_digests = bytearray(), bytearray()
    formats: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    notes: Counter[str] = Counter()
    sums, square_sums, file_bytes = np.zeros(3), np.zeros(3), 0

    def examine_chunk(start: int) -> list[_Facts | str]:
        stop = min(start + _FILES_PER_TASK, count)
        return [_examine_file(listing, listing.paths[row]) for row in range(start, stop)]

    progress("reading photos", 0, count)
    row = 0
    with pillow_warnings_ignored(), tempfile.TemporaryFile() as thumbnail_file:
        for chunk in ordered_map(examine_chunk, range(0, count, _FILES_PER_TASK)):
            for facts in chunk:
                if isinstance(facts, str):
                    quarantined.append(Quarantined(listing.paths[row], facts))
                else:
                    rows += row.to_bytes(8, "little")
                    digests += facts.digest
                    pixel_digests += facts.pixel_digest
                    thumbnail_file.write(facts.thumbnail.tobytes())
                    formats[facts.format] += 1
                    modes[facts.mode] += 1
                    sizes[facts.size] += 1
                    notes.update(facts.notes)
                    file_bytes += facts.file_bytes
                    sums += facts.channel_sums
                    square_sums += facts.channel_square_sums
                row += 1
            progress("reading photos", row, count)
        readable = len(rows) // 8
        thumbnails = _map_thumbnails(thumbnail_file, readable)
    values = max(readable, 1) * _SIZE**2 * 255.0
    mean = sums / values
    return Examination(
        rows=np.frombuffer(rows, "<i8").astype(np.int64),
        digests=np.frombuffer(digests, np.uint8).reshape(-1, 32),
        pixel_digests=np.frombuffer(pixel_digests, np.uint8).reshape(-1, 16),
        thumbnails=thumbnails,
        quarantined=sorted(quarantined, key=lambda bad: bad.path),
        file_bytes=file_bytes,
        formats=formats,
        modes=modes,
        sizes=sizes,
        notes=notes,
        channel_mean=mean,
        channel_std=np.sqrt(np.maximum(square_sums / values / 255.0 - mean**2, 0.0)),
    )


def _examine_file(listing: Listing, path: str) -> _Facts | str:
    """Facts about one file, or the reason why it takes no part."""
    try:
        data = read_file(listing.root / path)
        digest = hashlib.sha256(data)
        expected = listing.digests.get(path)
        if expected is not None and digest.hexdigest() != expected:
            return "its bytes have changed since the manifest was written (SHA-256 differs)"
        photo = decode(data)
    except UnreadableImageError as error:
        return str(error)
    small = photo.rgb.resize((_SIZE, _SIZE), Image.Resampling.BILINEAR)
    counts = np.array(small.histogram(), np.float64).reshape(3, 256)
    return _Facts(
        digest=digest.digest(),
        pixel_digest=_digest_pixels(photo.rgb),
        thumbnail=grey_thumbnail(small),
        channel_sums=counts @ _LEVELS,
        channel_square_sums=counts @ np.square(_LEVELS),
        format=photo.format,
        mode=photo.mode,
        size=photo.rgb.size,
        notes=(*photo.notes, *_name_notes(path, photo)),
        file_bytes=len(data),
    )


def _digest_pixels(rgb: Image.Image) -> bytes:
    """Strip by strip, so that a large photo is not copied whole."""
    digest = hashlib.blake2b(repr(rgb.size).encode(), digest_size=16)
    rows = max(1, _STRIP_PIXELS // rgb.width)
    for top in range(0, rgb.height, rows):
        box = (0, top, rgb.width, min(top + rows, rgb.height))
        digest.update((rgb if rows >= rgb.height else rgb.crop(box)).tobytes())
    return digest.digest()


def _map_thumbnails(file: IO[bytes], count: int) -> npt.NDArray[np.uint8]:
    shape = (count, THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    file.flush()
    return np.memmap(file, np.uint8, "r", shape=shape) if count else np.zeros(shape, np.uint8)


_SUFFIXES = {
    "jpg": "JPEG", "jpeg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "png": "PNG", "gif": "GIF",
    "webp": "WEBP", "bmp": "BMP", "tif": "TIFF", "tiff": "TIFF", "avif": "AVIF",
}  # fmt: skip


def _name_notes(path: str, photo: Photo) -> list[str]:
    notes = []
    suffix = path.rpartition(".")[2].casefold()
    content = "JPEG" if photo.format == "MPO" else photo.format
    if _SUFFIXES.get(suffix, content) != content:
        notes.append(f"{content} named .{suffix}")
    if photo.rgb.width * photo.rgb.height > _LARGE_PIXELS:
        notes.append(f"over {_LARGE_PIXELS:,} pixels")
    return notes
