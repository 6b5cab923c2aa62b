"""How much of the matrix unit does nothing because dimensions do not fill it. Pure.

The unit holds a square of weights, `size` by `size`; what streams through comes in groups of 8.
A product of [rows, contracted] and [contracted, columns] therefore takes the time of one whose
contracted dimension and columns are multiples of `size`, and whose rows are multiples of 8
(cloud.google.com/tpu/docs/performance-guide). Which dimension lies along the columns is read from
the layout that the compiler chose.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tpuctl.compile.hlo import Computation, Instruction
from tpuctl.compile.models import Matmul, PaddingWaste

SUBLANES = 8
WORTH_NAMING = 0.01
MOST_NAMED = 10


@dataclass(frozen=True)
class Padding:
    """What all products together lose, and the dimensions that lose most."""

    wasted_fraction: float | None
    layers: tuple[PaddingWaste, ...]


def pad(size: int, unit: int) -> int:
    """The next multiple of the unit."""
    return -(-size // unit) * unit


def padded_flops(matmul: Matmul, unit: int) -> float:
    """The FLOPs that the unit spends on one product, the empty places included."""
    return (
        matmul.flops
        * _filled(matmul.contracted, unit)
        * _filled(matmul.columns, unit)
        * _filled(matmul.rows, SUBLANES)
    )


def measure_padding(matmuls: Iterable[Matmul], unit: int) -> Padding:
    """Add up what padding costs, as a fraction of the FLOPs that the unit spends."""
    spent = useful = 0.0
    by_dimension: dict[tuple[str, str, int], float] = defaultdict(float)
    for matmul in matmuls:
        all_spent = padded_flops(matmul, unit) * matmul.times
        spent += all_spent
        useful += matmul.flops * matmul.times
        for dimension, size in (("contracted", matmul.contracted), ("output", matmul.columns)):
            lost = all_spent * (1 - size / pad(size, unit))
            by_dimension[matmul.layer, dimension, size] += lost
    if not spent:
        return Padding(None, ())
    layers = [
        PaddingWaste(
            layer=layer,
            dimension=dimension,
            size=size,
            unit=unit,
            better_size=nearest(size, unit),
            wasted_fraction=1 - size / pad(size, unit),
            share_of_flops=lost / spent,
        )
        for (layer, dimension, size), lost in by_dimension.items()
        if lost / spent >= WORTH_NAMING
    ]
    layers.sort(key=lambda waste: -waste.share_of_flops)
    return Padding(1 - useful / spent, tuple(layers[:MOST_NAMED]))


def nearest(size: int, unit: int) -> int:
    """The multiple of the unit that is nearest to a size, at least one."""
    return max(1, round(size / unit)) * unit


def _filled(size: int, unit: int) -> float:
    return pad(size, unit) / size


_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_GROUPS = re.compile(r"(feature|batch)_group_count=(\d+)")
_NAME = re.compile(r'op_name="([^"]*)"')
# `jit(step)/jvp(head)/dot_general`: what JAX adds to the names that the user gave.
_WRAPPING = re.compile(r"\b(?:jit|pjit|jvp|transpose|vmap|remat|checkpoint)\(|\)")
_NOT_A_LAYER = ("while", "body", "closed_call", "cond", "checkpoint", "rematted_computation")


def read_matmul(
    convolution: Instruction, within: Computation, place: str | None = None
) -> Matmul | None:
    """Read one convolution as a product; None for one that the vector unit does (depthwise).

    `place` is the line of source code that it came from.
    """
    labels = _LABELS.search(convolution.text)
    operands = [within.by_name.get(name) for name in convolution.operands[:2]]
    if not labels or not all(operands) or len(operands) != 2:
        return None
    lhs, rhs = (operand.arrays[0] for operand in operands if operand)
    out = convolution.arrays[0]
    window = _window(convolution.text, len(labels[1]) - 2)
    groups = math.prod(int(count) for _, count in _GROUPS.findall(convolution.text))
    contracted = rhs.sizes[labels[2].index("i")]
    if groups > 1 and contracted == 1:
        return None
    taps = 1
    for index, dimension in enumerate(window):
        label = str(index)
        taps *= dimension.taps(lhs.sizes[labels[1].index(label)], out.sizes[labels[3].index(label)])
    batch, features = (out.sizes[labels[3].index(label)] for label in "bf")
    lanes = out.minor_to_major[0] if out.minor_to_major else len(out.sizes) - 1
    output = math.prod(out.sizes)
    return Matmul(
        layer=layer_of(convolution.text, place),
        rows=output // max(1, out.sizes[lanes]),
        contracted=contracted,
        columns=out.sizes[lanes],
        flops=2 * batch * features * contracted * taps,
    )


def layer_of(text: str, place: str | None = None) -> str:
    """The name that the user knows: of `jit(step)/transpose(jvp(head))/dot_general`, head.

    Where nothing was given a name, the operation and the line that it stands in.
    """
    found = _NAME.search(text)
    name = _WRAPPING.sub("", found[1].split(";")[0]) if found else ""
    parts = name.split("/")
    scopes = [part for part in parts[1:-1] if part and part not in _NOT_A_LAYER]
    if scopes:
        return "/".join(scopes)
    operation = parts[-1] or "unnamed"
    return f"{operation} at {place}" if place else operation


class _Dimension:
    """One dimension of a window: `size=3 stride=2 pad=1_1 lhs_dilate=1 rhs_dilate=1`."""

    def __init__(self, size: int, stride: int, low: int, spread: int, apart: int) -> None:
        self.size, self.stride, self.low = size, stride, low
        self.spread, self.apart = spread, apart

    def taps(self, inputs: int, outputs: int) -> int:
        """Pairs of an output and a place in the window that meet an input, not padding."""
        length = (inputs - 1) * self.spread + 1
        if self.spread > 1:
            places = (o * self.stride + k * self.apart - self.low
                      for k in range(self.size) for o in range(outputs))  # fmt: skip
            return sum(0 <= at < length and at % self.spread == 0 for at in places)
        return sum(self._valid(k, length, outputs) for k in range(self.size))

    def _valid(self, k: int, length: int, outputs: int) -> int:
        shift = k * self.apart - self.low
        first = max(0, -(shift // self.stride))
        last = min(outputs - 1, (length - 1 - shift) // self.stride)
        return max(0, last - first + 1)


def _window(text: str, dimensions: int) -> list[_Dimension]:
    found = _WINDOW.search(text)
    words = dict(word.split("=") for word in found[1].split()) if found else {}

    def per_dimension(key: str, default: int) -> list[int]:
        return [int(n) for n in words[key].split("x")] if key in words else [default] * dimensions

    pads = words["pad"].split("x") if "pad" in words else ["0_0"] * dimensions
    return [
        _Dimension(*values)
        for values in zip(
            per_dimension("size", 1),
            per_dimension("stride", 1),
            [int(pad.split("_")[0]) for pad in pads],
            per_dimension("lhs_dilate", 1),
            per_dimension("rhs_dilate", 1),
            strict=True,
        )
    ]
