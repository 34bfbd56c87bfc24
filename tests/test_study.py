"""Studies: every arm saved as it ends, resumed where it stopped, refused where it changed."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_run
from PIL import Image

from datasets import DataError
from harness import study as study_module
from harness.config import RunConfig
from harness.plan import Comparison, Extent, plan
from harness.record_files import read_record, read_study
from harness.records import Record, Study
from harness.runner import Event
from harness.study import (
    Studio,
    StudyError,
    missing_runs,
    record_path,
    resume_study,
    start_study,
    study_to_resume,
)

pytestmark = pytest.mark.usefixtures("no_pauses")

ARMS = ("fp32", "amp", "float64")


def studio(**changes: Any) -> Studio:
    values: dict[str, Any] = {
        "cache_dir": None,
        "strict": False,
        "pythons": {"fake": sys.executable},
        "repeat_command": lambda run: f"repeat {run.arm}",
        "on_event": lambda event: None,
        "on_data": lambda stage, done, total: None,
    }
    return Studio(**values | changes)


def runs(*precisions: str, **changes: Any) -> list[RunConfig]:
    return [
        fake_run(precision=precision, **{"input": "synthetic", "window_steps": 2} | changes)
        for precision in precisions or ARMS
    ]


def start(directory: Path, planned: list[RunConfig] | None = None, **changes: Any) -> list[Record]:
    return start_study(
        planned or runs(),
        directory,
        command="python -m harness compare",
        preset="quick",
        studio=studio(**changes),
    )


def start_within(
    directory: Path, planned: list[RunConfig], *, budget_s: float, undecided: Any = None
) -> list[Record]:
    return start_study(
        planned,
        directory,
        command="",
        preset=None,
        studio=studio(),
        budget_s=budget_s,
        undecided=undecided,
    )


def resume(directory: Path, **changes: Any) -> list[Record]:
    return resume_study(study_to_resume(directory), directory, studio=studio(**changes))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of ten plain pictures."""
    for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (20, 20), (*colour[:2], colour[2] + number)).save(
                folder / f"{number}.png"
            )
    return tmp_path / "photos"


