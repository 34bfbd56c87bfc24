"""Decode once: the photos of a manifest as one memory-mapped uint8 array on disk.

Below the cache folder, ``pixels/<key>/`` holds ``images.npy``, uint8 (N, S, S, 3) in the order of
the manifest, and ``chunks.json``, the SHA-256 of each chunk of rows. The key covers everything
that determines the pixels: the photos' digests in order, the size, the resize and the decoder.
``pixels/<key>/views/<manifest>/`` holds labels and split, so that seeds and folds share pixels.
"""

import errno
import hashlib
import os
import shutil
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from datasets.cache_view import write_json, write_view
from datasets.decode import RESIZES, Resize, decoder_version, pillow_warnings_ignored
from datasets.entry_pixels import decode_entry
from datasets.errors import DataError, Progress, no_progress
from datasets.manifest import Manifest
from datasets.parallel import ordered_map
from datasets.pixel_layout import CacheDamagedError, PixelLayout, cache_bytes
from datasets.places import cache_root, only_process

LIMIT_VARIABLE = "AMP_HARNESS_CACHE_LIMIT_GB"
_DEFAULT_LIMIT_GB = 200.0
_IN_USE_S = 24 * 3600
"""A cache used within this time is never removed to make room."""
_FORMAT_VERSION = 1


def build_cache(
    manifest: Manifest,
    *,
    image_size: int,
    resize: Resize = "squash",
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the cache folder of a manifest's pixels; decode them if no sound one exists.

    An existing cache is checked, every byte, and rebuilt where it is damaged. An interrupted
    build goes on where it stopped. Processes that want the same cache wait for one to build it.

    Args:
        manifest: the photos; each must still have the bytes it had when it was scanned.
        image_size: side of the square images in pixels.
        resize: how photos become square; see `datasets.decode.resize`.
        cache_dir: by default AMP_HARNESS_CACHE or the user's cache folder.
        progress: told the size before the first byte is written, then the images done.

    Raises:
        DataError: a photo changed or vanished, the folder cannot be written, the disk is full.
    """
    report = progress or no_progress
    _check_options(image_size, resize)
    root = cache_root(cache_dir) / "pixels"
    key = _pixels_key(manifest, image_size, resize)
    folder = root / key
    layout = PixelLayout(len(manifest.paths), image_size)
    needed = cache_bytes(layout.images, image_size)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with only_process(root / f"{key}.lock", report):
            try:
                layout.check(folder, report)
            except CacheDamagedError:
                shutil.rmtree(folder, ignore_errors=True)
                _make_room(root, needed, keep=key)
                _build(folder, manifest, layout, resize, report)
            view = write_view(folder, manifest, image_size)
            os.utime(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(root, needed) from error
        raise DataError(
            f"{root}: the cache cannot be written: {error.strerror}; choose another folder with "
            "AMP_HARNESS_CACHE"
        ) from error
    return view


def _check_options(image_size: int, how: str) -> None:
    if not 1 <= image_size <= 4096:
        raise DataError(f"image size {image_size} must lie between 1 and 4096 pixels")
    if how not in RESIZES:
        raise DataError(f"resize {how!r} is none of {', '.join(RESIZES)}")


def _pixels_key(manifest: Manifest, image_size: int, how: Resize) -> str:
    content = hashlib.sha256(manifest.digests.tobytes())
    content.update(f"{image_size}\0{how}\0{decoder_version()}\0{_FORMAT_VERSION}".encode())
    return content.hexdigest()[:32]


def _build(
    folder: Path, manifest: Manifest, layout: PixelLayout, how: Resize, report: Progress
) -> None:
    """Write chunk by chunk into ``<key>.partial``, noting the digest of each, then rename."""
    needed = cache_bytes(layout.images, layout.image_size)
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(exist_ok=True)
    images_path, journal_path = partial / "images.npy", partial / "journal"
    done = _sound_chunks(partial, layout)
    written = images_path.stat().st_size if images_path.exists() else 0
    if shutil.disk_usage(partial).free < needed - written:
        raise _disk_full(partial.parent, needed)
    stage = f"decoding photos into a cache of {needed:,} bytes in {folder.parent}"
    images_done = sum(len(layout.chunks[number]) for number in done)
    report(stage, images_done, layout.images)
    missing = [number for number in range(len(layout.chunks)) if number not in done]

    def decode_row(row: int) -> npt.NDArray[np.uint8]:
        return decode_entry(manifest, row, layout.image_size, how)

    # Plain writes, not a memory map: on a full disk a map kills the process with SIGBUS.
    with (
        open(images_path, "r+b" if images_path.exists() else "w+b") as images,
        open(journal_path, "a", encoding="ascii") as journal,
        pillow_warnings_ignored(),
        closing(
            ordered_map(decode_row, (row for number in missing for row in layout.chunks[number]))
        ) as decoded,
    ):
        images.write(layout.header)
        buffer = np.empty((len(layout.chunks[0]), *layout.shape[1:]), np.uint8)
        for number in missing:
            rows = layout.chunks[number]
            pixels = buffer[: len(rows)]
            for place in range(len(rows)):
                pixels[place] = next(decoded)
            done[number] = hashlib.sha256(pixels.data).hexdigest()
            images.seek(layout.offset(rows.start))
            images.write(pixels.data)
            images.flush()
            journal.write(f"{number} {done[number]}\n")
            journal.flush()
            images_done += len(rows)
            report(stage, images_done, layout.images)
        images.truncate(layout.file_bytes)
        os.fsync(images.fileno())
    write_json(partial / "chunks.json", [done[number] for number in range(len(layout.chunks))])
    journal_path.unlink()
    os.rename(partial, folder)


def _sound_chunks(partial: Path, layout: PixelLayout) -> dict[int, str]:
    """Chunks of an interrupted build whose bytes are on disk as its journal says."""
    noted: dict[int, str] = {}
    try:
        for line in (partial / "journal").read_text(encoding="ascii").splitlines():
            number, _, digest = line.partition(" ")
            noted[int(number)] = digest
        actual = enumerate(layout.digests(partial / "images.npy"))
        return {number: digest for number, digest in actual if noted.get(number) == digest}
    except (OSError, ValueError):
        return {}


def _make_room(root: Path, needed: int, *, keep: str) -> None:
    """Remove the least recently used caches until the new one fits the limit."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit = int(float(text or _DEFAULT_LIMIT_GB) * 1e9)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{LIMIT_VARIABLE}={text!r} is not a number of gigabytes") from error
    if needed > limit:
        raise DataError(
            f"the pixel cache needs {needed:,} bytes, its limit is {limit:,}; raise "
            f"{LIMIT_VARIABLE}, choose a smaller image size or --input live"
        )
    folders = []
    for images in root.glob("*/images.npy"):
        if images.parent.name.partition(".")[0] != keep:
            folders.append((images.parent.stat().st_mtime, images.stat().st_size, images.parent))
    used = sum(size for _, size, _ in folders)
    for last_used_s, size, folder in sorted(folders):
        if used + needed <= limit or time.time() - last_used_s < _IN_USE_S:
            break
        doomed = folder.with_name(f"{folder.name}.removed")
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        used -= size


def _disk_full(folder: Path, needed: int) -> DataError:
    return DataError(
        f"{folder}: the pixel cache needs {needed:,} bytes, {shutil.disk_usage(folder).free:,} are "
        "free; make room, or choose another folder with AMP_HARNESS_CACHE"
    )
