"""Which photos train and which validate."""

import numpy as np
import numpy.typing as npt

from datasets.errors import DataError
from datasets.sources import TRAIN, VAL


def stratified_split(
    labels: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
    *,
    seed: int,
    val_fraction: float,
) -> npt.NDArray[np.int8]:
    """Split each class by seed, keeping the photos of a duplicate group together.

    Each class of n photos gives ``round(n * val_fraction)`` of them to validation, at least one
    and at most all but one where its groups allow; one photo trains. A group whose photos carry
    different labels trains.

    Args:
        labels: int64 (N,).
        groups: int64 (N,), equal for duplicates.
        seed: of the permutation within each class.
        val_fraction: above 0 and below 1.

    Returns:
        int8 (N,) of TRAIN and VAL.

    Raises:
        DataError: ``val_fraction`` out of range.
    """
    if not 0.0 < val_fraction < 1.0:
        raise DataError(f"validation fraction {val_fraction} must lie between 0 and 1")
    split = np.full(len(labels), TRAIN, np.int8)
    totals = np.bincount(labels)
    for label, members_of in _groups_by_class(labels, groups):
        total = int(totals[label])
        wanted = min(max(int(total * val_fraction + 0.5), 1), total - 1)
        for index in np.random.default_rng([seed, label]).permutation(len(members_of)):
            members = members_of[index]
            if len(members) <= wanted and np.all(labels[members] == label):
                split[members] = VAL
                wanted -= len(members)
    return split


def k_fold_split(
    labels: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
    *,
    seed: int,
    fold: tuple[int, int],
) -> npt.NDArray[np.int8]:
    """Validate on fold ``number`` of ``count``, from 1; each photo validates in exactly one fold.

    Each class is dealt to the folds by seed, group by group, always to the fold that has fewest
    of it. A group whose photos carry different labels is dealt by the first of them.

    Raises:
        DataError: fewer than two folds, or no such fold.
    """
    number, count = fold
    if not (count >= 2 and 1 <= number <= count):
        raise DataError(f"fold {number}/{count}: give K/N with N of 2 or more and K from 1 to N")
    split = np.full(len(labels), TRAIN, np.int8)
    loads = np.zeros((int(labels.max(initial=0)) + 1, count), np.int64)
    for label, members_of in _groups_by_class(labels, groups):
        rng = np.random.default_rng([seed, label])
        # Ties go to a fold by seed, else small classes would all fall into the first folds.
        preference = rng.permutation(count)
        for index in rng.permutation(len(members_of)):
            members = members_of[index]
            chosen = preference[np.argmin(loads[label, preference])]
            loads[label, chosen] += len(members)
            if chosen == number - 1:
                split[members] = VAL
    return split


def _groups_by_class(
    labels: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
) -> list[tuple[int, list[npt.NDArray[np.int64]]]]:
    """For each class the members of each group whose first photo it has, in order."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    by_class: dict[int, list[npt.NDArray[np.int64]]] = {}
    for members in np.split(order, starts[1:]):
        if len(members):
            by_class.setdefault(int(labels[members[0]]), []).append(members)
    return sorted(by_class.items())


def leaked(split: npt.NDArray[np.int8], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the indices of validation photos that have a duplicate among the training photos."""
    trained = np.unique(groups[split == TRAIN])
    return np.flatnonzero((split == VAL) & np.isin(groups, trained))
