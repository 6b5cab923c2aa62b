"""How much of the matrix unit is wasted on padding. Pure.

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
MIN_SHARE = 0.01
MAX_NAMED = 10
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_GROUPS = re.compile(r"(feature|batch)_group_count=(\d+)")
_NAME = re.compile(r'op_name="([^"]*)"')
# `jit(step)/jvp(head)/dot_general`: JAX wraps the user's names in those of its transformations.
_WRAPPING = re.compile(r"\b(?:jit|pjit|jvp|transpose|vmap|remat|checkpoint)\(|\)")
_NOT_A_LAYER = ("while", "body", "closed_call", "cond", "checkpoint", "rematted_computation")


@dataclass(frozen=True)
class Padding:
    """The total waste of all products, and the dimensions that waste most."""

    wasted_fraction: float | None
    layers: tuple[PaddingWaste, ...]


def pad(size: int, unit: int) -> int:
    """Round up to a multiple of the unit."""
    return -(-size // unit) * unit


def padded_flops(matmul: Matmul, unit: int) -> float:
    """Return the FLOPs that the unit spends on one product, padding included."""
    return (
        matmul.flops
        * (pad(matmul.contracted, unit) / matmul.contracted)
        * (pad(matmul.columns, unit) / matmul.columns)
        * (pad(matmul.rows, SUBLANES) / matmul.rows)
    )


def measure_padding(matmuls: Iterable[Matmul], unit: int) -> Padding:
    """Sum up the cost of padding, as a fraction of the FLOPs that the unit spends."""
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
        if lost / spent >= MIN_SHARE
    ]
    layers.sort(key=lambda waste: -waste.share_of_flops)
    return Padding(1 - useful / spent, tuple(layers[:MAX_NAMED]))


def nearest(size: int, unit: int) -> int:
    """Round to the nearest multiple of the unit, at least one."""
    return max(1, round(size / unit)) * unit


def read_matmul(
    convolution: Instruction, within: Computation, place: str | None = None
) -> Matmul | None:
    """Read a convolution as a product; None for a depthwise one, which the vector unit computes.

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
    """Extract the user's name: `head` from `jit(step)/transpose(jvp(head))/dot_general`.

    Without a name it is the operation and its line of source code.
    """
    found = _NAME.search(text)
    name = _WRAPPING.sub("", found[1].split(";")[0]) if found else ""
    parts = name.split("/")
    scopes = [part for part in parts[1:-1] if part and part not in _NOT_A_LAYER]
    if scopes:
        return "/".join(scopes)
    operation = parts[-1] or "unnamed"
    return f"{operation} at {place}" if place else operation


# No dimension of an array in a TPU's memory is longer.
_LARGEST = 1 << 30


@dataclass(frozen=True)
class _Dimension:
    """One dimension of a window: `size=3 stride=2 pad=1_1 lhs_dilate=1 rhs_dilate=1`."""

    size: int
    stride: int
    pad_low: int
    lhs_dilate: int
    rhs_dilate: int

    def taps(self, inputs: int, outputs: int) -> int:
        """Count the pairs of an output and a window position that read an input, not padding."""
        if not 0 < self.stride <= _LARGEST >= max(self.size, outputs):
            raise ValueError(f"a window of {self.size} with stride {self.stride} is not possible")
        length = (inputs - 1) * self.lhs_dilate + 1
        shifts = [position * self.rhs_dilate - self.pad_low for position in range(self.size)]
        if self.lhs_dilate > 1:
            # Dilation puts zeros between the inputs: only every lhs_dilate-th place is an input.
            places = (o * self.stride + shift for shift in shifts for o in range(outputs))
            return sum(0 <= at < length and at % self.lhs_dilate == 0 for at in places)
        total = 0
        for shift in shifts:
            first = max(0, -(shift // self.stride))
            last = min(outputs - 1, (length - 1 - shift) // self.stride)
            total += max(0, last - first + 1)
        return total


def _window(text: str, dimensions: int) -> list[_Dimension]:
    found = _WINDOW.search(text)
    words = dict(word.split("=") for word in found[1].split()) if found else {}

    def per_dimension(key: str) -> list[int]:
        return [int(n) for n in words[key].split("x")] if key in words else [1] * dimensions

    pads = words["pad"].split("x") if "pad" in words else ["0_0"] * dimensions
    return [
        _Dimension(*values)
        for values in zip(
            per_dimension("size"),
            per_dimension("stride"),
            [int(pad.split("_")[0]) for pad in pads],
            per_dimension("lhs_dilate"),
            per_dimension("rhs_dilate"),
            strict=True,
        )
    ]
