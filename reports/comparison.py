"""The table of a comparison: one row a backend, fp32 beside AMP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.records import Record, Study
from harness.verdict import MARGIN, Verdict
from reports.cells import Cell, study_cells
from reports.fairness import Difference, differences
from reports.formats import precision as precision_name
from reports.judged import Judged, by_label, gap_of, judge_arms
from reports.speedup import window_rates

NOT_PLANNED = "not planned"

PADDLE_AMP_NOTE = "paddle.amp: not yet executed on a GPU by this project"


@dataclass(frozen=True, kw_only=True)
class ArmFigures:
    """One arm in a row. None stands for what nobody measured."""

    arm: str
    precision: str
    status: str
    """ok, unavailable, diverged, out_of_memory, failed, not run yet, unreadable, not planned."""
    reason: str | None
    dtype: str | None
    """Compute dtype that was asked for."""
    window_images_per_s: tuple[float, ...]
    """One value a timed window, of all process pairs behind the speedup; without one, of the arm
    shown."""
    images_per_s: float | None
    """Median of :attr:`window_images_per_s`."""
    val_top1: float | None
    val_top2: float | None
    val_images: int | None
    """On which both are taken."""
    loss: float | None
    """Training loss at :attr:`ComparisonRow.loss_step`."""
    steps: int | None
    """Optimizer steps taken."""
    peak_bytes: int | None
    peak_source: str | None
    """``device allocated`` or ``host``."""
    loss_scale: float | None
    """After the last step."""
    skipped_steps: int | None


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One backend."""

    backend: str
    framework_version: str | None
    fp32: ArmFigures
    amp: ArmFigures
    judged: Judged
    """The verdict, from all process pairs: of repetitions and further seeds too."""
    loss_step: int | None
    """Step whose losses are shown: the last that both arms took."""
    differences: tuple[Difference, ...]
    """In what the two arms differ, precision included."""
    gaps: tuple[str, ...]
    """Why an arm has no result, for each such arm."""
    warnings: tuple[str, ...]
    """What the runner warned of, by arm."""
    notes: tuple[str, ...]
    """What else a reader must know to read this row right."""

    @property
    def verdict(self) -> Verdict:
        """Whether AMP pays."""
        return self.judged.verdict

    @property
    def arms(self) -> tuple[ArmFigures, ...]:
        """fp32 and AMP, without one that was never planned."""
        return tuple(arm for arm in (self.fp32, self.amp) if arm.status != NOT_PLANNED)


def comparison_table(
    study: Study | None,
    records: Iterable[Record],
    unreadable: Mapping[str, str] | None = None,
) -> list[ComparisonRow]:
    """One row for each backend of the plan (or, without a plan, of the records), in its order.

    Args:
        study: the plan; None for a single run.
        records: finished arms.
        unreadable: reason by arm, of records that could not be read.
    """
    return comparison_rows(study_cells(study, records, unreadable))


def comparison_rows(
    cells: Iterable[Cell], variant: str = "", *, margin: float = MARGIN
) -> list[ComparisonRow]:
    """As :func:`comparison_table`, from cells, and of any one variant of the settings.

    A ratio within ``margin`` of 1 is no difference. Repetitions and further seeds count in
    images/s and verdict.
    """
    by_backend: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.variant == variant:
            by_backend.setdefault(cell.backend, []).append(cell)
    labelled = {backend: by_label(of_it) for backend, of_it in by_backend.items()}
    return [
        _row(backend, labels.pop(""), labels, margin)
        for backend, labels in labelled.items()
        if "" in labels
    ]


