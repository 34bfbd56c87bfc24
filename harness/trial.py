"""What a parity check has each framework compute, in its own process, into one ``.npz`` file.

The keys of the file are ``<quantity>/<name>``, such as ``gradients/conv1.weight``; all arrays are
float64 in canonical shapes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from harness.config import RunConfig
from harness.networks import Network, build_network, layer_inputs
from harness.protocol import CHANNEL_MEAN, CHANNEL_STD, Backend
from harness.weights import initial_weights

CLASSES = 5
CHECKPOINTS = (1, 3, 10)
"""Optimizer steps after which the weights are compared."""
LEARNING_RATE_DROP_STEP = 5
"""From this step on (from 0) the learning rate is a tenth: velocities that contain it show."""

Arrays = dict[str, np.ndarray]


class TrialTask(BaseModel):
    """Which quantities to compute, and where they go."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    out: Path
    probe: bool = False
    """One forward and backward pass: loss, logits, outputs, gradients, running statistics."""
    train: bool = False
    """Weights and running statistics after 1, 3 and 10 optimizer steps."""
    layers: Path | None = None
    """A file of :func:`layer_questions`; each leaf is run alone on what it says."""


def trial_batch(run: RunConfig, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Batch ``index`` of a parity check: smooth random pictures, uint8 (N, H, W, 3), and labels.

    Blocks of colour with noise on them: pure noise would leave nothing after the first layers'
    averaging, and the gradients would be small everywhere.
    """
    rng = np.random.default_rng([run.seed, index])
    size, count = run.image_size, run.batch_size
    blocks = rng.integers(0, 256, (count, 4, 4, 3))
    scale = -(-size // 4)
    pictures = blocks.repeat(scale, axis=1).repeat(scale, axis=2)[:, :size, :size]
    noisy = pictures + rng.integers(-20, 21, pictures.shape)
    labels = rng.integers(0, CLASSES, count, np.int64)
    return np.clip(noisy, 0, 255).astype(np.uint8), labels


def perform(backend: Backend, run: RunConfig, task: TrialTask) -> None:
    """Compute what ``task`` names with ``backend`` and write its file."""
    network = trial_network(run)
    backend.open(run)
    backend.build(network, initial_weights(network, seed=run.seed))
    arrays: Arrays = {}
    if task.probe:
        arrays |= _probe(backend, run)
    if task.layers is not None:
        arrays |= _answer_layers(backend, task.layers)
    if task.train:
        arrays |= _train(backend, run)
    save_arrays(task.out, arrays)
    backend.close()


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write ``arrays`` by name into an uncompressed ``.npz`` file."""
    # The stub takes any keyword for its own allow_pickle.
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]


def trial_network(run: RunConfig) -> Network:
    """The network of a parity check."""
    return build_network(run.model, classes=CLASSES, image_size=run.image_size)


def layer_questions(run: RunConfig, reference: Arrays, dtype: str) -> Arrays:
    """For each leaf, the input and output gradient on which every framework runs it alone.

    Both come from ``reference`` (a float64 probe), rounded to ``dtype`` so that the question is
    the same for a low precision as for the reference that answers it; the gradient is scaled by
    a power of two to about 1, where float16 has its full precision.
    """
    network = trial_network(run)
    images, _ = trial_batch(run, 0)
    pixels = ((images / 255 - CHANNEL_MEAN) / CHANNEL_STD).transpose(0, 3, 1, 2)
    questions: Arrays = {}
    for leaf, source in layer_inputs(network).items():
        x = reference[f"outputs/{source}"] if source else pixels
        gradient = reference[f"output_gradients/{leaf}"]
        largest = np.abs(gradient).max()
        exponent = -np.floor(np.log2(largest)) if largest > 0 else 0
        questions[f"x/{leaf}"] = round_to(x, dtype)
        questions[f"output_gradient/{leaf}"] = round_to(gradient * 2.0**exponent, dtype)
    return questions


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """``values`` rounded to the nearest value of ``dtype``, as float64."""
    if dtype == "bfloat16":
        # Round to nearest, ties to even, on the upper half of the float32 pattern.
        bits = values.astype(np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return rounded.view(np.float32).astype(np.float64)
    return values.astype(dtype).astype(np.float64)


def _probe(backend: Backend, run: RunConfig) -> Arrays:
    probe = backend.probe(backend.put(*trial_batch(run, 0)))
    return {
        "loss/loss": np.array(probe.loss),
        "logits/logits": probe.logits.astype(np.float64),
        **_prefixed("outputs", probe.outputs),
        **_prefixed("output_gradients", probe.output_gradients),
        **_prefixed("gradients", probe.parameter_gradients),
        **_prefixed("statistics", probe.running_statistics),
    }


def _train(backend: Backend, run: RunConfig) -> Arrays:
    arrays: Arrays = {}
    for step in range(max(CHECKPOINTS)):
        dropped = step >= LEARNING_RATE_DROP_STEP
        backend.set_learning_rate(run.lr / 10 if dropped else run.lr)
        backend.train_step(backend.put(*trial_batch(run, step)))
        if step + 1 in CHECKPOINTS:
            tensors = backend.state().tensors
            arrays |= _prefixed(f"weights after {step + 1}", tensors)
    arrays["losses/losses"] = np.array([result.loss for result in backend.take_steps()])
    return arrays


def _answer_layers(backend: Backend, path: Path) -> Arrays:
    answers: Arrays = {}
    with np.load(path, allow_pickle=False) as questions:
        leaves = [name.partition("/")[2] for name in questions.files if name.startswith("x/")]
        for leaf in leaves:
            answer = backend.probe_layer(
                leaf, questions[f"x/{leaf}"], questions[f"output_gradient/{leaf}"]
            )
            answers[f"layer output/{leaf}"] = answer.output.astype(np.float64)
            answers[f"layer input gradient/{leaf}"] = answer.input_gradient.astype(np.float64)
            answers |= _prefixed("layer weight gradient", answer.parameter_gradients)
    return answers


def _prefixed(quantity: str, arrays: Arrays) -> Arrays:
    return {f"{quantity}/{name}": array.astype(np.float64) for name, array in arrays.items()}
