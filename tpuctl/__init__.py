"""tpuctl: from "is my TPU even there?" to "my training keeps the matrix unit busy"."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.notebook.doctor import doctor as doctor
    from tpuctl.notebook.magics import load_ipython_extension as load_ipython_extension
    from tpuctl.pipeline.program._keras import ProfileCallback as ProfileCallback
    from tpuctl.pipeline.program.inside import profile as profile
    from tpuctl.training import predict as predict
    from tpuctl.training.opened import strategy as strategy

__version__ = "0.1.0"

# Loaded when first used, so that `import tpuctl` costs nothing.
_LAZY = {
    "doctor": "tpuctl.notebook.doctor",
    "load_ipython_extension": "tpuctl.notebook.magics",
    "ProfileCallback": "tpuctl.pipeline.program._keras",
    "predict": "tpuctl.training",
    "profile": "tpuctl.pipeline.program.inside",
    "strategy": "tpuctl.training.opened",
}


def __getattr__(name: str) -> Any:
    """Load a public function when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tpuctl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Name the lazy functions too."""
    return sorted([*globals(), *_LAZY])
