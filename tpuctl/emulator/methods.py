"""The methods of the Cloud TPU API and its relatives, and one call of a method."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

TPU = "google.cloud.tpu.v2.Tpu"
OPERATIONS = "google.longrunning.Operations"
LOCATIONS = "google.cloud.location.Locations"
QUOTAS = "google.api.cloudquotas.v1.CloudQuotas"

Document = dict[str, Any]
"""A message of the API as JSON."""


@dataclass(frozen=True)
class Method:
    """One method: its name in gRPC, the permission that its caller needs, its rule in HTTP.

    `http` is the verb and the path below the version of the API, as Google's reference writes it;
    `body` is the field of the message that the body holds, "*" for the whole message.
    """

    rpc: str
    permission: str
    http: str
    body: str = ""
    service: str = TPU

    @cached_property
    def name(self) -> str:
        """The name in snake case, as scenarios spell it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.rpc).lower()

    @cached_property
    def resource_field(self) -> str:
        """The field of the message that says where the method acts, such as `parent`."""
        return self.http.partition("{")[2].partition("=")[0]

    @cached_property
    def resource_template(self) -> str:
        """The form of the resource name in that field."""
        return self.http.partition("=")[2].partition("}")[0]

    @property
    def starts_operation(self) -> bool:
        """Whether it returns a long-running operation."""
        return not self.rpc.startswith(("Get", "List", "Generate"))


_ZONE = "projects/*/locations/*"
_NODE = f"{{name={_ZONE}/nodes/*}}"
_QUEUED = f"{{name={_ZONE}/queuedResources/*}}"
_PARENT = f"{{parent={_ZONE}}}"


def _get_and_list(
    resource: str, collection: str, permission: str, *, parent: str = "parent", service: str = TPU
) -> tuple[Method, Method]:
    one, all_of_them = f"{{name={_ZONE}/{collection}/*}}", f"{{{parent}={_ZONE}}}/{collection}"
    return (
        Method(f"Get{resource}", f"{permission}.get", f"GET {one}", service=service),
        Method(f"List{resource}s", f"{permission}.list", f"GET {all_of_them}", service=service),
    )


_ALL = (
    *_get_and_list("Node", "nodes", "tpu.nodes"),
    Method("CreateNode", "tpu.nodes.create", f"POST {_PARENT}/nodes", "node"),
    Method("DeleteNode", "tpu.nodes.delete", f"DELETE {_NODE}"),
    Method("StopNode", "tpu.nodes.stop", f"POST {_NODE}:stop", "*"),
    Method("StartNode", "tpu.nodes.start", f"POST {_NODE}:start", "*"),
    Method("UpdateNode", "tpu.nodes.update", f"PATCH {{node.name={_ZONE}/nodes/*}}", "node"),
    Method(
        "GetGuestAttributes",
        "tpu.nodes.getGuestAttributes",
        f"POST {_NODE}:getGuestAttributes",
        "*",
    ),
    *_get_and_list("QueuedResource", "queuedResources", "tpu.queuedResources"),
    Method(
        "CreateQueuedResource",
        "tpu.queuedResources.create",
        f"POST {_PARENT}/queuedResources",
        "queuedResource",
    ),
    Method("DeleteQueuedResource", "tpu.queuedResources.delete", f"DELETE {_QUEUED}"),
    Method("ResetQueuedResource", "tpu.queuedResources.reset", f"POST {_QUEUED}:reset", "*"),
    *_get_and_list("AcceleratorType", "acceleratorTypes", "tpu.acceleratortypes"),
    *_get_and_list("RuntimeVersion", "runtimeVersions", "tpu.runtimeversions"),
    *_get_and_list("Operation", "operations", "tpu.operations", parent="name", service=OPERATIONS),
    Method("GetLocation", "tpu.locations.get", f"GET {{name={_ZONE}}}", service=LOCATIONS),
    Method(
        "ListLocations", "tpu.locations.list", "GET {name=projects/*}/locations", service=LOCATIONS
    ),
    Method(
        "GenerateServiceIdentity",
        "tpu.locations.generateServiceIdentity",
        f"POST {_PARENT}:generateServiceIdentity",
        "*",
    ),
    Method(
        "ListQuotaInfos",
        "cloudquotas.quotas.get",
        f"GET {{parent={_ZONE}/services/*}}/quotaInfos",
        service=QUOTAS,
    ),
)
METHODS = {method.name: method for method in _ALL}


@dataclass(frozen=True)
class Call:
    """One request: a method, the place where it acts, and the message itself.

    `name` is the id of the node, queued resource, operation, type or version, or "". `zone` may be
    `-` (every zone) in a list, and is "" for a method of the whole project.
    """

    method: str
    project: str
    zone: str
    name: str = ""
    body: Document = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The full name of the zone or the project where it acts."""
        return f"projects/{self.project}" + (f"/locations/{self.zone}" if self.zone else "")
