"""The cluster's discovery API (versions, groups, resources) and its kubeconfig."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from tpuctl.emulator.errors import load_data
from tpuctl.emulator.http import Reply, Request, Route
from tpuctl.emulator.kubernetes.objects import kube_error
from tpuctl.emulator.methods import Document
from tpuctl.emulator.service import Emulator

ROOT = "/kubernetes"
_MORE_NAMES = {
    "events": {"shortNames": ["ev"]},
    "jobs": {"categories": ["all"]},
    "localqueues": {"shortNames": ["queue", "queues", "lq"]},
    "namespaces": {"shortNames": ["ns"]},
    "nodes": {"shortNames": ["no"]},
    "pods": {"shortNames": ["po"], "categories": ["all"]},
    "workloads": {"shortNames": ["wl"]},
}
META_V1 = {"apiVersion": "v1"}


class Discovery:
    """The part of the API that describes the others to clients."""

    def __init__(self, resources: Mapping[str, Any], emulator: Emulator) -> None:
        self._resources, self._emulator = resources, emulator

    def routes(self) -> list[Route]:
        """Return the routes, each also with a slash at the end, as some clients write them."""
        routes = [
            Route(
                f"GET {ROOT}/version", lambda _: Reply(document=load_data("kubernetes")["version"])
            ),
            Route(
                f"GET {ROOT}/api",
                lambda _: Reply(document={"kind": "APIVersions", "versions": ["v1"]}),
            ),
            Route(f"GET {ROOT}/apis", lambda _: Reply(document=self._groups())),
            Route(f"GET {ROOT}/api/v1", partial(self._discover, "api/v1")),
            Route(f"GET {ROOT}/apis/{{group}}", self._group),
            Route(f"GET {ROOT}/apis/{{group}}/{{version}}", partial(self._discover, "")),
            Route(f"GET {ROOT}/openapi/v3", lambda _: Reply(document=self._openapi_index())),
        ]
        routes += [Route(f"{each.rule}/", each.answer) for each in routes]
        return [*routes, Route(f"GET {ROOT}/openapi/v3/{{path=**}}", self._openapi)]

    def _groups(self) -> Document:
        groups = sorted({row[0].split("/")[1] for row in self._resources.values()} - {"v1"})
        return {
            **META_V1,
            "kind": "APIGroupList",
            "groups": [self._group_of(each) for each in groups],
        }

    def _group_of(self, group: str) -> Document:
        versions = {
            row[0].split("/")[2] for row in self._resources.values() if f"/{group}/" in row[0]
        }
        if not versions:
            raise kube_error("unimplemented")
        entries = [
            {"groupVersion": f"{group}/{each}", "version": each} for each in sorted(versions)
        ]
        return {"name": group, "versions": entries, "preferredVersion": entries[0]}

    def _group(self, request: Request) -> Reply:
        found = self._group_of(request.names["group"])
        return Reply(document={**META_V1, "kind": "APIGroup", **found})

    def _discover(self, base: str, request: Request) -> Reply:
        base = base or "apis/{group}/{version}".format_map(request.names)
        found = [
            {"name": plural, "singularName": row[1].lower(), "namespaced": row[2], "kind": row[1],
             "verbs": row[3].split(), **_MORE_NAMES.get(plural, {})}
            for plural, row in self._resources.items() if row[0] == base
        ]  # fmt: skip
        if not found:
            raise kube_error("unimplemented")
        if base == "api/v1":
            found.append(
                {
                    "name": "pods/log",
                    "singularName": "",
                    "namespaced": True,
                    "kind": "Pod",
                    "verbs": ["get"],
                }
            )
        version = base.partition("/")[2]
        return Reply(
            document={
                **META_V1,
                "kind": "APIResourceList",
                "groupVersion": version,
                "resources": found,
            }
        )

    def _openapi_index(self) -> Document:
        bases = {row[0] for row in self._resources.values()}
        path = urlsplit(self._emulator.http).path
        return {
            "paths": {
                each: {"serverRelativeURL": f"{path}{ROOT}/openapi/v3/{each}"} for each in bases
            }
        }

    def _openapi(self, request: Request) -> Reply:
        """Answer kubectl's questions about an API group: its schemas, and strict validation."""
        base, paths, schemas = request.names["path"], {}, {}
        group, _, version = base.removeprefix("apis/").removeprefix("api/").rpartition("/")
        query = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        for plural, (where, kind, _, _) in self._resources.items():
            if where == base:
                named: Document = {"group": group, "version": version, "kind": kind}
                call = {"x-kubernetes-group-version-kind": named, "parameters": [query]}
                paths[f"/{base}/namespaces/{{namespace}}/{plural}"] = {"post": call, "patch": call}
                known = load_data("jobset_schema")["schema"] if plural == "jobsets" else {}
                about_kind = {"type": "object", "x-kubernetes-group-version-kind": [named]}
                schemas[kind] = {**about_kind, **known}
        about = {"title": "Kubernetes", "version": "1.34"}
        # The schema's references begin at the root of the document.
        shared = schemas.get("JobSet", {}).get("$defs", {})
        components = {"schemas": schemas}
        document = {"openapi": "3.0.0", "info": about, "paths": paths, "components": components}
        return Reply(document={**document, "$defs": shared})


def kubeconfig(emulator: Emulator) -> str:
    """Write the kubeconfig of the emulated cluster; JSON is YAML."""
    name = "tpuctl-emulator"
    # The client for Node refuses HTTP otherwise, even on the loopback interface.
    insecure = {"insecure-skip-tls-verify": True}
    cluster = {"server": f"{emulator.http}{ROOT}", **insecure}
    context = {"cluster": name, "user": name, "namespace": "default"}
    return json.dumps({
        **META_V1, "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "contexts": [{"name": name, "context": context}],
        "users": [{"name": name, "user": {}}],
    }, indent=1)  # fmt: skip
