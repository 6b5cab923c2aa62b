"""The login, channels to Google's services, and their exceptions as our errors."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import google.auth.exceptions
import google.auth.transport.grpc
import google.auth.transport.requests
import grpc
import requests
from google.api_core.exceptions import GoogleAPICallError
from google.rpc import error_details_pb2, status_pb2

from tpuctl.cloud.endpoint import Endpoint
from tpuctl.cloud.error_table import Fault, RequestContext, translate
from tpuctl.cloud.service_clock import ServiceClock, read_time
from tpuctl.errors import InvalidInputError, NotLoggedInError, TpuctlError, first_line
from tpuctl.runtime.metadata_server import MetadataServer
from tpuctl.storage._credentials import find_credentials

UNKNOWN, UNAVAILABLE = 2, 14
LOGIN_COMMAND = "gcloud auth application-default login"


SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


@dataclass(frozen=True)
class GoogleLogin:
    """Credentials and the project to use."""

    credentials: Any
    project: str


def log_in(project: str | None) -> GoogleLogin:
    """Find this machine's credentials, and the project if none is given.

    Raises NotLoggedInError, and InvalidInputError without a project.
    """
    credentials, found = find_credentials(
        SCOPES,
        is_on_google=lambda: MetadataServer(os.environ).answers,
        with_project=not project,
    )
    project = project or found or getattr(credentials, "quota_project_id", None)
    if not project:
        raise InvalidInputError(
            "No Google Cloud project is set, and this machine's login does not name one.",
            hint="export TPUCTL_PROJECT=YOUR_PROJECT (or --project; to list yours: "
            "gcloud projects list)",
        )
    return GoogleLogin(credentials, project)


@contextmanager
def translated_errors(context: RequestContext) -> Iterator[None]:
    """Turn every exception of Google's libraries into a TpuctlError."""
    # `from None` everywhere: the cause repeats the service's message with any secrets in it.
    try:
        yield
    except GoogleAPICallError as error:
        code = error.grpc_status_code.value[0] if error.grpc_status_code else UNKNOWN
        fault = _fault(code, error.message or "", error.details or [])
        raise translate(fault, context) from None
    except google.auth.exceptions.TransportError as error:
        raise translate(Fault(UNAVAILABLE, str(error)), context) from None
    except google.auth.exceptions.GoogleAuthError as error:
        message = f"{context.doing}: this machine's login does not work: {first_line(error)}"
        raise NotLoggedInError(message, hint=LOGIN_COMMAND) from None
    except requests.exceptions.RequestException as error:
        raise translate(Fault(UNAVAILABLE, first_line(error)), context) from None


def error_of_status(status: status_pb2.Status, context: RequestContext) -> TpuctlError:
    """Translate the error that ended an operation."""
    details = [_unpacked(detail) for detail in status.details]
    return translate(_fault(status.code, status.message, details, in_operation=True), context)


def _fault(code: int, message: str, details: list[Any], *, in_operation: bool = False) -> Fault:
    reason, service, violations, retry_after_s = "", "", [], None
    for detail in details:
        if isinstance(detail, error_details_pb2.ErrorInfo):
            reason, service = detail.reason, detail.metadata.get("service", "")
        elif isinstance(detail, error_details_pb2.QuotaFailure):
            violations += [violation.description for violation in detail.violations]
        elif isinstance(detail, error_details_pb2.RetryInfo):
            retry_after_s = detail.retry_delay.ToTimedelta().total_seconds()
    return Fault(code, message, reason, service, tuple(violations), retry_after_s, in_operation)


def _unpacked(detail: Any) -> Any:
    for kind in (
        error_details_pb2.ErrorInfo,
        error_details_pb2.QuotaFailure,
        error_details_pb2.RetryInfo,
    ):
        message = kind()
        if detail.Unpack(message):
            return message
    return detail


_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
_LOCAL_OPTIONS = [
    *_OPTIONS,
    ("grpc.enable_http_proxy", 0),
    # Not min_reconnect_backoff_ms: that bounds how long connecting itself may take, and on a busy
    # machine an emulator needs more than a moment to greet.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    # A new emulator on a port must not inherit the backoff of a previous one.
    ("grpc.use_local_subchannel_pool", 1),
]
RECONNECT_S = 2.0


class TimeReader(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Reads the service's time from the headers of every reply."""

    def __init__(self, clock: ServiceClock, *, is_paced: bool) -> None:
        self._clock = clock
        self._is_paced = is_paced

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Send a call and read the headers of its reply."""
        sent = self._clock.local_now()
        call = continuation(details, request)
        pairs = (*(call.initial_metadata() or ()), *(call.trailing_metadata() or ()))
        time = read_time({key: value for key, value in pairs if type(value) is str})
        if time:
            self._clock.observe(replace(time, scale=1.0) if self._is_paced else time, sent=sent)
        return call


class Reconnector(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Waits until the channel to a restarted emulator is open again.

    gRPC reconnects on a schedule of real time. A caller that repeats a call in emulated time would
    have given up long before.
    """

    def __init__(self, channel: grpc.Channel, endpoint: Endpoint) -> None:
        self._channel = channel
        self._endpoint = endpoint

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Send a call; after a failure, wait until the channel can be used again."""
        call = continuation(details, request)
        if call.code() is grpc.StatusCode.UNAVAILABLE and not self._endpoint.check_reachable():
            with suppress(grpc.FutureTimeoutError):
                grpc.channel_ready_future(self._channel).result(timeout=RECONNECT_S)
        return call


@dataclass(frozen=True)
class Connection:
    """How to reach the services; `is_paced` is whether the clock runs at an emulator's pace."""

    endpoint: Endpoint
    credentials: Any
    clock: ServiceClock
    is_paced: bool = False

    def open_channel(self, google_address: str | None = None) -> grpc.Channel:
        """Open a channel to the endpoint, or to another Google service; sends nothing.

        An emulator has all services at one address.
        """
        interceptors: list[Any] = [TimeReader(self.clock, is_paced=self.is_paced)]
        if self.endpoint.is_local:
            credentials = grpc.local_channel_credentials()
            if token := self.endpoint.emulator_token():
                credentials = grpc.composite_channel_credentials(
                    credentials, grpc.access_token_call_credentials(token)
                )
            channel = grpc.secure_channel(self.endpoint.address, credentials, _LOCAL_OPTIONS)
            interceptors.append(Reconnector(channel, self.endpoint))
        else:
            channel = google.auth.transport.grpc.secure_authorized_channel(
                self.credentials,
                google.auth.transport.requests.Request(),
                google_address or self.endpoint.address,
                options=_OPTIONS,
            )
        return grpc.intercept_channel(channel, *interceptors)