def _row(
    backend: str,
    arms: Mapping[str, Cell],
    further: Mapping[str, Mapping[str, Cell]],
    margin: float,
) -> ComparisonRow:
    records = {name: cell.record for name, cell in arms.items() if cell.record is not None}
    lengths = [len(record.steps.loss) for record in records.values() if record.steps.loss]
    loss_step = min(lengths, default=None)
    measured = all(record.training is not None for record in records.values())
    both = len(records) == 2 and measured
    judged = judge_arms(arms, further, margin=margin)
    paired = [pair.windows for pair in judged.counted]
    fp32_rates = [rate for pair in paired for rate in pair.baseline_images_per_s]
    amp_rates = [rate for pair in paired for rate in pair.candidate_images_per_s]
    version = next((r.framework_version for r in records.values() if r.framework_version), None)
    return ComparisonRow(
        backend=backend,
        framework_version=version,
        fp32=_figures(backend, "fp32", arms.get("fp32"), loss_step, fp32_rates),
        amp=_figures(backend, "amp", arms.get("amp"), loss_step, amp_rates),
        judged=judged,
        loss_step=loss_step,
        differences=tuple(differences(records["fp32"], records["amp"])) if both else (),
        gaps=tuple(gap for cell in arms.values() if (gap := gap_of(cell)) is not None),
        warnings=tuple(
            f"{precision_name(name)}: {text}"
            for name, record in records.items()
            for text in record.warnings
        ),
        notes=(*_notes(backend, arms, lengths), *judged.notes),
    )


def _figures(
    backend: str,
    precision: str,
    cell: Cell | None,
    loss_step: int | None,
    pair_rates: Sequence[float],
) -> ArmFigures:
    record = None if cell is None else cell.record
    rates = tuple(pair_rates or (() if record is None else window_rates(record)))
    accuracy = None if record is None else record.accuracy
    losses = [] if record is None else record.steps.loss
    peak_bytes, peak_source = peak_of(record)
    return ArmFigures(
        arm=f"{backend}-{precision}" if cell is None else cell.arm,
        precision=precision,
        status=NOT_PLANNED if cell is None else cell.status,
        reason=None if cell is None else cell.reason,
        dtype=None if record is None else record.precision.dtype,
        window_images_per_s=rates,
        images_per_s=median(rates) if rates else None,
        val_top1=None if accuracy is None else accuracy.val_top1,
        val_top2=None if accuracy is None else accuracy.val_top2,
        val_images=record.data.val_images if accuracy and record and record.data else None,
        loss=losses[loss_step - 1] if losses and loss_step else None,
        steps=len(losses) or None,
        peak_bytes=peak_bytes,
        peak_source=peak_source,
        loss_scale=_last_scale(record),
        skipped_steps=sum(record.steps.skipped) if record and record.steps.skipped else None,
    )


def peak_of(record: Record | None) -> tuple[int | None, str | None]:
    """Peak bytes and what they were counted on: ``device allocated``, else ``host``."""
    memory = None if record is None else record.memory
    if memory is None:
        return None, None
    if memory.device_allocated_peak_bytes is not None:
        return memory.device_allocated_peak_bytes, "device allocated"
    return memory.host_peak_bytes, None if memory.host_peak_bytes is None else "host"


def _last_scale(record: Record | None) -> float | None:
    scales = [] if record is None else record.steps.loss_scale
    return scales[-1] if scales else None


def _notes(backend: str, arms: Mapping[str, Cell], lengths: list[int]) -> Iterable[str]:
    if len(set(lengths)) == 2:
        fp32, amp = lengths if next(iter(arms)) == "fp32" else reversed(lengths)
        yield (
            f"fp32 took {fp32} steps and AMP {amp}; the losses are those of step {min(lengths)}, "
            "the last that both took, and the accuracies are those of unequal training"
        )
    amp_cell = arms.get("amp")
    if backend == "paddle" and amp_cell is not None and not _ran_on_gpu(amp_cell):
        yield PADDLE_AMP_NOTE


def _ran_on_gpu(cell: Cell) -> bool:
    record = cell.record
    on_cuda = record is not None and record.device is not None and record.device.type == "cuda"
    return cell.status == "ok" and on_cuda
