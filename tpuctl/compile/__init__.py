"""Ahead-of-time compilation: does a program fit a TPU that is not here, and how fast can it be?"""

from tpuctl.compile.fitting import answer as answer
from tpuctl.compile.fitting import fit as fit
from tpuctl.compile.models import Comparison as Comparison
from tpuctl.compile.models import Fit as Fit
from tpuctl.compile.warning import warn_before_create as warn_before_create
