"""Data sets of small pictures: made once, checked, described, read."""

from tpuctl.datasets.describing import describe as describe
from tpuctl.datasets.describing import write_sheet as write_sheet
from tpuctl.datasets.models import Description as Description
from tpuctl.datasets.models import PresizeOptions as PresizeOptions
from tpuctl.datasets.models import PresizeResult as PresizeResult
from tpuctl.datasets.models import VerifyResult as VerifyResult
from tpuctl.datasets.presizing import presize as presize
from tpuctl.datasets.reading import Record as Record
from tpuctl.datasets.reading import read_records as read_records
from tpuctl.datasets.verifying import verify as verify
