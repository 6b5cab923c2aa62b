"""A Cloud TPU service of your own, to practise on: the real API, no real TPU, no bill."""

from tpuctl.lazy import lazy

_COMMANDS = dict.fromkeys(("start", "stop", "status"), "practice")

__getattr__, __dir__ = lazy(__name__, _COMMANDS, package="tpuctl.api")
