"""How the pixels of a cache lie in images.npy, and the digests that tell whether they still do."""

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datasets.errors import Progress
from datasets.parallel import ordered_map

_CHUNK_BYTES = 2**22


class CacheDamagedError(Exception):
    """A cache folder does not hold what was written; the message says what differs."""


def cache_bytes(images: int, image_size: int) -> int:
    """Return the bytes that the pixels of so many images take on disk."""
    return images * image_size * image_size * 3


@dataclass(frozen=True)
class PixelLayout:
    """A uint8 array (images, image_size, image_size, 3) in a .npy file, in chunks of rows."""

    images: int
    image_size: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the array."""
        return (self.images, self.image_size, self.image_size, 3)

    @property
    def header(self) -> bytes:
        """The start of the file (NEP 1, version 1.0, padded to a multiple of 64 bytes)."""
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {self.shape}, }}"
        text += " " * (-(10 + len(text) + 1) % 64) + "\n"
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.offset(self.images)

    @functools.cached_property
    def chunks(self) -> list[range]:
        """The rows of each chunk, about 4 MiB."""
        rows = max(1, _CHUNK_BYTES // cache_bytes(1, self.image_size))
        starts = range(0, self.images, rows)
        return [range(start, min(start + rows, self.images)) for start in starts]

    def offset(self, row: int) -> int:
        """Where the pixels of a row start in the file."""
        return len(self.header) + cache_bytes(row, self.image_size)

    def digests(self, path: Path) -> Iterator[str]:
        """Yield the SHA-256 of each chunk in a file, read with all cores."""

        def digest(rows: range) -> str:
            with open(path, "rb") as file:
                file.seek(self.offset(rows.start))
                data = file.read(cache_bytes(len(rows), self.image_size))
            return hashlib.sha256(data).hexdigest()

        return ordered_map(digest, self.chunks)

    def check(self, folder: Path, report: Progress) -> None:
        """Compare header, size and every chunk of ``images.npy`` with ``chunks.json``.

        Raises:
            CacheDamagedError: something differs or is missing.
        """
        try:
            recorded = json.loads((folder / "chunks.json").read_text(encoding="utf-8"))
            with open(folder / "images.npy", "rb") as file:
                if file.read(len(self.header)) != self.header:
                    raise CacheDamagedError("images.npy has another header")
                if os.fstat(file.fileno()).st_size != self.file_bytes:
                    raise CacheDamagedError("images.npy has another size")
        except (OSError, ValueError) as error:
            raise CacheDamagedError(str(error)) from error
        if not isinstance(recorded, list) or len(recorded) != len(self.chunks):
            raise CacheDamagedError("chunks.json lists other chunks")
        for number, digest in enumerate(self.digests(folder / "images.npy")):
            if digest != recorded[number]:
                raise CacheDamagedError(f"images from {self.chunks[number].start} have other bytes")
            report("checking the cache", self.chunks[number].stop, self.images)
