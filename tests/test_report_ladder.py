"""The ladder: a factor for each change, and AMP's own share; every figure from paper.

The arms of a ladder are named after their rungs: rung0 strict fp32, rung1 TF32, rung2 AMP float16,
rung3 AMP bfloat16, rung4 channels-last, rung5 twice the batch, rung6 compiled.
"""

import io
import math
from pathlib import Path
from typing import Any

import pytest
from report_records import ok_record, precision_part, study_of, write_study

from harness.records import Record, Window
from harness.speedup import Interval, Speedup
from reports import write_report
from reports.attribution import Ladder, amp_share, ladders, share_of
from reports.blocks import Page, Paragraph, Table
from reports.cells import Results, study_cells
from reports.console import render_results
from reports.ladder_section import ladder_section
from reports.pages import build_page

WINDOWS = 6
RATES = {
    "rung0": 100.0,
    "rung1": 110.0,
    "rung2": 165.0,
    "rung3": 132.0,
    "rung4": 198.0,
    "rung5": 220.0,
    "rung6": 330.0,
}
"""Images/s: ×1.1, ×1.5, then beside it ×0.8, and on the float16 rung ×1.2, ×10/9, ×1.5."""


def places(rung: int, arms: int) -> list[int]:
    """Of the windows of an arm that takes turns with others, each round reversed."""
    return [k * arms + (rung if k % 2 == 0 else arms - 1 - rung) for k in range(WINDOWS)]


def in_turn(record: Record, rung: int, arms: int) -> Record:
    warmup, *timed = record.windows
    moved: list[Window] = [
        window.model_copy(update={"arm_position": place})
        for window, place in zip(timed, places(rung, arms), strict=True)
    ]
    return record.model_copy(update={"windows": [warmup, *moved]})


def rung(
    variant: str,
    *,
    label: str = "",
    rate: float | None = None,
    kept: str = "float16",
    backend: str = "torch",
    training: dict[str, Any] | None = None,
) -> Record:
    """The arm of a rung, measured in turn with the six others; `kept`: dtype above rung3."""
    number = int(variant[-1])
    dtype = {2: "float16", 3: "bfloat16"}.get(number, kept) if number > 1 else "float32"
    settings: dict[str, Any] = {"layout": "nhwc"} if number > 3 else {}
    data: dict[str, Any] = {}
    if number > 4:
        settings["batch_size"] = 32
        data = {"batch_sha256": "ee" * 32, "order_sha256": "ef" * 32}
    if number > 5:
        settings["compile"] = "on"
    if dtype == "bfloat16":
        settings["loss_scale_policy"] = None
    record = ok_record(
        backend,
        "amp" if number > 1 else "fp32",
        rates=[rate or RATES[variant]] * WINDOWS,
        variant=variant,
        label=label,
        data=data,
        training=settings | (training or {}),
        precision_in_force=precision_part(
            "amp" if number > 1 else "fp32", dtype=dtype, effective=dtype, tf32=number > 0
        ),
    )
    return in_turn(record, number, 7)


def results_of(*records: Record) -> Results:
    names = [record.arm for record in records]
    study = study_of(*names)
    return Results(study=study, cells=study_cells(study, records))


def ladder_of(*records: Record) -> Ladder:
    (ladder,) = ladders(results_of(*records))
    return ladder


def whole(**changes: Any) -> list[Record]:
    return [rung(variant, **changes) for variant in RATES]


def without(record: Record, status: str, reason: str) -> Record:
    """`record` as that of an arm without a result."""
    update = {"status": status, "reason": reason, "windows": [], "throughput": None}
    return record.model_copy(update=update)


def factors(ladder: Ladder) -> dict[str, float | None]:
    return {
        result.rung.title: gain.ratio if (gain := result.gain.verdict.speedup) else None
        for result in ladder.rungs
        if result.gain is not None
    }


def test_each_rung_has_its_own_factor_over_the_rung_that_it_changes():
    assert factors(ladder_of(*whole())) == {
        "TF32": pytest.approx(1.1),
        "AMP float16": pytest.approx(165 / 110),
        "AMP bfloat16": pytest.approx(132 / 165),
        # A branch: the rungs above keep float16.
        "channels-last": pytest.approx(198 / 165),
        "twice the batch": pytest.approx(220 / 198),
        "compiled": pytest.approx(330 / 220),
    }


