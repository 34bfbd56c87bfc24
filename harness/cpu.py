"""The units of this machine's CPU that decide about training, as Linux lists them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")

CPU_FEATURES: Final = {
    "avx2": "8 float32 at a time",
    "avx512f": "16 float32 at a time",
    "avx512_bf16": "bfloat16 products",
    "avx512_fp16": "float16 arithmetic",
    "amx_bf16": "bfloat16 matrix unit",
    "amx_fp16": "float16 matrix unit",
    "asimdhp": "float16 arithmetic",
    "bf16": "bfloat16 products",
    "sve": "long vectors",
}
"""Names in Linux's list of a CPU's flags that decide about training → what the unit does."""
DTYPE_UNITS: Final = {
    "bfloat16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "float16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
}
"""Dtype → the units of which one must be there, or its products are emulated."""


def cpu_features(proc: Path = PROC) -> list[str] | None:
    """Those of :data:`CPU_FEATURES` that Linux lists; None where it lists no flags."""
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(("flags", "Features")):
            flags = set(line.partition(":")[2].split())
            return [feature for feature in CPU_FEATURES if feature in flags]
    return None


def lacks_unit(dtype: str, features: Iterable[str] | None) -> bool:
    """Whether a CPU with these features is known to emulate the products of ``dtype``."""
    units = DTYPE_UNITS.get(dtype)
    return units is not None and features is not None and units.isdisjoint(features)
