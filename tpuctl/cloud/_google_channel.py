"""The gRPC channel: encrypted with a login to Google, in the clear without one to this machine."""

import email.utils
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import google.auth.transport.grpc
import google.auth.transport.requests
import grpc

from tpuctl.cloud.endpoint import Endpoint
from tpuctl.cloud.service_clock import ServiceClock

EMULATED_TIME = "tpuctl-emulator-time"
EMULATED_SCALE = "tpuctl-emulator-time-scale"

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # An emulator that was killed is there again before the default of a second has passed.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
]


class TimeReader(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Reads the service's time from the headers of every reply."""

    def __init__(self, clock: ServiceClock, *, is_paced: bool) -> None:
        self._clock = clock
        self._is_paced = is_paced

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Pass a call on, and look at what came with its reply."""
        sent = self._clock.local_now()
        call = continuation(details, request)
        headers = _headers(call.initial_metadata(), call.trailing_metadata())
        if exact := headers.get(EMULATED_TIME):
            scale = 1.0 if self._is_paced else float(headers.get(EMULATED_SCALE, 1.0))
            self._clock.observe(_parse_rfc3339(exact), sent=sent, scale=scale)
        elif date := headers.get("date"):
            told = email.utils.parsedate_to_datetime(date).astimezone(timezone.utc)
            self._clock.observe(told, sent=sent, resolution_s=1.0)
        return call


@dataclass(frozen=True)
class Connection:
    """How the services are reached.

    `is_paced` is whether the clock beneath already runs at an emulator's pace.
    """

    endpoint: Endpoint
    credentials: Any
    clock: ServiceClock
    is_paced: bool = False

    def open_channel(self, google_address: str | None = None) -> grpc.Channel:
        """Open a channel, to another service of Google's where one is named.

        An emulator has all services at one address. Nothing is sent before the first call.
        """
        if self.endpoint.is_local:
            options = [*_OPTIONS, ("grpc.enable_http_proxy", 0)]
            channel = grpc.insecure_channel(self.endpoint.address, options)
        else:
            channel = google.auth.transport.grpc.secure_authorized_channel(
                self.credentials,
                google.auth.transport.requests.Request(),
                google_address or self.endpoint.address,
                options=_OPTIONS,
            )
        return grpc.intercept_channel(channel, TimeReader(self.clock, is_paced=self.is_paced))


def _headers(*metadata: Iterable[tuple[str, Any]] | None) -> dict[str, str]:
    return {key: value for pairs in metadata for key, value in pairs or () if type(value) is str}


def _parse_rfc3339(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
