"""Unpack an archive that a stranger may have made: nothing escapes, nothing explodes."""

import bz2
import contextlib
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from datasets.archive_names import decode_zip_names, safe_parts
from datasets.decode import MAX_FILE_BYTES
from datasets.errors import DataError, Progress
from datasets.names import redecode
from datasets.places import only_process

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz")

MAX_EXPANSION = 100
"""Photos hardly compress; what unpacks to more than this many times its size is a bomb."""
_ALWAYS_ALLOWED_BYTES = 2**28
"""Small archives may unpack to this much whatever their ratio."""
_MAX_HEADER_BYTES = 2**22
_COPY_BYTES = 2**20
_LAYOUT_VERSION = 1


def _open_zstandard(raw: IO[bytes], mode: str) -> Any:
    import zstandard  # only where data is prepared: a worker may run without it

    # Frames may follow one another; windows over 128 MiB are refused, as the zstd tool does.
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
    return decompressor.stream_reader(raw, read_across_frames=True)


_COMPRESSIONS = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstandard,
}


def is_archive(path: Path) -> bool:
    """Whether the content is a zip, a tar or a compressed file, whatever its name."""
    try:
        with open(path, "rb") as file:
            start = file.read(512)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return (
        start[257:262] == b"ustar"
        or start.startswith((b"PK\x03\x04", b"PK\x05\x06", *_COMPRESSIONS))
        or (path.name.casefold().endswith(ARCHIVE_SUFFIXES) and len(start) > 0)
    )


def extract_archive(path: Path, *, cache_dir: Path, progress: Progress) -> Path:
    """Unpack below ``cache_dir`` and return the folder; an earlier unpacking is used again.

    Files appear whole or not at all, and an interrupted unpacking goes on where it stopped.
    Hidden and operating systems' own files are left out.

    Raises:
        DataError: damaged, encrypted, a bomb, members that are links or devices, twice the
            same name, or lead out of the archive; or the disk is full.
    """
    status = os.stat(path)
    identity = f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0{_LAYOUT_VERSION}"
    key = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    folder = cache_dir / "archives" / key
    partial = folder.with_name(f"{key}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_process(folder.with_name(f"{key}.lock"), progress):
            if not _is_complete(folder):
                shutil.rmtree(folder, ignore_errors=True)
                partial.mkdir(exist_ok=True)
                with _unpacking_errors(path, partial, status.st_size):
                    _unpack(path, partial / "files", status.st_size, progress)
                _write_totals(partial)
                os.rename(partial, folder)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be unpacked into {cache_dir}: {error.strerror}; choose another cache "
            "folder with AMP_HARNESS_CACHE"
        ) from error
    return folder / "files"


def _unpack(path: Path, target: Path, archive_bytes: int, progress: Progress) -> None:
    target.mkdir(parents=True, exist_ok=True)
    writer = _Writer(path, target, archive_bytes)
    if zipfile.is_zipfile(path):
        _unpack_zip(path, writer, progress)
    else:
        _unpack_tar(path, writer, progress)
    if not writer.seen:
        raise DataError(f"{path}: the archive holds no files")


class _Writer:
    """Writes members below one folder within one budget of bytes."""

    def __init__(self, archive: Path, target: Path, archive_bytes: int) -> None:
        self.archive = archive
        self.target = target
        self.budget = max(_ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * archive_bytes)
        self.seen: set[str] = set()

    def spend(self, count: int) -> None:
        self.budget -= count
        if self.budget < 0:
            raise DataError(
                f"{self.archive}: unpacks to more than {MAX_EXPANSION} times its size: "
                "a decompression bomb, not photos"
            )

    def write(self, parts: tuple[str, ...], size: int, source: IO[bytes]) -> None:
        name = "/".join(parts)
        if name in self.seen:
            raise DataError(f"{self.archive}: holds {name!r} twice; pack it again without doubles")
        self.seen.add(name)
        path = self.target.joinpath(*parts)
        if path.is_file() and path.stat().st_size == size:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.target.with_name("unfinished")
        with open(unfinished, "wb") as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)
            if file.tell() != size:
                raise DataError(f"{self.archive}: damaged at {name!r}; fetch or pack it again")
        os.rename(unfinished, path)


