"""The compiler's own words about memory: what was missing, and what took it. Pure."""

import re

from tpuctl.compile.models import Tensor
from tpuctl.units import GIB, KIB, MIB

MOST_TENSORS = 8
# libtpu 0.0.42.1: "... the total memory required for HLO temporaries (45.72G) exceeds available HBM
# (15.75G)". Earlier ones: "Used 45.72G of 15.75G hbm".
_MISSING = (
    re.compile(r"required for HLO temporaries \(([\d.]+)([BKMGT]?)\) exceeds available HBM "
               r"\(([\d.]+)([BKMGT]?)\)"),
    re.compile(r"Used ([\d.]+)([BKMGT]?) of ([\d.]+)([BKMGT]?) hbm"),
)  # fmt: skip
_UNITS = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}
_LINE = re.compile(r"^\s*\S+\(\s*\d+%\);\s*([\d.]+)([KMGT]?)i?B?;\s*\d+;\s*\d+; (.+)$", re.M)


def read_out_of_memory(message: str) -> tuple[int, int] | None:
    """Bytes needed and bytes there are; None for another error."""
    for pattern in _MISSING:
        if found := pattern.search(message):
            needed, needed_unit, there, there_unit = found.groups()
            return _bytes(needed, needed_unit), _bytes(there, there_unit)
    return None


def read_report(text: str) -> tuple[Tensor, ...]:
    """The largest allocations of the memory space `default` (HBM), largest first."""
    start = text.find("Memory Space: default")
    end = text.find("Memory Space:", start + 1)
    part = text[start : end if end > 0 else None] if start >= 0 else ""
    tensors = [Tensor(_bytes(size, unit), shapes) for size, unit, shapes in _LINE.findall(part)]
    return tuple(sorted(tensors, key=lambda t: -t.size_bytes)[:MOST_TENSORS])


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])
