"""The port to a control plane that has TPUs: the requests that tpuctl sends."""

from datetime import datetime
from typing import Protocol

from tpuctl.clock import Clock
from tpuctl.cloud.models import (
    Departure,
    Listing,
    Node,
    NodeRequest,
    Operation,
    QueuedResource,
    Quota,
)


class TpuApi(Protocol):
    """One request per method, without waiting for the operation it starts; raises TpuctlErrors.

    The API that `connect` returns repeats requests where that is safe, and respects the service's
    rate limits. UnavailableError from `create_node` or a delete means that the work may or may not
    have been done: read, then decide. A delete is sent once and at once: after RateLimitedError,
    wait `retry_after_s`, check that the name still belongs to the same resource, and send it again.

    `zone` may be ALL_ZONES in list methods. `clock` is the service's time, whatever this machine's
    clock says. `emulated` is whether the service is an emulator.
    """

    project: str
    endpoint: str
    emulated: bool
    clock: Clock

    def create_node(self, request: NodeRequest) -> Operation:
        """Create a node. Repeating the same request raises AlreadyExistsError."""

    def get_node(self, name: str, *, zone: str) -> Node:
        """Read a node; raises NotFoundError when there is none."""

    def list_nodes(self, zone: str, *, leftovers: bool = False) -> Listing[Node]:
        """List the nodes of a zone, or of all zones; with `leftovers` also parts of slices."""

    def delete_node(self, name: str, *, zone: str) -> Operation:
        """Delete whatever node has this name now."""

    def set_metadata(self, node: Node, metadata: dict[str, str]) -> Operation:
        """Replace a node's metadata; the node must be READY or STOPPED."""

    def guest_attributes(self, node: Node, path: str) -> tuple[dict[str, str], ...]:
        """Read what each worker has published below a path such as `hostkeys/`, by key.

        Empty where the answers cannot be assigned to workers.
        """

    def create_queued_resource(
        self, request: NodeRequest, *, valid_for_s: float | None = None
    ) -> Operation:
        """Create a queued resource for a node of that name; repeats have no further effect."""

    def get_queued_resource(self, name: str, *, zone: str) -> QueuedResource:
        """Read a queued resource; raises NotFoundError when there is none."""

    def list_queued_resources(self, zone: str) -> Listing[QueuedResource]:
        """List the queued resources of a zone, or of all zones."""

    def delete_queued_resource(self, name: str, *, zone: str, force: bool) -> Operation:
        """Delete a queued resource, with `force` its nodes too."""

    def get_operation(self, name: str) -> Operation:
        """Read an operation by its full name."""

    def why_gone(self, name: str, *, zone: str, since: datetime | None = None) -> Departure | None:
        """Find out why a TPU is gone; None where the service keeps no record of it."""

    def list_zones(self) -> tuple[str, ...]:
        """List the zones that the project can see."""

    def list_accelerator_types(self, zone: str) -> tuple[str, ...]:
        """List the types of a zone; raises ZoneHiddenError for one that we may not see."""

    def list_quotas(self) -> tuple[Quota, ...]:
        """Read the project's quotas of chips in all places."""

    def bucket_location(self, bucket: str) -> str:
        """Read the location of a bucket in lower case: a region, dual region or multi-region."""