def _unpack_zip(path: Path, writer: _Writer, progress: Progress) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        names = decode_zip_names(members)
        for member, name in zip(members, names, strict=True):
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _not_plain(path, name)
            if member.flag_bits & 0x1:
                raise DataError(f"{path}: encrypted; unpack it yourself and give the folder")
            safe_parts(name, path)
        writer.spend(sum(member.file_size for member in members))
        _check_free_space(writer.target, sum(member.file_size for member in members), path)
        for done, (member, name) in enumerate(zip(members, names, strict=True)):
            progress("unpacking", done, len(members))
            parts = safe_parts(name, path)
            if parts is None or member.is_dir() or name.endswith("/"):
                continue
            with archive.open(member) as source:
                writer.write(parts, _check_size(path, name, member.file_size), source)
        progress("unpacking", len(members), len(members))


def _unpack_tar(path: Path, writer: _Writer, progress: Progress) -> None:
    total = os.path.getsize(path)
    _check_free_space(writer.target, total, path)
    with open(path, "rb") as raw, _decompressed(raw) as stream:
        metered = _Metered(stream, writer)
        with tarfile.open(fileobj=metered, mode="r|", bufsize=2**16, errorlevel=2) as archive:
            while True:
                # Between members only headers are read; a tar can ask for any length of them.
                metered.header_allowance = _MAX_HEADER_BYTES
                member = archive.next()
                metered.header_allowance = None
                # tarfile keeps every member it has seen; a stream needs none of them.
                archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
                if member is None:
                    break
                name = redecode(member.name)
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise _not_plain(path, name)
                parts = safe_parts(name, path)
                if member.isdir():
                    continue
                size = _check_size(path, name, member.size)
                source = archive.extractfile(member)
                if source is None:
                    continue
                if parts is not None:
                    writer.write(parts, size, source)
                while source.read(_COPY_BYTES):
                    pass
                progress("unpacking", raw.tell(), total)


@contextlib.contextmanager
def _decompressed(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    start = raw.read(6)
    raw.seek(0)
    for magic, opener in _COMPRESSIONS.items():
        if start.startswith(magic):
            with opener(raw, "rb") as stream:
                yield stream
            return
    yield raw


class _Metered(io.RawIOBase):
    """Counts what is read against the writer's budget, and headers against their own."""

    def __init__(self, stream: IO[bytes], writer: _Writer) -> None:
        self._stream = stream
        self._writer = writer
        # Opening a tar reads its first header.
        self.header_allowance: int | None = _MAX_HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._writer.spend(len(data))
        if self.header_allowance is not None:
            self.header_allowance -= len(data)
            if self.header_allowance < 0:
                raise DataError(f"{self._writer.archive}: member header too long; not a usable tar")
        return data


def _not_plain(path: Path, name: str) -> DataError:
    return DataError(f"{path}: member {name!r} is a link, device or sparse; pack plain files")


def _check_size(path: Path, name: str, size: int) -> int:
    if size > MAX_FILE_BYTES:
        raise DataError(
            f"{path}: member {name!r} has {size:,} bytes; photos have at most {MAX_FILE_BYTES:,}"
        )
    return size


def _check_free_space(target: Path, needed: int, path: Path) -> None:
    free = shutil.disk_usage(target).free
    if free < needed:
        raise DataError(
            f"{path}: unpacking needs {needed:,} bytes, {target} has {free:,} free; make room or "
            "choose another cache folder with AMP_HARNESS_CACHE"
        )


@contextlib.contextmanager
def _unpacking_errors(path: Path, partial: Path, archive_bytes: int) -> Iterator[None]:
    """Turn what readers raise into one line; keep what is unpacked only after a full disk."""
    try:
        yield
    except DataError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"{path}: the disk of {partial.parent} is full; make room for at least "
                f"{archive_bytes:,} bytes and run it again, it goes on where it stopped"
            ) from error
        shutil.rmtree(partial, ignore_errors=True)
        raise DataError(
            f"{path}: damaged archive or impossible names: {' '.join(str(error).split())[:150]}"
        ) from error
    except Exception as error:
        # zipfile, tarfile and the decompressors raise whatever their parsing runs into.
        shutil.rmtree(partial, ignore_errors=True)
        reason = " ".join(str(error).split())[:150] or type(error).__name__
        raise DataError(f"{path}: damaged archive: {reason}; fetch or pack it again") from error


def _totals(folder: Path) -> dict[str, int]:
    sizes = [
        os.path.getsize(os.path.join(parent, name))
        for parent, _, names in os.walk(folder / "files")
        for name in names
    ]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _write_totals(folder: Path) -> None:
    (folder / "totals.json").write_text(json.dumps(_totals(folder)), encoding="utf-8")


def _is_complete(folder: Path) -> bool:
    try:
        recorded = json.loads((folder / "totals.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return recorded == _totals(folder)
