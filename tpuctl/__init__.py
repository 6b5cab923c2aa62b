"""tpuctl: from "is my TPU even there?" to "my training keeps the matrix unit busy"."""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.api.cloud import create as create
    from tpuctl.api.cloud import delete as delete
    from tpuctl.api.cloud import gc as gc
    from tpuctl.api.cloud import list as list
    from tpuctl.api.cloud import quota as quota
    from tpuctl.api.cloud import show as show
    from tpuctl.api.cloud import wait as wait
    from tpuctl.api.cloud import watch as watch
    from tpuctl.notebook.doctor import doctor as doctor
    from tpuctl.notebook.magics import load_ipython_extension as load_ipython_extension
    from tpuctl.profiling.program._keras import ProfileCallback as ProfileCallback
    from tpuctl.profiling.program.inside import profile as profile
    from tpuctl.training import predict as predict
    from tpuctl.training.strategies import strategy as strategy

__version__ = "0.1.0"

# Loaded when first used, so that `import tpuctl` costs nothing.
__getattr__, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(
            ("create", "list", "show", "wait", "delete", "gc", "quota", "watch"), "api.cloud"
        ),
        "doctor": "notebook.doctor",
        "load_ipython_extension": "notebook.magics",
        "ProfileCallback": "profiling.program._keras",
        "predict": "training",
        "profile": "profiling.program.inside",
        "strategy": "training.strategies",
    },
)
