"""The report's section about memory: measured peaks with their sources, and AMP's two claims."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from report_records import (
    data_part,
    environment_part,
    ok_record,
    precision_part,
    study_of,
    unavailable_record,
    write_study,
)

from harness.max_batch_command import max_batch
from harness.max_batch_result import MaxBatch, MaxBatchStudy, Trial
from harness.record_files import UnreadableRecord, write_json
from harness.records import DevicePart, MemoryPart, ModelPart, Record
from reports import write_report
from reports.blocks import Table
from reports.cells import Results, read_results, study_cells
from reports.memory_section import memory_section

MIB = 2**20
# ResNet-18 of the two classes of `data_part`: 11,689,512 - 998 * 513 trainable scalars.
PARAMETERS = 11_177_538
# At 32 px: the image, the stem at 16² and 8², and each stage's tensors (see test_memory_model).
KEPT = 3 * 32**2 + 2 * 64 * 16**2 + 9 * 64 * 8**2 + 9 * 128 * 4**2 + 9 * 256 * 2**2 + 9 * 512 + 512


def memory_part(host: int | None = None, *device: int | None) -> MemoryPart:
    """Peaks in MiB: host, then allocated, reserved and used on the device."""
    peaks = [None if peak is None else peak * MIB for peak in (host, *device, *[None] * 3)]
    return MemoryPart(
        host_peak_bytes=peaks[0],
        device_allocated_peak_bytes=peaks[1],
        device_reserved_peak_bytes=peaks[2],
        device_used_delta_bytes=peaks[3],
    )


def tables_of(*records: Record, found: MaxBatchStudy | None = None) -> dict[str, list[Any]]:
    """First words of the caption → rows of the section's tables."""
    cells = study_cells(None, records)
    section = memory_section(Results(study=study_of(), cells=cells, max_batch=found))
    assert section is not None
    return {
        block.caption.split(",")[0].split(" of ")[0].split(":")[0]: list(block.rows)
        for block in section.blocks
        if isinstance(block, Table)
    }


def claims_of(*records: Record, found: MaxBatchStudy | None = None) -> dict[str, tuple[str, str]]:
    """Claim → what was worked out, what was measured."""
    rows = tables_of(*records, found=found)["What is said"]
    return {claim: (worked_out, measured) for _, claim, worked_out, measured in rows}


def max_batches(*cells: MaxBatch, **changes: Any) -> MaxBatchStudy:
    """A search at 32 px within 800 MiB."""
    values: dict[str, Any] = {
        "created": "2026-01-02T03:04:05Z",
        "harness_version": "0.1.0",
        "command": "python -m harness max-batch",
        "model": "resnet18",
        "image_size": 32,
        "classes": 5,
        "optimizer": "adam",
        "device": "cpu",
        "memory_limit_bytes": 800 * MIB,
        "trial_variables": {},
        "environment": environment_part(),
    }
    return MaxBatchStudy(**values | changes, cells=[*cells])


def found_batch(precision: Any, batch: int | None, **changes: Any) -> MaxBatch:
    """A search that ended; 100 images took 400 MiB and 200 took 500."""
    values: dict[str, Any] = {
        "status": "ok",
        "limit_bytes": 800 * MIB,
        "peak_source": "host resident",
        "batch_step": 8,
        "estimated_bytes_per_image": 512 * 1024,
        "estimated_batch": 250,
        "trials": [
            Trial(batch_size=100, fits=True, peak_bytes=400 * MIB),
            Trial(batch_size=200, fits=True, peak_bytes=500 * MIB),
        ],
    }
    return MaxBatch(
        backend="torch",
        precision=precision,
        dtype="float16" if precision == "amp" else "float32",
        largest_batch=batch,
        **values | changes,
    )


def test_peaks_of_different_sources_stand_apart():
    gpu = ok_record(memory=memory_part(900, 500, 640, 1000))
    cpu = ok_record("tensorflow", memory=memory_part(700))
    assert tables_of(gpu, cpu)["Measured peaks"] == [
        ("torch-fp32", "16", "900 MiB", "500 MiB", "640 MiB", "1,000 MiB"),
        ("tensorflow-fp32", "16", "700 MiB", "–", "–", "–"),
    ]


def test_records_that_say_nothing_about_memory_have_no_such_section():
    record = ok_record(memory=None)
    assert memory_section(Results(study=None, cells=study_cells(None, [record]))) is None


