"""The break-even map: where AMP pays over batch size and image size, and why not elsewhere."""

import io
from pathlib import Path
from typing import Any

import pytest
from report_records import BATCH_SIZE, ok_record, study_of, write_study
from rich.console import Console

from harness.records import DevicePart, ModelPart, ProfilePart, Record
from reports import write_report
from reports.blocks import Table
from reports.break_even import BreakEvenMap, break_even_maps
from reports.cells import Results, study_cells
from reports.console import render_results
from reports.map_section import map_section
from reports.pages import build_page


def cell(
    batch_size: int,
    image_size: int,
    amp: float,
    *,
    fp32: float = 40.0,
    backend: str = "torch",
    label: str = "",
    compute: tuple[float, float] | None = None,
    profiles: tuple[ProfilePart, ProfilePart] | None = None,
    **changes: Any,
) -> list[Record]:
    """fp32 and AMP of one cell; 16 and 32 px are the main settings, whose variant is empty.

    `compute`: images/s of the two on a resident batch.
    """
    b = "" if batch_size == 16 else f"b{batch_size}"
    s = "" if image_size == 32 else f"s{image_size}"
    records = []
    for place, (precision, rate) in enumerate((("fp32", fp32), ("amp", amp))):
        measured: dict[str, Any] = {}
        if compute is not None:
            alone = ok_record(precision=precision, rates=[compute[place]] * 4)
            measured["compute_windows"] = alone.windows[1:]
        if profiles is not None:
            measured["profile"] = profiles[place]
        record = ok_record(
            backend,
            precision,
            rates=[rate] * 6,
            variant=f"{b}{s}",
            label=label,
            training={"batch_size": batch_size, "image_size": image_size},
            **(measured | changes),
        )
        records.append(of_batch(record, batch_size))
    return records


def of_batch(record: Record, batch_size: int) -> Record:
    """`record`, made for batches of 16, with the images and times of another batch size."""
    scale = batch_size / BATCH_SIZE
    scaled = {
        part: [
            window.model_copy(
                update={"images": round(scale * window.images), "time_s": scale * window.time_s}
            )
            for window in getattr(record, part)
        ]
        for part in ("windows", "compute_windows")
    }
    return record.model_copy(update=scaled)


def results_of(*records: Record, **changes: Any) -> Results:
    study = study_of(*(record.arm for record in records), **changes)
    return Results(study=study, cells=study_cells(study, records))


def map_of(*records: Record) -> BreakEvenMap:
    (found,) = break_even_maps(results_of(*records))
    return found


def regions(found: BreakEvenMap) -> dict[tuple[int, int], str]:
    return {(c.batch_size, c.image_size): c.region for c in found.cells}


def square() -> list[Record]:
    """40 images/s in fp32 everywhere; AMP pays at batch 16 and 32 of 64 px alone."""
    return [
        *cell(16, 32, 40.0),
        *cell(8, 32, 20.0),
        *cell(32, 32, 60.0),
        *cell(16, 64, 60.0),
        *cell(8, 64, 20.0),
        *cell(32, 64, 80.0),
    ]


def test_each_cell_has_its_own_speedup_and_region():
    found = map_of(*square())

    assert regions(found) == {
        (8, 32): "slower",
        (16, 32): "undecided",
        (32, 32): "pays",
        (8, 64): "slower",
        (16, 64): "pays",
        (32, 64): "pays",
    }
    ratios = [c.row.verdict.speedup.ratio for c in found.cells if c.row.verdict.speedup]
    assert ratios == pytest.approx([0.5, 1.0, 1.5, 0.5, 1.5, 2.0])


def test_the_break_even_is_told_for_each_image_size():
    assert map_of(*square()).break_even() == [
        "at 32 px AMP pays at batch size 32, is slower at batch size 8 and is not shown to pay at "
        "batch size 16 (undecided)",
        "at 64 px AMP pays at batch sizes 16 and 32 and is slower at batch size 8",
    ]


@pytest.mark.parametrize(
    ("amp", "words"),
    [
        ((60, 60, 60), "pays at batch sizes 8, 16 and 32"),
        ((20, 20, 20), "is slower at batch sizes 8, 16 and 32"),
        ((60, 20, 60), "pays at batch sizes 8 and 32 and is slower at batch size 16"),
        # One pair cannot show that equal arms are equal.
        ((40, 40, 40), "is not shown to pay at batch sizes 8, 16 and 32 (undecided)"),
    ],
)
def test_a_break_even_in_words(amp: tuple[float, float, float], words: str):
    records = [r for size, rate in zip((8, 16, 32), amp, strict=True) for r in cell(size, 32, rate)]

    assert map_of(*records).break_even() == [f"at 32 px AMP {words}"]


