"""Validation of requests: names, labels, types, and fields that exclude each other."""

import re
from datetime import datetime, timedelta

from tpuctl.emulator.documents import accelerator_config
from tpuctl.emulator.errors import api_error, bad_request, load_data
from tpuctl.emulator.methods import Document
from tpuctl.emulator.resources import NodeSpec, timestamp
from tpuctl.emulator.scenario import ZonePlan, known_type
from tpuctl.hardware.types import AcceleratorType

_NODE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_QUEUED_ID = re.compile(r"[A-Za-z0-9_.~+%-]{1,63}")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_METADATA_KEY = re.compile(r"[A-Za-z0-9_-]{1,127}")
_MOST_LABELS, _MOST_TAGS, _LONGEST_DESCRIPTION = 64, 64, 512
_MOMENTS = ("validAfterTime", "validUntilTime")
_LONGEST_WAIT_S = 366 * 86400
_LARGEST_VALUE, _LARGEST_METADATA = 256 << 10, 512 << 10

# Fields that are output only in the API: what a client sends there is ignored.
_OUTPUT_ONLY = (
    "name", "state", "health", "healthDescription", "createTime", "networkEndpoints", "id",
    "apiVersion", "symptoms", "queuedResource", "multisliceNode",
)  # fmt: skip


def check_node_id(name: str) -> str:
    """Return the id of a node; raises ApiError for one that is not valid."""
    if not _NODE_ID.fullmatch(name):
        raise bad_request(
            f'Invalid node id "{name}": it must start with a lowercase letter, hold only lowercase'
            " letters, digits and hyphens, not end with a hyphen, and have at most 63 characters."
        )
    return name


def check_queued_id(name: str) -> str:
    """Return the id of a queued resource; raises ApiError for one that is not valid."""
    if not _QUEUED_ID.fullmatch(name):
        raise bad_request(
            f'Invalid queued resource id "{name}": it must match ^[A-Za-z0-9_.~+%-]+$.'
        )
    return name


def read_node(
    zone: ZonePlan, document: Document, *, tier: str | None = None, reservation: bool = False
) -> NodeSpec:
    """Read a requested node; `tier` and `reservation` are those of its queued resource."""
    spec = {key: value for key, value in document.items() if key not in _OUTPUT_ONLY}
    version = spec.get("runtimeVersion")
    if not version:
        raise bad_request("The field runtime_version is required.")
    if version not in load_data("service")["runtime_versions"]:
        raise bad_request(f'The runtime version "{version}" does not exist.')
    check_fields(spec)
    kind = _type_of(zone, spec)
    if spec.get("networkConfig") and spec.get("networkConfigs"):
        raise bad_request("network_config and network_configs are mutually exclusive.")
    scheduling = dict(spec.get("schedulingConfig", {}))
    if tier == "spot":
        scheduling["spot"] = True
    model = scheduling.get("provisioningModel")
    spot = bool(scheduling.get("spot") or scheduling.get("preemptible") or model == "SPOT")
    reserved = bool(scheduling.get("reserved") or reservation or model == "RESERVATION_BOUND")
    if scheduling.get("spot") and scheduling.get("preemptible"):
        raise bad_request("spot and preemptible are mutually exclusive.")
    if spot and reserved:
        raise bad_request("A spot or preemptible node cannot be created under a reservation.")
    spec |= {"acceleratorType": kind.accelerator_type, "schedulingConfig": scheduling}
    return NodeSpec(spec, kind, spot=spot, reserved=reserved)


def check_fields(document: Document) -> None:
    """Raise ApiError for labels, tags, metadata or a description that are not valid."""
    labels, metadata = document.get("labels", {}), document.get("metadata", {})
    if len(labels) > _MOST_LABELS:
        raise bad_request(f"A node has at most {_MOST_LABELS} labels.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise bad_request(
                f'Invalid label "{key}={value}": keys start with a lowercase letter; keys and'
                " values have at most 63 lowercase letters, digits, _ and -."
            )
    if not all(_METADATA_KEY.fullmatch(key) for key in metadata):
        raise bad_request(f"Invalid metadata key in {sorted(metadata)}.")
    sizes = [len(str(value).encode()) for value in metadata.values()]
    if any(size > _LARGEST_VALUE for size in sizes) or sum(sizes) > _LARGEST_METADATA:
        raise bad_request("The metadata is too large: at most 256 KiB a value, 512 KiB in all.")
    tags = document.get("tags", [])
    if len(tags) > _MOST_TAGS or not all(_NODE_ID.fullmatch(tag) for tag in tags):
        raise bad_request(f"Invalid tags {tags}: at most {_MOST_TAGS}, each a valid name.")
    if len(document.get("description", "")) > _LONGEST_DESCRIPTION:
        raise bad_request(f"The description has more than {_LONGEST_DESCRIPTION} characters.")


def read_window(policy: Document, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Read the period in which a queued resource may be provisioned."""
    interval = policy.get("validInterval", {})
    opens = _moment(policy, "validAfter", now) or _time(interval.get("startTime"))
    closes = _moment(policy, "validUntil", now) or _time(interval.get("endTime"))
    if closes and closes <= max(now, opens or now):
        raise bad_request("The queueing policy ends before a request could be provisioned.")
    return opens, closes


def in_emulated_time(policy: Document, now: datetime, real: datetime) -> Document:
    """Move a period to the emulated future if it is past here, but not by the client's clock.

    Clients such as gcloud add the requested durations to the time of their own machine.
    """
    moments = [policy.get(key) for key in _MOMENTS]
    interval = policy.get("validInterval", {})
    moments += interval.values()
    if not any(real < moment <= now for moment in map(_time, moments) if moment):
        return policy

    def moved(text: str) -> str:
        return timestamp((_time(text) or now) + (now - real))

    changed: Document = {key: moved(policy[key]) for key in _MOMENTS if key in policy}
    if interval:
        changed["validInterval"] = {key: moved(text) for key, text in interval.items()}
    return {**policy, **changed}


def _moment(policy: Document, name: str, now: datetime) -> datetime | None:
    if text := policy.get(f"{name}Duration"):
        seconds = float(text.removesuffix("s"))
        if not 0 <= seconds <= _LONGEST_WAIT_S:
            raise bad_request(f"{name}Duration must be from 0 to {_LONGEST_WAIT_S} seconds.")
        return now + timedelta(seconds=seconds)
    return _time(policy.get(f"{name}Time"))


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    # Google writes up to nine digits; Python 3.10 reads exactly three or six.
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00")


def _type_of(zone: ZonePlan, spec: Document) -> AcceleratorType:
    name, config = spec.get("acceleratorType", ""), spec.get("acceleratorConfig", {})
    if name and config:
        raise bad_request("accelerator_type and accelerator_config are mutually exclusive.")
    if not name and not config:
        raise bad_request("One of accelerator_type and accelerator_config is required.")
    for known in zone.types:
        kind = known_type(known)
        if known == name or (config and config == accelerator_config(kind)):
            return kind
    wanted = name or f"{config.get('type')} {config.get('topology')}"
    raise api_error("bad_type", type=wanted, zone=zone.name, types=", ".join(zone.types))
