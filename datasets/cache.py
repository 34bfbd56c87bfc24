"""Decode once: the photos of a manifest as one memory-mapped uint8 array on disk.

Below the cache folder, ``pixels/<key>/`` holds ``images.npy``, uint8 (N, S, S, 3) in the order of
the manifest, and ``chunks.json``, the SHA-256 of each chunk of rows. The key covers everything
that determines the pixels: the photos' digests in order, the size, the resize and the decoder.
``pixels/<key>/views/<manifest>/`` holds labels and split, so that seeds and folds share pixels.
"""

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from datasets.decode import (
    RESIZES,
    Resize,
    UnreadableImageError,
    decode,
    decoder_version,
    pillow_warnings_ignored,
    read_file,
    resize,
)
from datasets.errors import DataError, Progress, no_progress
from datasets.manifest import Manifest
from datasets.parallel import ordered_map
from datasets.places import cache_root, only_process

LIMIT_VARIABLE = "AMP_HARNESS_CACHE_LIMIT_GB"
_DEFAULT_LIMIT_GB = 200.0
_IN_USE_S = 24 * 3600
"""A cache used within this time is never removed to make room."""
_CHUNK_BYTES = 2**22
_FORMAT_VERSION = 1


class CacheDamagedError(Exception):
    """A cache folder does not hold what was written; the message says what differs."""


