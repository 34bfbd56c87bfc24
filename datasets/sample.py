"""The embedded sample: five dishes drawn by seed, written as JPEG files in class folders.

They are pictures, not photos, but they take learning: dishes share shapes and colours, and
vary in size, place, turn, light, table, plate, blur and noise.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from datasets.decode import decoder_version
from datasets.errors import DataError, Progress, no_progress
from datasets.parallel import ordered_map
from datasets.sample_dishes import DISHES
from datasets.sample_scenes import draw_scene

_VERSION = 1
"""Raise when a change alters any picture."""


def write_sample(
    folder: Path,
    *,
    images_per_class: int = 60,
    image_size: int = 96,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Draw the sample into ``folder/<class>/<number>.jpg`` and return the folder.

    The same bytes on every machine with the same Pillow.

    Raises:
        DataError: the folder holds something already, or cannot be written.
    """
    report = progress or no_progress
    jobs = [(dish, number) for dish in DISHES for number in range(images_per_class)]
    try:
        if folder.exists() and any(folder.iterdir()):
            raise DataError(f"{folder}: not empty; give a new folder for the sample")
        for dish in DISHES:
            (folder / dish).mkdir(parents=True, exist_ok=True)

        def write(job: tuple[str, int]) -> None:
            dish, number = job
            rng = random.Random(f"{seed}/{dish}/{number}")
            picture = draw_picture(dish, image_size=image_size, rng=rng)
            quality = rng.randint(80, 95)
            picture.save(folder / dish / f"{number:03d}.jpg", quality=quality)

        for done, _ in enumerate(ordered_map(write, jobs), start=1):
            report("drawing the sample", done, len(jobs))
    except OSError as error:
        raise DataError(f"{folder}: the sample cannot be written: {error.strerror}") from error
    return folder


def draw_picture(dish: str, *, image_size: int, rng: random.Random) -> Image.Image:
    """Draw one picture of a dish, RGB of ``image_size`` squared."""
    scene = draw_scene(DISHES[dish], rng)
    scene = scene.resize((image_size, image_size), Image.Resampling.BOX, reducing_gap=None)
    for enhance, reach in _LIGHT:
        scene = enhance(scene).enhance(1.0 + rng.uniform(-reach, reach))
    if rng.random() < 0.3:
        scene = scene.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0)))
    noise = np.random.default_rng(rng.getrandbits(32))
    strength = rng.randint(2, 9)
    grain = noise.integers(-strength, strength, (image_size, image_size, 3), endpoint=True)
    pixels = np.asarray(scene, np.int16) + grain
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


_LIGHT: tuple[tuple[Callable[[Image.Image], ImageEnhance._Enhance], float], ...] = (
    (ImageEnhance.Brightness, 0.3),
    (ImageEnhance.Color, 0.35),
    (ImageEnhance.Contrast, 0.2),
)


def sample_folder(cache_dir: Path, *, progress: Progress) -> Path:
    """Return the default sample below the cache folder; draw it where it is missing or not whole.

    Raises:
        DataError: it cannot be written.
    """
    version = hashlib.sha256(f"{_VERSION} {decoder_version()}".encode()).hexdigest()[:12]
    folder = cache_dir / f"sample-{version}"
    digests = folder.with_name(f"{folder.name}.sha256")
    try:
        if digests.is_file() and digests.read_text("ascii") == _digest(folder):
            return folder
        cache_dir.mkdir(parents=True, exist_ok=True)
        # Each process draws its own; the last one to finish replaces the same bytes.
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        write_sample(partial, progress=progress)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(partial, folder)
        digests.write_text(_digest(folder), "ascii")
    except OSError as error:
        raise DataError(
            f"{cache_dir}: the sample cannot be written: {error.strerror}; choose another cache "
            "folder with AMP_HARNESS_CACHE"
        ) from error
    return folder


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(str(path.relative_to(folder)).encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
