"""What differs between two arms, and whether all arms were given the same start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import Record

SAME_START_TOLERANCE = 1e-3
"""Largest relative difference of first losses that counts as the same start in float32."""

_ROLES = {
    "training.loss_scale_policy": "part of AMP",
    "training.steps": "length",
    "training.epochs": "length",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting with two values in two arms."""

    setting: str
    left: str
    right: str
    role: str
    """``part of AMP``, ``length`` (on which a rate does not depend), or ``confounds``."""


@dataclass(frozen=True, kw_only=True)
class FirstLoss:
    """The loss of the first step of a float32 arm."""

    backend: str
    loss: float
    relative_difference: float | None
    """|loss − reference| / |reference|; None for the reference itself (the first arm)."""


def differences(left: Record, right: Record) -> list[Difference]:
    """Everything besides precision that two arms were not given alike, in the records' order."""
    a, b = _settings(left), _settings(right)
    return [
        Difference(
            setting=name.removeprefix("training.").replace("_", " "),
            left=_shown(a.get(name)),
            right=_shown(b.get(name)),
            role=_ROLES.get(name, "confounds"),
        )
        for name in {**a, **b}
        if a.get(name) != b.get(name)
    ]


def confounders(left: Record, right: Record) -> list[Difference]:
    """The differences that forbid to put a ratio of the two arms down to precision."""
    return [difference for difference in differences(left, right) if difference.role == "confounds"]


def batch_groups(records: Sequence[Record]) -> dict[str, list[str]]:
    """Arms by the hash of the first batches that they were given; arms without one left out."""
    groups: dict[str, list[str]] = {}
    for record in records:
        if record.data is not None and record.data.batch_sha256 is not None:
            groups.setdefault(record.data.batch_sha256, []).append(record.arm)
    return groups


def first_losses(records: Sequence[Record]) -> list[FirstLoss]:
    """First-step losses of the float32 arms, each against the first of them."""
    losses = [
        (record.backend, record.steps.loss[0])
        for record in records
        if record.precision.requested == "fp32" and record.steps.loss
    ]
    return [
        FirstLoss(
            backend=backend,
            loss=loss,
            relative_difference=None if i == 0 else _relative(loss, losses[0][1]),
        )
        for i, (backend, loss) in enumerate(losses)
    ]


def _relative(value: float, reference: float) -> float:
    if value == reference:
        return 0.0
    return abs(value - reference) / abs(reference) if reference else float("inf")


def _settings(record: Record) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "harness version": record.harness_version,
        "framework version": record.framework_version,
        "tf32": record.precision.tf32,
    }
    if record.device is not None:
        settings |= {f"device {key}": value for key, value in record.device.model_dump().items()}
    if record.model is not None:
        settings["model"] = record.model.name
    if record.data is not None:
        settings["manifest"] = record.data.manifest_sha256
        settings["first batches"] = record.data.batch_sha256
    if record.training is not None:
        settings |= {f"training.{key}": v for key, v in record.training.model_dump().items()}
    if record.environment is not None:
        environment = record.environment
        settings |= {
            "python": environment.python,
            "platform": environment.platform,
            "cpu": environment.cpu,
        }
        settings |= {f"package {key}": value for key, value in environment.packages.items()}
        settings |= {f"variable {key}": value for key, value in environment.variables.items()}
    return settings


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
