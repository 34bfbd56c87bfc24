"""What is said of AMP's memory, "half the storage" and "larger batch": worked out, and measured."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from harness.max_batch_result import FILE_NAME, MaxBatch, MaxBatchStudy, gains
from harness.memory_model import MemorySplit, bytes_per_image, training_memory
from harness.networks import Network, build_network
from harness.records import Record
from reports import formats
from reports.blocks import Table
from reports.cells import Results
from reports.comparison import peak_of
from reports.formats import count, kibibytes, mebibytes, percent, ratio

_CLAIMS = "What is said of AMP's memory, AMP ÷ fp32: worked out, and measured"
_DEFAULTS: Final = {
    "--model": "resnet18",
    "--image-size": "64",
    "--optimizer": "adam",
    "--amp-dtype": "float16",
    "--layout": "default",
    "--compile": "default",
}
"""Of ``max-batch``; what an arm has otherwise is given to it."""


def split_of(record: Record) -> MemorySplit | None:
    """What a step of the arm must hold; None where the record does not tell what it trained."""
    network, training = _network(record), record.training
    if network is None or training is None or training.batch_size < 1:
        return None
    try:
        return training_memory(
            network,
            batch_size=training.batch_size,
            dtype=record.precision.dtype,
            optimizer=training.optimizer,
            momentum=training.momentum,
        )
    except ValueError:
        return None


def per_image_of(record: Record) -> int | None:
    """Bytes of one more image in the arm's batch, worked out; None as for :func:`split_of`."""
    network = _network(record)
    if network is None or split_of(record) is None:
        return None
    return bytes_per_image(network, dtype=record.precision.dtype)


def batch_size_of(record: Record) -> int | None:
    """Images in a step."""
    return record.training.batch_size if record.training else None


def _network(record: Record) -> Network | None:
    if record.model is None or record.training is None or record.data is None:
        return None
    try:
        return build_network(
            record.model.name,
            classes=len(record.data.classes),
            image_size=record.training.image_size,
        )
    except ValueError:
        return None


def claims_table(results: Results) -> Table | None:
    """The two claims for each backend of which both arms have a record; None without any."""
    arms: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in results.main_records:
        arms[record.backend][record.precision.requested] = record
    pairs = {
        backend: (pair["fp32"], pair["amp"])
        for backend, pair in arms.items()
        if "fp32" in pair and "amp" in pair
    }
    rows = [
        row
        for backend, pair in pairs.items()
        for row in (
            (backend, "Half the storage", *_storage(*pair)),
            (backend, "Larger batch", *_batch(results, backend, pairs)),
        )
    ]
    columns = ("Backend", "Claim", "Worked out", "Measured")
    return Table(caption=_CLAIMS, columns=columns, rows=tuple(rows)) if rows else None


def _storage(fp32: Record, amp: Record) -> tuple[str, str]:
    splits = split_of(fp32), split_of(amp)
    worked_out = formats.UNKNOWN
    if splits[0] is not None and splits[1] is not None:
        activations = splits[1].activations_bytes / splits[0].activations_bytes
        together = splits[1].total_bytes / splits[0].total_bytes
        worked_out = f"activations {ratio(activations)}, all parts {ratio(together)}"
    if (missing := _without_result(fp32, amp)) is not None:
        return worked_out, missing
    (full, source), (mixed, mixed_source) = peak_of(fp32), peak_of(amp)
    if batch_size_of(fp32) != batch_size_of(amp):
        return worked_out, "not comparable: the arms have different batches"
    if not full or mixed is None or source != mixed_source:
        return worked_out, "not measured: a peak of both arms from one source is needed"
    beside = "; the framework itself is in both" if source == "host" else ""
    return worked_out, f"peak {ratio(mixed / full)} ({source}{beside})"


