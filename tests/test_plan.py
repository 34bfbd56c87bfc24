"""The plan of a comparison: which arms, in which order, and when a repetition still fits."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_runs import fake_run
from pydantic import ValidationError

from harness.budget import Budget
from harness.cli import main
from harness.config import RunConfig
from harness.forecast import Paces
from harness.ladder import LADDER, compared_with, ladder_runs
from harness.plan import REPEATS, Extent, further_pairs, in_turn, plan, speed_only


def mains(*backends: str, **changes: Any) -> list[RunConfig]:
    return [
        fake_run(backend=backend, precision=precision, **changes)
        for backend in backends or ("torch", "paddle")
        for precision in ("fp32", "amp")
    ]


def groups(extent: Extent, *backends: str) -> list[list[str]]:
    return [[run.arm for run in group] for group in in_turn(plan(mains(*backends), extent))]


# --- arms


def test_every_pair_is_measured_once_before_any_is_repeated():
    assert groups(Extent(repeats=3)) == [
        ["torch-fp32", "torch-amp"],
        ["paddle-fp32", "paddle-amp"],
        # Which of two workers starts first matters, so it is not always the same.
        ["torch-amp-repeat1", "torch-fp32-repeat1"],
        ["paddle-amp-repeat1", "paddle-fp32-repeat1"],
        ["torch-fp32-repeat2", "torch-amp-repeat2"],
        ["paddle-fp32-repeat2", "paddle-amp-repeat2"],
    ]


def test_a_further_seed_is_a_repetition_too():
    planned = plan(mains("torch"), Extent(seeds=2, repeats=3))

    assert [(run.label, run.seed) for run in planned if run.precision == "amp"] == [
        ("", 0),
        ("seed1", 1),
        ("repeat2", 0),
    ]


def test_a_repetition_measures_the_speed_and_nothing_else():
    first, again = (run for run in plan(mains("torch"), Extent(repeats=2)) if run.arm.count("amp"))

    assert (first.steps, first.windows) == (6, None)
    assert (again.steps, again.windows, again.validate_weights, again.diagnose) == (
        *(None, 8),
        *(False, False),
    )
    kept = {"batch_size", "image_size", "optimizer", "lr", "loss_scale", "model", "seed"}
    assert first.model_dump(include=kept) == again.model_dump(include=kept)


def test_further_pairs_complete_what_is_planned_and_take_nothing_away():
    planned = plan(mains("torch"), Extent(seeds=2, repeats=3))

    more = further_pairs(planned, 5)

    assert [run.arm for run in more] == [
        *("torch-amp-repeat3", "torch-fp32-repeat3", "torch-fp32-repeat4", "torch-amp-repeat4")
    ]
    assert further_pairs(planned, 3) == further_pairs(planned, 1) == []
    assert {run.arm for run in planned}.isdisjoint(run.arm for run in more)


def test_further_pairs_of_one_comparison_leave_the_others_alone():
    planned = plan(mains(), Extent(batch_sizes=(4, 8), repeats=1))

    more = further_pairs(planned, 2, of=[("paddle", "b8")])

    assert [run.arm for run in more] == ["paddle-amp-b8-repeat1", "paddle-fp32-b8-repeat1"]


def test_a_number_of_windows_that_was_given_is_kept():
    (run, _) = mains("torch", steps=None, windows=20)

    assert speed_only(run).windows == 20
    repeated = plan(mains("torch", steps=None, windows=20), Extent(repeats=2))
    assert {run.windows for run in repeated} == {20}


def test_a_grid_has_each_combination_once_and_its_first_keeps_the_main_name():
    extent = Extent(batch_sizes=(4, 8), image_sizes=(16, 32), repeats=1)

    planned = plan(mains("torch"), extent)

    pairs = [(run.variant, run.batch_size, run.image_size) for run in planned]
    assert pairs[::2] == [("", 4, 16), ("s32", 4, 32), ("b8", 8, 16), ("b8s32", 8, 32)]
    assert [run.precision for run in planned] == ["fp32", "amp"] * 4


def test_models_and_inputs_are_axes_as_well():
    extent = Extent(models=("lenet", "convnet"), inputs=("cached", "live"), repeats=1)

    assert [group[0] for group in groups(extent, "torch")] == [
        *("torch-fp32", "torch-fp32-live", "torch-fp32-convnet", "torch-fp32-convnetlive"),
    ]


def test_a_map_spans_half_to_twice_the_batch_and_twice_the_image():
    planned = plan(mains("torch"), Extent(map=True, repeats=1))

    cells = {(run.batch_size, run.image_size) for run in planned}
    assert cells == {(batch, size) for batch in (2, 4, 8) for size in (16, 32)}
    assert {run.windows for run in planned} == {8}


def test_a_value_out_of_range_is_refused():
    with pytest.raises(ValidationError, match="image_size"):
        plan(mains(), Extent(image_sizes=(4,)))


# --- ladder


@pytest.mark.parametrize("with_tf32", [False, True])
@pytest.mark.parametrize("amp_dtype", ["float16", "bfloat16"])
def test_each_rung_differs_from_the_one_it_is_compared_with_in_its_own_setting(
    with_tf32: bool, amp_dtype: str
):
    runs = {run.variant: run for run in ladder_runs(fake_run(amp_dtype=amp_dtype))}
    measured = [variant for variant in runs if with_tf32 or variant != "rung1"]

    changed = {}
    for rung in LADDER[1:]:
        if rung.variant not in measured:
            continue
        below = compared_with(rung, measured, amp_dtype)
        assert below in measured
        settings = runs[rung.variant].model_dump()
        changed[rung.title] = {
            name
            for name, value in runs[below].model_dump().items()
            if settings[name] != value and name != "variant"
        }
        if not with_tf32:  # without effect there
            changed[rung.title] -= {"tf32"}

    changes_dtype = {"precision"} if amp_dtype == "float16" else {"precision", "amp_dtype"}
    assert changed == {
        **({"TF32": {"tf32"}} if with_tf32 else {}),
        "AMP float16": changes_dtype,
        "AMP bfloat16": {"amp_dtype"},
        "channels-last": {"layout"},
        "twice the batch": {"batch_size"},
        "compiled": {"compile"},
    }


def test_all_rungs_of_a_backend_take_turns():
    extent = Extent(ladder=True, repeats=2)

    assert [len(group) for group in groups(extent)] == [len(LADDER)] * 4


# --- budget


def test_the_first_run_of_a_cell_is_never_refused_and_a_repetition_is_when_it_cannot_fit():
    now = [100.0]
    budget = Budget(30, clock=lambda: now[0])
    first = record_of(prepare_s=5.0, first_step_s=3.0, step_s=1.0)
    run = fake_run(steps=None, windows=6, warmup_steps=2)
    again = run.model_copy(update={"label": "repeat1"})

    # 5 s to prepare, 3 s for the first step, 2 of warm-up, 6 windows of 2 steps and 0.5 s of pause.
    assert budget.refuses([again], [first]) is None
    now[0] += 4.9
    assert budget.refuses([again], [first]) is None
    now[0] += 0.2
    assert budget.refuses([run], [first]) is None
    reason = budget.refuses([again], [first])
    assert reason is not None
    assert "25 s at least" in reason
    assert "25 s of the budget of 30 s were left" in reason


def test_the_windows_of_a_repetition_are_not_reckoned_shorter_than_they_can_be():
    budget = Budget(30, clock=lambda: 0.0)
    first = record_of(prepare_s=0.0, first_step_s=0.0, step_s=0.125)
    run = fake_run(steps=None, windows=8, warmup_steps=1, label="repeat1")

    # Windows of 4 steps are the half second that is the least, and one step settles each.
    least_s = 0.125 + 8 * (5 * 0.125 + 0.5)
    reason = Budget(least_s - 0.1, clock=lambda: 0.0).refuses([run], [first])
    assert reason is not None
    assert "it takes 9 s at least" in reason
    assert budget.refuses([run, run], [first, first]) is None


def test_what_is_left_is_shared_equally():
    now = [0.0]
    budget = Budget(60, clock=lambda: now[0])

    assert budget.share_s(3) == 20
    now[0] = 50.0
    assert budget.share_s(2) == 5
    now[0] = 500.0
    assert budget.share_s(1) == 0
    assert Budget(None).share_s(3) is None


def record_of(*, prepare_s: float, first_step_s: float, step_s: float) -> Any:
    from harness.records import Record

    def window(index: int, time_s: float, *, warmup: bool) -> dict[str, Any]:
        return {
            "index": index,
            "arm_position": 0,
            "started_s": 0.0,
            "steps": 1,
            "images": 4,
            "time_s": time_s,
            "cpu_s": 0.0,
            "data_wait_s": 0.0,
            "warmup": warmup,
        }

    return Record.model_validate(
        {
            "arm": "fake-fp32",
            "status": "ok",
            "command": "",
            "created": "",
            "harness_version": "1",
            "backend": "fake",
            "precision": {"requested": "fp32", "dtype": "float32"},
            "windows": [
                window(0, first_step_s, warmup=True),
                *(window(n, step_s, warmup=False) for n in range(1, 5)),
            ],
            "throughput": {
                "images_per_s": 4.0,
                "warmup_steps": 1,
                "timed_steps": 4,
                "data_wait_fraction": 0.0,
                "threads_in_use": 1.0,
                "prepare_s": prepare_s,
                "warmup_s": first_step_s,
            },
        }
    )


# --- dry run


def dry_run(*words: str) -> Any:
    result = CliRunner().invoke(main, ["compare", "--dry-run", "--json", *words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_dry_run_tells_the_arms_and_starts_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    told = dry_run("--backend", "fake", "--repeats", "2", "--cache-dir", str(tmp_path / "cache"))

    assert [arm["arm"] for arm in told["arms"]] == [
        *("fake-fp32", "fake-amp", "fake-amp-repeat1", "fake-fp32-repeat1")
    ]
    assert told["expected_s"] is None
    assert not [*tmp_path.iterdir()]


def test_a_budget_decides_the_length_unless_steps_are_given():
    (arm, *_) = dry_run("--backend", "fake", "--budget", "90s")["arms"]
    assert (arm["windows"], arm["steps"]) == (8, None)

    told = dry_run("--backend", "fake", "--budget", "1.5m", "--steps", "40")
    assert told["budget_s"] == 90
    assert (told["arms"][0]["windows"], told["arms"][0]["steps"]) == (None, 40)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--map", "--steps", "9"), "--steps has no effect where speed alone is measured"),
        (("--ladder", "--epochs", "9"), "--epochs has no effect where speed alone is measured"),
        (("--ladder", "--layout", "nhwc"), "--layout has no effect on a ladder"),
        (("--ladder", "--map"), "--map has no effect on a ladder"),
        (("--ladder", "--precision", "amp"), "--precision has no effect on a ladder"),
        (("--ladder", "--trace"), "--trace has no effect on a ladder"),
        (("--trace", "--no-diagnose"), "--trace has no effect with --no-diagnose"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(words: tuple[str, ...], told: str):
    result = CliRunner().invoke(main, ["compare", "--dry-run", "--backend", "fake", *words])

    assert result.exit_code == 2, result.output
    assert told in result.output


def test_the_help_tells_how_many_pairs_there_are():
    told = CliRunner().invoke(main, ["compare", "--help"], terminal_width=200).output

    assert f"Process pairs from which each speedup is taken.  [{REPEATS}]" in told


def test_arms_that_are_unavailable_here_cost_no_time_in_the_forecast(tmp_path: Path):
    runs = mains("fake", steps=None, windows=8, window_steps=4, warmup_steps=1)
    fp32 = record_of(prepare_s=5.0, first_step_s=3.0, step_s=1.0)
    paces = Paces()
    paces.add(runs[0], fp32, tmp_path / "paces.json")
    assert paces.time_s(runs, train_images=None) is None

    unavailable = fp32.model_copy(update={"status": "unavailable", "windows": []})
    paces.add(runs[1], unavailable, tmp_path / "paces.json")

    # 8 s to start, a step of warm-up, and 8 windows of 2 steps (the 2 s of a window, not the 4
    # steps that are the most), each after one that settles and a pause of 0.5 s.
    told = Paces.read(tmp_path / "paces.json")
    assert told.time_s(runs, train_images=None) == pytest.approx(8 + 1 + 8 * 3 + 8 * 0.5)
    shorter = [run.model_copy(update={"window_steps": 1}) for run in runs]
    assert told.time_s(shorter, train_images=None) == pytest.approx(8 + 1 + 8 * 2 + 8 * 0.5)


@pytest.mark.parametrize("words", [("--budget", "soon"), ("--budget", "0s"), ("--repeats", "0")])
def test_a_budget_or_number_that_means_nothing_is_refused(words: tuple[str, ...]):
    result = CliRunner().invoke(main, ["compare", "--dry-run", *words])

    assert result.exit_code == 2
    assert words[0] in result.output
