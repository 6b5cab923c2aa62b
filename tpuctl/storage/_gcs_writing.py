"""Write to Cloud Storage with Google's client, every request under a generation precondition."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import google.auth.exceptions
import google.cloud.storage as vendor
import requests
import urllib3
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from tpuctl.clock import RetryPolicy
from tpuctl.errors import NotLoggedInError, TpuctlError, first_line
from tpuctl.storage._checksum import to_base64
from tpuctl.storage._credentials import Login
from tpuctl.storage._gcs_reading import Item
from tpuctl.storage.errors import LOGIN_COMMAND, RequestContext, translate, unavailable

# A chunk stays in memory until it has been accepted; the client's default is 100 MiB.
_CHUNK_BYTES = 16 << 20
_TIMEOUT_S = 60.0


class Writer:
    """The requests that change objects, each only if the generation is the expected one."""

    def __init__(self, bucket: str, login: Login, retry: RetryPolicy, base: str) -> None:
        credentials = login.credentials or AnonymousCredentials()
        client = vendor.Client(
            project=None, credentials=credentials, client_options={"api_endpoint": base}
        )
        self._name, self._bucket = bucket, client.bucket(bucket)
        self._retry: Retry = DEFAULT_RETRY.with_delay(
            initial=retry.first_s, maximum=retry.longest_s
        ).with_timeout(retry.total_s)

    def write(self, name: str, content: bytes | Path, crc32c: str, generation: int) -> Item | None:
        """Upload an object with its checksum; returns its metadata, if the reply has it."""
        blob = self._bucket.blob(name, chunk_size=_CHUNK_BYTES)
        with self._translated(f"Could not write gs://{self._name}/{name}"), _open(content) as file:
            blob.upload_from_file(
                file,
                size=os.fstat(file.fileno()).st_size if isinstance(content, Path) else len(content),
                content_type="application/octet-stream",
                if_generation_match=generation,
                checksum="crc32c",
                crc32c_checksum_value=to_base64(crc32c),
                timeout=_TIMEOUT_S,
                retry=self._retry,
            )
        try:
            return Item(name, str(blob.size), str(blob.generation), blob.crc32c)
        except ValueError:
            return None

    def delete(self, name: str, generation: int) -> None:
        """Delete this generation of an object."""
        with self._translated(f"Could not delete gs://{self._name}/{name}"):
            self._bucket.blob(name).delete(
                if_generation_match=generation, timeout=_TIMEOUT_S, retry=self._retry
            )

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Turn every exception of Google's libraries into a TpuctlError."""
        context = RequestContext(doing, self._name)
        try:
            yield
        except RetryError as error:
            raise _translate(error.cause, context) from None
        except GoogleAPICallError as error:
            raise _translate(error, context) from None
        except google.auth.exceptions.GoogleAuthError as error:
            message = f"{doing}: the login failed: {first_line(error)}"
            raise NotLoggedInError(message, hint=LOGIN_COMMAND) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, DataCorruption) as error:
            raise unavailable(context, first_line(error)) from None


def _translate(error: Exception | None, context: RequestContext) -> TpuctlError:
    if isinstance(error, GoogleAPICallError):
        return translate(int(error.code or 0), error.message or "", context)
    if isinstance(error, InvalidResponse):
        return translate(int(error.response.status_code), first_line(error), context)
    return unavailable(context, first_line(error) if error else "no reply")


@contextmanager
def _open(content: bytes | Path) -> Iterator[BinaryIO]:
    if isinstance(content, bytes):
        yield io.BytesIO(content)
        return
    with content.open("rb") as file:
        yield file
