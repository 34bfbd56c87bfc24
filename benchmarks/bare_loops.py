"""ResNet-18 training as one would write it by hand in each framework: what the harness must keep
pace with. No harness code; Adam, the same batch shape and thread count.

Each function takes uint8 images (N, H, W, 3), int64 labels (N,) and a class count, and returns a
function that trains a number of steps and waits for the device; ``amp`` as its framework's guide
has it, in float16.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Loop = Callable[[int], None]

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def torch_loop(
    images: np.ndarray, labels: np.ndarray, classes: int, device: str, *, amp: bool
) -> Loop:
    """Plain eager PyTorch."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.relu = nn.ReLU(inplace=True)
            self.downsample = None
            if stride != 1 or inputs != width:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
                )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(out + (x if self.downsample is None else self.downsample(x)))

    blocks, inputs = [], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(inputs, width, stride), Block(width, width, 1)]
        inputs = width
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=amp)
    criterion = nn.CrossEntropyLoss()
    mean = torch.tensor(MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(STD, device=device).view(3, 1, 1)

    def train(steps: int) -> None:
        losses = []
        for _ in range(steps):
            x = torch.from_numpy(images.copy()).to(device).permute(0, 3, 1, 2).float()
            y = torch.from_numpy(labels).to(device)
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16, enabled=amp):
                loss = criterion(model((x.contiguous() / 255 - mean) / std), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        torch.stack(losses).tolist()

    return train


def keras_resnet18(size: int, classes: int, *, amp: bool) -> tuple[Any, Any]:
    """A functional model on normalised float images and its Adam, under Keras' global policy."""
    import keras
    from keras import layers

    keras.config.set_dtype_policy("mixed_float16" if amp else "float32")

    def conv(x: Any, width: int, kernel: int, stride: int) -> Any:
        x = layers.Conv2D(width, kernel, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((size, size, 3))
    x = layers.ReLU()(conv(inputs, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for width, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            out = layers.ReLU()(conv(x, width, 3, stride))
            out = conv(out, width, 3, 1)
            if stride != 1 or x.shape[-1] != width:
                x = conv(x, width, 1, stride)
            x = layers.ReLU()(layers.add([out, x]))
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(classes, dtype="float32")(x))
    adam = keras.optimizers.Adam(1e-3)
    return model, keras.optimizers.LossScaleOptimizer(adam) if amp else adam


def tensorflow_loop(
    images: np.ndarray, labels: np.ndarray, classes: int, device: str, *, amp: bool
) -> Loop:
    """A Keras functional model in a ``tf.function`` step."""
    import keras
    import tensorflow as tf

    model, optimizer = keras_resnet18(images.shape[1], classes, amp=amp)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = criterion(y, model((tf.cast(x, tf.float32) / 255 - MEAN) / STD, training=True))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def train(steps: int) -> None:
        losses = [step(tf.constant(images), tf.constant(labels)) for _ in range(steps)]
        tf.stack(losses).numpy()

    return train


def paddle_loop(
    images: np.ndarray, labels: np.ndarray, classes: int, device: str, *, amp: bool
) -> Loop:
    """Paddle's own ResNet-18 in dynamic mode."""
    import paddle

    model = paddle.vision.models.resnet18(num_classes=classes)
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    scaler = paddle.amp.GradScaler(enable=amp)
    mean = paddle.to_tensor(MEAN).reshape([3, 1, 1])
    std = paddle.to_tensor(STD).reshape([3, 1, 1])

    def train(steps: int) -> None:
        losses = []
        for _ in range(steps):
            x = paddle.to_tensor(images).transpose([0, 3, 1, 2]).astype("float32")
            with paddle.amp.auto_cast(amp, level="O1"):
                logits = model((x / 255 - mean) / std)
                loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(labels))
            if amp:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            optimizer.clear_grad()
            losses.append(loss.detach())
        paddle.stack(losses).numpy()

    return train


LOOPS = {"torch": torch_loop, "tensorflow": tensorflow_loop, "paddle": paddle_loop}
