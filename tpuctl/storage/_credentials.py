"""Find application default credentials without waiting for a metadata server that is not there."""

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import google.auth
import google.auth.exceptions
import urllib3
from google.auth.transport.urllib3 import Request

from tpuctl.errors import NotLoggedInError, first_line
from tpuctl.settings import home
from tpuctl.storage.errors import LOGIN_COMMAND

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_METADATA_TIMEOUT_S = 0.5


def find_credentials(
    scopes: Sequence[str], *, is_on_google: Callable[[], bool], with_project: bool
) -> tuple[Any, str | None]:
    """Return credentials and, if `with_project`, the project that they name.

    Raises NotLoggedInError, whose message never quotes the credentials file.
    """
    path = _credentials_file()
    if not path and not is_on_google():
        # google.auth.default() would try the metadata server for ten seconds.
        raise not_logged_in("no Google Cloud credentials found")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if path and not with_project:
                # google.auth.default() would run gcloud, which takes seconds, to find the project.
                found: tuple[Any, str | None] = google.auth.load_credentials_from_file(
                    path, scopes=scopes
                )
                return found
            return google.auth.default(scopes=scopes)
    except Exception as error:  # a broken file makes google.auth raise almost anything
        raise not_logged_in(f"the credentials are not usable: {first_line(error)}") from None


def not_logged_in(why: str) -> NotLoggedInError:
    """Build the error with the commands that help."""
    return NotLoggedInError(
        f"Not logged in: {why}.",
        hint=f"{LOGIN_COMMAND} (or practise without an account: tpuctl emulator start)",
    )


def _credentials_file() -> str | None:
    """Return the file that google.auth.default() would read, if there is one."""
    if path := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return path
    # https://cloud.google.com/docs/authentication/application-default-credentials#personal
    folder = os.environ.get("CLOUDSDK_CONFIG") or str(home() / ".config" / "gcloud")
    path = os.path.join(folder, "application_default_credentials.json")
    return path if os.path.isfile(path) else None


class Login:
    """Credentials and their Authorization header, refreshed when they expire."""

    def __init__(self, credentials: Any, pool: urllib3.PoolManager) -> None:
        self.credentials = credentials
        self._request = Request(pool)
        self._lock = threading.Lock()

    def headers(self) -> dict[str, str]:
        """Return the headers to send; raises NotLoggedInError."""
        if self.credentials is None:
            return {}
        try:
            with self._lock:
                if not self.credentials.valid:
                    self.credentials.refresh(self._request)
        except google.auth.exceptions.GoogleAuthError as error:
            raise not_logged_in(f"the login failed: {first_line(error)}") from None
        return {"Authorization": f"Bearer {self.credentials.token}"}


def log_in(pool: urllib3.PoolManager) -> Login:
    """Open a login for Cloud Storage; raises NotLoggedInError."""
    credentials, _ = find_credentials(
        _SCOPES, is_on_google=lambda: _is_on_google(pool), with_project=False
    )
    return Login(credentials, pool)


def _is_on_google(pool: urllib3.PoolManager) -> bool:
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
    headers = {"Metadata-Flavor": "Google"}
    try:
        reply = pool.request("GET", f"http://{host}", headers=headers, timeout=_METADATA_TIMEOUT_S)
    except urllib3.exceptions.HTTPError:
        return False
    return reply.headers.get("Metadata-Flavor") == "Google"