def cache_bytes(images: int, image_size: int) -> int:
    """Return the bytes that the pixels of so many images take on disk."""
    return images * image_size * image_size * 3


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
    try:
        root.mkdir(parents=True, exist_ok=True)
        with only_process(root / f"{key}.lock", report):
            try:
                _verify(folder, manifest, image_size, report)
            except CacheDamagedError:
                shutil.rmtree(folder, ignore_errors=True)
                _make_room(root, cache_bytes(len(manifest.paths), image_size), keep=key)
                _build(folder, manifest, image_size, resize, report)
            view = _write_view(folder, manifest, image_size)
            os.utime(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(root, cache_bytes(len(manifest.paths), image_size)) from error
        raise DataError(
            f"{root}: the cache cannot be written: {error.strerror}; choose another folder with "
            "AMP_HARNESS_CACHE"
        ) from error
    return view


def decode_entry(
    manifest: Manifest, index: int, image_size: int, how: Resize
) -> npt.NDArray[np.uint8]:
    """Decode one photo of a manifest to uint8 (image_size, image_size, 3).

    Raises:
        DataError: the file is not what the manifest says.
    """
    path = manifest.root / manifest.paths[index]
    try:
        data = read_file(path)
        if hashlib.sha256(data).digest() != manifest.digests[index].tobytes():
            raise UnreadableImageError("its bytes have changed since the scan")
        return resize_photo(data, image_size, how)
    except UnreadableImageError as error:
        raise DataError(f"{path}: {error}; scan the data again") from error


def resize_photo(data: bytes, image_size: int, how: Resize) -> npt.NDArray[np.uint8]:
    """Decode and resize the bytes of a file."""
    return resize(decode(data).rgb, image_size, how)


def _check_options(image_size: int, how: str) -> None:
    if not 1 <= image_size <= 4096:
        raise DataError(f"image size {image_size} must lie between 1 and 4096 pixels")
    if how not in RESIZES:
        raise DataError(f"resize {how!r} is none of {', '.join(RESIZES)}")


def _pixels_key(manifest: Manifest, image_size: int, how: Resize) -> str:
    content = hashlib.sha256(manifest.digests.tobytes())
    content.update(f"{image_size}\0{how}\0{decoder_version()}\0{_FORMAT_VERSION}".encode())
    return content.hexdigest()[:32]


def _header(count: int, image_size: int) -> bytes:
    """The fixed start of images.npy (NEP 1, version 1.0, padded to a multiple of 64 bytes)."""
    shape = (count, image_size, image_size, 3)
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")


def _chunks(count: int, image_size: int) -> list[range]:
    """The rows of each chunk."""
    rows = max(1, _CHUNK_BYTES // cache_bytes(1, image_size))
    return [range(start, min(start + rows, count)) for start in range(0, count, rows)]


def _build(
    folder: Path, manifest: Manifest, image_size: int, how: Resize, report: Progress
) -> None:
    """Write chunk by chunk into ``<key>.partial``, noting the digest of each, then rename."""
    count = len(manifest.paths)
    needed = cache_bytes(count, image_size)
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(exist_ok=True)
    images_path, journal_path = partial / "images.npy", partial / "journal"
    done = _sound_chunks(partial, count, image_size)
    written = images_path.stat().st_size if images_path.exists() else 0
    if shutil.disk_usage(partial).free < needed - written:
        raise _disk_full(partial.parent, needed)
    stage = f"decoding photos into a cache of {needed:,} bytes in {folder.parent}"
    chunks = _chunks(count, image_size)
    images_done = sum(len(chunks[number]) for number in done)
    report(stage, images_done, count)

    def decode_row(row: int) -> npt.NDArray[np.uint8]:
        return decode_entry(manifest, row, image_size, how)

    missing = [number for number in range(len(chunks)) if number not in done]
    # Plain writes, not a memory map: on a full disk a map kills the process with SIGBUS.
    with open(images_path, "r+b" if images_path.exists() else "w+b") as images:
        header = _header(count, image_size)
        images.write(header)
        with pillow_warnings_ignored(), open(journal_path, "a", encoding="ascii") as journal:
            decoded = ordered_map(decode_row, (row for number in missing for row in chunks[number]))
            for number in missing:
                rows = chunks[number]
                pixels = np.stack([next(decoded) for _ in rows]).tobytes()
                images.seek(len(header) + cache_bytes(rows.start, image_size))
                images.write(pixels)
                images.flush()
                journal.write(f"{number} {hashlib.sha256(pixels).hexdigest()}\n")
                journal.flush()
                done[number] = hashlib.sha256(pixels).hexdigest()
                images_done += len(rows)
                report(stage, images_done, count)
        images.truncate(len(header) + needed)
        images.flush()
        os.fsync(images.fileno())
    _write_json(partial / "chunks.json", [done[number] for number in range(len(chunks))])
    journal_path.unlink()
    os.rename(partial, folder)


def _sound_chunks(partial: Path, count: int, image_size: int) -> dict[int, str]:
    """Chunks of an interrupted build whose bytes are on disk as its journal says."""
    chunks = _chunks(count, image_size)
    noted: dict[int, str] = {}
    try:
        for line in (partial / "journal").read_text(encoding="ascii").splitlines():
            number, _, digest = line.partition(" ")
            noted[int(number)] = digest
        actual = _chunk_digests(partial / "images.npy", chunks, image_size, count)
        return {
            number: digest for number, digest in enumerate(actual) if noted.get(number) == digest
        }
    except (OSError, ValueError):
        return {}


def _chunk_digests(path: Path, chunks: list[range], image_size: int, count: int) -> Iterator[str]:
    offset = len(_header(count, image_size))

    def digest(rows: range) -> str:
        with open(path, "rb") as file:
            file.seek(offset + cache_bytes(rows.start, image_size))
            return hashlib.sha256(file.read(cache_bytes(len(rows), image_size))).hexdigest()

    return ordered_map(digest, chunks)


def _verify(folder: Path, manifest: Manifest, image_size: int, report: Progress) -> None:
    """Compare header, size and every chunk with what was written."""
    count = len(manifest.paths)
    chunks = _chunks(count, image_size)
    header = _header(count, image_size)
    try:
        recorded = json.loads((folder / "chunks.json").read_text(encoding="utf-8"))
        with open(folder / "images.npy", "rb") as file:
            if file.read(len(header)) != header:
                raise CacheDamagedError("images.npy has another header")
            if os.fstat(file.fileno()).st_size != len(header) + cache_bytes(count, image_size):
                raise CacheDamagedError("images.npy has another size")
    except (OSError, ValueError) as error:
        raise CacheDamagedError(str(error)) from error
    if not isinstance(recorded, list) or len(recorded) != len(chunks):
        raise CacheDamagedError("chunks.json lists other chunks")
    stage = "checking the cache"
    digests = _chunk_digests(folder / "images.npy", chunks, image_size, count)
    for number, digest in enumerate(digests):
        if digest != recorded[number]:
            raise CacheDamagedError(f"images {chunks[number].start} and on have other bytes")
        report(stage, chunks[number].stop, count)


def _write_view(folder: Path, manifest: Manifest, image_size: int) -> Path:
    """Labels, split and class names of one manifest, beside the pixels; always written anew."""
    view = folder / "views" / manifest.sha256[:32]
    view.mkdir(parents=True, exist_ok=True)
    labels = np.stack([manifest.labels, manifest.splits.astype(np.int64)])
    temporary = view / f"labels.{os.getpid()}.npy"
    np.save(temporary, labels)
    os.replace(temporary, view / "labels.npy")
    meta = {
        "name": manifest.name,
        "classes": list(manifest.classes),
        "images": len(manifest.paths),
        "image_size": image_size,
        "manifest_sha256": manifest.sha256,
        "labels_sha256": hashlib.sha256(labels.tobytes()).hexdigest(),
    }
    _write_json(view / "view.json", meta)
    return view


def read_view(view: Path) -> tuple[dict[str, Any], npt.NDArray[np.int64], Path]:
    """Return meta data, labels and splits int64 (2, N), and the path of the pixels.

    Raises:
        DataError: no cache folder, or a damaged one.
    """
    try:
        meta = json.loads((view / "view.json").read_text(encoding="utf-8"))
        labels = np.load(view / "labels.npy", allow_pickle=False)
        images = view.parent.parent / "images.npy"
        size = images.stat().st_size
        expected = len(_header(meta["images"], meta["image_size"])) + cache_bytes(
            meta["images"], meta["image_size"]
        )
        sound = hashlib.sha256(labels.tobytes()).hexdigest() == meta["labels_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{view}: no pixel cache: {error}; build it again") from error
    if not sound or size != expected:
        raise DataError(f"{view}: the pixel cache is damaged; build it again")
    return meta, labels, images


def _write_json(path: Path, content: Any) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


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
