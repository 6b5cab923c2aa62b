"""Kaggle's calls over HTTP: each raises only TpuctlErrors, and is repeated where that is safe."""

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlsplit

import tpuctl
from tpuctl.clock import SteadyClock
from tpuctl.cloud.error_table import checks_replies
from tpuctl.cloud.retry import repeated
from tpuctl.cloud.service_clock import ServiceClock, read_time
from tpuctl.errors import (
    InvalidInputError,
    NoCapacityError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    QuotaExceededError,
    RateLimitedError,
    TpuctlError,
    UnavailableError,
)
from tpuctl.providers.kaggle.login import HOW_TO_LOG_IN, Endpoint, find_endpoint, find_login
from tpuctl.runtime.redact import redact

T = TypeVar("T")
Json = dict[str, Any]
ENDED = frozenset({"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"})
_KERNELS = "kernels.KernelsApiService"
_DATA = "datasets.DatasetApiService"
_TIMEOUT_S = 60.0
# The service waits up to a minute for a machine, and a silent training sends nothing.
_STREAM_TIMEOUT_S = 300.0
_MAX_UPLOADS, _UPLOAD_PAUSE_S = 3, 10.0
_MAX_BYTES = 64 << 20
_PAGE, _MAX_PAGES = 200, 500
_UNREADABLE = (OSError, ValueError, AttributeError, RecursionError)
_END = "END_OF_LOG"
_CHECK = "tpuctl doctor --provider kaggle checks the account."


@dataclass(frozen=True)
class Quota:
    """The TPU hours of this week; `reserved` are those that running sessions may still use."""

    used_hours: float
    reserved_hours: float
    total_hours: float
    refreshes: str | None = None

    @property
    def left_hours(self) -> float:
        """The hours that a new session could use."""
        return max(0.0, self.total_hours - self.used_hours - self.reserved_hours)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the login to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


