"""How fast a step can be, from below and from above. Pure.

From below: everything overlaps perfectly, so the slower of arithmetic at the peak rate and memory
traffic at the peak rate decides (Williams et al. 2009). From above: nothing overlaps; the pieces of
the program run one after the other, each in the compiler's own estimate of its cycles or the time
of its memory traffic, whichever is longer, and exchanges between devices go round one link. Neither
knows the input pipeline or the host.
"""

from dataclasses import dataclass
from typing import Literal

from tpuctl.compile.models import Compilation, Range
from tpuctl.compile.slices import Slice


@dataclass(frozen=True)
class Roofline:
    """The times of one step on one device, which all run at the same time."""

    compute_ms: float
    memory_ms: float
    communication_ms: float
    step_ms: Range

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """What the fastest possible step waits for."""
        return "compute" if self.compute_ms >= self.memory_ms else "memory"


def roofline(compilation: Compilation, slice_: Slice) -> Roofline:
    """Bound the time of a step."""
    program = compilation.program
    compute_s = compilation.flops / slice_.flops_per_s
    memory_s = program.hbm_bytes / slice_.hbm_bytes_per_s
    # A ring passes every byte twice, but for the share of the device itself.
    ring = 2 * (slice_.devices - 1) / slice_.devices
    communication_s = ring * program.collective_bytes / slice_.ici_bytes_per_s
    one_by_one_s = sum(
        kernel.times * max(kernel.cycles / slice_.clock_hz, kernel.bytes / slice_.hbm_bytes_per_s)
        for kernel in program.kernels
    )
    if not any(kernel.cycles for kernel in program.kernels):
        # Of a program that does not fit the compiler estimates no cycles.
        one_by_one_s = compute_s + memory_s
    low_s = max(compute_s, memory_s)
    high_s = max(low_s, one_by_one_s) + communication_s
    return Roofline(
        compute_ms=compute_s * 1e3,
        memory_ms=memory_s * 1e3,
        communication_ms=communication_s * 1e3,
        step_ms=Range(low_s * 1e3, high_s * 1e3),
    )
