"""Who we are for Google, and for which project."""

import os
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import InvalidInputError
from tpuctl.runtime.metadata_server import MetadataServer
from tpuctl.storage._credentials import find_credentials

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
    credentials, found = find_credentials(
        SCOPES,
        is_on_google=lambda: MetadataServer(os.environ).answers,
        with_project=not project,
    )
    project = project or found or getattr(credentials, "quota_project_id", None)
    if not project:
        raise InvalidInputError(
            "No Google Cloud project is set, and the login on this machine does not name one.",
            hint="export TPUCTL_PROJECT=YOUR_PROJECT (or --project; `gcloud projects list` "
            "names yours)",
        )
    return Login(credentials, project)
