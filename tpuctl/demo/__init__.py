"""The demo, end to end on this machine: doctor, profile, presize, profile again, train, report."""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.api.practice import run as run

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
