"""The Kubernetes API over HTTP: each call raises only TpuctlErrors, and is repeated where safe."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import tpuctl
from tpuctl.clock import SteadyClock
from tpuctl.cloud.retry import repeated
from tpuctl.cloud.service_clock import EMULATED_TIME, ServiceClock, read_time
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    MissingExtraError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    RateLimitedError,
    TpuctlError,
    UnavailableError,
    WrongStateError,
)
from tpuctl.runtime.redact import redact

if TYPE_CHECKING:
    from tpuctl.providers.gke._kubeconfig import Context

Json = dict[str, Any]
JOB_SETS = "apis/jobset.x-k8s.io/v1alpha2"
KUEUE = "apis/kueue.x-k8s.io"
CORE = "api/v1"
_TIMEOUT_S = 60.0
_SILENCE_S = 300.0
_MAX_BYTES = 64 << 20
_PIECE, _LONGEST_LINE = 1 << 16, 1 << 20
_PAGE, _MAX_PAGES = 500, 200
_VERBS = {"GET": "read", "POST": "create", "PATCH": "change", "DELETE": "delete"}
_REACHED = "kubectl cluster-info shows whether it answers. Then run the same command again."
_KINDS: dict[int, type[TpuctlError]] = {
    404: NotFoundError,
    409: AlreadyExistsError,
}


def find_context(name: str | None = None) -> "Context":
    """Read the user's kubeconfig; raises MissingExtraError without the extra."""
    try:
        from tpuctl.providers.gke import _kubeconfig
    except ImportError as error:
        raise MissingExtraError("Using GKE", extra="gke", module=str(error.name)) from error
    return _kubeconfig.find_context(name)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the login to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Cluster:
    """The API of one cluster, as the user of one context; `clock` runs as the cluster's."""

    def __init__(self, context: "Context") -> None:
        from tpuctl.providers.gke._kubeconfig import Login

        self.context, self.emulated = context, False
        self.clock = ServiceClock(SteadyClock())
        self._login = Login(context)
        self._opener: urllib.request.OpenerDirector | None = None

    @property
    def namespace(self) -> str:
        """The path of the namespace below an API."""
        return f"namespaces/{quote(self.context.namespace, safe='')}"

    def get(self, path: str, **query: str) -> Json:
        """Read one object."""
        return self._call("GET", path, None, query)

    def list(self, path: str, **query: str) -> Iterator[Json]:
        """Read all objects, page by page."""
        more: dict[str, str] = {}
        for _ in range(_MAX_PAGES):
            page = self._call("GET", path, None, {**query, "limit": str(_PAGE), **more})
            yield from (each for each in page.get("items") or () if isinstance(each, dict))
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            more = {"continue": str(token)}
        raise UnavailableError(f"{self._where} sent an endless list.")

    def create(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """Create an object; after a lost reply it may be there already, under our name."""
        query = {"fieldValidation": "Strict", "fieldManager": "tpuctl"}
        query |= {"dryRun": "All"} if dry_run else {}
        return self._call("POST", path, body, query)

    def patch(self, path: str, change: Json) -> Json:
        """Merge a change into an object; the same change may be sent twice."""
        return self._call("PATCH", path, change, {"fieldManager": "tpuctl"})

    def delete(self, path: str, uid: str) -> None:
        """Delete exactly this object, and what it owns after it."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Foreground"}
        self._call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **body}, {})

    def lines(self, path: str, **query: str) -> Iterator[bytes]:
        """Read a log line by line as it grows; raises UnavailableError where it breaks off."""
        with self._sent("GET", path, None, query, _SILENCE_S) as reply:
            rest = b""
            # Not readline, which takes a connection that is cut for the end.
            while data := reply.read1(_PIECE):
                *whole, rest = (rest + data).split(b"\n")
                yield from (line + b"\n" for line in whole)
                rest = rest[:_LONGEST_LINE]
            if rest:
                yield rest

    def _call(self, verb: str, path: str, body: Json | None, query: Mapping[str, str]) -> Json:
        def send() -> Json:
            with self._sent(verb, path, body, query, _TIMEOUT_S) as reply:
                data = reply.read(_MAX_BYTES)
            try:
                document = json.loads(data)
            except (ValueError, RecursionError):
                document = None
            # Taken for empty, it would say that a job is gone that runs.
            if not isinstance(document, dict) or "kind" not in document:
                raise UnavailableError(
                    f"{self._could_not(verb, path)}: the reply is not an object of Kubernetes.",
                    hint=_REACHED,
                )
            return document

        return repeated(self.clock, send)

    @property
    def _where(self) -> str:
        return f"The cluster {self.context.name}"

    def _could_not(self, verb: str, path: str) -> str:
        what = path.partition("/namespaces/")[2].split("/")[1:] or [path.removeprefix(f"{CORE}/")]
        return f"Could not {_VERBS[verb]} {' '.join(what)} in the cluster {self.context.name}"

    @contextmanager
    def _sent(
        self, verb: str, path: str, body: Json | None, query: Mapping[str, str], timeout: float
    ) -> Iterator[Any]:
        """Send a request and read the reply in the block, with every failure translated."""
        sent = self.clock.local_now()
        try:
            with self._open(verb, path, body, query, timeout) as reply:
                self._observe(reply.headers, sent)
                yield reply
        except urllib.error.HTTPError as error:
            with error:
                self._observe(error.headers, sent)
                doing = self._could_not(verb, path)
                raise self._error(doing, error.code, _status(error), error.headers) from error
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            host = urlsplit(self.context.server).hostname
            if isinstance(why, ssl.SSLCertVerificationError):
                text = f"The cluster {self.context.name} ({host}) has no valid certificate"
                hint = "gcloud container clusters get-credentials CLUSTER --location LOCATION"
                raise NotLoggedInError(f"{text}: {why.verify_message}.", hint=hint) from error
            raise UnavailableError(
                f"Could not reach the cluster {self.context.name} ({host}): {why}.",
                hint=_REACHED,
            ) from error

    def _open(
        self, verb: str, path: str, body: Json | None, query: Mapping[str, str], timeout: float
    ) -> Any:
        address = f"{self.context.server}/{path}" + (f"?{urlencode(query)}" if query else "")
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        usual = {"Accept": "application/json", "Content-Type": kind}
        usual["User-Agent"] = f"tpuctl/{tpuctl.__version__}"
        data = None if body is None else json.dumps(body).encode()
        for is_last in (False, True):
            headers = {**usual, **self._login.headers()}
            request = urllib.request.Request(  # noqa: S310 (checked with the kubeconfig)
                address, data, headers, method=verb
            )
            try:
                return self._connect().open(request, timeout=timeout)
            except urllib.error.HTTPError as error:
                # A login that was valid a moment ago may have been revoked; a plugin has another.
                if error.code != 401 or is_last or not self._login.forget():
                    raise
                self._opener = None
                error.close()
        raise AssertionError

    def _connect(self) -> urllib.request.OpenerDirector:
        if self._opener is None:
            handlers: list[Any] = [_NoRedirect()]
            proxy = self.context.cluster.get("proxy-url")
            if proxy or not self.context.is_encrypted:
                handlers.append(urllib.request.ProxyHandler({"https": str(proxy)} if proxy else {}))
            if self.context.is_encrypted:
                handlers.append(urllib.request.HTTPSHandler(context=self._login.tls()))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener

    def _observe(self, headers: Any, sent: datetime) -> None:
        self.emulated = bool(headers.get(EMULATED_TIME)) and not self.context.is_encrypted
        if time := read_time(headers):
            self.clock.observe(time, sent=sent)

    def _error(self, doing: str, code: int, status: Json, headers: Any) -> TpuctlError:
        said = f"{doing}: {redact(str(status.get('message')))} (HTTP {code})."
        if code == 401:
            return NotLoggedInError(
                f"{doing}: it does not accept the login of the kubeconfig.",
                hint="gcloud auth login, or: kubectl auth whoami",
            )
        if code == 429:
            wait = str(headers.get("Retry-After") or "")
            return RateLimitedError(
                said, hint=_REACHED, retry_after_s=float(wait) if wait.isdecimal() else None
            )
        if code == 403:
            return PermissionDeniedError(said, hint="kubectl auth can-i --list")
        if code >= 500:
            return UnavailableError(said, hint=_REACHED)
        if code == 410:
            return UnavailableError(said, hint="Run the same command again.")
        if code == 409 and status.get("reason") != "AlreadyExists":
            return WrongStateError(said)
        return _KINDS.get(code, InvalidInputError)(said)


def _status(error: urllib.error.HTTPError) -> Json:
    try:
        found = json.loads(error.read(_MAX_BYTES))
    except (OSError, ValueError, http.client.HTTPException, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"message": error.reason}