def test_each_rung_has_a_factor_over_strict_fp32():
    totals = {
        result.rung.variant: result.total.verdict.speedup.ratio
        for result in ladder_of(*whole()).rungs
        if result.total is not None and result.total.verdict.speedup is not None
    }
    assert totals == pytest.approx(
        {variant: rate / 100 for variant, rate in RATES.items() if variant != "rung0"}
    )


def test_rungs_of_one_ladder_were_measured_in_turn():
    for result in ladder_of(*whole()).rungs[1:]:
        assert result.gain is not None
        assert result.gain.in_turn
        assert not any("drift" in text for text in result.gain.verdict.warnings)


def test_where_bfloat16_is_kept_the_rungs_above_compare_with_it():
    ladder = ladder_of(*whole(kept="bfloat16"))

    assert factors(ladder)["channels-last"] == pytest.approx(198 / 132)
    # AMP's own factor is over TF32 and not over the other AMP rung.
    assert ladder.amp.title == "AMP bfloat16"
    assert ladder.verdict.speedup is not None
    assert ladder.verdict.speedup.ratio == pytest.approx(132 / 110)


def test_a_rung_that_the_device_lacks_is_left_out_of_the_chain_and_told():
    strict, tf32, *above = whole()
    above = [
        r.model_copy(update={"precision": r.precision.model_copy(update={"tf32": False})})
        for r in above
    ]
    lacking = without(tf32, "unavailable", "CPU has no TF32")
    ladder = ladder_of(strict, lacking, *above)

    assert factors(ladder)["TF32"] is None
    assert factors(ladder)["AMP float16"] == pytest.approx(1.65)
    section = ladder_section([ladder])
    assert section is not None
    texts = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    assert "torch, TF32: unavailable: CPU has no TF32." in texts
    assert any("over strict fp32 (pays); all changes" in text for text in texts)


def test_repetitions_are_further_pairs_of_every_rung():
    repeated = [
        rung(variant, label=label, rate=rate * (1.02 if variant == "rung2" else 1))
        for label in ("repeat1", "repeat2")
        for variant, rate in RATES.items()
    ]
    ladder = ladder_of(*whole(), *repeated)

    gain = ladder.verdict.speedup
    assert gain is not None
    assert gain.pair_ratios == pytest.approx((1.5, 1.53, 1.53))
    assert ladder.verdict.assumption is not None


def test_a_rung_that_changed_something_else_is_confounded():
    records = whole()
    records[4] = rung("rung4", training={"threads": 1})
    ladder = ladder_of(*records)

    gain = next(r.gain for r in ladder.rungs if r.rung.variant == "rung4")
    assert gain is not None
    assert gain.verdict.outcome == "confounded"
    assert gain.verdict.differences == ("threads: 2 | 1",)
    # And so is the next one, which changes the threads back.
    assert factors(ladder)["twice the batch"] is None


def test_a_rung_may_change_its_own_setting_alone():
    # The layout is the change of rung4 and must not be one of rung6.
    records = whole()
    records[6] = rung("rung6", training={"layout": "nchw"})

    gain = ladder_of(*records).rungs[6].gain
    assert gain is not None
    assert gain.verdict.differences == ("layout: nhwc | nchw",)


def test_a_rung_whose_setting_was_in_force_before_has_no_factor():
    # As for TensorFlow, whose layout is channels-last from the start.
    records = [rung(variant, training={"layout": "nhwc"}) for variant in RATES]
    ladder = ladder_of(*records)

    assert factors(ladder)["channels-last"] is None
    gain = ladder.rungs[4].gain
    assert gain is not None
    assert gain.verdict.reason == (
        "channels-last changes nothing here: AMP float16 ran with the same settings."
    )
    assert factors(ladder)["twice the batch"] == pytest.approx(220 / 198)


