"""Cloud TPUs, from create to delete: what we asked for, what there is, what it costs.

from tpuctl import cloud

cloud.create("t1", "v5e-8", zone="auto", ttl_s=4 * 3600)
cloud.list()
cloud.wait("t1", "ready")
cloud.delete("t1")
"""

from typing import TYPE_CHECKING

from tpuctl.lazy import lazy

if TYPE_CHECKING:
    from tpuctl.cloud.verbs import create as create
    from tpuctl.cloud.verbs import delete as delete
    from tpuctl.cloud.verbs import gc as gc
    from tpuctl.cloud.verbs import list as list
    from tpuctl.cloud.verbs import quota as quota
    from tpuctl.cloud.verbs import show as show
    from tpuctl.cloud.verbs import wait as wait

_VERBS = ("create", "list", "show", "wait", "delete", "gc", "quota")

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(_VERBS, "verbs"))
