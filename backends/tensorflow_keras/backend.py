"""TensorFlow/Keras: the ``mixed_float16`` policy with a ``LossScaleOptimizer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.tensorflow_keras.device import (
    OUT_OF_MEMORY,
    choose_gpu,
    configure,
    gpu_uuid,
    place,
    try_capabilities,
    try_convolution,
    variance_is_biased,
)
from backends.tensorflow_keras.evidence import layer_evidence
from backends.tensorflow_keras.network import (
    build_model,
    unbiased_batch_norm,
)
from backends.tensorflow_keras.optimizers import build_optimizer
from backends.tensorflow_keras.peak import peak_operation
from backends.tensorflow_keras.probe import probe_layer, probe_pass, traced_pass
from backends.tensorflow_keras.profile import OPTIMIZER_SCOPE, profile_steps
from backends.tensorflow_keras.state import read_state, write_state, write_tensors
from harness.config import RunConfig
from harness.environment import usable_cpus
from harness.networks import BatchNorm, Network, place_layers
from harness.protocol import (
    CHANNEL_MEAN,
    CHANNEL_STD,
    TF32_CAPABILITY,
    Capabilities,
    DeviceMemory,
    DeviceType,
    Evidence,
    InForce,
    LayerProbe,
    PeakOperation,
    Probe,
    StepProfile,
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
                f"Keras runs on {keras.backend.backend()}; "
                "unset KERAS_BACKEND or set it to tensorflow"
            )
        self._tf, self._keras = tf, keras

    def capabilities(self) -> Capabilities:
        """See :meth:`harness.protocol.Backend.capabilities`."""
        return try_capabilities(self._tf)

    def open(self, run: RunConfig) -> InForce:
        """See :meth:`harness.protocol.Backend.open`."""
        tf, keras = self._tf, self._keras
        self._run = run
        gpu = choose_gpu(tf, run.device)
        self._device_type: DeviceType = "cuda" if gpu else "cpu"
        self._device = place(self._device_type)
        configure(tf, gpu, run.threads or usable_cpus())
        if run.deterministic:
            tf.config.experimental.enable_op_determinism()
        tf.config.experimental.enable_tensor_float_32_execution(run.tf32)
        self._float = "float64" if run.precision == "float64" else "float32"
        compute = run.compute_dtype
        keras.config.set_floatx(self._float)
        keras.config.set_dtype_policy(f"mixed_{compute}" if run.precision == "amp" else self._float)
        # Keras decides by determinism and by the machine's devices, in use or not; any model of
        # its layers tells. A run on the CPU is what it is on a machine without a GPU.
        by_default = gpu is not None and keras.Sequential([keras.layers.Dense(1)]).jit_compile
        self._jit = {"default": by_default, "off": False, "on": True}[run.compile]
        self._channels_first = run.layout == "nchw"
        for channels_first in {False, self._channels_first}:
            capability = try_convolution(
                tf, self._device, compute, channels_first=channels_first, jit=self._jit
            )
            if not capability.available:
                what = "in NCHW here (use --layout nhwc)" if channels_first else "here"
                raise Unsupported(
                    f"TensorFlow cannot train in {compute} {what}: {capability.reason}"
                )
        replaced = run.parts == "equal" and variance_is_biased(tf, keras, self._device)
        own = keras.layers.BatchNormalization
        self._batch_norm = unbiased_batch_norm(keras) if replaced else own
        self._copier = ThreadPoolExecutor(1, "copy to device") if gpu else None
        details = tf.config.experimental.get_device_details(gpu) if gpu else {}
        return InForce(
            framework_version=f"{tf.__version__} (Keras {keras.__version__})",
            device_type=self._device_type,
            device_name=details.get("device_name", gpu.name) if gpu else "CPU",
            device_uuid=gpu_uuid(gpu) if gpu else None,
            layout="nchw" if self._channels_first else "nhwc",
            compile="xla" if self._jit else "graph",
            threads=tf.config.threading.get_intra_op_parallelism_threads(),
            tf32=tf.config.experimental.tensor_float_32_execution_enabled()
            if details.get("compute_capability", (0, 0)) >= TF32_CAPABILITY
            else None,
            loss_scale_policy=str(run.loss_scale) if run.scales_loss else None,
        )

    def build(self, network: Network, weights: Weights) -> None:
        """See :meth:`harness.protocol.Backend.build`."""
        tf, keras, run = self._tf, self._keras, self._run
        self._network = network
        with tf.device(self._device):
            self._built = build_model(
                keras,
                network,
                channels_first=self._channels_first,
                head_dtype=self._float,
                batch_norm=self._batch_norm,
                own_padding=run.parts == "native",
            )
            self._parameters = [v for v in self._built.variables.values() if v.trainable]
            self._optimizer = build_optimizer(tf, keras, run)
            self._optimizer.build(self._parameters)
        self._scaler: Any = self._optimizer if run.scales_loss else None
        self._inner: Any = self._scaler.inner_optimizer if self._scaler else self._optimizer
        write_tensors(weights, self._built)
        self._step = tf.function(self._train, jit_compile=self._jit, autograph=False)
        self._infer = tf.function(self._float_logits, jit_compile=self._jit, autograph=False)
        self._probe = traced_pass(tf, keras, self._built, self._loss, jit=self._jit)
        self._results: list[tf.Tensor] = []
        self._poisoned = False

    def put(self, images: np.ndarray, labels: np.ndarray) -> _Batch:
        """See :meth:`harness.protocol.Backend.put`."""
        if self._copier is not None:
            # A copy to a GPU waits for the steps before it; a thread does the waiting, so that the
            # next batch can be fetched meanwhile.
            return self._copier.submit(self._copy, images, labels)
        batch: _Batch = Future()
        batch.set_result(self._copy(images, labels))
        return batch

    def train_step(self, batch: _Batch) -> None:
        """See :meth:`harness.protocol.Backend.train_step`."""
        self._results.append(self._step(*batch.result(), poisoned=self._poisoned))
        self._poisoned = False

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
        # On a GPU this waits for the steps before, as every copy to it does. A variable of the host
        # would not, but XLA takes none of another device.
        self._inner.learning_rate = learning_rate

    def synchronize(self) -> None:
        """See :meth:`harness.protocol.Backend.synchronize`."""
        self._tf.test.experimental.sync_devices()

    def memory(self) -> DeviceMemory:
        """Peak of the GPU's allocator, which does not tell what it reserved; unknown on the CPU."""
        if self._device_type == "cpu":
            return DeviceMemory()
        info = self._tf.config.experimental.get_memory_info("GPU:0")
        return DeviceMemory(allocated_peak_bytes=info["peak"])

    def reset_peaks(self, *, release_unused: bool) -> None:
        """See :meth:`harness.protocol.Backend.reset_peaks`; TensorFlow gives nothing back."""
        if self._device_type == "cuda":
            self._tf.config.experimental.reset_memory_stats("GPU:0")

    def state(self) -> TrainState:
        """See :meth:`harness.protocol.Backend.state`."""
        return read_state(self._built, self._inner, self._scaler)

    def load_state(self, state: TrainState) -> None:
        """See :meth:`harness.protocol.Backend.load_state`."""
        write_state(state, self._built, self._inner, self._scaler)

    def probe(self, batch: _Batch) -> Probe:
        """See :meth:`harness.protocol.Backend.probe`."""
        images, labels = batch.result()
        scale = self._tf.constant(self._loss_scale(), self._float)
        return probe_pass(self._probe, self._built, self._normalised(images), labels, scale)

    def probe_layer(self, layer: str, x: np.ndarray, output_gradient: np.ndarray) -> LayerProbe:
        """See :meth:`harness.protocol.Backend.probe_layer`."""
        with self._tf.device(self._device):
            return probe_layer(
                self._tf,
                self._keras,
                self._built,
                layer,
                x,
                output_gradient,
                jit=self._jit,
            )

    def poison_next_gradient(self) -> None:
        """See :meth:`harness.protocol.Backend.poison_next_gradient`."""
        self._poisoned = True

    def evidence(self, batch: _Batch) -> Evidence:
        """Read the traced graph of the function that is timed; runs nothing."""
        graph = self._step.get_concrete_function(*batch.result(), poisoned=False).graph
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

    def peak_operation(
        self, operation: PeakOperation, dtype: str, size: int
    ) -> Callable[[], object]:
        """See :meth:`harness.protocol.Backend.peak_operation`."""
        return peak_operation(
            self._tf, self._device, operation, dtype, size, channels_first=self._channels_first
        )

    def profile(self, batch: _Batch, *, steps: int, trace: Path | None) -> StepProfile:
        """See :meth:`harness.protocol.Backend.profile`."""
        norms = {
            p.layer.name for p in place_layers(self._network) if isinstance(p.layer, BatchNorm)
        }
        before = self.state()
        kept = self._results, self._poisoned
        self._results, self._poisoned = [], False
        self.train_step(batch)
        profile = profile_steps(
            self._tf,
            lambda: self.train_step(batch),
            self.synchronize,
            batch_norms=norms,
            on_cuda=self._device_type == "cuda",
            steps=steps,
            trace=trace,
        )
        self.load_state(before)
        self._results, self._poisoned = kept
        return profile

    def is_out_of_memory(self, error: BaseException) -> bool:
        """See :meth:`harness.protocol.Backend.is_out_of_memory`."""
        return isinstance(error, self._tf.errors.ResourceExhaustedError | MemoryError) or (
            isinstance(error, self._tf.errors.OpError)
            and any(words in str(error).lower() for words in OUT_OF_MEMORY)
        )

    def close(self) -> None:
        """See :meth:`harness.protocol.Backend.close`."""
        self.synchronize()
        if self._copier is not None:
            self._copier.shutdown()

    def _loss_scale(self) -> float:
        return float(self._scaler.dynamic_scale.numpy()) if self._scaler else 1.0

    def _copy(self, images: np.ndarray, labels: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
        """Both arrays on the device; waits until a GPU has done what was enqueued before.

        TensorFlow keeps Python's lock while it converts an array, and under a GPU the conversion is
        the copy: it would hold up the loader's threads, and so every batch, until the step is done.
        An array becomes a tensor of the host at once; an operation copies that without the lock.
        """
        with self._tf.device("/CPU:0"):
            on_host = self._tf.convert_to_tensor(images), self._tf.convert_to_tensor(labels)
        with self._tf.device(self._device):
            return self._tf.identity(on_host[0]), self._tf.identity(on_host[1])

    def _normalised(self, images: tf.Tensor) -> tf.Tensor:
        tf = self._tf
        mean, std = tf.constant(CHANNEL_MEAN, self._float), tf.constant(CHANNEL_STD, self._float)
        x = (tf.cast(images, self._float) / 255 - mean) / std
        return tf.transpose(x, (0, 3, 1, 2)) if self._channels_first else x

    def _loss(self, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        losses = self._tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return self._tf.reduce_mean(losses)

    def _train(self, images: tf.Tensor, labels: tf.Tensor, *, poisoned: bool) -> tf.Tensor:
        """One step, traced; returns loss, loss scale and whether the update was withheld.

        A poisoned step is a graph of its own, so that the one that is timed has no part in it.
        """
        tf, optimizer = self._tf, self._optimizer
        with tf.GradientTape() as tape:
            loss = self._loss(labels, self._built.model(self._normalised(images), training=True))
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self._parameters)
        if poisoned:
            gradients[-1] = tf.concat([[float("inf")], gradients[-1][1:]], 0)
        self._gradient_dtypes = {gradient.dtype.name for gradient in gradients}
        if self._scaler is None:
            with tf.name_scope(OPTIMIZER_SCOPE):
                optimizer.apply(gradients, self._parameters)
            return tf.stack([loss, tf.ones_like(loss), tf.zeros_like(loss)])
        scale = tf.convert_to_tensor(self._scaler.dynamic_scale)
        updates = tf.convert_to_tensor(optimizer.iterations)
        with tf.name_scope(OPTIMIZER_SCOPE):
            optimizer.apply(gradients, self._parameters)
            skipped = tf.equal(tf.convert_to_tensor(optimizer.iterations), updates)
            self._follow_policy(scale)
        return tf.stack([loss, scale, tf.cast(skipped, loss.dtype)])

    def _follow_policy(self, before: tf.Tensor) -> None:
        """Where the policy is not Keras' own (×2, ×0.5), replace the scale that Keras has set."""
        tf, policy, scale = self._tf, self._run.loss_scale, self._scaler.dynamic_scale
        if not policy.dynamic:
            scale.assign(before)
        elif (policy.growth_factor, policy.backoff_factor) != (2.0, 0.5):
            after = tf.convert_to_tensor(scale)
            factor = tf.where(after > before, policy.growth_factor, 1.0)
            factor = tf.where(after < before, policy.backoff_factor, factor)
            scale.assign(before * factor)

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
