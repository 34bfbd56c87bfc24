"""From the ``--data`` option to the pixels that a worker trains on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from datasets import (
    CachedPixels,
    DataError,
    LivePixels,
    PixelSource,
    Progress,
    SyntheticPixels,
    build_cache,
    load_manifest,
)
from harness.article import Defect, flawed
from harness.config import RunConfig
from harness.networks import build_network
from harness.records import DataPart, QuarantinedFile

SYNTHETIC_CLASSES = 5
SYNTHETIC_STEPS_PER_EPOCH = 20


class InputSpec(BaseModel):
    """Where a worker finds its pixels; small enough to travel in a message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Literal["cached", "live", "synthetic"]
    path: Path | None
    """Cache folder, or manifest CSV of a live input."""
    manifest: Path | None = None
    """Manifest CSV of the photos that a cache was made of."""
    defects: tuple[Defect, ...] = ()
    """Defects of the published experiment that the pixels are given; none outside ``replicate``."""

    def decoded_live(self) -> InputSpec | None:
        """The same photos, decoded whenever they are asked for; None where there are none."""
        if self.manifest is None:
            return None
        return self.model_copy(update={"input": "live", "path": self.manifest, "manifest": None})


@dataclass(frozen=True, kw_only=True)
class PreparedInput:
    """A dataset that is ready to be trained on, and what the record says about it."""

    spec: InputSpec
    data: DataPart


def prepare_input(
    run: RunConfig,
    *,
    manifest_csv: Path,
    cache_dir: Path | None,
    strict: bool = False,
    keep_manifest: bool = False,
    progress: Progress | None = None,
) -> PreparedInput:
    """Scan and decode what ``run.data`` names; write its manifest to ``manifest_csv``.

    With ``keep_manifest`` a manifest that is there stays as it is: that of a study's first arms.

    Raises:
        datasets.DataError: the data cannot be used; the text tells the remedy.
    """
    try:
        build_network(run.model, classes=SYNTHETIC_CLASSES, image_size=run.image_size)
    except ValueError as error:
        raise DataError(str(error)) from error
    if run.input == "synthetic":
        pixels = _synthetic(run)
        data = DataPart(
            name="synthetic noise",
            manifest_sha256=None,
            classes=[*pixels.classes],
            train_images=len(pixels.train),
            val_images=len(pixels.val),
        )
        return PreparedInput(spec=InputSpec(input="synthetic", path=None), data=data)
    manifest = load_manifest(
        run.data, seed=run.seed, cache_dir=cache_dir, strict=strict, progress=progress
    )
    if len(manifest.train) < run.batch_size:
        raise DataError(
            f"{manifest.name}: {len(manifest.train)} training images cannot fill a batch of "
            f"{run.batch_size}; choose a smaller --batch-size"
        )
    manifest_csv.parent.mkdir(parents=True, exist_ok=True)
    if not (keep_manifest and manifest_csv.exists()):
        manifest.write_csv(manifest_csv)
        manifest.write_quarantine_csv(manifest_csv.with_name("quarantine.csv"))
    path, manifest_path = manifest_csv.resolve(), None
    if run.input == "cached":
        manifest_path = path
        path = build_cache(
            manifest,
            image_size=run.image_size,
            resize=run.resize,
            cache_dir=cache_dir,
            progress=progress,
        )
    data = DataPart(
        name=manifest.name,
        manifest_sha256=manifest.sha256,
        classes=[*manifest.classes],
        train_images=len(manifest.train),
        val_images=len(manifest.val),
        quarantined=[
            QuarantinedFile(path=str(item.path), reason=item.reason)
            for item in manifest.quarantined
        ],
        warnings=[*manifest.warnings],
    )
    return PreparedInput(
        spec=InputSpec(input=run.input, path=path, manifest=manifest_path), data=data
    )


def open_pixels(spec: InputSpec, run: RunConfig) -> PixelSource:
    """Open, in a worker, the pixels that ``spec`` names."""
    return flawed(_open_honest(spec, run), spec.defects)


def _open_honest(spec: InputSpec, run: RunConfig) -> PixelSource:
    match spec.input:
        case "synthetic":
            return _synthetic(run)
        case "cached":
            assert spec.path is not None
            return CachedPixels(spec.path)
        case "live":
            assert spec.path is not None
            workers = 1 if "live_decoding" in spec.defects else None
            return LivePixels(
                spec.path, image_size=run.image_size, resize=run.resize, workers=workers
            )


def _synthetic(run: RunConfig) -> SyntheticPixels:
    return SyntheticPixels(
        image_size=run.image_size,
        classes=SYNTHETIC_CLASSES,
        train_images=run.batch_size * SYNTHETIC_STEPS_PER_EPOCH,
        val_images=0,
        seed=run.seed,
    )
