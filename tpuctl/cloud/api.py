"""The port: the Cloud TPU calls that we need."""

from typing import Protocol

from tpuctl.clock import Clock
from tpuctl.cloud.models import Listing, Node, NodeRequest, Operation, QueuedResource, Quota


class TpuApi(Protocol):
    """One request each, no waiting for what it starts; raises only TpuctlErrors.

    What `connect` gives repeats a request where that cannot do harm, and sends none faster than
    the service takes them. UnavailableError from `create_node` or a delete means that it is not
    known whether the work was done: read, then decide. A delete is sent once and at once; for
    RateLimitedError wait `retry_after_s`, make sure that the same resource still bears the name, and
    ask again.

    `zone` may be `models.ALL_ZONES` where something is listed. `clock` tells the service's time,
    whatever the clock of this machine says; `emulated` is whether no real TPU is behind it.
    """

    project: str
    endpoint: str
    emulated: bool
    clock: Clock

    def create_node(self, request: NodeRequest) -> Operation:
        """Ask for a node. A repeat of the same request raises AlreadyExistsError."""

    def get_node(self, name: str, *, zone: str) -> Node:
        """Read a node; raises NotFoundError when there is none."""

    def list_nodes(self, zone: str) -> Listing[Node]:
        """List the nodes of a zone, or of all."""

    def delete_node(self, name: str, *, zone: str) -> Operation:
        """Ask for the deletion of whatever bears this name now."""

    def set_metadata(self, node: Node, metadata: dict[str, str]) -> Operation:
        """Ask for a node's metadata to be replaced; only one that is READY or STOPPED allows it."""

    def guest_attributes(self, node: Node, path: str) -> tuple[dict[str, str], ...]:
        """Read what each worker of a node has published below a path such as `hostkeys/`, by key.

        Nothing at all where the service does not say of whom the answers are.
        """

    def create_queued_resource(
        self, request: NodeRequest, *, valid_for_s: float | None = None
    ) -> Operation:
        """Get in line for a node of that name; a repeat with the same id makes no second."""

    def get_queued_resource(self, name: str, *, zone: str) -> QueuedResource:
        """Read a queued resource; raises NotFoundError when there is none."""

    def list_queued_resources(self, zone: str) -> Listing[QueuedResource]:
        """List the queued resources of a zone, or of all."""

    def delete_queued_resource(self, name: str, *, zone: str, force: bool) -> Operation:
        """Ask for the deletion of a queued resource, with `force` of its nodes too."""

    def get_operation(self, name: str) -> Operation:
        """Read an operation by its full name."""

    def list_zones(self) -> tuple[str, ...]:
        """Name every zone that the project can see."""

    def list_accelerator_types(self, zone: str) -> tuple[str, ...]:
        """Name the types that a zone has; raises ZoneHiddenError for one we may not see."""

    def list_quotas(self) -> tuple[Quota, ...]:
        """Read how many chips the project may have, and where."""

    def bucket_location(self, bucket: str) -> str:
        """Where a storage bucket is: a region, a dual region or a multi-region, in lower case."""
