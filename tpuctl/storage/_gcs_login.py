"""Who we are for Cloud Storage: nobody for an emulator, else the login of this machine."""

import threading
from typing import Any

import google.auth.exceptions
import urllib3
from google.auth.compute_engine import _metadata
from google.auth.transport.urllib3 import Request

from tpuctl.storage._credentials import find_credentials, first_line, not_logged_in

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