@checks_replies("Kaggle")
class KaggleClient:
    """Kaggle for one account. `clock` runs as the service's, in an emulator faster."""

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self.endpoint = endpoint or find_endpoint()
        self.clock = ServiceClock(SteadyClock())
        self._login = find_login(self.endpoint)
        proxies = [urllib.request.ProxyHandler({})] if self.endpoint.is_local else []
        self._calls = urllib.request.build_opener(_NoRedirect, *proxies)
        self._files = urllib.request.build_opener(*proxies)

    @cached_property
    def username(self) -> str:
        """The account's name; asks for it where only a token is known."""
        if self._login.username:
            return self._login.username
        body = {"token": self._login.secret}
        about = self._call("security.OAuthService", "IntrospectToken", body)
        if not (about.get("active") and about.get("username")):
            raise self._not_logged_in()
        return str(about["username"])

    def quota(self) -> Quota:
        """Read the TPU hours of this week."""
        reply = self._call(_KERNELS, "GetAcceleratorQuotaStatistics", {})
        tpu = reply.get("tpuQuota") or {}
        used, reserved, total = (
            _hours(tpu.get(name)) for name in ("timeUsed", "timeReserved", "totalTimeAllowed")
        )
        return Quota(used, reserved, total, reply.get("quotaRefreshTime"))

    def push(self, request: Json) -> tuple[int, tuple[str, ...]]:
        """Push a version, which starts a session; never repeated, because each push starts one.

        Returns its number, and the sources that Kaggle has dropped. Raises NoCapacityError while
        another session runs, UnavailableError where it is unknown whether it was accepted.
        """
        reply = self._call(_KERNELS, "SaveKernel", request, repeat=False)
        if refusal := str(reply.get("error") or ""):
            raise _refusal(redact(refusal))
        dropped = [reply.get(f"invalid{kind}Sources") or () for kind in ("Dataset", "Kernel")]
        names = tuple(str(name) for names in dropped for name in names)
        return int(reply["versionNumber"]), names

    def version_of(self, slug: str) -> int | None:
        """Return the newest version of a kernel; None if it does not exist."""
        try:
            reply = self._call(_KERNELS, "GetKernel", self._named(slug))
        # Kaggle calls a kernel that does not exist forbidden.
        except (NotFoundError, PermissionDeniedError):
            return None
        number = (reply.get("metadata") or {}).get("currentVersionNumber")
        return number if isinstance(number, int) else 1

    def status(self, slug: str, version: int) -> tuple[str, str]:
        """Return the state of a session, and why it failed."""
        reply = self._call(_KERNELS, "GetKernelSessionStatus", self._named(slug, version))
        return str(reply.get("status") or "QUEUED"), redact(str(reply.get("failureMessage") or ""))

    def outputs(self, slug: str, version: int) -> list[tuple[str, str]]:
        """List the output of a session that has ended: names and addresses."""
        body = {**self._named(slug, version), "pageSize": _PAGE}
        files = self._pages("ListKernelSessionOutput", body, "files")
        return [(str(each["fileName"]), str(each["url"])) for each in files]

    def kernels(self, search: str) -> list[Json]:
        """List the account's kernels whose name contains a word."""
        body = {"group": "PROFILE", "search": search, "pageSize": 100}
        return [{**each} for each in self._pages("ListKernels", body, "kernels")]

    def _pages(self, method: str, body: Json, what: str) -> list[Json]:
        found: list[Json] = []
        token: str | None = None
        for _ in range(_MAX_PAGES):
            page = {"pageToken": token} if token else {}
            reply = self._call(_KERNELS, method, body | page)
            found += reply.get(what) or ()
            last, token = token, reply.get("nextPageToken")
            if not token or token == last:
                return found
        raise UnavailableError(f"Kaggle sent an endless list of {what}.")

    def delete(self, slug: str) -> None:
        """Delete a kernel with all its versions; a running session continues."""
        self._call(_KERNELS, "DeleteKernel", self._named(slug), repeat=False)

    def log(self, slug: str, version: int) -> Iterator[Json]:
        """Read the events of a log, always from its beginning; ends when the session has ended.

        Raises UnavailableError where the connection breaks before that.
        """
        path = f"kernels/logs/stream/{quote(self.username)}/{quote(slug)}?versionLabel=v{version}"
        request = self._request(path, None, {"Accept": "text/event-stream, */*"})
        with self._sent(self._calls, request, _STREAM_TIMEOUT_S) as reply:
            if "event-stream" not in reply.headers.get("Content-Type", ""):
                found = _parse(reply.read(_MAX_BYTES))
                events = found if isinstance(found, list) else []
                yield from (each for each in events if isinstance(each, dict))
                return
            for line in iter(lambda: reply.readline(_MAX_BYTES), b""):
                text = line.removeprefix(b"data:").strip()
                if line == text or not text or not line.startswith(b"data:"):
                    continue
                if text == _END.encode():
                    return
                event = _parse(text)
                yield event if isinstance(event, dict) else {"data": str(event)}
        raise UnavailableError("The log of the session ended too early.")

    @contextmanager
    def opened(self, url: str, start: int) -> Iterator[tuple[int, int | None, IO[bytes]]]:
        """Open a file of the output from a byte on, without the login: its address is signed.

        Yields the first byte that comes, which is 0 where ranges are not known, and the total.
        """
        self._check_address(url)
        headers = {"Range": f"bytes={start}-"} if start else {}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 (checked above)
        with self._sent(self._files, request, _TIMEOUT_S) as reply:
            first = start if reply.status == 206 else 0
            yield first, first + reply.length if reply.length is not None else None, reply

    def _check_address(self, url: str) -> None:
        parts, local = urlsplit(url), self.endpoint.is_local
        is_ours = local and parts.netloc == urlsplit(self.endpoint.base).netloc
        if parts.scheme != "https" and not (is_ours and parts.scheme == "http"):
            raise InvalidInputError("Kaggle gave an address for a file that is not https.")

    def data_status(self, slug: str) -> str | None:
        """Return the state of one of our data sets; None where it does not exist."""
        body = {"ownerSlug": self.username, "datasetSlug": slug}
        try:
            return str(self._call(_DATA, "GetDatasetStatus", body).get("status"))
        except (NotFoundError, PermissionDeniedError):
            return None

    def create_data(self, slug: str, file: Path, name: str) -> None:
        """Upload a file as a new private data set."""
        body = {
            "ownerSlug": self.username,
            "slug": slug,
            "title": slug,
            "licenseName": "unknown",
            "isPrivate": True,
            "files": [{"token": self._upload(file, name)}],
        }
        reply = self._call(_DATA, "CreateDataset", body, repeat=False)
        if problem := reply.get("error"):
            raise InvalidInputError(f"Kaggle refused the data set {slug}: {redact(str(problem))}")

    def delete_data(self, slug: str) -> None:
        """Delete one of our data sets; one that is already gone is not an error."""
        body = {"ownerSlug": self.username, "datasetSlug": slug}
        with suppress(NotFoundError, PermissionDeniedError):
            self._call(_DATA, "DeleteDataset", body)

    def repeated(self, action: Callable[[], T], *, repeat: bool = True) -> T:
        """Do something again after a lost reply, for some minutes of the service's time."""
        return repeated(self.clock, action, after_lost_reply=repeat)

    def _upload(self, file: Path, name: str) -> str:
        """Upload a file, from its start again where the connection breaks; return its token."""
        state = file.stat()
        body = {"type": "DATASET", "name": name, "contentLength": state.st_size}
        body["lastModifiedEpochSeconds"] = int(state.st_mtime)
        length = {"Content-Length": str(state.st_size)}
        attempt = 1
        while True:
            begun = self._call("blobs.BlobApiService", "StartBlobUpload", body)
            url = str(begun["createUrl"])
            self._check_address(url)
            try:
                with file.open("rb") as source:
                    request = urllib.request.Request(  # noqa: S310 (checked above)
                        url, source, length, method="PUT"
                    )
                    with self._sent(self._calls, request, _TIMEOUT_S):
                        return str(begun["token"])
            except (RateLimitedError, UnavailableError):
                if attempt == _MAX_UPLOADS:
                    raise
            self.clock.sleep(_UPLOAD_PAUSE_S)
            attempt += 1

    def _named(self, slug: str, version: int | None = None) -> Json:
        label = {"versionLabel": f"v{version}"} if version else {}
        return {"userName": self.username, "kernelSlug": slug, **label}

    def _call(self, service: str, method: str, body: Json, *, repeat: bool = True) -> Json:
        def send() -> Json:
            request = self._request(f"{service}/{method}", json.dumps(body).encode(), {})
            with self._sent(self._calls, request, _TIMEOUT_S) as reply:
                document = _parse(reply.read(_MAX_BYTES) or b"{}")
            if not isinstance(document, dict):
                raise UnavailableError(f"Kaggle's reply to {method} is not valid.")
            code = document.get("code")
            if isinstance(code, int) and code >= 400:
                raise self._error(code, str(document.get("message")), {})
            return document

        return self.repeated(send, repeat=repeat)

    def _request(
        self, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> urllib.request.Request:
        login = self._login
        scheme, shown = "Bearer", login.secret
        if login.is_key:
            pair = f"{login.username}:{login.secret}"
            scheme, shown = "Basic", base64.b64encode(pair.encode()).decode()
        return urllib.request.Request(  # noqa: S310 (https, or an emulator on loopback)
            f"{self.endpoint.base}/{path}",
            data,
            {
                "Authorization": f"{scheme} {shown}",
                "Content-Type": "application/json",
                "User-Agent": f"tpuctl/{tpuctl.__version__}",
                **headers,
            },
        )

    @contextmanager
    def _sent(
        self, opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout: float
    ) -> Iterator[Any]:
        """Send a request and read the reply in the block, with every failure translated."""
        sent = self.clock.local_now()
        try:
            with opener.open(request, timeout=timeout) as reply:
                self._observe(reply.headers, sent)
                yield reply
        except urllib.error.HTTPError as error:
            with error:
                self._observe(error.headers, sent)
                try:
                    text = str(json.loads(error.read(_MAX_BYTES)).get("message"))
                except (*_UNREADABLE, http.client.HTTPException):
                    text = error.reason
                raise self._error(error.code, text, error.headers) from error
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise UnavailableError(
                f"Could not reach Kaggle ({urlsplit(self.endpoint.base).hostname}): {why}.",
                hint="If the emulator has ended: tpuctl emulator start"
                if self.endpoint.is_local
                else "Run the same command again: it finds what has been started.",
            ) from error

    def _observe(self, headers: Any, sent: datetime) -> None:
        if time := read_time(headers):
            self.clock.observe(time, sent=sent)

    def _error(self, status: int, text: str, headers: Any) -> TpuctlError:
        said = f"Kaggle says: {redact(text)} (HTTP {status})."
        if status == 401:
            return self._not_logged_in()
        if status == 429:
            wait = headers.get("Retry-After", "") if headers else ""
            return RateLimitedError(said, retry_after_s=float(wait) if wait.isdecimal() else None)
        if status >= 500:
            return UnavailableError(said)
        kinds = {403: PermissionDeniedError, 404: NotFoundError}
        return kinds.get(status, InvalidInputError)(said, hint=_CHECK)

    def _not_logged_in(self) -> NotLoggedInError:
        return NotLoggedInError(
            f"Kaggle does not accept the login from {self._login.source}.", hint=HOW_TO_LOG_IN
        )


def _refusal(text: str) -> TpuctlError:
    """Make the error for a push that was refused in a good reply."""
    said, low = f"Kaggle refused to start the session: {text}", text.lower()
    if "session count" in low:
        return NoCapacityError(said, hint="Wait until the running session ends: tpuctl list")
    if "quota" in low:
        return QuotaExceededError(said, hint="tpuctl offers --provider kaggle")
    if "verif" in low or "identity" in low:
        return PermissionDeniedError(
            said, hint="Verify the account: https://www.kaggle.com/settings"
        )
    return InvalidInputError(said, hint=_CHECK)


def _hours(text: object) -> float:
    try:
        return float(str(text or "0").removesuffix("s")) / 3600
    except ValueError:
        return 0.0


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise UnavailableError("Kaggle's reply is not JSON.") from None
