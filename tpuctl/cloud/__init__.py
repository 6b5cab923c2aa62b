"""Cloud TPUs, from create to delete: what we asked for, what there is, what it costs.

from tpuctl import cloud

cloud.create("t1", "v5e-8", zone="auto", ttl_s=4 * 3600)
cloud.list()
cloud.wait("t1", "ready")
cloud.delete("t1")
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.cloud.verbs import create as create
    from tpuctl.cloud.verbs import delete as delete
    from tpuctl.cloud.verbs import gc as gc
    from tpuctl.cloud.verbs import list as list
    from tpuctl.cloud.verbs import quota as quota
    from tpuctl.cloud.verbs import show as show
    from tpuctl.cloud.verbs import wait as wait

_VERBS = ("create", "list", "show", "wait", "delete", "gc", "quota")


def __getattr__(name: str) -> Any:
    """Load a verb when it is first asked for: each part of this package costs only itself."""
    if name not in _VERBS:
        raise AttributeError(f"module 'tpuctl.cloud' has no attribute {name!r}")
    from tpuctl.cloud import verbs

    return getattr(verbs, name)


def __dir__() -> Iterable[str]:
    """Name the verbs too."""
    return sorted([*globals(), *_VERBS])
