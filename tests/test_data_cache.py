"""The pixel cache: built once, shared, checked, rebuilt; nothing wrong is ever served."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets import (
    CachedPixels,
    DataError,
    LivePixels,
    SyntheticPixels,
    build_cache,
    cache_bytes,
    load_manifest,
    pixel_layout,
)
from datasets import cache as cache_module
from datasets.errors import no_progress
from datasets.places import only_process

SIZE = 16


@pytest.fixture
def food(tmp_path):
    """Forty photos, each of one colour that its name tells."""
    for class_name, count in (("a", 20), ("b", 20)):
        (tmp_path / "food" / class_name).mkdir(parents=True)
        for number in range(count):
            colour = colour_of(class_name, number)
            image = Image.new("RGB", (30, 20), colour)
            image.putpixel((0, 0), (number, number, number))
            image.save(tmp_path / "food" / class_name / f"{number:03d}.png")
    return tmp_path / "food"


def colour_of(class_name, number):
    return (number * 10, 100 if class_name == "a" else 200, 255 - number * 10)


@pytest.fixture
def small_chunks(monkeypatch):
    """Five images a chunk, so that the cache has eight chunks."""
    monkeypatch.setattr(pixel_layout, "_CHUNK_BYTES", 5 * cache_bytes(1, SIZE))


def build(manifest, tmp_path, **options):
    return build_cache(manifest, image_size=SIZE, cache_dir=tmp_path / "cache", **options)


def check_pixels(pixels):
    images = pixels.images(np.arange(40))
    assert images.shape == (40, SIZE, SIZE, 3)
    for index in range(40):
        expected = colour_of("ab"[index // 20], index % 20)
        # The far corner is the photo's one colour.
        assert images[index, -1, -1].tolist() == list(expected)


def test_the_cache_holds_every_photo_in_the_order_of_the_manifest(food, tmp_path, small_chunks):
    manifest = load_manifest(food, seed=0)
    pixels = CachedPixels(build(manifest, tmp_path))
    check_pixels(pixels)
    assert pixels.classes == ("a", "b")
    assert pixels.labels.tolist() == [0] * 20 + [1] * 20
    assert sorted([*pixels.train, *pixels.val]) == list(range(40))
    assert pixels.val.tolist() == manifest.val.tolist()
    assert pixels.image_size == SIZE


def test_images_are_fresh_contiguous_memory(food, tmp_path):
    pixels = CachedPixels(build(load_manifest(food, seed=0), tmp_path))
    images = pixels.images(np.array([3, 3]))
    assert images.flags.c_contiguous
    assert images.flags.owndata
    images[:] = 0
    assert pixels.images(np.array([3])).any()


def test_live_pixels_are_the_cached_pixels(food, tmp_path):
    manifest = load_manifest(food, seed=0)
    manifest.write_csv(tmp_path / "m.csv")
    cached = CachedPixels(build(manifest, tmp_path, resize="pad"))
    live = LivePixels(tmp_path / "m.csv", image_size=SIZE, resize="pad", workers=2)
    indices = np.array([5, 39, 0, 5])
    assert np.array_equal(live.images(indices), cached.images(indices))
    for name in ("classes", "image_size"):
        assert getattr(live, name) == getattr(cached, name)
    for name in ("labels", "train", "val"):
        assert np.array_equal(getattr(live, name), getattr(cached, name))


def test_live_pixels_refuse_a_photo_that_changed(food, tmp_path):
    load_manifest(food, seed=0).write_csv(tmp_path / "m.csv")
    live = LivePixels(tmp_path / "m.csv", image_size=SIZE)
    Image.new("RGB", (5, 5)).save(food / "a" / "000.png")
    with pytest.raises(DataError, match=r"000\.png: its bytes have changed since the scan"):
        live.images(np.array([0]))


def decoded_rows(monkeypatch):
    rows = []
    real = cache_module.decode_entry

    def counted(manifest, index, image_size, how):
        rows.append(index)
        return real(manifest, index, image_size, how)

    monkeypatch.setattr(cache_module, "decode_entry", counted)
    return rows


def test_a_sound_cache_is_used_again(food, tmp_path, monkeypatch):
    manifest = load_manifest(food, seed=0)
    first = build(manifest, tmp_path)
    rows = decoded_rows(monkeypatch)
    assert build(manifest, tmp_path) == first
    assert rows == []


def test_another_seed_shares_the_pixels(food, tmp_path, monkeypatch):
    first = CachedPixels(build(load_manifest(food, seed=0), tmp_path))
    rows = decoded_rows(monkeypatch)
    second = CachedPixels(build(load_manifest(food, seed=1), tmp_path))
    assert rows == []
    assert first.val.tolist() != second.val.tolist()


@pytest.mark.parametrize("options", [{"image_size": 8}, {"resize": "crop"}])
def test_another_size_or_resize_is_another_cache(food, tmp_path, options):
    manifest = load_manifest(food, seed=0)
    options = {"image_size": SIZE, "resize": "squash"} | options
    other = build_cache(manifest, cache_dir=tmp_path / "cache", **options)
    assert other.parent != build(manifest, tmp_path).parent


def test_another_decoder_is_another_cache(food, tmp_path, monkeypatch):
    manifest = load_manifest(food, seed=0)
    first = build(manifest, tmp_path)
    monkeypatch.setattr(cache_module, "decoder_version", lambda: "pillow 99")
    assert build(manifest, tmp_path).parent != first.parent


def flip_a_byte(path, position):
    with open(path, "r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))


OTHER = ", ".join(['"' + "0" * 64 + '"'] * 8)
DAMAGES = {
    "a pixel of the first image": lambda f: flip_a_byte(f / "images.npy", 200),
    "a pixel of the last image": lambda f: flip_a_byte(f / "images.npy", -1),
    "the header": lambda f: flip_a_byte(f / "images.npy", 60),
    "cut short": lambda f: os.truncate(f / "images.npy", 5000),
    "empty": lambda f: os.truncate(f / "images.npy", 0),
    "longer": lambda f: os.truncate(f / "images.npy", 128 + 41 * SIZE * SIZE * 3),
    "a hole of zeros": lambda f: punch_a_hole(f / "images.npy"),
    "pixels gone": lambda f: (f / "images.npy").unlink(),
    "digests gone": lambda f: (f / "chunks.json").unlink(),
    "digests garbled": lambda f: (f / "chunks.json").write_text("[1, 2"),
    "digests of another cache": lambda f: (f / "chunks.json").write_text(f"[{OTHER}]"),
    "digests are no list": lambda f: (f / "chunks.json").write_text("{}"),
    "labels changed": lambda f: flip_a_byte(next(f.glob("views/*/labels.npy")), 200),
    "labels gone": lambda f: next(f.glob("views/*/labels.npy")).unlink(),
    "view garbled": lambda f: next(f.glob("views/*/view.json")).write_bytes(b"\xff\xfe"),
    "two chunks exchanged": lambda f: exchange_chunks(f / "images.npy"),
}  # fmt: skip


def punch_a_hole(path):
    size = path.stat().st_size
    os.truncate(path, 9000)
    os.truncate(path, size)


def exchange_chunks(path):
    data = bytearray(path.read_bytes())
    size, start = 5 * SIZE * SIZE * 3, 128
    data[start : start + size], data[start + size : start + 2 * size] = (
        data[start + size : start + 2 * size],
        data[start : start + size],
    )
    path.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_rebuilt(damage, food, tmp_path, small_chunks):
    manifest = load_manifest(food, seed=0)
    view = build(manifest, tmp_path)
    before = (view.parent.parent / "images.npy").read_bytes()
    DAMAGES[damage](view.parent.parent)
    view = build(manifest, tmp_path)
    assert (view.parent.parent / "images.npy").read_bytes() == before
    check_pixels(CachedPixels(view))


@pytest.mark.parametrize(
    "damage", ["cut short", "pixels gone", "labels changed", "labels gone", "view garbled"]
)
def test_opening_a_damaged_cache_is_an_error(damage, food, tmp_path, small_chunks):
    view = build(load_manifest(food, seed=0), tmp_path)
    DAMAGES[damage](view.parent.parent)
    with pytest.raises(DataError, match="build it again"):
        CachedPixels(view)


def test_an_interrupted_build_goes_on_where_it_stopped(food, tmp_path, small_chunks, monkeypatch):
    manifest = load_manifest(food, seed=0)

    def stop_at_20(stage, done, total):
        if stage.startswith("decoding") and done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(manifest, tmp_path, progress=stop_at_20)
    rows = decoded_rows(monkeypatch)
    check_pixels(CachedPixels(build(manifest, tmp_path)))
    assert sorted(rows) == list(range(20, 40))


def test_a_builder_that_is_killed_leaves_what_is_done(food, tmp_path, small_chunks, monkeypatch):
    code = f"""
