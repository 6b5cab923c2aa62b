"""The emulated methods of compute.v1, and their paths."""

import re
from dataclasses import dataclass
from functools import cached_property

# The collection, its scope, and its methods.
_TABLE = """
projects . get
zones . get list
regions . get list
machineTypes zones get list aggregatedList
images global get getFromFamily list
imageFamilyViews zones get
networks global get list
subnetworks regions get
instances zones insert get list aggregatedList delete setScheduling setMetadata setLabels \
start stop getGuestAttributes getSerialPortOutput simulateMaintenanceEvent
zoneOperations zones get list wait
regionOperations regions get list wait
globalOperations global get list wait aggregatedList
resourcePolicies regions insert get list aggregatedList delete
instanceTemplates global insert get list delete aggregatedList
regionInstanceTemplates regions insert get list delete
instanceGroupManagers zones insert get list aggregatedList delete listManagedInstances listErrors \
resize deleteInstances
instanceGroupManagerResizeRequests zones insert
autoscalers zones list aggregatedList
instanceGroups zones list aggregatedList
reservations zones list aggregatedList
"""
# Paths that cannot be derived from the names.
_PATHS = {
    "getFromFamily": "GET images/family/{name}",
    "aggregatedList": "GET {path}",
    "getSerialPortOutput": "GET {path}/{name}/serialPort",
    "getGuestAttributes": "GET {path}/{name}/getGuestAttributes",
    "listErrors": "GET {path}/{name}/listErrors",
    "get": "GET {path}/{name}",
    "list": "GET {path}",
    "insert": "POST {path}",
    "delete": "DELETE {path}/{name}",
}
_WHERE = {"zones": "zones/{zone}/", "regions": "regions/{zone}/", "global": "global/", ".": ""}
_FOLDERS = {
    **dict.fromkeys(("zoneOperations", "regionOperations", "globalOperations"), "operations"),
    "regionInstanceTemplates": "instanceTemplates",
    "instanceGroupManagerResizeRequests": "instanceGroupManagers/{group}/resizeRequests",
}
_PERMISSIONS = {"insert": "create", "aggregatedList": "list"}
_START_NOTHING = ("get", "list", "aggregated", "wait")


def snake(name: str) -> str:
    """Convert an API name to snake case, as in scenarios."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@dataclass(frozen=True)
class ComputeMethod:
    """One method; `scope` is `zones`, `regions`, `global`, or "." for the project itself."""

    collection: str
    verb: str
    scope: str

    @cached_property
    def name(self) -> str:
        """The name in scenarios, such as `compute_instances_insert`."""
        return f"compute_{snake(self.collection)}_{snake(self.verb)}"

    @property
    def rpc(self) -> str:
        """The name in Google's reference."""
        return f"{self.collection}.{self.verb}"

    @property
    def permission(self) -> str:
        """The permission that it requires."""
        return f"compute.{self.collection}.{_PERMISSIONS.get(self.verb, self.verb)}"

    @property
    def starts_operation(self) -> bool:
        """Whether it returns an operation."""
        return not self.verb.startswith(_START_NOTHING)

    @property
    def rule(self) -> str:
        """The verb and the path below the project, in the notation of routes."""
        if self.collection == "projects":
            return "GET "
        where = "aggregated/" if self.verb == "aggregatedList" else _WHERE[self.scope]
        form = _PATHS.get(self.verb, f"POST {{path}}/{{name}}/{self.verb}")
        path = form.replace("{path}", _FOLDERS.get(self.collection, self.collection))
        return path.replace(" ", f" /{where}")


_ROWS = (row.split() for row in _TABLE.strip().splitlines())
_ALL = (ComputeMethod(name, verb, scope) for name, scope, *verbs in _ROWS for verb in verbs)
COMPUTE_METHODS = {method.name: method for method in _ALL}
