"""Bytes, durations, rates and money: to and from text."""

import math
import re

from tpuctl.errors import InvalidArgumentError

KIB, MIB, GIB = 1024, 1024**2, 1024**3

_BYTES = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "t": 1000**4,
    "tb": 1000**4,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024**4,
}
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
# Limits against slips of the keyboard; no TPU lives for a year.
_MAX_BYTES, _MAX_DURATION_S = 1 << 60, 366 * 86400.0


def parse_bytes(text: str) -> int:
    """Read a size such as `128MiB`, `1.5 GB` or `4096`.

    Raises InvalidArgumentError for anything else, and for a negative or an absurd size.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text.strip().lower())
    if not match or match[2] not in _BYTES:
        raise InvalidArgumentError(f"{text!r} is not a size.", hint="Examples: 128MiB, 2GB.")
    size = float(match[1]) * _BYTES[match[2]]
    if size > _MAX_BYTES:
        raise InvalidArgumentError(f"{text!r} is more than {_MAX_BYTES // 1024**4:,} TiB.")
    return int(size)


def format_bytes(size_bytes: float) -> str:
    """Write a size with three digits: `1.5 GiB`."""
    for factor, unit in ((1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= factor:
            return f"{_three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes:.0f} B"


def parse_duration_s(text: str) -> float:
    """Read a duration such as `90s`, `1h30m` or `250ms`, in seconds.

    A number without a unit is refused. Raises InvalidArgumentError, also for more than a year.
    """
    clean = text.strip().lower().replace(" ", "")
    parts = _NUMBER_AND_UNIT.findall(clean)
    complete = "".join(number + unit for number, unit in parts) == clean
    if not parts or not complete or any(unit not in _SECONDS for _, unit in parts):
        raise InvalidArgumentError(f"{text!r} is not a duration.", hint="Examples: 30s, 1h30m.")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > _MAX_DURATION_S:
        raise InvalidArgumentError(f"{text!r} is longer than {_MAX_DURATION_S / 86400:.0f} days.")
    return seconds


def format_duration(seconds: float) -> str:
    """Write a duration with its two largest units: `1h 05m`, `2m 03s`, `4.2 s`, `35 ms`."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest_s:02}s"


def format_moment(iso: str) -> str:
    """Write a moment in UTC that is given as ISO 8601: `2026-11-29 23:46 UTC`."""
    return f"{iso[:16].replace('T', ' ')} UTC"


def slug(text: str) -> str:
    """Turn a text into lower-case letters, digits and dashes, for a name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def format_rate(per_s: float, unit: str) -> str:
    """Write a rate: `1,234 examples/s`, `9.87 images/s`."""
    return f"{_three_digits(per_s)} {unit}/s"


def format_usd(amount_usd: float | None) -> str:
    """Write an amount of money, with four decimals below one dollar; `unknown` for None."""
    if amount_usd is None:
        return "unknown"
    return f"${amount_usd:,.2f}" if abs(amount_usd) >= 1 or not amount_usd else f"${amount_usd:.4f}"


def format_fraction(fraction: float | None) -> str:
    """Write a share of one as a percentage; `unknown` for None."""
    return "unknown" if fraction is None else f"{fraction * 100:.3g} %"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Write a number of things: `1 chip`, `1,024 chips`, `2 processes`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"
