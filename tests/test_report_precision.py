"""What the report says of casts, loss scales and gradient sizes, from values set on paper."""

import json
import re
from pathlib import Path

import pytest
from report_records import (
    evidence_part,
    gradient_sizes,
    histogram_part,
    ok_record,
    precision_part,
    study_of,
    write_study,
)

from harness.networks import build_network, place_layers
from harness.protocol import LayerEvidence
from harness.records import Record, StepsPart
from reports import write_report
from reports.cast_policy import layer_groups
from reports.loss_scaling import lost
from reports.scaling_charts import loss_scale_chart

Dtypes = tuple[str, str, str | None]
HALF: Dtypes = ("float16", "float16", "float16")
FULL: Dtypes = ("float32", "float32", "float32")
HOSTILE = "<script>alert(1)</script>|*x*\u202e"


def layers_of(dtypes: dict[str, Dtypes]) -> dict[str, LayerEvidence]:
    """Evidence of each layer."""
    return {
        name: LayerEvidence(operation="op", compute=a, output=b, backward=c)
        for name, (a, b, c) in dtypes.items()
    }


def report_of(folder: Path, *records: Record) -> tuple[str, str]:
    """HTML and Markdown of a study of these records."""
    study = study_of(*(record.arm for record in records))
    files = write_report(write_study(folder, study, *records))
    return files.html.read_text("utf-8"), files.markdown.read_text("utf-8")


def test_layers_that_agree_are_one_row_and_exceptions_are_named():
    kinds = {"c1": "convolution", "c2": "convolution", "c3": "convolution", "fc": "linear"}
    arms = {
        "torch-amp": layers_of(dict.fromkeys(kinds, HALF)),
        "tensorflow-amp": layers_of({"c1": FULL, "c2": HALF, "c3": HALF, "fc": FULL}),
    }

    groups = layer_groups(arms, kinds)

    assert [(group.label, *group.dtypes) for group in groups] == [
        ("convolution (2 of 3)", "float16", "float16"),
        ("convolution: c1", "float16", "float32"),
        ("linear (1)", "float16", "float32"),
    ]


def test_a_cast_within_a_layer_and_its_backward_pass_are_told_apart():
    arms = {
        "a": layers_of({"bn": ("float32", "float16", "float32")}),
        "b": layers_of({"bn": ("float16", "float16", None)}),
        "c": {},
    }

    (group,) = layer_groups(arms, {"bn": "batch norm"})

    assert group.dtypes == (
        "float32 → float16; backward float32",
        "float16 → float16; backward not seen",
        "not seen",
    )


def test_the_68_layers_of_resnet18_are_a_summary_by_kind_and_a_folded_list(tmp_path: Path):
    names = [
        (placed.layer.name, type(placed.layer).__name__)
        for placed in place_layers(build_network("resnet18", classes=2, image_size=32))
    ]
    torch = {name: HALF for name, _ in names}
    keras = {name: FULL if kind in ("BatchNorm", "Linear") else HALF for name, kind in names}
    records = [
        ok_record(name, "amp", precision_in_force=precision_part(evidence=evidence_part(dtypes)))
        for name, dtypes in (("torch", torch), ("tensorflow", keras))
    ]
    html, markdown = report_of(tmp_path, *records)

    assert "| convolution (20) | float16 | float16 |" in markdown
    assert "| batch norm (20) | float16 | float32 |" in markdown
    assert "| residual sum (8) | float16 | float16 |" in markdown
    assert "| linear (1) | float16 | float32 |" in markdown
    assert "torch-amp keeps none of 68 layers in float32." in markdown
    assert (
        "tensorflow-amp keeps 21 of 68 layers in float32: batch norm (all 20); linear (fc)."
        in markdown
    )
    assert "Every layer (68): in report.html" in markdown
    assert "layer3.1.bn2" not in markdown
    assert "<summary>Every layer (68)</summary>" in html
    assert "op_layer3.1.bn2: float32" in html
    assert "| torch-amp | float16 | float32 | float32 | Adam, fused | on | off |" in markdown


def test_a_step_without_layers_to_see_says_so(tmp_path: Path):
    evidence = evidence_part({}, source="a profiled step")
    record = ok_record(precision="amp", precision_in_force=precision_part(evidence=evidence))
    _, markdown = report_of(tmp_path, record)

    assert "torch-amp: no dtype of single layers was seen (a profiled step)." in markdown


def test_evidence_that_cannot_be_read_is_a_warning_and_no_crash(tmp_path: Path):
    broken = {"layers": {HOSTILE: {"compute": 3}}}
    record = ok_record(precision="amp", precision_in_force=precision_part(evidence=broken))
    html, markdown = report_of(tmp_path, ok_record(), record)

    assert "torch-amp: its evidence cannot be read: precision.evidence: " in markdown
    assert "<script>" not in html


