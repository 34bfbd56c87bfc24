"""The stream of batches: the same for everyone, one thread ahead, stopped when told."""

import threading

import numpy as np
import pytest

from datasets import DataError, SyntheticPixels, TrainBatches, epoch_order, val_batches
from datasets.batches import mirror_images, shift_images


class Numbered:
    """A source whose image i is filled with i, but for its left column, which is 255."""

    def __init__(self, train=10, val=5, size=8):
        self.classes = ("even", "odd")
        self.labels = np.arange(train + val) % 2
        self.train = np.arange(train)
        self.val = np.arange(train, train + val)
        self.image_size = size
        self.fail_at = None

    def images(self, indices):
        if self.fail_at is not None and self.fail_at in indices:
            raise OSError("the disk went away")
        images = np.empty((len(indices), self.image_size, self.image_size, 3), np.uint8)
        images[:] = np.asarray(indices, np.uint8)[:, None, None, None]
        images[:, :, 0] = 255
        return images


def take(batches, count):
    with batches:
        return [next(batches) for _ in range(count)]


def test_an_epoch_shows_every_image_at_most_once_and_drops_the_rest():
    batches = take(TrainBatches(Numbered(), batch_size=4, seed=0), 4)
    assert [batch.epoch for batch in batches] == [0, 0, 1, 1]
    first = np.concatenate([batch.ids for batch in batches[:2]])
    assert len(set(first)) == 8
    assert all(len(batch.ids) == 4 for batch in batches)


def test_images_labels_and_ids_belong_together():
    for batch in take(TrainBatches(Numbered(), batch_size=5, seed=3), 4):
        assert batch.images[:, 0, 1, 0].tolist() == batch.ids.tolist()
        assert batch.labels.tolist() == (batch.ids % 2).tolist()
        assert batch.labels.dtype == batch.ids.dtype == np.int64
        assert batch.images.dtype == np.uint8
        assert batch.images.flags.c_contiguous


def test_the_order_is_the_published_one_of_numpy():
    # numpy.random.default_rng([7, 2]).permutation is the whole contract.
    indices = np.array([5, 6, 7, 8, 9])
    expected = np.random.default_rng([7, 2]).permutation(5) + 5
    assert epoch_order(indices, seed=7, epoch=2).tolist() == expected.tolist()
    batches = take(TrainBatches(Numbered(train=6), batch_size=6, seed=7), 3)
    assert batches[2].ids.tolist() == np.random.default_rng([7, 2]).permutation(6).tolist()


@pytest.mark.parametrize("augment", ["none", "flip", "crop"])
def test_two_streams_with_one_seed_are_equal(augment):
    source = SyntheticPixels(image_size=16, classes=3, train_images=40, val_images=4, seed=0)
    streams = [take(TrainBatches(source, batch_size=8, seed=5, augment=augment), 12) for _ in "ab"]
    for one, other in zip(*streams, strict=True):
        assert np.array_equal(one.images, other.images)
        assert np.array_equal(one.ids, other.ids)


@pytest.mark.parametrize("augment", ["flip", "crop"])
def test_augmentation_does_not_depend_on_the_batch_size(augment):
    source = SyntheticPixels(image_size=16, classes=3, train_images=24, val_images=4, seed=0)
    small = take(TrainBatches(source, batch_size=4, seed=5, augment=augment), 6)
    large = take(TrainBatches(source, batch_size=12, seed=5, augment=augment), 2)
    assert np.array_equal(
        np.concatenate([batch.images for batch in small]),
        np.concatenate([batch.images for batch in large]),
    )


def test_flip_mirrors_about_half_of_the_images():
    source = Numbered(train=200)
    (batch,) = take(TrainBatches(source, batch_size=200, seed=1, augment="flip"), 1)
    mirrored = batch.images[:, 0, -1, 0] == 255
    assert 70 <= mirrored.sum() <= 130
    assert np.all(batch.images[~mirrored, :, 0] == 255)


