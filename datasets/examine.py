"""Read every file of a listing once: is it whole, what is in it, what does it look like."""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import numpy.typing as npt

from datasets.decode import pillow_warnings_ignored
from datasets.duplicates import THUMBNAIL_SIZE
from datasets.errors import Progress, printable
from datasets.parallel import ordered_map
from datasets.photo_facts import SMALL_SIZE, PhotoFacts, examine_file
from datasets.scan_index import ScanIndex
from datasets.sources import Listing, Quarantined

_FILES_PER_TASK = 32
_LARGE_PIXELS = 89_478_485
"""Where Pillow warns of a decompression bomb; it refuses at twice as many."""
_CHANGED = "its bytes have changed since the manifest was written (SHA-256 differs)"


@dataclass(kw_only=True)
class Examination:
    """The readable files of a listing, in its order, as columns (56 bytes a file)."""

    rows: npt.NDArray[np.int64]
    """Index into the listing of each readable file, ascending, shape (N,)."""
    digests: npt.NDArray[np.uint8]
    """SHA-256 of each file's bytes, shape (N, 32)."""
    pixel_digests: npt.NDArray[np.uint8]
    """128 bits of the SHA-256 of each photo's size and upright RGB pixels, shape (N, 16)."""
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


def examine(listing: Listing, *, index: ScanIndex, progress: Progress) -> Examination:
    """Decode every file with all cores; unreadable ones are quarantined with their reason.

    Files that the index knows are not read again.
    """
    count = len(listing.paths)
    rows, quarantined = bytearray(), list(listing.quarantined)
    digests, pixel_digests = bytearray(), bytearray()
    formats: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    notes: Counter[str] = Counter()
    sums, square_sums, file_bytes = np.zeros(3), np.zeros(3), 0

    def examine_chunk(start: int) -> list[PhotoFacts | str]:
        return _examine_files(listing, range(start, min(start + _FILES_PER_TASK, count)), index)

    progress("reading photos", 0, count)
    row = 0
    with pillow_warnings_ignored(), tempfile.TemporaryFile() as thumbnail_file:
        for chunk in ordered_map(examine_chunk, range(0, count, _FILES_PER_TASK)):
            for facts in chunk:
                if isinstance(facts, str):
                    quarantined.append(Quarantined(printable(listing.paths[row]), facts))
                else:
                    rows += row.to_bytes(8, "little")
                    digests += facts.digest
                    pixel_digests += facts.pixel_digest
                    thumbnail_file.write(facts.thumbnail)
                    formats[facts.format] += 1
                    modes[facts.mode] += 1
                    sizes[facts.size] += 1
                    notes.update([*facts.notes, *_name_notes(listing.paths[row], facts)])
                    file_bytes += facts.file_bytes
                    sums += facts.channel_sums
                    square_sums += facts.channel_square_sums
                row += 1
            progress("reading photos", row, count)
        readable = len(rows) // 8
        thumbnails = _map_thumbnails(thumbnail_file, readable)
    values = max(readable, 1) * SMALL_SIZE**2 * 255.0
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


def _examine_files(listing: Listing, rows: range, index: ScanIndex) -> list[PhotoFacts | str]:
    paths = [listing.paths[row] for row in rows]
    keys = [index.key(listing.root / path) for path in paths]
    known = index.find([key for key in keys if key is not None])
    results: list[PhotoFacts | str] = []
    news: dict[bytes, PhotoFacts] = {}
    for path, key in zip(paths, keys, strict=True):
        facts = known[key] if key in known else examine_file(listing.root / path)
        if isinstance(facts, PhotoFacts):
            if key is not None and key not in known:
                news[key] = facts
            if listing.digests.get(path, facts.digest.hex()) != facts.digest.hex():
                facts = _CHANGED
        results.append(facts)
    index.remember(news)
    return results


def _map_thumbnails(file: IO[bytes], count: int) -> npt.NDArray[np.uint8]:
    shape = (count, THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    file.flush()
    return np.memmap(file, np.uint8, "r", shape=shape) if count else np.zeros(shape, np.uint8)


_SUFFIXES = {
    "jpg": "JPEG", "jpeg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "png": "PNG", "gif": "GIF",
    "webp": "WEBP", "bmp": "BMP", "tif": "TIFF", "tiff": "TIFF", "avif": "AVIF",
}  # fmt: skip


def _name_notes(path: str, facts: PhotoFacts) -> list[str]:
    notes = []
    suffix = path.rpartition(".")[2].casefold()
    content = "JPEG" if facts.format == "MPO" else facts.format
    if _SUFFIXES.get(suffix, content) != content:
        notes.append(f"{content} named .{suffix}")
    if facts.size[0] * facts.size[1] > _LARGE_PIXELS:
        notes.append(f"over {_LARGE_PIXELS:,} pixels")
    return notes
