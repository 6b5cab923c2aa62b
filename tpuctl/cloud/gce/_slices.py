"""The three parts of a slice: made one after the other, read as one TPU, deleted in reverse."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from tpuctl.clock import Clock
from tpuctl.cloud.error_table import RequestContext
from tpuctl.cloud.gce import reading
from tpuctl.cloud.gce._http import ComputeHttp, Json, error_of_operation
from tpuctl.cloud.gce.bodies import (
    Mark,
    group_body,
    mark_of,
    part_name,
    policy_body,
    read_mark,
    request_id,
    template_body,
)
from tpuctl.cloud.models import ALL_ZONES, INCOMPLETE, Departure, Node, NodeRequest, region_of
from tpuctl.errors import AlreadyExistsError, NoCapacityError, NotFoundError, UnavailableError

POLL_S, WAIT_S = 2.0, 120.0
"""Policies and templates are made within seconds; their operations are polled this long."""

WhyGone = Callable[[str, str, datetime], Departure | None]


class Slices:
    """The slices of one project."""

    def __init__(self, http: ComputeHttp, project: str, clock: Clock, why_gone: WhyGone) -> None:
        self._http, self._project, self._clock, self._why_gone = http, project, clock, why_gone

    def create(self, request: NodeRequest, context: RequestContext) -> Json:
        """Make the parts that are missing; return the operation that makes the group.

        Each part is sent with its own id, and says in its description which request it
        belongs to. So a repetition of the same request resumes where it was interrupted.
        """
        mark, (zone, project) = self._mark(request, context), (request.zone, self._project)
        policies = f"projects/{project}/regions/{region_of(zone)}/resourcePolicies"
        templates = f"projects/{project}/global/instanceTemplates"
        groups = f"projects/{project}/zones/{zone}/instanceGroupManagers"
        for path, body in (
            (policies, policy_body(request, mark)),
            (templates, template_body(request, mark, project)),
        ):
            if operation := self._insert(path, body, mark, context):
                self._finish(operation, context)
        body = group_body(request, mark, project)
        if found := self._insert(groups, body, mark, context):
            return found
        done = {"name": request.name, "status": "DONE", "operationType": "insert"}
        return {**done, "selfLink": groups}

    def _mark(self, request: NodeRequest, context: RequestContext) -> Mark:
        """Make the mark of a request, or read the one that it began with: it has the time."""
        policy = self._optional(self._part_paths(request.name, request.zone)[1], context)
        known = read_mark(policy or {})
        is_same = known and known.create_id == request.create_id
        return known if known and is_same else mark_of(request, self._clock.now())

    def read(self, name: str, zone: str, context: RequestContext) -> Node | None:
        """Read a slice, or what is left of it; None if nothing has that name."""
        with suppress(NotFoundError):  # The group may go between two requests.
            if node := self._read_group(name, zone, context):
                return node
        for path in self._part_paths(name, zone):
            part = self._optional(path, context)
            if part and (mark := read_mark(part)) and (mark.name, mark.zone) == (name, zone):
                return reading.node_of_mark(mark)
        return None

    def _read_group(self, name: str, zone: str, context: RequestContext) -> Node | None:
        zone_path = f"projects/{self._project}/zones/{zone}"
        path = f"{zone_path}/instanceGroupManagers/{name}"
        group = self._http.send("GET", path, context)
        managed = [
            each
            for page in self._http.posted_pages(f"{path}/listManagedInstances", context)
            for each in page.get("managedInstances") or ()
        ]
        members = [
            each
            for page in self._http.pages(f"{zone_path}/instances", context)
            for each in page.get("items") or ()
            if reading.group_of(each) == name and reading.is_tpu(each)
        ]
        return self.node(group, members, managed, context)

    def node(
        self,
        group: Json,
        members: list[Json],
        managed: list[Json],
        context: RequestContext,
    ) -> Node | None:
        """Describe a slice; None for a group that neither tpuctl made nor has TPUs."""
        if "zone" not in group or not (members or read_mark(group)):
            return None
        node = reading.node_of_slice(group, members, managed)
        context = replace(context, doing=f"Could not create TPU {node.name} in {node.zone}")
        errors = [
            error
            for each in managed
            if (error := error_of_operation(each.get("lastAttempt") or {}, context))
        ]
        is_short = len(members) < int(group.get("targetSize") or 0)
        if node.state in ("STOPPED", "STOPPING") or (node.state == "CREATING" and is_short):
            cause = self._why_gone(node.name, node.zone, node.created)
            node = reading.with_departure(node, cause)
            if node.state == "DELETING":
                # Of its VMs, not of the group, so that nothing deletes the rest.
                node = replace(node, state="TERMINATED", is_partly_deleted=True)
        # A flex-start waits through a lack of capacity; everything else is refused by it.
        waits = node.flex and all(isinstance(error, NoCapacityError) for error in errors)
        if errors and node.state in ("CREATING", "PENDING"):
            why = str(errors[0]).partition(": ")[2]
            return replace(node, error=None if waits else errors[0], health_description=why)
        return node

    def marks(self, zone: str, context: RequestContext) -> Iterator[Mark]:
        """List the marks of all workload policies and templates, one for each part."""
        region, project = region_of(zone), self._project
        if zone == ALL_ZONES:
            pages = self._http.pages(f"projects/{project}/aggregated/resourcePolicies", context)
            parts = [each for page in pages for _, each in reading.scoped(page, "resourcePolicies")]
        else:
            path = f"projects/{project}/regions/{region}/resourcePolicies"
            parts = [e for page in self._http.pages(path, context) for e in page.get("items") or ()]
        for page in self._http.pages(f"projects/{project}/global/instanceTemplates", context):
            parts += page.get("items") or ()
        for part in parts:
            mark = read_mark(part)
            if mark and zone in (ALL_ZONES, mark.zone):
                yield mark

    def delete(self, name: str, zone: str, context: RequestContext) -> Json:
        """Delete the group; where it is gone, the template and the policy.

        Each is in use by the one before. Raises NotFoundError when nothing is left. A group of the
        same name that is not a TPU stays.
        """
        found = self.read(name, zone, context)
        if found and found.state != INCOMPLETE:
            group = f"projects/{self._project}/zones/{zone}/instanceGroupManagers/{name}"
            return self._http.send("DELETE", group, context)
        sent: Json | None = None
        for path in self._part_paths(name, zone):
            part = self._optional(path, context)
            if part and (mark := read_mark(part)) and (mark.name, mark.zone) == (name, zone):
                sent = self._http.send("DELETE", path, context)
        if sent is None:
            raise NotFoundError(f"{context.doing}: nothing of that name is a TPU.")
        return sent

    def _part_paths(self, name: str, zone: str) -> tuple[str, str]:
        part, project = part_name(name, zone), self._project
        return (
            f"projects/{project}/global/instanceTemplates/{part}",
            f"projects/{project}/regions/{region_of(zone)}/resourcePolicies/{part}",
        )

    def _insert(self, path: str, body: Json, mark: Mark, context: RequestContext) -> Json | None:
        """Send one part; None where this request made it before."""
        began, step = self._clock.now(), path.rpartition("/")[2]
        made = f"{path}/{body['name']}"
        try:
            while True:
                query = {"requestId": request_id(mark.create_id, step)}
                sent = self._http.send("POST", path, context, body=body, query=query)
                is_old = reading.read_time(sent.get("insertTime")) < began
                is_over = is_old and sent.get("status") == "DONE"
                if not is_over or self._optional(made, context):
                    return sent
                # The service remembers the request, but what it made was deleted since.
                step += f" after {sent.get('name')}"
        except AlreadyExistsError:
            there = self._optional(made, context)
            known = read_mark(there or {})
            if known is None or known.create_id != mark.create_id:
                raise
            return None

    def _finish(self, operation: Json, context: RequestContext) -> None:
        """Wait until a part exists, because the next one refers to it."""
        path, waited_s = reading.path_of(operation), 0.0
        while operation.get("status") != "DONE":
            if waited_s >= WAIT_S:
                raise UnavailableError(
                    f"{context.doing}: {operation.get('operationType')} of a part of it did not "
                    f"end within {WAIT_S:g} s.",
                    hint="Run the same command again; it resumes from there.",
                )
            self._clock.sleep(POLL_S)
            waited_s += POLL_S
            operation = self._http.send("GET", path, context)
        if error := error_of_operation(operation, context):
            raise error

    def _optional(self, path: str, context: RequestContext) -> Json | None:
        try:
            return self._http.send("GET", path, context)
        except NotFoundError:
            return None
