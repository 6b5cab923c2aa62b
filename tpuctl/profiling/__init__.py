"""Input pipelines: what each stage costs, and whether the device waits for them.

What is public here is loaded when it is first asked for: a training that is only watched needs
little of it, twice, before its first line.
"""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.profiling.compare import Comparison as Comparison
    from tpuctl.profiling.compare import diff as diff
    from tpuctl.profiling.models import Profile as Profile
    from tpuctl.profiling.profile import profile_target as profile_target
    from tpuctl.profiling.reference import reference_step_ms as reference_step_ms
    from tpuctl.profiling.tpuprof import load as load
    from tpuctl.profiling.tpuprof import save as save
    from tpuctl.profiling.trace.profile import profile_trace as profile_trace

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Comparison": "compare",
        "diff": "compare",
        "Profile": "models",
        "profile_target": "profile",
        "reference_step_ms": "reference",
        "load": "tpuprof",
        "save": "tpuprof",
        "profile_trace": "trace.profile",
    },
)
