"""The faults of a scenario, and which of them are due."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from tpuctl.emulator.compute.methods import COMPUTE_METHODS, ComputeMethod
from tpuctl.emulator.http import ByteFault, ConnectionCut
from tpuctl.emulator.methods import METHODS, Method
from tpuctl.emulator.strict_json import ObjectReader

UNFINISHED = "unfinished"
"""The work is done, but the operation never reports it."""
ERRORS = (
    "stockout", "quota", "rate_limit", "permission", "unavailable", "internal", "not_found",
    "already_exists", "deadline", "api_disabled", "zone_hidden", "reservation", "busy", UNFINISHED,
)  # fmt: skip
EVENTS = ("preempt", "vanish", "maintenance", "worker_down", "worker_busy", "suspend")
INSTANCE_EVENTS = (*EVENTS[:-1], "host_error", "expire")
COMPUTE_ERRORS = (
    *ERRORS, "stockout_details", "disguised_stockout", "allowlist", "preempted", "external_ip",
    "subnet", "disk_type",
)  # fmt: skip
STORAGE_METHODS = {
    "storage_insert": "storage.objects.create",
    "storage_upload_chunk": "storage.objects.create",
    "storage_get": "storage.objects.get",
    "storage_stat": "storage.objects.get",
    "storage_list": "storage.objects.list",
    "storage_delete": "storage.objects.delete",
    "storage_compose": "storage.objects.create",
    "storage_patch": "storage.objects.update",
    "storage_copy": "storage.objects.create",
    "storage_move": "storage.objects.move",
    "storage_get_bucket": "storage.buckets.get",
    "storage_list_buckets": "storage.buckets.list",
    "storage_patch_bucket": "storage.buckets.update",
    "storage_insert_bucket": "storage.buckets.create",
    "storage_delete_bucket": "storage.buckets.delete",
}
"""Every method of Cloud Storage, with the permission that it requires."""
KAGGLE_METHODS = (
    "kaggle_push", "kaggle_status", "kaggle_output", "kaggle_quota", "kaggle_list", "kaggle_get",
    "kaggle_delete", "kaggle_token", "kaggle_logs", "kaggle_download", "kaggle_start_upload",
    "kaggle_upload", "kaggle_create_data", "kaggle_version_data", "kaggle_data_status",
    "kaggle_delete_data", "kaggle_session",
)  # fmt: skip
GKE_METHODS = ("gke", "gke_create", "gke_get", "gke_list", "gke_patch", "gke_delete", "gke_logs")
KAGGLE_SESSION_FAULTS = ("no_tpu", "late_mounts", "no_internet", "complete_anyway")
"""Faults of a whole session, whose `on` is kaggle_session."""
STORAGE_ERRORS = (
    "rate_limit", "unavailable", "internal", "deadline", "permission", "unauthenticated",
    "not_found",
)  # fmt: skip
_DATA = ("storage_get", "storage_insert", "storage_upload_chunk", "kaggle_download")
BYTE_FAULTS = ("cut", "stall", "corrupt")
CALLS: dict[str, Method | ComputeMethod] = {**METHODS, **COMPUTE_METHODS}
_HOSTS = ("node", "instance")


@dataclass(frozen=True)
class CallFault:
    """An error for the nth call of a method or, with `every`, for every nth.

    The call returns it (`where` "rpc"), the call returns it although the work is done
    (`after_accept`), or the operation ends with it `after_s` seconds later (`where` "operation").
    """

    on: str
    zone: str
    name: str
    nth: int
    every: bool
    error: str
    where: str
    after_s: float
    after_accept: bool


@dataclass(frozen=True)
class NodeEvent:
    """What happens to the nth node with a name, `at_s` seconds after its creation was accepted."""

    zone: str
    name: str
    event: str
    at_s: float
    nth: int
    every: bool
    worker: int
    for_s: float
    duty_cycle_percent: float | None = None
    on: str = "node"


@dataclass(frozen=True)
class StorageFault:
    """An error for the nth HTTP request of a method or, with `every`, for every nth.

    It is an error reply, or damage to the bytes of the request or the reply after `after_bytes`.
    With `after_accept` the work is done first. On GKE, all requests of its kind fail with it for
    `for_s` seconds.
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
    def byte_fault(self) -> ByteFault | None:
        """The damage to the bytes; None for an error reply."""
        if self.error not in BYTE_FAULTS:
            return None
        return ByteFault(self.error, self.after_bytes, self.for_s)

    def apply(self, error: Callable[[str], Exception]) -> None:
        """Answer a whole request late, not at all, or with an error of its API."""
        if self.error == "stall":
            time.sleep(self.for_s)
        elif self.byte_fault:
            raise ConnectionCut
        else:
            raise error(self.error)


Fault = CallFault | NodeEvent | StorageFault
F = TypeVar("F", bound=Fault)


