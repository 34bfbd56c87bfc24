"""What counts as a class, a photo, a split; what is left out and said so."""

import os
import socket
import zlib

import numpy as np
import pytest
from PIL import Image

import datasets
from datasets import DataError, load_manifest


def photo(path, colour=(120, 80, 40), seed=None, size=24):
    """Write a small photo: noise of its own where a seed is given, so that none is a double."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if seed is None:
        image = Image.new("RGB", (size, size), colour)
    else:
        noise = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)
        image = Image.fromarray(noise)
    image.save(path)


def photos(folder, class_name, count):
    for number in range(count):
        seed = zlib.crc32(f"{class_name}/{number}".encode())
        photo(folder / class_name / f"{number:03d}.png", seed=seed)


@pytest.fixture
def two_classes(tmp_path):
    folder = tmp_path / "food"
    photos(folder, "soup", 5)
    photos(folder, "bread", 5)
    return folder


def names(manifest):
    return [entry.path.name for entry in manifest.entries]


def test_classes_are_ordered_by_code_point_not_by_the_file_system(tmp_path):
    for name in ("b", "a", "B", "é", "z", "10", "9"):
        photos(tmp_path, name, 2)
    manifest = load_manifest(tmp_path, seed=0)
    assert manifest.classes == ("10", "9", "B", "a", "b", "z", "é")
    assert [entry.class_name for entry in manifest.entries][::2] == list(manifest.classes)
    assert [entry.label for entry in manifest.entries][::2] == list(range(7))


def test_hidden_and_system_files_and_folders_are_left_out_without_a_word(two_classes):
    for name in (
        ".ipynb_checkpoints/x.png",
        "__MACOSX/soup/x.png",
        "soup/._000.png",
        "soup/Thumbs.db",
        "soup/.DS_Store",
        "soup/desktop.ini",
    ):
        photo_path = two_classes / name
        photo_path.parent.mkdir(parents=True, exist_ok=True)
        photo_path.write_bytes(b"x")
    manifest = load_manifest(two_classes, seed=0)
    assert manifest.classes == ("bread", "soup")
    assert len(manifest.entries) == 10
    assert manifest.quarantined == ()
    assert manifest.warnings == ()


def test_a_sole_outer_folder_is_passed_through(two_classes, tmp_path):
    outer = tmp_path / "outer"
    (outer / "__MACOSX").mkdir(parents=True)
    two_classes.rename(outer / "food")
    assert load_manifest(outer, seed=0).classes == ("bread", "soup")


def test_train_and_val_folders_give_the_split(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        for class_name in ("a", "b"):
            for number in range(count):
                photo(
                    tmp_path / split / class_name / f"{split}{number}.png",
                    seed=number + 9 * count + 100 * ord(class_name),
                )
    manifest = load_manifest(tmp_path, seed=0)
    assert manifest.classes == ("a", "b")
    assert {entry.path.name for entry in manifest.entries if entry.split == "val"} == {
        "test0.png",
        "test1.png",
    }


def test_suffixes_do_not_matter(two_classes):
    (two_classes / "soup" / "000.png").rename(two_classes / "soup" / "000.JPEG")
    (two_classes / "soup" / "001.png").rename(two_classes / "soup" / "no suffix")
    manifest = load_manifest(two_classes, seed=0)
    assert {"000.JPEG", "no suffix"} < set(names(manifest))


def test_names_with_spaces_line_breaks_commas_and_other_scripts_survive_the_csv(tmp_path):
    odd = ["a b.png", "line\nbreak.png", 'comma,"quote".png', "名前é.png", "-rf.png"]
    for number, name in enumerate(odd):
        photo(tmp_path / "food" / "küche, heiß" / name, seed=number)
        photo(tmp_path / "food" / "b\nc" / name, seed=100 + number)
    manifest = load_manifest(tmp_path / "food", seed=0)
    assert set(names(manifest)) == set(odd)
    manifest.write_csv(tmp_path / "m.csv")
    again = load_manifest(tmp_path / "m.csv", seed=9)
    assert list(again.entries) == list(manifest.entries)
    assert again.sha256 == manifest.sha256


def test_a_name_that_is_not_utf8_survives_the_csv(two_classes, tmp_path):
    os.rename(
        two_classes / "soup" / "000.png", os.fsencode(two_classes / "soup") + b"/\xff\xfe.png"
    )
    manifest = load_manifest(two_classes, seed=0)
    manifest.write_csv(tmp_path / "m.csv")
    again = load_manifest(tmp_path / "m.csv", seed=9)
    assert len(again.entries) == 10
    assert again.sha256 == manifest.sha256


def test_names_that_are_not_utf8_can_be_written_into_records(two_classes):
    os.mkdir(os.fsencode(two_classes) + "/北京".encode("gbk"))
    for number in range(2):
        path = os.fsencode(two_classes) + "/北京".encode("gbk") + b"/%d.png" % number
        os.rename(two_classes / "soup" / f"00{number}.png", path)
    with open(os.fsencode(two_classes) + b"/\xff", "wb"):
        pass
    with open(os.fsencode(two_classes) + b"/soup/\xff.jpg", "wb") as file:
        file.write(b"<html>")
    manifest = load_manifest(two_classes, seed=0)
    assert manifest.classes == ("bread", "soup", "北京")
    assert manifest.warnings == ("beside the class folders, in no class: \\udcff",)
    assert [bad.path for bad in manifest.quarantined] == ["soup/\\udcff.jpg"]


def test_the_same_class_name_composed_and_decomposed_is_one_class(tmp_path):
    photos(tmp_path, "cafe\u0301", 2)
    photos(tmp_path, "caf\u00e9", 3)
    photos(tmp_path, "tea", 2)
    manifest = load_manifest(tmp_path, seed=0)
    assert manifest.classes == ("caf\u00e9", "tea")
    assert np.bincount(manifest.labels).tolist() == [5, 2]


def test_classes_that_differ_only_in_case_are_kept_apart_with_a_warning(two_classes):
    photos(two_classes, "Soup", 3)
    manifest = load_manifest(two_classes, seed=0)
    assert manifest.classes == ("Soup", "bread", "soup")
    assert manifest.warnings == ("classes that differ only in case are kept apart: Soup, soup",)


def test_nested_folders_are_not_read_and_said_so(two_classes):
    photo(two_classes / "soup" / "more" / "x.png", seed=77)
    manifest = load_manifest(two_classes, seed=0)
    assert len(manifest.entries) == 10
    assert manifest.warnings == ("soup: 1 nested folder not read; move the photos up into soup",)


def test_a_class_of_folders_only_is_explained(two_classes):
    photo(two_classes / "hot" / "curry" / "x.png")
    with pytest.raises(DataError, match=r"class 'hot' has no files.*are its folders the classes"):
        load_manifest(two_classes, seed=0)


def test_an_error_is_one_line_without_codes_whatever_the_names(tmp_path):
    with pytest.raises(DataError, match="no such file or folder") as error:
        load_manifest(tmp_path / "line\nbreak \x1b[31m", seed=0)
    assert str(error.value).isprintable()


def test_an_empty_class_is_an_error(two_classes):
    (two_classes / "empty").mkdir()
    with pytest.raises(DataError, match="class 'empty' has no files"):
        load_manifest(two_classes, seed=0)


def test_a_class_without_a_readable_photo_is_an_error_that_names_one(two_classes):
    (two_classes / "bad").mkdir()
    (two_classes / "bad" / "x.jpg").write_bytes(b"<html>")
    with pytest.raises(
        DataError, match=r"class 'bad' has no readable photo \(bad/x.jpg: .*web page"
    ):
        load_manifest(two_classes, seed=0)


def test_one_class_is_an_error(tmp_path):
    photos(tmp_path, "soup", 3)
    with pytest.raises(DataError, match="only one class \\('soup'\\)"):
        load_manifest(tmp_path, seed=0)


def test_a_folder_of_photos_without_classes_is_an_error(tmp_path):
    photo(tmp_path / "a.png")
    with pytest.raises(DataError, match="no classes"):
        load_manifest(tmp_path, seed=0)


@pytest.mark.parametrize("kind", ["empty folder", "missing path", "text file", "FIFO"])
def test_what_is_no_dataset_is_one_clear_line(kind, tmp_path):
    path = tmp_path / "source"
    if kind == "empty folder":
        path.mkdir()
    elif kind == "text file":
        path.write_text("hello")
    elif kind == "FIFO":
        os.mkfifo(path)
    with pytest.raises(DataError) as error:
        load_manifest(path, seed=0)
    assert str(path) in str(error.value)
    assert "give a folder" in str(error.value)
    assert "\n" not in str(error.value)


def test_files_beside_the_class_folders_are_named(two_classes):
    (two_classes / "README.txt").write_text("hello")
    manifest = load_manifest(two_classes, seed=0)
    assert manifest.warnings == ("beside the class folders, in no class: README.txt",)


def test_a_linked_class_folder_is_followed_once(two_classes, tmp_path):
    photos(tmp_path / "elsewhere", "tea", 3)
    (two_classes / "tea").symlink_to(tmp_path / "elsewhere" / "tea")
    (two_classes / "tea2").symlink_to(tmp_path / "elsewhere" / "tea")
    manifest = load_manifest(two_classes, seed=0)
    assert len(manifest.classes) == 3
    assert np.bincount(manifest.labels).tolist() == [5, 5, 3]
    assert "a link to a folder that is already read" in manifest.warnings[0]


def test_links_that_loop_end(two_classes):
    (two_classes / "around").symlink_to(two_classes)
    (two_classes / "above").symlink_to(two_classes.parent)
    photo(two_classes.parent / "beside.png")
    (two_classes / "itself").symlink_to(two_classes / "itself")
    (two_classes / "soup" / "loop.png").symlink_to("loop.png")
    manifest = load_manifest(two_classes, seed=0)
    assert manifest.classes == ("bread", "soup")
    assert [bad.path for bad in manifest.quarantined] == ["soup/loop.png"]


def test_what_is_no_regular_file_is_quarantined_and_never_opened(two_classes):
    soup = two_classes / "soup"
    os.mkfifo(soup / "fifo.jpg")
    (soup / "broken.jpg").symlink_to("nowhere.jpg")
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(soup)  # the name of a socket is short
    try:
        listener.bind("socket.jpg")
    finally:
        os.chdir(here)
    (soup / "device.jpg").symlink_to("/dev/zero")
    manifest = load_manifest(two_classes, seed=0)
    listener.close()
    assert {bad.path: bad.reason for bad in manifest.quarantined} == {
        "soup/broken.jpg": "broken link",
        "soup/device.jpg": "not a regular file: a device",
        "soup/fifo.jpg": "not a regular file: a FIFO",
        "soup/socket.jpg": "not a regular file: a socket",
    }


def test_a_refusal_to_open_is_quarantined(two_classes, monkeypatch):
    real_open = os.open

    def refuse(path, *arguments, **options):
        if str(path).endswith("soup/000.png"):
            raise PermissionError(13, "Permission denied")
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    manifest = load_manifest(two_classes, seed=0)
    assert [(bad.path, bad.reason) for bad in manifest.quarantined] == [
        ("soup/000.png", "cannot be read: Permission denied")
    ]


def test_a_file_that_vanishes_during_the_scan_is_quarantined(two_classes):
    def remove_when_listed(stage, done, total):
        if stage == "reading photos" and done == 0:
            (two_classes / "soup" / "003.png").unlink(missing_ok=True)

    manifest = load_manifest(two_classes, seed=0, progress=remove_when_listed)
    assert [(bad.path, bad.reason) for bad in manifest.quarantined] == [
        ("soup/003.png", "no such file")
    ]


def test_strict_makes_a_quarantined_file_an_error(two_classes):
    (two_classes / "soup" / "bad.jpg").write_bytes(b"")
    assert len(load_manifest(two_classes, seed=0).quarantined) == 1
    with pytest.raises(DataError, match=r"soup/bad.jpg: empty file"):
        load_manifest(two_classes, seed=0, strict=True)


def test_a_very_deep_path_works(tmp_path):
    folder = tmp_path
    for _ in range(12):
        folder = folder / ("d" * 200)
    photos(folder, "a", 2)
    photos(folder, "b", 2)
    assert len(load_manifest(folder, seed=0).entries) == 4


def food101(root, train, test, photos_of=("apple/1", "apple/2", "bread/1", "bread/2")):
    for number, name in enumerate(photos_of):
        photo(root / "images" / f"{name}.jpg", seed=number)
    (root / "meta").mkdir()
    (root / "meta" / "classes.txt").write_text("apple\nbread\n")
    (root / "meta" / "train.txt").write_text("\n".join(train))
    (root / "meta" / "test.txt").write_text("\n".join(test) + "\n")


def test_a_food101_tree_keeps_its_official_split(tmp_path):
    food101(tmp_path / "food-101", ["apple/1", "bread/2"], ["apple/2", "bread/1"])
    manifest = load_manifest(tmp_path, seed=0)
    assert [(entry.class_name, entry.path.stem, entry.split) for entry in manifest.entries] == [
        ("apple", "1", "train"),
        ("apple", "2", "val"),
        ("bread", "1", "val"),
        ("bread", "2", "train"),
    ]


def test_a_food101_tree_names_what_its_lists_and_files_do_not_share(tmp_path):
    food101(tmp_path, ["apple/1", "bread/9"], ["apple/2", "bread/1"])
    manifest = load_manifest(tmp_path, seed=0)
    assert {bad.path: bad.reason for bad in manifest.quarantined} == {
        "bread/2.jpg": "in neither meta/train.txt nor meta/test.txt",
        "bread/9": "listed in meta/train.txt, but there is no such file",
    }


def test_a_photo_in_both_food101_lists_is_an_error(tmp_path):
    food101(tmp_path, ["apple/1", "bread/2"], ["apple/1", "bread/1"])
    with pytest.raises(DataError, match=r"apple/1 is in train.txt and in test.txt"):
        load_manifest(tmp_path, seed=0)


def test_a_class_list_cannot_lead_out_of_the_tree(tmp_path):
    food101(tmp_path, ["apple/1"], ["apple/2"])
    (tmp_path / "meta" / "classes.txt").write_text("apple\n../meta\n")
    with pytest.raises(DataError, match="is no name of a class folder"):
        load_manifest(tmp_path, seed=0)


def test_the_manifest_hash_does_not_depend_on_where_the_photos_lie(two_classes, tmp_path):
    before = load_manifest(two_classes, seed=3)
    two_classes.rename(tmp_path / "moved")
    after = load_manifest(tmp_path / "moved", seed=3)
    assert after.sha256 == before.sha256
    assert load_manifest(tmp_path / "moved", seed=4).sha256 != before.sha256


def test_importing_the_package_stays_light():
    import subprocess
    import sys

    heavy = "pandas scipy torch tensorflow paddle keras filelock zstandard platformdirs jinja2"
    code = f"import sys, datasets; print(sorted(set(sys.modules) & set({heavy.split()})))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=os.path.dirname(os.path.dirname(datasets.__file__)),
    )
    assert done.stdout.strip() == "[]"
