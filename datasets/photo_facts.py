"""What one file is: its digests, how it looks small, and how it was stored."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from datasets.decode import UnreadableImageError, decode, decoder_version, read_file
from datasets.duplicates import THUMBNAIL_SIZE, grey_thumbnail

SMALL_SIZE = 64
"""Side of the squashed photo that colours and thumbnails are taken from."""
_STRIP_PIXELS = 2**21
_LEVELS = np.arange(256)
_VERSION = 2
"""Raise when any fact is worked out in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotoFacts:
    """Facts about one readable file."""

    digest: bytes
    """SHA-256 of its bytes."""
    pixel_digest: bytes
    """SHA-256 of its size and upright RGB pixels, the first 128 bits."""
    thumbnail: bytes
    """Grey, 32×32."""
    channel_sums: tuple[int, ...]
    """Sums of R, G, B over the photo squashed to 64×64."""
    channel_square_sums: tuple[int, ...]
    format: str
    mode: str
    size: tuple[int, int]
    """Width and height in pixels, upright."""
    notes: tuple[str, ...]
    file_bytes: int

    def to_bytes(self) -> bytes:
        """Pack for keeping."""
        rest = {name: getattr(self, name) for name in self.__slots__ if name not in _BINARY_LENGTHS}
        return self.digest + self.pixel_digest + self.thumbnail + json.dumps(rest).encode()

    @classmethod
    def from_bytes(cls, packed: bytes) -> "PhotoFacts":
        """Unpack what `to_bytes` made."""
        binary, start = {}, 0
        for name, length in _BINARY_LENGTHS.items():
            binary[name] = packed[start : start + length]
            start += length
        rest = json.loads(packed[start:])
        size, sums, squares, notes = (
            tuple(rest.pop(name))
            for name in ("size", "channel_sums", "channel_square_sums", "notes")
        )
        return cls(
            **binary, **rest, size=size, channel_sums=sums, channel_square_sums=squares, notes=notes
        )


_BINARY_LENGTHS = {"digest": 32, "pixel_digest": 16, "thumbnail": THUMBNAIL_SIZE**2}


def facts_version() -> str:
    """Everything besides the file that determines its facts."""
    return f"facts {_VERSION}, {decoder_version()}"


def examine_file(path: Path) -> PhotoFacts | str:
    """Read and decode a file; return its facts, or the reason why it is no photo."""
    try:
        data = read_file(path)
        photo = decode(data)
    except UnreadableImageError as error:
        return str(error)
    small = photo.rgb.resize((SMALL_SIZE, SMALL_SIZE), Image.Resampling.BILINEAR)
    counts = np.array(small.histogram()).reshape(3, 256)
    return PhotoFacts(
        digest=hashlib.sha256(data).digest(),
        pixel_digest=_digest_pixels(photo.rgb),
        thumbnail=grey_thumbnail(small).tobytes(),
        channel_sums=tuple((counts @ _LEVELS).tolist()),
        channel_square_sums=tuple((counts @ _LEVELS**2).tolist()),
        format=photo.format,
        mode=photo.mode,
        size=photo.rgb.size,
        notes=photo.notes,
        file_bytes=len(data),
    )


def _digest_pixels(rgb: Image.Image) -> bytes:
    """Strip by strip, so that a large photo is not copied whole."""
    digest = hashlib.sha256(repr(rgb.size).encode())
    rows = max(1, _STRIP_PIXELS // rgb.width)
    for top in range(0, rgb.height, rows):
        box = (0, top, rgb.width, min(top + rows, rgb.height))
        digest.update((rgb if rows >= rgb.height else rgb.crop(box)).tobytes())
    return digest.digest()[:16]