def test_amps_own_share_is_that_of_the_logarithm_of_the_whole_gain():
    # ln 1.5 / ln 3.3 = 0.4055 / 1.1939 = 34 %.
    assert round(100 * math.log(1.5) / math.log(3.3)) == 34
    text = amp_share(ladder_of(*whole()))

    assert text.startswith("AMP float16 by itself gives ×1.50 [")
    assert "over TF32 (pays); all changes up to compiled together give ×3.30 [" in text
    assert "AMP's share in that gain is 34 % [" in text
    assert text.endswith("%] (of its logarithm).")


def speedup(ratio: float, low: float, high: float) -> Speedup:
    interval = Interval(confidence=0.95, low=low, high=high)
    return Speedup(
        ratio=ratio,
        shown=interval,
        decisive=interval,
        pair_ratios=(ratio,),
        windows=6,
        window_sd=0.0,
        process_sd=0.01,
        process_sd_scale=0.05,
    )


@pytest.mark.parametrize(
    ("own", "whole", "share"),
    [
        # Powers of e make the logarithms whole tenths: 2/4, and 1/5 to 3/3.
        ((0.2, 0.1, 0.3), (0.4, 0.3, 0.5), (0.5, 0.2, 1.0)),
        # An AMP that slows down: -2/4, and -3/3 to -1/5.
        ((-0.2, -0.3, -0.1), (0.4, 0.3, 0.5), (-0.5, -1.0, -0.2)),
        # One that does both: 0/4, and -1/3 to 1/3.
        ((0.0, -0.1, 0.1), (0.4, 0.3, 0.5), (0.0, -1 / 3, 1 / 3)),
        # The whole may be no gain.
        ((0.2, 0.1, 0.3), (0.1, 0.0, 0.2), None),
        ((0.2, 0.1, 0.3), (0.1, -0.1, 0.3), None),
    ],
)
def test_the_share_has_the_range_that_both_intervals_leave_open(
    own: tuple[float, ...], whole: tuple[float, ...], share: tuple[float, ...] | None
):
    found = share_of(
        speedup(*(math.exp(value) for value in own)),
        speedup(*(math.exp(value) for value in whole)),
    )
    if share is None:
        assert found is None
    else:
        assert found is not None
        assert (found.value, found.low, found.high) == pytest.approx(share)


def test_above_100_percent_the_other_changes_took_from_the_gain():
    # AMP ×4 and in all ×2: ln 4 / ln 2 = 200 %, and no end of ±12 % about either brings it to 100.
    records = whole()[:5]
    records[1:] = [
        rung(f"rung{i}", rate=rate) for i, rate in enumerate((100.0, 400.0, 400.0, 200.0), start=1)
    ]
    text = amp_share(ladder_of(*records))

    assert "AMP's share in that gain is 200 % [" in text
    assert text.endswith("(of its logarithm): the other changes took from it.")


def test_a_share_hardly_above_100_percent_shows_nothing_of_the_other_changes():
    # ln 2.1 / ln 2 = 107 %.
    records = whole()[:5]
    records[1:] = [
        rung(f"rung{i}", rate=rate) for i, rate in enumerate((100.0, 210.0, 210.0, 200.0), start=1)
    ]
    text = amp_share(ladder_of(*records))

    assert "AMP's share in that gain is 107 % [" in text
    assert text.endswith("would have taken from it, which is not shown.")


def test_where_amp_slows_down_it_has_no_share_in_the_gain():
    records = whole()
    records[2] = rung("rung2", rate=55.0)

    # ln (55 / 110) / ln 3.3 = -0.693 / 1.194 = -58 %.
    assert "AMP has no share in that gain, it takes from it: −58 % [" in amp_share(
        ladder_of(*records)
    )


def test_where_the_highest_rung_failed_the_whole_gain_is_that_of_the_one_below():
    *lower, top = whole()
    failed = without(top, "failed", "the compiler is missing")
    text = amp_share(ladder_of(*lower, failed))

    # ln 1.5 / ln 2.2 = 51 %.
    assert "all changes up to twice the batch together give ×2.20" in text
    assert "AMP's share in that gain is 51 % [" in text


def test_where_amp_failed_there_is_no_share_but_the_reason():
    records = whole()
    records[2] = without(records[2], "out_of_memory", "no room")

    assert amp_share(ladder_of(*records)) == (
        "AMP float16 has no factor of its own: AMP float16 out of memory: no room."
    )


