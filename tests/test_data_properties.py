"""Properties that hold for any input, searched by hypothesis; and a short run of the fuzzer."""

import csv
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from PIL import Image

from datasets import DataError, load_manifest
from datasets.archive_names import decode_zip_names, safe_parts
from datasets.archives import extract_archive
from datasets.batches import epoch_order, mirror_images, shift_images
from datasets.csv_source import list_csv
from datasets.decode import (
    RESIZES,
    Photo,
    UnreadableImageError,
    decode,
    pillow_warnings_ignored,
    resize,
)
from datasets.errors import no_progress, printable
from datasets.names import redecode
from datasets.splits import k_fold_split, leaked, stratified_split

REPOSITORY = Path(__file__).resolve().parent.parent
in_one_folder = settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def attempt(function, *arguments, **options):
    """The result and None, or None and what the refusal says."""
    try:
        with pillow_warnings_ignored():
            return function(*arguments, **options), None
    except (DataError, UnreadableImageError) as error:
        return None, str(error)


HEADS = [
    b"", b"\xff\xd8\xff\xe0\x00\x10JFIF\0", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"GIF89a",
    b"RIFF\x40\0\0\0WEBPVP8 ", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08", b"BM", b"8BPS\0\1",
    b"P6\n", b"\0\0\0\x0cjP  \r\n\x87\n", b"qoif", b"\0\0\1\0", b"icns", b"DDS |\0\0\0",
]  # fmt: skip


@given(st.sampled_from(HEADS), st.binary(max_size=400))
def test_any_bytes_are_a_photo_or_refused_with_one_line(head, body):
    photo, refusal = attempt(decode, head + body)
    if photo is None:
        assert refusal == printable(refusal) != ""
    else:
        assert isinstance(photo, Photo)
        assert photo.rgb.mode == "RGB"


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.sampled_from(RESIZES))
def test_any_size_becomes_the_square(width, height, side, how):
    pixels = resize(Image.new("RGB", (width, height), (9, 99, 199)), side, how)
    assert pixels.shape == (side, side, 3)
    assert pixels.dtype == np.uint8
    colours = {tuple(colour) for colour in pixels.reshape(-1, 3).tolist()}
    # One colour stays one colour; padding adds white.
    assert (9, 99, 199) in colours
    assert colours <= {(9, 99, 199), (255, 255, 255)}
    assert how == "pad" or len(colours) == 1


part = st.text(st.characters(exclude_characters="\0"), max_size=12)
dangerous = st.sampled_from(["..", ".", "", "C:", "con", "~", "\\", "...", "a\\..\\b", "\u202e"])
member_name = st.lists(st.one_of(part, dangerous), max_size=6).map("/".join)


@given(member_name)
def test_a_member_name_never_leads_out(name):
    archive = Path("x.zip")
    try:
        parts = safe_parts(name, archive)
    except DataError:
        return
    if parts is not None:
        joined = os.path.normpath(os.path.join("/box", *parts))
        assert joined.startswith("/box/")
        assert all(part not in ("", ".", "..") and "/" not in part for part in parts)


@in_one_folder
@given(st.lists(st.tuples(member_name, st.binary(max_size=20)), max_size=5))
def test_no_zip_writes_outside_its_folder(tmp_path_factory, members):
    box = tmp_path_factory.mktemp("box")
    source = box / "food.zip"
    try:
        with zipfile.ZipFile(source, "w") as archive:
            for name, data in members:
                archive.writestr(name, data)
    except (UnicodeEncodeError, UserWarning, IndexError):
        assume(False)
    before = {path.name for path in box.parent.iterdir()}
    folder, refusal = attempt(
        extract_archive, source, cache_dir=box / "cache", progress=no_progress
    )
    assert "\n" not in (refusal or "")
    assert folder is None or folder.is_relative_to(box / "cache" / "archives")
    assert {path.name for path in box.iterdir()} <= {"food.zip", "cache"}
    assert {path.name for path in box.parent.iterdir()} == before


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4))
def test_names_in_unknown_bytes_are_decoded_without_loss_of_safety(names):
    members = []
    for raw in names:
        member = zipfile.ZipInfo("x")
        member.orig_filename, member.flag_bits = raw.decode("cp437"), 0
        members.append(member)
    decoded = decode_zip_names(members)
    assert len(decoded) == len(names)
    assert all("\\" not in name for name in decoded)
    assert isinstance(redecode(names[0].decode("utf-8", "surrogateescape")), str)


any_text = st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))


@in_one_folder
@given(st.one_of(st.binary(max_size=300), any_text), st.booleans())
def test_any_text_is_a_manifest_or_refused_with_one_line(tmp_path, body, with_header):
    source = tmp_path / "m.csv"
    source.write_bytes((b"path,class,split,sha256\n" if with_header else b"") + body)
    listing, refusal = attempt(list_csv, source)
    assert "\n" not in (refusal or "")
    if listing is not None:
        assert len(listing.paths) == len(listing.labels)
        outside = [path for path in listing.paths if not path.startswith(str(tmp_path)[1:] + "/")]
        assert all(path in listing.digests for path in outside)


