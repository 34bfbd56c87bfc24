"""A small network in any adapter, and what the tests of all profiles look at."""

import gzip
import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from harness.config import RunConfig
from harness.networks import build_network
from harness.protocol import Backend, TrainState
from harness.weights import initial_weights

SIZE, CLASSES, BATCH = 32, 3, 4

B = TypeVar("B", bound=Backend)


def built(backend: B, **changes: Any) -> B:
    """`backend` with its network, LeNet of three classes unless changed, ready to train."""
    values = {"backend": backend.name, "model": "lenet", "steps": 9, "image_size": SIZE}
    values |= {"batch_size": BATCH, "device": "cpu", "compile": "off"}
    run = RunConfig.model_validate(values | changes)
    network = build_network(run.model, classes=CLASSES, image_size=SIZE)
    backend.open(run)
    backend.build(network, initial_weights(network, seed=0))
    return backend


def batch_of(backend: Backend, seed: int) -> Any:
    """Noise and random labels on the device."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8)
    return backend.put(images, random.integers(0, CLASSES, BATCH, np.int64))


def assert_same_tensors(before: TrainState, after: TrainState) -> None:
    """Parameters, running statistics and optimizer slots are equal bit by bit."""
    for name, values in before.tensors.items():
        np.testing.assert_array_equal(values, after.tensors[name], err_msg=name)
    for slot, tensors in before.slots.items():
        for name, values in tensors.items():
            np.testing.assert_array_equal(values, after.slots[slot][name], err_msg=name)


def trace_events(trace: Path) -> list[dict[str, Any]]:
    """The events of a trace file, plain or compressed as its name says."""
    written = trace.read_bytes()
    return json.loads(gzip.decompress(written) if trace.suffix == ".gz" else written)["traceEvents"]
