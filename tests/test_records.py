"""Record files: atomic, complete, and refused with a reason where they are broken."""

import errno
import json
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report_records import data_part

from harness.config import RunConfig
from harness.environment import describe_environment
from harness.record_files import UnreadableRecord, read_record, write_json
from harness.records import (
    DataPart,
    EpochPart,
    PrecisionPart,
    Record,
    Study,
    ThroughputPart,
    Window,
)
from reports.cells import read_results


def record(arm: str = "fake-fp32", **changes: Any) -> Record:
    values: dict[str, Any] = {
        "arm": arm,
        "status": "failed",
        "command": "python -m harness --backend fake",
        "created": "2026-01-02T03:04:05+00:00",
        "harness_version": "1",
        "backend": arm.partition("-")[0],
        "precision": PrecisionPart(requested="fp32", dtype="float32"),
    }
    return Record(**values | changes)


def study(*arms: str) -> Study:
    runs = [
        RunConfig.model_validate(
            {"backend": arm.partition("-")[0], "precision": arm.partition("-")[2], "steps": 4}
        )
        for arm in arms
    ]
    return Study(
        created="2026-01-02T03:04:05+00:00",
        harness_version="1",
        command="python -m harness compare",
        preset="quick",
        arms=[run.model_dump(mode="json") for run in runs],
        data=data_part(),
        environment=describe_environment(),
    )


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path):
    written = record(
        windows=[
            Window(
                index=0,
                arm_position=1,
                started_s=0.1,
                steps=2,
                images=32,
                time_s=1 / 3,
                cpu_s=0.5,
                data_wait_s=0.0,
                warmup=True,
            )
        ]
    )

    write_json(tmp_path / "deep" / "record.json", written)

    assert read_record(tmp_path / "deep" / "record.json") == written


def test_what_nobody_measured_is_null_and_never_zero(tmp_path: Path):
    write_json(tmp_path / "record.json", record())

    stored = json.loads((tmp_path / "record.json").read_text())

    for part in ("framework_version", "device", "model", "data", "training", "throughput"):
        assert stored[part] is None
    for part in ("accuracy", "memory", "energy", "environment", "reason"):
        assert stored[part] is None
    assert stored["precision"]["effective"] is None
    assert 0 not in stored.values()


def test_nan_and_infinity_are_kept_in_valid_json(tmp_path: Path):
    losses = [1.5, float("inf"), float("nan"), float("-inf")]
    written = record(
        steps={"loss": losses, "loss_scale": [None] * 4, "skipped": [False] * 4},
        epochs=[
            EpochPart(
                epoch=0,
                steps=4,
                train_loss=float("nan"),
                val_loss=float("inf"),
                val_top1=None,
                val_top2=None,
            )
        ],
    )
    write_json(tmp_path / "record.json", written)

    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    json.loads((tmp_path / "record.json").read_text(), parse_constant=no_constants)
    read = read_record(tmp_path / "record.json")
    assert [str(loss) for loss in read.steps.loss] == ["1.5", "inf", "nan", "-inf"]
    assert read.epochs[0].val_loss == float("inf")


@pytest.mark.parametrize("kind", [Record, Study, DataPart, Window, ThroughputPart, EpochPart])
def test_times_sizes_and_rates_name_their_unit(kind: Any):
    bare = re.compile(r"(^|_)(time|memory|size|speed|wait|peak|energy|rate|throughput)$")
    # Parts of a record, with named units inside.
    groups = {"throughput", "memory", "energy", "peak"}

    numbers = {name for name in kind.model_fields if name not in groups}

    assert not {name for name in numbers if bare.search(name)}


def test_a_written_file_can_be_read_by_others(tmp_path: Path):
    write_json(tmp_path / "record.json", record())

    assert stat.S_IMODE((tmp_path / "record.json").stat().st_mode) == 0o644


@pytest.mark.parametrize("call", ["fsync", "chmod", "replace"])
def test_a_full_disk_leaves_the_old_file_whole_and_no_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    path = tmp_path / "record.json"
    write_json(path, record(reason="old"))

    def no_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, no_space)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, record(reason="new"))

    assert read_record(path).reason == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["record.json"]


@pytest.fixture
def tiny_disk(tmp_path: Path):
    """A file system of 64 KiB; needs the right to mount."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_leaves_the_old_file_whole(tiny_disk: Path):
    path = tiny_disk / "record.json"
    write_json(path, record(reason="old"))

    with pytest.raises(OSError, match="No space left"):
        write_json(path, record(reason="n" * 100_000))

    assert read_record(path).reason == "old"
    assert [item.name for item in tiny_disk.iterdir()] == ["record.json"]


def test_an_interrupted_write_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "record.json"
    write_json(path, record(reason="old"))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, record(reason="new"))

    assert read_record(path).reason == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file: Invalid JSON"),
        (b'{"arm": "torch-am', "file: Invalid JSON"),
        (b"\xff\xfe\x00", "file: Invalid JSON"),
        (b"[]", "file: Input should be"),
        (b"{}", "arm: Field required"),
    ],
)
def test_a_broken_file_is_refused_with_its_path_and_first_fault(
    tmp_path: Path, content: bytes, message: str
):
    path = tmp_path / "record.json"
    path.write_bytes(content)

    with pytest.raises(UnreadableRecord) as caught:
        read_record(path)

    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path):
    with pytest.raises(UnreadableRecord, match=r"record\.json: No such file"):
        read_record(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("schema_version", 2), ("status", "fine"), ("from_the_future", 1), ("steps", None)],
)
def test_a_file_of_another_schema_is_refused_by_the_field(tmp_path: Path, field: str, value: Any):
    stored = record().model_dump(mode="json") | {field: value}
    (tmp_path / "record.json").write_text(json.dumps(stored))

    with pytest.raises(UnreadableRecord, match=rf"record\.json: {field}: "):
        read_record(tmp_path / "record.json")


def test_records_of_a_study_come_in_the_planned_order(tmp_path: Path):
    arms = ["torch-fp32", "torch-amp", "paddle-fp32"]
    write_json(tmp_path / "study.json", study(*arms))
    for arm in ("paddle-fp32", "torch-amp", "extra-fp32", "torch-fp32"):
        write_json(tmp_path / "records" / f"{arm}.json", record(arm))

    results = read_results(tmp_path)

    read = results.study
    assert read is not None
    assert read == study(*arms).model_copy(update={"environment": read.environment})
    assert [item.arm for item in results.records] == [*arms, "extra-fp32"]


def test_a_study_without_records_is_a_study_still(tmp_path: Path):
    write_json(tmp_path / "study.json", study("torch-fp32"))

    assert read_results(tmp_path).records == []
