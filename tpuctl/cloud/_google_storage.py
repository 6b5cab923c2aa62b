"""Where a bucket is, through google-cloud-storage."""

import os

import google.cloud.storage as storage
from google.auth.credentials import AnonymousCredentials

from tpuctl.cloud._google_channel import Connection
from tpuctl.errors import InvalidInputError

EMULATOR = "STORAGE_EMULATOR_HOST"


def read_bucket_location(
    bucket: str, project: str, connection: Connection, *, deadline_s: float
) -> str:
    """Read a bucket's location, in lower case."""
    practising = bool(os.environ.get(EMULATOR))
    if connection.endpoint.is_local and not practising:
        raise InvalidInputError(
            f"Could not read the location of bucket {bucket}: the TPUs are an emulator's, "
            f"but {EMULATOR} is not set.",
            hint="Export all the lines that `tpuctl emulator start` prints.",
        )
    credentials = AnonymousCredentials() if practising else connection.credentials
    client = storage.Client(project=project, credentials=credentials)
    try:
        location = client.get_bucket(bucket, timeout=deadline_s, retry=None).location
    finally:
        client.close()
    return str(location).lower()
