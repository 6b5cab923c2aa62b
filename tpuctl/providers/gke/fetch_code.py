"""What the init container of a pod runs: fetch the job's archive from its bucket, and unpack it.

This file is the argument of `python3 -c`, so it needs Python 3.8 alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request

_TRIES = 8
_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105 (a path)


def main(bucket: str, name: str, sha256: str) -> None:
    """Unpack an object into the current folder; end with a reason where that cannot be done."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    place = f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}?alt=media"
    why: OSError | None = None
    for attempt in range(_TRIES):
        try:
            headers = {} if emulator else _login()
            address = (emulator or "https://storage.googleapis.com") + place
            data = _read(address, headers)
            break
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                sys.exit(f"tpuctl: the pod's account may not read gs://{bucket} (403)")
            if error.code == 404:
                sys.exit(f"tpuctl: gs://{bucket}/{name} does not exist: launch uploads it")
            why = error
        except OSError as error:
            why = error
        time.sleep(min(2**attempt, 30))
    else:
        sys.exit(f"tpuctl: could not read gs://{bucket}/{name}: {why}")
    if hashlib.sha256(data).hexdigest() != sha256:
        sys.exit(f"tpuctl: gs://{bucket}/{name} is not the archive of this job")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall()  # noqa: S202 (our own, by its digest)


def _login() -> dict[str, str]:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    found = json.loads(_read("http://" + host + _TOKEN, {"Metadata-Flavor": "Google"}))
    return {"Authorization": "Bearer " + found["access_token"]}


def _read(address: str, headers: dict[str, str]) -> bytes:
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 (https or metadata)
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 (https)
        return bytes(reply.read())
