"""The port of `tpuctl.cloud` on compute.v1: a TPU is one VM, or the three parts of a slice."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from typing import TypeVar

from tpuctl.cloud._google_channel import Connection, translated_errors
from tpuctl.cloud.endpoint import quietly
from tpuctl.cloud.error_table import RequestContext, checks_replies
from tpuctl.cloud.gce import reading
from tpuctl.cloud.gce._http import ComputeHttp, Json, error_of_operation
from tpuctl.cloud.gce._slices import Slices
from tpuctl.cloud.gce.bodies import instance_body, kind_of, part_name, request_id
from tpuctl.cloud.gce.quotas import quotas_of
from tpuctl.cloud.lookup import attempt_all
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
from tpuctl.errors import AlreadyExistsError, NotFoundError, TpuctlError, UnsupportedError
from tpuctl.hardware.compute_engine import is_tpu_machine, types_of_machines

_TPU_MACHINES = 'name eq "(ct|tpu).*"'
_AT_ONCE = 16

T = TypeVar("T")


def _all_or_raise(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Send requests in parallel; raises the first error."""
    found: list[T] = []
    for answer in attempt_all(tasks, at_once=_AT_ONCE):
        if isinstance(answer, TpuctlError):
            raise answer
        found.append(answer)
    return found


@checks_replies("Compute Engine")
class ComputeApi:
    """TPUs as instances and managed instance groups, through plain REST."""

    def __init__(self, connection: Connection, *, project: str, limits: RequestLimits) -> None:
        self.project = segment("project", project)
        # Not that of the Cloud TPU API, even where one emulator serves both: an entry of the
        # journal belongs to one control plane.
        self.endpoint = f"{connection.endpoint.address}/compute/v1"
        self.emulated, self.clock = connection.endpoint.is_local, connection.clock
        self._connection, self._read_s = connection, limits.read_deadline_s
        self._http = ComputeHttp(
            connection, read_s=limits.read_deadline_s, write_s=limits.write_deadline_s
        )
        self._slices = Slices(self._http, self.project, self.clock, self._departure)

    def create_node(self, request: NodeRequest) -> Operation:
        """Create a VM or a slice; the same request again resumes where it was interrupted."""
        kind, _ = kind_of(request)
        segment("TPU", request.name)
        context = self._doing("create TPU", request.name, request.zone)
        other = "instances" if kind.workers > 1 else "instanceGroupManagers"
        with suppress(NotFoundError):
            # The service would make both, and no verb could tell them apart.
            self._http.send("GET", self._at(request.zone, f"{other}/{request.name}"), context)
            raise AlreadyExistsError(f"{context.doing}: its name is taken.")
        if kind.workers > 1:
            return self._operation(self._slices.create(request, context))
        query = {"requestId": request_id(request.create_id, "instances")}
        path, body = self._at(request.zone, "instances"), instance_body(request)
        return self._operation(self._http.send("POST", path, context, body=body, query=query))

    def get_node(self, name: str, *, zone: str) -> Node:
        """Read a VM or a slice, or what is left of a slice."""
        context = self._doing("read TPU", name, zone)
        path = self._at(zone, f"instances/{segment('TPU', name)}")
        try:
            instance = self._http.send("GET", path, context)
        except NotFoundError as error:
            if found := self._slices.read(name, zone, context):
                return found
            raise error from None
        if not reading.is_tpu(instance):
            raise NotFoundError(f"{context.doing}: {name} is a VM without a TPU.")
        return self._node_of_vm(instance)

    def list_nodes(self, zone: str, *, leftovers: bool = False) -> Listing[Node]:
        """List the VMs and slices of a zone, or of all; one request for each kind of resource."""
        context = self._doing("list the TPUs", "", zone)
        kinds = ("instances", "instanceGroupManagers")
        (seen, vms), (more, groups) = _all_or_raise(
            [partial(self._all, kind, zone, context) for kind in kinds]
        )
        members: dict[tuple[str, str | None], list[Json]] = {}
        for vm in vms:
            if reading.is_tpu(vm):
                owner = reading.last(vm.get("zone")), reading.group_of(vm)
                members.setdefault(owner, []).append(vm)
        nodes = [
            self._node_of_vm(vm) for owner, each in members.items() if not owner[1] for vm in each
        ]
        for group in groups:
            own = members.get((reading.last(group.get("zone")), str(group.get("name"))), [])
            node = self._slices.node(group, own, [], context)
            nodes += [node] if node else []
        if leftovers:
            known = {part_name(node.name, node.zone) for node in nodes}
            marks = {part_name(m.name, m.zone): m for m in self._slices.marks(zone, context)}
            nodes += [reading.node_of_mark(m) for key, m in marks.items() if key not in known]
        return Listing(tuple(nodes), reading.unreachable([*seen, *more]))

    def delete_node(self, name: str, *, zone: str) -> Operation:
        """Delete a VM, or the part of a slice that comes next."""
        context = self._doing("delete TPU", name, zone)
        path = self._at(zone, f"instances/{segment('TPU', name)}")
        try:
            if reading.is_tpu(self._http.send("GET", path, context)):
                return self._operation(self._http.send("DELETE", path, context))
        except NotFoundError:
            pass
        return self._operation(self._slices.delete(name, zone, context))

    def set_metadata(self, node: Node, metadata: dict[str, str]) -> Operation:
        """Change the metadata of every VM by what differs from the TPU's."""
        context = self._doing("update TPU", node.name, node.zone)
        changed = {k: v for k, v in metadata.items() if node.metadata.get(k) != v}
        operation: Json = {}
        for endpoint in node.endpoints:
            path = self._at(node.zone, f"instances/{endpoint.vm}")
            instance = self._http.send("GET", path, context)
            kept = reading.metadata_of(instance)
            gone = node.metadata.keys() - metadata.keys()
            items = {**{k: v for k, v in kept.items() if k not in gone}, **changed}
            body = {
                "fingerprint": instance.get("metadata", {}).get("fingerprint"),
                "items": [{"key": k, "value": v} for k, v in items.items()],
            }
            operation = self._http.send("POST", f"{path}/setMetadata", context, body=body)
        return self._operation(operation)

    def guest_attributes(self, node: Node, path: str) -> tuple[dict[str, str], ...]:
        """Read what each worker has published below a path; each VM answers for itself."""
        context = self._doing("read the guest attributes of TPU", node.name, node.zone)

        def read(vm: str | None) -> dict[str, str]:
            where, query = self._at(node.zone, f"instances/{vm}"), {"queryPath": path}
            try:
                answer = self._http.send("GET", f"{where}/getGuestAttributes", context, query=query)
            except NotFoundError:
                return {}
            items = (answer.get("queryValue") or {}).get("items") or ()
            return {str(item["key"]): str(item.get("value", "")) for item in items}

        return tuple(_all_or_raise([partial(read, each.vm) for each in node.endpoints]))

    def create_queued_resource(
        self, request: NodeRequest, *, valid_for_s: float | None = None
    ) -> Operation:
        """Refuse: a flex-start TPU waits without a queue."""
        raise UnsupportedError("Compute Engine has no queued resources.", hint="Use --flex.")

    delete_queued_resource = create_queued_resource

    def get_queued_resource(self, name: str, *, zone: str) -> QueuedResource:
        """Raise NotFoundError: there are none."""
        raise NotFoundError(f"Queued resource {name} not found on Compute Engine.")

    def list_queued_resources(self, zone: str) -> Listing[QueuedResource]:
        """Return nothing: a TPU that waits is a TPU that is PENDING."""
        return Listing(())

    def get_operation(self, name: str) -> Operation:
        """Read an operation by its full name."""
        zone = name.partition("/zones/")[2].partition("/")[0]
        context = self._doing("read operation", reading.last(name), zone)
        return self._operation(self._http.send("GET", name, context))

    def why_gone(self, name: str, *, zone: str, since: datetime | None = None) -> Departure | None:
        """Find out from the newest operations why a TPU is gone; None where they do not tell."""
        context = self._doing("read the operations of", name, zone)
        query = {"orderBy": "creationTimestamp desc", "maxResults": "500"}
        place = "aggregated" if zone == ALL_ZONES else f"zones/{segment('zone', zone)}"
        page = self._http.send(
            "GET", f"projects/{self.project}/{place}/operations", context, query=query
        )
        found = page.get("items") or ()
        if zone == ALL_ZONES:
            found = [each for _, each in reading.scoped(page, "operations")]
        newest = sorted(found, key=lambda each: str(each.get("insertTime", "")), reverse=True)
        pair = reading.departure_of(newest, name, since)
        if pair is None:
            return None
        doing = RequestContext(f"{name} could not be created", self.project, zone, name)
        return replace(pair[0], error=error_of_operation(pair[1], doing))

    def list_zones(self) -> tuple[str, ...]:
        """List the zones that have machines with TPUs."""
        return tuple(self._machines)

    def list_accelerator_types(self, zone: str) -> tuple[str, ...]:
        """List the types that can be made of a zone's machines; no request after the first."""
        return types_of_machines(self._machines.get(zone, frozenset()))

    def list_quotas(self) -> tuple[Quota, ...]:
        """Read the project's quotas of chips in all places."""
        context = self._doing("read the Compute Engine quotas of project", self.project)
        pages = self._http.quota_pages(self.project, context)
        return quotas_of(info for page in pages for info in page.get("quotaInfos") or ())

    def bucket_location(self, bucket: str) -> str:
        """Read the location of a bucket in lower case: a region, dual region or multi-region."""
        with quietly():
            from tpuctl.cloud._google_quotas import read_bucket_location
        context = self._doing("read the location of bucket", segment("bucket", bucket))
        with translated_errors(context):
            return read_bucket_location(
                bucket, self.project, self._connection, deadline_s=self._read_s
            )

    @cached_property
    def _machines(self) -> dict[str, frozenset[str]]:
        context = self._doing("list the machine types of project", self.project)
        path = f"projects/{self.project}/aggregated/machineTypes"
        found: dict[str, set[str]] = {}
        for page in self._http.pages(path, context, filter=_TPU_MACHINES):
            for zone, machine in reading.scoped(page, "machineTypes"):
                if is_tpu_machine(str(machine.get("name"))):
                    found.setdefault(zone, set()).add(str(machine["name"]))
        return {zone: frozenset(names) for zone, names in sorted(found.items())}

    def _all(
        self, kind: str, zone: str, context: RequestContext
    ) -> tuple[Sequence[Json], Sequence[Json]]:
        """Read a list of one kind; return its pages, and what is in them."""
        if zone == ALL_ZONES:
            pages = [*self._http.pages(f"projects/{self.project}/aggregated/{kind}", context)]
            return pages, [each for page in pages for _, each in reading.scoped(page, kind)]
        pages = [*self._http.pages(self._at(zone, kind), context)]
        return pages, [each for page in pages for each in page.get("items") or ()]

    def _node_of_vm(self, instance: Json) -> Node:
        node = reading.node_of_instance(instance)
        if node.state not in ("STOPPED", "STOPPING"):
            return node
        return reading.with_departure(node, self._departure(node.name, node.zone, node.created))

    def _departure(self, name: str, zone: str, since: datetime) -> Departure | None:
        return self.why_gone(name, zone=zone, since=since)

    def _operation(self, operation: Json) -> Operation:
        path, target = reading.path_of(operation), str(operation.get("targetLink", ""))
        zone = path.partition("/zones/")[2].partition("/")[0]
        verb = str(operation.get("operationType") or "change")
        what = {"insert": "create"}.get(verb := verb.rpartition(".")[2], verb)
        context = self._doing(f"{what} TPU", reading.last(target), zone)
        return Operation(
            name=path,
            verb=verb,
            target=target,
            done=operation.get("status") == "DONE",
            detail=str(operation.get("statusMessage") or ""),
            error=error_of_operation(operation, context),
        )

    def _at(self, zone: str, what: str) -> str:
        return f"projects/{self.project}/zones/{segment('zone', zone)}/{what}"

    def _doing(self, what: str, name: str, zone: str = "") -> RequestContext:
        where = {"": "", ALL_ZONES: " of all zones"}.get(zone, f" in {zone}")
        doing = f"Could not {what}{' ' if name else ''}{name}{where}"
        return RequestContext(doing, project=self.project, zone=zone or "ZONE", name=name or "NAME")
