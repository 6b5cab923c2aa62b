"""HTTP to Colab: the login, JSON both ways, and its errors as ours."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import google.auth
import google.auth.exceptions
import google.auth.transport.requests
import google.oauth2.credentials
import requests

from tpuctl.clock import SteadyClock
from tpuctl.cloud.endpoint import parse_endpoint
from tpuctl.cloud.error_table import read_reply
from tpuctl.cloud.service_clock import ServiceClock, read_time
from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    RateLimitedError,
    TpuctlError,
    UnavailableError,
)
from tpuctl.providers.colab.api import facts
from tpuctl.settings import home, load_settings

TUNNEL = "https://colab.research.google.com"
PUBLIC = "https://colaboratory.googleapis.com"
_TIMEOUT_S = (10.0, 200.0)
_GUARD = ")]}'"
_MAX_BYTES = 8 << 20
LOGIN = "gcloud auth application-default login --scopes=" + ",".join(facts()["scopes"])


class Refused(Exception):
    """An answer that is not 2xx: its status, and the machine-readable reason if it has one."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Login:
    """Where credentials come from, and a session that sends them and refreshes them."""

    source: str
    session: requests.Session
    tunnel: str
    public: str

    @property
    def emulated(self) -> bool:
        """Whether it is an emulator's."""
        return self.tunnel != TUNNEL


def cli_token_file() -> Path:
    """Return where the official command line keeps its login."""
    return home() / ".config" / "colab-cli" / "token.json"


def log_in() -> Login:
    """Find credentials: an emulator's, the official command line's, or ADC.

    Raises NotLoggedInError; sends no request yet.
    """
    if endpoint := load_settings({})["colab_endpoint"]:
        where = parse_endpoint(endpoint)
        if not where.is_local:
            raise InvalidInputError(
                f"TPUCTL_COLAB_ENDPOINT is {endpoint}, which is not an emulator on this machine.",
                hint="Leave it unset to use Google's Colab.",
            )
        session = requests.Session()
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {where.emulator_token() or ''}"
        return Login("the emulator's secret", session, *[f"http://{where.address}"] * 2)
    credentials, source = _credentials()
    session = google.auth.transport.requests.AuthorizedSession(credentials)
    return Login(source, session, TUNNEL, PUBLIC)


def _credentials() -> tuple[Any, str]:
    scopes = facts()["scopes"]
    path = cli_token_file()
    try:
        if path.is_file():
            known = json.loads(path.read_text(encoding="utf-8"))
            return google.oauth2.credentials.Credentials.from_authorized_user_info(known), str(path)
        credentials, _ = google.auth.default(scopes=scopes)
    except (google.auth.exceptions.GoogleAuthError, ValueError, OSError) as error:
        raise NotLoggedInError(f"No login for Colab: {error}", hint=LOGIN) from error
    kind = type(credentials).__module__
    if "compute_engine" in kind:
        raise NotLoggedInError("Colab does not take the login of a virtual machine.", hint=LOGIN)
    source = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or "application-default credentials"
    return credentials, source


class Http:
    """Sends requests; `clock` is the service's time, as its replies tell it."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.clock = ServiceClock(SteadyClock())

    def call(
        self,
        doing: str,
        verb: str,
        url: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Any:
        """Send a request and return its document; raises Refused and TpuctlErrors."""
        sent = self.clock.local_now()
        try:
            reply = self.login.session.request(
                verb,
                url,
                params=query,
                headers={"Accept": "application/json", **(headers or {})},
                json=body,
                timeout=_TIMEOUT_S,
                allow_redirects=False,
                stream=True,
            )
            with reply:
                text = read_reply(reply, _MAX_BYTES, "Colab").decode("utf-8", "replace")
        except google.auth.exceptions.RefreshError as error:
            raise self._expired(str(error)) from error
        except (google.auth.exceptions.TransportError, requests.RequestException) as error:
            where = urlsplit(url).hostname
            raise UnavailableError(
                f"Could not {doing}: no answer from {where} ({type(error).__name__}).",
                hint="If the emulator has ended: tpuctl emulator start"
                if self.login.emulated
                else "The same command again finds what it may have done.",
            ) from error
        if seen := read_time(reply.headers):
            self.clock.observe(seen, sent=sent)
        if not 200 <= reply.status_code < 300:
            raise self._refused(doing, reply, text)
        return _document(text)

    def _refused(self, doing: str, reply: requests.Response, body: str) -> Exception:
        text, reason = body[:500], ""
        try:
            error = _document(body).get("error", {})
            if isinstance(error, dict):
                text = str(error.get("message", ""))
                reason = reason_of(error)
        except (UnavailableError, AttributeError):
            pass
        status = reply.status_code
        if status == 401:
            return self._expired("the login was refused")
        if status == 429:
            wait = reply.headers.get("Retry-After", "")
            return RateLimitedError(
                f"Could not {doing}: too many requests per minute.",
                hint="Try again in a minute.",
                retry_after_s=float(wait) if wait.isdecimal() else None,
            )
        return Refused(status, reason, text.strip())

    def _expired(self, why: str) -> NotLoggedInError:
        again = LOGIN
        if self.login.source == str(cli_token_file()):
            again = f"rm {self.login.source} and log in again: colab sessions; or: {LOGIN}"
        return NotLoggedInError(
            f"The login for Colab from {self.login.source} has expired or was refused: {why}.",
            hint=again,
        )


def reason_of(error: Mapping[str, Any]) -> str:
    """Return the reason in the details of an error of the public API."""
    for detail in error.get("details") or ():
        if isinstance(detail, dict) and detail.get("reason"):
            return str(detail["reason"])
    return ""


def as_error(refused: Refused, doing: str) -> TpuctlError:
    """Make our error for a reply that has no specific meaning for the request."""
    text = f"Could not {doing}: {refused or 'no message'} (status {refused.status})."
    if refused.status == 403:
        return PermissionDeniedError(text, hint=f"Check the account; a new login: {LOGIN}")
    if refused.status == 404:
        return NotFoundError(text, hint="tpuctl list --provider colab")
    if refused.status >= 500:
        return UnavailableError(text, hint="Try again later.")
    return TpuctlError(text, hint="tpuctl doctor --provider colab")


def _document(text: str) -> Any:
    """Read a document, which may begin with a guard against script inclusion."""
    try:
        return json.loads(text.removeprefix(_GUARD).strip() or "{}")
    except (ValueError, RecursionError) as error:
        raise UnavailableError("Colab's answer cannot be read.", hint="Try again later.") from error
