"""Mutated images, archives and manifests against the data package: no crash, hang or escape.

Run from the repository: ``python benchmarks/data_fuzz.py --inputs 100000``. Seeds are small valid
files of every format that Pillow writes, of every kind of archive, and CSVs. A mutation flips
bits, writes extreme integers, cuts, repeats, removes or inserts pieces, or joins two seeds; one to
eight of them are applied. Input number n of a seed is the same in every run. Each part runs in a
fresh process, so that a crash of a decoder is seen and named, and its peak memory is its own.
"""

import argparse
import bz2
import faulthandler
import gzip
import io
import json
import lzma
import random
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import zstandard
from PIL import Image, ImageCms

HANG_S = 60
PART = 5000
KINDS = ("image", "archive", "manifest")
SHARES = {"image": 0.8, "archive": 0.1, "manifest": 0.1}
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def image_seeds() -> list[bytes]:
    """Return a 24×20 picture in every format and mode that Pillow writes."""
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "text"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.init()
    seeds = []
    for name in sorted(Image.SAVE):
        for mode in ("RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "I;16", "F", "LAB"):
            image = picture.convert("L").convert(mode) if mode in ("I;16", "F") else None
            try:
                image = image or (
                    Image.new(mode, (24, 20)) if mode == "LAB" else picture.convert(mode)
                )
                buffer = io.BytesIO()
                options = {"exif": exif, "icc_profile": profile} if mode == "RGB" else {}
                image.save(buffer, name, **options)
                seeds.append(buffer.getvalue())
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
                continue  # this format has no such mode
    for name in ("GIF", "PNG", "WEBP", "TIFF"):
        buffer = io.BytesIO()
        picture.save(buffer, name, save_all=True, append_images=[picture.rotate(90)])
        seeds.append(buffer.getvalue())
    return [seed for seed in seeds if seed]


def archive_seeds() -> list[bytes]:
    """Return small archives of two classes, one of every kind."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 30)).save(buffer, "PNG")
    members = {f"top/{name}/{n}.png": buffer.getvalue() for name in "ab" for n in range(2)}
    seeds = []
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        seeds.append(buffer.getvalue())
    for tar_format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
            for name, data in {**members, "top/a/" + "long" * 40 + ".png": b"x"}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        plain = buffer.getvalue()
        seeds += [plain, plain, gzip.compress(plain), bz2.compress(plain), lzma.compress(plain)]
        seeds.append(zstandard.compress(plain))
    return seeds


def manifest_seeds() -> list[bytes]:
    """Return CSVs of both column sets."""
    own = "path,class,label,split,sha256\n" + "".join(
        f"{name}/{n}.png,{name},{label},{('train', 'val')[n % 2]},{'ab' * 32}\n"
        for label, name in enumerate("ab")
        for n in range(3)
    )
    other = "images,label\n" + "".join(f'"x/{n}, y.png",{n % 2}\n' for n in range(6))
    return [own.encode(), other.encode(), b"\xef\xbb\xbf" + other.replace("\n", "\r\n").encode()]


def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Apply one to eight random mutations; the start is hit more often, as headers lie there."""
    body = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not body:
            break
        at = min(int(rng.expovariate(8 / len(body))), len(body) - 1) if rng.random() < 0.6 else 0
        at = at or rng.randrange(len(body))
        length = min(rng.choice((1, 2, 4, 16, 64, 256)), len(body) - at)
        kind = rng.randrange(8)
        if kind < 2:
            body[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            value, width = rng.choice(EXTREMES), rng.choice((1, 2, 4))
            packed = struct.pack(rng.choice("<>") + "Q", value)
            body[at : at + width] = packed[:width] if rng.random() < 0.5 else packed[-width:]
        elif kind == 3:
            del body[at : at + length]
        elif kind == 4:
            body[at:at] = body[at : at + length] * rng.randint(1, 4)
        elif kind == 5:
            body[at:at] = rng.randbytes(length)
        elif kind == 6:
            del body[at:]
        else:
            start = rng.randrange(max(1, len(other)))
            body[at : at + length] = other[start : start + length]
    return bytes(body)


def run_part(kind: str, first: int, count: int) -> None:
    """Feed inputs first to first + count; print how they ended as one line of JSON."""
    from datasets.archives import extract_archive
    from datasets.csv_source import list_csv
    from datasets.decode import UnreadableImageError, decode, pillow_warnings_ignored, resize
    from datasets.errors import DataError, no_progress

    seeds = {"image": image_seeds, "archive": archive_seeds, "manifest": manifest_seeds}[kind]()
    box = Path(tempfile.mkdtemp(prefix="data-fuzz-"))
    accepted, slowest_s = 0, 0.0
    try:
        for number in range(first, first + count):
            rng = random.Random(f"{kind}/{number}")
            data = mutate(rng.choice(seeds), rng.choice(seeds), rng)
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            start_s = time.perf_counter()
            try:
                if kind == "image":
                    with pillow_warnings_ignored():
                        resize(decode(data).rgb, 16, "squash")
                else:
                    source = box / "in" / f"{number}.bin"
                    source.parent.mkdir(exist_ok=True)
                    source.write_bytes(data)
                    if kind == "archive":
                        extract_archive(source, cache_dir=box / "cache", progress=no_progress)
                    else:
                        list_csv(source)
                accepted += 1
            except (UnreadableImageError, DataError) as error:
                if "\n" in str(error):
                    raise AssertionError(f"{kind} {number}: not one line: {error}") from error
            except BaseException:
                print(f"crash at {kind} {number}", file=sys.stderr)
                raise
            slowest_s = max(slowest_s, time.perf_counter() - start_s)
            if kind != "image":
                check_nothing_escaped(box, number)
    finally:
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(box)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"accepted": accepted, "slowest_s": slowest_s, "peak_bytes": peak}))


def check_nothing_escaped(box: Path, number: int) -> None:
    """Look that only the input and the cache folder exist, then empty both."""
    names = {path.name for path in box.iterdir()} - {"cache"}
    inside = {path.name for path in (box / "in").iterdir()}
    cached = (
        {path.name for path in (box / "cache").iterdir()} if (box / "cache").exists() else set()
    )
    links = [path for path in box.rglob("*") if path.is_symlink()]
    if names != {"in"} or inside != {f"{number}.bin"} or cached - {"archives"} or links:
        raise AssertionError(f"escape by input {number}: {names} {inside} {cached} {links}")
    for path in (box / "in", box / "cache"):
        shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Run all parts and print the totals; exit 1 at the first crash, hang or escape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--part", nargs=3, metavar=("KIND", "FIRST", "COUNT"))
    arguments = parser.parse_args()
    if arguments.part:
        kind, first, count = arguments.part
        run_part(kind, int(first), int(count))
        return
    for kind in KINDS:
        total, start_s = int(arguments.inputs * SHARES[kind]), time.perf_counter()
        parts = []
        for first in range(0, total, PART):
            count = min(PART, total - first)
            child = [sys.executable, __file__, "--part", kind, str(first), str(count)]
            done = subprocess.run(child, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{kind} {first} to {first + count}: exit {done.returncode}\n{done.stderr}")
                sys.exit(1)
            parts.append(json.loads(done.stdout))
        print(
            f"{kind}: {total:,} inputs in {time.perf_counter() - start_s:,.0f} s, "
            f"{sum(part['accepted'] for part in parts):,} accepted, the others refused; slowest "
            f"{max(part['slowest_s'] for part in parts):.2f} s, peak "
            f"{max(part['peak_bytes'] for part in parts) / 1e6:,.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
