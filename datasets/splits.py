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
    for label, members_of in _groups_by_class(labels, groups):
        total = sum(len(members) for members in members_of)
        wanted = int(np.clip(int(total * val_fraction + 0.5), 1, max(total - 1, 0)))
        for index in np.random.default_rng([seed, label]).permutation(len(members_of)):
            members = members_of[index]
            if len(members) <= wanted:
                split[members] = VAL
                wanted -= len(members)
    return split


def _groups_by_class(
    labels: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]
) -> list[tuple[int, list[npt.NDArray[np.int64]]]]:
    """For each class the members of each group that lies within it, in order."""
    order = np.lexsort((np.arange(len(labels)), groups))
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    by_class: dict[int, list[npt.NDArray[np.int64]]] = {int(label): [] for label in labels}
    for members in np.split(order, starts[1:]):
        label = labels[members[0]] if len(members) else 0
        if len(members) and np.all(labels[members] == label):
            by_class[int(label)].append(members)
    return sorted(by_class.items())


def leaked(split: npt.NDArray[np.int8], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the indices of validation photos that have a duplicate among the training photos."""
    trained = np.unique(groups[split == TRAIN])
    return np.flatnonzero((split == VAL) & np.isin(groups, trained))
