"""The methods of compute.v1 that are emulated, and their paths."""

import re
from dataclasses import dataclass
from functools import cached_property

# The collection, where it is, and its methods.
_TABLE = """
projects . get
zones . get list
regions . get list
machineTypes zones get list aggregatedList
acceleratorTypes zones aggregatedList
images global getFromFamily
imageFamilyViews zones get
networks global get list
subnetworks regions get list
disks zones get
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
reservations zones list aggregatedList
"""
# Paths that do not follow from the names.
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
_FOLDERS = {
    **dict.fromkeys(("zoneOperations", "regionOperations", "globalOperations"), "operations"),
    "regionInstanceTemplates": "instanceTemplates",
    "instanceGroupManagerResizeRequests": "instanceGroupManagers/{group}/resizeRequests",
}
_PERMISSIONS = {"insert": "create", "aggregatedList": "list"}
_START_NOTHING = ("get", "list", "aggregated", "wait")


def snake(name: str) -> str:
    """Write a name of the API as scenarios do."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@dataclass(frozen=True)
class ComputeMethod:
    """One method; `scope` is `zones`, `regions`, `global`, or "." for one of the project itself."""

    collection: str
    verb: str
    scope: str

    @cached_property
    def name(self) -> str:
        """The name as scenarios spell it, such as `compute_instances_insert`."""
        return f"compute_{snake(self.collection)}_{snake(self.verb)}"

    @property
    def rpc(self) -> str:
        """The name in Google's reference."""
        return f"{self.collection}.{self.verb}"

    @property
    def permission(self) -> str:
        """The permission that its caller needs."""
        return f"compute.{self.collection}.{_PERMISSIONS.get(self.verb, self.verb)}"

    @property
    def starts_operation(self) -> bool:
        """Whether it returns an operation."""
        return not self.verb.startswith(_START_NOTHING)

    @property
    def rule(self) -> str:
        """The verb and the path below the project, as routes write them."""
        folder = _FOLDERS.get(self.collection, self.collection)
        where = {"zones": "zones/{zone}/", "regions": "regions/{zone}/"}.get(self.scope, "")
        where = "global/" if self.scope == "global" else where
        if self.collection == "projects":
            return "GET "
        if self.verb == "aggregatedList":
            where = "aggregated/"
        elif self.scope == "." and self.verb == "get":
            return f"GET /{folder}/{{zone}}"
        form = _PATHS.get(self.verb, f"POST {{path}}/{{name}}/{self.verb}")
        verb, _, path = form.partition(" ")
        path = path.replace("{path}", folder)
        return f"{verb} /{where}{path}"


def _methods() -> list[ComputeMethod]:
    rows = (row.split() for row in _TABLE.strip().splitlines())
    return [
        ComputeMethod(collection, verb, scope)
        for collection, scope, *verbs in rows
        for verb in verbs
    ]


COMPUTE_METHODS = {method.name: method for method in _methods()}
