"""ResNet-18 training by the frameworks' own high-level loops.

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


FIT_LOOPS = {"tensorflow": keras_fit, "paddle": paddle_fit}
