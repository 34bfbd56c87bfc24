"""An epoch from the pixel cache against decoding it with torch's DataLoader, and the first build.

    python benchmarks/cache_speed.py                        pictures of the sample, 512 px
    python benchmarks/cache_speed.py --data DIR             class folders of photos

Ratios of paired rounds whose order is turned each time, with Student's t interval (95 %) of their
logarithms:

- images/s of an epoch of shuffled batches from the cache ÷ the same from a DataLoader of two worker
  processes that decode with Pillow and resize alike (20 at least); the workers live on between
  rounds, so that no start of theirs is timed;
- images/s of the first build of the cache on all cores ÷ (cores × a single thread that opens,
  converts and resizes with Pillow) (0.9 at least). The build also hashes, checks and writes. Beside
  it the same Pillow loop in one process a core: what the cores of this machine give together.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from datasets import CachedPixels, Manifest, TrainBatches, build_cache, load_manifest, write_sample
from datasets.parallel import available_cores

SAMPLE_SIZE = 512
"""About the side of a photo of Food-101."""
DATALOADER_WORKERS = 2


class PillowFiles:
    """The photos as a map-style dataset: uint8 (size, size, 3) and the label."""

    def __init__(self, paths: list[Path], labels: list[int], size: int) -> None:
        self._paths, self._labels, self._size = paths, labels, size

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return decode(self._paths[index], self._size), self._labels[index]


def decode(path: Path, size: int) -> np.ndarray:
    """As one would write it with Pillow: uint8 (size, size, 3)."""
    with Image.open(path) as image:
        small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return np.array(small)


def torch_epochs(
    paths: list[Path], labels: list[int], *, size: int, batch_size: int
) -> Callable[[], Iterator[Any]]:
    """What starts an epoch of a DataLoader whose workers persist."""
    import torch.utils.data

    files: Any = PillowFiles(paths, labels, size)
    loader = torch.utils.data.DataLoader(
        files,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=DATALOADER_WORKERS,
        persistent_workers=True,
    )
    return lambda: iter(loader)


def epoch_ratios(manifest: Manifest, cache: Path, *, size: int, batch: int, rounds: int) -> str:
    """Measure both in turns, and say what came of it."""
    source = CachedPixels(cache)
    paths = [manifest.root / manifest.paths[row] for row in source.train]
    labels = source.labels[source.train].tolist()
    epoch = torch_epochs(paths, labels, size=size, batch_size=batch)

    def cached_s() -> float:
        start_s = time.perf_counter()
        with TrainBatches(source, batch_size=batch, seed=0) as batches:
            for _ in range(batches.steps_per_epoch):
                next(batches)
            return time.perf_counter() - start_s

    def decoded_s() -> float:
        start_s = time.perf_counter()
        steps = sum(1 for _ in epoch())
        assert steps == len(paths) // batch
        return time.perf_counter() - start_s

    cached_s(), decoded_s()  # starts the workers, brings the files into memory
    images = len(paths) // batch * batch
    cached, decoded = measured(cached_s, decoded_s, rounds=rounds)
    from_cache, from_files = images / np.median(cached), images / np.median(decoded)
    return (
        f"epoch of {images} images at {size} px, batch {batch}: cache {from_cache:,.0f}, "
        f"DataLoader of {DATALOADER_WORKERS} workers {from_files:,.0f} images/s; "
        f"{told(decoded / cached)} times faster ({rounds} rounds)"
    )


def build_ratios(manifest: Manifest, folder: Path, *, size: int, rounds: int) -> str:
    """Build the cache anew and decode on one thread and on all cores in turns; the ratios."""
    paths = [manifest.root / path for path in manifest.paths]
    cores = available_cores()

    def build_s() -> float:
        start_s = time.perf_counter()
        build_cache(manifest, image_size=size, cache_dir=folder / "built")
        time_s = time.perf_counter() - start_s
        shutil.rmtree(folder / "built")
        return time_s

    def single_s() -> float:
        start_s = time.perf_counter()
        decode_all(paths, size)
        return time.perf_counter() - start_s

    shares = [paths[core::cores] for core in range(cores)]
    with ProcessPoolExecutor(cores) as pool:

        def together_s() -> float:
            start_s = time.perf_counter()
            [*pool.map(decode_all, shares, [size] * cores)]
            return time.perf_counter() - start_s

        single_s(), together_s()  # brings the files into memory, starts the processes
        built, single, together = measured(build_s, single_s, together_s, rounds=rounds)
    return (
        f"first build of {len(paths)} images at {size} px: {len(paths) / np.median(built):,.0f} "
        f"images/s on {cores} cores, one thread of Pillow {len(paths) / np.median(single):,.0f}; "
        f"{told(single / built / cores)} of cores × single, where {cores} processes of Pillow "
        f"reach {told(single / together / cores)} ({rounds} rounds)"
    )


def decode_all(paths: list[Path], size: int) -> None:
    """Decode, and keep nothing."""
    for path in paths:
        decode(path, size)


def measured(*timers: Callable[[], float], rounds: int) -> Iterator[np.ndarray]:
    """Seconds of each timer, shape (rounds,); every round begins with another."""
    times_s = np.empty((len(timers), rounds))
    for number in range(rounds):
        for place in range(len(timers)):
            which = (number + place) % len(timers)
            times_s[which, number] = timers[which]()
    yield from times_s


def told(ratios: np.ndarray) -> str:
    """Geometric mean and interval."""
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    low, middle, high = (math.exp(logs.mean() + sign * half) for sign in (-1, 0, 1))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of class folders  [the sample]")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: an interval needs 2 at least")
    size = options.image_size
    with tempfile.TemporaryDirectory(prefix="cache-speed-") as name:
        folder = Path(name)
        data = options.data or write_sample(folder / "sample", image_size=SAMPLE_SIZE)
        manifest = load_manifest(data, seed=0, cache_dir=folder / "cache")
        print(build_ratios(manifest, folder, size=size, rounds=options.rounds), flush=True)
        cache = build_cache(manifest, image_size=size, cache_dir=folder / "cache")
        print(
            epoch_ratios(
                manifest, cache, size=size, batch=options.batch_size, rounds=options.rounds
            )
        )


if __name__ == "__main__":
    main()
