"""Application default credentials of this machine, found without waiting for a timeout."""

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import google.auth
import google.auth.exceptions
import urllib3
from google.auth import _cloud_sdk
from google.auth.compute_engine import _metadata
from google.auth.transport.urllib3 import Request

from tpuctl.errors import NotLoggedInError, first_line
from tpuctl.storage.errors import LOGIN_COMMAND


def find_credentials(
    scopes: Sequence[str], *, is_on_google: Callable[[], bool], with_project: bool
) -> tuple[Any, str | None]:
    """Return credentials, and the project that they name if `with_project`.

    Raises NotLoggedInError, without a word of what is in the file.
    """
    path = _credentials_file()
    if not path and not is_on_google():
        # Google's own search would knock at the metadata server for ten seconds.
        raise not_logged_in("there are no credentials for Google Cloud")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if path and not with_project:
                # google.auth.default() would start gcloud, for seconds, to learn the project.
                found: tuple[Any, str | None] = google.auth.load_credentials_from_file(
                    path, scopes=scopes
                )
                return found
            return google.auth.default(scopes=scopes)
    except Exception as error:  # whatever a broken file makes Google's reader stumble over
        raise not_logged_in(f"the credentials cannot be used: {first_line(error)}") from None


def not_logged_in(why: str) -> NotLoggedInError:
    """Say why nobody is logged in, and how to."""
    return NotLoggedInError(
        f"Not logged in: {why}.",
        hint=f"{LOGIN_COMMAND} (or practise for free: tpuctl emulator start)",
    )


def _credentials_file() -> str | None:
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if path:
        return path
    path = str(_cloud_sdk.get_application_default_credentials_path())
    return path if os.path.isfile(path) else None


_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_KNOCK_S = 0.5


class Login:
    """Credentials, and the header that proves them; fresh whenever it is asked for."""

    def __init__(self, credentials: Any, pool: urllib3.PoolManager) -> None:
        self.credentials = credentials
        self._request = Request(pool)
        self._lock = threading.Lock()

    def headers(self) -> dict[str, str]:
        """The header to send; raises NotLoggedInError."""
        if self.credentials is None:
            return {}
        try:
            with self._lock:
                if not self.credentials.valid:
                    self.credentials.refresh(self._request)
        except google.auth.exceptions.GoogleAuthError as error:
            raise not_logged_in(f"the login does not work: {first_line(error)}") from None
        return {"Authorization": f"Bearer {self.credentials.token}"}


def log_in(pool: urllib3.PoolManager) -> Login:
    """Find the credentials of this machine; raises NotLoggedInError."""
    credentials, _ = find_credentials(
        _SCOPES, is_on_google=lambda: _is_on_google(pool), with_project=False
    )
    return Login(credentials, pool)


def _is_on_google(pool: urllib3.PoolManager) -> bool:
    return bool(_metadata.ping(Request(pool), timeout=_KNOCK_S, retry_count=1))
