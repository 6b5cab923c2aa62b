"""tpuctl: from "is my TPU even there?" to "my training keeps the matrix unit busy"."""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.notebook.doctor import doctor as doctor
    from tpuctl.notebook.magics import load_ipython_extension as load_ipython_extension
    from tpuctl.pipeline.program._keras import ProfileCallback as ProfileCallback
    from tpuctl.pipeline.program.inside import profile as profile
    from tpuctl.training import predict as predict
    from tpuctl.training.opened import strategy as strategy

__version__ = "0.1.0"

# Loaded when first used, so that `import tpuctl` costs nothing.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "doctor": "notebook.doctor",
        "load_ipython_extension": "notebook.magics",
        "ProfileCallback": "pipeline.program._keras",
        "predict": "training",
        "profile": "pipeline.program.inside",
        "strategy": "training.opened",
    },
)