def test_the_analytic_split_stands_beside_the_measured_peak():
    ((_, batch, weights, copies, optimizer, gradients, activations, _, _, peak),) = tables_of(
        ok_record(precision="amp", memory=memory_part(900, 500))
    )["What a step must hold"]
    # In MiB. The weights have BatchNorm's 4 · 4,800 float32 values beside them.
    assert batch == "16"
    assert weights == f"{(4 * PARAMETERS + 16 * 4800) / MIB:.0f} MiB" == "43 MiB"
    assert copies == f"{2 * (PARAMETERS - 2 * 4800) / MIB:.0f} MiB" == "21 MiB"
    assert optimizer == f"{8 * PARAMETERS / MIB:.0f} MiB" == "85 MiB"
    assert gradients == "43 MiB"
    assert activations == f"{16 * 2 * KEPT / MIB:.0f} MiB" == "3 MiB"
    assert peak == "500 MiB device allocated"


@pytest.mark.parametrize(
    "changes",
    [
        {"model": ModelPart(name="of another version", parameters=1, forward_flops_per_image=1)},
        {"training": {"optimizer": "lion"}},
        {"training": {"batch_size": 0}},
        {"training": {"image_size": -3}},
    ],
)
def test_what_cannot_be_worked_out_is_left_out(changes: dict[str, Any]):
    tables = tables_of(ok_record(**changes), ok_record(precision="amp", **changes))
    assert "What a step must hold" not in tables
    assert [worked_out for _, _, worked_out, _ in tables["What is said"]] == ["–", "–"]


def test_half_the_storage_is_worked_out_and_measured():
    worked_out, measured = claims_of(
        ok_record(memory=memory_part(800)), ok_record(precision="amp", memory=memory_part(720))
    )["Half the storage"]
    # Activations: (2 · KEPT + 4 · 2) ÷ (4 · KEPT + 4 · 2), two logits staying float32. At this
    # small a batch the weight copies are more than the activations save.
    pixels = 16 * (3 * 32**2 + 8)
    fp32 = 16 * PARAMETERS + 16 * 4800 + 16 * (4 * KEPT + 8) + pixels
    amp = 18 * PARAMETERS - 4 * 4800 + 16 * 4800 + 16 * (2 * KEPT + 8) + pixels
    assert round(amp / fp32, 2) == 1.10
    assert worked_out == "activations ×0.500, all parts ×1.10"
    assert measured == "peak ×0.900 (host; the framework itself is in both)"


def test_the_allocators_peak_is_preferred_where_both_arms_have_it():
    _, measured = claims_of(
        ok_record(memory=memory_part(800, 400)),
        ok_record(precision="amp", memory=memory_part(900, 300)),
    )["Half the storage"]
    assert measured == "peak ×0.750 (device allocated)"


def test_peaks_that_cannot_be_compared_give_no_ratio():
    one = ok_record(memory=memory_part(800, 400))
    other_source = ok_record(precision="amp", memory=memory_part(900))
    other_batch = ok_record(precision="amp", training={"batch_size": 32})
    assert claims_of(one, other_source)["Half the storage"][1].startswith("not measured")
    assert claims_of(one, other_batch)["Half the storage"][1].startswith("not comparable")


def test_a_larger_batch_that_nobody_measured_is_given_its_command():
    _, measured = claims_of(ok_record(), ok_record(precision="amp"))["Larger batch"]
    assert measured == (
        "not measured; measure it with: python -m harness max-batch --backend torch "
        "--image-size 32 --device cpu --memory-limit 2G --out DIR"
    )
    gpu = DevicePart(type="cuda", name="Example GPU")
    _, measured = claims_of(ok_record(device=gpu), ok_record(precision="amp", device=gpu))[
        "Larger batch"
    ]
    assert "--memory-limit" not in measured


def test_the_command_fills_the_line_of_every_backend_in_the_studys_own_folder(tmp_path: Path):
    study = study_of("torch-fp32", "torch-amp", "paddle-fp32", "paddle-amp")
    for arm in study.arms:
        arm |= {"layout": "nhwc", "compile": "on"}
    model = ModelPart(name="resnet50", parameters=1, forward_flops_per_image=1)
    records = [
        ok_record(
            backend,
            precision,
            model=model,
            training={"optimizer": "sgd", "layout": "nhwc"},
            precision_in_force=precision_part(precision, dtype=dtype, effective=dtype),
        )
        for backend in ("torch", "paddle")
        for precision, dtype in (("fp32", "float32"), ("amp", "bfloat16"))
    ]
    folder = write_study(tmp_path / "my study", study, *records)
    section = memory_section(read_results(folder))
    assert section is not None
    (table,) = (
        b for b in section.blocks if isinstance(b, Table) and b.caption.startswith("What is said")
    )
    commands = {row[3] for row in table.rows if row[1] == "Larger batch"}

    assert commands == {
        "not measured; measure it with: python -m harness max-batch --backend torch "
        "--backend paddle --model resnet50 --image-size 32 --optimizer sgd --amp-dtype bfloat16 "
        f"--layout nhwc --compile on --device cpu --memory-limit 2G --out '{folder}'"
    }


