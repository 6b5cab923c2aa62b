"""The gRPC channel: encrypted with a login to Google, in the clear without one to this machine."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import google.auth.transport.grpc
import google.auth.transport.requests
import grpc

from tpuctl.cloud.endpoint import Endpoint
from tpuctl.cloud.service_clock import ServiceClock, read_time

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
    # An emulator that has come to a port is not judged by who failed there before.
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
        """Pass a call on, and look at what came with its reply."""
        sent = self._clock.local_now()
        call = continuation(details, request)
        told = read_time(_headers(call.initial_metadata(), call.trailing_metadata()))
        if told:
            self._clock.observe(replace(told, scale=1.0) if self._is_paced else told, sent=sent)
        return call


class Reconnector(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Waits for the channel to an emulator that is back after it was gone.

    gRPC comes back by a schedule of real time; whoever repeats a call by emulated time would have
    given up long before.
    """

    def __init__(self, channel: grpc.Channel, endpoint: Endpoint) -> None:
        self._channel = channel
        self._endpoint = endpoint

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Pass a call on; the next one after a failure finds an open channel, if there can be."""
        call = continuation(details, request)
        if call.code() is grpc.StatusCode.UNAVAILABLE and not self._endpoint.knock():
            with suppress(grpc.FutureTimeoutError):
                grpc.channel_ready_future(self._channel).result(timeout=RECONNECT_S)
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
        interceptors: list[Any] = [TimeReader(self.clock, is_paced=self.is_paced)]
        if self.endpoint.is_local:
            channel = grpc.insecure_channel(self.endpoint.address, _LOCAL_OPTIONS)
            interceptors.append(Reconnector(channel, self.endpoint))
        else:
            channel = google.auth.transport.grpc.secure_authorized_channel(
                self.credentials,
                google.auth.transport.requests.Request(),
                google_address or self.endpoint.address,
                options=_OPTIONS,
            )
        return grpc.intercept_channel(channel, *interceptors)


def _headers(*metadata: Iterable[tuple[str, Any]] | None) -> dict[str, str]:
    return {key: value for pairs in metadata for key, value in pairs or () if type(value) is str}
