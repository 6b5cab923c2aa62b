"""Plan and run training scripts with the right strategy; schedules, predict and bench.

    from tpuctl.training import LearningRateFinder, OneCycle, predict

Keras is imported when one of these is first used, never with tpuctl.
"""

from typing import TYPE_CHECKING, Any

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.training._keras import LearningRateFinder as LearningRateFinder
    from tpuctl.training._keras import OneCycle as OneCycle
    from tpuctl.training._predict import predict as predict

_load, __dir__, __all__ = lazy(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Load a public name and its framework on first use."""
    from tpuctl.errors import MissingExtraError

    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "keras":
            raise
        raise MissingExtraError(f"tpuctl.training.{name}", extra="tf", module="keras") from error