def test_repetitions_count_in_the_cell_that_they_repeat():
    records = [
        *square(),
        *cell(8, 64, 22.0, label="repeat1"),
        *cell(8, 64, 21.0, label="repeat2"),
    ]
    (repeated,) = [c for c in map_of(*records).cells if (c.batch_size, c.image_size) == (8, 64)]

    assert repeated.row.verdict.speedup is not None
    assert repeated.row.verdict.speedup.pair_ratios == pytest.approx((0.5, 0.55, 0.525))


def test_an_input_bound_cell_is_diagnosed_so():
    # Trained at 40 images/s in both, waiting a quarter of the time; alone at 80 and 120.
    found = map_of(*cell(8, 32, 40.0, compute=(80.0, 120.0)), *cell(16, 32, 60.0))

    assert found.cells[0].region == "undecided"
    assert found.cells[0].diagnosis.startswith("input-bound: ×1.50 [")


def profile(step_s: float, convolution_s: float, **changes: Any) -> ProfilePart:
    values: dict[str, Any] = {
        "source": "profiler",
        "steps": 2,
        "step_s": step_s,
        "phases_s": None,
        "operations_s": {"convolution": convolution_s, "elementwise": 0.05},
        "device_busy_s": None,
        "kernels": None,
    }
    return ProfilePart(**values | changes)


def test_slow_operations_are_diagnosed_so():
    # 8 images at 40 and 20 images/s: steps of 0.2 and 0.4 s, the difference in convolutions.
    slow = cell(8, 32, 20.0, profiles=(profile(0.2, 0.15), profile(0.4, 0.35)))
    found = map_of(*slow, *cell(16, 32, 60.0))

    assert found.cells[0].diagnosis == (
        "operations: float16 convolutions took 2.33 times as long as in float32"
    )


def test_a_launch_bound_cell_is_diagnosed_so():
    # On resident batches 8 images at 40 and 30 images/s take 0.2 and 0.267 s; kernels run 0.1 s of
    # each, so that all of the difference is waiting for the host.
    gpu = DevicePart(type="cuda", name="Example GPU")
    profiles = tuple(
        profile(step_s, 0.1, device_busy_s=0.1, operations_s={"convolution": 0.1})
        for step_s in (0.2, 0.267)
    )
    slow = cell(8, 32, 30.0, compute=(40.0, 30.0), profiles=(profiles[0], profiles[1]), device=gpu)
    found = map_of(*slow, *cell(16, 32, 60.0))

    assert "launch-bound: kernels run 37.5 % of the step" in found.cells[0].diagnosis


def test_without_a_measured_cause_the_diagnosis_is_that_there_is_none():
    assert map_of(*square()).cells[0].diagnosis == "cause not determined"


def test_a_cell_without_a_result_keeps_its_place_by_the_plan():
    records = [*cell(16, 32, 60.0), *cell(8, 32, 60.0)]
    fp32, amp = cell(32, 32, 60.0)
    lost = amp.model_copy(
        update={"status": "out_of_memory", "reason": "no room", "training": None, "windows": []}
    )
    found = map_of(*records, fp32, lost)

    assert regions(found)[(32, 32)] == "no result"
    assert found.cells[-1].diagnosis == "AMP out of memory: no room"


def test_a_cell_that_was_never_measured_is_placed_by_the_plan():
    study = study_of(*(record.arm for record in square()))
    planned = {"backend": "torch", "variant": "b64", "batch_size": 64, "image_size": 32}
    study.arms += [planned | {"precision": p, "label": ""} for p in ("fp32", "amp")]
    (found,) = break_even_maps(Results(study=study, cells=study_cells(study, square())))

    # Model and input are unknown of the made plan, so that they are taken for those of the others
    # only where they are told: here they are not.
    assert (64, 32) not in regions(found)
    for arm in study.arms[-2:]:
        arm |= {"model": "resnet18", "input": "cached"}
    (found,) = break_even_maps(Results(study=study, cells=study_cells(study, square())))
    assert regions(found)[(64, 32)] == "no result"


def test_one_size_of_each_is_no_map():
    assert break_even_maps(results_of(*cell(16, 32, 60.0))) == []
    assert map_section([]) is None


def test_a_ladder_is_no_map_although_a_rung_doubles_the_batch():
    records = [
        ok_record(precision="amp", variant=variant, training={"batch_size": size})
        for variant, size in zip(("rung4", "rung5"), (16, 32), strict=True)
    ]
    assert break_even_maps(results_of(*records)) == []


def test_every_backend_has_a_map_of_its_own():
    records = [*square(), *cell(16, 32, 40.0, backend="tensorflow")]
    records += cell(8, 32, 20.0, backend="tensorflow")

    names = [found.name for found in break_even_maps(results_of(*records))]
    assert names == ["torch", "tensorflow"]


