"""Application default credentials of this machine, found without waiting for a timeout."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import google.auth
from google.auth import _cloud_sdk

from tpuctl.errors import NotLoggedInError
from tpuctl.storage.faults import LOGIN_COMMAND


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


def first_line(error: Exception) -> str:
    """What an exception says, without the rest."""
    return str(error.args[0] if error.args else error).partition("\n")[0]


def _credentials_file() -> str | None:
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if path:
        return path
    path = str(_cloud_sdk.get_application_default_credentials_path())
    return path if os.path.isfile(path) else None