def test_the_command_is_one_that_max_batch_understands():
    _, measured = claims_of(
        ok_record(training={"optimizer": "sgd"}),
        ok_record(precision="amp", training={"optimizer": "sgd"}),
    )["Larger batch"]
    words = shlex.split(measured.partition("max-batch ")[2])
    with max_batch.make_context("max-batch", words) as context:
        assert context.params["optimizer"] == "sgd"
        assert context.params["out"] == "DIR"
        assert context.params["model"] == "resnet18"
        assert context.params["image_size"] == 32


def test_a_search_of_other_arms_is_to_be_moved_away_first():
    other = found_batch("amp", 300).model_copy(update={"backend": "paddle"})
    claims = claims_of(ok_record(), ok_record(precision="amp"), found=max_batches(other))
    assert claims["Larger batch"][1].startswith(
        "not measured; move DIR/max_batch.json away, and measure all with: python -m harness"
    )


def test_a_larger_batch_that_was_measured_is_told_with_both_batches():
    found = max_batches(found_batch("fp32", 200), found_batch("amp", 300))
    tables = tables_of(ok_record(), ok_record(precision="amp"), found=found)
    measured = tables["What is said"][1][3]
    assert measured == "×1.50: 200 → 300 images (resnet18, 32 px, float16)"
    # 100 MiB over 100 images are 1,024 KiB an image; 250 is a quarter more than 200.
    assert tables["Largest batch"][0] == (
        *("torch float32", "200", "8", "", "500 MiB host resident", "1,024 KiB", "512 KiB"),
        *("250", "25.0 %"),
    )
    assert tables["Largest batch"][1][3] == "×1.50"


def test_a_search_that_memory_did_not_end_shows_its_batch_with_the_reason_and_no_ratio():
    ended = found_batch("amp", 200, batch_step=None, reason="batch 200 fits, the most there is")
    found = max_batches(found_batch("fp32", 200), ended)
    tables = tables_of(ok_record(), ok_record(precision="amp"), found=found)
    assert tables["What is said"][1][3] == "none: float16 ended before memory did"
    assert tables["Largest batch"][1][:4] == (
        "torch float16 (batch 200 fits, the most there is)", "200", "–", "–"
    )  # fmt: skip
    # 250 images were worked out for the memory that was never reached.
    assert tables["Largest batch"][1][8] == "–"


def test_an_unavailable_arm_has_a_claim_without_a_measurement():
    claims = claims_of(ok_record("paddle"), unavailable_record())
    assert claims["Half the storage"] == ("–", "none: paddle-amp unavailable")
    assert claims["Larger batch"] == ("–", "none: paddle-amp unavailable")


def test_bytes_per_image_are_the_slope_between_two_batch_sizes():
    small = ok_record(memory=memory_part(100, 400))
    large = ok_record(
        variant="b48",
        arm="torch-fp32-b48",
        training={"batch_size": 48},
        memory=memory_part(100, 432),
    )
    other_size = ok_record(
        variant="px64", arm="torch-fp32-px64", training={"image_size": 64, "batch_size": 64}
    )
    # 32 MiB over 32 images; worked out: the kept values, two logits, pixels and a label.
    per_image = 4 * (KEPT + 2) + 3 * 32**2 + 8
    assert tables_of(small, large, other_size)["Memory"] == [
        (
            *("torch float32", "16 → 48", "device allocated", "1,024 KiB"),
            f"{per_image / 1024:.0f} KiB",
        )
    ]


def test_the_report_shows_a_search_that_lies_in_the_studys_folder(tmp_path: Path):
    folder = write_study(
        tmp_path / "study",
        study_of("torch-fp32", "torch-amp"),
        ok_record(),
        ok_record(precision="amp"),
    )
    write_json(folder / "max_batch.json", max_batches(found_batch("amp", 300)))
    assert read_results(folder).max_batch is not None
    text = write_report(folder).markdown.read_text()
    assert "Largest batch of resnet18 at 32 px within 800 MiB of host memory" in text


def test_a_broken_search_is_named(tmp_path: Path):
    folder = write_study(tmp_path / "study", study_of("torch-fp32"), ok_record())
    (folder / "max_batch.json").write_text("{")
    with pytest.raises(UnreadableRecord, match=r"max_batch\.json"):
        read_results(folder)


def test_classes_decide_about_the_head():
    many = data_part(classes=[f"c{i}" for i in range(1000)])
    records = [ok_record(data=many.model_dump())]
    ((_, _, weights, *_),) = tables_of(*records)["What a step must hold"]
    assert weights == f"{(4 * 11_689_512 + 16 * 4800) / MIB:.0f} MiB"
