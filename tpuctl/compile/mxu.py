"""How much of the matrix unit does nothing because dimensions do not fill it. Pure.

The unit holds a square of weights, `size` by `size`; what streams through comes in groups of 8.
A product of [rows, contracted] and [contracted, columns] therefore takes the time of one whose
contracted dimension and columns are multiples of `size`, and whose rows are multiples of 8
(cloud.google.com/tpu/docs/performance-guide). Which dimension lies along the columns is read from
the layout that the compiler chose.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tpuctl.compile.models import Matmul, Waste

SUBLANES = 8
WORTH_NAMING = 0.01
MOST_NAMED = 10


@dataclass(frozen=True)
class Padding:
    """What all products together lose, and the dimensions that lose most."""

    wasted_fraction: float | None
    layers: tuple[Waste, ...]


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
        Waste(
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
