"""The embedded sample: drawn by seed, the same everywhere, worth learning from."""

import functools
import hashlib

import numpy as np
import pytest
from PIL import Image

from datasets import CachedPixels, DataError, build_cache, load_manifest, write_sample
from datasets import sample as sample_module


@pytest.fixture(scope="module")
def sample():
    return load_manifest("sample", seed=0)


def test_the_sample_has_five_classes_of_sixty_real_jpeg_files(sample):
    assert sample.classes == ("burger", "donut", "fried_egg", "pizza", "sushi")
    assert np.bincount(sample.labels).tolist() == [60] * 5
    assert np.bincount(sample.labels[sample.val]).tolist() == [12] * 5
    assert sample.name == "sample"
    assert sample.quarantined == ()
    with Image.open(sample.entries[0].path) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (96, 96))


def test_drawing_again_gives_the_same_bytes_and_another_seed_others(tmp_path):
    folders = [
        write_sample(tmp_path / name, images_per_class=2, seed=seed)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    digests = [
        [hashlib.sha256(path.read_bytes()).digest() for path in sorted(folder.rglob("*.jpg"))]
        for folder in folders
    ]
    assert digests[0] == digests[1]
    assert not set(digests[0]) & set(digests[2])


def test_a_folder_that_holds_something_is_not_written_into(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(DataError, match="not empty; give a new folder"):
        write_sample(tmp_path)


def test_a_damaged_sample_is_drawn_again(tmp_path, monkeypatch):
    few = functools.partial(write_sample, images_per_class=3)
    monkeypatch.setattr(sample_module, "write_sample", few)
    first = load_manifest("sample", seed=0, cache_dir=tmp_path)
    first.entries[7].path.write_bytes(b"oops")
    again = load_manifest("sample", seed=0, cache_dir=tmp_path)
    assert again.sha256 == first.sha256
    assert again.quarantined == ()


def test_mean_colour_alone_does_not_tell_the_dishes_apart(sample):
    pixels = CachedPixels(build_cache(sample, image_size=32))
    colours = pixels.images(np.arange(300)).reshape(300, -1, 3).mean(axis=1)
    means = np.stack(
        [colours[pixels.train][pixels.labels[pixels.train] == c].mean(axis=0) for c in range(5)]
    )
    nearest = np.linalg.norm(colours[pixels.val][:, None] - means, axis=2).argmin(axis=1)
    # Chance is 20 %; a class that its colour gives away would make the sample trivial.
    assert (nearest == pixels.labels[pixels.val]).mean() < 0.6


def test_a_linear_classifier_learns_some_of_it(sample):
    pixels = CachedPixels(build_cache(sample, image_size=32))
    features = (
        pixels.images(np.arange(300)).reshape(300, 8, 4, 8, 4, 3).mean(axis=(2, 4)).reshape(300, -1)
    )
    features = np.c_[features / 255 - 0.5, np.ones(300)]
    train, targets = features[pixels.train], np.eye(5)[pixels.labels[pixels.train]]
    weights = np.linalg.solve(train.T @ train + 3.0 * np.eye(train.shape[1]), train.T @ targets)
    top1 = ((features[pixels.val] @ weights).argmax(axis=1) == pixels.labels[pixels.val]).mean()
    assert 0.25 < top1 < 0.9
