"""A running training, one line a second."""

from tpuctl.profiling.models import Profile
from tpuctl.units import format_fraction

TITLES = ("steps", "step ms", "examples/s", "waits", "vCPUs", "verdict", "stage")
WIDTHS = (8, 9, 11, 8, 10, 10, 0)


class Rows:
    """The rows of a table as it grows; its titles come with the first."""

    def __init__(self) -> None:
        self._titles = [header()]

    def next(self, profile: Profile) -> str:
        """What to print now."""
        titles, self._titles = self._titles, []
        return "\n".join((*titles, row(profile)))


def header() -> str:
    """The titles of the columns."""
    return _line(TITLES)


def row(profile: Profile) -> str:
    """What is known of the training so far, in the same columns."""
    vcpus = profile.vcpus
    stage = next((stage.name for stage in profile.stages if stage.is_bottleneck), "")
    return _line(
        (
            f"{profile.steps:,}",
            f"{profile.step_ms.p50:.1f}" if profile.step_ms else "",
            f"{profile.pipeline_examples_per_s or 0:,.0f}",
            format_fraction(profile.input_wait_fraction),
            f"{vcpus.used or 0:.1f} of {vcpus.available or 0:g}",
            profile.verdict,
            stage,
        )
    )


def _line(cells: tuple[str, ...]) -> str:
    padded = (cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))
    return "  ".join(padded)[:100].rstrip()
