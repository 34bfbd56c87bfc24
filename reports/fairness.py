"""What differs between two arms, and whether all arms were given the same data and start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Literal

from harness.records import Record
from reports.evidence import UnreadableEvidence, read_evidence
from reports.formats import number
from reports.speedup import window_rates

SAME_START_TOLERANCE = 1e-3
"""Largest relative difference of first losses that counts as the same start in float32."""

Factor = Literal["precision", "tf32", "layout", "batch size", "compile", "framework", "version"]
Role = Literal["under test", "by necessity", "confounds", "length", "outcome"]

# Of every setting that no pattern names: it confounds. So a field that is added to the records
# confounds until somebody has thought about it.
_ROLES: dict[Factor, dict[str, Role]] = {
    "precision": {
        "precision.requested": "under test",
        "precision.dtype": "under test",
        "precision.effective": "under test",
        "evidence.master_weight_dtype": "under test",
        "evidence.gradient_dtype": "under test",
        "evidence.scaler_enabled": "under test",
        "evidence.layers_in_another_dtype": "under test",
        "training.loss_scale_policy": "under test",
    },
    "tf32": {"precision.tf32": "under test"},
    "layout": {"training.layout": "under test"},
    "batch size": {
        "training.batch_size": "under test",
        "data.batch_sha256": "by necessity",
        "data.order_sha256": "by necessity",
    },
    "compile": {"training.compile": "under test"},
    "framework": {
        "backend": "under test",
        "framework_version": "under test",
        "evidence.optimizer": "by necessity",
        "training.optimizer_implementation": "by necessity",
        **{
            f"packages.{name}": "by necessity"
            for name in ("torch", "tensorflow*", "keras", "paddlepaddle*", "triton", "nvidia-*")
        },
    },
    # The same arm in two studies: versions may change, the machine and the settings may not.
    "version": {
        "harness_version": "under test",
        "framework_version": "under test",
        "packages.*": "under test",
        "environment.python": "under test",
        "environment.platform": "under test",
        "precision.effective": "outcome",
        "evidence.*": "outcome",
    },
}
_ROLES_IN_ALL: dict[str, Role] = {
    # A rate does not depend on how long it was measured.
    "training.steps": "length",
    "training.epochs": "length",
    "timed_windows": "length",
    "throughput.timed_steps": "length",
    # Holds the untimed steps between the windows, of which longer runs have more.
    "throughput.warmup_steps": "length",
    # Nobody set it: it is how the arm used the threads that it was given.
    "throughput.threads_in_use": "outcome",
}

_NAMES = {
    "precision.requested": "precision",
    "precision.dtype": "dtype asked",
    "precision.effective": "dtype that ran",
    "data.manifest_sha256": "manifest",
    "data.batch_sha256": "first batches",
    "data.order_sha256": "order of images",
    "environment.cpu": "CPU",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting with two values in two arms."""

    setting: str
    left: str
    right: str
    role: Role
    """Part of the factor under test; what the framework leaves no choice in; how long the arm ran;
    what came out by itself; or a confound, which forbids a ratio."""


@dataclass(frozen=True, kw_only=True)
class FirstLoss:
    """The loss of the first step of a float32 arm."""

    arm: str
    backend: str
    loss: float
    relative_difference: float | None
    """|loss − reference| / |reference|; None for the reference itself, its seed's first arm."""


def differences(
    left: Record, right: Record, *, factor: Factor | tuple[Factor, ...] = "precision"
) -> list[Difference]:
    """Everything in which two arms differ, in the records' order.

    ``factor`` is what the comparison of the two claims to measure, one or several together.
    """
    factors = (factor,) if isinstance(factor, str) else factor
    a, b = _settings(left), _settings(right)
    moved = _layers_in_another_dtype(left, right)
    if moved:
        a["evidence.layers_in_another_dtype"], b["evidence.layers_in_another_dtype"] = "–", moved
    if len(left.steps.loss) != len(right.steps.loss):
        # Of runs of unequal length, the order of ids is hashed over unequal numbers of them.
        del a["data.order_sha256"], b["data.order_sha256"]
    if None in (a.get("environment.cpu_features"), b.get("environment.cpu_features")):
        # Older records do not list them; the CPU's name still tells two CPUs apart.
        for settings in (a, b):
            settings.pop("environment.cpu_features", None)
    return [
        Difference(
            setting=_setting(name),
            left=_shown(a.get(name)),
            right=_shown(b.get(name)),
            role=_role(name, factors),
        )
        for name in {**a, **b}
        if a.get(name) != b.get(name)
    ]


def confounds(found: Sequence[Difference]) -> list[Difference]:
    """The differences that forbid to put a ratio of two arms down to the factor under test."""
    return [difference for difference in found if difference.role == "confounds"]


