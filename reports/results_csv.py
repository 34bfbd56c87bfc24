"""``results.csv``: one row an arm, units in the column names, empty for what is not known."""

from __future__ import annotations

import json
import math
from statistics import median
from typing import Any

from harness.records import GradientSizes, Record
from reports import formats
from reports.attribution import RUNGS, ladders
from reports.cells import Cell, Results
from reports.comparison import comparison_rows
from reports.judged import Judged
from reports.loss_scaling import lost
from reports.speedup import window_rates

# What spreadsheets read as the start of a formula, full-width forms included.
_FORMULA_STARTS = tuple("=+-@＝＋－＠")


def results_csv(results: Results) -> str:
    """The CSV text; verdict and speedup stand in the row of the AMP arm, or of a ladder's rung."""
    import pandas as pd

    judged = judged_arms(results)
    values = [
        {name: _spreadsheet_safe(value) for name, value in _row(cell, judged.get(cell.arm)).items()}
        for cell in results.cells
    ]
    # As objects, so that a column with a gap keeps its whole numbers.
    table = pd.DataFrame(values, dtype=object)
    return table.to_csv(index=False, na_rep="", lineterminator="\n")


def judged_arms(results: Results) -> dict[str, Judged]:
    """First run of each AMP arm → its verdict over fp32, and of each rung over the one below."""
    judged: dict[str, Judged] = {}
    for variant in dict.fromkeys(cell.variant for cell in results.cells):
        if variant not in RUNGS:
            rows = comparison_rows(results.cells, variant, margin=results.margin)
            judged |= {row.amp.arm: row.judged for row in rows}
    gains = {
        (ladder.backend, result.rung.variant): result.gain
        for ladder in ladders(results)
        for result in ladder.rungs
    }
    for cell in results.cells:
        gain = gains.get((cell.backend, cell.variant))
        if gain is not None and not cell.label:
            judged[cell.arm] = gain
    return judged


def _row(cell: Cell, judged: Judged | None) -> dict[str, Any]:
    record = cell.record
    gain = None if judged is None else judged.verdict.speedup
    rates = [] if record is None else window_rates(record)

    def get(part: str, field: str) -> Any:
        return getattr(getattr(record, part, None), field, None)

    skipped = get("steps", "skipped")
    losses, scales = get("steps", "loss") or [], get("steps", "loss_scale") or []
    return {
        "arm": cell.arm,
        "backend": cell.backend,
        "precision": cell.precision,
        "variant": cell.variant,
        "label": cell.label,
        "status": cell.status,
        "reason": cell.reason,
        "framework_version": None if record is None else record.framework_version,
        "dtype_requested": get("precision", "dtype"),
        "dtype_effective": get("precision", "effective"),
        "tf32": get("precision", "tf32"),
        "device_type": get("device", "type"),
        "device_name": get("device", "name"),
        "model": get("model", "name"),
        "parameters": get("model", "parameters"),
        "batch_size": get("training", "batch_size"),
        "image_size_px": get("training", "image_size"),
        "optimizer": get("training", "optimizer"),
        "optimizer_implementation": get("training", "optimizer_implementation"),
        "lr": get("training", "lr"),
        "seed": get("training", "seed"),
        "layout": get("training", "layout"),
        "compile": get("training", "compile"),
        "input": get("training", "input"),
        "steps": get("training", "steps"),
        "images_per_s": get("throughput", "images_per_s"),
        "window_median_images_per_s": median(rates) if rates else None,
        "timed_windows": len(rates) if record is not None else None,
        "timed_steps": get("throughput", "timed_steps"),
        "verdict": None if judged is None else judged.verdict.outcome,
        "speedup_over": judged.counted[0].baseline.arm if judged and judged.counted else None,
        "speedup": None if gain is None else gain.ratio,
        "speedup_low": None if gain is None else gain.shown.low,
        "speedup_high": None if gain is None else gain.shown.high,
        "speedup_pairs": None if gain is None else len(gain.pair_ratios),
        "speedup_windows": None if gain is None else gain.windows,
        "speedup_measured_in_turn": None if judged is None else judged.in_turn,
        "prepare_s": get("throughput", "prepare_s"),
        "warmup_s": get("throughput", "warmup_s"),
        "data_wait_fraction": get("throughput", "data_wait_fraction"),
        "threads_requested": get("training", "threads"),
        "threads_in_use": get("throughput", "threads_in_use"),
        "first_loss": losses[0] if losses else None,
        "final_loss": losses[-1] if losses else None,
        "val_top1_fraction": get("accuracy", "val_top1"),
        "val_top2_fraction": get("accuracy", "val_top2"),
        "val_loss": get("accuracy", "val_loss"),
        "val_top1_fraction_by_class_json": _json(get("accuracy", "per_class")),
        "host_peak_bytes": get("memory", "host_peak_bytes"),
        "device_allocated_peak_bytes": get("memory", "device_allocated_peak_bytes"),
        "device_reserved_peak_bytes": get("memory", "device_reserved_peak_bytes"),
        "device_used_delta_bytes": get("memory", "device_used_delta_bytes"),
        "loss_scale_policy": get("training", "loss_scale_policy"),
        "loss_scale_first": scales[0] if scales else None,
        "loss_scale_final": scales[-1] if scales else None,
        "skipped_steps": sum(skipped) if skipped else None,
        **_gradients(record),
        "energy_joules": get("energy", "joules"),
        "energy_source": get("energy", "source"),
        "manifest_sha256": get("data", "manifest_sha256"),
        "batch_sha256": get("data", "batch_sha256"),
        "order_sha256": get("data", "order_sha256"),
        "created": None if record is None else record.created,
        "command": None if record is None else record.command,
    }


def _gradients(record: Record | None) -> dict[str, Any]:
    """What float16 would lose without a loss scale, of the gradients that are not zero."""
    histogram = None if record is None else record.gradient_histogram
    values: dict[str, Any] = {"gradient_step": None if histogram is None else histogram.step}
    for part in ("activation", "weight"):
        sizes: GradientSizes | None = getattr(histogram, f"{part}s", None)
        found = None if sizes is None else lost(sizes, None)
        values |= {
            f"{part}_gradients_below_float16_fraction": found and found.without_scale,
            f"{part}_gradients_subnormal_float16_fraction": found and found.fewer_bits,
        }
    return values


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _spreadsheet_safe(value: Any) -> Any:
    if isinstance(value, str):
        text = formats.printable(value)
        return f"'{text}" if text.lstrip().startswith(_FORMULA_STARTS) else text
    # pandas would leave out a NaN as if nobody had measured it.
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