letters = st.characters(exclude_characters="\0/", exclude_categories=["Cs"])
file_name = st.text(letters, min_size=1, max_size=20).filter(
    lambda name: not name.startswith(".") and name == name.strip() and len(name.encode()) < 100
)
class_names = st.lists(file_name, min_size=2, max_size=3, unique_by=str.casefold)
file_names = st.lists(file_name, min_size=2, max_size=3, unique=True)


@in_one_folder
@given(class_names, file_names)
def test_any_names_survive_the_round_trip_through_csv(tmp_path_factory, classes, names):
    folder = tmp_path_factory.mktemp("food")
    for label, class_name in enumerate(classes):
        (folder / class_name).mkdir()
        for number, name in enumerate(names):
            Image.new("RGB", (2, 2), (label, number, 7)).save(folder / class_name / name, "PNG")
    manifest, refusal = attempt(load_manifest, folder, seed=0)
    if manifest is None:
        # Two classes that are one in Unicode normal form C, or a system's own name.
        assert "only one class" in refusal or "no classes" in refusal
        return
    manifest.write_csv(folder / "m.csv")
    again = load_manifest(folder / "m.csv", seed=1)
    assert list(again.entries) == list(manifest.entries)
    with open(folder / "m.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.reader(file))) == len(manifest.entries) + 1


labels_and_groups = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=60
)
label_lists = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def columns(rows):
    labels = np.array([label for label, _ in rows], np.int64)
    owners = [owner for _, owner in rows]
    return labels, np.array([owners.index(owner) for owner in owners], np.int64)


@given(labels_and_groups, st.integers(0, 2**32), st.floats(0.01, 0.99))
def test_a_stratified_split_parts_no_group_and_takes_no_more_than_its_share(rows, seed, share):
    labels, groups = columns(rows)
    split = stratified_split(labels, groups, seed=seed, val_fraction=share)
    assert leaked(split, groups).size == 0
    for label in np.unique(labels):
        total, val = int((labels == label).sum()), int(split[labels == label].sum())
        assert val <= max(1, int(total * share + 0.5))
        assert val < total


@given(label_lists, st.integers(0, 99), st.floats(0.01, 0.99))
def test_without_duplicates_the_split_is_exact(labels, seed, share):
    labels = np.array(labels, np.int64)
    split = stratified_split(labels, np.arange(len(labels)), seed=seed, val_fraction=share)
    for label in np.unique(labels):
        total = int((labels == label).sum())
        expected = min(max(int(total * share + 0.5), 1), total - 1)
        assert split[labels == label].sum() == expected


@given(labels_and_groups, st.integers(0, 99), st.integers(2, 6))
def test_folds_part_the_photos_and_no_group(rows, seed, count):
    labels, groups = columns(rows)
    folds = [k_fold_split(labels, groups, seed=seed, fold=(k + 1, count)) for k in range(count)]
    assert np.sum(folds, axis=0).tolist() == [1] * len(labels)
    assert all(leaked(fold, groups).size == 0 for fold in folds)


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 50))
def test_an_epoch_is_a_permutation(seed, epoch, count):
    indices = np.arange(count, dtype=np.int64) * 3
    order = epoch_order(indices, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == indices.tolist()


@given(st.integers(1, 4), st.integers(1, 9), st.data())
def test_mirroring_twice_changes_nothing_and_shifting_agrees_with_padding(count, side, data):
    images = np.random.default_rng(count * side).integers(1, 256, (count, side, side, 3), np.uint8)
    mirrored = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    twice = images.copy()
    mirror_images(twice, mirrored)
    assert np.array_equal(
        twice, np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
    )
    shift = st.integers(-(side - 1), side - 1)
    shifts = data.draw(st.lists(st.tuples(shift, shift), min_size=count, max_size=count))
    moved = shift_images(images, np.array(shifts))
    padded = np.pad(images, ((0, 0), (side, side), (side, side), (0, 0)))
    for number, (down, right) in enumerate(shifts):
        window = padded[number, side - down : 2 * side - down, side - right : 2 * side - right]
        assert np.array_equal(moved[number], window)


@given(st.text(max_size=50))
def test_printable_text_is_one_line_without_codes(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def fuzz(inputs):
    script = REPOSITORY / "benchmarks" / "data_fuzz.py"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, str(script), "--inputs", str(inputs)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def test_hundreds_of_mutated_inputs_cause_no_crash_hang_or_escape():
    done = fuzz(400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("image: 320 inputs")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutated_inputs_cause_no_crash_hang_or_escape():
    done = fuzz(100_000)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_seeds_of_the_fuzzer_are_valid():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        import data_fuzz
    finally:
        sys.path.pop(0)
    with pillow_warnings_ignored():
        photos = [attempt(decode, seed)[0] for seed in data_fuzz.image_seeds()]
    formats = {photo.format for photo in photos if photo and photo.rgb.size in ((24, 20), (20, 24))}
    assert formats >= {
        "JPEG",
        "PNG",
        "GIF",
        "WEBP",
        "BMP",
        "TIFF",
        "AVIF",
        "JPEG2000",
        "TGA",
        "PPM",
    }
    assert io.BytesIO(data_fuzz.archive_seeds()[0]).read(4) == b"PK\3\4"
