"""What a scenario lets go wrong with requests to Cloud Storage."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tpuctl.emulator.reading import Reader
from tpuctl.emulator.storage.requests import Disturbance

STORAGE_METHODS = {
    "storage_insert": "storage.objects.create",
    "storage_upload_chunk": "storage.objects.create",
    "storage_get": "storage.objects.get",
    "storage_stat": "storage.objects.get",
    "storage_list": "storage.objects.list",
    "storage_delete": "storage.objects.delete",
    "storage_compose": "storage.objects.create",
    "storage_patch": "storage.objects.update",
    "storage_get_bucket": "storage.buckets.get",
    "storage_list_buckets": "storage.buckets.list",
    "storage_insert_bucket": "storage.buckets.create",
    "storage_delete_bucket": "storage.buckets.delete",
}
"""Every method, and the permission that the caller must have for it."""

REFUSALS = (
    "rate_limit", "unavailable", "internal", "deadline", "permission", "unauthenticated",
    "not_found",
)  # fmt: skip
DISTURBANCES = ("cut", "stall", "corrupt")


@dataclass(frozen=True)
class StorageFault:
    """An error planned for the nth request of a method, and for every nth after it with `every`.

    It is a refusal, or a disturbance of the bytes of the request or the reply after `after_bytes`;
    `after_accept`: the work is done first.
    """

    on: str
    name: str
    nth: int
    every: bool
    error: str
    after_accept: bool
    after_bytes: int
    for_s: float

    @property
    def disturbance(self) -> Disturbance | None:
        """What happens to bytes, if it is no refusal."""
        if self.error not in DISTURBANCES:
            return None
        return Disturbance(self.error, self.after_bytes, self.for_s)


def read_fault(fault: Reader, on: str) -> StorageFault:
    """Understand a fault of a storage method; raises InvalidInputError that names the place."""
    fault.allow("on name nth every error after_accept after_bytes for_s")
    after_accept = fault.flag("after_accept")
    default = "unavailable" if after_accept else None
    error = fault.choice("error", (*REFUSALS, *DISTURBANCES), default)
    if error not in DISTURBANCES and fault.has("after_bytes"):
        raise fault.error("after_bytes", f"is for {', '.join(DISTURBANCES)}")
    if error != "stall" and fault.has("for_s"):
        raise fault.error("for_s", "is for stall")
    if error == "corrupt" and on not in ("storage_get", "storage_insert", "storage_upload_chunk"):
        raise fault.error("error", f"cannot be 'corrupt': {on} carries no bytes")
    return StorageFault(
        on=on,
        name=fault.text("name", "*") or "*",
        nth=fault.count("nth", 1, least=1),
        every=fault.flag("every"),
        error=error,
        after_accept=after_accept,
        after_bytes=fault.count("after_bytes", 0),
        for_s=fault.number("for_s", 60.0),
    )


class StorageFaults:
    """The planned faults, and how often each was matched."""

    def __init__(self, plans: Sequence[StorageFault], counts: Sequence[int]) -> None:
        self._plans = plans
        self._lock = threading.Lock()
        self.counts = list(counts) if len(counts) == len(plans) else [0] * len(plans)

    def due(self, method: str, about: str) -> tuple[StorageFault | None, bool]:
        """Count a request; give the first fault that is due, and whether any was matched."""
        matching = [
            index
            for index, plan in enumerate(self._plans)
            if plan.on == method and fnmatchcase(about, plan.name)
        ]
        with self._lock:
            due = [plan for index in matching if (plan := self._count(index))]
        return (due[0] if due else None), bool(matching)

    def _count(self, index: int) -> StorageFault | None:
        plan = self._plans[index]
        self.counts[index] += 1
        count = self.counts[index]
        hit = count % plan.nth == 0 if plan.every else count == plan.nth
        return plan if hit else None
