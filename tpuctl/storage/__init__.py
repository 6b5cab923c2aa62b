"""Read and write objects in local folders and Cloud Storage buckets."""

import re
from pathlib import Path

from tpuctl.clock import Clock, RetryPolicy
from tpuctl.errors import InvalidInputError, MissingExtraError
from tpuctl.storage.folder import Folder
from tpuctl.storage.port import Storage

_BUCKET = re.compile(r"gs:/+(?P<bucket>[^/]*)(?:/(?P<prefix>.*))?", re.DOTALL)
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def open_storage(
    address: str | Path, *, clock: Clock | None = None, retry: RetryPolicy | None = None
) -> Storage:
    """Open a folder, or a bucket at `gs://BUCKET/PREFIX`, without sending a request.

    Raises InvalidInputError for a malformed address, NotLoggedInError, MissingExtraError.
    """
    found = _BUCKET.fullmatch(str(address))
    if found is None:
        return Folder(Path(address))
    bucket, prefix = found["bucket"], (found["prefix"] or "").strip("/")
    if not _BUCKET_NAME.fullmatch(bucket):
        raise InvalidInputError(
            f"{address} has no valid bucket name.", hint="Use gs://BUCKET or gs://BUCKET/FOLDER."
        )
    try:
        from tpuctl.storage._gcs import open_bucket

        return open_bucket(bucket, prefix, clock=clock, retry=retry or RetryPolicy())
    except ImportError as error:
        raise MissingExtraError("Using buckets", extra="gcp", module=str(error.name)) from error
