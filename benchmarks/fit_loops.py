"""ResNet-18 training by the loops that others publish: Keras, Paddle, and the timm package.

Same signature as the functions of ``bare_loops``.
"""

from typing import Any

import numpy as np

from benchmarks.bare_loops import MEAN, STD, Loop, keras_resnet18


def keras_fit(
    images: np.ndarray, labels: np.ndarray, classes: int, device: str, *, amp: bool
) -> Loop:
    """Keras ``model.fit`` over a ``tf.data`` pipeline."""
    import keras
    import tensorflow as tf

    model, optimizer = keras_resnet18(images.shape[1], classes, amp=amp)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def normalised(x: Any, y: Any) -> tuple[Any, Any]:
        return (tf.cast(x, tf.float32) / 255 - MEAN) / STD, y

    batch = tf.data.Dataset.from_tensors((images, labels))

    def train(steps: int) -> None:
        feed = batch.repeat(steps).map(normalised).prefetch(tf.data.AUTOTUNE)
        model.fit(feed, epochs=1, verbose=0)

    return train


def paddle_fit(
    images: np.ndarray, labels: np.ndarray, classes: int, device: str, *, amp: bool
) -> Loop:
    """``paddle.Model.fit`` over its own loader."""
    import paddle

    model = paddle.Model(paddle.vision.models.resnet18(num_classes=classes))
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    model.prepare(
        optimizer, paddle.nn.CrossEntropyLoss(), amp_configs={"level": "O1"} if amp else None
    )
    normalised = ((images.astype(np.float32) / 255 - MEAN) / STD).transpose(0, 3, 1, 2).copy()

    class Repeated(paddle.io.IterableDataset):
        def __init__(self, steps: int) -> None:
            self.steps = steps

        def __iter__(self) -> Any:
            for _ in range(self.steps):
                yield normalised, labels

    def train(steps: int) -> None:
        feed = paddle.io.DataLoader(Repeated(steps), batch_size=None)
        model.fit(feed, epochs=1, verbose=0)

    return train


def timm_benchmark(
    images: np.ndarray, labels: np.ndarray, classes: int, device: str, *, amp: bool
) -> Loop:
    """The step that timm's ``benchmark.py --bench train`` times, with Adam.

    One batch of noise stays on the device, the labels are drawn anew at each step. As published,
    its AMP is ``autocast`` without a loss scaler.
    """
    import timm
    import torch
    from timm.optim import create_optimizer_v2

    model = timm.create_model("resnet18", num_classes=classes).to(device)
    optimizer = create_optimizer_v2(model, opt="adam", lr=1e-3)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    batch = torch.randn(len(images), 3, *images.shape[1:3], device=device)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16, enabled=amp):
                logits = model(batch)
                target = torch.empty(len(labels), device=device, dtype=torch.long)
                loss = criterion(logits, target.random_(classes))
            loss.backward()
            optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize(device)

    return train


FIT_LOOPS = {"tensorflow": keras_fit, "paddle": paddle_fit}
TIMM_LOOPS = {"torch": timm_benchmark}
