"""The section about memory: measured peaks, and what a step must hold beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from harness.memory_model import UNCERTAINTIES, MemorySplit
from harness.records import Record
from reports import formats
from reports.blocks import Block, Details, Paragraph, Section, Table
from reports.cells import Results
from reports.comparison import peak_of
from reports.formats import count, kibibytes, mebibytes
from reports.memory_claims import (
    batch_size_of,
    claims_table,
    max_batch_table,
    per_image_of,
    split_of,
)

_SOURCES = (
    "Each column has a source of its own, and only figures of one column can be compared. Host: "
    "the kernel's high-water mark of the worker's resident memory, with interpreter and framework "
    "in it. Allocated and reserved: the framework's own allocator on the device, what tensors used "
    "and what it held for them. Device used: what NVIDIA's driver counted for all processes, above "
    "what was in use before."
)
_SPLIT = (
    "What a step must hold, from the network description alone: mixed precision keeps float32 "
    "weights, gradients and optimizer state and adds weight copies, so that only the activations "
    "can become half"
)


def memory_section(results: Results) -> Section | None:
    """None where no record and no search for the largest batch says anything about memory."""
    first_runs = [c.record for c in results.cells if c.record is not None and not c.label]
    known = [record for record in first_runs if record.training is not None]
    measured = [record for record in known if _peaks(record) != (None,) * 4]
    if not measured and results.max_batch is None:
        return None
    blocks: list[Block] = []
    if measured:
        blocks += [Paragraph(text=_SOURCES), _peak_table(measured)]
    splits = [(record, split) for record in known if (split := split_of(record)) is not None]
    if splits:
        blocks.append(_split_table(splits))
    found = results.max_batch
    tables = (
        claims_table(results),
        None if found is None else max_batch_table(found),
        _slope_table(measured),
    )
    blocks += [table for table in tables if table is not None]
    if splits:
        left_out = Paragraph(
            text=f"Not in it, or different by framework: {'; '.join(UNCERTAINTIES)}."
        )
        blocks.append(Details(summary="What the worked-out figures leave out", blocks=(left_out,)))
    return Section(anchor="memory", title="Memory", blocks=tuple(blocks))


def _peaks(record: Record) -> tuple[int | None, ...]:
    memory = record.memory
    if memory is None:
        return (None,) * 4
    return (
        memory.host_peak_bytes,
        memory.device_allocated_peak_bytes,
        memory.device_reserved_peak_bytes,
        memory.device_used_delta_bytes,
    )


def _peak_table(records: Sequence[Record]) -> Table:
    return Table(
        caption="Measured peaks of each arm",
        columns=(
            "Arm",
            "Batch",
            "Host",
            "Device allocated",
            "Device reserved",
            "Device used",
        ),
        rows=tuple(
            (record.arm, count(batch_size_of(record)), *map(mebibytes, _peaks(record)))
            for record in records
        ),
        numeric=True,
    )


def _split_table(splits: Sequence[tuple[Record, MemorySplit]]) -> Table:
    return Table(
        caption=_SPLIT,
        columns=(
            "Arm",
            "Batch",
            "Weights",
            "Copies",
            "Optimizer",
            "Gradients",
            "Activations",
            "Input",
            "Together",
            "Measured peak",
        ),
        rows=tuple(
            (
                record.arm,
                count(batch_size_of(record)),
                mebibytes(split.weights_bytes + split.statistics_bytes),
                mebibytes(split.weight_copies_bytes),
                mebibytes(split.optimizer_state_bytes),
                mebibytes(split.gradients_bytes),
                mebibytes(split.activations_bytes),
                mebibytes(split.input_bytes),
                mebibytes(split.total_bytes),
                formats.peak(*peak_of(record)),
            )
            for record, split in splits
        ),
        numeric=True,
    )


def _slope_table(records: Sequence[Record]) -> Table | None:
    """Arms of which several batch sizes were measured, and nothing else that matters differs."""
    alike: dict[tuple[object, ...], dict[int, Record]] = defaultdict(dict)
    for record in records:
        training = record.training
        if training is None or record.status != "ok":
            continue
        settings = training.model_dump(
            include={"image_size", "optimizer", "layout", "compile", "input", "seed", "threads"}
        )
        model = None if record.model is None else record.model.name
        key = (record.backend, record.precision.dtype, peak_of(record)[1], model)
        alike[*key, *settings.values()].setdefault(training.batch_size, record)
    rows = tuple(
        _slope_row(batches[smaller], batches[larger])
        for batches in alike.values()
        for smaller, larger in pairwise(sorted(batches))
    )
    columns = ("Backend and dtype", "Batches", "Source", "Measured", "Worked out")
    caption = "Memory of one more image in the batch: the slope between two batch sizes"
    return Table(caption=caption, columns=columns, rows=rows, numeric=True) if rows else None


def _slope_row(smaller: Record, larger: Record) -> tuple[str, ...]:
    (low, source), (high, _) = peak_of(smaller), peak_of(larger)
    few, many = batch_size_of(smaller), batch_size_of(larger)
    slope = None
    if low is not None and high is not None and few is not None and many is not None:
        slope = (high - low) / (many - few)
    return (
        f"{larger.backend} {larger.precision.dtype}",
        f"{count(few)} → {count(many)}",
        source or formats.UNKNOWN,
        kibibytes(slope),
        kibibytes(per_image_of(larger)),
    )
