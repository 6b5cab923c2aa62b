"""Open a control plane and reconcile the journal: the first step of every cloud command."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.clock import Clock, SteadyClock
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.endpoint import GOOGLE, PRACTICE_PROJECT, Endpoint, parse_endpoint, quietly
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import ALL_ZONES, AUTO_ZONE
from tpuctl.cloud.requests import reconcile, zombie_warning
from tpuctl.cloud.retry import load_request_limits, with_retries
from tpuctl.cloud.service_clock import ServiceClock
from tpuctl.errors import (
    InvalidInputError,
    MissingExtraError,
    TryAgainError,
    UnavailableError,
    UsageError,
)
from tpuctl.hardware.compute_engine import CLOUD_TPU, GCE
from tpuctl.settings import load_settings

if TYPE_CHECKING:
    from tpuctl.cloud._google_channel import Connection


@dataclass(frozen=True)
class Cloud:
    """The API of one project, and the journal of its creates."""

    api: TpuApi
    journal: Journal


def open_cloud(
    project: str | None = None,
    *,
    control_plane: str = CLOUD_TPU,
    on_warning: Callable[[str], None] = lambda text: None,
) -> Cloud:
    """Connect to a project and reconcile the journal; warns of what earlier creates have left.

    Raises what `connect` raises.
    """
    cloud = Cloud(connect(project, control_plane=control_plane), Journal())
    try:
        for entry in reconcile(cloud.api, cloud.journal):
            on_warning(zombie_warning(entry))
    except TryAgainError as error:
        on_warning(f"Could not check earlier create requests: {error}")
    return cloud


_ENDPOINTS = {CLOUD_TPU: "tpu_endpoint", GCE: "gce_endpoint"}


def control_plane_is_set(control_plane: str) -> bool:
    """Whether a control plane may be asked: not Google's while the other one is an emulator's."""
    settings = load_settings()
    own, *others = sorted(_ENDPOINTS, key=lambda name: name != control_plane)
    if settings[_ENDPOINTS[own]]:
        return True
    return not any(parse_endpoint(settings[_ENDPOINTS[other]]).is_local for other in others)


def chosen_zone(zone: str | None, *, all_zones: bool = False) -> str | None:
    """Return the given zone or the one from the settings; None means all zones, as does auto."""
    if all_zones or zone == ALL_ZONES:
        return None
    chosen: str | None = load_settings({"zone": zone})["zone"]
    return None if chosen == AUTO_ZONE else chosen


def zone_to_delete_in(zone: str | None, *, everything: bool) -> str | None:
    """Return the zone as `chosen_zone` does, except that no project file chooses what is deleted.

    Then a name is looked up in all zones; raises UsageError where everything is to be deleted.
    """
    settings = load_settings({"zone": zone})
    chosen, source = settings["zone"], settings.source_of("zone")
    if everything and chosen == AUTO_ZONE:
        raise UsageError("--all needs a zone, not auto.", hint="For all zones: --zone -")
    if zone or source != settings.project_file:
        return chosen_zone(zone)
    if everything:
        raise UsageError(
            f"--all needs a zone: {chosen} was chosen by {source}, which may have come with a "
            "repository.",
            hint=f"Add --zone {chosen} to the same command, or --zone - for all zones.",
        )
    return None


def connect(
    project: str | None = None,
    *,
    control_plane: str = CLOUD_TPU,
    endpoint: str | None = None,
    clock: Clock | None = None,
) -> TpuApi:
    """Open a control plane with deadlines, retries and a rate limit; sends no request.

    `project` and `endpoint` default to the settings. `clock` is shared with an emulator in this
    process. Raises MissingExtraError, NotLoggedInError, UnavailableError where no emulator answers,
    and InvalidInputError for an unknown project or an endpoint that we do not trust.
    """
    key = _ENDPOINTS[control_plane]
    settings = load_settings({"project": project, key: endpoint})
    if not endpoint and not control_plane_is_set(control_plane):
        raise InvalidInputError(
            f"TPUCTL_{key.upper()} is not set, but the other control plane is an emulator's.",
            hint="Run all the export lines that `tpuctl emulator start` prints.",
        )
    where = parse_endpoint(settings[key], default=_SERVICES[control_plane])
    if where.is_local and (reason := where.check_reachable()):
        raise UnavailableError(
            f"No emulator answers at {where.address}: {reason}.",
            hint=f"tpuctl emulator start (or unset TPUCTL_{key.upper()} to use Google's service)",
        )
    try:
        with quietly():
            adapter = _adapter(control_plane)
    except ImportError as error:
        if (error.name or "").startswith("tpuctl"):
            raise
        raise MissingExtraError(
            "Talking to Cloud TPUs", extra="gcp", module="google-cloud-tpu"
        ) from error
    limits = load_request_limits()
    found, connection = _log_in(where, settings["project"], clock)
    api: TpuApi = adapter(connection, project=found, limits=limits)
    return with_retries(api, limits, connection.clock)


_SERVICES = {CLOUD_TPU: GOOGLE, GCE: "compute.googleapis.com"}


def _adapter(control_plane: str) -> Any:
    if control_plane == GCE:
        from tpuctl.cloud.gce._api import ComputeApi

        return ComputeApi
    from tpuctl.cloud._google_api import GoogleTpuApi

    return GoogleTpuApi


def _log_in(where: Endpoint, project: str | None, clock: Clock | None) -> "tuple[str, Connection]":
    from tpuctl.cloud._google_channel import Connection, log_in

    service_clock, is_paced = ServiceClock(clock or SteadyClock()), clock is not None
    if where.is_local:
        return project or PRACTICE_PROJECT, Connection(where, None, service_clock, is_paced)
    login = log_in(project)
    return login.project, Connection(where, login.credentials, service_clock, is_paced)
