"""Splits, duplicates and manifest CSVs."""

import csv
import hashlib
import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from datasets import DataError, load_manifest, scan
from datasets.csv_source import read_manifest
from datasets.duplicates import find_duplicates, grey_thumbnail
from datasets.splits import k_fold_split, leaked, stratified_split


def noise(seed, size=24):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8))


def scene(seed, size=200):
    """A picture with structure, as photos have: bright and dark discs on a gradient."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    grey = 90 + 60 * x * rng.random() + 40 * y * rng.random()
    for _ in range(12):
        cx, cy, radius = rng.random(), rng.random(), rng.uniform(0.05, 0.2)
        grey[np.hypot(x - cx, y - cy) < radius] = rng.uniform(0, 255)
    return Image.fromarray(
        np.stack([grey, grey * 0.8, grey * 0.6], axis=2).clip(0, 255).astype(np.uint8)
    )


def dataset(folder, **counts):
    seed = 0
    for class_name, count in counts.items():
        (folder / class_name).mkdir(parents=True)
        for number in range(count):
            noise(seed).save(folder / class_name / f"{number:03d}.png")
            seed += 1
    return folder


def test_each_class_gives_one_in_five_to_validation(tmp_path):
    manifest = load_manifest(dataset(tmp_path, a=10, b=25, c=7), seed=0)
    # 10/5 = 2; 25/5 = 5; 7/5 = 1.4, rounded to 1.
    assert np.bincount(manifest.labels[manifest.val]).tolist() == [2, 5, 1]
    assert len(manifest.train) + len(manifest.val) == 42


@pytest.mark.parametrize(("count", "val"), [(1, 0), (2, 1), (3, 1)])
def test_small_classes_train_and_validate_as_far_as_they_can(count, val, tmp_path):
    manifest = load_manifest(dataset(tmp_path, a=count, b=10), seed=0)
    assert (manifest.labels[manifest.val] == 0).sum() == val
    assert [warning for warning in manifest.warnings if "one photo" in warning] == (
        ["class 'a' has one photo; a class needs two to be validated"] if count == 1 else []
    )


def test_the_split_depends_on_the_seed_alone(tmp_path):
    folder = dataset(tmp_path, a=20, b=20)
    first, second, other = (load_manifest(folder, seed=seed) for seed in (1, 1, 2))
    assert first.val.tolist() == second.val.tolist()
    assert first.val.tolist() != other.val.tolist()


@pytest.mark.parametrize("val_fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_validation_share_out_of_range_is_an_error(val_fraction, tmp_path):
    with pytest.raises(DataError, match="must lie between 0 and 1"):
        load_manifest(dataset(tmp_path, a=2, b=2), seed=0, val_fraction=val_fraction)


def test_every_photo_validates_in_exactly_one_fold():
    labels = np.repeat([0, 1, 2], [10, 11, 5])
    groups = np.arange(26)
    folds = [k_fold_split(labels, groups, seed=3, fold=(number, 5)) for number in range(1, 6)]
    assert np.sum(folds, axis=0).tolist() == [1] * 26
    # 10 photos in 5 folds are 2 each; 11 are 2, 2, 2, 2 and 3.
    assert [int(fold[labels == 0].sum()) for fold in folds] == [2] * 5
    assert sorted(int(fold[labels == 1].sum()) for fold in folds) == [2, 2, 2, 2, 3]


@pytest.mark.parametrize("fold", [(0, 5), (6, 5), (1, 1)])
def test_a_fold_that_does_not_exist_is_an_error(fold, tmp_path):
    with pytest.raises(DataError, match="give K/N"):
        load_manifest(dataset(tmp_path, a=2, b=2), seed=0, fold=fold)


@pytest.mark.parametrize("seed", range(5))
def test_no_split_ever_parts_a_group(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 300)
    owner = rng.integers(0, 200, 300)
    groups = np.array([np.flatnonzero(owner == one)[0] for one in owner])
    assert leaked(stratified_split(labels, groups, seed=seed, val_fraction=0.2), groups).size == 0
    for number in (1, 2, 3):
        split = k_fold_split(labels, groups, seed=seed, fold=(number, 3))
        assert leaked(split, groups).size == 0


def test_copies_of_one_photo_stay_on_one_side(tmp_path):
    folder = dataset(tmp_path, a=6, b=6)
    data = (folder / "a" / "000.png").read_bytes()
    for number in range(4):
        (folder / "a" / f"copy{number}.png").write_bytes(data)
    for seed in range(8):
        found = scan(folder, seed=seed)
        assert found.duplicates.byte_identical == 4
        sides = {
            e.split for e in found.manifest.entries if e.sha256 == hashlib.sha256(data).hexdigest()
        }
        assert len(sides) == 1


def test_a_class_of_copies_only_is_warned_of(tmp_path):
    folder = dataset(tmp_path, a=1, b=9)
    for number in range(5):
        (folder / "a" / f"{number}.png").write_bytes((folder / "a" / "000.png").read_bytes())
    assert "class 'a' has no photo in validation" in load_manifest(folder, seed=0).warnings


def test_the_same_photo_in_two_classes_trains(tmp_path):
    folder = dataset(tmp_path, a=10, b=10)
    data = (folder / "a" / "000.png").read_bytes()
    (folder / "b" / "same.png").write_bytes(data)
    # A class gives two to validation, so there would be room for both.
    for seed in range(12):
        entries = load_manifest(folder, seed=seed).entries
        same = [e for e in entries if e.sha256 == hashlib.sha256(data).hexdigest()]
        assert [entry.split for entry in same] == ["train", "train"]


def test_the_same_pixels_under_other_bytes_are_found(tmp_path):
    folder = dataset(tmp_path, a=5, b=5)
    noise(0).save(folder / "a" / "again.bmp")
    duplicates = scan(folder, seed=0).duplicates
    assert (duplicates.byte_identical, duplicates.pixel_identical) == (0, 1)


def thumbnails(*images):
    small = [image.resize((64, 64), Image.Resampling.BILINEAR) for image in images]
    return np.stack([grey_thumbnail(image) for image in small])


def groups_of(*images):
    digests = np.arange(len(images), dtype=np.uint8)[:, None]
    labels = np.zeros(len(images), np.int64)
    return find_duplicates(labels, digests, digests, thumbnails(*images)).groups.tolist()


def test_brighter_cropped_and_recompressed_copies_are_near_identical():
    original = scene(1)
    buffer = io.BytesIO()
    original.save(buffer, "JPEG", quality=25)
    variants = [
        ImageEnhance.Brightness(original).enhance(1.25),
        ImageEnhance.Contrast(original).enhance(0.7),
        original.crop((10, 6, 198, 190)),
        Image.open(buffer),
        original.convert("L").convert("RGB"),
    ]
    assert groups_of(original, *variants) == [0] * 6


def test_different_scenes_are_not_near_identical():
    assert groups_of(*[scene(seed) for seed in range(60)]) == list(range(60))


def test_a_photo_on_its_head_has_the_same_spectrum_and_is_another_photo():
    assert groups_of(scene(1), scene(1).transpose(Image.Transpose.ROTATE_180)) == [0, 1]


def test_flat_pictures_are_compared_by_pixels_only():
    assert groups_of(*[Image.new("RGB", (9, 9), (grey,) * 3) for grey in (0, 100, 255)]) == [
        0,
        1,
        2,
    ]


def test_plain_pictures_with_a_speck_are_not_near_identical():
    images = [Image.new("RGB", (30, 20), (grey,) * 3) for grey in range(20, 200, 20)]
    for image in images:
        image.putpixel((3, 3), (255, 255, 255))
    assert groups_of(*images) == list(range(9))


def test_photos_that_look_alike_in_two_classes_are_left_apart():
    images = thumbnails(scene(1), ImageEnhance.Brightness(scene(1)).enhance(1.2))
    digests = np.arange(2, dtype=np.uint8)[:, None]
    assert find_duplicates(np.array([0, 1]), digests, digests, images).groups.tolist() == [0, 1]


def test_grey_is_luma():
    # ITU-R BT.601: 0.299 of 255 is 76.2.
    assert np.unique(grey_thumbnail(Image.new("RGB", (64, 64), "red"))).tolist() == [76]


def test_a_given_split_is_kept_and_its_leaks_are_counted(tmp_path):
    for split, class_name, seed in [
        ("train", "a", 1),
        ("train", "b", 2),
        ("val", "a", 1),
        ("val", "b", 3),
    ]:
        path = tmp_path / split / class_name / f"{split}.png"
        path.parent.mkdir(parents=True)
        noise(seed).save(path)
    manifest = load_manifest(tmp_path, seed=0)
    assert [entry.split for entry in manifest.entries] == ["train", "train", "val", "val"]
    assert "1 validation photos have a duplicate among the training photos" in manifest.warnings[0]
    refolded = load_manifest(tmp_path, seed=0, fold=(1, 2))
    assert not [warning for warning in refolded.warnings if "duplicate" in warning]


def test_the_digest_is_the_sha256_of_the_file(tmp_path):
    manifest = load_manifest(dataset(tmp_path, a=2, b=2), seed=0)
    for entry in manifest.entries:
        assert entry.sha256 == hashlib.sha256(entry.path.read_bytes()).hexdigest()
        assert entry.path.is_absolute()


def write_csv(path, rows, encoding="utf-8"):
    with open(path, "w", newline="", encoding=encoding) as file:
        csv.writer(file).writerows(rows)
    return path


def test_the_columns_of_the_original_experiment_are_read(tmp_path):
    dataset(tmp_path, a=3, b=3)
    rows = [("images", "label")] + [
        (f"{c}/{n:03d}.png", label) for label, c in ((10, "a"), (2, "b")) for n in range(3)
    ]
    manifest = load_manifest(write_csv(tmp_path / "train.csv", rows, "utf-8-sig"), seed=0)
    # Integer labels are ordered by value: 2 before 10.
    assert manifest.classes == ("2", "10")
    assert {(e.path.parent.name, e.class_name, e.label) for e in manifest.entries} == {
        ("a", "10", 1),
        ("b", "2", 0),
    }


def test_class_names_of_a_csv_in_a_chinese_code_page_are_read(tmp_path):
    dataset(tmp_path, a=2, b=2)
    rows = [("path", "class")] + [
        (f"{c}/{n:03d}.png", {"a": "北京", "b": "上海"}[c]) for c in "ab" for n in (0, 1)
    ]
    manifest = load_manifest(write_csv(tmp_path / "m.csv", rows, "gbk"), seed=0)
    assert manifest.classes == ("上海", "北京")


def test_a_csv_cannot_name_files_outside_its_folder_without_their_sha256(tmp_path):
    dataset(tmp_path / "list", a=3, b=3)
    secret = tmp_path / "secret.png"
    noise(99).save(secret)
    (tmp_path / "list" / "link.png").symlink_to(secret)
    inside = [(f"{c}/{n:03d}.png", c, "") for c in "ab" for n in range(3)]
    outside = [("../secret.png", "a", ""), (str(secret), "a", ""), ("link.png", "a", "")]
    source = write_csv(
        tmp_path / "list" / "m.csv", [("path", "class", "sha256"), *inside, *outside]
    )
    manifest = load_manifest(source, seed=0)
    assert len(manifest.entries) == 6
    assert sorted(bad.reason for bad in manifest.quarantined) == [
        "a link out of the CSV's folder",
        "outside the CSV's folder, without sha256",
        "outside the CSV's folder, without sha256",
    ]
    digest = hashlib.sha256(secret.read_bytes()).hexdigest()
    known = [("path", "class", "sha256"), *inside, ("../secret.png", "a", digest)]
    assert len(load_manifest(write_csv(source, known), seed=0).entries) == 7


def test_a_photo_that_changed_since_the_manifest_is_quarantined(tmp_path):
    folder = dataset(tmp_path / "d", a=3, b=3)
    load_manifest(folder, seed=0).write_csv(tmp_path / "m.csv")
    noise(77).save(folder / "a" / "001.png")
    (folder / "b" / "002.png").unlink()
    manifest = load_manifest(tmp_path / "m.csv", seed=0)
    assert [bad.reason.split(" (")[0] for bad in manifest.quarantined] == [
        "its bytes have changed since the manifest was written",
        "no such file",
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("x", "y"), ("a.png", "1")], "its first line must name the columns path and class"),
        ([], "its first line must name"),
        ([("path", "path", "class")], "its first line must name"),
        ([("path", "class"), ("a/000.png", "a", "more")], "line 2: 3 fields under 2 columns"),
        ([("path", "class"), ("a/000.png", "")], "line 2: empty path or class"),
        ([("path", "class", "split"), ("a/000.png", "a", "holdout")], "split 'holdout' is neither"),
        ([("path", "class", "sha256"), ("a/000.png", "a", "12")], "sha256 is not 64 hex"),
        ([("path", "class"), ("a/000.png", "a"), ("./a/000.png", "b")], "listed before"),
        ([("path", "label", "split"), ("a/000.png", "a", "val"), ("b/0.png", "b", "")], "or none"),
        ([("path", "class"), ("a/000.png", "a")], "only one class"),
        ([("path", "class"), ("x" * 40000, "a")], "line 2: not text"),
    ],
)  # fmt: skip
def test_a_csv_that_is_no_manifest_is_one_clear_line(rows, message, tmp_path):
    dataset(tmp_path, a=2, b=2)
    with pytest.raises(DataError, match=message) as error:
        load_manifest(write_csv(tmp_path / "m.csv", rows), seed=0)
    assert "\n" not in str(error.value)


def test_repeated_lines_count_once(tmp_path):
    dataset(tmp_path, a=2, b=2)
    rows = [("path", "class")] + [(f"{c}/{n:03d}.png", c) for c in "ab" for n in (0, 1, 1)]
    manifest = load_manifest(write_csv(tmp_path / "m.csv", rows), seed=0)
    assert len(manifest.entries) == 4
    assert manifest.warnings == ("2 repeated lines of the CSV count once",)


def test_reading_a_manifest_back_needs_splits_and_digests(tmp_path):
    dataset(tmp_path, a=2, b=2)
    source = write_csv(
        tmp_path / "m.csv", [("path", "class"), ("a/000.png", "a"), ("b/000.png", "b")]
    )
    with pytest.raises(DataError, match="needs a split and a sha256"):
        read_manifest(source)


def test_the_manifest_hash_covers_label_split_and_content(tmp_path):
    folder = dataset(tmp_path / "d", a=4, b=4)
    manifest = load_manifest(folder, seed=0)
    (folder / "a").rename(folder / "c")
    assert load_manifest(folder, seed=0).sha256 != manifest.sha256


def test_near_duplicates_of_food101_are_grouped(shared_data):
    found = scan(shared_data / "odd", seed=0)
    paths, groups = found.manifest.paths, found.duplicates.groups
    pairs = [
        ("apple_pie__1461580", "apple_pie__1469191"),
        ("baby_back_ribs__2306008", "baby_back_ribs__2306066"),
        ("beef_carpaccio__1769984", "beef_carpaccio__1801501"),
        ("beef_tartare__2030970", "beef_tartare__2030974"),
        ("beef_tartare__2547911", "beef_tartare__2561385"),
    ]
    for pair in pairs:
        first, second = (paths.index(f"near_dup/{name}.jpg") for name in pair)
        assert groups[first] == groups[second]
        assert (groups == groups[first]).sum() == 2


def test_real_photos_of_food101_that_differ_are_not_grouped(shared_data):
    groups = scan(shared_data / "food5", seed=0).duplicates.groups
    assert len(np.unique(groups)) == 300


def test_the_official_split_of_food101_leaks_what_the_near_duplicates_show(shared_data, tmp_path):
    # Food-101 has one of each pair in its test list, but for the apple pies: both are there.
    names = {"train": [], "test": []}
    for path in sorted((shared_data / "odd" / "near_dup").iterdir()):
        class_name, _, photo_id = path.stem.partition("__")
        (tmp_path / "images" / class_name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / class_name / f"{photo_id}.jpg").symlink_to(path)
        first_of_pair = photo_id in ("2306008", "1769984", "2030970", "2547911")
        names["train" if first_of_pair else "test"].append(f"{class_name}/{photo_id}")
    (tmp_path / "meta").mkdir()
    for part, lines in names.items():
        (tmp_path / "meta" / f"{part}.txt").write_text("\n".join(lines))
    warnings = load_manifest(tmp_path, seed=0).warnings
    assert "4 validation photos have a duplicate among the training photos" in warnings[0]
    # Split anew, nothing leaks.
    refolded = load_manifest(tmp_path, seed=0, fold=(1, 2))
    assert not [warning for warning in refolded.warnings if "duplicate" in warning]
