"""The manifest of what differs between two arms, and the statement that all got the same data."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from report_records import (
    environment_part,
    evidence_part,
    ok_record,
    precision_part,
    study_of,
    write_study,
)

from harness.records import (
    DataPart,
    DevicePart,
    EnvironmentPart,
    ModelPart,
    PrecisionPart,
    Record,
    TrainingPart,
)
from reports import write_report
from reports.fairness import data_groups, differences, same_data
from reports.same_experiment import framework_comparisons

VALUES = (True, 7, 7.5, "cuda", {"OMP_NUM_THREADS": "9"}, ["avx2"])
"""One of them is another value of any field."""


def other(part: Any, dumped: dict[str, Any], field: str, value: object) -> Any:
    """The part with a value in a field; None where the field cannot take it, or has it."""
    try:
        changed = part.model_validate(dumped | {field: value}, strict=True)
    except ValidationError:
        return None
    return None if getattr(changed, field) == dumped[field] else changed


def roles(left: Record, right: Record, factor: Any = "framework") -> dict[str, str]:
    """Setting → role of each difference."""
    return {d.setting: d.role for d in differences(left, right, factor=factor)}


def test_defaults_of_the_frameworks_are_listed_and_confound_their_ratio():
    torch = ok_record("torch", training={"layout": "nchw", "compile": "eager"})
    tensorflow = ok_record("tensorflow", training={"layout": "nhwc", "compile": "graph"})

    (pair,) = framework_comparisons([torch, tensorflow])

    assert pair.ratio == "none: confounded"
    confounding = [(d.setting, d.left, d.right) for d in pair.differences if d.role == "confounds"]
    assert confounding == [("layout", "nchw", "nhwc"), ("compile", "eager", "graph")]


def test_frameworks_that_differ_in_nothing_else_have_a_ratio():
    torch = ok_record("torch", rates=[40, 40, 40])
    paddle = ok_record(
        "paddle",
        rates=[20, 20, 20],
        framework_version="9",
        training={"optimizer_implementation": "loop"},
    )

    (pair,) = framework_comparisons([torch, paddle])

    assert pair.name == "fp32: paddle over torch"
    # Equal windows: what is left is the assumed spread of 5 % between processes. The 97.5 %
    # quantile of the product of two standard normal variables is 2.18; exp(±2.18 × 0.05) about.
    assert pair.ratio == (
        "×0.500 [0.448, 0.558]; measured one after the other: drift is not cancelled"
    )
    assert roles(torch, paddle) == {
        "backend": "under test",
        "framework version": "under test",
        "optimizer implementation": "by necessity",
    }


def test_an_environment_for_each_framework_confounds_only_by_what_all_use():
    left = ok_record("torch", environment=environment_part(packages={"torch": "2", "numpy": "1"}))
    right = ok_record(
        "paddle",
        environment=environment_part(packages={"paddlepaddle-gpu": "3", "numpy": "2"}),
    )

    found = roles(left, right)

    assert found["package torch"] == found["package paddlepaddle-gpu"] == "by necessity"
    assert found["package numpy"] == "confounds"


@pytest.mark.parametrize("part", [TrainingPart, DevicePart, ModelPart, EnvironmentPart])
def test_no_setting_of_a_record_escapes_the_manifest(part: Any):
    """Each field is given another value, and the list must name it."""
    record = ok_record()
    attribute = part.__name__.removesuffix("Part").lower()
    dumped = getattr(record, attribute).model_dump()
    for field, old in dumped.items():
        changed = next(filter(None, (other(part, dumped, field, new) for new in VALUES)))
        assert getattr(changed, field) != old
        assert differences(record, record.model_copy(update={attribute: changed})), field


@pytest.mark.parametrize(
    ("right", "confound"),
    [(["avx2"], True), (["avx2", "avx512_bf16"], False), (None, False)],
)
def test_units_of_the_cpu_confound_where_both_records_list_them(
    right: list[str] | None, confound: bool
):
    # A study that was begun before records listed them must be able to go on.
    left = ok_record(environment=environment_part(cpu_features=["avx2", "avx512_bf16"]))
    other = ok_record(environment=environment_part(cpu_features=right))

    for found in (differences(left, other), differences(other, left)):
        assert [d.role for d in found] == (["confounds"] if confound else [])


def test_hashes_of_the_data_and_tf32_confound():
    for field in ("manifest_sha256", "batch_sha256", "order_sha256", "train_images", "name"):
        assert field in DataPart.model_fields
        value = 7 if field == "train_images" else "ee" * 32
        found = differences(ok_record(), ok_record(data={field: value}))
        assert [d.role for d in found] == ["confounds"], field
    tf32 = PrecisionPart(requested="fp32", dtype="float32", effective="float32", tf32=True)
    found = differences(ok_record(), ok_record(precision_in_force=tf32))
    assert [(d.setting, d.left, d.right, d.role) for d in found] == [
        ("tf32", "off", "on", "confounds")
    ]


def test_how_long_an_arm_was_measured_confounds_nothing():
    found = roles(ok_record(rates=[40] * 3), ok_record(rates=[40] * 5), "precision")

    assert set(found.values()) == {"length"}
    assert set(found) == {"steps", "timed steps", "timed windows"}


def test_layers_in_another_dtype_are_counted_and_belong_to_precision():
    layers = {"conv1": ("float32", "float32", None), "fc": ("float32", "float32", None)}
    mixed = layers | {"conv1": ("float16", "float16", None)}
    fp32 = precision_part("fp32", evidence=evidence_part(layers, scaler_enabled=False))
    amp = precision_part("amp", evidence=evidence_part(mixed))

    found = differences(
        ok_record(precision_in_force=fp32), ok_record(precision="amp", precision_in_force=amp)
    )

    moved = next(d for d in found if d.setting == "layers in another dtype")
    assert (moved.right, moved.role) == ("1 of 2", "under test")
    assert {d.role for d in found} == {"under test"}


def test_seeds_are_given_different_batches_and_that_is_no_fault():
    records = [ok_record(), ok_record("paddle"), ok_record(seed=1), ok_record("paddle", seed=1)]

    assert same_data(records)
    assert [len(groups) for groups in data_groups(records).values()] == [1, 1]


def test_the_same_first_batches_in_another_order_of_the_rest_are_not_the_same_data():
    other = ok_record("paddle", data={"order_sha256": "ff" * 32})

    assert not same_data([ok_record(), other])
    assert not same_data(
        [ok_record(seed=1), ok_record("paddle", seed=1, data={"batch_sha256": "1"})]
    )


def test_the_order_of_a_shorter_run_is_not_held_against_it():
    shorter = ok_record("paddle", rates=[40] * 4, data={"order_sha256": "ff" * 32})
    cut_off = ok_record("fake", status="diverged", data={"order_sha256": "ee" * 32})

    assert same_data([ok_record(), shorter, cut_off])


def page_of(folder: Path, *records: Record) -> str:
    """The Markdown report of a study of these records."""
    study = study_of(*(record.arm for record in records))
    return write_report(write_study(folder, study, *records)).markdown.read_text("utf-8")


def test_the_report_states_batches_and_order_with_their_hashes(tmp_path: Path):
    text = page_of(tmp_path, ok_record(), ok_record("paddle"))

    assert (
        "were given the same first batches, and those that finished all images in the same" in text
    )
    assert f"| 0 | torch-fp32, paddle-fp32 | {'bb' * 32} | {'0d' * 32} |" in text


def test_an_order_that_nobody_recorded_is_not_claimed(tmp_path: Path):
    records = [ok_record(name, data={"order_sha256": None}) for name in ("torch", "paddle")]

    assert "whether the order of all images was the same was not recorded" in page_of(
        tmp_path, *records
    )


def test_unequal_orders_are_a_warning(tmp_path: Path):
    other = ok_record("paddle", data={"order_sha256": "ff" * 32})
    text = page_of(tmp_path, ok_record(), other)

    assert "NOT given the same first batches in the same order" in text
    assert "fp32: paddle over torch | none: confounded | order of images" in text


def test_a_first_loss_is_compared_within_its_seed(tmp_path: Path):
    records = [
        ok_record(losses=[2.0] * 8),
        ok_record("paddle", losses=[2.0] * 8),
        ok_record(seed=1, losses=[1.5] * 8),
        ok_record("paddle", seed=1, losses=[1.6] * 8),
    ]
    text = page_of(tmp_path, *records)

    assert "relative difference of the first step's loss paddle-fp32-seed1 0.0667, above" in text


def test_every_difference_stands_folded_on_the_page_with_its_values(tmp_path: Path):
    records = [ok_record(), ok_record(precision="amp", training={"layout": "nhwc"})]
    study = study_of("torch-fp32", "torch-amp")
    html = write_report(write_study(tmp_path, study, *records)).html.read_text("utf-8")

    same_experiment = html.partition('id="same"')[2]
    folded = same_experiment.partition("<details>")[2].partition("</details>")[0]
    assert "<td>layout</td><td>nchw</td><td>nhwc</td><td>confounds</td>" in folded
    assert "<td>precision</td><td>fp32</td><td>amp</td><td>under test</td>" in folded