def test_the_table_of_a_ladder_has_a_row_a_rung():
    section = ladder_section([ladder_of(*whole())])
    assert section is not None
    (table,) = [block for block in section.blocks if isinstance(block, Table)]

    assert [row[:3] for row in table.rows] == [
        ("strict fp32", "–", "100"),
        ("TF32", "strict fp32", "110"),
        ("AMP float16", "TF32", "165"),
        ("AMP bfloat16", "AMP float16", "132"),
        ("channels-last", "AMP float16", "198"),
        ("twice the batch", "channels-last", "220"),
        ("compiled", "twice the batch", "330"),
    ]
    amp = dict(zip(table.columns, table.rows[2], strict=True))
    assert amp["Factor"].startswith("×1.50 [")
    assert amp["Verdict"] == "pays"
    assert amp["Over strict fp32"].startswith("×1.65 [")
    assert (amp["Process pairs"], amp["Measured in turn"]) == ("1", "yes")


def test_the_page_of_a_ladder_has_a_headline_and_cards_from_its_amp_rung(tmp_path: Path):
    records = [*whole(), *whole(backend="tensorflow")]
    records[9] = rung("rung2", backend="tensorflow", rate=55.0)
    study = study_of(*(record.arm for record in records))
    page: Page = build_page(Results(study=study, cells=study_cells(study, records)))

    assert page.headline == "AMP pays in torch and is slower in tensorflow."
    assert [(card.backend, card.kind, card.ratio) for card in page.cards] == [
        ("torch", "pays", "×1.50"),
        ("tensorflow", "slower", "×0.500"),
    ]
    assert page.rows == ()
    assert "Fewer than 6 process pairs hardly show how processes differ" in page.caveat
    html = write_report(write_study(tmp_path, study, *records)).html.read_text("utf-8")
    assert "What each setting adds" in html


def test_the_terminal_shows_the_rungs_with_their_factors():
    from rich.console import Console

    records = whole()
    records[6] = without(records[6], "failed", "no compiler")
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_results(results_of(*records))[0])
    lines = console.export_text().splitlines()

    amp = next(line for line in lines if line.startswith("AMP float16 "))
    for figure in ("165", "×1.50 [", "pays", "×1.65 [", "ok"):
        assert figure in amp
    (compiled,) = [line for line in lines if line.startswith("compiled ")]
    assert "failed" in compiled
    assert "AMP's share in that gain is 51 %" in " ".join(lines)


def test_an_undecided_rung_gives_its_reason_in_the_page_and_on_the_terminal():
    from rich.console import Console

    # 170 after 165: one pair of processes cannot tell ×1.03 from 1.
    records = whole()
    records[4] = rung("rung4", rate=170.0)
    records[4].warnings.append("the clock was changed")
    section = ladder_section([ladder_of(*records)])
    assert section is not None
    told = [(block.kind, block.text) for block in section.blocks if isinstance(block, Paragraph)]
    console = Console(width=1000, record=True, file=io.StringIO())
    console.print(render_results(results_of(*records))[0])
    lines = [*map(str.strip, console.export_text().splitlines())]

    (note,) = [text for kind, text in told if kind == "note" and ", channels-last: " in text]
    # 170 / 165 = 1.030.
    assert note.startswith(
        "torch, channels-last: channels-last ran at 1.030 times the images/s of AMP float16 (95 %"
    )
    assert "would settle it" in note
    assert note.removeprefix("torch, ") in lines
    assert "channels-last: the clock was changed" in lines
    assert any(
        line.startswith("Fewer than 6 process pairs hardly show how processes differ")
        for line in lines
    )


def test_the_warnings_of_a_factor_stand_below_the_ladder_on_the_terminal():
    from rich.console import Console

    # Three windows a rung, of six that are advised.
    records = [record.model_copy(update={"windows": record.windows[:4]}) for record in whole()]
    console = Console(width=1000, record=True, file=io.StringIO())
    console.print(render_results(results_of(*records))[0])

    assert "only 3 windows an arm in a process pair; 6 or more are advised" in console.export_text()


def test_a_study_without_a_ladder_has_no_such_section():
    assert ladder_section(ladders(results_of(ok_record(), ok_record(precision="amp")))) is None
