"""The Cloud TPU API through Google's own client: the way from settings to an open port."""

from typing import TYPE_CHECKING

from tpuctl.clock import Clock, SteadyClock
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.endpoint import PRACTICE_PROJECT, Endpoint, parse_endpoint
from tpuctl.cloud.quiet import quietly
from tpuctl.cloud.retry import PatientTpuApi, load_patience
from tpuctl.cloud.service_clock import ServiceClock
from tpuctl.errors import MissingExtraError, UnavailableError
from tpuctl.settings import load_settings

if TYPE_CHECKING:
    from tpuctl.cloud._google_channel import Connection


def connect_google(
    project: str | None, *, endpoint: str | None, clock: Clock | None = None
) -> TpuApi:
    """Open the API with credentials from the environment; no request is sent.

    `clock` is one that an emulator in this process shares with us: it runs at the emulator's pace.
    """
    settings = load_settings({"project": project, "tpu_endpoint": endpoint})
    where = parse_endpoint(settings["tpu_endpoint"])
    if where.is_local and (reason := where.knock()):
        raise UnavailableError(
            f"No emulator answers at {where.address}: {reason}.",
            hint="tpuctl emulator start (or unset TPUCTL_TPU_ENDPOINT to use Google's service)",
        )
    _import_vendor()
    from tpuctl.cloud._google_api import GoogleTpuApi

    patience, rates = load_patience()
    found, connection = _connect(where, settings["project"], clock)
    api = GoogleTpuApi(connection, project=found, patience=patience)
    return PatientTpuApi(api, patience, rates, connection.clock)


def _connect(where: Endpoint, project: str | None, clock: Clock | None) -> "tuple[str, Connection]":
    from tpuctl.cloud._google_api import log_in
    from tpuctl.cloud._google_channel import Connection

    service_clock = ServiceClock(clock or SteadyClock())
    is_paced = clock is not None
    if where.is_local:
        return project or PRACTICE_PROJECT, Connection(where, None, service_clock, is_paced)
    login = log_in(project)
    return login.project, Connection(where, login.credentials, service_clock, is_paced)


def _import_vendor() -> None:
    try:
        with quietly():
            import google.cloud.tpu_v2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "Talking to Cloud TPUs", extra="gcp", module="google-cloud-tpu"
        ) from error
