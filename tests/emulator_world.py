"""An emulator with a manual clock, and Google's own clients that talk to it."""

import http.client
import json
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

from tests.conftest import EMULATOR_TOKEN
from tpuctl.clock import ManualClock
from tpuctl.emulator.server import Emulator

START = datetime(2026, 11, 20, 9, tzinfo=timezone.utc)
PROJECT = "projects/p"
ZONE = f"{PROJECT}/locations/us-central1-a"
RUNTIME = "v2-alpha-tpuv5-lite"
SMALL = {
    "zones": {
        "us-central1-a": {
            "types": ["v5litepod-8", "v5litepod-16"],
            "capacity_chips": 16,
            "quota_chips": 32,
        }
    }
}


def open_channel(endpoint: str, token: str = EMULATOR_TOKEN) -> grpc.Channel:
    """A channel on which Google's clients send the secret of an emulator."""
    secret = grpc.access_token_call_credentials(token)
    local = grpc.local_channel_credentials()
    return grpc.secure_channel(endpoint, grpc.composite_channel_credentials(local, secret))


class Practice:
    """An emulator, its clock, and a client that talks to it."""

    def __init__(self, emulator: Emulator, clock: ManualClock, channel: grpc.Channel) -> None:
        self.emulator, self.clock, self.channel = emulator, clock, channel
        self.client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))

    def create(self, name: str, type_: str = "v5litepod-8", **fields: Any) -> Any:
        node = tpu_v2.Node(accelerator_type=type_, runtime_version=RUNTIME, **fields)
        return self.client.create_node(parent=ZONE, node_id=name, node=node)

    def queue(self, name: str, type_: str = "v5litepod-8", **fields: Any) -> Any:
        request_id = fields.pop("request_id", "")
        node = tpu_v2.Node(accelerator_type=type_, runtime_version=RUNTIME)
        spec = fields.pop("spec", {"node_id": name})
        tpu = {"node_spec": [{"parent": ZONE, "node": node, **spec}]}
        return self.client.create_queued_resource(
            tpu_v2.CreateQueuedResourceRequest(
                parent=ZONE,
                queued_resource_id=name,
                queued_resource=tpu_v2.QueuedResource(tpu=tpu, **fields),
                request_id=request_id,
            )
        )

    def node(self, name: str) -> Any:
        return self.client.get_node(name=f"{ZONE}/nodes/{name}")

    def queued(self, name: str) -> Any:
        return self.client.get_queued_resource(name=f"{ZONE}/queuedResources/{name}")

    def queued_state(self, name: str) -> str:
        state: str = self.queued(name).state.state.name
        return state

    def http(
        self, verb: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """One raw HTTP request; the answer's body is read as JSON where it is."""
        place = urlsplit(self.emulator.http)
        connection = http.client.HTTPConnection(place.netloc)
        try:
            data = body if body is None or isinstance(body, str) else json.dumps(body)
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(verb, f"{place.path}{path}", data, names)
            reply = connection.getresponse()
            text, answered = reply.read().decode(), dict(reply.headers)
        finally:
            connection.close()
        is_json = answered.get("Content-Type", "").startswith("application/json")
        return reply.status, json.loads(text) if is_json else text, answered

    def token(self, machine: str = "") -> str:
        """A token, as the metadata server of a machine gives it."""
        path = f"{machine}/computeMetadata/v1/instance/service-accounts/default/token"
        token: str = self.http("GET", path, Metadata_Flavor="Google")[1]["access_token"]
        return token
