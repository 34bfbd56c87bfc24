"""Runs, pixels and a clock for tests of the loop and its workers; none needs a framework."""

from typing import Any

import numpy as np
import numpy.typing as npt

from harness.config import RunConfig
from harness.inputs import InputSpec, PreparedInput
from harness.records import DataPart


def fake_run(**changes: Any) -> RunConfig:
    """A run of the fake backend: six steps of four images of 16 px."""
    values = {"backend": "fake", "steps": 6, "batch_size": 4, "image_size": 16, "model": "lenet"}
    if "epochs" in changes:
        del values["steps"]
    return RunConfig.model_validate(values | {"warmup_steps": 1, "timeout_s": 60} | changes)


def synthetic_input(**changes: Any) -> PreparedInput:
    """What `harness.inputs.prepare_input` returns for synthetic input."""
    values: dict[str, Any] = {
        "name": "synthetic noise",
        "manifest_sha256": None,
        "classes": [f"class_{label}" for label in range(5)],
        "train_images": 80,
        "val_images": 0,
    }
    return PreparedInput(
        spec=InputSpec(input="synthetic", path=None), data=DataPart(**values | changes)
    )


class KnownPixels:
    """Image i is filled with the value i and carries the label i mod classes."""

    def __init__(self, *, train: int = 12, val: int = 0, classes: int = 3, image_size: int = 16):
        self.classes = tuple("abcdefgh"[:classes])
        self.labels = np.arange(train + val, dtype=np.int64) % classes
        self.train = np.arange(train, dtype=np.int64)
        self.val = np.arange(train, train + val, dtype=np.int64)
        self.image_size = image_size

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """See `datasets.PixelSource`."""
        shape = (len(indices), self.image_size, self.image_size, 3)
        return np.broadcast_to(indices[:, None, None, None], shape).astype(np.uint8)


class VirtualTime:
    """Stands in for the module `time`: time passes only in `sleep`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def perf_counter(self) -> float:
        """Seconds."""
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""
        self.now_s += duration_s
