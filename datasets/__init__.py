"""Photos on disk → one manifest → one uint8 cache → the same batches for every framework."""

from datasets.batches import (
    Augment,
    HostBatch,
    TrainBatches,
    epoch_order,
    val_batches,
)
from datasets.cache import build_cache
from datasets.decode import RESIZES, Resize
from datasets.errors import DataError, Progress
from datasets.fetch import fetch_food101
from datasets.loading import Scan, load_manifest, scan
from datasets.manifest import Entry, Manifest
from datasets.pixel_layout import cache_bytes
from datasets.pixels import CachedPixels, LivePixels, PixelSource, SyntheticPixels
from datasets.places import cache_root
from datasets.sample import write_sample
from datasets.sources import Quarantined

__all__ = [
    "RESIZES",
    "Augment",
    "CachedPixels",
    "DataError",
    "Entry",
    "HostBatch",
    "LivePixels",
    "Manifest",
    "PixelSource",
    "Progress",
    "Quarantined",
    "Resize",
    "Scan",
    "SyntheticPixels",
    "TrainBatches",
    "build_cache",
    "cache_bytes",
    "cache_root",
    "epoch_order",
    "fetch_food101",
    "load_manifest",
    "scan",
    "val_batches",
    "write_sample",
]
