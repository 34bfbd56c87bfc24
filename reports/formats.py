"""How figures and foreign text are written in tables and sentences. Unknown is an en dash."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from harness.speedup import Speedup

UNKNOWN = "–"


def number(value: float | None, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits, never in exponent form above 1e-4."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - magnitude, 0)
    rounded = round(value, decimals)
    if rounded != 0 and math.floor(math.log10(abs(rounded))) > magnitude:
        decimals = max(decimals - 1, 0)
    return f"{rounded:,.{decimals}f}"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def ratio(value: float | None) -> str:
    """``×1.42``."""
    return UNKNOWN if value is None else f"×{number(value)}"


def interval(low: float | None, high: float | None) -> str:
    """``[1.38, 1.46]``."""
    return UNKNOWN if low is None or high is None else f"[{number(low)}, {number(high)}]"


def times(gain: Speedup | None) -> str:
    """The ratio of a speedup, ``×1.42``."""
    return ratio(None if gain is None else gain.ratio)


def bounds(gain: Speedup | None) -> str:
    """The 95 % interval of a speedup; empty where there is none."""
    return "" if gain is None else interval(gain.shown.low, gain.shown.high)


def gain(of: Speedup | None) -> str:
    """A speedup with its interval, ``×1.42 [1.38, 1.46]``."""
    return f"{times(of)} {bounds(of)}".rstrip()


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def percent(fraction: float | None) -> str:
    """A fraction of 1 as ``52.0 %``."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.1f} %"


def mebibytes(value_bytes: int | None) -> str:
    """Bytes as MiB, or as GiB from 10 GiB on."""
    if value_bytes is None:
        return UNKNOWN
    if value_bytes >= 10 * 2**30:
        return f"{value_bytes / 2**30:,.1f} GiB"
    return f"{value_bytes / 2**20:,.0f} MiB"


def kibibytes(value_bytes: float | None) -> str:
    """Bytes as KiB."""
    return UNKNOWN if value_bytes is None else f"{value_bytes / 2**10:,.0f} KiB"


def peak(value_bytes: int | None, source: str | None) -> str:
    """Bytes with what they were counted on: ``300 MiB host``."""
    return mebibytes(value_bytes) if source is None else f"{mebibytes(value_bytes)} {source}"


def seconds(value_s: float | None) -> str:
    """``3.21 s``."""
    return UNKNOWN if value_s is None else f"{number(value_s)} s"


def duration(value_s: float | None) -> str:
    """``32.1 ms``; in seconds from one on, and in microseconds below a millisecond."""
    if value_s is None or value_s >= 1 or value_s == 0:
        return seconds(value_s)
    return f"{number(1e3 * value_s)} ms" if value_s >= 1e-3 else f"{number(1e6 * value_s)} µs"


def flops_rate(value_per_s: float | None) -> str:
    """FLOP/s as ``123 GFLOP/s``, or as TFLOP/s from 1 TFLOP/s on."""
    if value_per_s is None:
        return UNKNOWN
    scale, unit = (1e12, "TFLOP/s") if value_per_s >= 1e12 else (1e9, "GFLOP/s")
    return f"{number(value_per_s / scale)} {unit}"


def precision(requested: str) -> str:
    """The name of a precision as a reader knows it."""
    return {"amp": "AMP"}.get(requested, requested)


def printable(text: str) -> str:
    """``text`` with control and direction-changing characters escaped, on one line.

    Class names, file names and reasons come from strangers: a terminal escape or a right-to-left
    override in one of them must not repaint the table around it.
    """
    return "".join(char if _harmless(char) else _escaped(char) for char in text)


def _harmless(char: str) -> bool:
    direction = "\u202a" <= char <= "\u202e" or "\u2066" <= char <= "\u2069"
    return not direction and unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")


def _escaped(char: str) -> str:
    if char in "\t\n\r\u2028\u2029":
        return " "
    return char.encode("unicode_escape").decode("ascii")
