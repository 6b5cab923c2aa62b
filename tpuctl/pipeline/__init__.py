"""Input pipelines: what each stage costs, and whether the device waits for them."""

from tpuctl.pipeline.compare import Comparison as Comparison
from tpuctl.pipeline.compare import diff as diff
from tpuctl.pipeline.models import Profile as Profile
from tpuctl.pipeline.profile import profile_target as profile_target
from tpuctl.pipeline.reference import reference_step_ms as reference_step_ms
from tpuctl.pipeline.tpuprof import load as load
from tpuctl.pipeline.tpuprof import save as save
from tpuctl.pipeline.trace.profile import profile_trace as profile_trace
