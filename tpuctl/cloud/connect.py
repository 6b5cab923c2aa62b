"""The first step of every cloud command: connect, and settle what an earlier one left open."""

from dataclasses import dataclass

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import ALL_ZONES
from tpuctl.cloud.requests import reconcile
from tpuctl.errors import TryAgainError
from tpuctl.settings import load_settings


@dataclass(frozen=True)
class Cloud:
    """The API of one project, the journal of what we asked it for, and what that warns of."""

    api: TpuApi
    journal: Journal
    warnings: tuple[str, ...] = ()


def open_cloud(project: str | None = None) -> Cloud:
    """Connect to the project given or set, and settle the journal; raises what `connect` raises."""
    api, journal = connect(project), Journal()
    try:
        return Cloud(api, journal, reconcile(api, journal).warnings)
    except TryAgainError as error:
        return Cloud(api, journal, (f"Could not look after earlier requests: {error}",))


def chosen_zone(zone: str | None, *, all_zones: bool = False) -> str | None:
    """The zone given or set, or None for all of them."""
    if all_zones or zone == ALL_ZONES:
        return None
    return load_settings({"zone": zone})["zone"]


def connect(project: str | None = None, *, endpoint: str | None = None) -> TpuApi:
    """Open the Cloud TPU API, with deadlines, retries and a rate limit of its own.

    `project` and `endpoint` come from the settings when not given. Raises MissingExtraError,
    NotLoggedInError, and InvalidInputError for a project that cannot be told or an endpoint that is
    neither Google's nor on this machine.
    """
    from tpuctl.cloud._google import connect_google

    return connect_google(project, endpoint=endpoint)