def test_epochs_are_augmented_differently():
    source = Numbered(train=50)
    batches = take(TrainBatches(source, batch_size=50, seed=1, augment="flip"), 2)
    flipped = [(batch.images[:, 0, -1, 0] == 255).tolist() for batch in batches]
    assert flipped[0] != flipped[1]


def test_mirroring_reverses_columns_of_the_chosen_images():
    images = np.arange(2 * 1 * 3 * 3, dtype=np.uint8).reshape(2, 1, 3, 3)
    mirror_images(images, np.array([False, True]))
    assert images[0, 0].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert images[1, 0].tolist() == [[15, 16, 17], [12, 13, 14], [9, 10, 11]]


def test_shifting_moves_down_and_right_and_leaves_black():
    images = np.full((2, 3, 3, 3), 9, np.uint8)
    moved = shift_images(images, np.array([[1, 0], [0, -2]]))
    assert moved[0, :, :, 0].tolist() == [[0, 0, 0], [9, 9, 9], [9, 9, 9]]
    assert moved[1, :, :, 0].tolist() == [[9, 0, 0]] * 3


def test_crop_shifts_by_at_most_an_eighth():
    source = Numbered(train=100, size=16)
    source.images = lambda indices: np.full((len(indices), 16, 16, 3), 255, np.uint8)
    (batch,) = take(TrainBatches(source, batch_size=100, seed=1, augment="crop"), 1)
    black_rows = (batch.images == 0).all(axis=(2, 3)).sum(axis=1)
    assert black_rows.max() == 2
    assert black_rows.min() == 0


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_that_cannot_be_filled_is_an_error(batch_size):
    with pytest.raises(DataError, match=r"10 training images cannot fill.*from 1 to 10"):
        TrainBatches(Numbered(), batch_size=batch_size, seed=0)


def test_an_unknown_augmentation_is_an_error():
    with pytest.raises(DataError, match="'mixup' is none of none, flip, crop"):
        TrainBatches(Numbered(), batch_size=2, seed=0, augment="mixup")  # type: ignore[arg-type]


def test_what_the_thread_runs_into_is_raised_in_the_consumer_each_time():
    source = Numbered(train=4)
    source.fail_at = 2
    with TrainBatches(source, batch_size=4, seed=0) as batches:
        for _ in range(2):
            with pytest.raises(OSError, match="the disk went away"):
                next(batches)


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_closing_stops_the_thread(taken):
    batches = TrainBatches(Numbered(), batch_size=4, seed=0)
    for _ in range(taken):
        next(batches)
    batches.close()
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
    assert list(batches) == []


def test_closing_while_the_source_is_slow_waits_for_it():
    source, entered, go_on = Numbered(), threading.Event(), threading.Event()
    real = source.images

    def slow(indices):
        entered.set()
        go_on.wait()
        return real(indices)

    source.images = slow
    batches = TrainBatches(source, batch_size=4, seed=0)
    entered.wait()
    threading.Timer(0.05, go_on.set).start()
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_the_thread_stays_within_its_prefetch():
    source, calls = Numbered(train=100), []
    real = source.images
    source.images = lambda indices: (calls.append(1), real(indices))[1]
    with TrainBatches(source, batch_size=2, seed=0, prefetch=3) as batches:
        next(batches)
        for _ in range(200):
            if len(calls) > 6:
                break
            threading.Event().wait(0.001)
        # One taken, three waiting, one in hand.
        assert len(calls) <= 5


def test_steps_per_epoch_counts_full_batches():
    with TrainBatches(Numbered(), batch_size=3, seed=0) as batches:
        assert batches.steps_per_epoch == 3


def test_validation_shows_every_image_once_in_order():
    batches = list(val_batches(Numbered(), 2))
    assert [len(batch.ids) for batch in batches] == [2, 2, 1]
    assert np.concatenate([batch.ids for batch in batches]).tolist() == [10, 11, 12, 13, 14]
    assert {batch.epoch for batch in batches} == {-1}