def test_the_section_has_a_table_with_region_and_diagnosis_of_each_cell():
    section = map_section([map_of(*square())])
    assert section is not None
    (table,) = [block for block in section.blocks if isinstance(block, Table)]

    assert [row[0] for row in table.rows] == [
        "8 × 32 px",
        "16 × 32 px",
        "32 × 32 px",
        "8 × 64 px",
        "16 × 64 px",
        "32 × 64 px",
    ]
    slow = dict(zip(table.columns, table.rows[0], strict=True))
    assert slow["Speedup"].startswith("×0.500 [")
    assert (slow["images/s fp32"], slow["images/s AMP"]) == ("40.0", "20.0")
    assert (slow["Region"], slow["Verdict"]) == ("slower", "slower")
    assert slow["Diagnosis"] == "cause not determined"


def test_a_page_with_a_map_draws_each_cell_and_keeps_its_main_comparison(tmp_path: Path):
    records = square()
    study = study_of(*(record.arm for record in records))
    html = write_report(write_study(tmp_path, study, *records)).html.read_text("utf-8")

    section = html.split('id="map"')[1].split("<section")[0]
    for figure in ("×0.500", "×1.00 ?", "×1.50", "×2.00", "batch size", "image size, px"):
        assert f">{figure}</text>" in section
    assert 'id="comparison">Comparison: 16 × 32 px<' in html


def test_cells_in_which_amp_makes_no_difference_are_told_apart_from_undecided_ones():
    # Twelve equal pairs without noise: the 95 % interval lies within 2 % of 1.
    equal = [r for n in range(12) for r in cell(8, 32, 40.0, label=f"repeat{n}" if n else "")]
    found = map_of(*equal, *cell(16, 32, 40.0))

    assert regions(found) == {(8, 32): "no difference", (16, 32): "undecided"}
    assert found.break_even() == [
        "at 32 px AMP makes no difference at batch size 8 and is not shown to pay at batch size 16 "
        "(undecided)"
    ]


def test_a_cell_too_noisy_tells_what_would_settle_it():
    (noisy,) = [c for c in map_of(*square()).cells if c.region == "undecided"]
    further = noisy.row.verdict.further_pairs

    assert further is not None
    assert noisy.verdict.startswith(f"too noisy: about {further} more process pairs, ")
    # One pair was measured.
    assert noisy.verdict.endswith(f" would settle it (--repeats {1 + further})")


def test_the_headline_speaks_for_every_cell():
    headline = build_page(results_of(*cell(16, 32, 60.0), *cell(8, 32, 22.2))).headline

    # 22.2 over 40 images/s is ×0.555.
    assert headline == "torch: at 32 px AMP pays at batch size 16 and is slower at batch size 8."


def test_of_many_cells_the_headline_tells_how_many():
    backends = ("torch", "tensorflow", "paddle", "fake")
    records = [
        record
        for backend in backends
        for size, rate in ((16, 60.0), (8, 20.0))
        for px in (32, 64)
        for record in cell(size, px, rate, backend=backend)
    ]
    headline = build_page(results_of(*records)).headline

    assert headline == " ".join(
        f"{backend}: of 4 settings AMP pays at 2 and is slower at 2." for backend in backends
    )


def test_the_headline_tells_models_apart():
    small, large = (
        ModelPart(name=name, parameters=1, forward_flops_per_image=2)
        for name in ("lenet", "resnet50")
    )
    records = [
        *cell(16, 32, 60.0, model=small),
        *(
            record.model_copy(update={"variant": "resnet50", "arm": f"{record.arm}-resnet50"})
            for record in cell(16, 32, 20.0, model=large)
        ),
    ]
    page = build_page(results_of(*records))

    assert page.headline == (
        "torch, lenet, cached: at 32 px AMP pays at batch size 16. "
        "torch, resnet50, cached: at 32 px AMP is slower at batch size 16."
    )
    assert [card.backend for card in page.cards] == ["torch, lenet, cached, 16 × 32 px"]


def test_the_terminal_has_a_line_for_every_cell():
    console = Console(file=io.StringIO(), width=120)
    shown, remedy = render_results(results_of(*square()))
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()

    for name, ratio, outcome in (
        ("torch 8 × 32 px", "×0.500", "slower"),
        ("torch 16 × 32 px", "×1.00", "too noisy"),
        ("torch 32 × 32 px", "×1.50", "pays"),
        ("torch 32 × 64 px", "×2.00", "pays"),
    ):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert ratio in line
        assert line.rstrip().endswith(outcome)
    assert "python -m harness compare --resume DIR --repeats " in remedy
