"""Validate requested instances like Compute Engine, and fill in defaults."""

import re
from datetime import datetime
from typing import Any

from tpuctl.emulator.compute.resources import MachineType, machine_types
from tpuctl.emulator.errors import ComputeError, compute_error, load_data
from tpuctl.emulator.methods import Document
from tpuctl.emulator.scenario import ZonePlan
from tpuctl.emulator.world import World

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_MODELS = {
    "STANDARD": "on_demand",
    "SPOT": "spot",
    "FLEX_START": "flex",
    "RESERVATION_BOUND": "reserved",
}
_LONGEST_WAIT_S = 7200
_SHORTEST_RUN_S, _LONGEST_RUN_S, _LONGEST_S = 600, 7 * 86400, 120 * 86400
RESERVATION = "practice"


def check_name(name: Any) -> str:
    """Return the name of a resource; raises ComputeError if it is not valid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise invalid("resource.name", name, why)
    return name


def check_form(value: Any, form: Any, field: str = "resource") -> Any:
    """Return a body without null fields; raises ComputeError for a value of the wrong type."""
    if not isinstance(value, type(form)):
        kind = "an object" if isinstance(form, dict) else "a list" if form else "text"
        raise invalid(field, value, f"It must be {kind}.")
    if isinstance(form, list):
        return [check_form(item, form[0], f"{field}[{at}]") for at, item in enumerate(value)]
    if isinstance(form, str):
        return value
    return {
        key: check_form(item, form[key], f"{field}.{key}") if key in form else item
        for key, item in value.items()
        if item is not None
    }


def invalid(field: str, value: object, why: str) -> ComputeError:
    """Make the error for the value of a field."""
    return compute_error("invalid", field=field, value=value, why=why)


def bad_request(why: str) -> ComputeError:
    """Make the error for contradictory fields."""
    return compute_error("bad_request", why=why)


def last_part(url: object) -> str:
    """Return the last part of a link."""
    return str(url).rpartition("/")[2]


def read_machine(world: World, zone: ZonePlan | None, value: Any) -> MachineType:
    """Return a machine type of a zone, or of any zone; raises ComputeError."""
    machine = find_machine(last_part(value or ""))
    if machine is None or (zone and machine.name.removesuffix("-tpu") not in bare(zone)):
        why = "The referenced resource does not exist."
        raise invalid("resource.machineType", value, why)
    return machine


def bare(zone: ZonePlan) -> set[str]:
    """Return the machine types of a zone by their shorter names."""
    return {name.removesuffix("-tpu") for name in zone.machine_types}


def find_machine(name: str) -> MachineType | None:
    """Find a machine type by either of its names."""
    known = machine_types()
    other = name.removesuffix("-tpu")
    return known.get(name) or known.get(other)


def read_properties(machine: MachineType, properties: Document) -> tuple[Document, str]:
    """Check the properties of an instance or template; return them in full, and the model."""
    document = dict(properties)
    scheduling, model = read_scheduling(document.get("scheduling") or {})
    document["scheduling"] = scheduling
    affinity = document.get("reservationAffinity") or {}
    kind = affinity.get("consumeReservationType", "ANYRESERVATION")
    if model == "reserved" and kind != "SPECIFIC_RESERVATION":
        raise bad_request("RESERVATION_BOUND needs a reservationAffinity of SPECIFIC_RESERVATION.")
    if kind == "SPECIFIC_RESERVATION":
        names = [last_part(value) for value in affinity.get("values", [])]
        if names != [RESERVATION]:
            raise compute_error("reservation", reservation=", ".join(names))
        model = "reserved"
    for disk in document.get("disks") or []:
        _check_disk(machine, disk.get("initializeParams") or {})
    document["metadata"] = read_items(document.get("metadata") or {})
    return document, model


def read_items(metadata: Document) -> dict[str, str]:
    """Return metadata as names and values; raises ComputeError for an item without a name."""
    items = metadata.get("items") or []
    if not all(item.get("key") for item in items):
        raise invalid("metadata.items", items, "Each item must have a key.")
    return {item["key"]: item.get("value", "") for item in items}


def read_scheduling(requested: Document) -> tuple[Document, str]:
    """Check the scheduling of an instance; return it in full, and the provisioning model."""
    scheduling = dict(requested)
    is_spot = scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT"
    name = scheduling.setdefault("provisioningModel", "SPOT" if is_spot else "STANDARD")
    if name not in _MODELS:
        raise invalid("resource.scheduling.provisioningModel", name, "The value is not known.")
    action = scheduling.get("instanceTerminationAction")
    if action not in (None, "STOP", "DELETE"):
        raise invalid("resource.scheduling.instanceTerminationAction", action, "Not known.")
    lasts = seconds(scheduling.get("maxRunDuration"))
    if is_spot and scheduling.get("automaticRestart", True):
        raise compute_error("auto_restart")
    if until := scheduling.get("terminationTime"):
        read_time(until)
    if lasts is not None and until:
        raise bad_request("maxRunDuration and terminationTime are mutually exclusive.")
    _check_model(name, lasts, action)
    usual = name == "STANDARD"
    scheduling["preemptible"] = bool(is_spot)
    scheduling.setdefault("automaticRestart", usual)
    scheduling.setdefault("onHostMaintenance", "TERMINATE")
    if is_spot or lasts is not None or until:
        scheduling.setdefault("instanceTerminationAction", "STOP")
    return scheduling, _MODELS[name]


def _check_model(name: str, lasts: float | None, action: str | None) -> None:
    if name == "FLEX_START":
        if lasts is None or not _SHORTEST_RUN_S <= lasts <= _LONGEST_RUN_S:
            raise bad_request("FLEX_START needs a maxRunDuration from 10 minutes to 7 days.")
        if action != "DELETE":
            raise bad_request("FLEX_START needs the instanceTerminationAction DELETE.")
    if name == "RESERVATION_BOUND" and action != "DELETE":
        raise bad_request("RESERVATION_BOUND needs the instanceTerminationAction DELETE.")


def seconds(duration: Document | None) -> float | None:
    """Read a duration of Compute Engine, with its seconds as text; None if there is none."""
    if not duration:
        return None
    try:
        found = int(duration.get("seconds", 0)) + int(duration.get("nanos", 0)) / 1e9
    except (TypeError, ValueError, OverflowError):
        found = -1
    if not 0 <= found <= _LONGEST_S:
        raise invalid("duration.seconds", duration, f"It must be from 0 to {_LONGEST_S}.")
    return found


def read_time(text: str) -> datetime:
    """Read an RFC 3339 time with a time zone; raises ComputeError."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        found = datetime.min
    if found.tzinfo is None:
        raise invalid("terminationTime", text, "It must be as in RFC 3339.")
    return found


def read_wait(document: Document) -> float:
    """Return how long a flex-start request waits for capacity; raises ComputeError."""
    wait = seconds((document.get("params") or {}).get("requestValidForDuration"))
    if wait is not None and not 0 <= wait <= _LONGEST_WAIT_S:
        field = "resource.params.requestValidForDuration"
        raise invalid(field, f"{wait:g}s", f"It must be from 0 to {_LONGEST_WAIT_S} seconds.")
    return 90.0 if wait is None else wait


def _check_disk(machine: MachineType, disk: Document) -> None:
    data, kind = load_data("compute"), last_part(disk.get("diskType") or "pd-balanced")
    is_hyper = kind.startswith("hyperdisk")
    if machine.generation in data["only_hyperdisk" if not is_hyper else "no_hyperdisk"]:
        raise compute_error("disk_type", disk_type=kind, machine_type=machine.name)
    image = str(disk.get("sourceImage", ""))
    family = re.search(
        r"ubuntu-os-accelerator-images/.*(?:family|imageFamilyViews)/([^/]+)$", image
    )
    if family and family[1] not in data["images"]:
        name = f"projects/ubuntu-os-accelerator-images/global/images/family/{family[1]}"
        raise compute_error("not_found", resource=name)
