"""The Cloud TPU API through Google's client, and the login for it."""

from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from google.cloud import tpu_v2
from google.cloud.location import locations_pb2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from google.longrunning import operations_pb2

from tpuctl.clock import Clock
from tpuctl.cloud import _google_protos as protos
from tpuctl.cloud._google_channel import Connection, translated_errors
from tpuctl.cloud.endpoint import quietly
from tpuctl.cloud.error_table import RequestContext
from tpuctl.cloud.models import (
    ALL_ZONES,
    Departure,
    Listing,
    Node,
    NodeRequest,
    Operation,
    QueuedResource,
    Quota,
    segment,
)
from tpuctl.cloud.retry import RequestLimits

PAGE_SIZE = 500


class GoogleTpuApi:
    """The v2 Cloud TPU API through google-cloud-tpu."""

    def __init__(self, connection: Connection, *, project: str, limits: RequestLimits) -> None:
        self.project = segment("project", project)
        self.endpoint = connection.endpoint.address
        self.emulated = connection.endpoint.is_local
        self.clock: Clock = connection.clock
        self._connection = connection
        self._read_s, self._write_s = limits.read_deadline_s, limits.write_deadline_s
        self._client = tpu_v2.TpuClient(
            transport=TpuGrpcTransport(channel=connection.open_channel())
        )

    def create_node(self, request: NodeRequest) -> Operation:
        """Create a node. Repeating the same request raises AlreadyExistsError."""
        message = tpu_v2.CreateNodeRequest(
            parent=self._zone(request.zone),
            node_id=segment("TPU", request.name),
            node=protos.node_message(request),
        )
        with self._doing("create TPU", request.name, request.zone):
            started = self._client.create_node(message, timeout=self._write_s)
        return protos.operation_of(started.operation, self.project)

    def get_node(self, name: str, *, zone: str) -> Node:
        """Read a node; raises NotFoundError when there is none."""
        path = self._node(name, zone)
        with self._doing("read TPU", name, zone):
            return protos.node_of(tpu_v2.Node.pb(self._client.get_node(name=path, **self._read)))

    def list_nodes(self, zone: str, *, leftovers: bool = False) -> Listing[Node]:
        """List the nodes of a zone, or of all zones; a node has no parts that could be left."""
        request = tpu_v2.ListNodesRequest(parent=self._zone(zone), page_size=PAGE_SIZE)
        with self._doing("list the TPUs", "", zone):
            pages = self._client.list_nodes(request, **self._read).pages
            messages = [tpu_v2.ListNodesResponse.pb(page) for page in pages]
        nodes = (node for message in messages for node in message.nodes)
        return Listing(tuple(protos.node_of(node) for node in nodes), _unreachable(messages))

    def delete_node(self, name: str, *, zone: str) -> Operation:
        """Delete whatever node has this name now."""
        path = self._node(name, zone)
        with self._doing("delete TPU", name, zone):
            started = self._client.delete_node(name=path, timeout=self._write_s)
        return protos.operation_of(started.operation, self.project)

    def set_metadata(self, node: Node, metadata: dict[str, str]) -> Operation:
        """Replace a node's metadata; the node must be READY or STOPPED."""
        changed = tpu_v2.Node(name=self._node(node.name, node.zone), metadata=metadata)
        message = tpu_v2.UpdateNodeRequest(node=changed, update_mask={"paths": ["metadata"]})
        with self._doing("update TPU", node.name, node.zone):
            started = self._client.update_node(message, timeout=self._write_s)
        return protos.operation_of(started.operation, self.project)

    def guest_attributes(self, node: Node, path: str) -> tuple[dict[str, str], ...]:
        """Read what each worker has published below a path."""
        request = tpu_v2.GetGuestAttributesRequest(
            name=self._node(node.name, node.zone), query_path=path
        )
        with self._doing("read the guest attributes of TPU", node.name, node.zone):
            answer = self._client.get_guest_attributes(request, **self._read)
        workers = tuple(
            {item.key: item.value for item in worker.query_value.items}
            for worker in answer.guest_attributes
        )
        # The entries carry no worker number. They are in the order of the workers, but if some are
        # missing, nothing tells which.
        return workers if len(workers) == len(node.endpoints) else ()

    def create_queued_resource(
        self, request: NodeRequest, *, valid_for_s: float | None = None
    ) -> Operation:
        """Create a queued resource for a node of that name; repeats have no further effect."""
        parent = self._zone(request.zone)
        message = tpu_v2.CreateQueuedResourceRequest(
            parent=parent,
            queued_resource_id=segment("queued resource", request.name),
            queued_resource=protos.queued_resource_message(
                request, parent=parent, valid_for_s=valid_for_s
            ),
            request_id=protos.request_id(request.create_id),
        )
        with self._doing("create queued resource", request.name, request.zone):
            started = self._client.create_queued_resource(message, timeout=self._write_s)
        return protos.operation_of(started.operation, self.project)

    def get_queued_resource(self, name: str, *, zone: str) -> QueuedResource:
        """Read a queued resource; raises NotFoundError when there is none."""
        path = self._queued_resource(name, zone)
        with self._doing("read queued resource", name, zone):
            queued = self._client.get_queued_resource(name=path, **self._read)
        return protos.queued_resource_of(tpu_v2.QueuedResource.pb(queued))

    def list_queued_resources(self, zone: str) -> Listing[QueuedResource]:
        """List the queued resources of a zone, or of all zones."""
        request = tpu_v2.ListQueuedResourcesRequest(parent=self._zone(zone), page_size=PAGE_SIZE)
        with self._doing("list the queued resources", "", zone):
            pages = self._client.list_queued_resources(request, **self._read).pages
            messages = [tpu_v2.ListQueuedResourcesResponse.pb(page) for page in pages]
        found = (queued for message in messages for queued in message.queued_resources)
        return Listing(
            tuple(protos.queued_resource_of(queued) for queued in found), _unreachable(messages)
        )

    def delete_queued_resource(self, name: str, *, zone: str, force: bool) -> Operation:
        """Delete a queued resource, with `force` its nodes too."""
        request = tpu_v2.DeleteQueuedResourceRequest(
            name=self._queued_resource(name, zone), force=force
        )
        with self._doing("delete queued resource", name, zone):
            started = self._client.delete_queued_resource(request, timeout=self._write_s)
        return protos.operation_of(started.operation, self.project)

    def get_operation(self, name: str) -> Operation:
        """Read an operation by its full name."""
        request = operations_pb2.GetOperationRequest(name=name)
        with self._doing("read operation", protos.last(name), protos.zone_of(name)):
            operation = self._client.get_operation(request, **self._read)
        return protos.operation_of(operation, self.project)

    def why_gone(self, name: str, *, zone: str, since: datetime | None = None) -> Departure | None:
        """Return None: this API keeps no record of what took a TPU away."""
        return None

    def list_zones(self) -> tuple[str, ...]:
        """List the zones that the project can see."""
        zones: list[str] = []
        request = locations_pb2.ListLocationsRequest(name=f"projects/{self.project}")
        while not zones or request.page_token:
            with self._doing("list the zones of project", self.project):
                page = self._client.list_locations(request, **self._read)
            zones += [location.location_id for location in page.locations]
            request.page_token = page.next_page_token
            if not page.locations:
                break
        return tuple(zones)

    def list_accelerator_types(self, zone: str) -> tuple[str, ...]:
        """List the types of a zone; raises ZoneHiddenError for one that we may not see."""
        request = tpu_v2.ListAcceleratorTypesRequest(parent=self._zone(zone), page_size=PAGE_SIZE)
        with self._doing("list the accelerator types", "", zone):
            kinds = list(self._client.list_accelerator_types(request, **self._read))
        return tuple(kind.type_ or protos.last(kind.name) for kind in kinds)

    def list_quotas(self) -> tuple[Quota, ...]:
        """Read the project's quotas of chips in all places."""
        with quietly():
            from tpuctl.cloud._google_quotas import read_quotas

        with self._doing("read the TPU quotas of project", self.project):
            return read_quotas(self._connection, self.project, deadline_s=self._read_s)

    def bucket_location(self, bucket: str) -> str:
        """Read the location of a bucket in lower case: a region, dual region or multi-region."""
        with quietly():
            from tpuctl.cloud._google_quotas import read_bucket_location

        with self._doing("read the location of bucket", segment("bucket", bucket)):
            return read_bucket_location(
                bucket, self.project, self._connection, deadline_s=self._read_s
            )

    @property
    def _read(self) -> dict[str, Any]:
        return {"timeout": self._read_s, "retry": None}

    def _zone(self, zone: str) -> str:
        zone = zone if zone == ALL_ZONES else segment("zone", zone)
        return f"projects/{self.project}/locations/{zone}"

    def _node(self, name: str, zone: str) -> str:
        return f"{self._zone(zone)}/nodes/{segment('TPU', name)}"

    def _queued_resource(self, name: str, zone: str) -> str:
        return f"{self._zone(zone)}/queuedResources/{segment('queued resource', name)}"

    def _doing(self, what: str, name: str, zone: str = "") -> AbstractContextManager[None]:
        """Translate the errors of a request, and say in them what was being done."""
        where = {"": "", ALL_ZONES: " of all zones"}.get(zone, f" in {zone}")
        doing = f"Could not {what}{' ' if name else ''}{name}{where}"
        return translated_errors(
            RequestContext(doing, project=self.project, zone=zone or "ZONE", name=name or "NAME")
        )


def _unreachable(messages: list[Any]) -> tuple[str, ...]:
    """Return the zones that did not answer."""
    # The service names them either by zone or by full location name.
    found = {protos.last(location) for message in messages for location in message.unreachable}
    return tuple(sorted(found))