def confounding(found: Sequence[Difference]) -> list[str]:
    """The same in words: setting and both values."""
    return [f"{d.setting}: {d.left} | {d.right}" for d in confounds(found)]


def data_groups(
    records: Sequence[Record],
) -> dict[tuple[str, int], dict[tuple[str, ...], list[str]]]:
    """Variant and seed → what arms were given → the arms. Arms of one group were given the same.

    What they were given is the digest of the first batches and, where arms with these were given
    the images in different orders, that of the order. It is compared between finished arms of
    equal length; arms without a recorded digest are left out.
    """
    groups: dict[tuple[str, int], dict[tuple[str, ...], list[str]]] = {}
    orders: dict[tuple[str, int, str, int], str] = {}
    for record in records:
        if record.data is None or record.data.batch_sha256 is None:
            continue
        place = (record.variant, seed_of(record))
        batch, order = record.data.batch_sha256, record.data.order_sha256
        given: tuple[str, ...] = (batch,)
        if order is not None and record.status == "ok":
            first = orders.setdefault((*place, batch, len(record.steps.loss)), order)
            given = (batch,) if first == order else (batch, order)
        groups.setdefault(place, {}).setdefault(given, []).append(record.arm)
    return groups


def same_data(records: Sequence[Record]) -> bool:
    """Whether no two arms of a variant and seed are known to have been given different data."""
    return all(len(groups) < 2 for groups in data_groups(records).values())


def seed_of(record: Record) -> int:
    """The seed of a record; 0 where its settings were not recorded."""
    return record.training.seed if record.training is not None else 0


def first_losses(records: Sequence[Record]) -> list[FirstLoss]:
    """First-step losses of the float32 arms, each against the first of them with its seed."""
    reference: dict[int, float] = {}
    found = []
    for record in records:
        if record.precision.requested != "fp32" or not record.steps.loss:
            continue
        loss, seed = record.steps.loss[0], seed_of(record)
        relative = _relative(loss, reference[seed]) if seed in reference else None
        reference.setdefault(seed, loss)
        found.append(
            FirstLoss(
                arm=record.arm, backend=record.backend, loss=loss, relative_difference=relative
            )
        )
    return found


def _relative(value: float, reference: float) -> float:
    if value == reference:
        return 0.0
    return abs(value - reference) / abs(reference) if reference else float("inf")


def _role(name: str, factors: tuple[Factor, ...]) -> Role:
    roles = [*(_ROLES[factor] for factor in factors), _ROLES_IN_ALL]
    for pattern, role in chain.from_iterable(of_one.items() for of_one in roles):
        if fnmatchcase(name, pattern):
            return role
    return "confounds"


def _setting(name: str) -> str:
    """The name of a setting as a table shows it."""
    part, _, field = name.partition(".")
    if part in ("variables", "packages"):
        return f"{part.removesuffix('s')} {field}"
    if part in ("device", "model", "data"):
        field = f"{part} {field}"
    return _NAMES.get(name) or (field or part).replace("_", " ")


def _settings(record: Record) -> dict[str, Any]:
    """All that may differ, by dotted name; results that AMP or the framework is to change not."""
    dumped = record.model_dump()
    settings = {name: dumped[name] for name in ("backend", "framework_version", "harness_version")}
    precision = dumped["precision"]
    evidence = precision.pop("evidence") or {}
    seen = ("master_weight_dtype", "gradient_dtype", "optimizer", "scaler_enabled")
    data = dumped["data"] or {}
    given = ("name", "manifest_sha256", "train_images", "val_images", "batch_sha256")
    throughput = dumped["throughput"] or {}
    environment = dumped["environment"] or {}
    in_use = throughput.get("threads_in_use")
    nested = {
        "precision": precision,
        "evidence": {name: evidence.get(name) for name in seen},
        "device": dumped["device"] or {},
        "model": dumped["model"] or {},
        "data": {name: data.get(name) for name in (*given, "order_sha256")},
        "training": dumped["training"] or {},
        "throughput": {
            "warmup_steps": throughput.get("warmup_steps"),
            "timed_steps": throughput.get("timed_steps"),
            "threads_in_use": None if in_use is None else number(in_use, digits=2),
        },
        "packages": environment.pop("packages", {}),
        "variables": environment.pop("variables", {}),
        "environment": environment,
    }
    for part, values in nested.items():
        settings |= {f"{part}.{name}": value for name, value in values.items()}
    return settings | {"timed_windows": len(window_rates(record))}


def _layers_in_another_dtype(left: Record, right: Record) -> str | None:
    """How many of the layers seen in both arms compute in another dtype."""
    try:
        a, b = read_evidence(left), read_evidence(right)
    except UnreadableEvidence:
        return None
    if a is None or b is None:
        return None
    both = a.layers.keys() & b.layers.keys()
    moved = sum(a.layers[name].compute != b.layers[name].compute for name in both)
    return f"{moved} of {len(both)}" if moved else None


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
