"""What to run: the options of one run and the presets, validated once at the edge."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Precision = Literal["fp32", "amp", "float64"]
AmpDtype = Literal["float16", "bfloat16"]


class LossScalePolicy(BaseModel):
    """How the loss is scaled before the backward pass of a float16 run.

    One policy for every framework, so that their own defaults (Keras starts at 32768, PyTorch and
    Paddle at 65536 with different growth intervals) never tell the arms apart.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    initial: float = Field(default=65536.0, ge=1.0, le=2.0**24)
    dynamic: bool = True
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = Field(default=2000, ge=1)
    """Clean steps in a row after which the scale grows."""

    @classmethod
    def parse(cls, text: str) -> LossScalePolicy:
        """Read ``dynamic``, ``dynamic:1024`` (dynamic, starting there) or ``1024`` (fixed)."""
        number = r"(\d+(?:\.\d+)?)"
        match = re.fullmatch(rf"(dynamic)(?::{number})?|{number}", text.strip(), re.ASCII)
        if match is None:
            raise ValueError(
                f"loss scale {text!r} is not understood; give dynamic, dynamic:1024 or a number"
            )
        dynamic, start, fixed = match.groups()
        initial = float(start or fixed or cls.model_fields["initial"].default)
        if not 1 <= initial <= 2**24:
            raise ValueError(
                f"loss scale {text!r} is out of range; give a number from 1 to {2**24}"
            )
        return cls(dynamic=bool(dynamic), initial=initial)

    def __str__(self) -> str:
        """The text that :meth:`parse` reads back."""
        initial = repr(self.initial).removesuffix(".0")
        return f"dynamic:{initial}" if self.dynamic else initial


class RunConfig(BaseModel):
    """Everything that determines one arm; two arms are compared field by field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backend: str
    precision: Precision = "fp32"
    amp_dtype: AmpDtype = "float16"
    data: str = "sample"
    """``sample``, or a folder, archive, Food-101 tree or manifest CSV."""
    model: str = "resnet18"
    image_size: int = Field(default=64, ge=8, le=1024)
    batch_size: int = Field(default=16, ge=2, le=65536)
    epochs: int | None = Field(default=None, ge=1)
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps in all, warm-up included."""
    windows: int | None = Field(default=None, ge=1)
    """Timed windows, for a run that only measures speed: it ends after them, wherever it is.
    Exactly one of ``epochs``, ``steps`` and ``windows`` is set."""
    warmup_steps: int = Field(default=2, ge=1)
    """First steps of the training, excluded from the timing (compilation, autotuning, caches)."""
    window_steps: int | None = Field(default=None, ge=1)
    """Steps in a timed window at most; None: as many as fill about two seconds."""
    validate_weights: bool = True
    """Validate after each epoch and at the end."""
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(default=1e-3, gt=0, le=10)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """L2 penalty added to the gradients (coupled, not AdamW)."""
    lr_schedule: Literal["constant", "cosine", "step"] = "constant"
    clip_norm: float | None = Field(default=None, gt=0)
    """Bound of the global norm of the unscaled gradients."""
    augment: Literal["none", "flip", "crop"] = "none"
    resize: Literal["squash", "crop", "pad"] = "squash"
    """How a photo becomes a square: distorted, its middle cut out, or bordered."""
    input: Literal["cached", "live", "synthetic"] = "cached"
    seed: int = Field(default=0, ge=0, lt=2**31)
    device: str = "auto"
    loss_scale: LossScalePolicy = LossScalePolicy()
    layout: Literal["default", "nchw", "nhwc"] = "default"
    compile: Literal["default", "off", "on"] = "default"
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of the framework; None: one for each CPU this process may use."""
    tf32: bool = False
    deterministic: bool = False
    gradient_histogram: int | None = Field(default=None, ge=1)
    """Steps after which the sizes of the gradients are counted once; None: never."""
    parts: Literal["equal", "native"] = "equal"
    """``native``: the framework's own layers and optimizers, where equality needed others; only
    for seeing what equality costs, since such arms do not train the same network."""
    diagnose: bool = True
    """After the training, measure the step on a resident batch, the loader alone, and a profile."""
    trace: bool = False
    """Keep the framework's own trace of the profiled steps."""
    variant: str = Field(default="", pattern=r"^[a-z0-9]*$")
    """Tells settings apart that one study compares, such as ``b32``; empty for its main ones."""
    label: str = Field(default="", pattern=r"^[a-z0-9]*$")
    """Tells a repetition (``repeat1``) or further seed (``seed1``) of an arm from its first run."""
    timeout_s: float = Field(default=1800.0, gt=0)
    """Longest silence of a worker (no step, no answer) before it is called hung and killed."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            raise ValueError(f"device {value!r} is not understood; give auto, cpu, cuda or cuda:0")
        return value

    @field_validator("loss_scale", mode="before")
    @classmethod
    def _parse_loss_scale(cls, value: Any) -> Any:
        return LossScalePolicy.parse(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if [self.epochs, self.steps, self.windows].count(None) != 2:
            raise ValueError("give exactly one of --epochs, --steps and --windows")
        return self

    @model_validator(mode="after")
    def _histogram_within_the_run(self) -> Self:
        if self.steps is not None and (self.gradient_histogram or 0) > self.steps:
            raise ValueError(
                f"--gradient-histogram {self.gradient_histogram} comes after the last of "
                f"{self.steps} steps"
            )
        return self

    @model_validator(mode="after")
    def _trace_of_a_profile(self) -> Self:
        if self.trace and not self.diagnose:
            raise ValueError("--trace has no effect with --no-diagnose; leave one of them out")
        return self

    @property
    def arm(self) -> str:
        """Name of this arm within a study, and of its record's file: ``torch-amp``."""
        return "-".join(filter(None, (self.backend, self.precision, self.variant, self.label)))

    @property
    def compute_dtype(self) -> str:
        """Dtype in which the convolutions are to compute: float32, float16, bfloat16 or float64."""
        by_precision = {"fp32": "float32", "float64": "float64", "amp": self.amp_dtype}
        return by_precision[self.precision]

    @property
    def scales_loss(self) -> bool:
        """Whether the arm uses a loss scaler: float16 needs one, bfloat16 has float32's range."""
        return self.precision == "amp" and self.amp_dtype == "float16"


PRESETS: dict[str, dict[str, Any]] = {
    # Sized for two CPU cores, where PyTorch's float16 autocast was measured 17 times slower than
    # float32: the slowest of the five cells then takes about two minutes.
    "quick": {
        "image_size": 32,
        "batch_size": 16,
        "steps": 24,
        "warmup_steps": 2,
    },
    # The published food experiment, put right: the same sizes, with an epoch that visits every
    # photo, one scaler that steps, and a head of as many outputs as classes.
    "seed": {
        "image_size": 224,
        "batch_size": 16,
        "epochs": 5,
        "optimizer": "adam",
        "lr": 1e-3,
        "loss_scale": "dynamic:1024",
        "warmup_steps": 5,
    },
    "throughput": {
        "image_size": 224,
        "batch_size": 256,
        "steps": 120,
        "warmup_steps": 20,
        "layout": "nhwc",
        "input": "synthetic",
        "device": "cuda",
    },
}
