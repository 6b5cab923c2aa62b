"""What a training loop borrows: learning-rate schedules, their finder, and predict.

    from tpuctl.training import LearningRateFinder, OneCycle, predict

Keras is imported when one of these is first used, never with tpuctl.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.training._keras import LearningRateFinder as LearningRateFinder
    from tpuctl.training._keras import OneCycle as OneCycle
    from tpuctl.training._predict import predict as predict

_LAZY = {
    "LearningRateFinder": "tpuctl.training._keras",
    "OneCycle": "tpuctl.training._keras",
    "predict": "tpuctl.training._predict",
}


def __getattr__(name: str) -> Any:
    """Load a public name, and the framework below it, when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tpuctl.training' has no attribute {name!r}")
    from tpuctl.errors import MissingExtraError

    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "keras":
            raise
        raise MissingExtraError(f"tpuctl.training.{name}", extra="tf", module="keras") from error


def __dir__() -> list[str]:
    """Name the lazy ones too."""
    return sorted([*globals(), *_LAZY])
