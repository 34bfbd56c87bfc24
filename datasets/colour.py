"""Any Pillow mode, bit depth, colour space and transparency to 8-bit RGB, by arithmetic we own.

Pillow's own ``convert`` clips 16-bit grey at 255, drops alpha and ignores colour profiles.
"""

import functools
import io

import numpy as np
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

BACKGROUND = 255
"""Grey level behind transparent pixels and around padded images: white paper."""

_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0
"""TIFF 6.0, section 8: PhotometricInterpretation."""

_PROFILE_MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK", "Lab": "LAB"}
"""The Pillow mode whose samples a profile of each ICC colour space describes."""


class UnsupportedPixelsError(Exception):
    """Samples that stand for no defined brightness; the message says why."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a loaded image as 8-bit sRGB on white.

    Grey of 16 bits is scaled by 255/65535 and floats in 0..1 by 255, both rounded to nearest.
    An embedded ICC profile is converted to sRGB (relative colorimetric, black point compensated).
    Transparency is composited on white in sRGB: ``alpha*colour + (1-alpha)*255``.

    Raises:
        UnsupportedPixelsError: 32-bit integers beyond 65,535 or floats outside 0..1.
    """
    colour, alpha = _split_alpha(_to_8_bits(image))
    rgb = _convert_profile(colour, image.info.get("icc_profile"))
    if rgb is None:
        rgb = _convert_lab(colour) if colour.mode == "LAB" else _as_rgb(colour)
    if alpha is None:
        return rgb
    paper = Image.new("RGB", rgb.size, (BACKGROUND,) * 3)
    paper.paste(rgb, mask=alpha)
    return paper


def _as_rgb(colour: Image.Image) -> Image.Image:
    # convert() copies what is RGB already, 7 % of the time that a photo takes.
    return colour if colour.mode == "RGB" else colour.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Bring samples of 16 or 32 bits to 8, keeping a transparent grey as alpha."""
    if image.mode == "F":
        samples = np.asarray(image)
        # The comparison is false for NaN too.
        if not (samples.min() >= 0.0 and samples.max() <= 1.0):
            raise UnsupportedPixelsError("float samples outside 0..1 have no defined brightness")
        return Image.fromarray(np.rint(samples * 255.0).astype(np.uint8))
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return image
    samples = np.asarray(image).astype(np.int64)
    if samples.min() < 0 or samples.max() > 65535:
        raise UnsupportedPixelsError(
            "32-bit integer samples outside 0..65535 have no defined brightness"
        )
    if isinstance(image, TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        samples = 65535 - samples  # Pillow inverts 8-bit samples only
    grey = Image.fromarray(((samples * 255 + 32767) // 65535).astype(np.uint8))
    transparent = image.info.get("transparency")
    if not isinstance(transparent, int):
        return grey
    alpha = Image.fromarray(np.where(samples == transparent, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))


def _split_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Separate colour (mode L, RGB, CMYK, LAB, YCbCr or 1) from 8-bit alpha, if there is any."""
    if image.mode in ("P", "PA"):
        palette = image.palette
        has_alpha = image.mode == "PA" or "transparency" in image.info
        has_alpha = has_alpha or (palette is not None and palette.mode.endswith("A"))
        image = image.convert("RGBA" if has_alpha else "RGB")
    elif image.mode in ("RGBa", "La"):
        image = image.convert({"RGBa": "RGBA", "La": "LA"}[image.mode])
    elif image.mode in ("1", "L", "RGB") and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode == "RGBA":
        return image.convert("RGB"), image.getchannel("A")
    if image.mode == "LA":
        return image.getchannel("L"), image.getchannel("A")
    return image, None


def _convert_profile(colour: Image.Image, profile: bytes | None) -> Image.Image | None:
    """Convert by the embedded profile; None where there is none or it does not fit the samples."""
    if not profile:
        return None
    try:
        opened = ImageCms.getOpenProfile(io.BytesIO(profile))
        space = opened.profile.xcolor_space.strip()  # pyright: ignore[reportAttributeAccessIssue]
        mode = _PROFILE_MODES.get(space)
        if mode == "L" and colour.mode == "RGB":
            # Grey stored as palette or RGB: one channel holds all of it.
            red, green, blue = colour.split()
            if red.tobytes() == green.tobytes() == blue.tobytes():
                colour = red
        if mode is None or colour.mode not in (mode, "1" if mode == "L" else mode):
            return None
        return _transform(profile, mode).apply(colour.convert(mode))
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None


@functools.lru_cache(maxsize=16)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform:
    return ImageCms.buildTransform(
        ImageCms.ImageCmsProfile(io.BytesIO(profile)),
        ImageCms.createProfile("sRGB"),
        mode,
        "RGB",
        ImageCms.Intent.RELATIVE_COLORIMETRIC,
        ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )


def _convert_lab(image: Image.Image) -> Image.Image:
    """CIE L*a*b* (D50) without a profile of its own, as TIFF and Photoshop files hold it."""
    transform = ImageCms.buildTransform(
        ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB"
    )
    return transform.apply(image)
