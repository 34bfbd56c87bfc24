"""How fast training images come when no step uses them up."""

from __future__ import annotations

import time

from datasets import LivePixels, PixelSource, TrainBatches
from harness.config import RunConfig
from harness.inputs import InputSpec, open_pixels
from harness.records import LoaderPart

WINDOWS = 3
WINDOW_S = 0.5
PREFETCHED = 3
"""Batches that are ready, or in the making, before a clock is read."""


def measure_loaders(spec: InputSpec, run: RunConfig) -> list[LoaderPart]:
    """Measure the loader of the run, and decoding anew at each step where the photos are at hand.

    Raises:
        datasets.DataError: a file is gone or changed.
    """
    parts = []
    for one in (spec, spec.decoded_live()):
        if one is not None and one.input != "synthetic":
            source = open_pixels(one, run)
            workers = source.workers if isinstance(source, LivePixels) else 1
            rates = _rates(source, run)
            parts.append(LoaderPart(input=one.input, images_per_s=rates, workers=workers))
    return parts


def _rates(source: PixelSource, run: RunConfig) -> list[float]:
    rates = []
    with TrainBatches(
        source, batch_size=run.batch_size, seed=run.seed, augment=run.augment
    ) as batches:
        for _ in range(PREFETCHED):
            next(batches)
        for _ in range(WINDOWS):
            images, start = 0, time.perf_counter()
            while (time_s := time.perf_counter() - start) < WINDOW_S:
                images += len(next(batches).labels)
            rates.append(images / time_s)
    return rates
