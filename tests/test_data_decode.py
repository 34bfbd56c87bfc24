"""Bytes of an image to RGB pixels, against values worked out by hand."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from datasets.decode import (
    Photo,
    UnreadableImageError,
    decode,
    pillow_warnings_ignored,
    read_file,
    resize,
)


def encoded(image: Image.Image, image_format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def pixels(photo: Photo) -> np.ndarray:
    return np.asarray(photo.rgb).astype(int)


def png(width, height, bit_depth, colour_type, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand (ISO/IEC 15948), so that Pillow is not its own witness."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">L", len(body)) + kind + body + struct.pack(">L", zlib.crc32(kind + body))
        )

    header = struct.pack(">LLBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    data += b"".join(chunk(kind, body) for kind, body in chunks)
    return data + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_a_16_bit_grey_ramp_is_scaled_by_255_over_65535():
    values = [0, 128, 129, 257, 1000, 32768, 65406, 65407, 65535]
    photo = decode(png(9, 1, 16, 0, b"\0" + struct.pack(">9H", *values)))
    # value / 257 rounded to nearest: 128/257 = 0.498 and 129/257 = 0.502 part at one half.
    assert pixels(photo)[0, :, 0].tolist() == [0, 0, 1, 1, 4, 128, 254, 255, 255]
    assert photo.mode.startswith("I")


def test_a_16_bit_grey_that_is_declared_transparent_turns_white():
    rows = b"\0" + struct.pack(">2H", 1000, 514)
    photo = decode(png(2, 1, 16, 0, rows, (b"tRNS", struct.pack(">H", 1000))))
    assert pixels(photo)[0, :, 0].tolist() == [255, 2]


def test_16_bit_colour_keeps_its_level_within_one():
    rows = b"\0" + struct.pack(">3H", 65535, 32896, 257)
    assert np.abs(pixels(decode(png(1, 1, 16, 2, rows)))[0, 0] - [255, 128, 1]).max() <= 1


@pytest.mark.parametrize(
    ("bits", "rows", "grey"),
    [(1, b"\0\x40", [0, 255]), (2, b"\0\x60", [85, 170]), (4, b"\0\x1e", [17, 238])],
)
def test_grey_of_few_bits_fills_the_range(bits, rows, grey):
    assert pixels(decode(png(2, 1, bits, 0, rows)))[0, :, 0].tolist() == grey


def test_a_palette_with_partial_transparency_is_composited_on_white():
    palette = (b"PLTE", bytes([255, 0, 0, 0, 0, 200]))
    photo = decode(png(2, 1, 8, 3, b"\0\0\1", palette, (b"tRNS", bytes([0, 51]))))
    # Alpha 51/255 = 0.2: 0.2*(0, 0, 200) + 0.8*255 = (204, 204, 244).
    assert pixels(photo)[0].tolist() == [[255, 255, 255], [204, 204, 244]]


def test_transparent_red_becomes_white_and_half_red_becomes_pink():
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (255, 0, 0, 128))
    white, pink = pixels(decode(encoded(image, "PNG")))[0]
    assert white.tolist() == [255, 255, 255]
    # 255 - 255*128/255 = 127.
    assert np.abs(pink - [255, 127, 127]).max() <= 1


def test_grey_with_alpha_is_composited_on_white():
    image = Image.new("LA", (1, 1), (100, 51))
    # 0.2*100 + 0.8*255 = 224.
    assert pixels(decode(encoded(image, "PNG")))[0, 0].tolist() == [224, 224, 224]


def test_a_transparent_rgb_key_turns_white():
    rows = b"\0" + bytes([9, 8, 7, 10, 20, 30])
    photo = decode(png(2, 1, 8, 2, rows, (b"tRNS", struct.pack(">3H", 9, 8, 7))))
    assert pixels(photo)[0].tolist() == [[255, 255, 255], [10, 20, 30]]


def test_a_cmyk_jpeg_comes_out_in_its_own_colours_not_inverted():
    image = Image.new("RGB", (16, 16), (200, 30, 30)).convert("CMYK")
    photo = decode(encoded(image, "JPEG", quality=95))
    assert photo.mode == "CMYK"
    assert np.abs(pixels(photo) - [200, 30, 30]).max() <= 3


def test_a_cmyk_tiff_is_multiplied_out():
    image = Image.new("CMYK", (1, 1), (51, 102, 0, 51))
    # (1 - ink)(1 - black): 0.8*0.8, 0.6*0.8, 1.0*0.8 of 255.
    assert np.abs(pixels(decode(encoded(image, "TIFF")))[0, 0] - [163, 122, 204]).max() <= 1


def icc_profile(space: bytes, connection: bytes, tags: dict[bytes, bytes]) -> bytes:
    """An ICC version 2 profile written by hand (ICC.1:2001-04, clauses 6.1 and 6.2)."""
    table, body = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        content += b"\0" * (-len(content) % 4)
        table += name + struct.pack(">LL", start + len(body), len(content))
        body += content
    kind = b"mntr" if space == b"RGB " else b"prtr"
    header = struct.pack(
        ">L4sL4s4s4s", start + len(body), b"\0" * 4, 0x02100000, kind, space, connection
    )
    header += b"\0" * 12 + b"acsp" + b"\0" * 28 + struct.pack(">3L", 0xF6D6, 0x10000, 0xD32D)
    return header.ljust(128, b"\0") + struct.pack(">L", len(tags)) + table + body


def xyz_tag(*values: float) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(struct.pack(">l", round(value * 65536)) for value in values)


def description_tag(text: bytes) -> bytes:
    body = b"desc\0\0\0\0" + struct.pack(">L", len(text) + 1) + text + b"\0"
    return body + b"\0" * 78


def swapped_rgb_profile() -> bytes:
    """sRGB with the primaries of red and blue exchanged (D50 primaries of IEC 61966-2-1)."""
    gamma = b"curv\0\0\0\0" + struct.pack(">LH", 1, round(2.2 * 256)) + b"\0\0"
    red, green, blue = (0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141)
    return icc_profile(
        b"RGB ",
        b"XYZ ",
        {
            b"desc": description_tag(b"swapped"),
            b"wtpt": xyz_tag(0.9642, 1.0, 0.8249),
            b"rXYZ": xyz_tag(*blue),
            b"gXYZ": xyz_tag(*green),
            b"bXYZ": xyz_tag(*red),
            b"rTRC": gamma,
            b"gTRC": gamma,
            b"bTRC": gamma,
        },
    )


def test_an_embedded_rgb_profile_is_converted_to_srgb():
    image = Image.new("RGB", (1, 1), (200, 120, 40))
    photo = decode(encoded(image, "PNG", icc_profile=swapped_rgb_profile()))
    # Red and blue change places; gamma 2.2 against the sRGB curve moves 40 the most:
    # (40/255)^2.2 = 0.01696 linear = 0.1378 in sRGB = 35.
    assert np.abs(pixels(photo)[0, 0] - [35, 120, 200]).max() <= 2
    assert "colour profile" in photo.notes


def cmyk_profile() -> bytes:
    """A CMYK profile of two points an ink: Lab chosen for each of the 16 corners."""
    corners = []
    for corner in range(16):  # C is the slowest, K the fastest
        cyan, magenta, yellow, black = (corner >> shift & 1 for shift in (3, 2, 1, 0))
        lab = (100 - 25 * (cyan + magenta + yellow), 0, 0) if not black else (0, 0, 0)
        if (cyan, magenta, yellow, black) == (0, 1, 1, 0):
            lab = (50, 60, 40)
        corners.append(bytes([round(lab[0] * 2.55), lab[1] + 128, lab[2] + 128]))
    identity = b"".join(struct.pack(">9l", *[65536 * (i % 4 == 0) for i in range(9)]) for _ in "x")
    ramp = bytes(range(256))
    table = (
        b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + identity + ramp * 4 + b"".join(corners) + ramp * 3
    )
    return icc_profile(
        b"CMYK",
        b"Lab ",
        {
            b"desc": description_tag(b"corners"),
            b"wtpt": xyz_tag(0.9642, 1.0, 0.8249),
            b"A2B0": table,
        },
    )


def test_a_cmyk_jpeg_with_a_profile_takes_its_colours_from_the_profile():
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    photo = decode(encoded(red, "JPEG", quality=100, icc_profile=cmyk_profile()))
    # Lab (50, 60, 40) in sRGB by the formulas of CIE 15 and IEC 61966-2-1, Bradford-adapted;
    # the profile's 8-bit steps of L and JPEG leave a few levels.
    assert np.abs(pixels(photo)[8, 8] - lab_to_srgb(50, 60, 40)).max() <= 4
    # Without the profile it would be pure red.
    assert np.abs(pixels(photo)[8, 8] - [255, 0, 0]).max() > 40


def lab_to_srgb(lightness: float, a: float, b: float) -> np.ndarray:
    """CIE L*a*b* (D50) to 8-bit sRGB, written out from the standards."""
    fy = (lightness + 16) / 116
    cubes = np.array([fy + a / 500, fy, fy - b / 200])
    xyz = np.where(cubes > 6 / 29, cubes**3, 3 * (6 / 29) ** 2 * (cubes - 4 / 29))
    xyz *= [0.9642, 1.0, 0.8249]
    to_linear = [
        [3.1339, -1.6169, -0.4906], [-0.9788, 1.9161, 0.0335], [0.0719, -0.2290, 1.4052],
    ]  # fmt: skip
    linear = np.clip(np.array(to_linear) @ xyz, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def test_the_lab_formulas_of_this_file_agree_with_a_published_value():
    # Lindbloom: sRGB (255, 0, 0) is L*a*b* (54.29, 80.81, 69.89) under D50.
    assert np.abs(lab_to_srgb(54.29, 80.81, 69.89) - [255, 0, 0]).max() <= 1.5


def test_a_lab_tiff_is_converted():
    image = Image.new("LAB", (1, 1), (128, 128, 128))
    # L = 128/255*100 = 50.2, neutral: Y = 0.1858, sRGB 119.7.
    assert np.abs(pixels(decode(encoded(image, "TIFF")))[0, 0] - 120).max() <= 2


def test_a_profile_of_another_colour_space_is_left_aside():
    image = Image.new("RGB", (1, 1), (200, 120, 40))
    photo = decode(encoded(image, "PNG", icc_profile=cmyk_profile()))
    assert pixels(photo)[0, 0].tolist() == [200, 120, 40]


def test_a_damaged_profile_is_left_aside():
    image = Image.new("RGB", (1, 1), (200, 120, 40))
    photo = decode(encoded(image, "PNG", icc_profile=swapped_rgb_profile()[:150]))
    assert pixels(photo)[0, 0].tolist() == [200, 120, 40]


ORIENTATIONS = {
    # EXIF 2.3: where the stored top-left pixel (red) and top-right pixel (green) are shown.
    1: ((0, 0), (0, 2)), 2: ((0, 2), (0, 0)), 3: ((1, 2), (1, 0)), 4: ((1, 0), (1, 2)),
    5: ((0, 0), (2, 0)), 6: ((0, 1), (2, 1)), 7: ((2, 1), (0, 1)), 8: ((2, 0), (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_photo_is_turned_upright(image_format, orientation):
    image = Image.new("RGB", (48, 32), "black")
    image.paste("red", (0, 0, 16, 16))
    image.paste("lime", (32, 0, 48, 16))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 100, "subsampling": 0} if image_format == "JPEG" else {}
    options = {"lossless": True} if image_format == "WEBP" else options
    shown = pixels(decode(encoded(image, image_format, exif=exif, **options)))
    assert shown.shape[:2] == ((48, 32) if orientation >= 5 else (32, 48))
    red, green = ORIENTATIONS[orientation]
    cell = shown.reshape(shown.shape[0] // 16, 16, shown.shape[1] // 16, 16, 3).mean(axis=(1, 3))
    assert np.abs(cell[red] - [255, 0, 0]).max() <= 4
    assert np.abs(cell[green] - [0, 255, 0]).max() <= 4


def test_a_40_by_20_photo_with_orientation_6_becomes_20_by_40():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded(Image.new("RGB", (40, 20)), "JPEG", exif=exif)).rgb.size == (20, 40)


@pytest.mark.parametrize("image_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_gives_its_first_frame(image_format):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if image_format == "WEBP" else {}
    data = encoded(frames[0], image_format, save_all=True, append_images=frames[1:], **options)
    photo = decode(data)
    assert pixels(photo)[0, 0].tolist() == [255, 0, 0]
    assert "first of several frames" in photo.notes


def test_floats_in_0_to_1_are_scaled_by_255():
    image = Image.fromarray(np.array([[0.0, 0.25, 1.0]], np.float32))
    # 0.25*255 = 63.75.
    assert pixels(decode(encoded(image, "TIFF")))[0, :, 0].tolist() == [0, 64, 255]


@pytest.mark.parametrize("value", [np.nan, np.inf, 7.0, -0.5])
def test_floats_without_a_brightness_are_refused(value):
    image = Image.fromarray(np.array([[0.5, value]], np.float32))
    with pytest.raises(UnreadableImageError, match=r"float samples outside 0\.\.1"):
        decode(encoded(image, "TIFF"))


def test_a_portable_grey_map_of_16_bits_is_scaled():
    data = b"P5\n2 1\n65535\n" + struct.pack(">2H", 65535, 25700)
    assert pixels(decode(data))[0, :, 0].tolist() == [255, 100]


def test_32_bit_integers_beyond_16_bits_are_refused():
    image = Image.fromarray(np.array([[0, 70000]], np.int32))
    with pytest.raises(UnreadableImageError, match="32-bit integer samples"):
        decode(encoded(image, "TIFF"))


def tiff(tags: list[tuple[int, int, int]], data: bytes) -> bytes:
    """A little-endian TIFF of one strip written by hand (TIFF 6.0, section 2)."""
    start = 8 + len(data) + len(data) % 2
    body = b"II*\0" + struct.pack("<L", start) + data.ljust(start - 8, b"\0")
    body += struct.pack("<H", len(tags))
    return (
        body
        + b"".join(struct.pack("<HHLL", tag, kind, 1, value) for tag, kind, value in tags)
        + b"\0" * 4
    )


@pytest.mark.parametrize(("photometric", "grey"), [(0, [255, 245]), (1, [0, 10])])
def test_a_16_bit_tiff_whose_zero_is_white_is_inverted(photometric, grey):
    tags = [(256, 3, 2), (257, 3, 1), (258, 3, 16), (259, 3, 1), (262, 3, photometric)]
    tags += [(273, 4, 8), (277, 3, 1), (278, 3, 1), (279, 4, 4)]
    photo = decode(tiff(tags, struct.pack("<2H", 0, 2570)))
    assert pixels(photo)[0, :, 0].tolist() == grey


@pytest.mark.parametrize(
    "mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "LAB", "I;16", "F"]
)
def test_every_mode_that_tiff_can_store_is_decoded(mode):
    image = Image.new(mode, (3, 2))
    photo = decode(encoded(image, "TIFF"))
    assert photo.rgb.mode == "RGB"
    assert photo.rgb.size == (3, 2)


def test_half_a_jpeg_is_refused_not_filled_with_grey():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = encoded(Image.fromarray(noise), "JPEG")
    with pytest.raises(UnreadableImageError, match=f"truncated after {len(data) // 2:,} bytes"):
        decode(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"\0" * 100, "zero bytes"),
        (b"PK\3\4 and so on", "an archive"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
        (b"\xff\xd8\xff\xe0 cut", "truncated after 8 bytes"),
        (b"any text", "not an image"),
    ],
)
def test_what_is_no_image_is_refused_with_what_it_is(data, reason):
    with pytest.raises(UnreadableImageError, match=reason):
        decode(data)


def test_a_bomb_is_refused_before_it_is_unpacked():
    # 14,000 x 14,000 = 196,000,000 pixels, above Pillow's 178,956,970; the rows are never sent.
    with pillow_warnings_ignored(), pytest.raises(UnreadableImageError, match="bomb"):
        decode(png(14000, 14000, 8, 2, b""))


def test_a_header_that_claims_far_more_than_the_file_can_hold_is_refused():
    # 10,000 x 10,000 is within Pillow's limits, but no codec makes it out of some 70 bytes.
    with pillow_warnings_ignored(), pytest.raises(UnreadableImageError, match="100,000,000 pixels"):
        decode(png(10000, 10000, 8, 2, b""))


def test_an_image_between_the_two_limits_of_pillow_is_decoded():
    # 9,500 x 9,500 = 90,250,000 pixels of one bit: Pillow warns above 89,478,485.
    rows = (b"\0" + b"\xff" * 1188) * 9500
    with pillow_warnings_ignored():
        assert decode(png(9500, 9500, 1, 0, rows)).rgb.size == (9500, 9500)


def test_a_squashed_checkerboard_is_grey_because_resizing_is_antialiased():
    board = (np.indices((256, 256)).sum(axis=0) % 2 * 255).astype(np.uint8)
    small = resize(Image.fromarray(board).convert("RGB"), 32, "squash").astype(int)
    assert np.abs(small - 127.5).max() <= 3


def test_crop_takes_the_central_square():
    image = Image.new("RGB", (60, 20), "red")
    image.paste("blue", (20, 0, 40, 20))
    small = resize(image, 10, "crop")
    assert small[:, 1:-1].reshape(-1, 3).tolist() == [[0, 0, 255]] * 80


def test_pad_keeps_proportions_on_white():
    small = resize(Image.new("RGB", (40, 20), "red"), 8, "pad")
    assert small[2:6].reshape(-1, 3).tolist() == [[255, 0, 0]] * 32
    assert small[[0, 1, 6, 7]].min() == 255


def test_padding_a_very_wide_image_leaves_at_least_one_row():
    small = resize(Image.new("RGB", (2000, 8), "black"), 16, "pad")
    assert (small == 0).any()


@pytest.mark.parametrize("how", ["squash", "crop", "pad"])
def test_one_pixel_fills_the_square(how):
    small = resize(Image.new("RGB", (1, 1), (1, 2, 3)), 5, how)
    assert small.reshape(-1, 3).tolist() == [[1, 2, 3]] * 25


def test_an_empty_file_and_a_fifo_are_refused(tmp_path):
    import os

    (tmp_path / "empty.jpg").touch()
    os.mkfifo(tmp_path / "fifo.jpg")
    with pytest.raises(UnreadableImageError, match="empty file"):
        read_file(tmp_path / "empty.jpg")
    with pytest.raises(UnreadableImageError, match="not a regular file"):
        read_file(tmp_path / "fifo.jpg")


def test_srgb_of_littlecms_leaves_colours_as_they_are():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = Image.new("RGB", (1, 1), (200, 120, 40))
    photo = decode(encoded(image, "PNG", icc_profile=profile))
    assert np.abs(pixels(photo)[0, 0] - [200, 120, 40]).max() <= 1
