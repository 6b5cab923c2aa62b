"""The methods of the Cloud TPU API and its relatives, and one call of a method."""

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

TPU = "google.cloud.tpu.v2.Tpu"
OPERATIONS = "google.longrunning.Operations"
LOCATIONS = "google.cloud.location.Locations"
QUOTAS = "google.api.cloudquotas.v1.CloudQuotas"

Document = dict[str, Any]
"""A message of the API as JSON."""


@dataclass(frozen=True)
class Method:
    """One method: its gRPC name, the permission that it requires, its HTTP rule.

    `http` is the verb and the path after the API version, as in Google's reference; `body` is the
    message field that the HTTP body contains, "*" for the whole message; `query` are its
    parameters. An `alpha` method exists only in v2alpha1.
    """

    rpc: str
    permission: str
    http: str
    body: str = ""
    service: str = TPU
    query: str = ""
    alpha: bool = False

    @cached_property
    def name(self) -> str:
        """The name in snake case, as scenarios spell it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.rpc).lower()

    @cached_property
    def resource_field(self) -> str:
        """The message field with the name of the resource or its parent, such as `parent`."""
        return self.http.partition("{")[2].partition("=")[0]

    @cached_property
    def resource_template(self) -> str:
        """The template of the resource name in that field."""
        return self.http.partition("=")[2].partition("}")[0]

    @property
    def starts_operation(self) -> bool:
        """Whether it returns a long-running operation."""
        return self.service == TPU and not self.rpc.startswith(("Get", "List", "Generate"))

    @property
    def reply(self) -> str:
        """The kind of message that it returns."""
        if self.starts_operation:
            return "Operation"
        return self.rpc.removeprefix("Get") if self.rpc.startswith("Get") else f"{self.rpc}Response"


_TABLE = Path(__file__).with_name("data") / "methods.json"
_ALL = (Method(**row) for row in json.loads(_TABLE.read_text(encoding="utf-8")))
METHODS = {method.name: method for method in _ALL}


@dataclass(frozen=True)
class Call:
    """One request: a method, its project and zone, and the message itself.

    `name` is the ID of the node, queued resource, operation, type or version, or "". `zone` may be
    `-` (every zone) in a list, and is "" for a method of the whole project. `version` is the API
    version, which decides the types in the operation that it starts.
    """

    method: str
    project: str
    zone: str
    name: str = ""
    body: Document = field(default_factory=dict)
    version: str = "v2"

    @property
    def place(self) -> str:
        """The full name of its zone or project."""
        return f"projects/{self.project}" + (f"/locations/{self.zone}" if self.zone else "")
