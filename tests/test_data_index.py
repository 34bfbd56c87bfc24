"""What a scan remembers of files: only what is surely unchanged, and never anything damaged."""

import os
import sqlite3
import time

import numpy as np
import pytest
from PIL import Image

from datasets import examine, load_manifest, scan
from datasets.overview import summarise


def noise(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that are read and decoded."""
    names = []
    real = examine.examine_file

    def counted(path):
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(examine, "examine_file", counted)
    return names


@pytest.fixture
def food(tmp_path, monkeypatch):
    """Six photos, and a clock that is an hour ahead, so that they count as settled."""
    for number in range(6):
        noise(tmp_path / "food" / "ab"[number % 2] / f"{number}.png", number)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3600 * 10**9)
    return tmp_path / "food"


def load(food, **options):
    return load_manifest(food, seed=0, cache_dir=food.parent / "cache", **options)


def test_a_second_scan_reads_nothing_and_finds_the_same(food, reads):
    options = {"seed": 0, "cache_dir": food.parent / "cache"}
    first = summarise(scan(food, **options))
    assert len(reads) == 6
    assert summarise(scan(food, **options)) == first
    assert len(reads) == 6


def test_only_new_and_changed_files_are_read(food, reads):
    first = load(food)
    reads.clear()
    noise(food / "a" / "2.png", 77)
    noise(food / "a" / "new.png", 78)
    second = load(food)
    assert sorted(reads) == ["2.png", "new.png"]
    assert second.sha256 != first.sha256


def test_a_change_that_keeps_size_and_time_is_seen(food, reads):
    path = food / "a" / "0.png"
    Image.new("RGB", (9, 9), "red").save(path, "BMP")
    before = os.stat(path)
    first = load(food)
    Image.new("RGB", (9, 9), "blue").save(path, "BMP")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_size == before.st_size
    reads.clear()
    assert load(food).sha256 != first.sha256
    assert reads == ["0.png"]


def test_files_that_changed_a_moment_ago_are_not_remembered(tmp_path, reads):
    for number in range(4):
        noise(tmp_path / "food" / "ab"[number % 2] / f"{number}.png", number)
    load(tmp_path / "food")
    load(tmp_path / "food")
    assert len(reads) == 8


def test_bad_files_are_looked_at_each_time(food, reads):
    (food / "a" / "bad.jpg").write_bytes(b"<html>")
    load(food)
    reads.clear()
    assert load(food).quarantined[0].reason == "not an image: a web page or XML"
    assert reads == ["bad.jpg"]


def test_another_decoder_remembers_nothing(food, reads, monkeypatch):
    from datasets import scan_index

    load(food)
    reads.clear()
    monkeypatch.setattr(scan_index, "facts_version", lambda: "facts 99")
    load(food)
    assert len(reads) == 6


@pytest.mark.parametrize("damage", ["no database", "cut", "facts changed", "facts gone"])
def test_a_damaged_index_is_made_anew(damage, food, reads):
    first = load(food)
    path = food.parent / "cache" / "scan-index.sqlite"
    if damage.startswith("facts"):
        database = sqlite3.connect(path)
        with database:
            for key, facts in database.execute("SELECT key, facts FROM photos").fetchall():
                facts = facts[:40] + b"?" + facts[41:] if "changed" in damage else b""
                database.execute("UPDATE photos SET facts = ? WHERE key = ?", (facts, key))
        database.close()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    else:
        path.write_bytes(b"no database at all, and long enough to be read as one" * 100)
    for leftover in ("-wal", "-shm"):
        path.with_name(path.name + leftover).unlink(missing_ok=True)
    assert load(food).sha256 == first.sha256
    load(food)
    reads.clear()
    assert load(food).sha256 == first.sha256
    assert reads == []


def test_without_a_cache_folder_that_can_be_written_all_is_read(food, reads):
    (food.parent / "cache").write_text("a file in the way")
    assert len(load(food).entries) == 6
    assert len(load(food).entries) == 6
    assert len(reads) == 12


def test_a_remembered_photo_is_still_held_against_the_manifest(food):
    manifest = load(food)
    manifest.write_csv(food.parent / "m.csv")
    text = (food.parent / "m.csv").read_text()
    (food.parent / "m.csv").write_text(text.replace(manifest.entries[0].sha256, "0" * 64))
    again = load_manifest(food.parent / "m.csv", seed=0, cache_dir=food.parent / "cache")
    assert [bad.reason.partition(" (")[0] for bad in again.quarantined] == [
        "its bytes have changed since the manifest was written"
    ]
