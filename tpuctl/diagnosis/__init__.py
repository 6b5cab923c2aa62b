"""What is wrong with this machine's TPU, and what mends it."""

from tpuctl.diagnosis.diagnose import diagnose as diagnose
from tpuctl.diagnosis.examine import examine as examine
from tpuctl.diagnosis.report import Diagnosis as Diagnosis
from tpuctl.diagnosis.report import Problem as Problem
