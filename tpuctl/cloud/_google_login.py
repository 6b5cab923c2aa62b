"""Who we are for Google: application default credentials, found without waiting for a timeout."""

import os
import warnings
from dataclasses import dataclass
from typing import Any

import google.auth
from google.auth import _cloud_sdk

from tpuctl.cloud._google_errors import LOGIN_COMMAND
from tpuctl.errors import InvalidInputError, NotLoggedInError
from tpuctl.runtime.metadata_server import MetadataServer

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


@dataclass(frozen=True)
class Login:
    """Credentials, and the project that they are used for."""

    credentials: Any
    project: str


def log_in(project: str | None) -> Login:
    """Find the credentials of this machine, and the project where none is given.

    Raises NotLoggedInError, and InvalidInputError for a project that cannot be told.
    """
    path = _credentials_file()
    if not path and not MetadataServer(os.environ).answers:
        # Google's own search would knock at the metadata server for ten seconds.
        raise _not_logged_in("there are no credentials for Google Cloud")
    try:
        credentials, found = _load(path, project)
    except Exception as error:  # whatever a broken file makes Google's reader stumble over
        reason = str(error.args[0] if error.args else error).partition("\n")[0]
        raise _not_logged_in(f"the credentials cannot be used: {reason}") from None
    project = project or found or getattr(credentials, "quota_project_id", None)
    if not project:
        raise InvalidInputError(
            "No Google Cloud project is set, and the login on this machine does not name one.",
            hint="export TPUCTL_PROJECT=YOUR_PROJECT (or --project; `gcloud projects list` "
            "names yours)",
        )
    return Login(credentials, project)


def _load(path: str | None, project: str | None) -> tuple[Any, str | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path and project:
            # google.auth.default() would start gcloud, for seconds, to learn the project.
            found: tuple[Any, str | None] = google.auth.load_credentials_from_file(
                path, scopes=SCOPES
            )
            return found
        return google.auth.default(scopes=SCOPES)


def _credentials_file() -> str | None:
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if path:
        return path
    path = str(_cloud_sdk.get_application_default_credentials_path())
    return path if os.path.isfile(path) else None


def _not_logged_in(why: str) -> NotLoggedInError:
    return NotLoggedInError(
        f"Not logged in: {why}.",
        hint=f"{LOGIN_COMMAND} (or practise for free: tpuctl emulator start)",
    )
