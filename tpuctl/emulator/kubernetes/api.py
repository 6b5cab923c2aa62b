"""The Kubernetes API over HTTP, as kubectl and the official clients call it."""

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from tpuctl.emulator.errors import load_data
from tpuctl.emulator.faults import FaultCounts, StorageFault
from tpuctl.emulator.http import HttpApi, Reply, Request, Route, Stream
from tpuctl.emulator.kubernetes.controller import QUEUE, Controller
from tpuctl.emulator.kubernetes.discovery import META_V1, ROOT, Discovery
from tpuctl.emulator.kubernetes.objects import (
    JSON,
    Objects,
    fields_match,
    kube_error,
    schema_problems,
    selected,
    webhook_problems,
)
from tpuctl.emulator.kubernetes.patches import json_patched, merged
from tpuctl.emulator.kubernetes.pods import Kubelet
from tpuctl.emulator.kubernetes.tables import table, wants_table
from tpuctl.emulator.methods import Document
from tpuctl.emulator.service import Emulator
from tpuctl.storage.local import write_atomically

_LARGEST_BODY = 3 << 20
_TICK_S = 0.02
_WATCH_S = 300.0
_KEPT = ("creationTimestamp", "generation", "name", "namespace", "uid")
_MUTABLE = ("suspend", "ttlSecondsAfterFinished")