@pytest.fixture
def dead_arms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arms run no worker; returns the list of those that were asked for."""
    asked: list[str] = []
    kept = {arm: _record(arm) for arm in ("fake-fp32", "fake-amp", "fake-float64")}

    def run_arms(planned: list[RunConfig], *_: Any, on_record: Any, **__: Any) -> None:
        for run in planned:
            asked.append(run.arm)
            on_record(kept[run.arm])

    monkeypatch.setattr(study_module, "run_arms", run_arms)
    return asked


def _record(arm: str) -> Record:
    return Record.model_validate(
        {
            "arm": arm,
            "status": "ok",
            "command": "repeat",
            "created": "2026-01-02T03:04:05+00:00",
            "harness_version": "1",
            "backend": "fake",
            "precision": {"requested": arm.partition("-")[2], "dtype": "float32"},
        }
    )


# --- real arms


def test_a_killed_worker_becomes_a_failed_record_and_the_other_arms_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(
        "AMP_HARNESS_FAKE", '{"failure": {"how": "kill", "at_step": 3, "arm": "amp"}}'
    )

    records = start(tmp_path)

    assert [(record.arm, record.status) for record in records] == [
        ("fake-fp32", "ok"),
        ("fake-amp", "failed"),
        ("fake-float64", "ok"),
    ]
    assert records[1].reason is not None
    assert "SIGKILL" in records[1].reason
    assert len(records[1].steps.loss) < 6
    assert [read_record(record_path(tmp_path, record.arm)) for record in records] == records
    assert read_study(tmp_path / "study.json").finished
    assert not [*tmp_path.rglob("*.part")]


def test_arms_on_photos_see_the_same_batches(tmp_path: Path, photos: Path):
    planned = runs("fp32", "amp", input="cached", data=str(photos), image_size=20)

    first, second = start(tmp_path / "study", planned)

    assert first.status == second.status == "ok"
    assert first.data is not None
    assert second.data is not None
    assert first.data.batch_sha256 == second.data.batch_sha256
    assert first.data.manifest_sha256 == second.data.manifest_sha256
    assert (first.data.train_images, first.data.val_images) == (16, 4)
    assert first.command == "repeat fake-fp32"
    assert first.accuracy is not None
    assert first.accuracy.per_class.keys() == {"blue", "red"}


# --- saving


def test_the_arms_of_a_backend_are_measured_in_turn(tmp_path: Path):
    first, second = start(tmp_path, runs("fp32", "amp", steps=40))

    turns = {
        window.arm_position: record.arm
        for record in (first, second)
        for window in record.windows
        if not window.warmup
    }
    # A B B A A B B A ...: each window has a partner right beside it.
    assert len(turns) >= 12
    assert sorted(turns) == list(range(len(turns)))
    expected = ["fake-fp32", "fake-amp", "fake-amp", "fake-fp32"] * len(turns)
    assert [turns[turn] for turn in sorted(turns)] == expected[: len(turns)]


def test_a_window_of_a_worker_that_was_idle_begins_with_a_step_that_is_not_timed(tmp_path: Path):
    (record, _) = start(tmp_path, runs("fp32", "amp", steps=40, window_steps=3))

    kinds = [window.warmup for window in record.windows]
    timed = [place for place, warmup in enumerate(kinds) if not warmup]
    assert len(timed) >= 6
    for place in timed:
        before = record.windows[place - 1]
        assert (before.warmup, before.steps) == (True, 1)


def test_steps_that_settle_a_worker_are_no_warm_up(tmp_path: Path):
    (record, _) = start(tmp_path, runs("fp32", "amp", steps=None, windows=6, warmup_steps=3))

    assert record.throughput is not None
    # And the step that settles the first timed window.
    assert record.throughput.warmup_steps == 3 + 1
    assert record.throughput.warmup_s == sum(
        window.time_s for window in record.windows if window.index < 3
    )
    assert sum(window.steps for window in record.windows if window.warmup) == 3 + 6


def two_seeds() -> list[RunConfig]:
    planned = runs("fp32", "amp")
    return planned + [run.model_copy(update={"seed": 1, "label": "seed1"}) for run in planned]


def test_records_are_on_disk_before_the_next_pair_starts(tmp_path: Path):
    finished: list[list[str]] = []

    def on_event(event: Event) -> None:
        if event.phase == "starting":
            folder = tmp_path / "records"
            names = [path.name for path in folder.iterdir()] if folder.exists() else []
            finished.append(sorted(names))

    start(tmp_path, two_seeds(), on_event=on_event)

    assert finished == [[], [], *[["fake-amp.json", "fake-fp32.json"]] * 2]


def test_a_failed_arm_is_on_disk_while_the_other_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failure = '{"failure": {"how": "exception", "at_step": 2, "arm": "fp32"}}'
    monkeypatch.setenv("AMP_HARNESS_FAKE", failure)
    seen: list[list[str]] = []

    def on_event(event: Event) -> None:
        if event.arm == "fake-amp" and event.phase == "training":
            seen.append([path.name for path in (tmp_path / "records").glob("*.json")])

    failed, other = start(tmp_path, runs("fp32", "amp", steps=30), on_event=on_event)

    assert (failed.status, other.status) == ("failed", "ok")
    assert seen[-1] == ["fake-fp32.json"]


# A system without memory kills, and the process cannot say why it ended.
@pytest.mark.parametrize("how", ["out_of_memory", "kill"])
def test_an_arm_that_lacked_memory_beside_the_other_is_measured_anew_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    failure = {"failure": {"how": how, "at_step": 3, "arm": "amp"}}
    monkeypatch.setenv("AMP_HARNESS_FAKE", json.dumps(failure))
    starts: list[str] = []

    def on_event(event: Event) -> None:
        if event.phase == "starting":
            starts.append(event.arm)
            if starts.count("fake-amp") == 2:
                monkeypatch.setenv("AMP_HARNESS_FAKE", "{}")

    records = start(tmp_path, runs("fp32", "amp"), on_event=on_event)

    assert [record.status for record in records] == ["ok", "ok"]
    assert starts == ["fake-fp32", "fake-amp", "fake-amp"]


def test_the_plan_is_on_disk_before_the_first_arm_starts(tmp_path: Path):
    planned: list[tuple[list[str], bool]] = []

    def on_event(event: Event) -> None:
        if event.phase == "starting":
            study = read_study(tmp_path / "study.json")
            planned.append(([arm["precision"] for arm in study.arms], study.finished))

    start(tmp_path, runs("fp32", "amp"), on_event=on_event)

    assert planned == [(["fp32", "amp"], False)] * 2


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path):
    def on_event(event: Event) -> None:
        if event.arm == "fake-amp-seed1" and event.phase == "training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, two_seeds(), on_event=on_event)

    kept = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert kept == ["fake-amp.json", "fake-fp32.json"]
    assert not read_study(tmp_path / "study.json").finished
    assert not [*tmp_path.rglob("*.part")]


def test_a_disk_that_fills_up_keeps_the_records_before(
    tmp_path: Path, dead_arms: list[str], monkeypatch: pytest.MonkeyPatch
):
    fsync = os.fsync

    def full_after_the_first_arm(handle: int) -> None:
        if len(dead_arms) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full_after_the_first_arm)
    with pytest.raises(OSError, match="No space left"):
        start(tmp_path)
    monkeypatch.undo()

    assert [path.name for path in (tmp_path / "records").iterdir()] == ["fake-fp32.json"]
    assert read_record(tmp_path / "records" / "fake-fp32.json") == _record("fake-fp32")
    assert not read_study(tmp_path / "study.json").finished


def test_a_folder_with_a_study_is_not_overwritten(tmp_path: Path, dead_arms: list[str]):
    start(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with pytest.raises(StudyError, match=r"holds a study already.*--resume .*--out"):
        start(tmp_path)

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert len(dead_arms) == 3


# --- repetitions and budget


def repeated(**changes: Any) -> list[RunConfig]:
    return plan(runs("fp32", "amp", **changes), Extent(repeats=3))


def test_repetitions_that_do_not_fit_are_left_out_with_the_reason(tmp_path: Path):
    planned = repeated()

    records = start_within(tmp_path, planned, budget_s=0.01)

    assert [record.arm for record in records] == ["fake-fp32", "fake-amp"]
    study = read_study(tmp_path / "study.json")
    assert study.finished
    assert [*study.left_out] == [run.arm for run in planned[2:]]
    assert all("of the budget of 0 s were left" in reason for reason in study.left_out.values())


def test_a_pair_without_a_ratio_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMP_HARNESS_FAKE", '{"amp_available": false}')

    records = start(tmp_path, repeated())

    assert [record.status for record in records] == ["ok", "unavailable"]
    reasons = set(read_study(tmp_path / "study.json").left_out.values())
    assert reasons == {"there is no ratio to repeat: fake-amp is unavailable"}


def test_repetitions_see_the_same_batches_and_are_not_validated(tmp_path: Path):
    records = start(tmp_path, repeated())

    assert [record.label for record in records[::2]] == ["", "repeat1", "repeat2"]
    hashes = {record.data.batch_sha256 for record in records if record.data is not None}
    assert len(hashes) == 1
    for record in records[2:]:
        assert sum(not window.warmup for window in record.windows) == 8
        assert record.accuracy is None
        assert record.compute_windows == []


def decided_after(records: int) -> Any:
    """Stands in for the verdict: open until there are so many records."""

    def undecided(study: Study, so_far: Sequence[Record]) -> list[Comparison]:
        assert len(study.arms) >= len(so_far)
        return [("fake", "")] if len(so_far) < records else []

    return undecided


def test_pairs_follow_until_the_verdict_is_decided(tmp_path: Path):
    records = start_within(
        tmp_path,
        plan(runs("fp32", "amp"), Extent(repeats=2)),
        budget_s=600,
        undecided=decided_after(8),
    )

    # The arm that starts first takes turns in the pairs that were not planned as well.
    assert [record.arm for record in records[4:]] == [
        *("fake-fp32-repeat2", "fake-amp-repeat2", "fake-amp-repeat3", "fake-fp32-repeat3")
    ]
    study = read_study(tmp_path / "study.json")
    assert (len(study.arms), study.finished, study.left_out) == (8, True, {})


def test_a_verdict_that_stays_open_ends_with_the_budget(tmp_path: Path):
    records = start_within(
        tmp_path,
        plan(runs("fp32", "amp"), Extent(repeats=1)),
        budget_s=0.01,
        undecided=decided_after(100),
    )

    assert [record.arm for record in records] == ["fake-fp32", "fake-amp"]
    assert len(read_study(tmp_path / "study.json").arms) == 2


def test_a_finished_study_is_given_more_pairs(tmp_path: Path):
    first = start(tmp_path, plan(runs("fp32", "amp"), Extent(repeats=2)))
    before = {path: path.read_bytes() for path in (tmp_path / "records").iterdir()}

    study = study_to_resume(tmp_path, repeats=3)
    assert [run.arm for run in missing_runs(study, tmp_path)] == [
        *("fake-fp32-repeat2", "fake-amp-repeat2")
    ]
    records = resume_study(study, tmp_path, studio=studio())

    assert len(first) == 4
    assert [record.label for record in records[::2]] == ["", "repeat1", "repeat2"]
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(read_study(tmp_path / "study.json").arms) == 6


def test_a_grid_decodes_the_photos_once_for_each_size(tmp_path: Path, photos: Path):
    mains = runs("fp32", "amp", input="cached", data=str(photos), image_size=16, diagnose=False)
    planned = plan(mains, Extent(image_sizes=(16, 20), batch_sizes=(4, 8), repeats=1))

    records = start(tmp_path / "study", planned, cache_dir=tmp_path / "cache")

    assert [record.status for record in records] == ["ok"] * 8
    sizes = {(r.training.image_size, r.training.batch_size) for r in records if r.training}
    assert sizes == {(16, 4), (16, 8), (20, 4), (20, 8)}
    assert len([*(tmp_path / "cache" / "pixels").glob("*/*.npy")]) in (2, 4)


# --- resuming


@pytest.mark.parametrize("missing", [(), ("amp",), ("fp32", "float64"), ARMS])
def test_exactly_the_missing_arms_are_run(
    tmp_path: Path, dead_arms: list[str], missing: tuple[str, ...]
):
    start(tmp_path)
    dead_arms.clear()
    for precision in missing:
        record_path(tmp_path, f"fake-{precision}").unlink()

    records = resume(tmp_path)

    assert dead_arms == [f"fake-{precision}" for precision in missing]
    assert [record.arm for record in records] == [f"fake-{precision}" for precision in ARMS]
    assert read_study(tmp_path / "study.json").finished


def test_a_resumed_arm_is_the_arm_that_was_planned(tmp_path: Path):
    planned = runs("fp32", "amp", lr=0.003, seed=5, loss_scale="dynamic:128")
    start(tmp_path, planned)
    before = read_record(record_path(tmp_path, "fake-amp"))
    record_path(tmp_path, "fake-amp").unlink()

    resume(tmp_path)

    after = read_record(record_path(tmp_path, "fake-amp"))
    assert after.training == before.training
    assert after.steps == before.steps
    assert after.data == before.data


def test_a_folder_without_a_study_cannot_be_resumed(tmp_path: Path):
    with pytest.raises(StudyError, match=r"no study to continue: .*study\.json: No such file"):
        resume(tmp_path)


def test_a_broken_record_is_named_with_the_remedy(tmp_path: Path, dead_arms: list[str]):
    start(tmp_path)
    record_path(tmp_path, "fake-amp").write_text('{"arm": ')

    with pytest.raises(StudyError, match=r"fake-amp\.json: .*delete the file"):
        resume(tmp_path)


def change_environment(directory: Path, **changes: Any) -> None:
    path = directory / "study.json"
    study = read_study(path)
    environment = study.environment.model_copy(update=changes)
    path.write_text(study.model_copy(update={"environment": environment}).model_dump_json())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"python": "3.9.1"}, "Python was 3.9.1, is 3."),
        ({"cpu": "Z80"}, "CPU was Z80, is "),
        ({"cpus_usable": 999}, "usable CPUs was 999, is "),
        ({"memory_bytes": 2**30}, "memory in GiB was 1.0, is "),
        ({"platform": "CP/M"}, "system was CP/M, is "),
        ({"gpu_driver": "1.0"}, "NVIDIA driver was 1.0, is None"),
        ({"cuda_driver": "9.9"}, "CUDA was 9.9, is None"),
        ({"variables": {"CUDA_VISIBLE_DEVICES": "7"}}, "CUDA_VISIBLE_DEVICES was 7, is None"),
        ({"code_sha256": "0" * 64}, "code of the harness was 000000000000, is "),
    ],
)
def test_another_machine_is_refused_by_what_changed(
    tmp_path: Path, dead_arms: list[str], changes: dict[str, Any], told: str
):
    start(tmp_path)
    dead_arms.clear()
    change_environment(tmp_path, **changes)

    with pytest.raises(StudyError) as caught:
        resume(tmp_path)

    assert told in str(caught.value)
    assert "--out" in str(caught.value)
    assert dead_arms == []


def test_an_older_study_that_does_not_know_its_code_is_continued(
    tmp_path: Path, dead_arms: list[str]
):
    start(tmp_path)
    record_path(tmp_path, "fake-amp").unlink()
    dead_arms.clear()
    change_environment(tmp_path, code_sha256=None, variables={"OMP_NUM_THREADS": "3"})

    resume(tmp_path)

    assert dead_arms == ["fake-amp"]


def test_another_version_of_a_package_is_refused_by_its_name(tmp_path: Path, dead_arms: list[str]):
    start(tmp_path)
    packages = read_study(tmp_path / "study.json").environment.packages
    change_environment(tmp_path, packages=packages | {"numpy": "1.0", "jax": "0.1"})

    with pytest.raises(StudyError) as caught:
        resume(tmp_path)

    assert f"numpy was 1.0, is {packages['numpy']}" in str(caught.value)
    assert "jax was 0.1, is None" in str(caught.value)
    assert "pillow" not in str(caught.value)


def test_another_version_in_the_worker_s_environment_is_refused_and_nothing_is_kept_of_it(
    tmp_path: Path,
):
    start(tmp_path, runs("fp32", "amp"))
    record_path(tmp_path, "fake-amp").unlink()
    path = record_path(tmp_path, "fake-fp32")
    before = read_record(path)
    assert before.environment is not None
    older = {**before.environment.packages, "torch": "1.0"}
    environment = before.environment.model_copy(update={"packages": older})
    path.write_text(before.model_copy(update={"environment": environment}).model_dump_json())

    with pytest.raises(StudyError, match=r"fake-amp is not comparable .*torch was 1\.0, is "):
        resume(tmp_path)

    assert not record_path(tmp_path, "fake-amp").exists()


def test_another_device_than_that_of_the_records_is_refused(tmp_path: Path):
    start(tmp_path, runs("fp32", "amp"))
    record_path(tmp_path, "fake-amp").unlink()
    path = record_path(tmp_path, "fake-fp32")
    before = read_record(path)
    assert before.device is not None
    other = before.device.model_copy(update={"name": "abacus"})
    path.write_text(before.model_copy(update={"device": other}).model_dump_json())

    with pytest.raises(StudyError, match=r"fake-amp is not comparable .*device was abacus, is "):
        resume(tmp_path)


def test_another_version_of_the_harness_is_refused(
    tmp_path: Path, dead_arms: list[str], monkeypatch: pytest.MonkeyPatch
):
    start(tmp_path)
    monkeypatch.setattr("harness.__version__", "99.9")

    with pytest.raises(StudyError, match=r"harness was .*, is 99\.9"):
        resume(tmp_path)


def test_changed_photos_are_refused_and_the_manifest_of_the_study_stays(
    tmp_path: Path, photos: Path, dead_arms: list[str]
):
    directory = tmp_path / "study"
    start(directory, runs("fp32", "amp", input="cached", data=str(photos), image_size=20))
    manifest = (directory / "manifest.csv").read_bytes()
    record_path(directory, "fake-amp").unlink()
    dead_arms.clear()
    Image.new("RGB", (20, 20), (1, 2, 3)).save(photos / "red" / "3.png")

    with pytest.raises(StudyError, match="data was "):
        resume(directory)

    assert dead_arms == []
    assert (directory / "manifest.csv").read_bytes() == manifest


def test_photos_that_are_gone_are_refused(tmp_path: Path, photos: Path, dead_arms: list[str]):
    directory = tmp_path / "study"
    start(directory, runs("fp32", input="cached", data=str(photos), image_size=20))
    shutil.rmtree(photos)

    with pytest.raises(DataError, match="photos"):
        resume(directory)


def test_bad_data_leaves_no_study_behind(tmp_path: Path, dead_arms: list[str]):
    with pytest.raises(DataError):
        start(tmp_path / "study", runs("fp32", input="cached", data=str(tmp_path / "nowhere")))

    assert not (tmp_path / "study" / "study.json").exists()
