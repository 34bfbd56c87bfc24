"""Names of archive members: whatever encoding wrote them, none leads out of the archive."""

import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from datasets.errors import DataError
from datasets.names import common_encoding, is_ignored, normal

_UTF8_FLAG = 0x800
_MAX_PART_BYTES = 255
_MAX_DEPTH = 64


def safe_parts(name: str, archive: Path) -> tuple[str, ...] | None:
    """Split a member name into path parts; None for hidden and system files.

    Raises:
        DataError: the name is absolute, has a drive letter, climbs with ``..``, or is too long.
    """
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
        raise DataError(
            f"{archive}: member {name!r} leads out of the archive; it is not safe to unpack"
        )
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    too_long = any(len(part.encode("utf-8", "replace")) > _MAX_PART_BYTES for part in parts)
    if too_long or len(parts) > _MAX_DEPTH or "\0" in name:
        raise DataError(f"{archive}: member name too long, too deep or broken: {name[:80]!r}")
    return None if not parts or any(is_ignored(part) for part in parts) else parts


def decode_zip_names(members: Sequence[zipfile.ZipInfo]) -> list[str]:
    """Return names with ``/`` between parts, in Unicode normal form C.

    Zip files from Windows hold names in the local code page and some use ``\\``; macOS writes
    UTF-8 without saying so, decomposed; Info-ZIP adds a field with the Unicode name.
    """
    raw = [_raw_name(member) for member in members]
    encoding = common_encoding([name for name in raw if isinstance(name, bytes)])
    return [
        normal(name if isinstance(name, str) else name.decode(encoding)).replace("\\", "/")
        for name in raw
    ]


def _raw_name(member: zipfile.ZipInfo) -> str | bytes:
    """The name where its encoding is declared, else its bytes."""
    name = member.orig_filename
    if member.flag_bits & _UTF8_FLAG or name.isascii():
        return name
    raw = name.encode("cp437")
    return _unicode_extra_field(member.extra, raw) or raw


def _unicode_extra_field(extra: bytes, raw: bytes) -> str | None:
    """Info-ZIP Unicode Path (0x7075): version 1, CRC-32 of the plain name, name in UTF-8."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        field, extra = extra[4 : 4 + size], extra[4 + size :]
        head = b"\1" + struct.pack("<L", zlib.crc32(raw))
        if kind == 0x7075 and field.startswith(head):
            return field.removeprefix(head).decode("utf-8", "replace")
    return None