class KubernetesApi:
    """The cluster of one emulator, with one namespace."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self._emulator, self._plan = emulator, emulator.scenario.gke
        self._kept, self._folder = folder / "jobsets.json", folder
        self.objects = objects = Objects(emulator.now)
        self._faults = FaultCounts(emulator.scenario.storage_faults)
        self._outages: dict[StorageFault, datetime] = {}
        scale = emulator.scenario.time_scale
        self._kubelet = Kubelet(
            objects,
            folder / "pods",
            emulator=emulator,
            scale=scale,
            missing_images=self._plan.missing_images,
        )
        self._controller = Controller(objects, self._kubelet, self._plan)
        self._resources = {
            plural: row
            for plural, row in load_data("kubernetes")["resources"].items()
            if ("jobset" not in row[0] or self._plan.job_sets)
            and ("kueue" not in row[0] or self._plan.queues)
        }
        objects.put("namespaces", {"metadata": {"name": "default"}, "spec": {}, "status": {}})
        for node in (node for pool in self._plan.pools for node in pool.nodes()):
            objects.put("nodes", node)
        for queue in self._plan.queues:
            spec = {"clusterQueue": "tpus"}
            objects.put("localqueues", {"metadata": {"name": queue}, "spec": spec, "status": {}})
        if self._kept.exists():
            self._resume()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Kill the pods, but keep the JobSets for the next start."""
        self._closed.set()
        self._thread.join()
        self._kubelet.close()

    def _run(self) -> None:
        kept = 0
        while not self._closed.wait(_TICK_S):
            self._controller.step()
            with self.objects.changed:
                if kept != self.objects.revision:
                    kept, held = self.objects.revision, self.objects.all("jobsets")
                    self._folder.mkdir(parents=True, exist_ok=True)
                    write_atomically(self._kept, json.dumps(held), private=True)

    def _resume(self) -> None:
        """Restore the JobSets of the last run; running ones have lost all their nodes."""
        for job_set in json.loads(self._kept.read_bytes()):
            if job_set.get("status") and not job_set["status"].get("terminalState"):
                job_set["status"]["restarts"] += 1
            self.objects.put("jobsets", job_set)

    def http_api(self) -> HttpApi:
        """Return the routes."""
        routes = [
            Route(each.rule, partial(self._with_fault, "discover", "", each.answer))
            for each in Discovery(self._resources, self._emulator).routes()
        ]
        actions = {"GET": ("get", self._get), "PATCH": ("patch", self._patch),
                   "PUT": ("patch", self._replace),
                   "DELETE": ("delete", self._delete)}  # fmt: skip
        for plural, (base, _, namespaced, _) in self._resources.items():
            inside = f"{ROOT}/{base}" + ("/namespaces/{namespace}" if namespaced else "")
            routes.append(
                Route(f"GET {inside}/{plural}", partial(self._answer, "list", plural, self._list))
            )
            routes.append(
                Route(
                    f"POST {inside}/{plural}", partial(self._answer, "create", plural, self._create)
                )
            )
            if namespaced:
                every = partial(self._answer, "list", plural, self._list)
                routes.append(Route(f"GET {ROOT}/{base}/{plural}", every))
            for verb, (on, action) in actions.items():
                one = partial(self._answer, on, plural, action)
                routes.append(Route(f"{verb} {inside}/{plural}/{{name}}", one))
        log = f"GET {ROOT}/api/v1/namespaces/{{namespace}}/pods/{{name}}/log"
        routes.append(Route(log, partial(self._answer, "logs", "pods", self._log)))
        return HttpApi((f"{ROOT}/",), routes, kube_error)

    def _answer(
        self, on: str, plural: str, action: Callable[[str, Request], Reply], request: Request
    ) -> Reply:
        """Answer a request about objects."""
        time.sleep(self._emulator.scenario.latency_ms / 1000)
        name = request.names.get("name", plural)
        self._emulator.requests.append((f"gke_{on}", request.names.get("namespace", ""), name))
        verb = {"logs": "get"}.get(on, on)
        if verb not in self._resources[plural][3].split():
            raise kube_error("unimplemented")
        return self._with_fault(on, name, partial(action, plural), request)

    def _with_fault(
        self, on: str, name: str, action: Callable[[Request], Reply], request: Request
    ) -> Reply:
        """Answer a request with the planned fault, once or for some time."""

        def matches(plan: StorageFault) -> bool:
            return plan.on in ("gke", f"gke_{on}") and fnmatchcase(name, plan.name)

        with self.objects.changed:
            due, now = self._faults.due(matches), self.objects.now()
            self._outages |= {
                plan: now + timedelta(seconds=plan.for_s) for plan in due if plan.error != "stall"
            }
            due += [plan for plan, end in self._outages.items() if now < end and matches(plan)]
        fault = due[0] if due else None
        if fault and not fault.after_accept and not (fault.byte_fault and on == "logs"):
            fault.apply(kube_error)
        reply = action(request)
        if fault and fault.after_accept:
            fault.apply(kube_error)
        # Unlike Google's services, without a charset: lightkube compares the whole value.
        reply = replace(reply, headers={**JSON, **reply.headers})
        return replace(reply, fault=fault.byte_fault) if fault else reply

    def _list(self, plural: str, request: Request) -> Reply:
        query, (base, kind, *_) = request.query, self._resources[plural]
        namespace = request.names.get("namespace")
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")

        def matches(each: Document) -> bool:
            meta = each["metadata"]
            here = namespace is None or meta.get("namespace") == namespace
            return here and selected(meta.get("labels", {}), labels) and fields_match(each, fields)

        with self.objects.changed:
            found, revision = self.objects.all(plural, matches), self.objects.revision
            found = deepcopy(sorted(found, key=lambda each: each["metadata"]["name"]))
        if _flag(query, "watch"):
            since = query.get("resourceVersion", "")
            until = time.monotonic() + float(query.get("timeoutSeconds") or _WATCH_S)
            is_over = lambda: self._closed.is_set() or time.monotonic() > until  # noqa: E731
            first: list[Document] = (
                [] if since not in ("", "0") else [{"type": "ADDED", "object": o} for o in found]
            )
            after = int(since) if since.isdecimal() and since != "0" else revision
            changes = self.objects.watch(plural, matches, after, is_over)
            lines = (
                json.dumps(
                    {**each, "object": self._shown(plural, request, each["object"])}
                ).encode()
                + b"\n"
                for part in (first, changes)
                for each in part
            )
            return Reply(content=Stream(lines))
        first_one = int(query.get("continue") or 0)
        last = first_one + int(query.get("limit") or len(found) or 1)
        meta = {"resourceVersion": str(revision)}
        meta |= {"continue": str(last)} if last < len(found) else {}
        version, page = base.partition("/")[2], found[first_one:last]
        if wants_table(request):
            return Reply(document=self._table(plural, request, page, meta))
        return Reply(document={"apiVersion": version, "kind": f"{kind}List", "metadata": meta,
                               "items": page})  # fmt: skip

    def _get(self, plural: str, request: Request) -> Reply:
        with self.objects.changed:
            found = deepcopy(self._found(plural, request))
        return Reply(document=self._shown(plural, request, found))

    def _shown(self, plural: str, request: Request, found: Document) -> Document:
        """Return an object, or a table of it if the client asks for one."""
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        is_table = wants_table(request)
        return self._table(plural, request, [found], version) if is_table else found

    def _table(
        self, plural: str, request: Request, items: list[Document], meta: Document
    ) -> Document:
        include = request.query.get("includeObject") or "Metadata"
        return table(plural, items, meta, self.objects.now(), include)

    def _found(self, plural: str, request: Request) -> Document:
        found = self.objects.find(plural, request.names.get("namespace", ""), request.names["name"])
        if found is None:
            raise kube_error("not_found", what=self._what(plural, request.names["name"]))
        return found

    def _what(self, plural: str, name: str) -> str:
        group = self._resources[plural][0].removeprefix("apis/").partition("/")[0]
        return f'{plural}{"" if group == "api" else "." + group} "{name}"'

    def _create(self, plural: str, request: Request) -> Reply:
        made = _body(request)
        meta = made.setdefault("metadata", {})
        if not isinstance(meta, dict):
            raise kube_error("body")
        if prefix := meta.get("generateName"):
            meta.setdefault("name", f"{prefix}{self.objects.revision:05x}")
        namespace = request.names["namespace"]
        if meta.setdefault("namespace", namespace) != namespace:
            why = "the namespace of the object does not match the namespace of the request"
            raise kube_error("bad_request", why=why)
        with self.objects.changed:
            self._check(plural, made, strict=request.query.get("fieldValidation") == "Strict")
            if not self.objects.find("namespaces", "", namespace):
                raise kube_error("not_found", what=f'namespaces "{namespace}"')
            if self.objects.find(plural, namespace, meta["name"]):
                raise kube_error("exists", what=self._what(plural, meta["name"]))
            _default(made, queued=bool(self._plan.queues))
            if request.query.get("dryRun") == "All":
                return Reply(201, document=made)
            meta["generation"] = 1
            return Reply(201, document=deepcopy(self.objects.put(plural, made)))

    def _check(self, plural: str, made: Document, *, strict: bool) -> None:
        """Validate an object like the schema, strict decoding and JobSet's webhook."""
        problems = list(schema_problems(made, load_data("jobset_schema")["schema"]))
        unknown = [each for each in problems if each.startswith("unknown field")]
        if unknown and strict:
            why = f"strict decoding error: {', '.join(unknown)}"
            raise kube_error(
                "bad_request", why=f'JobSet in version "v1alpha2" cannot be handled: {why}'
            )
        # The webhook names the rules before the schema asks for names.
        optional = re.compile(r"spec\.failurePolicy\.rules\[\d+\]\.name: Required value")
        problems = [e for e in problems if e not in unknown and not optional.fullmatch(e)]
        name = made["metadata"].get("name")
        problems += [] if isinstance(name, str) else ["metadata.name: Required value"]
        problems += [] if problems else list(webhook_problems(made))
        if problems:
            raise kube_error(
                "invalid", what=f'JobSet.jobset.x-k8s.io "{name}"', why="; ".join(problems)
            )

    def _patch(self, plural: str, request: Request) -> Reply:
        kind = request.headers.get_content_type()
        if kind not in ("application/merge-patch+json", "application/json-patch+json"):
            raise kube_error("media_type")
        is_merge = "/merge-patch" in kind
        change = _body(request, dict if is_merge else list)
        with self.objects.changed:
            old = self._found(plural, request)
            new = merged(old, change) if is_merge else json_patched(old, change)
            return self._update(plural, request, new)

    def _replace(self, plural: str, request: Request) -> Reply:
        new = _body(request)
        with self.objects.changed:
            old = self._found(plural, request)
            meta, known = new.get("metadata") or {}, old["metadata"]
            if meta.get("resourceVersion", known["resourceVersion"]) != known["resourceVersion"]:
                why = (
                    "the object has been modified; please apply your changes to the latest version"
                )
                what = self._what(plural, request.names["name"])
                raise kube_error("conflict", what=what, why=f"{why} and try again")
            kept = {name: known[name] for name in _KEPT if name in known}
            status = {name: old[name] for name in ("status",) if name in old}
            return self._update(plural, request, {**new, **status, "metadata": {**meta, **kept}})

    def _update(self, plural: str, request: Request, new: Document) -> Reply:
        """Change an object in place, if its fields are mutable: most of a JobSet's are not."""
        old = self._found(plural, request)
        if plural == "jobsets":
            _default(new, queued=False)
            self._check(plural, new, strict=False)
            for name in {*old["spec"], *new["spec"]} - {*_MUTABLE}:
                if old["spec"].get(name) != new["spec"].get(name):
                    what = f'JobSet.jobset.x-k8s.io "{request.names["name"]}"'
                    raise kube_error("invalid", what=what, why=f"spec.{name}: Value is immutable")
        if request.query.get("dryRun") != "All":
            old.update(new)
            self.objects.put(plural, old)
        return Reply(document=deepcopy(new))

    def _delete(self, plural: str, request: Request) -> Reply:
        body = _body(request) if not request.body.is_empty else {}
        with self.objects.changed:
            found = self._found(plural, request)
            wanted = (body.get("preconditions") or {}).get("uid")
            if wanted and wanted != found["metadata"]["uid"]:
                what = self._what(plural, request.names["name"])
                raise kube_error("conflict", what=what, why="the UID in the precondition differs")
            if request.query.get("dryRun") != "All":
                self._controller.delete(found)
        details = {"name": request.names["name"], "kind": plural, "uid": found["metadata"]["uid"]}
        return Reply(
            document={
                **META_V1,
                "kind": "Status",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
        )

    def _log(self, plural: str, request: Request) -> Reply:
        document, query = self._found("pods", request), request.query
        names = [each["name"] for each in document["spec"]["containers"]]
        known = [*names, *(each["name"] for each in document["spec"].get("initContainers", ()))]
        container = query.get("container") or names[0]
        pod = self._kubelet.find(document)
        name = request.names["name"]
        if container not in known:
            raise kube_error(
                "bad_request", why=f"container {container} is not valid for pod {name}"
            )
        if _flag(query, "previous"):
            why = f'previous terminated container "{container}" in pod "{name}" not found'
            raise kube_error("bad_request", why=why)
        if pod is None or container not in pod.logs:
            why = f'container "{container}" in pod "{name}" is waiting to start: PodInitializing'
            raise kube_error("bad_request", why=why)
        lines = self._kubelet.follow(pod, container, follow=_flag(query, "follow"))
        if tail := query.get("tailLines"):
            skipped = max(0, len(pod.logs[container]) - int(tail))
            lines = (each for number, each in enumerate(lines) if number >= skipped)
        since, stamped = query.get("sinceTime", ""), _flag(query, "timestamps")
        text = (b"%b %b" % (at.encode(), line) if stamped else line
                for at, line in lines if at[:19] >= since[:19])  # fmt: skip
        return Reply(content=Stream(iter(text)), headers={"Content-Type": "text/plain"})


def _flag(query: Mapping[str, str], name: str) -> bool:
    """Read a parameter like the real API: `True`, as Python's clients write it, is true."""
    return query.get(name, "false").lower() not in ("false", "0")


def _body(request: Request, kind: type = dict) -> Any:
    try:
        found = json.loads(request.body.read(_LARGEST_BODY))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise kube_error("body")
    return found


def _default(made: Document, *, queued: bool) -> None:
    """Fill in the defaults that the webhooks of JobSet and Kueue set."""
    spec = made["spec"]
    spec.setdefault("successPolicy", {"operator": "All"})
    spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
    spec.setdefault("network", {}).setdefault("enableDNSHostnames", True)
    spec["network"].setdefault("publishNotReadyAddresses", True)
    for each in spec.get("replicatedJobs", ()):
        each.setdefault("replicas", 1)
        each["template"]["spec"].setdefault("completionMode", "Indexed")
        each["template"]["spec"]["template"].setdefault("spec", {}).setdefault(
            "restartPolicy", "OnFailure"
        )
    for number, rule in enumerate(spec.get("failurePolicy", {}).get("rules", ())):
        rule.setdefault("name", f"failurePolicyRule{number}")
    if queued and QUEUE in made["metadata"].get("labels", {}):
        spec["suspend"] = True
