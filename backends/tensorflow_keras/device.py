"""What TensorFlow can do on this machine, found by trying, and its process-wide settings."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from harness.cuda_driver import cuda_uuid
from harness.protocol import Capabilities, Capability, DeviceType, Unsupported

if TYPE_CHECKING:
    import tensorflow as tf

OUT_OF_MEMORY = (
    "out of memory",
    "resource_exhausted",
    "dst tensor is not initialized",
    "alloc_failed",
    "allocation_failed",
)
"""How errors of other kinds tell that memory ran out: CUDA, the allocator, a copy to a GPU without
room for its target, cuBLAS and cuDNN (8 and 9)."""
_DTYPES = ("float32", "float16", "bfloat16", "float64")


def try_capabilities(tf: ModuleType) -> Capabilities:
    """Run a convolution and its gradients in each dtype on each device."""
    _grow_memory(tf)
    devices: list[DeviceType] = ["cpu"]
    if tf.config.get_visible_devices("GPU"):
        devices.append("cuda")
    return {
        device: {dtype: try_convolution(tf, place(device), dtype) for dtype in _DTYPES}
        for device in devices
    }


def place(device: DeviceType) -> str:
    """TensorFlow's name of the one device of this type that a run may use."""
    return "/CPU:0" if device == "cpu" else "/GPU:0"


def try_convolution(
    tf: ModuleType, device: str, dtype: str, *, channels_first: bool = False, jit: bool = False
) -> Capability:
    """Run a convolution and its gradients in ``dtype`` on ``device``, compiled by XLA or not."""
    shape, data_format = ((1, 2, 4, 4), "NCHW") if channels_first else ((1, 4, 4, 2), "NHWC")

    def gradients() -> list[tf.Tensor]:
        image, kernel = tf.ones(shape, dtype), tf.ones((3, 3, 2, 2), dtype)
        with tf.GradientTape() as tape:
            tape.watch([image, kernel])
            result = tf.nn.conv2d(image, kernel, 1, "VALID", data_format=data_format)
        return tape.gradient(result, [image, kernel])

    try:
        with tf.device(device):
            for gradient in tf.function(gradients, jit_compile=jit, autograph=False)():
                gradient.numpy()
    except tf.errors.OpError as error:
        return Capability(available=False, reason=error.message.splitlines()[0])
    return Capability(available=True)


def variance_is_biased(tf: ModuleType, keras: ModuleType, device: str) -> bool:
    """Whether Keras' moving variance follows the biased batch variance on ``device``.

    Of 0..7 the biased variance is 5.25, the unbiased one 6.
    """
    with tf.device(device):
        norm = keras.layers.BatchNormalization(momentum=0.0, dtype="float32")
        norm(tf.reshape(tf.range(8, dtype="float32"), (8, 1, 1, 1)), training=True)
        return float(norm.moving_variance[0]) < 5.6


def choose_gpu(tf: ModuleType, wanted: str) -> tf.config.PhysicalDevice | None:
    """The GPU for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; None for the CPU.

    Raises:
        Unsupported: it is not there; the text tells why and what to do.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return None
    if not gpus:
        cause = (
            "the GPU, its driver or the CUDA libraries are missing (see nvidia-smi)"
            if tf.test.is_built_with_cuda()
            else "it is a CPU build"
        )
        raise Unsupported(
            f"TensorFlow {tf.__version__} finds no CUDA device: {cause}; install "
            "'tensorflow[and-cuda]' in an environment of its own, or use --device cpu"
        )
    index = int(wanted.partition(":")[2] or 0)
    if index >= len(gpus):
        raise Unsupported(
            f"there is no {wanted}: TensorFlow sees {len(gpus)} CUDA device(s), from cuda:0"
        )
    return gpus[index]


def configure(tf: ModuleType, gpu: tf.config.PhysicalDevice | None, threads: int) -> None:
    """Let TensorFlow see ``gpu`` and no other, and compute on ``threads`` CPU threads.

    Raises:
        Unsupported: TensorFlow already runs in this process with other settings.
    """
    try:
        _grow_memory(tf)
        tf.config.set_visible_devices([gpu] if gpu else [], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise Unsupported(
            "TensorFlow already runs in this process with other devices or threads "
            f"({error}); open each run in a process of its own"
        ) from error


def gpu_uuid(gpu: tf.config.PhysicalDevice) -> str | None:
    """The UUID of ``gpu`` as nvidia-smi shows it, which TensorFlow does not tell."""
    return cuda_uuid(int(gpu.name.rpartition(":")[2]))


def _grow_memory(tf: ModuleType) -> None:
    # Otherwise TensorFlow takes the whole GPU at once, and no peak would mean anything.
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