class FaultCounts(Generic[F]):
    """Planned faults, and how often each has been matched."""

    def __init__(self, plans: Sequence[F], counts: Sequence[int] = ()) -> None:
        self._plans = plans
        self.counts = list(counts) if len(counts) == len(plans) else [0] * len(plans)

    def due(self, matches: Callable[[F], bool]) -> list[F]:
        """Count a match for every fault that `matches` accepts; return those that are due now."""
        found = []
        for index, plan in enumerate(self._plans):
            if matches(plan):
                self.counts[index] += 1
                count = self.counts[index]
                if count % plan.nth == 0 if plan.every else count == plan.nth:
                    found.append(plan)
        return found


def fault_matches(fault: CallFault | NodeEvent, zone: str, name: str) -> bool:
    """Whether the patterns of a fault match a zone and a name in it."""
    return fnmatchcase(zone, fault.zone) and fnmatchcase(name, fault.name)


def read_fault(fault: ObjectReader) -> Fault:
    """Read one fault of a scenario; raises InvalidInputError with its place in the file."""
    known = (*METHODS, *COMPUTE_METHODS, *STORAGE_METHODS, *KAGGLE_METHODS, *GKE_METHODS, *_HOSTS)
    on = fault.choice("on", known)
    if on in _HOSTS:
        return _host_event(fault, on)
    return _storage_fault(fault, on) if on not in CALLS else _call_fault(fault, on)


def _host_event(fault: ObjectReader, on: str) -> NodeEvent:
    fault.allow("on zone name nth every event at_s worker for_s duty_cycle_percent")
    return NodeEvent(
        zone=fault.text("zone", "*"),
        name=fault.text("name", "*"),
        event=fault.choice("event", EVENTS if on == "node" else INSTANCE_EVENTS),
        at_s=fault.number("at_s", 0.0),
        nth=fault.count("nth", 1, least=1),
        every=fault.flag("every"),
        worker=fault.count("worker", 0),
        for_s=fault.number("for_s", 600.0),
        duty_cycle_percent=fault.number("duty_cycle_percent", 0.0, most=100)
        if "duty_cycle_percent" in fault
        else None,
        on=on,
    )


def _call_fault(fault: ObjectReader, on: str) -> CallFault:
    fault.allow("on zone name nth every error where after_s after_accept")
    after_accept, starts_operation = fault.flag("after_accept"), CALLS[on].starts_operation
    errors = ERRORS if on in METHODS else COMPUTE_ERRORS
    error = fault.choice("error", errors, "unavailable" if after_accept else None)
    # A stockout is never a reply, and only an operation can fail later.
    late = (
        starts_operation
        and not after_accept
        and (error.endswith(("stockout", UNFINISHED)) or "after_s" in fault)
    )
    where = fault.choice("where", ("rpc", "operation"), "operation" if late else "rpc")
    if where == "operation" and not starts_operation:
        raise fault.error("where", f"cannot be 'operation': {on} does not start one")
    if error == UNFINISHED and where == "rpc":
        raise fault.error("error", "'unfinished' is only for an operation")
    if where == "operation" and after_accept:
        raise fault.error("after_accept", "loses the reply, so `where` must be 'rpc'")
    return CallFault(
        on=on,
        zone=fault.text("zone", "*"),
        name=fault.text("name", "*"),
        nth=fault.count("nth", 1, least=1),
        every=fault.flag("every"),
        error=error,
        where=where,
        after_s=fault.number("after_s", 20.0),
        after_accept=after_accept,
    )


def _storage_fault(fault: ObjectReader, on: str) -> StorageFault:
    fault.allow("on name nth every error after_accept after_bytes for_s")
    after_accept = fault.flag("after_accept")
    default = "unavailable" if after_accept else None
    errors = (*STORAGE_ERRORS, *BYTE_FAULTS, *(["refused"] if on == "kaggle_push" else []))
    if on == "kaggle_session":
        errors = KAGGLE_SESSION_FAULTS
    error = fault.choice("error", errors, default)
    if error not in BYTE_FAULTS and "after_bytes" in fault:
        raise fault.error("after_bytes", f"is only for {', '.join(BYTE_FAULTS)}")
    if error != "stall" and on not in GKE_METHODS and "for_s" in fault:
        raise fault.error("for_s", "is only for stall")
    if error == "corrupt" and on not in _DATA:
        raise fault.error("error", f"cannot be 'corrupt': {on} transfers no data")
    return StorageFault(
        on=on,
        name=fault.text("name", "*"),
        nth=fault.count("nth", 1, least=1),
        every=fault.flag("every"),
        error=error,
        after_accept=after_accept,
        after_bytes=fault.count("after_bytes", 0),
        for_s=fault.number("for_s", 60.0 if error == "stall" else 0.0),
    )