def test_hostile_names_of_layers_and_operations_are_shown_as_text(tmp_path: Path):
    evidence = evidence_part({HOSTILE: (HOSTILE, HOSTILE, None)}, source=HOSTILE, optimizer=HOSTILE)
    record = ok_record(
        precision="amp",
        precision_in_force=precision_part(evidence=evidence),
        training={"loss_scale_policy": HOSTILE},
    )
    html, markdown = report_of(tmp_path, record)

    assert "<script>" not in html
    assert "<script>" not in markdown
    assert "\u202e" not in html + markdown


def test_the_ledger_names_policy_scales_and_skipped_steps(tmp_path: Path):
    skipped = [True, True, False, False, True, False, False, False]
    steps = StepsPart(
        loss=[1.0] * 8,
        loss_scale=[65536, 32768, 16384, 16384, 16384, 8192, 8192, 8192],
        skipped=skipped,
    )
    _, markdown = report_of(tmp_path, ok_record(precision="amp", steps=steps))

    row = "| torch-amp | dynamic:65536 | 65,536 | 8,192 | 8,192 | 8 | 3 | 1, 2, 5 |"
    assert row in markdown


def test_a_loss_scale_that_halves_and_doubles_is_a_staircase_with_crosses():
    svg = loss_scale_chart([4.0, 2.0, 2.0, 4.0], [False, True, False, False], "var(--amp)")

    # One cross; the axis' figures are the other texts.
    assert svg.count(">×<") == 1
    (line,) = re.findall(r'<path [^>]*d="([^"]*)"[^>]*stroke="var\(--amp\)"', svg)
    heights = {point.split(",")[1] for point in re.split("[ML]", line)[1:]}
    assert len(heights) == 2


def test_what_float16_loses_is_counted_with_and_without_a_scale():
    sizes = gradient_sizes({-30: 10, -20: 30, -10: 60})

    found = lost(sizes, loss_scale=16)

    assert found is not None
    assert (found.nonzero, found.without_scale, found.fewer_bits) == (100, 0.1, 0.3)
    # 2**-30 .. 2**-29 times 16 lies below 2**-25, and is lost; times 32 it is not.
    assert found.with_scale == 0.1
    assert lost(sizes, loss_scale=32).with_scale == 0  # type: ignore[union-attr]
    assert found.overflow == 0


def test_a_scale_that_is_too_large_overflows_the_large_gradients():
    found = lost(gradient_sizes({-3: 3, 0: 1}), loss_scale=65536)

    # 1 .. 2 times 65536 exceeds 65504; 1/8 .. 1/4 times 65536 does not.
    assert found is not None
    assert found.overflow == 0.25


def test_gradients_that_are_all_zero_have_no_fractions():
    assert lost(gradient_sizes({}, zeros=5), 1024) is None


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A study of fp32 and AMP with gradients counted."""
    sizes = gradient_sizes({-30: 10, -20: 30, -10: 60}, zeros=900)
    weights = gradient_sizes({-12: 50}, not_finite=2)
    records = [
        ok_record(gradient_histogram=histogram_part(sizes, weights)),
        ok_record(precision="amp", gradient_histogram=histogram_part(sizes, weights, 65536)),
    ]
    return write_study(tmp_path, study_of("torch-fp32", "torch-amp"), *records)


def test_the_report_tells_in_words_what_float16_would_lose(counted: Path):
    markdown = write_report(counted).markdown.read_text("utf-8")

    assert (
        "torch-fp32, after 10 steps: of 100 nonzero activation gradients float16 without a loss "
        "scale would turn 10.0 % into 0 and hold 30.0 % with fewer bits; of the weight gradients, "
        "0 % and 0 %. With the scale of 65,536 it would turn 0 % of the activation gradients "
        "into 0." in markdown
    )
    assert "2018, Figure 3" in markdown
    row = "| torch-amp | weights | 10 | 50 | 0 | 2 | 0 % | 0 % | 65,536 | 0 % | 0 % |"
    assert row in markdown


def test_the_histogram_marks_the_limits_of_float16_and_where_the_scale_moves_them(counted: Path):
    html = write_report(counted).html.read_text("utf-8")

    section = html.partition('id="gradients"')[2].partition("</section>")[0]
    # Activations and weights.
    assert section.count("<svg") - section.count('viewBox="0 0 26 8"') == 2
    for label in ("2⁻²⁴", "2⁻¹⁴", "65504", "scaled"):
        assert section.count(f">{label}</text>") == 2


def test_the_csv_holds_seed_hashes_and_fractions(counted: Path):
    import pandas as pd

    table = pd.read_csv(write_report(counted).csv, dtype=str, keep_default_na=False)

    amp = table.iloc[1]
    assert amp["activation_gradients_below_float16_fraction"] == "0.1"
    assert amp["activation_gradients_subnormal_float16_fraction"] == "0.3"
    assert amp["weight_gradients_below_float16_fraction"] == "0.0"
    assert (amp["label"], amp["seed"], amp["order_sha256"]) == ("", "0", "0d" * 32)
    assert (amp["loss_scale_policy"], amp["loss_scale_first"]) == ("dynamic:65536", "65536.0")
    assert json.loads(amp["val_top1_fraction_by_class_json"])["ramen"] == 0.55
