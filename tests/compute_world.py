"""Compute Engine of an emulator with a manual clock, asked over HTTP."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

ZONE = "us-east5-b"
TYPE = "ct6e-standard-4t"
ENDS = {"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "DELETE"}
FLEX = {**ENDS, "provisioningModel": "FLEX_START", "automaticRestart": False}
SPOT = {
    "provisioningModel": "SPOT",
    "automaticRestart": False,
    "instanceTerminationAction": "DELETE",
}
HYPERDISK = [{"boot": True, "initializeParams": {"diskType": "hyperdisk-balanced"}}]


class ComputeWorld:
    """One zone of one project; `practice` makes the emulator."""

    def __init__(
        self,
        practice: Callable[..., Any],
        *faults: dict[str, Any],
        zone: str = ZONE,
        **scenario: Any,
    ) -> None:
        of_zone = scenario.pop("of_zone", {})
        self.zone, self.region = zone, zone.rpartition("-")[0]
        self.world = practice({"zones": {zone: of_zone}, "faults": list(faults), **scenario})
        self.clock, self.emulator = self.world.clock, self.world.emulator

    def ask(self, verb: str, path: str, body: Any = None, **parameters: str) -> tuple[int, Any]:
        """One request; a path without a slash at its start is in the zone."""
        query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items())
        place = path if path.startswith("/") else f"/zones/{self.zone}/{path}"
        full = f"/compute/v1/projects/p{place}{'?' if query else ''}{query}"
        status, answer, _ = self.world.http(verb, full, body)
        return status, answer

    def ok(self, verb: str, path: str, body: Any = None, **parameters: str) -> Any:
        """One request that must succeed."""
        status, answer = self.ask(verb, path, body, **parameters)
        assert status == 200, answer
        return answer

    def create(self, name: str = "t1", machine: str = TYPE, **fields: Any) -> Any:
        """Ask for an instance; returns the operation."""
        return self.ok("POST", "instances", self.body(name, machine, **fields))

    def refused(self, name: str = "t1", machine: str = TYPE, **fields: Any) -> tuple[int, str, str]:
        """Ask for an instance that is refused at once; returns status, reason and message."""
        return error_of(self.ask("POST", "instances", self.body(name, machine, **fields)))

    def body(self, name: str, machine: str = TYPE, **fields: Any) -> dict[str, Any]:
        return {"name": name, "machineType": f"zones/{self.zone}/machineTypes/{machine}", **fields}

    def status(self, name: str = "t1") -> str:
        """The status of an instance, or "gone"."""
        code, answer = self.ask("GET", f"instances/{name}")
        return str(answer["status"]) if code == 200 else "gone"

    def after(self, seconds: float, name: str = "t1") -> str:
        self.clock.sleep(seconds)
        return self.status(name)

    def operation(self, operation: Any) -> Any:
        """An operation as it is now."""
        path = operation["selfLink"].partition("/projects/p")[2]
        return self.ok("GET", path)

    def failure(self, operation: Any, after_s: float = 0.0) -> tuple[str, str]:
        """Code and message of an operation that failed."""
        self.clock.sleep(after_s)
        found = self.operation(operation)
        assert found["status"] == "DONE"
        (error,) = found["error"]["errors"]
        return error["code"], error["message"]

    def system(self) -> list[str]:
        """What the system did, in order."""
        found = self.ok("GET", "operations", filter="user=system")["items"]
        return [
            item["operationType"] for item in sorted(found, key=lambda item: item["insertTime"])
        ]

    def policy(self, name: str = "s1", topology: str = "2x4", **fields: Any) -> Any:
        workload = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": topology, **fields}
        path = f"/regions/{self.region}/resourcePolicies"
        return self.ok("POST", path, {"name": name, "workloadPolicy": workload})

    def template(self, name: str = "s1", machine: str = TYPE, **properties: Any) -> Any:
        body = {"name": name, "properties": {"machineType": machine, **properties}}
        return self.ok("POST", "/global/instanceTemplates", body)

    def group_body(self, hosts: int = 2, name: str = "s1", **fields: Any) -> dict[str, Any]:
        policy = f"projects/p/regions/{self.region}/resourcePolicies/{name}"
        return {
            "name": name,
            "baseInstanceName": f"{name}-w-#[0]",
            "instanceTemplate": f"projects/p/global/instanceTemplates/{name}",
            "targetSize": hosts,
            "targetSizePolicy": {"mode": "BULK"},
            "resourcePolicies": {"workloadPolicy": policy},
            "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
            **fields,
        }

    def slice(
        self, topology: str = "2x4", hosts: int = 2, machine: str = TYPE, **fields: Any
    ) -> Any:
        """Make the three resources of a slice; returns the operation of the last."""
        properties = fields.pop("properties", {})
        self.policy(topology=topology)
        self.template(machine=machine, **properties)
        return self.ok("POST", "instanceGroupManagers", self.group_body(hosts, **fields))

    def group(self) -> Any:
        return self.ok("GET", "instanceGroupManagers/s1")

    def topology(self) -> str:
        """The state of the slice's topology."""
        (state,) = self.group()["status"]["appliedAcceleratorTopologies"]
        return str(state["state"])

    def managed(self) -> list[Any]:
        found: list[Any] = self.ok("POST", "instanceGroupManagers/s1/listManagedInstances")[
            "managedInstances"
        ]
        return found

    def metadata(self, name: str, path: str) -> tuple[int, Any]:
        machine = f"/vm/p/{self.zone}/{name}/vm/computeMetadata/v1/instance/"
        status, text, _ = self.world.http("GET", machine + path, Metadata_Flavor="Google")
        return status, text


def error_of(reply: tuple[int, Any]) -> tuple[int, str, str]:
    """Status, reason and message of a refusal."""
    status, answer = reply
    error = answer["error"]
    assert error["code"] == status
    assert error["errors"][0]["message"] == error["message"]
    return status, error["errors"][0]["reason"], error["message"]
