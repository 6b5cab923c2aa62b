"""`--provider auto`: the control plane that has the type, the zone and the quota, and why."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tpuctl.cloud.connect import connect
from tpuctl.cloud.lookup import attempt, attempt_all
from tpuctl.cloud.models import Quota
from tpuctl.cloud.quotas import chips_allowed
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.hardware.compute_engine import CLOUD_TPU, GCE, describe_on, hardware_of
from tpuctl.hardware.types import AcceleratorType, describe
from tpuctl.providers.port import Provider
from tpuctl.providers.registry import (
    AUTO,
    CONTROL_PLANES,
    OnWarning,
    chosen_control_plane,
    configured_control_planes,
    control_plane_in_journal,
    hosted_owner,
    is_control_plane,
    open_provider,
    open_to_create,
    owner_of,
)

TITLES = {CLOUD_TPU: "the Cloud TPU API", GCE: "Compute Engine"}
_ONLY = {CLOUD_TPU: ("queued", "reserved", "runtime_version"), GCE: ("flex", "reservation")}
_FLAGS = {"runtime_version": "--runtime-version"}


def choose_control_plane(
    accelerator_type: str,
    zones: Sequence[str],
    options: Mapping[str, Any],
    *,
    project: str | None = None,
) -> tuple[str, str]:
    """Choose a control plane for a create, and say why; reads quotas where both would do.

    Raises UsageError for an unknown type.
    """
    kind = describe(accelerator_type)
    usable = configured_control_planes()
    if len(usable) == 1:
        return usable[0], f"{TITLES[usable[0]]}: the other control plane is not set up"
    for control_plane, names in _ONLY.items():
        if given := [name for name in names if options.get(name)]:
            return (
                control_plane,
                f"{TITLES[control_plane]}: only it has {_FLAGS.get(given[0], f'--{given[0]}')}",
            )
    hardware = hardware_of(kind.generation)
    if not kind.runtime_version:
        return GCE, f"Compute Engine: the Cloud TPU API does not have {kind.generation}"
    if hardware is None or hardware.note:
        why = hardware.note if hardware else f"Compute Engine does not have {kind.generation}"
        return CLOUD_TPU, f"the Cloud TPU API: {why}"
    kinds = {
        control_plane: describe_on(control_plane, accelerator_type)
        for control_plane in CONTROL_PLANES
    }
    here = {
        control_plane: [z for z in zones or each.zones if z in each.zones]
        for control_plane, each in kinds.items()
    }
    having = [control_plane for control_plane in CONTROL_PLANES if here[control_plane]]
    if len(having) == 1:
        return having[
            0
        ], f"{TITLES[having[0]]}: only it has {kind.generation} in {', '.join(zones)}"
    return _by_quota(kind, here, options, project)


def provider_to_watch(
    name: str,
    accelerator_type: str | None,
    zone: str | Sequence[str] | None,
    options: Mapping[str, Any],
    *,
    provider: str | None = None,
    project: str | None = None,
    on_warning: OnWarning = lambda text: None,
) -> Provider:
    """Return the provider of a TPU; if it does not exist, the one to create it with.

    Raises UsageError where `provider` is not the one that has a TPU of that name.
    """
    if provider not in (None, AUTO):
        return open_to_create(str(provider), name, project=project, on_warning=on_warning)
    is_google = isinstance(zone, str) and zone != AUTO and not hosted_owner(name)
    one = str(zone) if is_google else None
    owner = owner_of(name, zone=one, project=project, on_warning=on_warning)
    if not is_control_plane(owner) or not accelerator_type or len(configured_control_planes()) == 1:
        return owner
    if control_plane_in_journal(name, project) or chosen_control_plane():
        return owner
    if not isinstance(attempt(partial(owner.get, name, None)), NotFoundError):
        return owner
    zones = (
        () if zone in (None, "auto") else (zone,) if isinstance(zone, str) else tuple(zone or ())
    )
    control_plane = choose_control_plane(accelerator_type, zones, options, project=project)[0]
    return open_provider(control_plane, project=project, on_warning=on_warning)


def _by_quota(
    kind: AcceleratorType,
    zones: Mapping[str, Sequence[str]],
    options: Mapping[str, Any],
    project: str | None,
) -> tuple[str, str]:
    def read(control_plane: str) -> tuple[Quota, ...]:
        return connect(project, control_plane=control_plane).list_quotas()

    answers = attempt_all(
        [partial(read, control_plane) for control_plane in CONTROL_PLANES], at_once=2
    )
    known = {
        p: () if isinstance(a, TpuctlError) else a
        for p, a in zip(CONTROL_PLANES, answers, strict=True)
    }
    spot = bool(options.get("spot"))
    limits = {
        control_plane: [
            chips_allowed(known[control_plane], kind.generation, zone, spot=spot)
            for zone in zones[control_plane]
        ]
        for control_plane in CONTROL_PLANES
    }
    fits = {
        p: any(each is not None and each >= kind.chips for each in limits[p])
        for p in CONTROL_PLANES
    }
    fitting = [control_plane for control_plane in CONTROL_PLANES if fits[control_plane]]
    text = " and ".join(f"{_best(limits[p])} on {TITLES[p]}" for p in CONTROL_PLANES)
    if len(fitting) == 1:
        return fitting[0], f"{TITLES[fitting[0]]}: quota of {kind.generation} chips is {text}"
    both = "both have the quota" if fitting else "neither is known to have the quota"
    return CLOUD_TPU, f"the Cloud TPU API: {both} ({text}), and its READY means that the TPU is up"


def _best(limits: Sequence[int | None]) -> str:
    known = [limit for limit in limits if limit is not None]
    return str(max(known)) if known else "unknown"
