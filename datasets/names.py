"""Names of files and members from any system: decoded, normalised, or ignored."""

import unicodedata
from collections.abc import Sequence

_SYSTEM_NAMES = {"__macosx", "thumbs.db", "desktop.ini", "ehthumbs.db", "$recycle.bin"}
_LEGACY_ENCODINGS = ("gb18030", "shift_jis", "cp437", "cp1252")
"""Code pages of Windows in China, Japan and the West; the last two DOS and Windows."""


def is_ignored(name: str) -> bool:
    """Whether a file or folder name is hidden or an operating system's own."""
    return name.startswith(".") or name.casefold() in _SYSTEM_NAMES


def redecode(name: str) -> str:
    """Decode a name that was not UTF-8 (Python left surrogates in it), in normal form C."""
    raw = name.encode("utf-8", "surrogateescape")
    return normal(raw.decode(common_encoding([raw])))


def common_encoding(names: Sequence[bytes]) -> str:
    """UTF-8 if it reads all names, else the code page that makes the most everyday letters.

    Nothing declares a code page, so this is a guess; a wrong one gives odd letters, never a
    wrong or unsafe file.
    """
    try:
        for name in names:
            name.decode("utf-8")
    except UnicodeDecodeError:
        joined = b"/".join(names)
        return max(_LEGACY_ENCODINGS, key=lambda encoding: _everyday_share(joined, encoding))
    return "utf-8"


def _everyday_share(text: bytes, encoding: str) -> float:
    try:
        letters = [letter for letter in text.decode(encoding) if not letter.isascii()]
    except UnicodeDecodeError:
        return 0.0 if encoding == "cp437" else -1.0  # cp437 reads any bytes
    return sum(map(_is_everyday, letters)) / max(len(letters), 1)


def _is_everyday(letter: str) -> bool:
    """Kana, accented Latin letters, and the 3,755 commonest ideographs (GB 2312, level 1)."""
    if "\u3041" <= letter <= "\u30fe" or "\u00c0" <= letter <= "\u017f":
        return True
    return b"\xb0" <= letter.encode("gb2312", "replace")[:1] <= b"\xd7"


def normal(name: str) -> str:
    """Return Unicode normal form C: macOS writes letters and accents apart."""
    return unicodedata.normalize("NFC", name)
