"""The demo, end to end on this machine: doctor, profile, presize, profile again, train, report."""

from tpuctl.lazy import lazy

__getattr__, __dir__ = lazy(__name__, {"run": "practice"}, package="tpuctl.api")
