"""Requests to compute.v1 as JSON over HTTP, and the translation of their errors into ours."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import requests
from google.auth.transport.requests import AuthorizedSession

from tpuctl.cloud._google_channel import Connection, translated_errors
from tpuctl.cloud.error_table import Fault, RequestContext, read_reply, translate
from tpuctl.cloud.service_clock import read_time
from tpuctl.codec import MAX_DOCUMENT_BYTES
from tpuctl.errors import TpuctlError, TryAgainError, UnavailableError

PAGE_SIZE = 500
_QUOTAS = "https://cloudquotas.googleapis.com"
# The codes of gRPC, which the table of errors knows, by HTTP status.
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 412: 10, 429: 8, 501: 12, 503: 14, 504: 4}
_SERVER_ERROR = 13
# What an attempt to create a VM of a group does not say besides its code.
_STATUSES = {
    "QUOTA_EXCEEDED": 403,
    "PERMISSIONS_ERROR": 403,
    "RESOURCE_NOT_FOUND": 404,
    "RESOURCE_ALREADY_EXISTS": 409,
    "CONDITION_NOT_MET": 412,
    **dict.fromkeys(
        ("BAD_REQUEST", "INVALID_FIELD_VALUE", "UNSUPPORTED_OPERATION",
         "RESERVATION_CAPACITY_EXCEEDED"), 400
    ),
}  # fmt: skip
_MAX_PAGES = 200

Json = dict[str, Any]


class ComputeHttp:
    """The requests of one project; each is sent once."""

    def __init__(self, connection: Connection, *, read_s: float, write_s: float) -> None:
        where = connection.endpoint
        self._connection, self._read_s, self._write_s = connection, read_s, write_s
        self._base = f"{'http' if where.is_local else 'https'}://{where.address}{where.path}"
        # Threads share the connections of the pool: the lists of several kinds are read at once.
        self._session: requests.Session
        if where.is_local:
            self._session = requests.Session()
            self._session.trust_env = False
            if token := where.emulator_token():
                self._session.headers["Authorization"] = f"Bearer {token}"
        else:
            self._session = AuthorizedSession(connection.credentials)

    def send(
        self,
        method: str,
        path: str,
        context: RequestContext,
        *,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Send a request below /compute/v1 and return its reply; raises the error it stands for."""
        return self._send(method, f"{self._base}/compute/v1/{path}", context, body, query)

    def pages(self, path: str, context: RequestContext, **query: str) -> Iterator[Json]:
        """Read all pages of a list."""
        yield from self._pages("GET", f"{self._base}/compute/v1/{path}", context, query)

    def posted_pages(self, path: str, context: RequestContext) -> Iterator[Json]:
        """Read all pages of a list that is requested with POST."""
        yield from self._pages("POST", f"{self._base}/compute/v1/{path}", context, {})

    def quota_pages(self, project: str, context: RequestContext) -> Iterator[Json]:
        """Read all pages of the quotas of Compute Engine; an emulator has them at its address."""
        host = self._base if self._connection.endpoint.is_local else _QUOTAS
        path = f"v1/projects/{project}/locations/global/services/compute.googleapis.com/quotaInfos"
        yield from self._pages("GET", f"{host}/{path}", context, {}, size="pageSize")

    def _pages(
        self,
        method: str,
        url: str,
        context: RequestContext,
        query: Mapping[str, str],
        size: str = "maxResults",
    ) -> Iterator[Json]:
        page_query = {**query, size: str(PAGE_SIZE)}
        for _ in range(_MAX_PAGES):
            page = self._send(method, url, context, None, page_query)
            yield page
            if not page.get("nextPageToken"):
                return
            page_query["pageToken"] = str(page["nextPageToken"])
        raise UnavailableError(f"{context.doing}: the list is endless.")

    def _send(
        self,
        method: str,
        url: str,
        context: RequestContext,
        body: Json | None,
        query: Mapping[str, str] | None,
    ) -> Json:
        deadline_s = self._read_s if method == "GET" else self._write_s
        clock, sent = self._connection.clock, self._connection.clock.local_now()
        options: dict[str, Any] = {"timeout": deadline_s, "allow_redirects": False, "stream": True}
        with (
            translated_errors(context),
            self._session.request(method, url, params=query, json=body, **options) as reply,
        ):
            text = read_reply(reply, MAX_DOCUMENT_BYTES, "Compute Engine")
        if time := read_time({key.lower(): value for key, value in reply.headers.items()}):
            paced = replace(time, scale=1.0) if self._connection.is_paced else time
            clock.observe(paced, sent=sent)
        try:
            document = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            document = None
        if reply.status_code >= 300:
            raise translate(_fault_of_reply(reply, document), context)
        if not isinstance(document, dict):
            # Taken for empty, it would say that a TPU is gone that runs.
            raise UnavailableError(f"{context.doing}: the reply is not a JSON object.")
        return document


def _fault_of_reply(reply: requests.Response, document: Any) -> Fault:
    error = document.get("error", {}) if isinstance(document, dict) else {}
    error = error if isinstance(error, dict) else {}
    details = [each for each in error.get("details", ()) if isinstance(each, dict)]
    info = next((each for each in details if each.get("reason")), {})
    reasons = [str(each.get("reason", "")) for each in error.get("errors", ()) if each]
    wait = reply.headers.get("Retry-After", "")
    return Fault(
        _CODES.get(reply.status_code, _SERVER_ERROR if reply.status_code >= 500 else 3),
        str(error.get("message") or f"HTTP status {reply.status_code}"),
        reason=str(info.get("reason") or next(iter(reasons), "")),
        service=str(info.get("metadata", {}).get("service") or "compute.googleapis.com"),
        retry_after_s=float(wait) if wait.isdigit() else None,
    )


def error_of_operation(operation: Json, context: RequestContext) -> TpuctlError | None:
    """Return the error that ended an operation, or that of an attempt to create a VM."""
    # The last attempt to create a VM of a group calls it `errors`.
    found = (operation.get("error") or operation.get("errors") or {}).get("errors") or ()
    if not found:
        return None
    # The status of the operation is that of the first.
    errors = [_error_of(found[0], operation.get("httpErrorStatusCode"), context)]
    errors += [_error_of(each, None, context) for each in found[1:]]
    # One that trying again does not help decides.
    return next((each for each in errors if not isinstance(each, TryAgainError)), errors[0])


def _error_of(first: Json, known: int | None, context: RequestContext) -> TpuctlError:
    text = str(first.get("message") or json.dumps(first)[:200])
    status = int(known or _STATUSES.get(str(first.get("code")), 503))
    detail = [each.get("errorInfo", {}).get("reason") for each in first.get("errorDetails", ())]
    # The code and the detail both tell: INTERNAL_ERROR is a code, `stockout` a detail.
    reason = " ".join(str(word) for word in (first.get("code"), *detail) if word)
    service = "compute.googleapis.com"
    fault = Fault(_CODES.get(status, _SERVER_ERROR), text, reason, service, in_operation=True)
    return translate(fault, context)
