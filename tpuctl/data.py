"""Data sets from Python: presize, cache, verify and read them.

What is public here is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.api.data import cache as cache
    from tpuctl.api.data import presize as presize
    from tpuctl.api.data import serve as serve
    from tpuctl.api.data import show as show
    from tpuctl.datasets.describe import contact_sheet as contact_sheet
    from tpuctl.datasets.describe import describe as describe
    from tpuctl.datasets.describe import write_sheet as write_sheet
    from tpuctl.datasets.images.geometry import yuv420_to_rgb as yuv420_to_rgb
    from tpuctl.datasets.local_copies import copy_data_set as copy_data_set
    from tpuctl.datasets.models import CacheOptions as CacheOptions
    from tpuctl.datasets.models import CacheResult as CacheResult
    from tpuctl.datasets.models import CopyResult as CopyResult
    from tpuctl.datasets.models import Description as Description
    from tpuctl.datasets.models import PresizeOptions as PresizeOptions
    from tpuctl.datasets.models import PresizeResult as PresizeResult
    from tpuctl.datasets.models import VerifyResult as VerifyResult
    from tpuctl.datasets.readers import open_batches as open_batches
    from tpuctl.datasets.readers import open_cache as open_cache
    from tpuctl.datasets.readers import open_tf_dataset as open_tf_dataset
    from tpuctl.datasets.readers import open_torch_dataset as open_torch_dataset
    from tpuctl.datasets.reading import Record as Record
    from tpuctl.datasets.reading import read_records as read_records
    from tpuctl.datasets.verify import verify as verify

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
