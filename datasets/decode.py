"""The bytes of one image file to RGB pixels: the only decoder, so that every framework sees one.

Content decides, never the suffix. Threads may call everything here.
"""

import contextlib
import io
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError, features

from datasets.colour import BACKGROUND, UnsupportedPixelsError, to_rgb
from datasets.errors import printable

Resize = Literal["squash", "crop", "pad"]
RESIZES: tuple[Resize, ...] = get_args(Resize)

MAX_FILE_BYTES = 256 * 2**20
"""Larger files are refused unread: no photo is this large, and memory stays bounded."""

_MAX_PIXELS_PER_BYTE = 16384
"""Twice what deflate makes of the emptiest page; a large image beyond it is a header that lies."""

_LARGE_PIXELS = 2**24
_large_image = threading.Lock()
"""Images above 16 megapixels are decoded one at a time, so that memory does not grow with cores."""

_DECODE_VERSION = 1
"""Raise when a change to the decoder, the colours or the resize changes any pixel."""

# Stubs without a decoder, and vector formats that Pillow hands to an outside program.
_NOT_DECODED = {"BUFR", "EPS", "FITS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}
_COMMON = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Tried first: some of the others have no signature and must read on before they decline."""
Image.init()
_FORMATS = (*_COMMON, *(name for name in Image.OPEN if name not in {*_COMMON, *_NOT_DECODED}))


class UnreadableImageError(Exception):
    """The file is no image that can be decoded whole; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Photo:
    """One decoded image file."""

    rgb: Image.Image
    """Mode RGB, upright, at its own size."""
    format: str
    """What the content is, in Pillow's words: ``JPEG``, ``PNG``, …"""
    mode: str
    """Pillow mode of the stored samples: ``RGB``, ``CMYK``, ``I;16``, …"""
    notes: tuple[str, ...]
    """What had to be put right to read it: orientation, profile, first of many frames."""


def decoder_version() -> str:
    """Everything besides the file's bytes that determines its pixels, as one line."""
    codecs = [f"{name} {features.version(name)}" for name in ("jpg", "webp", "avif", "littlecms2")]
    return f"decode {_DECODE_VERSION}, pillow {Image.__version__}, {', '.join(codecs)}"


def read_file(path: str | Path) -> bytes:
    """Return the bytes of a regular file.

    Never blocks on a FIFO and never reads a device.

    Raises:
        UnreadableImageError: not a regular file, not readable, empty, too large, or gone.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableImageError("not a regular file")
            if status.st_size > MAX_FILE_BYTES:
                raise UnreadableImageError(
                    f"{status.st_size:,} bytes; files over {MAX_FILE_BYTES:,} are not read"
                )
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        kind = "broken link" if os.path.islink(path) else "no such file"
        raise UnreadableImageError(kind) from error
    except OSError as error:
        raise UnreadableImageError(f"cannot be read: {error.strerror or error}") from error
    if not data:
        raise UnreadableImageError("empty file")
    return data


def decode(data: bytes) -> Photo:
    """Decode a whole image file: first frame, upright, RGB on white.

    Raises:
        UnreadableImageError: no image, truncated, damaged, or more than 178,956,970 pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            pixels = image.width * image.height
            large = pixels > _LARGE_PIXELS
            if large and pixels > _MAX_PIXELS_PER_BYTE * len(data):
                raise UnreadableImageError(
                    f"decompression bomb: {pixels:,} pixels out of {len(data):,} bytes"
                )
            with _large_image if large else contextlib.nullcontext():
                return _decode_open(image)
    except UnidentifiedImageError as error:
        raise UnreadableImageError(_describe_content(data)) from error
    except Image.DecompressionBombError as error:
        raise UnreadableImageError(f"decompression bomb: {_one_line(error)}") from error
    except UnsupportedPixelsError as error:
        raise UnreadableImageError(str(error)) from error
    except MemoryError as error:
        raise UnreadableImageError("does not fit in memory") from error
    except Exception as error:
        # Pillow's plugins raise what their parsing runs into (OSError, SyntaxError, struct.error,
        # KeyError, …): a damaged file must never end the run.
        reason = _one_line(error) or type(error).__name__
        if "truncated" in reason.casefold():
            reason = f"truncated after {len(data):,} bytes"
        raise UnreadableImageError(reason) from error


def _decode_open(image: Image.Image) -> Photo:
    notes: list[str] = []
    image_format, mode = image.format or "", image.mode
    if getattr(image, "n_frames", 1) > 1:
        notes.append("first of several frames")
    image.load()
    if image.info.get("icc_profile"):
        notes.append("colour profile")
    rgb = to_rgb(image)
    try:
        # The orientation belongs to the file, which the converted copy may have lost.
        orientation = image.getexif().get(0x0112, 1)
    except Exception:
        # Any damaged EXIF: the pixels are whole, only their orientation is unknown.
        orientation = 1
        notes.append("unreadable EXIF")
    if orientation in _UPRIGHT:
        rgb = rgb.transpose(_UPRIGHT[orientation])
        notes.append("turned upright")
    return Photo(rgb=rgb, format=image_format, mode=mode, notes=tuple(notes))


_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation to the transpose that undoes it (EXIF 2.3, tag 0x0112)."""


def resize(rgb: Image.Image, image_size: int, how: Resize) -> npt.NDArray[np.uint8]:
    """Resize with antialiasing (bilinear, support scaled to the reduction).

    Args:
        rgb: mode RGB, any size.
        image_size: side of the square result in pixels.
        how: ``squash`` the whole image to the square, ``crop`` the largest central square, or
            ``pad`` the whole image, in proportion, with white.

    Returns:
        uint8 (image_size, image_size, 3).
    """
    square = (image_size, image_size)
    bilinear = Image.Resampling.BILINEAR
    if how == "crop":
        side = min(rgb.size)
        left, top = (rgb.width - side) / 2, (rgb.height - side) / 2
        result = rgb.resize(square, bilinear, box=(left, top, left + side, top + side))
    elif how == "pad":
        scale = image_size / max(rgb.size)
        width, height = (max(1, round(side * scale)) for side in rgb.size)
        result = Image.new("RGB", square, (BACKGROUND,) * 3)
        corner = ((image_size - width) // 2, (image_size - height) // 2)
        result.paste(rgb.resize((width, height), bilinear), corner)
    else:
        result = rgb.resize(square, bilinear)
    return np.asarray(result)


@contextlib.contextmanager
def pillow_warnings_ignored() -> Iterator[None]:
    """Silence what Pillow warns about while files are decoded: the scan tells it better.

    Filters belong to the whole process and threads may leave in another order than they came, so
    nothing but Pillow is silenced.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL(\.|$)")
        yield


def _describe_content(data: bytes) -> str:
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<")):
        return "not an image: a web page or XML"
    if start.startswith((b"pk\x03\x04", b"\x1f\x8b", b"7z\xbc\xaf", b"rar!", b"(\xb5/\xfd")):
        return "not an image: an archive; unpack it first"
    if data.startswith(b"\xff\xd8\xff"):
        return f"truncated after {len(data):,} bytes"
    if not data.strip(b"\0"):
        return f"not an image: {len(data):,} zero bytes"
    if start.startswith((b"%!ps", b"%pdf")):
        return "not an image: PostScript or PDF"
    return "not an image that can be decoded"


def _one_line(error: Exception) -> str:
    return printable(" ".join(str(error).split())[:200])
