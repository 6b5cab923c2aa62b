"""Translate HTTP errors of Cloud Storage into our errors, with the command that helps."""

import json
import os
import shlex
from dataclasses import dataclass

from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    RateLimitedError,
    TpuctlError,
    UnavailableError,
)

LOGIN_COMMAND = "gcloud auth application-default login"
EMULATOR = "STORAGE_EMULATOR_HOST"
TRANSIENT = (408, 429, 500, 502, 503, 504)
"""HTTP statuses that are worth a retry."""

_NO_BUCKET = "specified bucket does not exist"


@dataclass(frozen=True)
class RequestContext:
    """The start of an error message, such as `Could not read gs://b/n`, and the bucket."""

    doing: str
    bucket: str


def translate(status: int, message: str, context: RequestContext) -> TpuctlError:
    """Turn an HTTP status and the service's message into the error to raise."""
    doing, bucket, said = context.doing, context.bucket, message.strip().partition("\n")[0]
    if status == 401:
        return NotLoggedInError(f"{doing}: the login is not valid: {said}", hint=LOGIN_COMMAND)
    if status == 403:
        return PermissionDeniedError(
            f"{doing}: {said}",
            hint=f"gcloud storage buckets add-iam-policy-binding gs://{bucket} "
            "--member=user:YOU --role=roles/storage.objectUser",
        )
    if status == 404 and _NO_BUCKET in message:
        return NotFoundError(
            f"{doing}: the bucket {bucket} does not exist.", hint=_create_bucket(bucket)
        )
    if status == 404:
        return NotFoundError(
            f"{doing}: the object does not exist.", hint=f"gcloud storage ls gs://{bucket}"
        )
    if status == 412:
        return AlreadyExistsError(
            f"{doing}: it was modified concurrently.",
            hint="Check its content, then run the same command again.",
        )
    if status == 429:
        return RateLimitedError(
            f"{doing}: too many requests.", hint="Run the same command again in a minute."
        )
    if status in TRANSIENT:
        return unavailable(context, f"HTTP {status}: {said}")
    return InvalidInputError(f"{doing}: Cloud Storage refused it (HTTP {status}): {said}")


def _create_bucket(bucket: str) -> str:
    if not os.environ.get(EMULATOR):
        return f"gcloud storage buckets create gs://{bucket} --location=REGION_OF_THE_TPU"
    create = f"storage.Client.create_anonymous_client().create_bucket({json.dumps(bucket)})"
    return f"python -c {shlex.quote(f'from google.cloud import storage; {create}')}"


def unavailable(context: RequestContext, why: str) -> UnavailableError:
    """Build the error for a reply that is missing or incomplete."""
    return UnavailableError(
        f"{context.doing}: Cloud Storage did not answer: {why}",
        hint="Run the same command again; finished work is kept.",
    )


def no_emulator(context: RequestContext, url: str) -> UnavailableError:
    """Build the error for an emulator address where nothing listens."""
    return UnavailableError(
        f"{context.doing}: no emulator is running at {'/'.join(url.split('/')[:3])}.",
        hint=f"tpuctl emulator start (or unset {EMULATOR} to use Google's service)",
    )
