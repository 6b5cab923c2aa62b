"""Input pipelines: what each stage costs, and whether the device waits for them.

What is public here is loaded when it is first asked for: a training that is only watched needs
little of it, twice, before its first line.
"""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.pipeline.compare import Comparison as Comparison
    from tpuctl.pipeline.compare import diff as diff
    from tpuctl.pipeline.models import Profile as Profile
    from tpuctl.pipeline.profile import profile_target as profile_target
    from tpuctl.pipeline.reference import reference_step_ms as reference_step_ms
    from tpuctl.pipeline.tpuprof import load as load
    from tpuctl.pipeline.tpuprof import save as save
    from tpuctl.pipeline.trace.profile import profile_trace as profile_trace

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
