"""The published food experiment again, on a small scale: its defects one at a time, AMP off and on.

The arms are ordinary arms: their records are written and read like any other's. What they mean
is decided in :mod:`reports.replication`, from what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import CachedPixels
from harness.article import Audit, Defect, audit_batches, flawed
from harness.config import RunConfig
from harness.drill import Finding
from harness.inputs import PreparedInput, prepare_input
from harness.record_files import write_json
from harness.records import Record
from harness.registry import ARTICLE_ADAPTERS
from harness.study import Studio, record_path
from harness.turns import run_arms
from harness.worker_process import WorkerFailed, WorkerProcess

LOSS_SCALE = "dynamic:1024"
"""The article's initial scale."""
_DRILL = {"model": "lenet", "image_size": 32, "batch_size": 8, "steps": 1, "epochs": None}
"""The loss scaler is put under fault on a small network, whichever the arms train."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run the experiment."""

    name: str
    """Of the option and, without hyphens, the label of its arms."""
    title: str
    defects: tuple[Defect, ...] = ()


CORRECTED = Variant(name="corrected", title="Corrected")
VARIANTS = (
    CORRECTED,
    Variant(name="one-image", title="One image for ever", defects=("one_image",)),
    Variant(name="fresh-scaler", title="A new scaler each step", defects=("fresh_scaler",)),
    Variant(name="live-decoding", title="Decode every epoch", defects=("live_decoding",)),
    Variant(name="two-outputs", title="2 outputs", defects=("two_outputs",)),
    Variant(
        name="one-image-two-outputs",
        title="2 outputs, one image",
        defects=("one_image", "two_outputs"),
    ),
    Variant(
        name="article",
        title="All together",
        defects=("one_image", "fresh_scaler", "live_decoding", "two_outputs"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """What was measured of one variant."""

    variant: Variant
    fp32: Record
    amp: Record
    audit: Audit
    drill: tuple[Finding, ...] | None
    """Of the loss scaler that the AMP arm used; None where it could not be drilled."""
    no_drill_reason: str | None
    val_images: int
    """Of the dataset, whatever the head knows."""


def arms(base: RunConfig, variant: Variant) -> tuple[RunConfig, RunConfig]:
    """The fp32 and the AMP run of ``variant``; they differ in precision alone.

    Raises:
        KeyError: the backend has no adapter with the article's scaler.
    """
    adapter = base.backend
    if "fresh_scaler" in variant.defects:
        adapter = ARTICLE_ADAPTERS[base.backend]
    common = {
        "backend": adapter,
        "loss_scale": LOSS_SCALE,
        "input": "live" if "live_decoding" in variant.defects else "cached",
        "label": variant.name.replace("-", ""),
        "diagnose": False,
    }
    fp32, amp = (
        RunConfig.model_validate(base.model_dump() | common | {"precision": precision})
        for precision in ("fp32", "amp")
    )
    return fp32, amp


def replicate(
    base: RunConfig, variants: Sequence[Variant], directory: Path, *, studio: Studio
) -> list[VariantResult]:
    """Run every variant twice; each record is saved as soon as its arm is finished.

    A failed arm is a result: some defects stop the training. Where neither arm of a variant can
    run on this machine, no further one is tried.

    Raises:
        datasets.DataError: the data cannot be used.
        OSError: ``directory`` cannot be written.
    """
    inputs = {
        kind: prepare_input(
            base.model_copy(update={"input": kind}),
            manifest_csv=directory / "manifest.csv",
            cache_dir=studio.cache_dir,
            strict=studio.strict,
            keep_manifest=kind == "live",
            progress=studio.on_data,
        )
        for kind in ("cached", "live")
    }
    cache = inputs["cached"].spec.path
    assert cache is not None
    honest = CachedPixels(cache)
    drills = _Drills(base, directory, studio)
    results = []
    position = 0
    for variant in variants:
        # Live pixels are the cached ones, so that the audit need not decode them again.
        audit = audit_batches(
            honest,
            variant.defects,
            batch_size=base.batch_size,
            seed=base.seed,
            steps=base.steps or (base.epochs or 0) * len(honest.train),
        )
        fp32, amp = arms(base, variant)
        data = inputs[fp32.input]
        given = PreparedInput(
            spec=data.spec.model_copy(update={"defects": variant.defects}),
            data=data.data.model_copy(
                update={
                    "classes": data.data.classes[: audit.outputs],
                    "val_images": len(flawed(honest, variant.defects).val),
                }
            ),
        )
        records: dict[str, Record] = {}

        def keep(record: Record, records: dict[str, Record] = records) -> None:
            write_json(record_path(directory, record.arm), record)
            records[record.arm] = record

        run_arms(
            (fp32, amp),
            given,
            python=studio.pythons[base.backend],
            log=lambda run: directory / "logs" / f"{run.arm}.log",
            command=studio.repeat_command,
            on_event=studio.on_event,
            on_record=keep,
            arm_position=position,
        )
        position += sum(len(record.windows) for record in records.values())
        findings, reason = drills.of(amp)
        results.append(
            VariantResult(
                variant=variant,
                fp32=records[fp32.arm],
                amp=records[amp.arm],
                audit=audit,
                drill=findings,
                no_drill_reason=reason,
                val_images=len(honest.val),
            )
        )
        if all(record.status == "unavailable" for record in records.values()):
            break  # the machine cannot run this backend at all, whatever the variant
    return results


class _Drills:
    """The drill of each adapter's loss scaler, done once."""

    def __init__(self, base: RunConfig, directory: Path, studio: Studio) -> None:
        self._python = studio.pythons[base.backend]
        self._directory = directory
        self._done: dict[str, tuple[tuple[Finding, ...] | None, str | None]] = {}

    def of(self, amp: RunConfig) -> tuple[tuple[Finding, ...] | None, str | None]:
        """Findings, or None and why there are none."""
        if amp.backend not in self._done:
            self._done[amp.backend] = self._drill(amp)
        return self._done[amp.backend]

    def _drill(self, amp: RunConfig) -> tuple[tuple[Finding, ...] | None, str | None]:
        if not amp.scales_loss:
            return None, f"{amp.amp_dtype} has float32's range and uses no loss scaler"
        run = amp.model_copy(update=_DRILL)
        log = self._directory / "logs" / f"drill-{amp.backend}.log"
        try:
            with WorkerProcess(run, python=self._python, log=log) as worker:
                answer = worker.ask("drill", run=run.model_dump(mode="json"))
        except WorkerFailed as failure:
            return None, failure.reason
        return tuple(Finding.model_validate(finding) for finding in answer["findings"]), None
