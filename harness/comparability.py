"""What makes the arms of a study incomparable: other code, machine, versions, device or images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import harness
from harness.records import DataPart, EnvironmentPart, Record, Study

_CHOOSING_PREFIXES = ("CUDA_", "NVIDIA_")
"""Variables of the shell that reach the workers and choose devices; the others do not."""


def changes_since(study: Study, data: DataPart, now: EnvironmentPart) -> list[str]:
    """What is no longer as it was when ``study`` began, each in words.

    Args:
        study: as it was begun.
        data: what its first arm would train on now.
        now: this process and its machine.
    """
    was = study.environment
    compared: dict[str, tuple[object, object]] = {
        "harness": (study.harness_version, harness.__version__),
        "CPU": (was.cpu, now.cpu),
        "usable CPUs": (was.cpus_usable, now.cpus_usable),
        # The kernel takes some of it for itself, not always the same.
        "memory in GiB": (_gib(was.memory_bytes), _gib(now.memory_bytes)),
        "system": (was.platform, now.platform),
        "NVIDIA driver": (was.gpu_driver, now.gpu_driver),
        "CUDA": (was.cuda_driver, now.cuda_driver),
        "Python": (was.python, now.python),
        "data": (study.data.manifest_sha256, data.manifest_sha256),
        **_both(was.packages, now.packages),
        **_both(_choosing(was.variables), _choosing(now.variables)),
    }
    if was.code_sha256 is not None:
        compared["code of the harness"] = (was.code_sha256[:12], (now.code_sha256 or "?")[:12])
    return [*_differing(compared)]


def other_worker(record: Record, before: Iterable[Record]) -> str | None:
    """Why ``record`` was measured in another environment, or on another device, than one before.

    Returns:
        None where all that have its backend agree, or do not tell.
    """
    for other in before:
        if other.backend != record.backend:
            continue
        compared: dict[str, tuple[object, object]] = {}
        if other.environment and record.environment:
            compared |= _both(other.environment.packages, record.environment.packages)
        if other.device and record.device:
            compared["device"] = (other.device.name, record.device.name)
            compared["device's UUID"] = (other.device.uuid, record.device.uuid)
        if told := "; ".join(_differing(compared)):
            return (
                f"{record.arm} is not comparable with {other.arm}: {told}. Install what was there "
                "before, or choose the same device, or start anew with another --out."
            )
    return None


def other_batches(records: Iterable[Record]) -> str | None:
    """Why arms of a study were given different batches: nothing in it can be compared then."""
    given: dict[tuple[object, ...], Record] = {}
    for record in records:
        if record.status != "ok" or record.data is None or record.training is None:
            continue
        same = (record.variant, record.training.seed)
        for name, key in (
            ("batch_sha256", same),
            ("order_sha256", (*same, record.training.steps)),
        ):
            first = given.setdefault((name, *key), record)
            assert first.data is not None
            if getattr(record.data, name) != getattr(first.data, name):
                return (
                    f"{first.arm} and {record.arm} were given different images ({name} differs), "
                    "so they cannot be compared; this is a fault of the harness or of a changed "
                    "cache: start anew with another --out and --cache-dir"
                )
    return None


def _gib(size_bytes: int) -> float:
    return round(size_bytes / 2**30, 1)


def _choosing(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if name.startswith(_CHOOSING_PREFIXES)}


def _both(was: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[object, object]]:
    return {name: (was.get(name), now.get(name)) for name in sorted(was.keys() | now.keys())}


def _differing(compared: Mapping[str, tuple[object, object]]) -> Iterator[str]:
    for name, (was, now) in compared.items():
        if was != now:
            yield f"{name} was {was}, is {now}"
