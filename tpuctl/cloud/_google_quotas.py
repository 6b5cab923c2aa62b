"""TPU quotas and bucket locations, through Google's clients for them."""

import os
import re
from collections.abc import Iterator
from typing import Any

import google.cloud.storage as storage
from google.auth.credentials import AnonymousCredentials
from google.cloud import cloudquotas_v1
from google.cloud.cloudquotas_v1.services.cloud_quotas.transports import CloudQuotasGrpcTransport

from tpuctl.cloud._google_channel import Connection
from tpuctl.cloud.models import Quota
from tpuctl.errors import InvalidInputError

ADDRESS = "cloudquotas.googleapis.com:443"
PAGE_SIZE = 500

_GENERATIONS = {
    "TPUV2": "v2",
    "TPUV3": "v3",
    "TPUV4": "v4",
    "TPUV5sLitepod": "v5e",
    "TPUV5sPreemptibleLitepod": "v5e",
    "TPUV5P": "v5p",
    "TPUV6E": "v6e",
}


def read_quotas(connection: Connection, project: str, *, deadline_s: float) -> tuple[Quota, ...]:
    """Read all quotas of chips, without those of requests per minute."""
    channel = connection.open_channel(ADDRESS)
    client = cloudquotas_v1.CloudQuotasClient(transport=CloudQuotasGrpcTransport(channel=channel))
    request = cloudquotas_v1.ListQuotaInfosRequest(
        parent=f"projects/{project}/locations/global/services/tpu.googleapis.com",
        page_size=PAGE_SIZE,
    )
    with channel:
        pages = client.list_quota_infos(request, timeout=deadline_s, retry=None).pages
        infos = [
            info
            for page in pages
            for info in cloudquotas_v1.ListQuotaInfosResponse.pb(page).quota_infos
        ]
    return tuple(quota for info in infos for quota in _quotas_of(info))


def _quotas_of(info: Any) -> Iterator[Quota]:
    # There is an entry for each place with its own limit, and one with a default for the rest.
    generation = _generation(info.quota_id)
    if generation is None:
        return
    named = {place for entry in info.dimensions_infos if (place := _place(entry))}
    for entry in info.dimensions_infos:
        if entry.details.value < 0:
            continue  # no limit
        place = _place(entry)
        for where in [place] if place else sorted(set(entry.applicable_locations) - named):
            yield Quota(
                id=info.quota_id,
                generation=generation,
                spot="Preemptible" in info.quota_id,
                place=where,
                limit=entry.details.value,
                counts="chips" if generation in ("v5e", "v6e") else "cores",
            )


def _place(entry: Any) -> str:
    return str(entry.dimensions.get("zone") or entry.dimensions.get("region") or "")


def _generation(quota_id: str) -> str | None:
    if not re.search(r"PerProjectPer(Region|Zone)", quota_id):
        return None
    return next((name for start, name in _GENERATIONS.items() if quota_id.startswith(start)), None)


EMULATOR = "STORAGE_EMULATOR_HOST"


def read_bucket_location(
    bucket: str, project: str, connection: Connection, *, deadline_s: float
) -> str:
    """Read a bucket's location, in lower case."""
    practising = bool(os.environ.get(EMULATOR))
    if connection.endpoint.is_local and not practising:
        raise InvalidInputError(
            f"Could not read the location of bucket {bucket}: the TPU endpoint is an emulator, "
            f"but {EMULATOR} is not set.",
            hint="Run all the export lines that `tpuctl emulator start` prints.",
        )
    credentials = AnonymousCredentials() if practising else connection.credentials
    client = storage.Client(project=project, credentials=credentials)
    try:
        location = client.get_bucket(bucket, timeout=deadline_s, retry=None).location
    finally:
        client.close()
    return str(location).lower()
