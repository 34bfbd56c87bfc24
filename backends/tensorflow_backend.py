"""TensorFlow/Keras: the ``mixed_float16`` policy with a ``LossScaleOptimizer``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.tensorflow_evidence import layer_evidence
from backends.tensorflow_network import (
    build_model,
    canonical_tensor,
    native_tensor,
    unbiased_batch_norm,
)
from backends.tensorflow_optimizers import build_optimizer
from harness.config import RunConfig
from harness.networks import Network, trainable_shapes
from harness.protocol import (
    CHANNEL_MEAN,
    CHANNEL_STD,
    Capabilities,
    Capability,
    DeviceMemory,
    DeviceType,
    Evidence,
    InForce,
    StepResult,
    TrainState,
    Unsupported,
    effective_dtype,
)
from harness.weights import Weights

if TYPE_CHECKING:
    import tensorflow as tf

_Batch = Future[tuple["tf.Tensor", "tf.Tensor"]]


class TensorFlowBackend:
    """A Keras functional model in a custom compiled step, on the CPU or one CUDA device."""

    name = "tensorflow"

    def __init__(self) -> None:
        import keras
        import tensorflow as tf

        if keras.backend.backend() != "tensorflow":
            raise Unsupported(
                f"Keras runs on {keras.backend.backend()}; unset KERAS_BACKEND or set it to tensorflow"
            )
        self._tf, self._keras = tf, keras

    def capabilities(self) -> Capabilities:
        """Run a convolution and its gradients in each dtype on each device."""
        gpus = self._tf.config.list_physical_devices("GPU")
        self._grow_memory()
        devices: list[DeviceType] = ["cpu", "cuda"] if gpus else ["cpu"]
        dtypes = ("float32", "float16", "bfloat16", "float64")
        return {
            device: {dtype: self._try(self._place(device), dtype) for dtype in dtypes}
            for device in devices
        }

    def open(self, run: RunConfig) -> InForce:
        """See :meth:`harness.protocol.Backend.open`."""
        tf, keras = self._tf, self._keras
        self._run = run
        gpu = self._choose_gpu(run.device)
        self._place_name = self._place("cuda" if gpu else "cpu")
        self._on_gpu = gpu is not None
        threads = run.threads or _usable_cpus()
        self._configure(gpu, threads)
        if run.deterministic:
            tf.config.experimental.enable_op_determinism()
        tf.config.experimental.enable_tensor_float_32_execution(run.tf32)
        self._float = "float64" if run.precision == "float64" else "float32"
        keras.config.set_floatx(self._float)
        keras.config.set_dtype_policy(
            f"mixed_{run.amp_dtype}" if run.precision == "amp" else self._float
        )
        # Keras decides by device and determinism; any model made of its own layers tells.
        by_default = keras.Sequential([keras.layers.Dense(1)]).jit_compile
        self._jit = {"default": by_default, "off": False, "on": True}[run.compile]
        dtype = run.amp_dtype if run.precision == "amp" else self._float
        capability = self._try(self._place_name, dtype)
        if not capability.available:
            raise Unsupported(f"TensorFlow cannot run {dtype} here: {capability.reason}")
        self._channels_first = run.layout == "nchw"
        if self._channels_first:
            capability = self._try(self._place_name, dtype, channels_first=True)
            if not capability.available:
                raise Unsupported(
                    "TensorFlow cannot train in NCHW on this device; use --layout nhwc: "
                    f"{capability.reason}"
                )
        self._copier = ThreadPoolExecutor(1, "copy to device") if gpu else None
        if gpu:
            tf.config.experimental.reset_memory_stats("GPU:0")
        details = tf.config.experimental.get_device_details(gpu) if gpu else {}
        return InForce(
            framework_version=f"{tf.__version__} (Keras {keras.__version__})",
            device_type="cuda" if gpu else "cpu",
            device_name=details.get("device_name", "CUDA device") if gpu else "CPU",
            device_uuid=None,
            layout="nchw" if self._channels_first else "nhwc",
            compile="xla" if self._jit else "graph",
            threads=tf.config.threading.get_intra_op_parallelism_threads(),
            tf32=tf.config.experimental.tensor_float_32_execution_enabled() if gpu else None,
            loss_scale_policy=str(run.loss_scale) if run.scales_loss else None,
        )

    def build(self, network: Network, weights: Weights) -> None:
        """See :meth:`harness.protocol.Backend.build`."""
        tf, keras, run = self._tf, self._keras, self._run
        self._network = network
        with tf.device(self._place_name):
            self._built = build_model(
                keras,
                network,
                channels_first=self._channels_first,
                head_dtype=self._float,
                batch_norm=unbiased_batch_norm(keras),
            )
            self._parameters = [self._built.variables[name] for name in trainable_shapes(network)]
            self._optimizer = build_optimizer(tf, keras, run)
            self._optimizer.build(self._parameters)
        self._inner = self._optimizer.inner_optimizer if run.scales_loss else self._optimizer
        self._load(weights)
        self._step = tf.function(self._train, jit_compile=self._jit, autograph=False)
        self._infer = tf.function(self._float_logits, autograph=False)
        self._results: list[tf.Tensor] = []

    def put(self, images: np.ndarray, labels: np.ndarray) -> _Batch:
        """See :meth:`harness.protocol.Backend.put`."""
        if self._copier is not None:
            # TensorFlow's copy to a GPU waits for the steps before it; a thread does the waiting.
            return self._copier.submit(self._copy, images, labels)
        batch: _Batch = Future()
        batch.set_result(self._copy(images, labels))
        return batch

    def train_step(self, batch: _Batch) -> None:
        """See :meth:`harness.protocol.Backend.train_step`."""
        self._results.append(self._step(*batch.result()))

    def take_steps(self) -> list[StepResult]:
        """See :meth:`harness.protocol.Backend.take_steps`."""
        if not self._results:
            return []
        rows = self._tf.stack(self._results).numpy().tolist()
        self._results.clear()
        scaled = self._run.scales_loss
        return [
            StepResult(loss, scale if scaled else None, bool(skipped))
            for loss, scale, skipped in rows
        ]

    def evaluate(self, batch: _Batch) -> np.ndarray:
        """See :meth:`harness.protocol.Backend.evaluate`."""
        images, _ = batch.result()
        return self._infer(images).numpy()

    def set_learning_rate(self, learning_rate: float) -> None:
        """See :meth:`harness.protocol.Backend.set_learning_rate`."""
        self._inner.learning_rate = learning_rate

    def synchronize(self) -> None:
        """See :meth:`harness.protocol.Backend.synchronize`."""
        self._tf.test.experimental.sync_devices()

    def memory(self) -> DeviceMemory:
        """Peak of the GPU's allocator, which does not tell what it reserved; unknown on the CPU."""
        if not self._on_gpu:
            return DeviceMemory()
        info = self._tf.config.experimental.get_memory_info("GPU:0")
        return DeviceMemory(allocated_peak_bytes=info["peak"])

    def state(self) -> TrainState:
        """See :meth:`harness.protocol.Backend.state`."""
        names = trainable_shapes(self._network)
        scaler = self._optimizer if self._run.scales_loss else None
        return TrainState(
            tensors={name: self._to_numpy(v) for name, v in self._built.variables.items()},
            slots={
                slot: dict(zip(names, map(self._to_numpy, variables), strict=True))
                for slot, variables in self._inner.slots().items()
            },
            optimizer_steps=int(self._inner.iterations.numpy()),
            loss_scale=float(scaler.dynamic_scale.numpy()) if scaler else None,
            clean_steps=int(scaler.step_counter.numpy()) if scaler else None,
        )

    def load_state(self, state: TrainState) -> None:
        """See :meth:`harness.protocol.Backend.load_state`."""
        self._load(state.tensors)
        for slot, variables in self._inner.slots().items():
            values = state.slots.get(slot, {})
            for name, variable in zip(trainable_shapes(self._network), variables, strict=True):
                # A framework that has taken no step yet has no slots; Keras' start at zero.
                given = values.get(name)
                variable.assign(np.zeros(variable.shape) if given is None else native_tensor(given))
        self._inner.iterations.assign(state.optimizer_steps)
        if self._run.scales_loss and state.loss_scale is not None:
            self._optimizer.dynamic_scale.assign(state.loss_scale)
            self._optimizer.step_counter.assign(state.clean_steps or 0)

    def evidence(self, batch: _Batch) -> Evidence:
        """Read the traced graph of the function that is timed; runs nothing."""
        graph = self._step.get_concrete_function(*batch.result()).graph
        layers = layer_evidence(graph, set(self._built.layers))
        return Evidence(
            source="operations of the traced graph of the training step"
            + (", which XLA compiles" if self._jit else ""),
            effective=effective_dtype(self._network, layers),
            layers=layers,
            master_weight_dtype="/".join(sorted({v.dtype for v in self._parameters})),
            gradient_dtype="/".join(sorted(self._gradient_dtypes)),
            optimizer=type(self._inner).__name__,
            optimizer_implementation="graph",
            scaler_enabled=self._run.scales_loss,
        )

    def is_out_of_memory(self, error: BaseException) -> bool:
        """See :meth:`harness.protocol.Backend.is_out_of_memory`."""
        # XLA tells of it as an internal error; its text is all there is to tell by.
        return isinstance(error, self._tf.errors.ResourceExhaustedError | MemoryError) or (
            isinstance(error, self._tf.errors.OpError)
            and any(
                words in str(error).lower() for words in ("out of memory", "resource_exhausted")
            )
        )

    def close(self) -> None:
        """See :meth:`harness.protocol.Backend.close`."""
        self.synchronize()
        if self._copier is not None:
            self._copier.shutdown()

    def _choose_gpu(self, wanted: str) -> tf.config.PhysicalDevice | None:
        tf = self._tf
        gpus = tf.config.list_physical_devices("GPU")
        if wanted == "cpu" or (wanted == "auto" and not gpus):
            return None
        index = int(wanted.partition(":")[2] or 0)
        if not gpus:
            raise Unsupported(
                f"TensorFlow {tf.__version__} finds no CUDA device: "
                + (
                    "the driver, the GPU or the CUDA libraries are missing (see nvidia-smi); "
                    "install tensorflow[and-cuda] in an environment of its own"
                    if tf.test.is_built_with_cuda()
                    else "it is a CPU build; install tensorflow[and-cuda] in an environment of its "
                    "own, or use --device cpu"
                )
            )
        if index >= len(gpus):
            raise Unsupported(f"there is no {wanted}: TensorFlow sees {len(gpus)} CUDA device(s)")
        return gpus[index]

    def _configure(self, gpu: tf.config.PhysicalDevice | None, threads: int) -> None:
        config = self._tf.config
        try:
            self._grow_memory()
            config.set_visible_devices([gpu] if gpu else [], "GPU")
            config.threading.set_intra_op_parallelism_threads(threads)
            config.threading.set_inter_op_parallelism_threads(threads)
        except RuntimeError as error:
            raise Unsupported(
                "TensorFlow already runs in this process with other devices or threads "
                f"({error}); open each run in a fresh process"
            ) from error

    def _grow_memory(self) -> None:
        # Otherwise TensorFlow takes the whole GPU at once, and no peak would mean anything.
        for gpu in self._tf.config.list_physical_devices("GPU"):
            self._tf.config.experimental.set_memory_growth(gpu, True)

    def _place(self, device: DeviceType) -> str:
        return "/CPU:0" if device == "cpu" else "/GPU:0"

    def _try(self, place: str, dtype: str, *, channels_first: bool = False) -> Capability:
        tf = self._tf
        shape, data_format = ((1, 2, 4, 4), "NCHW") if channels_first else ((1, 4, 4, 2), "NHWC")

        def gradients() -> list[tf.Tensor]:
            image, kernel = tf.ones(shape, dtype), tf.ones((3, 3, 2, 2), dtype)
            with tf.GradientTape() as tape:
                tape.watch([image, kernel])
                result = tf.nn.conv2d(image, kernel, 1, "VALID", data_format=data_format)
            return tape.gradient(result, [image, kernel])

        try:
            with tf.device(place):
                jit = self._jit if channels_first else False
                for gradient in tf.function(gradients, jit_compile=jit, autograph=False)():
                    gradient.numpy()
        except tf.errors.OpError as error:
            return Capability(available=False, reason=str(error).splitlines()[0])
        return Capability(available=True)

    def _copy(self, images: np.ndarray, labels: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
        with self._tf.device(self._place_name):
            return self._tf.convert_to_tensor(images), self._tf.convert_to_tensor(labels)

    def _normalised(self, images: tf.Tensor) -> tf.Tensor:
        tf = self._tf
        mean, std = tf.constant(CHANNEL_MEAN, self._float), tf.constant(CHANNEL_STD, self._float)
        x = (tf.cast(images, self._float) / 255 - mean) / std
        return tf.transpose(x, (0, 3, 1, 2)) if self._channels_first else x

    def _loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        losses = self._tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return self._tf.reduce_mean(losses)

    def _train(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One step, traced; returns loss, loss scale and whether the update was withheld."""
        tf, optimizer, policy = self._tf, self._optimizer, self._run.loss_scale
        with tf.GradientTape() as tape:
            loss = self._loss(labels, self._built.model(self._normalised(images), training=True))
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self._parameters)
        self._gradient_dtypes = {gradient.dtype.name for gradient in gradients}
        if not self._run.scales_loss:
            optimizer.apply(gradients, self._parameters)
            return tf.stack([loss, tf.ones_like(loss), tf.zeros_like(loss)])
        scale = tf.convert_to_tensor(optimizer.dynamic_scale)
        updates = tf.convert_to_tensor(optimizer.iterations)
        optimizer.apply(gradients, self._parameters)
        skipped = tf.equal(tf.convert_to_tensor(optimizer.iterations), updates)
        if not policy.dynamic:
            optimizer.dynamic_scale.assign(scale)
        elif (policy.growth_factor, policy.backoff_factor) != (2.0, 0.5):
            # Keras' own factors are fixed.
            after = tf.convert_to_tensor(optimizer.dynamic_scale)
            factor = tf.where(after > scale, policy.growth_factor, 1.0)
            factor = tf.where(after < scale, policy.backoff_factor, factor)
            optimizer.dynamic_scale.assign(scale * factor)
        return tf.stack([loss, scale, tf.cast(skipped, loss.dtype)])

    def _float_logits(self, images: tf.Tensor) -> tf.Tensor:
        """Inference in float32 (float64 in a float64 run), traced."""
        with self._full_precision():
            logits = self._built.model(self._normalised(images), training=False)
        return self._tf.cast(logits, "float32")

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        """Let the layers compute in full precision while a function is traced.

        A policy counts only while a graph is traced, so the training graph never sees this one.
        """
        layers = self._built.model.layers
        policies = [layer.dtype_policy for layer in layers]
        try:
            for layer in layers:
                layer.dtype_policy = self._float
            yield
        finally:
            for layer, policy in zip(layers, policies, strict=True):
                layer.dtype_policy = policy

    def _load(self, values: Weights) -> None:
        for name, value in values.items():
            self._built.variables[name].assign(native_tensor(value))

    def _to_numpy(self, variable: Any) -> np.ndarray:
        return np.ascontiguousarray(canonical_tensor(variable.numpy()))


def _usable_cpus() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