def _batch(
    results: Results, backend: str, pairs: Mapping[str, tuple[Record, Record]]
) -> tuple[str, str]:
    fp32, amp = pairs[backend]
    images = per_image_of(fp32), per_image_of(amp)
    worked_out = formats.UNKNOWN
    if images[0] is not None and images[1] is not None:
        worked_out = (
            f"at most {ratio(images[0] / images[1])}, reached where a batch is all there is"
        )
    found = results.max_batch
    cells = {c.precision: c for c in found.cells if c.backend == fp32.backend} if found else {}
    gain = gains([*cells.values()]).get(fp32.backend)
    if found is not None and gain is not None:
        full, mixed = cells["fp32"].largest_batch, cells["amp"].largest_batch
        where = f"{found.model}, {found.image_size} px, {cells['amp'].dtype}"
        return worked_out, f"{ratio(gain)}: {count(full)} → {count(mixed)} images ({where})"
    reasons = [
        f"{cell.dtype} {cell.status if cell.status != 'ok' else 'ended before memory did'}"
        for cell in cells.values()
        if cell.reason is not None
    ]
    if reasons:
        return worked_out, f"none: {formats.listed(reasons)}"
    if (missing := _without_result(fp32, amp)) is not None:
        return worked_out, missing
    command = _max_batch_command(results, backend, pairs)
    if found is not None:
        # A folder holds one search, and max-batch does not overwrite it.
        path = results.directory / FILE_NAME
        return worked_out, f"not measured; move {path} away, and measure all with: {command}"
    return worked_out, f"not measured; measure it with: {command}"


def _without_result(*records: Record) -> str | None:
    missing = [f"{record.arm} {record.status}" for record in records if record.status != "ok"]
    return f"none: {formats.listed(missing)}" if missing else None


def _max_batch_command(
    results: Results, backend: str, pairs: Mapping[str, tuple[Record, Record]]
) -> str:
    """What fills the line: with all backends that have the settings of this one, in one search."""
    options = _max_batch_options(results, pairs[backend])
    words = ["python", "-m", "harness", "max-batch"]
    for other, pair in pairs.items():
        if _without_result(*pair) is None and _max_batch_options(results, pair) == options:
            words += ["--backend", other]
    return shlex.join([*words, *options, "--out", str(results.directory)])


def _max_batch_options(results: Results, pair: tuple[Record, Record]) -> list[str]:
    fp32, amp = pair
    values = {"--amp-dtype": amp.precision.dtype}
    if amp.model is not None:
        values["--model"] = amp.model.name
    if amp.training is not None:
        values["--image-size"] = str(amp.training.image_size)
        values["--optimizer"] = amp.training.optimizer
    # As they were asked for: a record tells what a framework made of "default".
    for arm in results.study.arms if results.study is not None else ():
        if arm["backend"] == amp.backend and not arm.get("variant") and not arm.get("label"):
            for name in ("layout", "compile"):
                values[f"--{name}"] = str(arm.get(name) or "default")
    words = [
        word
        for name, default in _DEFAULTS.items()
        if values.get(name, default) != default
        for word in (name, values[name])
    ]
    if fp32.device is None or fp32.device.type == "cpu":
        words += ["--device", "cpu", "--memory-limit", "2G"]
    return words


def max_batch_table(found: MaxBatchStudy) -> Table:
    """What ``max-batch`` found, beside what was worked out."""
    limit = found.memory_limit_bytes
    within = f"within {mebibytes(limit)} of host memory" if limit else "within the device's memory"
    gain = gains(found.cells)
    return Table(
        caption=f"Largest batch of {found.model} at {found.image_size} px {within}; the next that "
        "was tried did not fit, unless a reason is given",
        columns=(
            "Backend and dtype",
            "Largest batch",
            "Step",
            "AMP ÷ fp32",
            "Peak there",
            "Per image",
            "Per image, worked out",
            "Batch, worked out",
            "Off by",
        ),
        rows=tuple(_max_batch_row(c, gain.get(c.backend)) for c in found.cells),
        numeric=True,
    )


def _max_batch_row(cell: MaxBatch, gain: float | None) -> tuple[str, ...]:
    name = f"{cell.backend} {cell.dtype}"
    if cell.reason is not None:
        name += f" ({cell.reason})" if cell.status == "ok" else f" ({cell.status}: {cell.reason})"
    return (
        name,
        count(cell.largest_batch),
        count(cell.batch_step),
        ratio(gain) if cell.precision == "amp" else "",
        formats.peak(cell.peak_bytes, cell.peak_source),
        kibibytes(cell.bytes_per_image),
        kibibytes(cell.estimated_bytes_per_image),
        count(cell.estimated_batch),
        percent(cell.estimate_off),
    )
