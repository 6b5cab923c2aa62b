"""A local emulator of Google Cloud, for practice: real APIs, no real TPU and no bill."""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.api.practice import start as start
    from tpuctl.api.practice import status as status
    from tpuctl.api.practice import stop as stop

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