import os, pathlib, signal, datasets, datasets.pixel_layout
datasets.pixel_layout._CHUNK_BYTES = 5 * datasets.cache_bytes(1, {SIZE})

def die_at_20(stage, done, total):
    if stage.startswith("decoding") and done == 20:
        os.kill(os.getpid(), signal.SIGKILL)

manifest = datasets.load_manifest({str(food)!r}, seed=0)
cache_dir = pathlib.Path({str(tmp_path / "cache")!r})
datasets.build_cache(manifest, image_size={SIZE}, cache_dir=cache_dir, progress=die_at_20)
"""
    repository = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=repository)
    assert done.returncode == -signal.SIGKILL
    rows = decoded_rows(monkeypatch)
    check_pixels(CachedPixels(build(load_manifest(food, seed=0), tmp_path)))
    assert sorted(rows) == list(range(20, 40))


def test_what_was_damaged_in_an_interrupted_build_is_decoded_again(
    food, tmp_path, small_chunks, monkeypatch
):
    manifest = load_manifest(food, seed=0)

    def stop_at_20(stage, done, total):
        if stage.startswith("decoding") and done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(manifest, tmp_path, progress=stop_at_20)
    (partial,) = (tmp_path / "cache" / "pixels").glob("*.partial")
    flip_a_byte(partial / "images.npy", 128 + 7 * SIZE * SIZE * 3)
    with open(partial / "journal", "a") as journal:
        journal.write("7 half a li")
    rows = decoded_rows(monkeypatch)
    check_pixels(CachedPixels(build(manifest, tmp_path)))
    assert sorted(rows) == [5, 6, 7, 8, 9, *range(20, 40)]


def test_two_builders_at_once_decode_once(food, tmp_path, small_chunks, monkeypatch):
    manifest = load_manifest(food, seed=0)
    rows, views = decoded_rows(monkeypatch), []
    threads = [
        threading.Thread(target=lambda: views.append(build(manifest, tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rows) == list(range(40))
    assert len(set(views)) == 1


def test_a_builder_that_waits_for_another_says_so(food, tmp_path):
    manifest = load_manifest(food, seed=0)
    lock = build(manifest, tmp_path).parent.parent.with_suffix(".lock")
    waiting = threading.Event()

    def note(stage, done, total):
        if stage.startswith("waiting for another process"):
            waiting.set()

    thread = threading.Thread(target=build, args=(manifest, tmp_path), kwargs={"progress": note})
    with only_process(lock, no_progress):
        thread.start()
        assert waiting.wait(timeout=60)
    thread.join()


def test_the_size_is_told_before_anything_is_written(food, tmp_path):
    stages = []
    build(load_manifest(food, seed=0), tmp_path, progress=lambda *report: stages.append(report))
    # 40 images of 16 x 16 x 3 bytes.
    assert "30,720 bytes" in stages[0][0]
    assert stages[0][1:] == (0, 40)
    assert stages[-1][1:] == (40, 40)


def test_a_disk_without_room_is_an_error_that_says_how_much_is_needed(food, tmp_path, monkeypatch):
    manifest = load_manifest(food, seed=0)
    old = build_cache(manifest, image_size=8, cache_dir=tmp_path / "cache")
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"needs 30,720 bytes, 1,000 are free.*AMP_HARNESS_CACHE"):
        build(manifest, tmp_path)
    assert CachedPixels(old).images(np.array([0])).shape == (1, 8, 8, 3)


def test_a_disk_that_fills_up_in_mid_build_keeps_what_is_done(
    food, tmp_path, small_chunks, monkeypatch
):
    manifest = load_manifest(food, seed=0)

    def fill_up(stage, done, total):
        if stage.startswith("decoding") and done == 25:
            raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="needs 30,720 bytes"):
        build(manifest, tmp_path, progress=fill_up)
    rows = decoded_rows(monkeypatch)
    check_pixels(CachedPixels(build(manifest, tmp_path)))
    assert sorted(rows) == list(range(25, 40))


def test_a_photo_that_changes_before_it_is_decoded_is_an_error(food, tmp_path):
    manifest = load_manifest(food, seed=0)
    Image.new("RGB", (5, 5)).save(food / "b" / "010.png")
    with pytest.raises(DataError, match=r"010\.png: its bytes have changed.*scan the data again"):
        build(manifest, tmp_path)


def age(view, days):
    then = time.time() - days * 86400
    os.utime(view.parent.parent, (then, then))


def test_the_least_recently_used_caches_make_room(food, tmp_path, monkeypatch):
    manifest = load_manifest(food, seed=0)
    views = {
        size: build_cache(manifest, image_size=size, cache_dir=tmp_path / "cache")
        for size in (20, 21, 22)
    }
    for size, days in ((20, 3), (21, 9), (22, 0)):
        age(views[size], days)
    # The three take 48,000 + 52,920 + 58,080 bytes; with 30,720 more, one must go for 150 kB.
    monkeypatch.setenv("AMP_HARNESS_CACHE_LIMIT_GB", "150e-6")
    build(manifest, tmp_path)
    assert [size for size, view in views.items() if view.exists()] == [20, 22]


def test_a_cache_in_use_is_never_removed(food, tmp_path, monkeypatch):
    manifest = load_manifest(food, seed=0)
    view = build_cache(manifest, image_size=20, cache_dir=tmp_path / "cache")
    monkeypatch.setenv("AMP_HARNESS_CACHE_LIMIT_GB", "50e-6")
    build(manifest, tmp_path)
    assert view.exists()


def test_a_cache_over_the_limit_is_refused(food, tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_HARNESS_CACHE_LIMIT_GB", "1e-6")
    with pytest.raises(DataError, match="needs 30,720 bytes, its limit is 1,000"):
        build(load_manifest(food, seed=0), tmp_path)


def test_a_limit_that_is_no_number_is_an_error(food, tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_HARNESS_CACHE_LIMIT_GB", "lots")
    with pytest.raises(DataError, match="'lots' is not a number of gigabytes"):
        build(load_manifest(food, seed=0), tmp_path)


def test_the_variable_places_the_cache(food, tmp_path, monkeypatch):
    monkeypatch.setenv("AMP_HARNESS_CACHE", str(tmp_path / "here"))
    view = build_cache(load_manifest(food, seed=0), image_size=SIZE)
    assert view.is_relative_to(tmp_path / "here")


def test_a_cache_folder_that_cannot_be_made_is_an_error(food, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="choose another folder with AMP_HARNESS_CACHE"):
        build_cache(load_manifest(food, seed=0), image_size=SIZE, cache_dir=tmp_path / "file")


@pytest.mark.parametrize(
    "options", [{"image_size": 0}, {"image_size": 10**6}, {"image_size": 8, "resize": "stretch"}]
)
def test_impossible_options_are_an_error(options, food, tmp_path):
    with pytest.raises(DataError, match=r"must lie between|is none of"):
        build_cache(load_manifest(food, seed=0), cache_dir=tmp_path, **options)


def test_synthetic_pixels_are_noise_by_seed():
    pixels = SyntheticPixels(image_size=8, classes=3, train_images=300, val_images=10, seed=1)
    again = SyntheticPixels(image_size=8, classes=3, train_images=300, val_images=10, seed=1)
    assert np.array_equal(pixels.images(pixels.val), again.images(again.val))
    assert len(pixels.train) == 300
    assert set(pixels.labels) == {0, 1, 2}
    # Uniform noise on 0..255 has mean 127.5.
    assert abs(pixels.images(pixels.train).mean() - 127.5) < 1


@pytest.mark.slow
def test_no_damage_to_the_cache_of_real_photos_is_ever_served(shared_data, tmp_path, monkeypatch):
    monkeypatch.setattr(pixel_layout, "_CHUNK_BYTES", 5 * cache_bytes(1, 224))
    manifest = load_manifest(shared_data / "food5", seed=0)
    view = build_cache(manifest, image_size=224, cache_dir=tmp_path)
    truth = (view.parent.parent / "images.npy").read_bytes()
    assert len(truth) == 128 + cache_bytes(300, 224)
    rows = decoded_rows(monkeypatch)
    assert build_cache(manifest, image_size=224, cache_dir=tmp_path) == view
    assert rows == []
    for damage in DAMAGES.values():
        damage(view.parent.parent)
        view = build_cache(manifest, image_size=224, cache_dir=tmp_path)
        pixels = CachedPixels(view)
        assert pixels.images(np.arange(300)).tobytes() == truth[128:]
        assert np.array_equal(pixels.labels, manifest.labels)
        assert pixels.val.tolist() == manifest.val.tolist()
