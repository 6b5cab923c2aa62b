"""A Cloud TPU service of your own, to practise on: the real API, no real TPU, no bill."""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.api.practice import start as start
    from tpuctl.api.practice import status as status
    from tpuctl.api.practice import stop as stop

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
