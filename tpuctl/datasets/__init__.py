"""Data sets of small pictures: made once, checked, described, read.

What is public here is loaded when it is first asked for: a worker process, a reader in a training
and a command each need a few of these modules, and would wait for all of them.
"""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.datasets.batches import Batch as Batch
    from tpuctl.datasets.batches import Batches as Batches
    from tpuctl.datasets.batches import open_batches as open_batches
    from tpuctl.datasets.cache_models import CacheOptions as CacheOptions
    from tpuctl.datasets.cache_models import CacheResult as CacheResult
    from tpuctl.datasets.cache_models import CopyResult as CopyResult
    from tpuctl.datasets.cached import Cache as Cache
    from tpuctl.datasets.cached import open_cache as open_cache
    from tpuctl.datasets.caching import cache as cache
    from tpuctl.datasets.copies import copy_data_set as copy_data_set
    from tpuctl.datasets.describing import contact_sheet as contact_sheet
    from tpuctl.datasets.describing import describe as describe
    from tpuctl.datasets.describing import write_sheet as write_sheet
    from tpuctl.datasets.models import Description as Description
    from tpuctl.datasets.models import PresizeOptions as PresizeOptions
    from tpuctl.datasets.models import PresizeResult as PresizeResult
    from tpuctl.datasets.models import VerifyResult as VerifyResult
    from tpuctl.datasets.planes import yuv420_to_rgb as yuv420_to_rgb
    from tpuctl.datasets.presizing import presize as presize
    from tpuctl.datasets.reading import Record as Record
    from tpuctl.datasets.reading import read_records as read_records
    from tpuctl.datasets.tfdata import open_tf_dataset as open_tf_dataset
    from tpuctl.datasets.torchdata import open_torch_dataset as open_torch_dataset
    from tpuctl.datasets.verifying import verify as verify

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Batch": "batches",
        "Batches": "batches",
        "open_batches": "batches",
        "CacheOptions": "cache_models",
        "CacheResult": "cache_models",
        "CopyResult": "cache_models",
        "Cache": "cached",
        "open_cache": "cached",
        "cache": "caching",
        "copy_data_set": "copies",
        "contact_sheet": "describing",
        "describe": "describing",
        "write_sheet": "describing",
        "Description": "models",
        "PresizeOptions": "models",
        "PresizeResult": "models",
        "VerifyResult": "models",
        "yuv420_to_rgb": "planes",
        "presize": "presizing",
        "Record": "reading",
        "read_records": "reading",
        "open_tf_dataset": "tfdata",
        "open_torch_dataset": "torchdata",
        "verify": "verifying",
    },
)
